"""The command line: verbs that parse options, call the lab and print."""

from __future__ import annotations

import importlib
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run `maxsep` with the arguments of this process; bad input ends it with one line and exit code 2."""
    try:
        sys.exit(_run())
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _run() -> int:
    try:
        app = importlib.import_module("maxsep.cli.app")
    except ImportError as error:
        _fail(f'the command line needs {error.name}: pip install "maxsep[lab]"')
    app.quiet_libraries()
    arguments = sys.argv[1:] or ["--help"]
    try:
        status = app.app(arguments, standalone_mode=False)
    except app.UsageError as error:
        _fail(error.format_message())
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        if os.environ.get("MAXSEP_DEBUG"):
            raise
        _fail(_describe(error), 1 if isinstance(error, ArithmeticError) else 2)  # 1: training diverged
    return status if isinstance(status, int) else 0


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)


def _fail(message: str, status: int = 2) -> None:
    print(f"maxsep: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)
