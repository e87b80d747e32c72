"""Import packages that are optional or slow to import, at their first use; print what others have named."""

from __future__ import annotations

import importlib
from typing import Any


def printable(text: str) -> str:
    r"""Escape what a terminal would obey: names of files and classes may hold newlines and control sequences.

    >>> print(printable("a\x1b[2J\nb"))
    a\x1b[2J\nb
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def load_package(module: str, extra: str) -> Any:
    """Import a module of an optional package; an ImportError names the extra that installs it.

    >>> load_package("math", "lab").sqrt(4)
    2.0
    >>> load_package("no_such_package.part", "lab")
    Traceback (most recent call last):
        ...
    ImportError: no_such_package is not installed: pip install ".[lab]" in the clone of maxsep
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(f'{package} is not installed: pip install ".[{extra}]" in the clone of maxsep') from error
