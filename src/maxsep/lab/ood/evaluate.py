"""Evaluate a finished run on outliers: its test images against each set, and the record `detection.json`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import MAGNITUDES, ood_metrics, oscr
from maxsep.lab.data import Dataset, ImageSet, Splits, limit, load_outliers, origin, prepare
from maxsep.lab.engine.evaluate import load_pipeline, moved
from maxsep.lab.environment import pick_device
from maxsep.lab.ood.scores import Scorer, fit_mahalanobis, logit_scores
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

FILE = "detection.json"
SCHEMA = 1
BINS = 60
_HISTOGRAMS, _BRIEF = ("energy", "energy_centred"), ("auroc", "aupr", "fpr95")

CONVENTIONS = {
    "auroc": "area under the ROC curve",
    "aupr": "average precision, in-distribution positive: the paper's convention",
    "fpr95": "share of outliers let in at the recall of in-distribution images closest to 95 %: the paper's convention",
    "fpr95_at_least": "the same at the first recall of at least 95 %",
    "aupr_ood_positive": "average precision, outliers positive",
    "fpr95_ood_positive": "share of in-distribution images turned away at the recall of outliers closest to 95 %",
    "fpr95_at_least_ood_positive": "the same at the first recall of at least 95 %",
    "oscr": "area under correct classification rate against false positive rate",
}
"""The metrics of a record; all are fractions."""


@dataclass(frozen=True, kw_only=True)
class OODProtocol:
    """What to measure on a run.

    Args:
        outliers: Names of `load_outliers`; none means the unknown sets of the run's own open-set split.
        mahalanobis: Whether to fit the Mahalanobis detector on the training images.
        magnitudes: Its input steps; one gradient serves all, and every step but 0 is one more forward pass.
        draw: Outliers per random draw; the energy benchmark takes a fifth of CIFAR's test images.
        repeats: Number of draws; 0 leaves them out.

    >>> OODProtocol(repeats=0).sets("osr_cifar+_0")
    ('cifar+10', 'cifar+50')
    """

    outliers: tuple[str, ...] = ()
    mahalanobis: bool = True
    magnitudes: tuple[float, ...] = MAGNITUDES
    draw: int = 2000
    repeats: int = 10

    def sets(self, dataset: str) -> tuple[str, ...]:
        """Return the names of the outliers for a dataset."""
        split = Dataset.parse(dataset).open_set
        if not self.outliers and split is None:
            raise ValueError(f"outliers must be named: {dataset!r} is not an open-set split with unknown classes.")
        return self.outliers or tuple(split.unknown if split else ())

    @property
    def scores(self) -> tuple[str, ...]:
        """Return the names of the scores."""
        extra = ("mahalanobis_no_step", "mahalanobis") if self.mahalanobis else ()
        return (*logit_scores(torch.zeros(1, 2)), *extra)


def detect(
    folder: str | Path,
    protocol: OODProtocol,
    *,
    data_root: str | Path | None = None,
    device: str = "auto",
    dataset: str | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Measure how well a finished run tells its test images from outliers; writes nothing.

    The network computes in float32, scores are float64. With `spec.max_test` only so many outliers are used.

    `dataset` names the run's data if their folder has moved; `progress` is called with a line before each long step.

    Returns:
        The content of `detection.json`: closed-set accuracy, and for each set its origin, the metrics of every score on
        all images and on draws, those of every input step, histograms of the negative energy, and unreadable files.
    """
    run = Run(folder)
    place = pick_device(device)
    data = prepare(moved(run.spec, dataset, data_root, run.preprocessing["shape"]), data_root)
    with full_precision():
        pipeline = load_pipeline(folder, place)
        mean, std = (torch.tensor(run.preprocessing[name], device=place) for name in ("mean", "std"))
        scorer = Scorer(pipeline, std, run.spec.softmax_scale)
        if protocol.mahalanobis:
            progress(f"fitting Mahalanobis on {len(data.train):,} training images")
            held_out = None if data.calibration is None else data.calibration.to(place)
            train = data.train.to(place)
            scorer.mahalanobis = fit_mahalanobis(pipeline, train, mean, std, protocol.magnitudes, held_out)
        record = _evaluate(run.spec, scorer, data, protocol, data_root, progress)
    if scorer.mahalanobis is not None:
        record["mahalanobis"] = scorer.mahalanobis.to_dict()
    return record


