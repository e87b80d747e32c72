"""The promise: beside weight, features and their gradients, at most a twentieth of these, and never the logits."""

import gc
import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy
from maxsep.ops.fused import in_chunks, row_losses, torch_form
from maxsep.ops.fused.chunks import OWN_LEAST
from maxsep.ops.fused.torch_form import sum_of_rows


class LargestTensor(TorchDispatchMode):
    """Remembers the largest storage that any operation made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.most = max(self.most, leaf.untyped_storage().nbytes())
        return result


@pytest.fixture(params=["recursive", "householder"])
def basis(request):
    return request.param


@pytest.mark.parametrize(("batch", "width"), [(64, 32), (32, 64)], ids=["weight side", "logits side"])
def test_no_tensor_is_larger_than_the_gradient(batch, width, basis):
    head = MaxSeparationHead(width, 20_000, bias=False, basis=basis)
    x, target = torch.randn(batch, width, requires_grad=True), torch.randint(20_000, (batch,))
    row = width * 4
    with LargestTensor() as seen:
        fused_cross_entropy(head, x, target).backward()
    assert seen.most <= head.weight.nbytes + (row if basis == "recursive" else 0)
    with LargestTensor() as seen:
        torch.nn.functional.cross_entropy(head(x), target)
    assert seen.most >= 20_000 * batch * 4  # the test would notice


def allocations(step):
    """Bytes that a step took (or gave back, below zero), in their order, as torch's allocator tells."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        step()
    events = [event for event in told.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def peak(step):
    """Bytes that a step held at most beyond those it started with."""
    return max(itertools.accumulate(allocations(step)))


@pytest.mark.parametrize(("batch", "width"), [(64, 32), (48, 64)], ids=["weight side", "logits side"])
@pytest.mark.parametrize("bias", [False, True])
def test_all_that_is_held_at_once(batch, width, bias, basis):
    head = MaxSeparationHead(width, 100_000, bias=bias, basis=basis)
    x, target = torch.randn(batch, width, requires_grad=True), torch.randint(100_000, (batch,))
    own = head.weight.nbytes + x.nbytes
    taken = peak(lambda: fused_cross_entropy(head, x, target).backward())
    # a bias is a few numbers a class, which count beside features as narrow as these
    assert taken - own <= 2 * own * 0.05 + (8 * head.bias.nbytes if bias else 0)
    head.weight.grad = x.grad = None
    assert peak(lambda: torch.nn.functional.cross_entropy(head(x), target).backward()) - own > own  # the test notices


def problem(num_classes, batch, width, dtype):
    torch.manual_seed(0)
    x = torch.randn(batch, width).to(dtype).requires_grad_()
    weight = torch.randn(num_classes - 1, width).to(dtype).requires_grad_()
    return x, weight, torch.randint(num_classes, (batch,))


def test_carries_have_no_gradient_in_memory():
    x, weight, target = problem(5_000, 64, 52, torch.float32)
    carries = -(-5_000 // 256) * 52 * 4
    taken = allocations(lambda: row_losses(x, weight, target)[0].sum().backward())
    assert weight.nbytes < max(taken)
    assert carries not in taken  # those of the forward pass were cut from one block more


def test_the_sum_of_rows_makes_no_wide_copy_of_the_weight():
    weight = torch.ones(100_000, 16, dtype=torch.bfloat16)
    assert max(allocations(lambda: sum_of_rows(weight, torch.float32))) < weight.nbytes / 8
    assert max(allocations(lambda: weight.sum(0, dtype=torch.float32))) > weight.nbytes  # the test notices


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda has the compiled kernels")
def test_joined_kernels_take_nothing_of_the_weights_size_beside_its_gradient():
    pytest.importorskip("triton", reason="no Triton for this platform")
    x, weight, target = problem(10_000, 32, 32, torch.float32)
    options = {"separate": True, "basis": "householder", "form": "triton"}
    taken = allocations(lambda: row_losses(x, weight, target, **options)[0].sum().backward())
    large = [size for size in taken if size > 0.05 * weight.nbytes]
    assert large == [weight.nbytes]
    # too few for a tail: the scratch of the last chunks lies behind the gradient
    x, weight, target = problem(2_000, 32, 32, torch.float32)
    taken = allocations(lambda: row_losses(x, weight, target, **options)[0].sum().backward())
    assert weight.nbytes < max(taken) <= weight.nbytes + OWN_LEAST["cpu"]


def test_the_wide_sum_is_gone_before_the_adjoint(monkeypatch):
    x, weight, target = problem(500, 70, 51, torch.bfloat16)
    adjoint, product, alive = torch_form.adjoint_, in_chunks.product, {}

    def wide_sums():
        return sum(
            type(o) is torch.Tensor and o.shape == x.shape and o.dtype == torch.float32 for o in gc.get_objects()
        )

    def noting(name, function):
        return lambda *given: alive.update({name: wide_sums()}) or function(*given)

    monkeypatch.setattr(torch_form, "adjoint_", noting("adjoint", adjoint))
    monkeypatch.setattr(in_chunks, "product", noting("product", product))
    row_losses(x, weight, target)[0].sum().backward()
    assert alive == {"product": 1, "adjoint": 0}
