"""Metrics of scores, higher = more in-distribution: exact under ties, as counts are integers until the division."""

from typing import Any, Literal

import torch
from torch import Tensor

from maxsep.checks import as_tensor, check_floating, check_number
from maxsep.detect.scores import to_float64


def auroc(positive: Any, negative: Any) -> float:
    """Compute the area under the ROC curve, P(positive > negative) + P(positive = negative) / 2 over all pairs.

    positive (N,) and negative (M,) are scores, as tensors, NumPy arrays or lists: any reals, no sigmoid is applied.

    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    0.875
    """
    positive, negative = _score_sets(positive=positive, negative=negative)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive)
    not_above = torch.searchsorted(ordered, positive, right=True)
    return int(below.sum() + not_above.sum()) / (2 * len(positive) * len(negative))


def average_precision(positive: Any, negative: Any) -> float:
    """Compute the area under the precision-recall curve as average precision.

    AP = sum_t (recall_t - recall_{t-1}) precision_t over the distinct scores t of positive (N,) and negative (M,) from
    high to low; N / (N + M), the base rate, for constant scores.

    Pitfall: the trapezoidal area that other libraries report is another number.

    >>> round(average_precision(torch.tensor([3.0, 1.0]), torch.tensor([2.0])), 4)
    0.8333
    """
    positive, negative = _score_sets(positive=positive, negative=negative)
    true, false = _counts(positive, negative)
    recall_steps = true.diff(prepend=true.new_zeros(1)).double() / len(positive)
    return float((recall_steps * true / (true + false)).sum())


def fpr_at_tpr(
    positive: Any, negative: Any, tpr: float = 0.95, *, rule: Literal["closest", "at_least"] = "closest"
) -> float:
    """Compute the fraction of negatives accepted at the threshold that accepts the fraction `tpr` of positives.

    Recall is a step function and rarely equals `tpr`, so the threshold needs a rule. "closest", the rule of the energy
    benchmark (Liu et al. 2020), takes the distinct score whose recall is closest to `tpr` on either side; of several
    with the same recall the lowest, but recall 1 where it is first reached. "at_least" takes the highest score with
    recall >= `tpr`, as most libraries do.

    >>> positive = torch.arange(1.0, 12.0)  # eleven scores: recall 10/11 = 0.909 or 1
    >>> negative = torch.tensor([1.0, 0.0])
    >>> fpr_at_tpr(positive, negative), fpr_at_tpr(positive, negative, rule="at_least")
    (0.0, 0.5)
    """
    tpr = check_number("tpr", tpr, "a number in (0, 1]")
    positive, negative = _score_sets(positive=positive, negative=negative)
    true, false = _counts(positive, negative)
    recall = true.double() / len(positive)
    if rule == "at_least":
        chosen = int(torch.searchsorted(recall, tpr))
    elif rule == "closest":
        full = int(torch.searchsorted(true, len(positive)))
        # flipped: argmin returns the first of equal distances, which must be the lowest threshold
        chosen = full - int((recall[: full + 1].flip(0) - tpr).abs().argmin())
    else:
        raise ValueError(f"rule must be 'closest' or 'at_least', got {rule!r}")
    return int(false[chosen]) / len(negative)


def ood_metrics(id_scores: Any, ood_scores: Any, *, positive: Literal["id", "ood"] = "id") -> dict[str, float]:
    """Compute AUROC, AUPR (average precision) and FPR95 of scores, higher = more in-distribution, as fractions.

    Two conventions change AUPR and FPR95, so both are explicit: which samples are positive, and whether the
    threshold has the recall closest to 0.95 (`fpr95`) or the first recall >= 0.95 (`fpr95_at_least`).

    With positive="id", FPR95 is the fraction of the OOD samples (M,) accepted while 95 % of the ID samples (N,) are;
    with "ood", the fraction of ID samples rejected while 95 % of the OOD samples are.

    >>> known, unknown = torch.tensor([3.0, 2.0]), torch.tensor([2.5, 1.0, 0.5, 0.0])
    >>> ood_metrics(known, unknown)["fpr95"], ood_metrics(known, unknown, positive="ood")["fpr95"]
    (0.25, 0.5)
    """
    known, unknown = _score_sets(id_scores=id_scores, ood_scores=ood_scores)
    if positive not in ("id", "ood"):
        raise ValueError(f"positive must be 'id' or 'ood', got {positive!r}")
    pair = (known, unknown) if positive == "id" else (-unknown, -known)
    return {
        "auroc": auroc(*pair),
        "aupr": average_precision(*pair),
        "fpr95": fpr_at_tpr(*pair),
        "fpr95_at_least": fpr_at_tpr(*pair, rule="at_least"),
    }


