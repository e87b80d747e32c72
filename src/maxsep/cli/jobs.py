"""The command line of a running command."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def arguments(context: typer.Context, without: Sequence[str] = (), *, typed: bool = False) -> list[str]:
    """Write the options and arguments of a running command as its command line again.

    Args:
        context: Of the running command.
        without: Names of parameters to leave out.
        typed: Whether to write only what was typed, and no default.
    """
    written: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in without or value is None or (typed and not was_typed(context, parameter.name)):
            continue
        if parameter.param_type_name == "argument":
            written.append(str(value))
        elif isinstance(value, bool):
            switch = parameter.opts if value else parameter.secondary_opts
            written += switch[:1]
        else:
            values = value if isinstance(value, list | tuple) else [value]
            written += [word for item in values for word in (parameter.opts[0], str(item))]
    return written


def was_typed(context: typer.Context, name: str | None) -> bool:
    """Whether a parameter of a running command was given on its command line, and is no default."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"
