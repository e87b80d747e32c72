"""Keep the talk of other libraries off the terminal; their warnings and errors still come through."""

from __future__ import annotations

import logging

CHATTY = ("lightning_fabric.utilities.rank_zero",)
"""Loggers that tell, at every run, what a user of this program neither asked for nor can act on."""


def quiet() -> None:
    """Let chatty loggers speak from warnings on.

    The level is set on the very logger that speaks: its library sets the one of its parent when it is imported.

    >>> quiet()
    >>> logging.getLogger(CHATTY[0]).isEnabledFor(logging.INFO)
    False
    """
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
