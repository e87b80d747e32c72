"""How well scores rank positives above negatives: areas and rates, exact under ties, in torch alone.

All counts are whole numbers until the last division; equal scores share one threshold.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from maxsep.detect.precision import check_rate, score_set

Rule = Literal["closest", "at_least"]


def auroc(positive: Tensor, negative: Tensor) -> float:
    """Measure how often a positive scores above a negative: the area under the ROC curve.

    AUROC = P(positive > negative) + P(positive = negative) / 2 over all pairs, by sorting: O(N log N).

    Args:
        positive: (N,) scores of positives, any real numbers (nothing is squashed or guessed).
        negative: (M,) scores of negatives.

    Returns:
        A fraction; 0.5 for constant scores.

    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    0.875
    """
    pos, neg = _both(positive, negative)
    ordered = neg.sort().values
    below = torch.searchsorted(ordered, pos)
    not_above = torch.searchsorted(ordered, pos, right=True)
    return int(below.sum() + not_above.sum()) / (2 * len(pos) * len(neg))


def average_precision(positive: Tensor, negative: Tensor) -> float:
    """Measure the area under the precision-recall curve as average precision.

    AP = sum_t (recall_t - recall_{t-1}) precision_t over the distinct scores t from high to low. No straight
    lines are drawn between the points; the trapezoidal area that others print is a little higher.

    Args:
        positive: (N,) scores of positives.
        negative: (M,) scores of negatives.

    Returns:
        A fraction; N / (N + M), the base rate, for constant scores.

    >>> round(average_precision(torch.tensor([3.0, 1.0]), torch.tensor([2.0])), 4)
    0.8333
    """
    pos, neg = _both(positive, negative)
    hits, false_alarms = _counts(pos, neg)
    gained = hits.diff(prepend=hits.new_zeros(1)).double() / len(pos)
    return float((gained * hits / (hits + false_alarms)).sum())


def fpr_at_tpr(positive: Tensor, negative: Tensor, tpr: float = 0.95, *, rule: Rule = "closest") -> float:
    """Measure which fraction of negatives passes the threshold that keeps `tpr` of the positives.

    Recall moves in steps, so it rarely equals `tpr`. "closest", the convention of the energy papers and of the
    tables here, takes the distinct score whose recall is closest to `tpr`, on either side; if several have that
    recall it takes the lowest of them, except that recall 1 counts where it is first reached. "at_least" takes
    the highest score whose recall is not below `tpr`, as most libraries do.

    Args:
        positive: (N,) scores of positives.
        negative: (M,) scores of negatives.
        tpr: Wanted recall, in (0, 1].
        rule: "closest" or "at_least".

    Returns:
        The fraction of negatives at or above the threshold; lower is better.

    >>> positive = torch.arange(1.0, 12.0)  # eleven scores: recall is 10/11 = 0.909 or 1
    >>> negative = torch.tensor([1.0, 0.0])
    >>> fpr_at_tpr(positive, negative), fpr_at_tpr(positive, negative, rule="at_least")
    (0.0, 0.5)
    """
    tpr = check_rate("tpr", tpr)
    pos, neg = _both(positive, negative)
    hits, false_alarms = _counts(pos, neg)
    recall = hits.double() / len(pos)
    if rule == "at_least":
        chosen = int(torch.searchsorted(recall, tpr))
    elif rule == "closest":
        full = int(torch.searchsorted(hits, len(pos)))
        # from full recall down: argmin takes the first of equals, which is the lowest threshold
        chosen = full - int((recall[: full + 1].flip(0) - tpr).abs().argmin())
    else:
        raise ValueError(f"rule must be 'closest' or 'at_least', got {rule!r}. The tables use 'closest'.")
    return int(false_alarms[chosen]) / len(neg)


def _both(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    pos, neg = score_set("positive", positive), score_set("negative", negative)
    return pos, neg.to(pos.device)


def _counts(pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:
    """Count positives and negatives at or above every distinct score, from the highest score down."""
    thresholds = torch.unique(torch.cat([pos, neg])).flip(0)
    hits = len(pos) - torch.searchsorted(pos.sort().values, thresholds)
    false_alarms = len(neg) - torch.searchsorted(neg.sort().values, thresholds)
    return hits, false_alarms
