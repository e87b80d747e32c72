"""Operators of a product and its adjoint; their kernels are tested where they are launched."""

import pytest
import torch

from maxsep.ops.adjoint_pair import adjoint_like, adjoint_pair, padded_empty, separate_like

MATRIX = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)


def multiply(x, out, k, radius, adjoint):
    """A product with a small dense matrix, in the place of a kernel."""
    if adjoint:
        out.zero_()
        out[..., :k] = (radius * x.double() @ MATRIX.T).to(out.dtype)
    else:
        out.copy_(radius * x[..., :k].double() @ MATRIX)


PAIR = adjoint_pair("test_product", multiply)


@pytest.mark.parametrize("padding", [0, 2])
def test_each_is_the_gradient_of_the_other(padding):
    x = torch.randn(4, 2 + padding, dtype=torch.float64, requires_grad=True)
    g = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    for call, given in ((PAIR.rows, x), (PAIR.adjoint_rows, g), (PAIR.op, x), (PAIR.adjoint_op, g)):
        both = (lambda v, call=call: call(v, 0.5, torch.float64, padding), given)
        assert torch.autograd.gradcheck(*both)
        assert torch.autograd.gradgradcheck(*both)


def test_the_gradient_has_the_precision_of_the_input():
    x = torch.randn(4, 2, requires_grad=True)
    result = PAIR.rows(x, 2.0, torch.bfloat16, 0)
    assert result.dtype == torch.bfloat16
    result.sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, (2 * MATRIX.sum(1)).float().expand(4, 2))


def test_compilers_and_transforms_see_the_operator():
    x = torch.randn(5, 4, 2, dtype=torch.float64)
    expected = 0.5 * x @ MATRIX
    for call in (PAIR.op, PAIR.rows):
        mapped = torch.func.vmap(lambda v, call=call: call(v, 0.5, torch.float64, 0), in_dims=1, out_dims=1)
        torch.testing.assert_close(mapped(x), expected)
    torch.library.opcheck(PAIR.op, (x[0].requires_grad_(), 0.5, torch.float64))
    torch.library.opcheck(PAIR.adjoint_op, (expected[0].detach().requires_grad_(), 0.5, torch.float64, 2))


def test_nothing_is_launched_for_nothing():
    assert PAIR.rows(torch.empty(0, 2), 1.0, torch.float32, 0).shape == (0, 3)
    assert PAIR.adjoint_rows(torch.empty(0, 3), 1.0, torch.float32, 0).shape == (0, 2)


def test_results_lie_as_the_input_does():
    across = torch.empty(9, 4).T
    assert separate_like(across, 1.0, torch.float32).stride() == (1, 4)
    assert adjoint_like(across, 1.0, torch.float32).stride() == (1, 4)
    assert separate_like(torch.empty(4, 9), 1.0, torch.float32).stride() == (10, 1)


@pytest.mark.parametrize(("dtype", "stride"), [(torch.float32, 12), (torch.bfloat16, 16)])
def test_rows_of_a_gradient_start_at_wide_words(dtype, stride):
    gradient = adjoint_like(torch.empty(4, 10), 1.0, dtype)
    assert (gradient.shape, gradient.stride()) == ((4, 9), (stride, 1))
    assert padded_empty(torch.empty(0), (3, 8), dtype).is_contiguous()
