"""The Mahalanobis detector on a trained run: fitted on its training images, its step chosen on made-up outsiders."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import MAGNITUDES, Mahalanobis, auroc
from maxsep.lab.data import ImageSet
from maxsep.lab.detection.outsiders import outsiders
from maxsep.lab.engine.evaluation import BATCH, predict
from maxsep.lab.engine.model import Pipeline

VALIDATION = 1000
"""Images on each side of the choice, at most: known ones, and the makings of outsiders."""
_TRAINED_ON, _HELD_OUT = "training images", "images held out of training"

_STEP_BATCH = {"cuda": 500, "cpu": 100}
"""Images of one gradient: what it keeps of every layer must fit in memory. Only signs count: no score changes."""


@dataclass
class Distances:
    """A fitted detector and the sizes of its input step.

    Attributes:
        chosen: The step with the best mean AUROC over the kinds of outsiders; of equals the smallest.
        validation: For each kind and step, that AUROC.
        chosen_on: Where the images of both sides came from.
    """

    pipeline: Pipeline
    std: Tensor
    detector: Mahalanobis
    magnitudes: Sequence[float] = MAGNITUDES
    chosen: float = 0.0
    validation: dict[str, dict[float, float]] = field(default_factory=dict)
    chosen_on: str = _TRAINED_ON

    def scores(self, images: Tensor, features: Tensor) -> dict[float, Tensor]:
        """Score uint8 images (N, C, H, W), of which the features (N, D) are known, at every step: {magnitude: (N,)}.

        Costs one gradient and one pass for each step but 0: about as much as a pass more than there are steps.
        """
        steps = [magnitude for magnitude in self.magnitudes if magnitude]
        rows: dict[float, list[Tensor]] = {0.0: [self.detector.score(features)]} | {step: [] for step in steps}
        for batch in torch.split(images, _STEP_BATCH["cuda" if images.is_cuda else "cpu"]) if steps else ():
            x = self.pipeline.normalise(batch)
            found = self.detector.sweep(self.pipeline.network.features, x, steps, self.std)
            for magnitude, values in found.items():
                rows[magnitude].append(values)
        return {magnitude: torch.cat(values) for magnitude, values in rows.items()}

    def named(self, scores: Mapping[float, Tensor]) -> dict[str, Tensor]:
        """The two scores of the tables: without a step, and with the chosen one."""
        return {"mahalanobis_no_step": scores[0.0], "mahalanobis": scores[self.chosen]}

    def to_dict(self) -> dict[str, Any]:
        """What was chosen and why, as plain JSON types."""
        told = {kind: {f"{m:g}": value for m, value in row.items()} for kind, row in self.validation.items()}
        return {
            "magnitudes": list(self.magnitudes),
            "chosen": self.chosen,
            "chosen_on": f"outsiders made from {self.chosen_on}",
            "validation_auroc": told,
        }


def fit_distances(
    pipeline: Pipeline,
    train: ImageSet,
    mean: Tensor,
    std: Tensor,
    magnitudes: Sequence[float] = MAGNITUDES,
    held_out: ImageSet | None = None,
) -> Distances:
    """Fit class means and the tied covariance on all training images as in testing, and choose the step.

    Pitfall: a network knows the images that it was trained on too well, and without a step that is all it takes to tell
    them from anything. A step is only chosen fairly on images that it has not seen.

    Args:
        pipeline: The trained network behind its normalisation, in evaluation mode.
        train: Its training images, on its device.
        mean: With which it normalises, on the scale of 0 to 1.
        std: Likewise; the step is of the same size in every channel of the image before normalisation.
        magnitudes: Steps to try; 0 is always among them.
        held_out: Known images to choose on, on its device too: half of them as they are, of half outsiders are made. By
            default a twentieth of the training images each.
    """
    detector = Mahalanobis()
    with torch.no_grad():
        for images, labels in zip(torch.split(train.images, BATCH), torch.split(train.labels, BATCH), strict=True):
            detector.partial_fit(pipeline.network.features(pipeline.normalise(images)), labels)
    steps = tuple(dict.fromkeys((0.0, *magnitudes)))
    found = Distances(pipeline, std, detector, steps)
    if len(steps) > 1:
        if held_out is not None and len(held_out) >= 4:
            found.chosen_on = _HELD_OUT
            _choose(found, held_out.images, len(held_out) // 2, mean, std)
        else:
            _choose(found, train.images, max(2, len(train) // 20), mean, std)
    return found


def _choose(found: Distances, images: Tensor, half: int, mean: Tensor, std: Tensor) -> None:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(images.device)
    half = min(VALIDATION, half)

    def scores(chosen: Tensor) -> dict[float, Tensor]:
        nameless = ImageSet(chosen, torch.zeros(len(chosen), dtype=torch.int64, device=chosen.device), ("",))
        return found.scores(chosen, predict(found.pipeline, nameless).features)

    known = scores(images[order[:half]])
    for kind, made in outsiders(images[order[half : 2 * half]], mean, std).items():
        other = scores(made)
        found.validation[kind] = {m: auroc(known[m], other[m]) for m in found.magnitudes}
    mean_auroc = {m: statistics.fmean(row[m] for row in found.validation.values()) for m in found.magnitudes}
    found.chosen = max(found.magnitudes, key=lambda m: (mean_auroc[m], -m))
