"""A compiled kernel is used again only for arguments for which Triton would compile the same one."""

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="no Triton for this platform")

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime import jit
from triton.tools.tensor_descriptor import TensorDescriptor

from maxsep.ops import launch as module
from maxsep.ops.launch import _specialisation, launch

known = pytest.mark.skipif(not hasattr(jit, "native_specialize_impl"), reason="another Triton than those known")


def arguments():
    store = torch.zeros(256, dtype=torch.int8)
    tensors = [store[start : start + 64].view(dtype) for start in (0, 16, 8) for dtype in (torch.int64, torch.bfloat16)]
    matrix = torch.zeros(64, 64, dtype=torch.float16)
    blocks = [TensorDescriptor(matrix, [64, 64], [64, 1], [rows, 16]) for rows in (16, 32)]
    edges = [-(2**31) - 1, -(2**31), -16, -1, 0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**31 + 16, 2**40, 2**40 + 1]
    return [*edges, None, 1.0, 16.0, 0.5, *tensors, *blocks]


@known
@pytest.mark.parametrize("specialise", [True, False])
def test_as_fine_as_triton(specialise):
    backend = make_backend(GPUTarget("cuda", 90, 32))

    def by_triton(argument):
        return jit.native_specialize_impl(backend, argument, False, specialise, specialise)

    for a, b in itertools.combinations(arguments(), 2):
        if _specialisation(a) == _specialisation(b):
            assert by_triton(a) == by_triton(b), (a, b)


class Kernel:
    """Counts what would be compiled, and how it is launched afterwards."""

    arg_names = ("x", "size", "BLOCK")
    packed_metadata = ()

    def __init__(self):
        self.fn, self.compiled, self.launched = object(), [], []

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            (self.compiled if constants else self.launched).append((grid, arguments, constants))
            return self

        return run


@pytest.mark.parametrize("is_known", [True, False])
def test_only_a_known_triton_is_passed_by(monkeypatch, is_known):
    """Triton 3.2, of torch 2.6, takes no constants at this place."""
    monkeypatch.setattr(module, "is_known_triton", lambda: is_known)
    kernel, x = Kernel(), torch.zeros(32)
    for size in (32, 48, 33, 1, 32):
        launch(kernel, (size,), x.device, x, size, BLOCK=16, num_warps=4)
    launch(kernel, (32,), x.device, x, 32, BLOCK=32, num_warps=4)
    if is_known:
        assert [call[1][1] for call in kernel.compiled] == [32, 33, 1, 32]
        assert [call[:2] for call in kernel.launched] == [((48, 1, 1), (x, 48, 16)), ((32, 1, 1), (x, 32, 16))]
    else:
        assert [call[1][1] for call in kernel.compiled] == [32, 48, 33, 1, 32, 32]
