import math

import pytest
import torch

from maxsep import simplex
from maxsep.analysis import class_mean_separation


def test_a_simplex_anywhere_reaches_the_best_angle():
    corners = 2 * simplex(6, dtype=torch.float64).T + 7
    told = class_mean_separation(corners.repeat(3, 1), torch.arange(6).repeat(3))
    assert told == pytest.approx(
        dict.fromkeys(["mean_angle", "min_angle", "simplex_angle"], math.degrees(math.acos(-0.2)))
    )


def test_other_arrangements_fall_short():
    square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    told = class_mean_separation(square, torch.tensor([2, 5, 8, 9]))
    assert told["min_angle"] == pytest.approx(90)
    assert told["mean_angle"] == pytest.approx((4 * 90 + 2 * 180) / 6)
    assert told["min_angle"] < told["simplex_angle"]


def test_bad_input_is_explained():
    x = torch.tensor([[-1.0], [0.0], [1.0]])
    with pytest.raises(ValueError, match="separation needs at least two classes, got 1"):
        class_mean_separation(x, torch.zeros(3))
    with pytest.raises(ValueError, match="1 of 3 class means lie at the mean of all features"):
        class_mean_separation(x, torch.arange(3))
    with pytest.raises(ValueError, match="3 of 3 class means lie at the mean of all features"):
        class_mean_separation(x * 0 + 0.1, torch.arange(3))
