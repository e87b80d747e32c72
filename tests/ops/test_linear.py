"""Layer and matrix in one buffer are the two steps, in value and in every derivative."""

import pytest
import torch
from torch.nn import functional as F

from maxsep import MaxSeparationHead, simplex
from maxsep.ops import linear, separate, separate_linear


@pytest.fixture
def taken(monkeypatch):
    """Small blocks, so that small batches take the one-buffer path; the list says which calls did."""
    calls = []
    monkeypatch.setattr(linear, "BLOCK", 16)
    function = linear._SeparateLinear

    class Counted:
        @staticmethod
        def apply(*arguments):
            calls.append(len(arguments))
            return function.apply(*arguments)

    monkeypatch.setattr(linear, "_SeparateLinear", Counted)
    return calls


@pytest.mark.parametrize("leading", [(7,), (2, 3), (1,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_two_steps(taken, leading, bias):
    x = torch.randn(*leading, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(29, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(29, dtype=torch.float64, requires_grad=True) if bias else None
    inputs = [x, weight] + ([b] if bias else [])
    result = separate_linear(x, weight, b, 0.3)
    assert taken
    reference = 0.3 * F.linear(x, weight, b) @ simplex(30, dtype=torch.float64)
    torch.testing.assert_close(result, reference)
    g = torch.randn_like(result)
    for ours, theirs in zip(
        torch.autograd.grad(result, inputs, g), torch.autograd.grad(reference, inputs, g), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_derivatives_of_every_order(taken):
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: separate_linear(*a, 0.7), (x, weight, bias))
    assert torch.autograd.gradgradcheck(lambda *a: separate_linear(*a, 0.7), (x, weight, bias))
    assert taken


def test_only_what_is_asked_for_gets_a_gradient(taken):
    head = MaxSeparationHead(5, 30)
    head.weight.requires_grad_(False)
    x = torch.randn(7, 5)
    head(x).square().sum().backward()
    assert taken
    assert head.weight.grad is None
    assert head.bias.grad is not None


def test_layouts(taken):
    head = MaxSeparationHead(5, 30)
    for x in (torch.randn(5, 7).T, torch.randn(7, 10)[:, ::2], torch.randn(1, 5).expand(7, 5)):
        torch.testing.assert_close(head(x), separate(head.features(x)))
    assert len(taken) == 3


@pytest.mark.parametrize(
    "around",
    [
        lambda head, x: torch.func.vmap(head)(x),
        lambda head, x: torch.func.jvp(head, (x,), (x,))[0],
        lambda head, x: torch.compile(head, backend="eager", fullgraph=True)(x),
        lambda head, x: head(x[:0]),
    ],
    ids=["vmap", "jvp", "compile", "empty"],
)
def test_transformed_calls_take_the_two_steps(taken, around):
    head = MaxSeparationHead(5, 30)
    x = torch.randn(7, 5)
    result = around(head, x)
    assert not taken
    expected = separate(head.features(x), head.radius)
    torch.testing.assert_close(result, expected[: len(result)])


def test_autocast_takes_the_two_steps(taken):
    head, x = MaxSeparationHead(5, 30), torch.randn(7, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(x).dtype == torch.float32
    assert not taken


def test_large_batch_for_real():
    head, x = MaxSeparationHead(16, 20_000, radius=0.1), torch.randn(40, 16, requires_grad=True)
    assert linear._in_one_buffer(x, head.weight, head.bias)
    y = torch.randint(20_000, (40,))
    wanted = [x, head.weight, head.bias]
    ours = torch.autograd.grad(F.cross_entropy(head(x), y), wanted)
    theirs = torch.autograd.grad(F.cross_entropy(separate(head.features(x), 0.1), y), wanted)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
