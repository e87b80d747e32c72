"""What a classifier says about image files, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from maxsep.lab.data.decode import decode, warn_of_reduced
from maxsep.lab.engine.calibration import check_score
from maxsep.lab.serving.classifier import Classifier
from maxsep.lab.serving.files import Unreadable

BATCH = 256


@dataclass(frozen=True)
class Prediction:
    """What a classifier says about one image."""

    path: Path
    top: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, best first."""
    score: float
    """How much the image is like the training data, on the scale of the score that was chosen."""
    unknown: bool | None
    """Whether the score is below the threshold; None where there is no threshold."""


def predictions(
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    score: str | None = None,
    threshold: float | None = None,
    top: int = 1,
) -> Iterator[Prediction | Unreadable]:
    """Classify image files, in their order; a file that cannot be read is told and the others go on.

    Args:
        classifier: From `open_classifier`.
        paths: Image files.
        score: `max_logit`, `max_softmax` or `energy`; by default the classifier's own.
        threshold: An image that scores below it is unknown; None calls nothing unknown. `classifier.threshold(score)`
            is the one that was set on held-out data.
        top: How many classes to name.
    """
    score = classifier.score if score is None else score
    check_score(score)
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number, got {threshold}. It is on the scale of {score}.")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}. It is the number of classes to name.")
    return _predictions(classifier, paths, score, threshold, min(top, len(classifier.labels)))


def _predictions(
    classifier: Classifier, paths: Sequence[Path], score: str, threshold: float | None, top: int
) -> Iterator[Prediction | Unreadable]:
    reduced: list[Path] = []
    for start in range(0, len(paths), BATCH):
        part = paths[start : start + BATCH]
        array, errors = decode(part, classifier.shape, reduced)
        # what cannot be read stays in the batch as a black image: no number depends on its neighbours
        array[list(errors)] = 0
        logits = classifier.logits(torch.from_numpy(array))
        scores = classifier.scores(score, logits).tolist()
        best = classifier.probabilities(logits).topk(top)
        for position, path in enumerate(part):
            if position in errors:
                yield Unreadable(str(path), str(errors[position]))
                continue
            pairs = zip(best.indices[position].tolist(), best.values[position].tolist(), strict=True)
            named = tuple((classifier.labels[index], probability) for index, probability in pairs)
            # a score that is no number is below every threshold
            unknown = None if threshold is None else not scores[position] >= threshold
            yield Prediction(path, named, scores[position], unknown)
    warn_of_reduced(reduced)
