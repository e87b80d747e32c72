import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.analysis import expected_calibration_error


def by_the_book(probabilities, labels, bins):
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [
            (max(row), row.index(max(row)) == label)
            for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True)
            if low < max(row) <= high
        ]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(hit for _, hit in inside) / len(inside)
            total += len(inside) / len(labels) * abs(accuracy - confidence)
    return total


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 40), classes=st.integers(2, 6), bins=st.integers(1, 20))
def test_it_is_the_weighted_gap_of_the_bins(seed, rows, classes, bins):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(rows, classes, generator=generator, dtype=torch.float64).mul(3).softmax(1)
    labels = torch.randint(classes, (rows,), generator=generator)
    expected = by_the_book(probabilities, labels, bins)
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-12)


def test_bins_are_closed_on_the_right():
    # 0.75 is the upper edge of the third of four bins; in one bin with 0.7 the gaps cancel, in two they would not
    probabilities = torch.tensor([[0.75, 0.25], [0.70, 0.30]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    assert expected_calibration_error(probabilities, labels, 4) == pytest.approx(abs(0.5 - 0.725))


def test_certain_and_right_is_perfectly_calibrated():
    assert expected_calibration_error(torch.eye(4), torch.arange(4)) == 0


def test_logits_are_refused():
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got values from -1 to 3.*softmax"):
        expected_calibration_error(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("probabilities", "labels", "bins", "message"),
    [
        (torch.ones(2), torch.zeros(2), 15, r"must be \(N, C\) and labels \(N,\), got \(2,\) and \(2,\)"),
        (torch.ones(2, 1), torch.zeros(3), 15, r"got \(2, 1\) and \(3,\)"),
        (torch.ones(0, 2), torch.zeros(0), 15, "of no samples is not defined"),
        (torch.ones(1, 1), torch.zeros(1), 0, "bins must be at least 1, got 0"),
    ],
)
def test_bad_input_is_explained(probabilities, labels, bins, message):
    with pytest.raises(ValueError, match=message):
        expected_calibration_error(probabilities, labels, bins)
