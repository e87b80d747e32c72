"""Two ways to one implementation: the operator for whoever looks on, a short one where nobody does."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.ops.fused import chunks, row_losses


def problem():
    torch.manual_seed(0)
    x, weight = torch.randn(6, 3, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    offset = torch.randn(9, requires_grad=True)
    return x, weight, torch.tensor([0, 8, 3, 3, 1, 7]), offset, torch.rand(9)


def by_operator(*given):
    return torch.ops.maxsep.row_losses(*given, 1.0, "weight", 0, "torch", True)[:2]


def short(*given):
    return row_losses(*given, smoothing=True)


def step(losses, given):
    nll, smooth = losses(*given)
    (nll.sum() + 2 * smooth.sum()).backward()


def operators(call):
    """Names of our operators that a call meets, in their order."""
    with profile(activities=[ProfilerActivity.CPU]) as told:
        call()
    return [event.name for event in told.events() if event.name.startswith("maxsep::")]


def test_both_ways_give_the_same_bits():
    found = []
    for losses in (short, by_operator):
        given = problem()
        step(losses, given)
        found.append([*losses(*given), *(given[i].grad for i in (0, 1, 3))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_nobody_looks_on():
    given = problem()
    assert operators(lambda: step(short, given)) == []
    assert operators(lambda: step(by_operator, given)) == ["maxsep::row_losses"]  # the test would notice


class Looking(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["compiler", "mode"])
def test_somebody_looks_on(how):
    given = problem()

    def losses(*given):
        if how == "compiler":
            return torch.compile(short, fullgraph=True, backend="aot_eager")(*given)
        return short(*given)

    def watched():
        if how == "compiler":
            step(losses, given)
        else:
            with Looking():
                step(losses, given)

    assert set(operators(watched)) == {"maxsep::row_losses", "maxsep::row_losses_backward"}


@pytest.mark.parametrize("options", [{"basis": "householder"}, {"basis": "recursive"}, {"separate": False}], ids=str)
def test_one_graph_serves_every_batch(options):
    _, weight, _, offset, shares = problem()
    weight = torch.randn(8 + ("separate" in options), 3, requires_grad=True)
    counter = CompileCounterWithBackend("aot_eager")

    def losses(x, target):
        nll, smooth = row_losses(x, weight, target, offset, shares, smoothing=True, **options)
        return nll.sum() + 2 * smooth.sum()

    torch._dynamo.reset()
    compiled = torch.compile(losses, backend=counter, fullgraph=True, dynamic=True)
    for batch in (6, 7, 9, 12):
        x, target = torch.randn(batch, 3, requires_grad=True), torch.arange(batch) % 9
        values = compiled(x, target), losses(x, target)
        for ours, theirs in zip(*(torch.autograd.grad(value, (x, weight)) for value in values), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert counter.frame_count <= 2  # one to spare


@pytest.mark.parametrize("num_classes", [9, 3_000], ids=["one chunk", "several"])
def test_a_batch_that_is_left_open_may_be_smaller_than_the_features(num_classes, monkeypatch):
    monkeypatch.setitem(chunks.OWN_LEAST, "cpu", 1 << 12)
    weight = torch.randn(num_classes - 1, 16, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, target: row_losses(x, weight, target)[0].sum(), backend="aot_eager")
    for batch in (4, 7, 2):  # the matrix is applied to the logits
        x, target = torch.randn(batch, 16, requires_grad=True), torch.arange(batch)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(target, 0)
        values = compiled(x, target), row_losses(x, weight, target)[0].sum()
        for ours, theirs in zip(*(torch.autograd.grad(value, (x, weight)) for value in values), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("losses", [short, by_operator])
def test_no_second_derivatives_either_way(losses):
    x, *rest = problem()
    (gradient,) = torch.autograd.grad(losses(x, *rest)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        gradient.sum().backward()


def test_a_batch_of_gradients():
    x, *rest = problem()
    nll, _ = short(x, *rest)
    upstream = torch.eye(len(x))
    (together,) = torch.autograd.grad(nll, x, upstream, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(nll, x, row, retain_graph=True)[0] for row in upstream]
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.mark.parametrize("wants", [[True, True, True], [False, True, False]])
@pytest.mark.parametrize("side", ["weight", "logits", "householder"])
def test_a_compiler_is_told_how_results_lie(wants, side):
    x, weight, *rest = problem()
    layer = [x.detach().T.contiguous().T, weight.detach().T.contiguous().T, *(t.detach() for t in rest)]
    options = (1.0, side, 0, "torch")
    *_, lse, carries = torch.ops.maxsep.row_losses(*layer, *options, True)
    torch.library.opcheck(torch.ops.maxsep.row_losses, (*layer, *options, True), test_utils="test_faketensor")
    torch.library.opcheck(
        torch.ops.maxsep.row_losses_backward,
        (*layer, *options, torch.rand(6), torch.rand(6), lse, carries, wants),
        test_utils="test_faketensor",
    )


class Losses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(49, 16))

    def forward(self, x, target):
        return row_losses(x, self.weight, target)[0]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("batch", [9, 40])
def test_an_exported_program_serves_any_batch(batch, strict):
    """Fewer samples than features, or more, are gone through in different ways otherwise."""
    torch.manual_seed(0)
    losses, dim = Losses(), torch.export.Dim("batch")
    given = torch.randn(batch, 16), torch.randint(50, (batch,))
    shapes = {"x": {0: dim}, "target": {0: dim}}
    program = torch.export.export(losses, given, dynamic_shapes=shapes, strict=strict).module()
    for other in (2, 15, 16, 100):
        given = torch.randn(other, 16), torch.randint(50, (other,))
        torch.testing.assert_close(program(*given), losses(*given))
