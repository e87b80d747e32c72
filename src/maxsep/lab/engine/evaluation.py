"""What a trained network is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxsep.analysis import expected_calibration_error
from maxsep.lab.data import ImageSet
from maxsep.lab.engine.losses import Loss
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.spec import RunSpec

BATCH = 1000
"""Images of one evaluation batch; fixed, so that results do not depend on the training batch."""
PIXELS = 256 * 224 * 224
"""Of an evaluation batch at most: there are fewer images in it if they are large."""


@dataclass(frozen=True)
class Outputs:
    """What a network says about a whole split: logits (N, C), features (N, D) and the labels (N,)."""

    logits: Tensor
    features: Tensor
    labels: Tensor


def predict(pipeline: Pipeline, images: ImageSet, precision: AbstractContextManager[Any] | None = None) -> Outputs:
    """Run a pipeline over a split, in evaluation mode; the mode it had before is restored.

    Args:
        pipeline: The network behind its normalisation.
        images: A split whose labels are on the same device; its images may lie on the host.
        precision: Context to compute in, such as Fabric's autocast.
    """
    was_training = pipeline.training
    pipeline.eval()
    logits, features = [], []
    with torch.no_grad(), precision or nullcontext():
        for batch in images.batches(batch_of(images.shape)):
            hidden = pipeline.network.features(pipeline.normalise(batch))
            logits.append(pipeline.network.head(hidden).float())
            features.append(hidden.float())
    pipeline.train(was_training)
    return Outputs(torch.cat(logits), torch.cat(features), images.labels)


def batch_of(shape: tuple[int, int, int]) -> int:
    """How many images of this shape are evaluated at a time.

    >>> batch_of((3, 32, 32)), batch_of((3, 224, 224))
    (1000, 256)
    """
    _, height, width = shape
    return min(BATCH, max(1, PIXELS // (height * width)))


def measure(outputs: Outputs, loss: Loss, softmax_scale: float = 1.0) -> dict[str, Any]:
    """Compute the metrics of a split; accuracies are fractions.

    Args:
        outputs: What a network says.
        loss: The loss it was trained with; it scales logits itself.
        softmax_scale: `RunSpec.softmax_scale`: probabilities are softmax(softmax_scale * logits).

    Returns:
        `top1`, `top5` (top C if there are fewer than five classes), `loss`, `ece` (15 bins) with its `softmax_scale`,
        `per_class` (None for a class without images) and `balanced`, the mean over the classes that have images.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> outputs = Outputs(logits, logits, torch.tensor([0, 1, 1]))
    >>> metrics = measure(outputs, torch.nn.functional.cross_entropy)
    >>> round(metrics["top1"], 4), metrics["per_class"], metrics["balanced"]
    (0.6667, [1.0, 0.5], 0.75)
    """
    logits, labels = outputs.logits, outputs.labels
    num_classes = logits.shape[1]
    ranked = logits.topk(min(5, num_classes), dim=1).indices
    hits = ranked == labels[:, None]
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    correct = torch.bincount(labels[hits[:, 0]], minlength=num_classes).tolist()
    per_class = [right / count if count else None for right, count in zip(correct, counts, strict=True)]
    present = [accuracy for accuracy in per_class if accuracy is not None]
    return {
        "top1": sum(correct) / len(labels),
        "top5": int(hits.any(dim=1).sum()) / len(labels),
        "loss": loss(logits, labels).item(),
        "ece": expected_calibration_error((softmax_scale * logits).softmax(dim=1), labels),
        "softmax_scale": softmax_scale,
        "balanced": sum(present) / len(present),
        "per_class": per_class,
    }


def known_ece(spec: RunSpec, metrics: Mapping[str, Any]) -> float | None:
    """Give the calibration error of a record; None if it is not that of the probabilities which the loss trains.

    Records without `softmax_scale` are of the bare logits, which is right for every loss but `ldam`.

    >>> known_ece(RunSpec(), {"ece": 0.02}), known_ece(RunSpec(loss="ldam"), {"ece": 0.78})
    (0.02, None)
    """
    found = metrics.get("ece")
    if metrics.get("softmax_scale", 1.0) != spec.softmax_scale:
        return None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None
