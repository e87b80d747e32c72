"""Time inference with and without the matrix, the contestants taking turns."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from maxsep.lab.spec import RunSpec

FILE = "timing.json"
_CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10, "digits": 10}
_CONTEST = ("dataset", "network", "device", "name", "torch", "batch_size")
"""What rows must share to be compared."""


def time_inference(
    specs: Sequence[RunSpec],
    folder: str | Path,
    *,
    device: str = "auto",
    batch_size: int | None = None,
    repeats: int = 15,
    build: Callable[[RunSpec, int], Any] | None = None,
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Time a forward pass for every network and head, and add to `timing.json` what it does not hold yet.

    The heads of a network take turns within each repeat, so that a machine that slows down slows all of them;
    the first repeat warms up and is not counted. Times are of the untrained network: weights do not change them.
    Where a head is missing, or the machine is another one, the whole contest of that network is timed anew.

    Args:
        specs: Runs; each pair of dataset and network is timed once per head.
        folder: Where `timing.json` lies.
        device: auto, cpu or cuda.
        batch_size: Images in a pass; 512 on a GPU and 32 on a CPU if left out.
        repeats: Passes per head that count.
        build: Makes the model of a run from its number of classes; by default the engine's network and head.
        deadline: The clock's reading at which to be done; a contest that would take longer is left out.
        clock: Seconds from any start.

    Returns:
        Whether everything is timed; if not, the deadline came first and the same call goes on.
    """
    import torch

    if repeats < 3:
        raise ValueError(f"repeats must be at least 3 for a median and a spread, got {repeats}.")
    place = _place(device, batch_size)
    device, batch_size = place["device"], place["batch_size"]
    path = Path(folder) / FILE
    rows = _read(path)
    for (dataset, network), heads in _groups(specs).items():
        contest = {"dataset": dataset, "network": network, **place}
        there = {row["head"]: row for row in rows if _same(row, contest)}
        if set(heads) <= set(there):
            continue
        if deadline is not None and clock() >= deadline:
            return False
        models = {head: (build or _build)(spec, _CLASSES[dataset]) for head, spec in heads.items()}
        images = torch.rand(batch_size, 3, 32, 32, device=device)
        ready = {head: model.to(device).eval() for head, model in models.items()}
        seconds = _take_turns(ready, images, repeats, deadline, clock)
        if seconds is None:
            return False
        # The rows of heads that are not asked for now go too: they did not take turns with these.
        rows = [row for row in rows if not _same(row, contest)]
        rows += [{**contest, "head": head, "repeats": repeats, **_spread(t, batch_size)} for head, t in seconds.items()]
        _write(path, rows)
    return True


def _place(device: str, batch_size: int | None) -> dict[str, Any]:
    """Where and how is timed: what must be the same for two times to be compared."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    size = batch_size or (512 if device == "cuda" else 32)
    return {"device": device, "name": machine, "torch": torch.__version__, "batch_size": size}


def _spread(times: Sequence[float], batch_size: int) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median_seconds": middle, "quartiles": [low, high], "images_per_second": batch_size / middle}


def _read(path: Path) -> list[dict[str, Any]]:
    """The rows that are there; a damaged file has none and is written anew."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        shared = {key: record[key] for key in ("device", "name", "torch") if key in record}
        rows = [{**shared, **row} for row in record["rows"]]
        return [row for row in rows if isinstance(row["head"], str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".json.new")
    new.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _same(row: dict[str, Any], contest: dict[str, Any]) -> bool:
    return all(row.get(key) == contest[key] for key in _CONTEST)


def _groups(specs: Sequence[RunSpec]) -> dict[tuple[str, str], dict[str, RunSpec]]:
    groups: dict[tuple[str, str], dict[str, RunSpec]] = {}
    for spec in specs:
        if spec.dataset in _CLASSES and spec.network != "mlp":
            groups.setdefault((spec.dataset, spec.network), {}).setdefault(spec.head, spec)
    return groups


def _build(spec: RunSpec, num_classes: int) -> Any:
    from maxsep import heads
    from maxsep.lab import networks

    model = networks.build(spec.network, num_classes)
    options = dict(spec.head_options)
    model.head = heads.build(spec.head, model.num_features, num_classes, radius=spec.radius, **options)
    return model


def _take_turns(
    models: dict[str, Any], images: Any, repeats: int, deadline: float | None, clock: Callable[[], float]
) -> dict[str, list[float]] | None:
    """Time every model in turn; nothing if the first round shows that the others would end too late."""
    import torch

    def once(model: Any) -> float:
        if images.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        model(images)
        if images.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds: dict[str, list[float]] = {head: [] for head in models}
    with torch.inference_mode():
        for repeat in range(repeats + 1):
            began = clock()
            for head, model in models.items():
                taken = once(model)
                if repeat:
                    seconds[head].append(taken)
            left = (repeats - repeat) * (clock() - began)
            if repeat < 2 and deadline is not None and clock() + left * (0.5 if repeat == 0 else 1) > deadline:
                return None  # the first round includes warming up, so it is believed by half
    return seconds
