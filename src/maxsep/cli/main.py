"""The entrance: all verbs in one program, and bad input as one clear line with exit code 2."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the program with the arguments it was called with."""
    try:
        _main()
    except KeyboardInterrupt:  # before a verb took care of it itself
        _fail("interrupted", status=130)


def _main() -> None:
    try:
        from maxsep.cli.app import app
        from maxsep.cli.quiet import quiet
    except ImportError as error:
        _fail(f'the command line needs {error.name}: pip install "maxsep[lab]"')
    quiet()
    if os.environ.get("MAXSEP_DEBUG"):
        app()
        return
    try:
        app()
    except (ValueError, OSError, ImportError) as error:  # what a user can mend; anything else is ours to mend
        _fail(_words(error))
    except ArithmeticError as error:  # training diverged: the message says where and why
        _fail(_words(error), status=1)


def _words(error: Exception) -> str:
    """Say what went wrong in one line; of a system's error, the place and what to do about it."""
    if isinstance(error, OSError) and error.errno and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}. Make that place usable, or name another one."
    return " ".join(str(error).split())


def _fail(message: str, status: int = 2) -> None:
    print(f"maxsep: {message}", file=sys.stderr)
    raise SystemExit(status)