def threshold_at_tpr(id_scores: Any, tpr: float = 0.95) -> float:
    """Return the highest threshold t such that score >= t holds for at least the fraction `tpr` of the samples.

    A sample below it counts as unknown. Pitfall: id_scores (N,) must be of in-distribution samples that are used
    neither for training nor for testing.

    >>> threshold_at_tpr(torch.arange(20.0))
    1.0
    """
    tpr = check_number("tpr", tpr, "a number in (0, 1]")
    (scores,) = _score_sets(id_scores=id_scores)
    accepted = torch.arange(1, len(scores) + 1, dtype=torch.float64) / len(scores)
    # compares k / N as it is measured: 0.55 * 100 > 55 in floating point
    return float(scores.sort(descending=True).values[int(torch.searchsorted(accepted, tpr))])


def oscr(known_scores: Any, known_correct: Any, unknown_scores: Any) -> float:
    """Compute the area under correct classification rate against false positive rate.

    At threshold t the rates are the fraction of known samples that are classified correctly with score > t, and the
    fraction of unknown samples with score >= t (Dhamija, Guenther and Boult, Reducing network agnostophobia, NeurIPS
    2018). Over all real t the area is P(known sample correct and known score > unknown score), at most accuracy and
    AUROC.

    known_scores and known_correct (predictions == labels) are (N,), unknown_scores (M,).

    >>> known, correct = torch.tensor([3.0, 2.0, 0.0]), torch.tensor([True, False, True])
    >>> round(oscr(known, correct, torch.tensor([1.0, -1.0])), 4)  # 3 of the 6 pairs
    0.5
    """
    known, unknown = _score_sets(known_scores=known_scores, unknown_scores=unknown_scores)
    known_correct = as_tensor("known_correct", known_correct)
    if known_correct.dtype != torch.bool:
        raise TypeError(f"known_correct must be boolean, got {known_correct.dtype}")
    if known_correct.shape != known.shape:
        raise ValueError(f"known_correct must be ({len(known)},), got shape {tuple(known_correct.shape)}")
    wins = torch.searchsorted(unknown.sort().values, known[known_correct.to(known.device)])
    return int(wins.sum()) / (len(known) * len(unknown))


def _score_sets(**scores: Any) -> tuple[Tensor, ...]:
    """Check scores and convert them to float64 on the device of the first; infinities are allowed, NaN is not."""
    sets = []
    for name, values in scores.items():
        dtype = None if hasattr(values, "dtype") else torch.float64  # the default dtype would round Python's floats
        values = check_floating(as_tensor(name, values, dtype=dtype), name)
        if values.ndim != 1 or not len(values):
            raise ValueError(f"{name} must be (N,) with at least one score, got shape {tuple(values.shape)}")
        if values.isnan().any():
            raise ValueError(f"{name} must not contain NaN, got {int(values.isnan().sum())} among {len(values)} scores")
        sets.append(to_float64(values.detach()))
    return tuple(values.to(sets[0].device) for values in sets)


def _counts(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Count positives and negatives at or above each distinct score, from the highest score down."""
    thresholds = torch.unique(torch.cat([positive, negative])).flip(0)
    true = len(positive) - torch.searchsorted(positive.sort().values, thresholds)
    false = len(negative) - torch.searchsorted(negative.sort().values, thresholds)
    return true, false
