"""The open-set classification rate: accept what is known, and name it correctly."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from maxsep.detect.precision import score_set

Ties = Literal["strict", "half"]


def oscr(known_scores: Tensor, known_correct: Tensor, unknown_scores: Tensor, *, ties: Ties = "strict") -> float:
    """Measure the area under correct classification rate against false positive rate (Dhamija et al. 2018).

    At threshold t, the first is the fraction of known samples that are correctly classified with score > t, and the
    second the fraction of unknown samples with score >= t. With t running over all real numbers the area is
    P(known correct and known score > unknown score): accuracy and detection in one number, never above either.
    (Implementations that look only at thresholds in the sample lose up to 1 / (2 max(N, M)) of it.)

    Args:
        known_scores: (N,) scores of known samples, higher = more in-distribution.
        known_correct: (N,) booleans: was the known sample classified correctly?
        unknown_scores: (M,) scores of unknown samples.
        ties: What a correct known sample with the score of an unknown one counts: nothing ("strict", the definition
            above) or a half ("half", with which OSCR is AUROC if every known sample is classified correctly).

    Returns:
        A fraction; at most the closed-set accuracy, which is reached when all correct known samples score highest.

    >>> known, right = torch.tensor([3.0, 2.0, 0.0]), torch.tensor([True, False, True])
    >>> round(oscr(known, right, torch.tensor([1.0, -1.0])), 4)  # 3 of the 6 pairs
    0.5
    """
    known, unknown = score_set("known_scores", known_scores), score_set("unknown_scores", unknown_scores)
    chosen = known[_correct(known_correct, known).to(known.device)]
    ordered = unknown.to(known.device).sort().values
    wins = torch.searchsorted(ordered, chosen)
    if ties == "strict":
        pairs = 2 * int(wins.sum())
    elif ties == "half":
        pairs = int((wins + torch.searchsorted(ordered, chosen, right=True)).sum())
    else:
        raise ValueError(f"ties must be 'strict' or 'half', got {ties!r}. The definition is 'strict'.")
    return pairs / (2 * len(known) * len(unknown))


def _correct(correct: Any, known: Tensor) -> Tensor:
    if not isinstance(correct, Tensor) or correct.dtype != torch.bool:
        told = f"dtype {correct.dtype}" if isinstance(correct, Tensor) else type(correct).__name__
        raise TypeError(f"known_correct must be a boolean tensor, got {told}. Pass predictions == labels.")
    if correct.shape != known.shape:
        raise ValueError(
            f"known_correct must have one entry per known score, got shape {tuple(correct.shape)} "
            f"for {len(known)} scores. Pass predictions == labels of the same samples."
        )
    return correct
