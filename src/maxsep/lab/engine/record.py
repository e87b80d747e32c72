"""A run's folder: who may write to it, what it says while it grows, and the result that closes it."""

from __future__ import annotations

import json
import math
import os
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from maxsep.files import replace_file
from maxsep.lab.engine.checkpoint import clean
from maxsep.lab.spec import RunSpec

SCHEMA = 1
FAILURE = "failure.json"
_TAKEN = "another process is training {}. Wait for it, or choose another folder for runs."


@dataclass(frozen=True)
class RunFolder:
    """The files of one run. `result.json` is written last: where it is, the run is finished."""

    path: Path

    @property
    def resume(self) -> Path:
        """Where the resume points lie until the run is finished."""
        return self.path / "resume"

    def is_finished(self, spec: RunSpec) -> bool:
        """Tell whether this folder holds the finished run of a spec.

        Raises:
            ValueError: It holds another spec's run, or something else is in its place.
        """
        self._check_spec(spec)
        return (self.path / "result.json").is_file()

    def begin(self, spec: RunSpec) -> None:
        """Create the folder and write `spec.json`, unless they are there."""
        self._check_spec(spec)
        self.path.mkdir(parents=True, exist_ok=True)
        clean(self.resume)
        if not (self.path / "spec.json").exists():
            replace_file(self.path / "spec.json", _encode(spec.to_dict()))

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add an epoch's line to `metrics.jsonl`."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rewrite_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Put `metrics.jsonl` back to these epochs: what an interrupted run wrote beyond its resume point goes."""
        replace_file(self.path / "metrics.jsonl", "".join(map(_line, rows)).encode())

    def finish(self, weights: dict[str, Tensor], rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
        """Write weights, metrics and, last, the result; then drop the resume points."""
        from safetensors.torch import save

        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
        replace_file(self.path / "weights.safetensors", save(plain))
        self.rewrite_metrics(rows)
        replace_file(self.path / "result.json", _encode(jsonable(result)))
        (self.path / FAILURE).unlink(missing_ok=True)
        shutil.rmtree(self.resume, ignore_errors=True)

    def record_failure(self, spec: RunSpec, error: Exception) -> None:
        """Write down what stopped the run, as far as the disk still takes it; a run that is finished drops it."""
        told = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        record = {"schema": SCHEMA, "spec": spec.to_dict(), "error": message, "traceback": told}
        with suppress(OSError):  # the error itself must reach the caller
            replace_file(self.path / FAILURE, _encode(record))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder against other processes; the system releases it when the process dies.

        Raises:
            BlockingIOError: Another process is training this run.
        """
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BlockingIOError(_TAKEN.format(self.path)) from error
            yield
            if (self.path / "result.json").exists():
                # who still waits with this file open will see that there is nothing left to do
                (self.path / ".lock").unlink(missing_ok=True)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold a run against processes that work through the same list, from before its data are read.

        The lock of the folder comes later, when there is one. The file lies beside the folder, hidden, and goes with
        the claim.

        Raises:
            BlockingIOError: Another process has the run in hand, by a claim or by the lock.
        """
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        path = self.path.with_name(f".{self.path.name[-40:]}.claim")  # the end of a name has the digest of its spec
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BlockingIOError(_TAKEN.format(self.path)) from error
            if not os.fstat(file.fileno()).st_nlink:  # whoever held it has removed it since we opened it
                raise BlockingIOError(_TAKEN.format(self.path))
            try:
                self.check_free()
                yield
            finally:
                path.unlink(missing_ok=True)

    def check_free(self) -> None:
        """Ask for the lock without keeping it, and without making the folder: cheap, before anything is loaded.

        Raises:
            BlockingIOError: Another process is training this run.
        """
        import fcntl

        with suppress(FileNotFoundError), (self.path / ".lock").open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BlockingIOError(_TAKEN.format(self.path)) from error

    def _check_spec(self, spec: RunSpec) -> None:
        file = self.path / "spec.json"
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file, not a run folder. Choose another folder for runs.")
        if not file.exists():
            return
        try:
            # read as a spec: a field that was added since the run was made stands at its default
            found = RunSpec.from_dict(json.loads(file.read_bytes())).to_dict()
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file} is damaged ({error}). Delete the folder to train the run again.") from error
        expected = spec.to_dict()
        if found != expected:
            differing = sorted(key for key in expected if found[key] != expected[key])
            raise ValueError(
                f"{self.path} holds another run: its spec.json differs in {', '.join(differing)}. "
                "Choose another folder for runs, or delete that one."
            )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    r"""Read the epochs of a `metrics.jsonl`; a last line that a killed process left incomplete is passed over.

    Raises:
        ValueError: A line that is complete is no JSON object.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> _ = path.write_text('{"epoch": 0}\n{"epoc')
    >>> read_metrics(path)
    [{'epoch': 0}]
    """
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):  # what follows the last \n is torn
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is damaged ({error}).") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}: line {number} is no JSON object.")
        rows.append(row)
    return rows


def jsonable(value: Any) -> Any:
    """Replace numbers that JSON does not have (infinite, not a number) by None.

    >>> jsonable({"loss": float("nan"), "top1": 0.5})
    {'loss': None, 'top1': 0.5}
    """
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(row: dict[str, Any]) -> str:
    return json.dumps(jsonable(row)) + "\n"


def _encode(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read a finished run's weights.

    Raises:
        FileNotFoundError: The file is not there; run records are often kept without it.
        ValueError: The file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "weights.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: this run was kept without its weights. Train it again.")
    try:
        return load_file(path)  # type: ignore[no-any-return]
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}). Delete the run's folder and train it again.") from error
