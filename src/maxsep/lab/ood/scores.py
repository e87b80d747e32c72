"""Scores of images (higher = more like the training data): from logits and by Mahalanobis distance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import MAGNITUDES, Mahalanobis, auroc
from maxsep.lab.data import ImageSet
from maxsep.lab.engine.evaluate import BATCH, predict, scores_of
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.ood.synthetic_outliers import synthetic_outliers

VALIDATION = 1000
"""Most images on each side of the choice of the input step: known ones, and those that outliers are made from."""

_STEP_BATCH = {"cuda": 500, "cpu": 100}
"""Images per gradient; only its sign is used, so the batch size changes no score."""


def logit_scores(logits: Tensor, softmax_scale: float = 1.0) -> dict[str, Tensor]:
    """Compute every score of logits (N, C) that needs nothing else; `_centred`: minus the sample's mean logit.

    Softmax and energy are those of softmax_scale * logits, see `RunSpec.softmax_scale`.
    """
    scores = {name: scores_of(name, logits, softmax_scale) for name in ("max_softmax", "max_logit", "energy")}
    centred = {f"{n}_centred": scores_of(n, logits, softmax_scale, centre=True) for n in ("max_logit", "energy")}
    return scores | centred


@dataclass
class MahalanobisScorer:
    """A fitted Mahalanobis detector with the sizes of its input step.

    `chosen` is the step with the best mean AUROC against synthetic outliers (among equals the smallest), `validation`
    that AUROC by kind and step, `chosen_on` where the images of both sides came from.
    """

    pipeline: Pipeline
    std: Tensor
    detector: Mahalanobis
    magnitudes: Sequence[float] = MAGNITUDES
    chosen: float = 0.0
    validation: dict[str, dict[float, float]] = field(default_factory=dict)
    chosen_on: str = "training images"

    def scores(self, images: Tensor, features: Tensor) -> dict[float, Tensor]:
        """Score uint8 images (N, C, H, W) with known features (N, D) at every step: {magnitude: (N,)}.

        All steps share one gradient; every step but 0 costs one more forward pass.
        """
        steps = [magnitude for magnitude in self.magnitudes if magnitude]
        parts: dict[float, list[Tensor]] = {0.0: [self.detector.score(features)]} | {step: [] for step in steps}
        for batch in torch.split(images, _STEP_BATCH["cuda" if images.is_cuda else "cpu"]) if steps else ():
            x = self.pipeline.normalise(batch)
            for magnitude, values in self.detector.sweep(self.pipeline.network.features, x, steps, self.std).items():
                parts[magnitude].append(values)
        return {magnitude: torch.cat(values) for magnitude, values in parts.items()}

    def choose_step(self, images: Tensor, half: int, mean: Tensor) -> None:
        """Choose the step: `half` of the images as they are against synthetic outliers made from as many others."""
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(images.device)
        half = min(VALIDATION, half)

        def scores(batch: Tensor) -> dict[float, Tensor]:
            labels = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)
            return self.scores(batch, predict(self.pipeline, ImageSet(batch, labels, ("",))).features)

        known = scores(images[order[:half]])
        for kind, made in synthetic_outliers(images[order[half : 2 * half]], mean, self.std).items():
            outliers = scores(made)
            self.validation[kind] = {m: auroc(known[m], outliers[m]) for m in self.magnitudes}
        mean_auroc = {m: statistics.fmean(row[m] for row in self.validation.values()) for m in self.magnitudes}
        self.chosen = max(self.magnitudes, key=lambda m: (mean_auroc[m], -m))

    def to_dict(self) -> dict[str, Any]:
        """Describe the choice as plain JSON types."""
        return {
            "magnitudes": list(self.magnitudes),
            "chosen": self.chosen,
            "chosen_on": f"outsiders made from {self.chosen_on}",
            "validation_auroc": {
                kind: {f"{m:g}": value for m, value in row.items()} for kind, row in self.validation.items()
            },
        }


def fit_mahalanobis(
    pipeline: Pipeline,
    train: ImageSet,
    mean: Tensor,
    std: Tensor,
    magnitudes: Sequence[float] = MAGNITUDES,
    held_out: ImageSet | None = None,
) -> MahalanobisScorer:
    """Fit class means and the tied covariance on all training images, and choose the input step.

    Pitfall: a network separates images it was trained on from anything else, even without a step. Only images that it
    has not seen make the choice of the step fair: `held_out`, half of them as they are and half to make outliers from;
    by default a tenth of the training images. The step has the same size in every channel before normalisation.
    """
    detector = Mahalanobis()
    with torch.no_grad():
        for images, labels in zip(torch.split(train.images, BATCH), torch.split(train.labels, BATCH), strict=True):
            detector.partial_fit(pipeline.network.features(pipeline.normalise(images)), labels)
    scorer = MahalanobisScorer(pipeline, std, detector, tuple(dict.fromkeys((0.0, *magnitudes))))
    if len(scorer.magnitudes) == 1:
        return scorer
    if held_out is not None and len(held_out) >= 4:
        scorer.chosen_on = "images held out of training"
        scorer.choose_step(held_out.images, len(held_out) // 2, mean)
    else:
        scorer.choose_step(train.images, max(2, len(train) // 20), mean)
    return scorer


@dataclass
class Scorer:
    """All scores of one trained network; with Mahalanobis both without an input step and with the chosen one."""

    pipeline: Pipeline
    std: Tensor
    softmax_scale: float = 1.0
    mahalanobis: MahalanobisScorer | None = None

    def __call__(self, images: ImageSet) -> tuple[dict[str, Tensor], dict[float, Tensor], Tensor]:
        """Return the scores by name, the Mahalanobis scores by input step, and the logits (N, C)."""
        images = images.to(self.std.device)
        outputs = predict(self.pipeline, images)
        scores, steps = logit_scores(outputs.logits, self.softmax_scale), {}
        if self.mahalanobis is not None:
            steps = self.mahalanobis.scores(images.images, outputs.features)
            scores |= {"mahalanobis_no_step": steps[0.0], "mahalanobis": steps[self.mahalanobis.chosen]}
        return scores, steps, outputs.logits
