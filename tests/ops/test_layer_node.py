"""One node for layer and map: the values and derivatives of the functions that it is made of."""

import pytest
import torch
from torch.nn import functional as F

from maxsep import simplex
from maxsep.ops import layer_node, linear, padding, separate_linear, triton_scan
from maxsep.ops.row_cross_entropy import HELD

pytest.importorskip("triton", reason="no Triton for this platform")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda runs these compiled")


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    """A CPU takes the way of a GPU that multiplies in TensorFloat-32."""
    torch.manual_seed(0)
    for module in (linear, padding, triton_scan):
        monkeypatch.setattr(module, "takes", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(padding, "_allows_tf32", lambda: True)


def in_parts(monkeypatch):
    monkeypatch.setattr(layer_node, "_is_one_node", lambda *given: False)


def head_loss(x, weight, bias):
    return separate_linear(x, weight, bias, 0.5).square().sum()


def householder_loss(x, weight, bias):
    return separate_linear(x, weight, bias, 0.5, "householder").square().sum()


def row_loss(x, weight, bias):
    arguments = (torch.tensor([1, 2, 9]), torch.linspace(1, 2, 10), torch.linspace(0, 1, 10), 0.5, 0.1, -100, "mean")
    return layer_node.linear_then(HELD, x, weight, bias, *arguments)


def inputs(wanted=(True, True, True), bias=True, dtype=torch.float32):
    made = [torch.randn(*shape).to(dtype).requires_grad_(needed) for shape, needed in zip(SHAPES, wanted, strict=True)]
    return made if bias else [*made[:2], None]


SHAPES = ((3, 4), (9, 4), (9,))
LOSSES = pytest.mark.parametrize("loss", [head_loss, householder_loss, row_loss])


@LOSSES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize(
    "wanted", [(True, True, True), (True, False, False), (False, True, False), (True, False, True)]
)
def test_the_same_values_and_gradients(monkeypatch, loss, bias, precision, wanted):
    given, found = inputs(wanted, bias, torch.bfloat16 if precision == "bfloat16" else torch.float32), []
    leaves = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            value = loss(*given)
        found.append((value, *torch.autograd.grad(value, leaves)))
        in_parts(monkeypatch)
    for ours, theirs, leaf in zip(*found, [None, *leaves], strict=True):
        assert torch.equal(ours, theirs)
        assert leaf is None or (ours.dtype == leaf.dtype and ours.shape == leaf.shape)


@LOSSES
def test_it_is_one_node(monkeypatch, loss):
    def nodes():
        seen, left = set(), [loss(*inputs()).grad_fn]
        while left:
            node = left.pop()
            if node is not None and node not in seen:
                seen.add(node)
                left.extend(parent for parent, _ in node.next_functions)
        return {node.name() for node in seen}

    assert "_NodeBackward" in nodes()
    assert not any("padded" in name or "mm" in name for name in nodes())
    in_parts(monkeypatch)
    assert {"paddedBackward", "AddmmBackward0"} <= nodes()


@pytest.mark.parametrize("basis", ["recursive", "householder"])
def test_a_head_of_more_dimensions(basis):
    x, weight, bias = torch.randn(2, 3, 4, requires_grad=True), *inputs()[1:]
    result = separate_linear(x, weight, bias, 0.5, basis)
    expected = 0.5 * F.linear(x, weight, bias) @ simplex(10, basis=basis)
    torch.testing.assert_close(result, expected)
    g = torch.randn_like(result)
    for ours, theirs in zip(*(torch.autograd.grad(y, [x, weight, bias], g) for y in (result, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, True)])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("loss", [head_loss, householder_loss])
def test_second_derivatives(monkeypatch, loss, wanted, autocast):
    given, found = inputs(wanted), []
    leaves = [tensor for tensor in given if tensor.requires_grad]
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(*given)
        first = torch.autograd.grad(value, leaves, create_graph=True)  # where autocast is off
        found.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)))
        in_parts(monkeypatch)
    for ours, theirs in zip(*found, strict=True):  # in 16 bits what comes by several ways is added up in another order
        assert (ours - theirs).abs().max() <= (5e-3 if autocast else 1e-6) * theirs.abs().max()


def test_second_derivatives_of_a_layer_that_was_frozen_meanwhile():
    x, weight, bias = inputs()
    (expected,) = torch.autograd.grad(head_loss(x, weight, bias), x)
    value = head_loss(x, weight, bias)
    weight.requires_grad_(False)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    torch.testing.assert_close(gradient, expected)


def test_second_derivatives_of_the_loss_are_refused():
    given = inputs()
    for leaf in given:
        (gradient,) = torch.autograd.grad(row_loss(*given), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match=r"first derivatives only.*Leave create_graph out"):
            gradient.sum().backward()


@LOSSES
def test_many_gradients_at_once(monkeypatch, loss):
    given, g = inputs(), torch.randn(5)
    ours = torch.autograd.grad(loss(*given), given, g, is_grads_batched=True)
    in_parts(monkeypatch)
    for a, b in zip(ours, torch.autograd.grad(loss(*given), given, g, is_grads_batched=True), strict=True):
        torch.testing.assert_close(a, b)
