"""Keep the talk of other libraries off the terminal; warnings and errors still come through, our own as one line."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import maxsep

CHATTY = ("lightning_fabric.utilities.rank_zero",)
"""Loggers that tell, at every run, what a user of this program neither asked for nor can act on."""


_FORMAT = warnings.formatwarning
_OWN = Path(maxsep.__file__).parent


def quiet() -> None:
    """Let chatty loggers speak from warnings on, and print our own warnings as our errors are printed.

    The level is set on the very logger that speaks: its library sets the one of its parent when it is imported.

    >>> quiet()
    >>> logging.getLogger(CHATTY[0]).isEnabledFor(logging.INFO)
    False
    """
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.formatwarning = _format


def _format(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Write a warning of this package without its place in the code, which is nothing to a user."""
    if Path(filename).is_relative_to(_OWN):
        return f"maxsep: warning: {' '.join(str(message).split())}\n"
    return _FORMAT(message, category, filename, lineno, line)
