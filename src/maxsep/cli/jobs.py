"""Several processes that share the work of one command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import typer

SHARED = "MAXSEP_SHARED"
"""Set in processes that share the work of one command: the first process sums up for all of them."""


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


def side_by_side(count: int, command: Sequence[str], *, quiet: bool = False) -> int:
    """Run a verb in several processes at once and wait for all; give the first exit status that is not 0, or 0.

    An interruption from the keyboard reaches every process by itself; each saves its run before it ends.
    """
    output = subprocess.DEVNULL if quiet else None
    threads = str(max(1, (os.cpu_count() or 1) // count))  # together they shall not have more than there are cores
    shared = {"OMP_NUM_THREADS": threads, **os.environ, SHARED: "1"}
    line = [sys.executable, "-m", "maxsep", *command]
    processes = [subprocess.Popen(line, stdout=output, env=shared) for _ in range(count)]
    while True:
        try:
            statuses = [process.wait() for process in processes]
        except KeyboardInterrupt:
            continue
        return next((status for status in statuses if status), 0)
