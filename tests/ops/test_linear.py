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
    x = torch.randn(*leading, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(29, 9, dtype=torch.float64, requires_grad=True)
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
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: separate_linear(*a, 0.7), (x, weight, bias))
    assert torch.autograd.gradgradcheck(lambda *a: separate_linear(*a, 0.7), (x, weight, bias))
    assert taken


def test_only_what_is_asked_for_gets_a_gradient(taken):
    head = MaxSeparationHead(9, 30)
    head.weight.requires_grad_(False)
    x = torch.randn(7, 9)
    head(x).square().sum().backward()
    assert taken
    assert head.weight.grad is None
    assert head.bias.grad is not None


def test_layouts(taken):
    head = MaxSeparationHead(9, 30)
    for x in (torch.randn(9, 7).T, torch.randn(7, 18)[:, ::2], torch.randn(1, 9).expand(7, 9)):
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
    head = MaxSeparationHead(9, 30)
    x = torch.randn(7, 9)
    result = around(head, x)
    assert not taken
    expected = separate(head.features(x), head.radius)
    torch.testing.assert_close(result, expected[: len(result)])


def test_autocast_takes_the_two_steps(taken):
    head, x = MaxSeparationHead(9, 30), torch.randn(7, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(x).dtype == torch.float32
    assert not taken


def test_large_batch_for_real():
    head, x = MaxSeparationHead(64, 20_000, radius=0.1), torch.randn(40, 64, requires_grad=True)
    assert linear._in_one_buffer(x, head.weight)
    y = torch.randint(20_000, (40,))
    wanted = [x, head.weight, head.bias]
    ours = torch.autograd.grad(F.cross_entropy(head(x), y), wanted)
    theirs = torch.autograd.grad(F.cross_entropy(separate(head.features(x), 0.1), y), wanted)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def both_sides(leading, features, num_classes, dtype=torch.float64, bias=True):
    x = torch.randn(*leading, features, dtype=dtype, requires_grad=True)
    weight = torch.randn(num_classes - 1, features, dtype=dtype, requires_grad=True)
    b = torch.randn(num_classes - 1, dtype=dtype, requires_grad=True) if bias else None
    return x, weight, b


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(30,), (5, 6)])
def test_many_samples_and_few_features_put_the_matrix_on_the_weight(monkeypatch, leading, bias):
    monkeypatch.setattr(linear, "BLOCK", 16)
    x, weight, b = both_sides(leading, 4, 20, bias=bias)
    assert linear._weight_is_smaller(x, weight)
    result = separate_linear(x, weight, b, 0.3)
    reference = 0.3 * F.linear(x, weight, b) @ simplex(20, dtype=torch.float64)
    torch.testing.assert_close(result, reference)
    inputs, g = [x, weight] + ([b] if bias else []), torch.randn_like(result)
    ours, theirs = (torch.autograd.grad(y, inputs, g, retain_graph=True) for y in (result, reference))
    for a, c in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, c)
    assert torch.autograd.gradgradcheck(lambda *a: separate_linear(*a, None, 0.7), (x[:2], weight))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(30,), (5, 6), (3,), (), (0,)])
def test_the_householder_basis_on_either_side(taken, leading, bias):
    x, weight, b = both_sides(leading, 4, 20, bias=bias)
    assert linear._weight_is_smaller(x, weight) == (leading in ((30,), (5, 6)))
    result = separate_linear(x, weight, b, 0.3, "householder")
    assert not taken  # the running sum is the other basis's
    reference = 0.3 * F.linear(x, weight, b) @ simplex(20, basis="householder", dtype=torch.float64)
    torch.testing.assert_close(result, reference)
    inputs, g = [x, weight] + ([b] if bias else []), torch.randn_like(result)
    ours, theirs = (torch.autograd.grad(y, inputs, g, retain_graph=True) for y in (result, reference))
    for a, c in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, c)


def test_derivatives_of_every_order_in_the_householder_basis():
    inputs = both_sides((4,), 5, 8)
    assert torch.autograd.gradcheck(lambda *a: separate_linear(*a, 0.7, "householder"), inputs)
    assert torch.autograd.gradgradcheck(lambda *a: separate_linear(*a, 0.7, "householder"), inputs)


@pytest.mark.parametrize("samples", [2_000, 20])
def test_either_side_keeps_the_precision_of_float32(samples):
    x, weight, b = both_sides((samples,), 64, 5_000, torch.float32)
    assert linear._weight_is_smaller(x, weight) == (samples > 64)
    result, g = separate_linear(x, weight, b, 1.0), torch.randn(samples, 5_000)
    wide = [t.detach().double().requires_grad_() for t in (x, weight, b)]
    reference = separate(F.linear(*wide), impl="scan")
    assert ((result - reference).abs().max() / reference.abs().max()).item() <= 2e-6
    ours, theirs = torch.autograd.grad(result, (x, weight, b), g), torch.autograd.grad(reference, wide, g.double())
    for a, c in zip(ours, theirs, strict=True):
        assert ((a - c).abs().max() / c.abs().max()).item() <= 5e-6


def test_the_side_is_chosen_by_what_moves_fewer_bytes():
    def chosen(samples, features, num_classes=1_000, dtype=torch.float32):
        x, weight, _ = both_sides((samples,), features, num_classes, dtype)
        return linear._weight_is_smaller(x, weight)

    assert chosen(1024, 512)
    assert not chosen(512, 512)
    assert not chosen(1024, 2048)
    assert not chosen(128, 64, 10)  # too small to matter
    assert not chosen(1024, 512, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not chosen(1024, 512)
