"""The promise: beside weight, features and their gradients, at most a twentieth of these, and never the logits."""

import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy


class LargestTensor(TorchDispatchMode):
    """Remembers the largest storage that any operation made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.most = max(self.most, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(("batch", "width"), [(64, 32), (32, 64)], ids=["weight side", "logits side"])
def test_no_tensor_is_larger_than_the_gradient(batch, width):
    head = MaxSeparationHead(width, 20_000, bias=False)
    x, target = torch.randn(batch, width, requires_grad=True), torch.randint(20_000, (batch,))
    row = width * 4
    with LargestTensor() as seen:
        fused_cross_entropy(head, x, target).backward()
    assert seen.most <= head.weight.nbytes + row
    with LargestTensor() as seen:
        torch.nn.functional.cross_entropy(head(x), target)
    assert seen.most >= 20_000 * batch * 4  # the test would notice


def peak(step):
    """Bytes that a step held at most beyond those it started with, as torch's allocator tells."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        step()
    events = [event for event in told.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(live)


@pytest.mark.parametrize(("batch", "width"), [(64, 32), (48, 64)], ids=["weight side", "logits side"])
@pytest.mark.parametrize("bias", [False, True])
def test_all_that_is_held_at_once(batch, width, bias):
    head = MaxSeparationHead(width, 100_000, bias=bias)
    x, target = torch.randn(batch, width, requires_grad=True), torch.randint(100_000, (batch,))
    own = head.weight.nbytes + x.nbytes
    taken = peak(lambda: fused_cross_entropy(head, x, target).backward())
    # a bias is a few numbers a class, which count beside features as narrow as these
    assert taken - own <= 2 * own * 0.05 + (8 * head.bias.nbytes if bias else 0)
    head.weight.grad = x.grad = None
    assert peak(lambda: torch.nn.functional.cross_entropy(head(x), target).backward()) - own > own  # the test notices
