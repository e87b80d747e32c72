"""The short way and the operator: the same values and derivatives, and each where it belongs."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import CustomOpDef
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy
from maxsep.ops import linear, padding, row_cross_entropy, triton_householder, triton_scan
from maxsep.ops.eager import with_derivative

pytest.importorskip("triton", reason="no Triton for this platform")
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda runs these compiled"),
]


@pytest.fixture
def called(monkeypatch):
    """The names of the operators that were called."""
    names, call = [], CustomOpDef.__call__
    monkeypatch.setattr(CustomOpDef, "__call__", lambda op, *given: names.append(op._name) or call(op, *given))
    return names


@pytest.fixture
def gpu(monkeypatch):
    """A CPU takes the way of a GPU that multiplies in TensorFloat-32."""
    for module in (linear, padding, triton_scan):
        monkeypatch.setattr(module, "takes", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(padding, "_allows_tf32", lambda: True)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def loss_inputs():
    return leaf(3, 16), torch.tensor([1, 2, 9]), torch.rand(10), None, 0.5, 0.1, -100, 7, "mean"


def gradient_inputs():
    z, target, weight, offset, *numbers, _, _ = loss_inputs()
    return torch.ones(()), z, target, weight, offset, torch.ones(3), torch.ones(()), *numbers, 7


ROWS = (lambda: (leaf(3, 9), 0.5, torch.float32, 0), lambda: (leaf(3, 10), 0.5, torch.float32, 7))
PAIRS = {
    "separate": (triton_scan.separate_rows, triton_scan.separate_op, ROWS[0]),
    "adjoint": (triton_scan.adjoint_rows, triton_scan.adjoint_op, ROWS[1]),
    "householder": (triton_householder.householder_rows, triton_householder.householder_op, ROWS[0]),
    "householder, adjoint": (
        triton_householder.householder_adjoint_rows,
        triton_householder.householder_adjoint_op,
        ROWS[1],
    ),
    "padded": (padding.padded_layer, padding.padded_op, lambda: (leaf(9, 4), leaf(9), None)),
    "padded, no bias": (padding.padded_layer, padding.padded_op, lambda: (leaf(9, 4), None, torch.float16)),
    "linear": (padding.linear_into_rows, padding.linear_op, lambda: (leaf(2, 3, 4), leaf(9, 4), leaf(9))),
    "loss": (row_cross_entropy.row_losses, row_cross_entropy.loss_op, loss_inputs),
}
ALL = PAIRS | {"gradient": (row_cross_entropy.row_gradient, row_cross_entropy.gradient_op, gradient_inputs)}


def tensors(found):
    return (found,) if isinstance(found, Tensor) else found


@pytest.mark.parametrize("name", PAIRS)
def test_both_ways_give_the_same(called, name):
    short, op, inputs = PAIRS[name]
    given = inputs()
    ours = tensors(short(*given))
    assert called == []
    theirs = tensors(op(*given))
    assert len(called) == 1
    leaves = [value for value in given if isinstance(value, Tensor) and value.requires_grad]
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    g = torch.randn_like(ours[0])
    found, expected = (torch.autograd.grad(result[0], leaves, g, allow_unused=True) for result in (ours, theirs))
    assert any(gradient is not None for gradient in found)
    for a, b in zip(found, expected, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_recorded_where_no_derivative_is_wanted(called, name):
    short, _, inputs = ALL[name]
    with torch.no_grad():
        found = tensors(short(*inputs()))
    assert not any(result.requires_grad for result in found)
    found = tensors(short(*(value.detach() if isinstance(value, Tensor) else value for value in inputs())))
    assert not any(result.requires_grad for result in found)
    assert called == []


class Other(Tensor):
    """A type of its own, which torch's operators keep."""


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def short(x):
    return triton_scan.separate_rows(x, 0.5, torch.float32, 0)


def under_mode(x):
    with Mode():
        return short(x)


