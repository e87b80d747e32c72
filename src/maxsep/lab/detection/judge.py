"""What decides how well outliers are told: both kinds of images scored in one way, and the measures of the scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import MAGNITUDES, auroc, average_precision, fpr_at_tpr
from maxsep.lab.data import Dataset, ImageSet, Splits, limit, load_outliers, origin
from maxsep.lab.detection.measures import (
    CONVENTIONS,
    DRAW,
    REPEATS,
    histogram,
    logit_scores,
    measure_scores,
)
from maxsep.lab.spec import RunSpec

SCHEMA = 1
_HISTOGRAMS = ("energy", "energy_centred")

Scorer = Callable[[ImageSet], tuple[dict[str, Tensor], dict[float, Tensor], Tensor]]
"""Scores images: by name, at every input step (if there are some), and gives their logits (N, C)."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to measure on a run.

    Args:
        outliers: Names of `load_outliers`; none means the unknown sets of the run's own open-set split.
        mahalanobis: Whether to fit the Mahalanobis detector on the training images.
        magnitudes: Its input steps; one gradient serves all, and every step but 0 is one more pass.
        odin: Whether to score with ODIN too, at its published temperature and step.
        draw: Outliers of a draw.
        repeats: Draws; 0 leaves them out.

    >>> Wish(repeats=0).sets("osr_cifar+_0")
    ('cifar+10', 'cifar+50')
    """

    outliers: tuple[str, ...] = ()
    mahalanobis: bool = True
    magnitudes: tuple[float, ...] = MAGNITUDES
    odin: bool = False
    draw: int = DRAW
    repeats: int = REPEATS

    def sets(self, dataset: str) -> tuple[str, ...]:
        """The outliers of a dataset."""
        split = Dataset.parse(dataset).open_set
        if not self.outliers and split is None:
            raise ValueError(f"name some outliers: {dataset!r} is no open-set split, so it has none of its own.")
        return self.outliers or tuple(split.unknown if split else ())

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores."""
        extra = ("mahalanobis_no_step", "mahalanobis") if self.mahalanobis else ()
        return (*logit_scores(torch.zeros(1, 2)), *extra, *(("odin",) if self.odin else ()))


def judge(
    spec: RunSpec,
    scorer: Scorer,
    data: Splits,
    wish: Wish,
    data_root: str | Path | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Score the test images of a model and every set of outliers, and measure the one against the other.

    Args:
        spec: What was trained. With `max_test` as many outliers are taken.
        scorer: What makes scores of images.
        data: Those of the model, in the classes and shape that it knows.
        wish: What to measure.
        data_root: Folder of the datasets; by default $MAXSEP_DATA.
        tell: Called with what is done next, and with how many images.

    Returns:
        The content of `detection.json`.
    """
    known = _Known(scorer, data.test, wish, tell)
    sets = {name: _measured(name, known, spec, data, data_root) for name in wish.sets(data.name)}
    return {
        "schema": SCHEMA,
        "run": spec.name,
        "softmax_scale": spec.softmax_scale,
        "in_distribution": {"dataset": data.name, "count": len(data.test), "top1": known.top1},
        "positive": "id",
        "conventions": CONVENTIONS,
        "sets": sets,
    }


class _Known:
    """The in-distribution scores of one model, and the measures of any outliers against them."""

    def __init__(self, scorer: Scorer, test: ImageSet, wish: Wish, tell: Callable[[str], None]) -> None:
        self.scorer, self.wish, self.tell = scorer, wish, tell
        tell(f"scoring {len(test):,} test images")
        self.scores, self.steps, logits = scorer(test)
        self.correct = logits.argmax(1) == test.labels.to(logits.device)
        self.top1 = int(self.correct.sum()) / len(test)

    def measure(self, outliers: ImageSet) -> dict[str, Any]:
        """Measure outliers against the in-distribution test images."""
        wish = self.wish
        self.tell(f"scoring {len(outliers):,} outliers")
        scores, steps, _ = self.scorer(outliers)
        told: dict[str, Any] = {
            "count": len(outliers),
            "scores": measure_scores(self.scores, scores, self.correct, draw=wish.draw, repeats=wish.repeats),
            "histograms": {name: histogram(self.scores[name], scores[name]) for name in _HISTOGRAMS},
        }
        if steps:
            told["sweep"] = {f"{size:g}": _brief(self.steps[size], values) for size, values in steps.items()}
        return told


def _brief(known: Tensor, outside: Tensor) -> dict[str, float]:
    return {
        "auroc": auroc(known, outside),
        "aupr": average_precision(known, outside),
        "fpr95": fpr_at_tpr(known, outside),
    }


def _measured(name: str, known: _Known, spec: RunSpec, data: Splits, root: str | Path | None) -> dict[str, Any]:
    images, unreadable = read_outliers(name, root, data.name, data.test.shape)
    if spec.max_test is not None:
        images = images.subset(limit(images.labels, spec.max_test, spec.subset_seed))
    told = {"origin": origin(name, root, like=data.name)} | known.measure(images)
    return told | {"unreadable": [{"path": path, "reason": reason} for path, reason in unreadable]}


def read_outliers(
    name: str, root: str | Path | None, like: str, shape: Sequence[int]
) -> tuple[ImageSet, tuple[tuple[str, str], ...]]:
    """Read outliers, and say by path why files of a folder were left out; the last few sets are kept.

    Args:
        name: As in `load_outliers`.
        root: Folder of the datasets; by default $MAXSEP_DATA.
        like: The dataset that they are outside of.
        shape: (channels, height, width) of its images.
    """
    channels, height, width = shape
    return _read_outliers(name, None if root is None else str(root), like, (channels, height, width))


@functools.lru_cache(maxsize=3)  # the runs of a recipe share them
def _read_outliers(
    name: str, root: str | None, like: str, shape: tuple[int, int, int]
) -> tuple[ImageSet, tuple[tuple[str, str], ...]]:
    unreadable: dict[Path, ValueError] = {}
    images = load_outliers(name, root, like=like, shape=shape, unreadable=unreadable)
    return images, tuple((str(path), str(error)) for path, error in unreadable.items())


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute convolutions in float32 proper: by default cuDNN rounds their inputs to ten bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
