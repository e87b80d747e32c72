"""A run's folder: its files are read when they are needed, and written by the process that holds its lock."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from safetensors.torch import load_file, save
from torch import Tensor

from maxsep import files
from maxsep.files import MANIFEST, replace_file
from maxsep.lab.spec import RunSpec

SCHEMA = 1
WEIGHTS = "weights.safetensors"
_LISTED = ("spec.json", "metrics.jsonl", WEIGHTS, "features.json", "detection.json")
State = Literal["new", "unfinished", "failed", "finished"]


class RunError(ValueError):
    """A run folder that cannot be read; the message names the file."""


@contextmanager
def _run_error() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise RunError(str(error)) from error


class Run:
    """A run folder. Every file is read once, when it is first needed.

    A finished run holds `spec.json`, `metrics.jsonl`, `weights.safetensors`, `MANIFEST.json` with the SHA-256 of each,
    and `result.json`, which is written last; records are often kept without their weights. `detection.json` and
    `features.json` are there for some runs. A file of a finished run that differs from its sum is a RunError; sums may
    also stand in a `SHA256SUMS` beside the run folders. Runs without any are read with a warning.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def name(self) -> str:
        """The name of the folder, which is that of the spec."""
        return self.folder.name

    @property
    def resume(self) -> Path:
        """The folder of the resume points, until the run is finished."""
        return self.folder / "resume"

    @property
    def state(self) -> State:
        """finished: there is a result; failed: the last attempt ended with an error; unfinished: it can be resumed."""
        states: dict[str, State] = {"result.json": "finished", "failure.json": "failed", "spec.json": "unfinished"}
        return next((state for name, state in states.items() if (self.folder / name).is_file()), "new")

    @property
    def has_weights(self) -> bool:
        """Whether the trained weights are there."""
        return (self.folder / WEIGHTS).is_file()

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`; FileNotFoundError if the run is not finished."""
        result = self.read("result.json")
        if result is None:
            raise FileNotFoundError(self._missing("finished run", "result.json"))
        if (schema := result.get("schema", SCHEMA)) != SCHEMA:
            raise RunError(f"{self.folder / 'result.json'} has schema {schema!r}, not {SCHEMA}.")
        if isinstance(content := result.get("spec"), dict):
            spec = self._parse_spec(content, "result.json")
            self._check_name(spec, "result.json")
            if result.get("name", spec.name) != spec.name:
                raise RunError(f"{self.folder / 'result.json'} is damaged: its spec is that of {spec.name}.")
            self.check_spec(spec)
        return result

    @cached_property
    def _sums(self) -> files.Sums | None:
        """The sums of a finished run's files."""
        if self.state != "finished":
            return None
        with _run_error():
            sums = files.read_sums(self.folder)
        if sums is None:  # one text for all runs: Python shows it once
            warnings.warn(f"runs without {MANIFEST} were read: damage to them cannot be noticed.", stacklevel=1)
        return sums

    def _content(self, name: str) -> bytes | None:
        """Read a file and compare it with its sum; None if it is not there."""
        path = self.folder / name
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if name in (self._sums or ()):
                raise RunError(f"{path} is missing; it was there when the run was finished.") from None
            return None
        if self._sums is not None:
            with _run_error():
                files.check_sum(path, hashlib.sha256(content).hexdigest(), self._sums)
        return content

    def _check_name(self, spec: RunSpec, name: str) -> None:
        """Refuse a record of another run; a folder that was renamed has no digest to compare."""
        digest = re.search(r"-([0-9a-f]{10})$", self.folder.absolute().name)
        if digest and digest[1] != spec.digest:
            raise RunError(f"{self.folder / name} is damaged, or of another run: its spec is that of {spec.name}.")

    def _section(self, key: str) -> dict[str, Any]:
        if not isinstance(section := self.result.get(key), dict):
            raise RunError(f"{self.folder / 'result.json'} has no {key}.")
        return section

    @cached_property
    def spec(self) -> RunSpec:
        """What was trained, or is being trained."""
        name = "result.json" if self.state == "finished" else "spec.json"
        content = self._section("spec") if self.state == "finished" else self.read(name)
        if content is None:
            raise FileNotFoundError(self._missing("run", "spec.json"))
        spec = self._parse_spec(content, name)
        self._check_name(spec, name)
        return spec

    def _parse_spec(self, content: dict[str, Any], name: str) -> RunSpec:
        try:
            return RunSpec.from_dict(content)
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.folder / name}: {error}") from error

    @property
    def metrics(self) -> dict[str, Any]:
        """The numbers of the last epoch; accuracies are fractions."""
        return self._section("metrics")

    @property
    def preprocessing(self) -> dict[str, Any]:
        """`shape`, `mean` and `std` of the images and the `classes`, in the order of the logits."""
        return self._section("preprocessing")

    @property
    def unknown(self) -> dict[str, Any] | None:
        """The thresholds below which an image is unknown; None for a run without calibration data."""
        return self.result.get("unknown")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The epochs of `metrics.jsonl`; a last line that a killed process left incomplete is ignored."""
        path, lines = self.folder / "metrics.jsonl", (self._content("metrics.jsonl") or b"").split(b"\n")[:-1]
        with _run_error():
            return [files.parse_json(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]

    @cached_property
    def detection(self) -> dict[str, Any] | None:
        """The content of `detection.json`, if it is there."""
        return self.read("detection.json")

    @cached_property
    def features(self) -> dict[str, Any] | None:
        """The content of `features.json`, if it is there."""
        return self.read("features.json")

    def _missing(self, what: str, name: str) -> str:
        exists = self.folder.is_dir()
        return f"{self.folder} holds no {what}: there is no {name}." if exists else f"there is no folder {self.folder}."

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file of the folder; None if it is not there."""
        content = self._content(name)
        with _run_error():
            return None if content is None else files.parse_json(content, self.folder / name)

    def weights(self) -> dict[str, Tensor]:
        """Read the trained weights, on the CPU."""
        path = self.folder / WEIGHTS
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: this run was kept without its weights. Train it again.")
        with _run_error():
            if self._sums is not None:
                files.check_sum(path, files.sha256_of(path), self._sums)
            return files.parse_file(path, load_file)

    def verify(self) -> None:
        """Raise RunError if a file that a finished training wrote is there and differs from its sum.

        What a step after training adds, such as `detection.json`, is compared when it is read: it may be in writing.
        """
        if self.state != "finished":
            return
        with _run_error():
            sums = files.read_sums(self.folder) or {}
            for name in ("result.json", "spec.json", "metrics.jsonl", WEIGHTS):
                if name in sums and (path := self.folder / name).is_file():
                    files.check_sum(path, files.sha256_of(path), sums)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run against other processes; raise BlockingIOError if one of them holds it.

        The lock is reentrant within a thread, and the operating system releases it when the process dies. Its file lies
        in `.locks` next to the folder, so that a run that cannot begin leaves no folder.
        """
        folder = self.folder.absolute()
        path = folder.parent / ".locks" / f"{folder.name[-100:]}.lock"  # a name ends with the digest of its spec
        is_new = not folder.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0, is_singleton=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise BlockingIOError(f"another process is training {self.folder}.") from error
        try:
            yield
        finally:
            if not folder.exists() and lock.lock_counter == 1:
                with suppress(OSError):  # there are other locks or runs
                    path.unlink()  # before the release: afterwards the file may be another process's
                    path.parent.rmdir()
                    if is_new:
                        folder.parent.rmdir()
            lock.release()

    def check_spec(self, spec: RunSpec) -> None:
        """Raise RunError if the folder holds a run of another spec."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file, not a run folder.")
        if (content := self.read("spec.json")) is None:
            return
        # compared as specs: a field that was added since the run was made has its default
        saved, expected = self._parse_spec(content, "spec.json").to_dict(), spec.to_dict()
        if differing := sorted(key for key in expected if saved[key] != expected[key]):
            raise RunError(f"{self.folder} holds another run: its spec.json differs in {', '.join(differing)}.")

    def begin(self, spec: RunSpec) -> None:
        """Create the folder and write `spec.json`, unless they are there."""
        self.check_spec(spec)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "spec.json").exists():
            replace_file(self.folder / "spec.json", _encode(spec.to_dict()))

    def append(self, row: dict[str, Any]) -> None:
        """Add an epoch's line to `metrics.jsonl`."""
        path = self.folder / "metrics.jsonl"
        with files.naming(path, path), path.open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rewrite_history(self, rows: list[dict[str, Any]]) -> None:
        """Write `metrics.jsonl` anew: a killed run has logged epochs beyond its resume point."""
        replace_file(self.folder / "metrics.jsonl", "".join(map(_line, rows)).encode())

    def finish(self, weights: Mapping[str, Tensor], rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
        """Write weights, metrics, the manifest and, last, the result; then delete the resume points."""
        replace_file(self.folder / WEIGHTS, encode_tensors(weights))
        self.rewrite_history(rows)
        content = _encode(jsonable(result))
        files.write_manifest(self.folder, self._describe() | {"result.json": files.describe_content(content)})
        replace_file(self.folder / "result.json", content)
        (self.folder / "failure.json").unlink(missing_ok=True)
        shutil.rmtree(self.resume, ignore_errors=True)

    def _describe(self, *more: str) -> dict[str, Any]:
        names = (name for name in (*_LISTED, *more) if (self.folder / name).is_file())
        return {**files.describe_files(self.folder, names)}

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Write a file such as `detection.json` into a finished run; the sums of all other files stay.

        A process that is killed between file and manifest leaves a file that is refused until it is written again.
        """
        content = (json.dumps(record) + "\n").encode()
        sums = dict(self._describe("result.json") if self._sums is None else self._sums)
        replace_file(self.folder / name, content)
        files.write_manifest(self.folder, sums | {name: files.describe_content(content)})

    def record_failure(self, spec: RunSpec, error: Exception) -> None:
        """Write `failure.json` if the disk allows it; it is deleted when the run is finished."""
        record = {"schema": SCHEMA, "spec": spec.to_dict(), "error": f"{type(error).__name__}: {error}"}
        record["traceback"] = "".join(traceback.format_exception(error))
        with suppress(OSError):  # the error itself must reach the caller
            replace_file(self.folder / "failure.json", _encode(record))


def find_runs(*roots: str | Path) -> list[Run]:
    """List every run folder below some folders, by path."""
    names = ("spec.json", "result.json", "failure.json")
    return [Run(folder) for root in roots for folder in sorted({p.parent for n in names for p in Path(root).rglob(n)})]


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Encode tensors of any device, memory order and sharing in the safetensors format."""
    encoded: bytes = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    return encoded


def jsonable(value: Any) -> Any:
    """Replace numbers that JSON does not have (infinite, not a number) by None."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(row: dict[str, Any]) -> str:
    return json.dumps(jsonable(row)) + "\n"


def _encode(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
