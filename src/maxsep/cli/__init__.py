"""The command line: verbs that parse options, call the lab and print."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from maxsep.packages import printable

__all__ = ["main"]


def main() -> None:
    """Run `maxsep` with the arguments of this process; bad input ends it with one line and exit code 2."""
    try:
        status = _run()
    except KeyboardInterrupt:
        status = 130
    except SystemExit as stop:
        if stop.code != 130:
            raise
        status = 130  # the engine has saved the run
    if status == 130:  # which is also what typer makes of a KeyboardInterrupt
        _fail("interrupted; the same command resumes", status)
    sys.exit(status)


def _run() -> int:
    try:
        app = importlib.import_module("maxsep.cli.app")
    except ImportError as error:
        _fail(f'the command line needs {error.name}: pip install ".[lab]" in the clone of maxsep')
    app.quiet_libraries()
    if callable(signal.getsignal(signal.SIGINT)):  # no longer as in `maxsep/__init__.py`: runs are saved
        signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = sys.argv[1:] or ["--help"]
    try:
        status = app.app(arguments, standalone_mode=False)
    except app.UsageError as error:
        _fail(error.format_message())
    except (ValueError, OSError, ImportError, ArithmeticError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        if os.environ.get("MAXSEP_DEBUG"):
            raise
        if hasattr(error, "problems"):  # of pictures: a line for each
            print(f"maxsep: {error}", file=sys.stderr)
            return 2
        _fail(_describe(error), 1 if isinstance(error, ArithmeticError) else 2)  # 1: training diverged
    return status if isinstance(status, int) else 0


def _describe(error: Exception) -> str:
    if isinstance(error, MemoryError | RuntimeError):
        return f"out of memory: {error}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)


def _fail(message: str, status: int = 2) -> None:
    print(f"maxsep: {printable(' '.join(message.split()))}", file=sys.stderr)
    raise SystemExit(status)
