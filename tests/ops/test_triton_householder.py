"""The kernel of the Householder basis is that map: here in Triton's interpreter, on a GPU in tests/cuda."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from maxsep import MaxSeparation, separate, simplex
from maxsep.ops import row_plan, triton_householder, triton_scan
from maxsep.ops.householder import householder_adjoint, separate_householder
from maxsep.ops.row_plan import Layout, Tile
from maxsep.ops.triton_householder import (
    choose_tile,
    householder_adjoint_op,
    householder_op,
    householder_plan,
    householder_rows,
)

pytest.importorskip("triton", reason="no Triton for this platform")
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda runs these compiled"),
]
H = "householder"


@pytest.fixture(params=["whole rows", "tiles", "shared rows"])
def ways(monkeypatch, request):
    """Every way through the kernel with short rows: tiles of 16 classes, by one program or several."""
    if request.param != "whole rows":
        monkeypatch.setattr(triton_householder, "choose_tile", lambda *_: (Tile(2, 16, 1), False))
    monkeypatch.setattr(row_plan, "PROGRAMS", 8 if request.param == "shared rows" else 1)
    monkeypatch.setattr(
        row_plan, "split", lambda programs, classes, block: shared(classes, request.param == "shared rows")
    )
    householder_plan.cache_clear()
    yield request.param
    householder_plan.cache_clear()


def shared(num_classes, many):
    span = 16 if many else -(-num_classes // 16) * 16
    return -(-num_classes // span), span


def error(actual, reference):
    return ((actual.double() - reference).abs().max() / reference.abs().max()).item()


def check(x, radius=0.5):
    """Forward and adjoint against float64; the adjoint gets a gradient laid out like the result."""
    result = separate(x, radius, basis=H, impl="triton")
    assert result.shape == (*x.shape[:-1], x.shape[-1] + 1)
    assert error(result, separate_householder(x.double(), radius)) <= 1e-6
    g = torch.randn_like(result)
    gradient = householder_adjoint_op(g, radius, x.dtype)
    assert gradient.shape == x.shape
    off = (gradient.double() - householder_adjoint(g.double(), radius)).abs().max() / g.abs().max()
    assert off.item() <= 1e-6 * radius
    return result, gradient


@given(st.lists(st.integers(1, 3), max_size=2).map(tuple), st.integers(2, 100), st.floats(0.01, 100))
@settings(max_examples=25)
def test_equals_the_matrix(leading, num_classes, radius):
    torch.manual_seed(num_classes)
    x = torch.randn(*leading, num_classes - 1)
    reference = radius * x.double() @ simplex(num_classes, basis=H, dtype=torch.float64)
    assert error(separate(x, radius, basis=H, impl="triton"), reference) <= 1e-6
    check(x, radius)


@pytest.mark.parametrize("num_classes", [2, 15, 16, 17, 32, 33, 34, 49, 100])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_way_through_a_row(ways, num_classes, rows):
    check(torch.randn(rows, num_classes - 1))
    check(torch.randn(num_classes - 1, rows).T)


@pytest.mark.parametrize("rows", [1, 1024])
def test_long_rows_are_shared_where_they_are_few(rows):
    layout = Layout((rows, 99_999), (100_000, 1), 1, 4, (rows, 100_000), (100_000, 1))
    plan, whole = householder_plan(layout, 99_999)
    assert not whole
    assert plan.grid[0] == rows
    assert (plan.grid[1] > 1) == (rows == 1)
    if rows == 1:
        check(torch.randn(1, 99_999))


def test_layouts(laid_out):
    check(laid_out)


def test_padding_is_not_read_and_has_no_gradient(ways, padding_keeps_its_promise):
    padding_keeps_its_promise(householder_op, householder_adjoint_op)


def test_memory_behind_a_row_that_is_not_a_number():
    buffer = torch.full((4, 16), math.nan)
    buffer[:, :15] = torch.randn(4, 15)
    check(buffer[:, :15])


def test_tiles():
    assert choose_tile(1024, 10_000, False) == (Tile(1, 16_384, 16), True)
    assert choose_tile(1024, 32_768, False) == (Tile(1, 32_768, 16), True)
    assert choose_tile(1024, 32_769, False) == (Tile(1, 4096, 8), False)
    assert choose_tile(1024, 1_000, False) == (Tile(1, 1024, 1), True)
    assert choose_tile(3, 10, False) == (Tile(16, 16, 1), True)
    assert choose_tile(512, 1_000, True) == (Tile(32, 32, 4), False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    x = (10 + torch.randn(2, 9_000)).to(dtype)
    reference = separate_householder(x.double(), 1.0)
    assert error(householder_op(x, 1.0, torch.float32), reference) <= 1e-6
    result = separate(x, basis=H, impl="triton")
    assert result.dtype == dtype
    assert error(result, reference) <= torch.finfo(dtype).eps  # the interpreter cuts off where a GPU rounds
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error(separate(x, basis=H, impl="triton"), reference) <= 1e-6


def test_gradients_of_every_order(gradients_are_those_of_the_matrix):
    gradients_are_those_of_the_matrix(H)


def test_many_gradients_at_once():
    x, g = torch.randn(3, 9, requires_grad=True), torch.randn(4, 3, 10)
    (gradients,) = torch.autograd.grad(separate(x, basis=H, impl="triton"), x, g, is_grads_batched=True)
    torch.testing.assert_close(gradients, g @ simplex(10, basis=H).T)
    torch.testing.assert_close(torch.func.vmap(lambda g: householder_adjoint_op(g, 1.0, g.dtype))(g), gradients)


def test_registered_as_torch_wants_it():
    torch.library.opcheck(householder_op, (torch.randn(3, 9, requires_grad=True), 0.5, torch.float32))
    torch.library.opcheck(householder_op, (torch.randn(9, 3).T, 0.5, torch.float32))
    torch.library.opcheck(householder_op, (torch.randn(3, 16, requires_grad=True), 0.5, torch.float32, 7))
    torch.library.opcheck(householder_adjoint_op, (torch.randn(2, 3, 10, requires_grad=True), 0.5, torch.float32))
    torch.library.opcheck(householder_adjoint_op, (torch.randn(3, 10).bfloat16(), 0.5, torch.bfloat16, 7))


def test_compiles_without_graph_breaks():
    compiled = torch.compile(lambda x: separate(2 * x, 0.5, basis=H, impl="triton") + 1, fullgraph=True)
    x = torch.randn(3, 30, requires_grad=True)
    result = compiled(x)
    torch.testing.assert_close(result, x @ simplex(31, basis=H) + 1)
    g = torch.randn_like(result)
    torch.testing.assert_close(torch.autograd.grad(result, x, g)[0], g @ simplex(31, basis=H).T)


def test_the_same_bits_every_time_and_no_rows():
    x = torch.randn(5, 3_000)
    assert torch.equal(separate(x, basis=H, impl="triton"), separate(x, basis=H, impl="triton"))
    assert householder_rows(torch.randn(0, 9), 1.0, torch.float32, 0).shape == (0, 10)
    assert householder_adjoint_op(torch.randn(0, 10), 1.0, torch.float32).shape == (0, 9)


def test_transforms_and_float64_take_plain_operations():
    x = torch.randn(4, 9, dtype=torch.float64)
    matrix = simplex(10, basis=H, dtype=torch.float64)
    torch.testing.assert_close(separate(x, basis=H, impl="triton"), x @ matrix)
    torch.testing.assert_close(torch.func.vmap(lambda row: separate(row, basis=H, impl="triton"))(x), x @ matrix)
    torch.testing.assert_close(torch.func.jacfwd(lambda row: separate(row, basis=H, impl="triton"))(x[0]), matrix.T)


def test_a_gpu_takes_the_kernel_and_an_export_plain_operations(monkeypatch):
    with FakeTensorMode():
        x = torch.empty(4, 9, device="cuda", dtype=torch.bfloat16)
        taken = []
        monkeypatch.setattr(
            "maxsep.ops.dispatch._KERNELS", {H: lambda x, *_: taken.append(H) or householder_rows(x, *_)}
        )
        assert separate(x, basis=H).shape == (4, 10)
        assert taken == [H]
        layer = MaxSeparation(10, basis=H)
        program = torch.export.export(layer, (torch.empty(4, 9, device="cuda"),), strict=False)
    assert not any("maxsep" in str(node.target) for node in program.graph.nodes)


def test_messages(monkeypatch):
    monkeypatch.setattr(triton_scan, "is_interpreting", lambda: False)
    with pytest.raises(RuntimeError, match=r"impl='triton' is for CUDA tensors, x is on 'cpu'\. Leave impl out"):
        separate(torch.randn(3, 2), basis=H, impl="triton")
