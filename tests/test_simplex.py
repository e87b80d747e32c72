"""The matrix equals the paper's recursion and is a simplex, at every size."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep import simplex
from maxsep.simplex import certify, coefficients


def test_equals_the_recursion_for_every_size_up_to_2000():
    largest = 2000
    buffer = torch.zeros(largest - 1, largest, dtype=torch.float64)
    buffer[-1, -2:] = torch.tensor([1.0, -1.0])
    worst = (buffer[-1:, -2:] - simplex(2, dtype=torch.float64)).abs().max().item()
    for k in range(2, largest):  # P_k grows out of P_{k-1} at its upper left: scale what is there, add a row
        block = buffer[-k:, -k - 1 :]
        block[1:, 1:] *= math.sqrt(1 - 1 / k**2)
        block[0, 0], block[0, 1:] = 1, -1 / k
        worst = max(worst, (block - simplex(k + 1, dtype=torch.float64)).abs().max().item())
    assert worst <= 1e-12


@given(st.integers(2, 600))
@settings(max_examples=60, deadline=None)
def test_geometry(num_classes):
    k = num_classes - 1
    P = simplex(num_classes, dtype=torch.float64)
    gram = P.T @ P
    expected = torch.full_like(gram, -1 / k).fill_diagonal_(1)
    torch.testing.assert_close(gram, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(P.sum(1), torch.zeros(k, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(P @ P.T, torch.eye(k, dtype=torch.float64) * num_classes / k, atol=1e-12, rtol=0)
    assert torch.equal(P, P.triu())


@given(st.floats(math.log(2), math.log(1_000_000)).map(lambda e: round(math.exp(e))))
@settings(max_examples=100, deadline=None)
def test_certificates_at_any_size(num_classes):
    certificate = certify(num_classes)
    assert certificate.norm <= 1e-14
    assert certificate.cosine <= 1e-8
    assert certificate.mean <= 1e-14


@pytest.mark.parametrize("row", range(7))
@pytest.mark.parametrize("which", ["s", "r"])
def test_certificates_are_the_deviations_of_the_dense_matrix(monkeypatch, which, row):
    s, r = coefficients(8)
    {"s": s, "r": r}[which][row] *= 1 + 1e-6
    monkeypatch.setattr(sys.modules["maxsep.simplex"], "coefficients", lambda *_, **options: (s, r))
    P = simplex(8, dtype=torch.float64)
    gram, certificate = P.T @ P, certify(8)
    cosines = gram[tuple(torch.triu_indices(8, 8, 1))]
    expected = (gram.diagonal() - 1).abs().max(), (7 * cosines + 1).abs().max(), P.sum(1).abs().max()
    actual = torch.tensor([certificate.norm, certificate.cosine, certificate.mean], dtype=torch.float64)
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-14)
    assert actual.min() > 1e-10


def test_dtype_and_device():
    assert simplex(5).dtype == torch.float32
    assert simplex(5, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert simplex(5, device="meta").shape == (4, 5)


def test_indices_beyond_int32_squares_and_float32_integers():
    s, r = coefficients(20_000_003, dtype=torch.float32)
    k = 20_000_002
    assert r[0].item() == pytest.approx(1 / k, rel=1e-6)
    assert s[0].item() == pytest.approx(1)
    assert bool((r[1:] >= r[:-1]).all())


@pytest.mark.parametrize(("bad", "error"), [(1, ValueError), (2.0, TypeError), (True, TypeError)])
def test_bad_number_of_classes(bad, error):
    for function in (simplex, certify):
        with pytest.raises(error, match="num_classes"):
            function(bad)


def test_bad_dtype():
    with pytest.raises(TypeError, match="dtype"):
        simplex(3, dtype=torch.int64)


def test_a_matrix_that_no_memory_holds_is_told_what_to_use_instead():
    with pytest.raises(MemoryError, match="separate"):
        simplex(10**7)


@pytest.mark.parametrize("rows", [(0, 9), (3, 7), (8, 9)])
def test_some_rows_have_the_coefficients_of_the_whole(rows):
    for part, whole in zip(coefficients(10, rows=rows), coefficients(10), strict=True):
        assert torch.equal(part, whole[slice(*rows)])
