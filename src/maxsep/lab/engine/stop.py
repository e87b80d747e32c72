"""A polite end: SIGTERM and SIGINT let the step finish and the state be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While entered, remember the first SIGTERM or SIGINT instead of dying from it.

    A second signal of the same kind does what it did before: who presses Ctrl-C twice means it. Outside the main
    thread, where Python takes no signals, it never asks for a stop.

    A signal is never lost: if the block ends with an error instead of a stop, the error gives way to SystemExit.

    Attributes:
        signum: The signal received, 0 as long as there was none.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.signum and kind is not None and issubclass(kind, Exception):
            raise SystemExit(128 + self.signum) from error

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        signal.signal(signum, self._before[signum])
