"""Runs as tasks of a Ray cluster: in their folder where storage is shared, else in a copy that is brought back.

A node that does not see the folder of runs, or the same data, says so. From then on the driver holds the locks, sends
resume points and data along, and writes what comes back. A node keeps data by their SHA-256, so they reach it once;
both lie in its `cache_root`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import os
import platform
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, chdir
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from maxsep.files import MANIFEST, expanded, replace_file, sha256_of
from maxsep.lab.data.datasets import Dataset, cache_root, data_root, find_folder
from maxsep.lab.data.download import SOURCES
from maxsep.lab.environment import versions
from maxsep.lab.executors import Event, Processes, Worker
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec
from maxsep.packages import load_package

PATIENCE = 60.0
"""Seconds in which the tasks of a driver that died end, and their locks with them."""
CHUNK, MOST = 1 << 26, 1 << 34
"""Bytes that are sent at a time, and bytes of all data that are sent to a node."""
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Data:
    """What a run reads: of every file its name below a data folder, and its path and size on the driver.

    `digest` is that of all contents, or empty for more data than are sent. `chunks`, references to the contents, are
    set once a node has asked for them.
    """

    files: tuple[tuple[str, Path, int], ...]
    digest: str = ""
    chunks: tuple[Any, ...] = ()

    @classmethod
    def of(cls, files: Mapping[str, Path]) -> Data:
        """Describe files of this machine."""
        data = cls(tuple((name, path, path.stat().st_size) for name, path in sorted(files.items())))
        return data if data.size > MOST else replace(data, digest=_digest(data.written))

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(size for _, _, size in self.files)

    @property
    def written(self) -> tuple[tuple[str, Path, int], ...]:
        """Name, path and time of every file; manifests are left out, because every machine writes its own."""
        return tuple((name, path, path.stat().st_mtime_ns) for name, path, _ in self.files if path.name != MANIFEST)

    @property
    def is_here(self) -> bool:
        """Whether this machine sees the same files where the driver does."""
        for _, path, size in self.files:
            if not path.is_file() or (path.stat().st_size != size and path.name != MANIFEST):
                return False
        return self.digest in ("", _digest(self.written))

    def copied(self) -> Path:
        """Write the files to the cache of this machine, unless they are there unchanged; return the folder."""
        folder = cache_root() / "data" / self.digest
        copy = replace(self, files=tuple((name, folder / name, size) for name, _, size in self.files))
        return _write_once(folder, map(load_package("ray", "cluster").get, self.chunks), lambda: copy.is_here)


@dataclass(frozen=True)
class Task:
    """What a node needs to train a run."""

    worker: Worker
    event: Event
    folder: str  # id of the folder of runs: shared storage has it in a file, copies have it in their path
    home: Path
    source: str | None
    arguments: list[str]  # the driver's command, for the record
    data: Data
    weights: str = ""  # name of a file of weights among the data
    seconds: float | None = None  # until the deadline
    sent: Mapping[str, Files] | None = (
        None  # folders of the run and of those it starts from, where storage is not shared
    )


@dataclass(frozen=True)
class Answer:
    """What became of a task; `lacks` names what its node does not have."""

    event: Event
    lacks: str = ""
    sent: Files = field(default_factory=dict)
    has_step: bool = True
    node: str = ""


def connect(on: str) -> Any:
    """Connect to a cluster, `ray` (that of this machine, or else a new one) or `ray://HOST:PORT`; return the module."""
    if on != "ray" and not re.fullmatch(r"ray://[^/\s]+:\d+", on):
        raise ValueError(f"--on must be ray or ray://HOST:PORT, got {on!r}.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray prints what it notices among our output
    ray = load_package("ray", "cluster")
    if not ray.is_initialized():
        try:
            ray.init(None if on == "ray" else on, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError) as error:
            raise ConnectionError(f"no Ray cluster answers at {on}: {str(error).strip().splitlines()[-1]}") from error
    return ray


def trains_on_gpu(on: str | None, device: str) -> bool | None:
    """Whether a cluster trains runs of this device on GPUs; None without a cluster."""
    if on is None:
        return None
    has_gpu = connect(on).cluster_resources().get("GPU", 0) > 0
    if device == "cuda" and not has_gpu:
        raise ValueError("device 'cuda' is not available: the Ray cluster has no GPU. Use 'auto' or 'cpu'.")
    return bool(has_gpu and device != "cpu")


class Cluster(Processes):
    """An executor whose runs are Ray tasks, each with a part `gpus` of a GPU, or else with one CPU."""

    patience = PATIENCE

    def __init__(self, worker: Worker, on: str, gpus: float = 1.0) -> None:
        if not 0 < gpus <= 1:
            raise ValueError(f"gpus, the part of a GPU for each run, must be above 0 and at most 1, got {gpus!r}.")
        super().__init__()
        self._ray, self._gpus, self._is_shared = connect(on), gpus, True
        self.on_gpu = trains_on_gpu(on, worker.execution.device)
        root = worker.data_root or os.environ.get("MAXSEP_DATA")
        root = None if root is None else expanded(root).absolute()
        self._worker = replace(worker, runs=worker.runs.absolute(), data_root=root)
        needs = {"num_cpus": 1, "num_gpus": gpus if self.on_gpu else 0}
        self._train = self._ray.remote(max_retries=0, **needs)(train)  # the caller tries again
        self._data: dict[str, Data] = {}
        self._locks: dict[RunSpec, ExitStack] = {}
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        path = _mark(self._worker.runs)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # two drivers may begin together
            if not path.exists():
                replace_file(path, uuid.uuid4().hex.encode())
            self._folder = path.read_text()
        return super().__enter__()

    def _room(self) -> float:
        """Count the runs for which the cluster, whose nodes come and go, has room."""
        total = self._ray.cluster_resources()
        rooms = total.get("GPU", 0) * math.floor(1 / self._gpus) if self.on_gpu else math.inf
        return float(max(1, min(rooms, total.get("CPU", 1))))

    def submit(self, event: Event) -> None:
        """Start a task for a run that no other process trains."""
        run = Run(self._worker.runs / event.spec.name)
        if not self._lock(event.spec):
            self._events.append(replace(event, kind="elsewhere"))
        elif run.state == "finished" and not self._is_shared:  # the step after training is taken here
            self._events.append(self._worker.finish(event, run, "skipped"))
            self._release(event.spec)
        else:
            self._events += [event] if run.state != "finished" else []
            if self._is_shared:
                self._release(event.spec)  # the task takes the lock
            self._start(event)

    def _lock(self, spec: RunSpec) -> bool:
        lock = ExitStack()
        try:
            lock.enter_context(Run(self._worker.runs / spec.name).lock())
        except BlockingIOError:
            return False
        self._locks[spec] = lock
        return True

    def _release(self, spec: RunSpec) -> None:
        self._locks.pop(spec, ExitStack()).close()

    def _start(self, event: Event) -> None:
        worker, spec = self._worker, event.spec
        weights = worker.execution.weights if spec.weights else None
        name = f"weights/{weights.name}" if weights else ""
        if spec.dataset + name not in self._data:
            files = _files(Dataset.parse(spec.dataset), worker.data_root)
            files |= {name: weights.absolute()} if weights else {}
            self._data[spec.dataset + name] = Data.of(files)
        task = Task(
            worker=replace(worker, deadline=None, clock=time.monotonic),
            event=event,
            folder=self._folder,
            home=Path.cwd(),
            source=versions()["source"],
            arguments=sys.argv,
            data=self._data[spec.dataset + name],
            weights=name,
            seconds=None if worker.deadline is None else worker.deadline - worker.clock(),
            sent=None if self._is_shared else {name: _pack(worker.runs / name) for name in _names(spec)},
        )
        self._running[self._train.remote(task)] = task

    def _collect(self, seconds: float) -> list[Event]:
        events, self._events = self._events, []
        references = list(self._running)
        ready = self._ray.wait(references, num_returns=len(references), timeout=seconds)[0] if references else []
        for reference in ready:
            events += self._receive(self._running.pop(reference), reference)
        return events

    def _interrupt(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # the task saves its run

    def _kill(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        for lock in self._locks.values():
            lock.close()

    def _receive(self, task: Task, reference: Any) -> list[Event]:
        errors, event = self._ray.exceptions, task.event
        try:
            answer: Answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            answer = Answer(replace(event, kind="failed", message=str(error).strip().splitlines()[-1]))
        except errors.RayError as error:
            answer = Answer(replace(event, kind="lost", message=f"its process died ({type(error).__name__})"))
        if answer.lacks and not self._stop.signum:
            return self._start_with(answer.lacks, task)
        event, run = answer.event, Run(self._worker.runs / event.spec.name)
        if answer.sent:
            shutil.rmtree(run.resume, ignore_errors=True)
            _unpack(answer.sent, run.folder)
            if run.state == "finished":
                (run.folder / "failure.json").unlink(missing_ok=True)
                strategies = load_package("ray.util.scheduling_strategies", "cluster")
                node = strategies.NodeAffinitySchedulingStrategy(answer.node, soft=True)
                self._ray.remote(num_cpus=0, scheduling_strategy=node)(forget).remote(self._folder, run.name)
        if not answer.has_step and event.kind in ("finished", "skipped"):
            step = self._worker.finish(event, run, "skipped")
            event = step if step.kind == "failed" else replace(event, note=step.note)
        self._release(event.spec)
        return [event]

    def _start_with(self, lacks: str, task: Task) -> list[Event]:
        """Start a task again with what its node lacks: the folder of runs, or the data."""
        spec = task.event.spec
        if lacks == "runs":
            self._is_shared = False
            if spec not in self._locks and not self._lock(spec):
                return [replace(task.event, kind="elsewhere")]
        else:
            key = next(key for key, data in self._data.items() if data.files == task.data.files)
            if not self._data[key].chunks:
                self._data[key] = self._send(task.data, spec.dataset)
        self._start(task.event)
        return []

    def _send(self, data: Data, name: str) -> Data:
        if data.size > MOST:
            raise ValueError(f"{name} has {data.size:,} bytes: every node needs it, at the same path as here.")
        return replace(data, chunks=tuple(self._ray.put(chunk) for chunk in _chunks(data)))


def train(task: Task) -> Answer:
    """Train a run on a node, or say what the node lacks."""
    worker, event, data = task.worker, task.event, task.data
    if (source := versions()["source"]) != task.source:
        message = f"{platform.node()} has another maxsep ({source}) than the driver ({task.source})"
        return Answer(replace(event, kind="failed", message=message))
    mark = _mark(worker.runs)
    if task.sent is None and not (mark.is_file() and mark.read_text() == task.folder):
        return Answer(event, lacks="runs")
    ray, is_here = load_package("ray", "cluster"), data.is_here
    if not is_here and not data.chunks:
        return Answer(event, lacks="data")
    if not is_here:
        root = data.copied()
        execution = replace(worker.execution, weights=root / task.weights if task.weights else None)
        worker = replace(worker, data_root=root, execution=execution, after=None)
    if task.sent is not None:
        worker = replace(worker, runs=cache_root() / "runs" / task.folder, after=None)
        for name, files in task.sent.items():
            if files:
                _write_once(worker.runs / name, [files], (worker.runs / name).is_dir)
    sys.argv[:] = task.arguments
    deadline = None if task.seconds is None else time.monotonic() + task.seconds
    with chdir(task.home if is_here and task.home.is_dir() else "."):  # where relative paths of datasets begin
        try:
            event = replace(worker, deadline=deadline)(event, lambda event: None)
        except (SystemExit, KeyboardInterrupt):  # cancelled: its state was saved
            event = replace(event, kind="postponed")
    sent = {} if task.sent is None or event.kind == "elsewhere" else _pack(worker.runs / event.spec.name)
    node = ray.get_runtime_context().get_node_id()
    return Answer(event, sent=sent, has_step=worker.after is not None or task.worker.after is None, node=node)


def forget(folder: str, name: str) -> None:
    """Delete a node's copy of a run that the driver has."""
    shutil.rmtree(cache_root() / "runs" / folder / name, ignore_errors=True)


