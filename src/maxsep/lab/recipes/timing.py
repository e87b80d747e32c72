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


def time_inference(
    specs: Sequence[RunSpec],
    folder: str | Path,
    *,
    device: str = "auto",
    batch_size: int | None = None,
    repeats: int = 15,
    build: Callable[[RunSpec, int], Any] | None = None,
) -> Path:
    """Time a forward pass for every network and head, and write `timing.json`.

    The heads of a network take turns within each repeat, so that a machine that slows down slows all of them;
    the first repeat warms up and is not counted. Times are of the untrained network: weights do not change them.

    Args:
        specs: Runs; each pair of dataset and network is timed once per head.
        folder: Where `timing.json` goes.
        device: auto, cpu or cuda.
        batch_size: Images in a pass; 512 on a GPU and 32 on a CPU if left out.
        repeats: Passes per head that count.
        build: Makes the model of a run from its number of classes; by default the engine's network and head.
    """
    import torch

    if repeats < 3:
        raise ValueError(f"repeats must be at least 3 for a median and a spread, got {repeats}.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    batch_size = batch_size or (512 if device == "cuda" else 32)
    rows: list[dict[str, Any]] = []
    for (dataset, network), heads in _groups(specs).items():
        models = {head: (build or _build)(spec, _CLASSES[dataset]) for head, spec in heads.items()}
        images = torch.rand(batch_size, 3, 32, 32, device=device)
        seconds = _take_turns({h: m.to(device).eval() for h, m in models.items()}, images, repeats)
        for head, times in seconds.items():
            low, middle, high = statistics.quantiles(times, n=4)
            rows.append(
                {
                    "dataset": dataset,
                    "network": network,
                    "head": head,
                    "batch_size": batch_size,
                    "repeats": repeats,
                    "median_seconds": middle,
                    "quartiles": [low, high],
                    "images_per_second": batch_size / middle,
                }
            )
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    record = {"schema": 1, "device": device, "name": name, "torch": torch.__version__, "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


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


def _take_turns(models: dict[str, Any], images: Any, repeats: int) -> dict[str, list[float]]:
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
            for head, model in models.items():
                taken = once(model)
                if repeat:
                    seconds[head].append(taken)
    return seconds
