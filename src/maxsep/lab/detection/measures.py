"""From scores to the numbers of a table: on all images, and on draws of outliers as the energy benchmark takes them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import ood_metrics, oscr
from maxsep.lab.engine.calibration import scores_of

DRAW = 2000
"""Outliers of one draw: a fifth of CIFAR's test images."""
REPEATS = 10
BINS = 60
_SHIFTED = ("max_logit", "energy")
"""Scores that see a shift of all logits."""

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
"""What the measures are; all are fractions."""


def logit_scores(logits: Tensor, softmax_scale: float = 1.0) -> dict[str, Tensor]:
    """Score logits (N, C) in every way that needs nothing else; `_centred`: the mean logit of a sample removed.

    Softmax and energy are those of softmax_scale * logits, see `RunSpec.softmax_scale`.

    >>> scores = logit_scores(torch.tensor([[3.0, 1.0]]))
    >>> {name: round(score.item(), 2) for name, score in scores.items()}
    {'max_softmax': 0.88, 'max_logit': 3.0, 'energy': 3.13, 'max_logit_centred': 1.0, 'energy_centred': 1.13}
    """
    found = {name: scores_of(name, logits, softmax_scale) for name in ("max_softmax", "max_logit", "energy")}
    centred = {f"{name}_centred": scores_of(name, logits, softmax_scale, centre=True) for name in _SHIFTED}
    return found | centred


def measure_pair(known: Tensor, outside: Tensor) -> dict[str, float]:
    """Measure two sets of scores in both conventions.

    >>> told = measure_pair(torch.tensor([3.0, 2.0]), torch.tensor([2.5, 1.0, 0.5, 0.0]))
    >>> told["auroc"], told["fpr95"], told["fpr95_ood_positive"]
    (0.875, 0.25, 0.5)
    """
    other = ood_metrics(known, outside, positive="ood")
    return ood_metrics(known, outside) | {f"{name}_ood_positive": other[name] for name in other if name != "auroc"}


def measure_draws(known: Tensor, outside: Tensor, size: int, repeats: int, seed: int = 0) -> dict[str, Any]:
    """Measure draws of outliers without replacement against all known images; mean and sample std over the draws.

    The draws are the same for every score and run that has as many outliers.

    >>> told = measure_draws(torch.arange(4.0), torch.arange(4.0) - 9, 2, 3)
    >>> told["size"], told["auroc"]
    (2, {'mean': 1.0, 'std': 0.0})
    """
    size = min(size, len(outside))
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randperm(len(outside), generator=generator)[:size].to(outside.device) for _ in range(repeats)]
    found = [measure_pair(known, outside[draw]) for draw in draws]
    spread = {name: [row[name] for row in found] for name in found[0]}
    return {"size": size, "repeats": repeats} | {
        name: {"mean": statistics.fmean(values), "std": statistics.stdev(values) if repeats > 1 else 0.0}
        for name, values in spread.items()
    }


def measure_scores(
    known: Mapping[str, Tensor],
    outside: Mapping[str, Tensor],
    correct: Tensor,
    *,
    draw: int = DRAW,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Measure every score: on all images (with OSCR), and on draws unless there are none (`repeats=0`).

    Args:
        known: For each score, (N,) values of the in-distribution test images.
        outside: The same scores, (M,) values of the outliers.
        correct: (N,) booleans: which test images are classified correctly.
        draw: Outliers of a draw.
        repeats: How many draws.
    """
    told: dict[str, Any] = {}
    for name, values in known.items():
        full = measure_pair(values, outside[name])
        full["oscr"] = oscr(values, correct.to(values.device), outside[name])
        told[name] = {"full": full}
        if repeats:
            told[name]["draws"] = measure_draws(values, outside[name], draw, repeats)
    return told


def histogram(known: Tensor, outside: Tensor, bins: int = BINS) -> dict[str, Any]:
    """Count scores of both sets in common bins of one width, as shares of each set, with the gap between their means.

    `gap` is the mean of the known minus that of the outliers; `gap_in_stds` divides it by the root of the mean of the
    two variances, so that heads with another scale of logits can be compared.

    >>> told = histogram(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), bins=3)
    >>> told["edges"], told["known"], told["gap"]
    ([0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 0.5], 2.0)
    """
    known, outside = known.double().cpu(), outside.double().cpu()
    both = torch.cat([known, outside])
    low, high = both.min(), both.max()
    edges = torch.linspace(float(low), float(high) if high > low else float(low) + 1, bins + 1, dtype=torch.float64)

    def share(values: Tensor) -> list[float]:
        places = torch.bucketize(values, edges[1:-1], right=True)
        counts = torch.bincount(places, minlength=bins).double()
        return [round(value, 6) for value in (counts / len(values)).tolist()]

    gap = float(known.mean() - outside.mean())
    spread = float(((known.var(correction=0) + outside.var(correction=0)) / 2).sqrt())
    return {
        "edges": [float(f"{edge:.8g}") for edge in edges.tolist()],
        "known": share(known),
        "outside": share(outside),
        "known_mean": float(known.mean()),
        "outside_mean": float(outside.mean()),
        "gap": gap,
        "gap_in_stds": gap / spread if spread else None,
    }
