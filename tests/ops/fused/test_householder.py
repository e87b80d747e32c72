"""The class without a row: its factors, the sum it is made of, and its part in loss and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.ops.fused.householder import LastClass, basis_factors
from maxsep.ops.fused.torch_form import last_gradients, last_logits, sum_of_rows


@given(num_classes=st.integers(2, 10**7), radius=st.floats(1e-3, 1e3))
def test_vectors_are_those_of_a_simplex_but_for_their_mean(num_classes, radius):
    k = num_classes - 1
    scale, coefficient = basis_factors(num_classes, radius)
    # columns scale e_i and coefficient (1, ..., 1) of the shifted matrix: all distances are those of the simplex
    side = radius**2 * 2 * num_classes / k
    assert math.isclose(2 * scale**2, side)
    assert math.isclose((scale - coefficient) ** 2 + (k - 1) * coefficient**2, side, rel_tol=1e-9)


@given(rows=st.integers(1, 200), width=st.integers(1, 40), dtype=st.sampled_from([torch.bfloat16, torch.float64]))
def test_the_sum_is_wide(rows, width, dtype):
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = sum_of_rows(weight, wide)
    assert found.dtype == wide
    torch.testing.assert_close(found.double(), weight.double().sum(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("smooth", [False, True])
def test_its_part_is_what_is_missing(smooth):
    """A layer of four rows and the class that their sum makes, against all five logits at once."""
    torch.manual_seed(0)
    x, weight, offset, shares, u, v = (
        torch.randn(shape, dtype=torch.float64) for shape in ((3, 2), (4, 2), 5, 5, 3, 3)
    )
    x, weight, offset = (leaf.requires_grad_() for leaf in (x, weight, offset))
    target = torch.tensor([4, 0, 4])
    scale, coefficient = basis_factors(5, 0.7)
    logits = torch.cat([x @ weight.T * scale, (x @ weight.sum(0))[:, None] * coefficient], 1) + offset
    lse, own, total = logits.logsumexp(1), logits.gather(1, target[:, None])[:, 0], logits @ shares

    alone = last_logits(x.detach(), weight.detach().sum(0), coefficient, offset.detach())
    torch.testing.assert_close(alone, logits[:, 4])
    last = LastClass(alone, 5, target, shares)
    rest, before = logits[:, :4].detach(), torch.where(target < 4, own, 0).detach()
    found = last.merged(rest.logsumexp(1), before, rest @ shares[:4] if smooth else None)
    for ours, theirs in zip(found, (lse, own, total), strict=True):
        assert (ours is None) if theirs is total and not smooth else torch.allclose(ours, theirs)

    value = (u * (lse - own)).sum() + ((v * (lse - total)).sum() if smooth else 0)
    (exact,) = torch.autograd.grad(value, logits, retain_graph=True)
    g, shift = last_gradients(last, lse.detach(), u + v if smooth else u, u, v if smooth else None)
    torch.testing.assert_close(g, exact[:, 4])
    # what reaches the outputs of the layer: that of their own logits, and the same of this class for all
    outputs = scale * (exact[:, :4] + shift[:, None])
    dx, dw = torch.autograd.grad(value, (x, weight))
    torch.testing.assert_close(outputs @ weight.detach(), dx)
    torch.testing.assert_close(outputs.T @ x.detach(), dw)


def test_without_offset_and_class_weights():
    logits = last_logits(torch.ones(1, 2), torch.ones(2), basis_factors(4, 3.0)[1], None)
    torch.testing.assert_close(logits, torch.tensor([2 * basis_factors(4, 3.0)[1]]))
    last = LastClass(logits, 4, torch.tensor([0]), None)
    _, _, total = last.merged(*torch.zeros(3, 1))
    torch.testing.assert_close(total, logits)
    torch.testing.assert_close(
        last.gradient(torch.zeros(1), torch.zeros(1), torch.ones(1), torch.ones(1)), -torch.ones(1)
    )
