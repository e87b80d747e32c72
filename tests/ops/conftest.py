"""Layouts of a matrix in memory, kernels in Triton's interpreter, and tensors that pretend to be on a GPU."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

LAYOUTS = {
    "transposed": lambda: torch.randn(9, 6).t(),
    "transposed, large": lambda: torch.randn(70, 40).t(),
    "strided": lambda: torch.randn(6, 18)[:, ::2],
    "expanded": lambda: torch.randn(1, 9).expand(6, 9),
    "constant": lambda: torch.randn(6, 1).expand(6, 9),
    "sliced": lambda: torch.randn(6, 20)[:, 3:12],
    "moved": lambda: torch.randn(2, 9, 3).movedim(1, -1),
    "one row": lambda: torch.randn(9),
    "no rows": lambda: torch.randn(0, 9),
    "bare": lambda: torch.randn(4 * 16 - 1).as_strided((4, 15), (16, 1)),  # the storage ends with the last number
}


@pytest.fixture(params=LAYOUTS)
def laid_out(request):
    """A tensor of outputs in some layout."""
    torch.manual_seed(0)
    return LAYOUTS[request.param]()


@pytest.fixture
def interpreted(monkeypatch):
    """Let CPU tensors in float32 take the kernels, in Triton's interpreter; its 16-bit products are wrong."""
    pytest.importorskip("triton", reason="no Triton for this platform")
    if torch.cuda.is_available():
        pytest.skip("tests/cuda runs these compiled")
    from triton.runtime.interpreter import InterpreterBuilder

    from maxsep.ops.linear_cross_entropy import tile_kernels

    load = InterpreterBuilder.create_masked_load

    def load_undefined(self, pointers, mask, other, *rest, **options):
        loaded = load(self, pointers, mask, other, *rest, **options)
        if other is None and loaded.data.dtype.kind == "f":  # on a GPU such lanes hold anything, here they would be 0
            loaded.data[~mask.data] = np.nan
        return loaded

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", load_undefined)
    monkeypatch.setattr("maxsep.ops.linear_cross_entropy.over_samples.has_triton_kernel", _is_single)
    monkeypatch.setattr("maxsep.ops.linear_cross_entropy.over_classes.fused_kernels", lambda *_, **__: tile_kernels)
    # padding of rows holds anything, and rows beyond the batch have no logarithm: kernels read these and store neither
    with np.errstate(divide="ignore", invalid="ignore"):
        yield


def _is_single(x):
    return x.dtype == torch.float32


@pytest.fixture
def fake_gpu():
    """Make a tensor that says it is on a GPU: enough to see what would be chosen there."""

    def make(*shape, dtype=torch.float32):
        with FakeTensorMode():
            return torch.empty(shape, dtype=dtype, device="cuda")

    return make
