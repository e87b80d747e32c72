"""Ways in which a matrix may lie in memory, and what padding promises: the same for every form of the product."""

import math

import pytest
import torch

from maxsep import separate, simplex

LAYOUTS = {
    "transposed": lambda: torch.randn(9, 6).t(),
    "transposed, large": lambda: torch.randn(70, 40).t(),
    "strided": lambda: torch.randn(6, 18)[:, ::2],
    "expanded": lambda: torch.randn(1, 9).expand(6, 9),
    "constant": lambda: torch.randn(6, 1).expand(6, 9),
    "sliced": lambda: torch.randn(6, 20)[:, 3:12],
    "padded": lambda: torch.randn(5, 16)[:, :15],
    "moved": lambda: torch.randn(2, 9, 3).movedim(1, -1),
    "one row": lambda: torch.randn(9),
    "bare": lambda: torch.randn(4 * 16 - 1).as_strided((4, 15), (16, 1)),
}


@pytest.fixture(params=LAYOUTS)
def laid_out(request):
    """A tensor of outputs in some layout."""
    return LAYOUTS[request.param]()


def check_padding(op, adjoint_op, k):
    padding = -k % 8
    for rows in (1, 3):
        x = torch.full((rows, k + padding), math.nan)
        x[:, :k] = torch.randn(rows, k)
        x.requires_grad_()
        result = op(x, 0.5, torch.float32, padding)
        assert torch.equal(result, op(x[:, :k], 0.5, torch.float32))
        for g in (torch.randn(rows, k + 1), torch.randn(k + 1, rows).T, torch.randn(rows, 1).expand(rows, k + 1)):
            (gradient,) = torch.autograd.grad(result, x, g, retain_graph=True)
            assert gradient.shape == x.shape
            assert torch.equal(gradient[:, :k], adjoint_op(g, 0.5, torch.float32))
            assert torch.equal(gradient[:, k:], torch.zeros(rows, padding))


@pytest.fixture(params=[1, 9, 15, 17, 31, 8, 16])
def padding_keeps_its_promise(request):
    """Check that padding behind k outputs is not read and has no gradient, given an operator and its adjoint."""
    return lambda op, adjoint_op: check_padding(op, adjoint_op, request.param)


def check_gradients(basis):
    x = torch.randn(3, 20, requires_grad=True)
    g = torch.randn(3, 21, requires_grad=True)
    matrix = 0.7 * simplex(21, basis=basis)
    (first,) = torch.autograd.grad(separate(x, 0.7, basis=basis, impl="triton"), x, g, create_graph=True)
    torch.testing.assert_close(first, g @ matrix.T)
    (second,) = torch.autograd.grad(first, g, x, create_graph=True)
    torch.testing.assert_close(second, x @ matrix)
    (third,) = torch.autograd.grad(second, x, g)
    torch.testing.assert_close(third, g @ matrix.T)


@pytest.fixture
def gradients_are_those_of_the_matrix():
    """Check the kernel's first, second and third derivatives against the dense matrix of a basis."""
    return check_gradients