def _files(dataset: Dataset, root: str | Path | None) -> dict[str, Path]:
    """List the files that reading a dataset needs, by their path below the data folder of another machine."""
    local = find_folder(dataset.path, root).absolute()
    if dataset.source == "digits" or (dataset.is_own and not local.exists()):  # on the hub of Hugging Face
        return {}
    if dataset.is_own:
        below = expanded(dataset.path)
        below = below.relative_to(below.anchor)
        folders = {below: local} if local.is_dir() else {below.parent: local.parent}  # a table lies by its pictures
    elif dataset.is_imagenet:
        name = Path("decoded", f"{dataset.source}-{dataset.size}")
        folders = {name: data_root(dataset.name, root) / name}
    else:
        sources = {dataset.source, dataset.open_set.unknown_source if dataset.open_set else dataset.source}
        folders = {Path(SOURCES[s].folder): data_root(dataset.name, root) / SOURCES[s].folder for s in sources}
    if any(".." in below.parts for below in folders):
        raise ValueError(f"{dataset.name} must have no '..' in its path to reach another machine.")
    paths = ((below, folder, path) for below, folder in folders.items() for path in folder.rglob("*"))
    return {(below / path.relative_to(folder)).as_posix(): path for below, folder, path in paths if path.is_file()}


def _mark(runs: Path) -> Path:
    return runs / ".locks" / "folder.id"


