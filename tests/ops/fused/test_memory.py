"""The promise: beside weight, features and their gradients, at most a twentieth of these, and never the logits."""

import subprocess
import sys

import pytest
import torch
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


MEASURE = """
import resource, sys, torch
from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
batch, width, num_classes = {batch}, {width}, {num_classes}
small = MaxSeparationHead(width, 3000, bias=False)
fused_cross_entropy(small, torch.randn(batch, width, requires_grad=True), torch.arange(batch)).backward()
head = MaxSeparationHead(width, num_classes, bias=False)
x, target = torch.randn(batch, width, requires_grad=True), torch.randint(num_classes, (batch,))
before = peak()
{loss}.backward()
print((peak() - before - head.weight.nbytes) / (2 * head.weight.nbytes + 2 * x.nbytes))
"""


def overhead(loss, **sizes):
    told = subprocess.run(
        [sys.executable, "-c", MEASURE.format(loss=loss, **sizes)], check=True, capture_output=True, text=True
    )
    return float(told.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count resident memory otherwise")
@pytest.mark.parametrize(("batch", "width"), [(64, 32), (48, 64)], ids=["weight side", "logits side"])
def test_peak_of_a_whole_process(batch, width):
    sizes = {"batch": batch, "width": width, "num_classes": 200_000}
    assert overhead("fused_cross_entropy(head, x, target)", **sizes) <= 0.05
    assert overhead("torch.nn.functional.cross_entropy(head(x), target)", **sizes) > 0.5
