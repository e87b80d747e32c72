"""Look at features while a run is trained: their mean norms in every epoch, and the points themselves in some."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.files import replace_file
from maxsep.lab.data import Dataset, ImageSet, Splits, limit, load_outliers
from maxsep.lab.engine.evaluation import predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.spec import RunSpec

FILE = "features.json"
KEPT = 100
"""Points kept of every known class; four times as many of the unknown ones."""


@dataclass
class Observer:
    """Watches the features of known and unknown test images; draws no random numbers and changes no weights.

    Args:
        spec: The run.
        known: Its test images, on its device.
        unknown: Test images of classes that it does not know, likewise.
        folder: Where `features.json` is written.
    """

    spec: RunSpec
    known: ImageSet
    unknown: ImageSet
    folder: Path

    def __call__(self, pipeline: Pipeline, epoch: int, precision: Any = None) -> dict[str, float]:
        """Look after an epoch, counted from 1; give the mean norms, which go into the log."""
        known, unknown = (predict(pipeline, images, precision).features for images in (self.known, self.unknown))
        if epoch in self.spec.features_at:
            self._keep(epoch, known, unknown)
        return {"norm_known": float(known.norm(dim=1).mean()), "norm_unknown": float(unknown.norm(dim=1).mean())}

    def _keep(self, epoch: int, known: Tensor, unknown: Tensor) -> None:
        path = self.folder / FILE
        record: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"schema": 1, "epochs": {}}
        record["classes"] = list(self.known.classes)
        shown = limit(self.known.labels, KEPT * self.known.num_classes)
        record["epochs"][str(epoch)] = {
            "known": _points(known, shown),
            "labels": self.known.labels.cpu()[shown].tolist(),
            "unknown": _points(unknown, limit(self.unknown.labels, 4 * KEPT)),
        }
        replace_file(path, (json.dumps(record) + "\n").encode())


def make_observer(spec: RunSpec, root: str | Path | None, folder: Path, data: Splits) -> Observer | None:
    """Build the observer that a spec asks for, if it does; reads the unknown images."""
    split = Dataset.parse(spec.dataset).open_set
    if not spec.features_at or split is None:
        return None
    device = data.test.labels.device
    unknown = load_outliers(next(iter(split.unknown)), root, like=spec.dataset, shape=data.test.shape)
    if spec.max_test is not None:
        unknown = unknown.subset(limit(unknown.labels, spec.max_test, spec.subset_seed))
    return Observer(spec, data.test, unknown.to(device), folder)


def _points(features: Tensor, shown: Tensor) -> list[list[float]]:
    rows: list[list[float]] = features[shown.to(features.device)].cpu().to(torch.float64).tolist()
    return [[round(value, 4) for value in row] for row in rows]