@functools.lru_cache(maxsize=8)
def _digest(written: tuple[tuple[str, Path, int], ...]) -> str:
    """Return a digest of names and contents; files of the same times are read once by a process."""
    sums = "".join(f"{sha256_of(path)}  {name}\n" for name, path, _ in written)
    return hashlib.sha256(sums.encode()).hexdigest()[:20]


def _write_once(folder: Path, parts: Iterable[Files], is_written: Callable[[], bool]) -> Path:
    """Write a folder as a whole, unless this node has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not is_written():
            shutil.rmtree(folder, ignore_errors=True)
            temporary = folder.with_name(f".{folder.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            for part in parts:
                _unpack(part, temporary)
            temporary.rename(folder)
    return folder


def _chunks(data: Data) -> Iterator[Files]:
    chunk: dict[str, bytes] = {}
    length = 0
    for name, path, size in data.files:
        chunk[name], length = path.read_bytes(), length + size
        if length >= CHUNK:
            yield chunk
            chunk, length = {}, 0
    yield chunk


def _names(spec: RunSpec) -> list[str]:
    """The run and those that it starts from."""
    return [spec.name, *([] if spec.start_from is None else _names(spec.start_from))]


def _pack(folder: Path) -> Files:
    """Read the files of a run, without what was not yet written whole."""
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {n.as_posix(): (folder / n).read_bytes() for n in names if not any(p.startswith(".") for p in n.parts)}


def _unpack(sent: Files, folder: Path) -> None:
    """Write files, those last that say that others are complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(sent, key=lambda name: (name == "result.json", name.endswith(MANIFEST))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        replace_file(folder / name, sent[name])
