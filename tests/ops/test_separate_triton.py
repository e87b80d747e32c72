"""The kernel of `separate` is the same map as the matrix: here in Triton's interpreter, on a GPU in tests/cuda."""

import importlib
import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad

from maxsep import MaxSeparation, separate, simplex
from maxsep.ops import adjoint, separate_triton
from maxsep.ops.separate_triton import Tile, choose_tile, has_triton_kernel, split_classes

pytestmark = pytest.mark.usefixtures("fresh", "interpreted")


def error(actual, reference):
    return ((actual.double() - reference).abs().max() / reference.abs().max()).item() if reference.numel() else 0.0


def check(x, radius=0.5):
    """Check both directions against float64; the adjoint takes a gradient that lies as the result does."""
    result = separate_triton.separate_triton(x, radius, torch.float32)
    assert result.shape == (*x.shape[:-1], x.shape[-1] + 1)
    assert error(result, separate(x.double(), radius)) <= 1e-6
    g = torch.randn_like(result)
    gradient = separate_triton.separate_triton(g, radius, x.dtype, is_adjoint=True)
    assert gradient.shape == x.shape
    off = (gradient.double() - adjoint(g.double(), radius)).abs()
    assert off.numel() == 0 or off.max() <= 1e-6 * g.abs().max()
    return result, gradient


@pytest.mark.parametrize("num_classes", [2, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("tile", [None, Tile(2, 16, 1, 1, 1), Tile(2, 16, 1, 1, 64)])
def test_tiles_and_shared_rows(monkeypatch, num_classes, tile):
    if tile is not None:
        monkeypatch.setattr(separate_triton, "choose_tile", lambda *_: tile)
        spans = (2, 32) if tile.programs > 1 and num_classes > 32 else (1, 16 * -(-num_classes // 16))
        monkeypatch.setattr(separate_triton, "split_classes", lambda *_: (-(-num_classes // spans[1]), spans[1]))
    check(torch.randn(3, num_classes - 1))


def test_layouts(laid_out):
    check(laid_out)


def test_a_transposed_weight_stays_transposed():
    result, gradient = check(torch.randn(40, 33).T)
    assert result.T.is_contiguous()
    assert gradient.T.is_contiguous()


def test_hard_rows():
    """The sum of later gradients must not cancel where few classes are left, nor in rows shared by programs."""
    for width in (2_000, 40_000):
        result = separate_triton.separate_triton(torch.ones(1, width), 1.0, torch.float32, is_adjoint=True)
        assert result.abs().max() <= 1e-6
        check(1e4 * (1 - 2 * (torch.arange(width) % 2)).float()[None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    x = (10 + torch.randn(2, 9_000)).to(dtype)  # long enough for loads ahead
    result = separate_triton.separate_triton(x, 1.0, dtype)
    assert result.dtype == dtype
    assert error(result, separate(x.double())) <= torch.finfo(dtype).eps  # the interpreter cuts off, a GPU rounds
    assert error(separate_triton.separate_triton(x, 1.0, torch.float32), separate(x.double())) <= 1e-6


def test_gradients_of_every_order_and_many_at_once():
    x, g = torch.randn(3, 20, requires_grad=True), torch.randn(3, 21, requires_grad=True)
    matrix = 0.7 * simplex(21)
    result = separate_triton.separate_triton(x, 0.7, torch.float32)
    (first,) = torch.autograd.grad(result, x, g, create_graph=True)
    torch.testing.assert_close(first, g @ matrix.T)
    (second,) = torch.autograd.grad(first, g, x, create_graph=True)
    torch.testing.assert_close(second, x @ matrix)
    torch.testing.assert_close(torch.autograd.grad(second, x, g, retain_graph=True)[0], g @ matrix.T)
    many = torch.randn(4, 3, 21)
    (gradients,) = torch.autograd.grad(result, x, many, is_grads_batched=True)
    torch.testing.assert_close(gradients, many @ matrix.T)


def test_the_operator_is_registered_as_torch_wants_it():
    for x in (torch.randn(3, 9), torch.randn(9, 3).T, torch.randn(2, 3, 10), torch.randn(3, 10).bfloat16()):
        for is_adjoint in (False, True):
            torch.library.opcheck(torch.ops.maxsep.separate.default, (x, 0.5, x.dtype, is_adjoint))


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiles_without_graph_breaks(monkeypatch, backend):
    monkeypatch.setattr(importlib.import_module("maxsep.ops.separate"), "has_triton_kernel", lambda x: True)
    compiled = torch.compile(lambda x: separate(2 * x, 0.5) + 1, fullgraph=True, backend=backend)
    for batch in (3, 5) if backend == "aot_eager" else (3,):
        x, g = torch.randn(batch, 30, requires_grad=True), torch.randn(batch, 31)
        result = compiled(x)
        torch.testing.assert_close(result, x @ simplex(31) + 1)
        torch.testing.assert_close(torch.autograd.grad(result, x, g)[0], g @ simplex(31).T)


def test_tiles():
    assert choose_tile(1024, 4_096, 2, False).STAGES == 1
    assert choose_tile(3, 10, 4, False)[:2] == (4, 16)
    assert choose_tile(512, 1_000, 4, True)[:2] == (64, 32)
    tile = choose_tile(2, 1_000_000, 2, False)
    splits, span = split_classes(2, 1_000_000, tile)
    assert span % tile.BLOCK == 0
    assert (splits - 1) * span < 1_000_000 <= splits * span
    assert split_classes(1024, 1_000_000, tile)[0] == 1


def test_what_the_kernel_serves(fake_gpu):
    assert all(has_triton_kernel(fake_gpu(4, 9, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert not has_triton_kernel(fake_gpu(4, 9, dtype=torch.float64))
    assert not has_triton_kernel(fake_gpu(1, 2**30))  # classes are counted in 32 bits
    assert not has_triton_kernel(torch.empty(4, 999))
    with forward_ad.dual_level():
        assert not has_triton_kernel(fake_gpu(4, 9))


def test_exports_as_plain_operations(fake_gpu):
    x = fake_gpu(4, 9)
    with x.fake_mode:
        program = torch.export.export(MaxSeparation(10), (x,), strict=False)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any("cumsum" in target for target in targets)
    assert not any("maxsep" in target for target in targets)


def test_imports_without_triton():
    code = "import sys; sys.modules['triton'] = None; import maxsep, torch; print(maxsep.separate(torch.ones(2)).shape)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "torch.Size([3])\n"