def fake(x):
    with FakeTensorMode() as mode:
        return short(mode.from_tensor(x))


@pytest.mark.parametrize(
    "look",
    [
        under_mode,
        fake,
        lambda x: short(x.as_subclass(Other)),
        lambda x: make_fx(short)(x)(x),
        torch.func.vmap(short),
        lambda x: torch.compile(short, fullgraph=True, backend="aot_eager")(x),
        lambda x: torch.autograd.grad(short(x), x, torch.ones(2, 3, 10), is_grads_batched=True),
    ],
    ids=["mode", "fake", "subclass", "make_fx", "vmap", "compile", "batched gradients"],
)
def test_whoever_looks_on_meets_the_operator(called, look):
    look(leaf(3, 9))
    assert called


def test_parameters_take_the_short_way(called):
    short(nn.Parameter(torch.randn(3, 9))).sum().backward()
    assert called == []


WAYS = [lambda head, x, target: nn.functional.cross_entropy(head(x), target), fused_cross_entropy]


@pytest.mark.parametrize("loss", WAYS, ids=["head", "fused"])
def test_a_training_step_calls_no_operator(gpu, called, loss):
    head, x = MaxSeparationHead(4, 10), leaf(3, 4)
    loss(head, x, torch.tensor([1, 2, 9])).backward()
    assert called == []
    assert all(p.grad is not None for p in (x, *head.parameters()))


@pytest.mark.parametrize(
    ("loss", "names"),
    [(WAYS[0], {"padded", "separate"}), (WAYS[1], {"padded", "row_cross_entropy"})],
    ids=["head", "fused"],
)
def test_a_compiled_step_consists_of_operators(gpu, loss, names):
    head, x, target = MaxSeparationHead(4, 10), leaf(3, 4), torch.tensor([1, 2, 9])
    seen = []

    def look(graph, inputs):
        seen.extend(str(node.target).split(".")[1] for node in graph.graph.nodes if "maxsep" in str(node.target))
        return graph

    value = torch.compile(loss, fullgraph=True, backend=look)(head, x, target)
    assert sorted(seen) == sorted(names)
    leaves = [x, *head.parameters()]
    expected = torch.autograd.grad(loss(head, x, target), leaves)
    for ours, theirs in zip(torch.autograd.grad(value, leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "call",
    [
        triton_scan.separate_rows,
        triton_scan.adjoint_rows,
        triton_householder.householder_rows,
        triton_householder.householder_adjoint_rows,
    ],
    ids=["separate", "adjoint", "householder", "householder, adjoint"],
)
def test_derivatives_of_every_order(call):
    # The maps are linear, so that large steps are exact; the kernels sum in float32 whatever they are given.
    x = torch.randn(2, 16, dtype=torch.float64, requires_grad=True)
    steps = {"eps": 0.25, "atol": 1e-4}
    assert torch.autograd.gradcheck(lambda x: call(x, 0.5, x.dtype, 0), x, **steps)
    assert torch.autograd.gradgradcheck(lambda x: call(x, 0.5, x.dtype, 0), x, **steps)


@pytest.mark.parametrize("name", ["row_losses", "loss_op"])
def test_second_derivatives_are_refused(name):
    given = loss_inputs()
    (gradient,) = torch.autograd.grad(getattr(row_cross_entropy, name)(*given)[0], given[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"first derivatives only.*Leave create_graph out"):
        gradient.sum().backward()


def test_a_function_is_named_after_what_it_does():
    def _triple(x: Tensor) -> Tensor:
        return 3 * x

    op = torch.library.custom_op("maxsep_test::triple", _triple, mutates_args=())
    triple = with_derivative(op, _triple, lambda ctx, g: triple(g), lambda ctx, inputs, output: None)
    x = leaf(2)
    assert triple(x).grad_fn.name() == "tripleBackward"
    (first,) = torch.autograd.grad(triple(x).sum(), x, create_graph=True)
    assert torch.equal(first, torch.full((2,), 3.0))
