"""The numbers of a detection table, and the threshold that puts a detector to use."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from maxsep.detect.precision import check_rate, score_set
from maxsep.detect.ranking import auroc, average_precision, fpr_at_tpr

Positive = Literal["id", "ood"]


def ood_metrics(id_scores: Tensor, ood_scores: Tensor, *, positive: Positive = "id") -> dict[str, float]:
    """Measure how well scores tell in-distribution samples from others.

    Two choices change the numbers, so both have a name. `positive` says which samples are to be found: AUROC does
    not care, but AUPR and FPR95 of the two conventions are different measures. And the threshold of an FPR95 either
    has the recall closest to 0.95 (`fpr95`) or the first recall of at least 0.95 (`fpr95_at_least`).

    Args:
        id_scores: (N,) scores of in-distribution samples, higher = more in-distribution.
        ood_scores: (M,) scores of the others. Any real numbers, gathered over all batches.
        positive: "id" (the convention of the paper's table) or "ood".

    Returns:
        Fractions: `auroc` and `aupr` (average precision), higher is better; `fpr95` and `fpr95_at_least`, lower is
        better. With "id", fpr95 is the share of outsiders let in while 95 % of the known are kept; with "ood", the
        share of the known turned away while 95 % of the outsiders are caught.

    >>> import torch
    >>> ood_metrics(torch.tensor([3.0, 2.0]), torch.tensor([2.5, 1.0, 0.5, 0.0]))["fpr95"]
    0.25
    >>> ood_metrics(torch.tensor([3.0, 2.0]), torch.tensor([2.5, 1.0, 0.5, 0.0]), positive="ood")["fpr95"]
    0.5
    """
    known, unknown = score_set("id_scores", id_scores), score_set("ood_scores", ood_scores)
    if positive == "id":
        wanted, rest = known, unknown
    elif positive == "ood":
        wanted, rest = -unknown, -known
    else:
        raise ValueError(f"positive must be 'id' or 'ood', got {positive!r}. The paper's table uses 'id'.")
    return {
        "auroc": auroc(wanted, rest),
        "aupr": average_precision(wanted, rest),
        "fpr95": fpr_at_tpr(wanted, rest),
        "fpr95_at_least": fpr_at_tpr(wanted, rest, rule="at_least"),
    }


def threshold_at_tpr(id_scores: Tensor, tpr: float = 0.95) -> float:
    """Choose the score below which a sample is called unknown.

    The highest threshold that keeps at least `tpr` of the given samples, a sample being kept if its
    score >= threshold. Choose it on in-distribution data that was neither trained nor is tested on.

    Args:
        id_scores: (N,) scores of in-distribution samples, higher = more in-distribution.
        tpr: Fraction to keep, in (0, 1].

    Returns:
        One of the given scores.

    >>> import torch
    >>> threshold_at_tpr(torch.arange(20.0))
    1.0
    """
    tpr = check_rate("tpr", tpr)
    ordered = score_set("id_scores", id_scores).sort(descending=True).values
    count = len(ordered)
    kept = max(1, int(tpr * count))
    # k / N is compared as it will be measured: 0.55 * 100 is above 55 in floating point, 55 / 100 is not below 0.55
    while kept / count < tpr:
        kept += 1
    return float(ordered[kept - 1])
