"""Which scores can be ranked: src/maxsep/detect/precision.py."""

import math

import pytest
import torch

from maxsep.detect.precision import check_positive, check_rate, precise, score_set


def test_scores_become_float64_without_a_history_and_keep_infinities():
    scores = torch.tensor([1.0, math.inf, -math.inf], dtype=torch.bfloat16, requires_grad=True)
    found = score_set("id_scores", scores)
    assert (found.dtype, found.requires_grad) == (torch.float64, False)
    assert found.tolist() == [1.0, math.inf, -math.inf]
    assert precise(torch.tensor([0.1])).item() == torch.tensor(0.1).item()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(2, 2), "id_scores must be one-dimensional, one score per sample, got shape"),
        (torch.zeros(0), "id_scores is empty"),
        (torch.tensor([1.0, math.nan]), "id_scores holds 1 NaN among 2 scores"),
    ],
)
def test_what_has_no_rank_is_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        score_set("id_scores", scores)


@pytest.mark.parametrize("rate", [0, -0.1, 1.01, True, "0.95", math.nan])
def test_rates(rate):
    assert check_rate("tpr", 1) == 1.0
    with pytest.raises(ValueError, match=r"tpr must be a number in \(0, 1\], got"):
        check_rate("tpr", rate)


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, True, None])
def test_positive_numbers(value):
    assert check_positive("step", 0, zero=True) == 0.0
    with pytest.raises(ValueError, match="step must be zero or a positive finite number, got"):
        check_positive("step", value, zero=True)
    with pytest.raises(ValueError, match="step must be a positive finite number, got 0"):
        check_positive("step", 0)