def ensure_detection(
    folder: str | Path, protocol: OODProtocol, *, data_root: str | Path | None = None, device: str = "auto"
) -> bool:
    """Write `detection.json` into a run's folder unless it is there and covers the protocol.

    Sets that the file holds already stay in it, unless they were scored with another `softmax_scale`. Returns whether
    something was computed; raises BlockingIOError if another process holds the run's lock.
    """
    run = Run(folder)
    with run.lock():
        before, scale = read_detection(folder), run.spec.softmax_scale
        if before is not None and covers(before, protocol, scale):
            return False
        record = detect(folder, protocol, data_root=data_root, device=device)
        if before is not None and before.get("run") == record["run"] and _scale(before) == scale:
            record["sets"] = before["sets"] | record["sets"]
        run.add(FILE, record)
    return True


def read_detection(folder: str | Path) -> dict[str, Any] | None:
    """Read a run's `detection.json`; None if it is missing or damaged, so that it is written anew."""
    try:
        record = Run(folder).read(FILE) or {}
        sets = record["sets"] if record["schema"] == SCHEMA else None
        return record if isinstance(sets, dict) and isinstance(record["in_distribution"]["dataset"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def covers(record: Mapping[str, Any], protocol: OODProtocol, softmax_scale: float = 1.0) -> bool:
    """Return whether a record holds every set, score and draw of a protocol, for logits on the scale of the loss."""
    if _scale(record) != softmax_scale:
        return False
    try:
        for name in protocol.sets(record["in_distribution"]["dataset"]):
            scores = record["sets"][name]["scores"]
            for score in protocol.scores:
                if protocol.repeats and scores[score]["draws"]["repeats"] != protocol.repeats:
                    return False
                scores[score]["full"]["auroc"]
        tried = record["mahalanobis"]["magnitudes"] if protocol.mahalanobis else protocol.magnitudes
    except (KeyError, TypeError):
        return False
    return set(protocol.magnitudes) <= set(tried)


def _scale(record: Mapping[str, Any]) -> object:
    """Records without the field took the logits as they are."""
    return record.get("softmax_scale", 1.0)


def _evaluate(
    spec: RunSpec,
    scorer: Callable[[ImageSet], tuple[dict[str, Tensor], dict[float, Tensor], Tensor]],
    data: Splits,
    protocol: OODProtocol,
    root: str | Path | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    progress(f"scoring {len(data.test):,} test images")
    known, known_steps, logits = scorer(data.test)
    correct = logits.argmax(1) == data.test.labels.to(logits.device)
    sets, top1 = {}, int(correct.sum()) / len(data.test)
    for name in protocol.sets(data.name):
        images, unreadable = read_outliers(name, root, data.name, data.test.shape)
        if spec.max_test is not None:
            images = images.subset(limit(images.labels, spec.max_test, spec.subset_seed))
        progress(f"scoring {len(images):,} outliers")
        outliers, steps, _ = scorer(images)
        sets[name] = {
            "origin": origin(name, root, like=data.name),
            "count": len(images),
            "scores": measure_scores(known, outliers, correct, draw=protocol.draw, repeats=protocol.repeats),
            "histograms": {score: histogram(known[score], outliers[score]) for score in _HISTOGRAMS},
        }
        if steps:
            pairs = {f"{size:g}": ood_metrics(known_steps[size], values) for size, values in steps.items()}
            sets[name]["sweep"] = {size: {key: row[key] for key in _BRIEF} for size, row in pairs.items()}
        sets[name]["unreadable"] = [{"path": path, "reason": reason} for path, reason in unreadable]
    return {
        "schema": SCHEMA,
        "run": spec.name,
        "softmax_scale": spec.softmax_scale,
        "in_distribution": {"dataset": data.name, "count": len(data.test), "top1": top1},
        "positive": "id",
        "conventions": CONVENTIONS,
        "sets": sets,
    }


def measure_scores(
    known: Mapping[str, Tensor], outliers: Mapping[str, Tensor], correct: Tensor, *, draw: int = 2000, repeats: int = 10
) -> dict[str, Any]:
    """Measure scores by name, (N,) of test images and (M,) of outliers; on draws too unless `repeats` is 0.

    `correct` (N,) tells which test images are classified correctly, for OSCR.
    """
    measured: dict[str, Any] = {}
    for name, values in known.items():
        full = measure_pair(values, outliers[name])
        full["oscr"] = oscr(values, correct.to(values.device), outliers[name])
        measured[name] = {"full": full}
        if repeats:
            measured[name]["draws"] = measure_draws(values, outliers[name], draw, repeats)
    return measured


def measure_pair(known: Tensor, outliers: Tensor) -> dict[str, float]:
    """Measure two sets of scores with either side as the positive class."""
    other = ood_metrics(known, outliers, positive="ood")
    return ood_metrics(known, outliers) | {f"{name}_ood_positive": other[name] for name in other if name != "auroc"}


def measure_draws(known: Tensor, outliers: Tensor, size: int, repeats: int, seed: int = 0) -> dict[str, Any]:
    """Measure draws of outliers without replacement against all known images: mean and sample std over the draws.

    The draws are the same for every score and for every run with as many outliers.
    """
    size = min(size, len(outliers))
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randperm(len(outliers), generator=generator)[:size].to(outliers.device) for _ in range(repeats)]
    rows = [measure_pair(known, outliers[draw]) for draw in draws]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {"size": size, "repeats": repeats} | {
        name: {"mean": statistics.fmean(values), "std": statistics.stdev(values) if repeats > 1 else 0.0}
        for name, values in columns.items()
    }


def histogram(known: Tensor, outliers: Tensor, bins: int = BINS) -> dict[str, Any]:
    """Count both sets in common bins of equal width, as shares of each set, with the gap between their means.

    `gap` is the mean of the known minus that of the outliers; `gap_in_stds` divides it by the root of the mean of the
    two variances, so that heads with another scale of logits can be compared.
    """
    known, outliers = known.double().cpu(), outliers.double().cpu()
    both = torch.cat([known, outliers])
    low, high = float(both.min()), float(both.max())
    edges = torch.linspace(low, high if high > low else low + 1, bins + 1, dtype=torch.float64)

    def share(values: Tensor) -> list[float]:
        counts = torch.bincount(torch.bucketize(values, edges[1:-1], right=True), minlength=bins).double()
        return [round(value, 6) for value in (counts / len(values)).tolist()]

    gap = float(known.mean() - outliers.mean())
    spread = float(((known.var(correction=0) + outliers.var(correction=0)) / 2).sqrt())
    return {
        "edges": [float(f"{edge:.8g}") for edge in edges.tolist()],
        "known": share(known),
        "outside": share(outliers),
        "known_mean": float(known.mean()),
        "outside_mean": float(outliers.mean()),
        "gap": gap,
        "gap_in_stds": gap / spread if spread else None,
    }


@functools.lru_cache(maxsize=3)  # the runs of a recipe share them
def read_outliers(
    name: str, root: str | Path | None, like: str, shape: tuple[int, int, int]
) -> tuple[ImageSet, tuple[tuple[str, str], ...]]:
    """Read outliers of the dataset `like` in the shape of its images, and (path, reason) of unreadable files."""
    unreadable: dict[Path, ValueError] = {}
    images = load_outliers(name, root, like=like, shape=shape, unreadable=unreadable)
    return images, tuple((str(path), str(error)) for path, error in unreadable.items())


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute convolutions in float32: by default cuDNN rounds their inputs to ten bits of mantissa."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
