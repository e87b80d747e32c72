"""The kernel `maxsep.ops.kernels.weight_gradients` by itself: the gradient of a block of rows, beside float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

triton_form = pytest.importorskip("maxsep.ops.fused.triton_form", reason="no Triton for this platform")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda has the compiled kernels")


def problem(classes, batch, width):
    torch.manual_seed(classes + batch)
    x, rows, target = torch.randn(batch, width), torch.randn(classes, width), torch.randint(classes + 20, (batch,))
    above, a, u, v, shift = torch.rand(5, batch).add(0.5).unbind()
    # above all logits, with the offset or without: no exponential is greater than 1, and float32 sums are exact enough
    lse, offset = above + (x @ rows.T).abs().amax(1) + 1, torch.rand(classes)
    return x, rows, target, (lse, a, u, v, shift), offset, torch.rand(classes)


def exact(x, rows, target, factors, offset, weight, start, scale):
    """The gradients at the rows and the unshifted sums over samples, both times the scale."""
    x, rows = x.double(), rows.double()
    lse, a, u, v, shift = (None if factor is None else factor.double()[:, None] for factor in factors)
    z = scale * x @ rows.T + (0 if offset is None else offset)
    g = a * (z - lse).exp() - u * (target[:, None] - start == torch.arange(len(rows)))
    g = g if v is None else g - v * (1 if weight is None else weight)
    sums = scale * g.sum(0)
    return scale * (g if shift is None else g + shift).T @ x, sums


@interpreted
@given(
    classes=st.integers(1, 140),
    batch=st.integers(1, 140),
    width=st.sampled_from([4, 12, 32]),
    smooth=st.booleans(),
    shifted=st.booleans(),
    offset=st.booleans(),
    weighted=st.booleans(),
    start=st.integers(0, 20),
)
@settings(max_examples=25)
def test_gradient_of_rows_in_their_place(classes, batch, width, smooth, shifted, offset, weighted, start):
    x, rows, target, (lse, a, u, v, shift), added, shares = problem(classes, batch, width)
    factors = lse, a, u, v if smooth else None, shift if shifted else None
    parts = added if offset else None, shares if weighted else None
    expected, sums = exact(x, rows, target, factors, *parts, start, 0.7)
    columns = torch.full((classes,), torch.nan)
    triton_form.weight_gradients(x, rows, rows, target, factors, 0.7, *parts, start, columns)
    torch.testing.assert_close(rows.double(), expected, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(columns.double(), sums, atol=2e-4, rtol=2e-4)


@interpreted
def test_the_rows_before_and_behind_are_left_alone():
    x, rows, target, factors, *_ = problem(70, 30, 8)
    out = torch.full((90, 8), torch.nan)
    triton_form.weight_gradients(x, rows, out[10:80], target, factors, 1.0, None, None, 0, None)
    assert out[:10].isnan().all()
    assert out[80:].isnan().all()
    expected, _ = exact(x, rows, target, factors, None, None, 0, 1.0)
    torch.testing.assert_close(out[10:80].double(), expected, atol=2e-4, rtol=2e-4)


@interpreted
def test_rows_of_more_than_a_processor_holds_are_not_taken():
    assert triton_form.classes_at_once(torch.empty(1, triton_form.MOST_WIDTH)) > 0
    assert triton_form.classes_at_once(torch.empty(1, triton_form.MOST_WIDTH + 1)) == 0
