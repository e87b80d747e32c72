"""The kernels, in Triton's interpreter, compute what the plain form does, and that what the dense matrix does."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.ops.fused import chunks, in_chunks, passes, row_losses, torch_form
from maxsep.ops.fused.householder import LastClass
from maxsep.ops.fused.state import RowState
from maxsep.simplex import simplex

triton_form = pytest.importorskip("maxsep.ops.fused.triton_form", reason="no Triton for this platform")
tile_form = pytest.importorskip("maxsep.ops.fused.tile_form")
cuda = torch.cuda.is_available()


def matrix_of(basis, num_classes, dtype):
    if basis == "none":
        return torch.eye(num_classes, dtype=dtype)
    if basis == "recursive":
        return simplex(num_classes, dtype=dtype)
    k, root = num_classes - 1, math.sqrt(num_classes)
    reflected = torch.eye(k, dtype=dtype) - 1 / (num_classes + root)
    return math.sqrt(num_classes / k) * torch.cat([reflected, torch.full((k, 1), -1 / root, dtype=dtype)], 1)


def derivatives(
    form, num_classes, batch, width, basis="recursive", full=True, chunk=None, dtype=torch.float32, radius=0.7
):
    torch.manual_seed(0)
    separate = basis != "none"
    x = torch.randn(batch, width).to(dtype).requires_grad_()  # the same numbers in every precision
    weight = torch.randn(num_classes - separate, width).to(dtype).requires_grad_()
    target = torch.randint(num_classes, (batch,))
    target[0] = num_classes - 1
    offset = torch.randn(num_classes).to(dtype).requires_grad_() if full else None
    shares = torch.rand(num_classes).to(dtype) if full else None
    u, v = torch.randn(2, batch).to(dtype)
    leaves = [leaf for leaf in (x, weight, offset) if leaf is not None]
    if form == "dense":
        matrix = radius * matrix_of(basis, num_classes, dtype)
        log_p = (x @ weight.T @ matrix + (offset if full else 0)).log_softmax(1)
        nll, smooth = -log_p.gather(1, target[:, None])[:, 0], -(log_p * (shares if full else 0)).sum(1) / num_classes
    else:
        nll, smooth = row_losses(
            x, weight, target, offset, shares,
            radius=radius, separate=separate, basis=basis, smoothing=full, chunk=chunk, form=form,
        )  # fmt: skip
    value = (u * nll).sum() + (v * smooth).sum()
    return [value, *torch.autograd.grad(value, leaves)]


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize(
    ("num_classes", "batch", "width", "basis", "full", "chunk"),
    [
        (2, 5, 3, "recursive", True, None),
        (300, 20, 3, "recursive", False, None),
        (700, 40, 5, "recursive", True, 256),
        (700, 9, 5, "none", True, 512),
        (270, 130, 70, "recursive", True, 256),
        (2, 5, 3, "householder", True, None),
        (700, 3, 5, "householder", True, 256),
        (2, 5, 4, "recursive", True, None),  # from here on the product is part of the kernel
        (300, 20, 8, "recursive", False, None),
        (603, 140, 68, "recursive", True, 256),
        (603, 40, 8, "none", True, 512),
        (603, 40, 8, "none", False, 512),
        (2, 5, 4, "householder", True, None),
        (258, 3, 8, "householder", False, None),
        (603, 140, 68, "householder", True, 256),
    ],
)
def test_kernels(num_classes, batch, width, basis, full, chunk):
    size = (num_classes, batch, width, basis, full, chunk)
    for ours, theirs in zip(derivatives("triton", *size), derivatives("torch", *size), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("cols", [128, 256])
def test_other_tiles(cols, monkeypatch):
    for name in ("FORWARD_TILE", "BACKWARD_TILE"):
        monkeypatch.setattr(tile_form, name, getattr(tile_form, name) | {"COLS": cols})
    monkeypatch.setattr(triton_form, "STREAM", triton_form.STREAM | {"ROWS": cols // 4, "COLS": cols // 4})
    size = (603, 140, 8, "recursive", True, 512)
    for ours, theirs in zip(derivatives("triton", *size), derivatives("dense", *size), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize(("busy", "tile"), [(1, "STREAM"), (3, "NARROW"), (8, "AT_ONCE")])
def test_the_fewer_blocks_are_folded_the_more_is_done_at_once(busy, tile, monkeypatch):
    monkeypatch.setattr(triton_form, "processors", lambda device: busy)
    assert triton_form.fold_tile(768, 256, 5, busy) == getattr(triton_form, tile)
    assert triton_form.fold_tile(768, 32, 5, 100 * busy)["ROWS"] == 32
    torch.manual_seed(0)
    weight = torch.randn(700, 5)
    carries = triton_form.block_carries(weight, 0.7, 256, torch.float32)
    exact = 0.7 * simplex(701, dtype=torch.float64).T @ weight.double()
    for start, stop in ((0, 512), (256, 701), (512, 701)):
        out = torch.full((stop - start, 5), torch.nan)
        triton_form.fold(weight, carries, 0.7, 256, start, stop, out)
        torch.testing.assert_close(out.double(), exact[start:stop], atol=2e-6, rtol=2e-6)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["none", "recursive", "householder"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("width", [5, 8])
def test_nothing_is_read_before_it_is_written(basis, full, width):
    """New memory holds NaN here."""
    size = (603, 20, width, basis, full, 256)
    exact = derivatives("dense", *size)
    torch.use_deterministic_algorithms(True)
    try:
        for form in ("triton", "torch"):
            for ours, theirs in zip(derivatives(form, *size), exact, strict=True):
                torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=3e-5)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("form", ["triton", "torch"])
@pytest.mark.parametrize("side", ["plain", "weight", "householder"])
@pytest.mark.parametrize("smoothing", [False, True])
def test_what_the_operator_returns_shares_no_memory(form, side, smoothing):
    """Compiled code may write to one of its outputs."""
    layer = torch.ones(20, 8), torch.ones(300, 8), torch.zeros(20, dtype=torch.int64), None, None, 1.0, side, 0, form
    found = torch.ops.maxsep.row_losses(*layer, smoothing)
    places = [tensor.untyped_storage().data_ptr() for tensor in found if tensor.numel()]
    assert len(set(places)) == len(places)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@given(
    parts=st.integers(1, 40),
    batch=st.integers(1, 70),
    last=st.booleans(),
    total=st.booleans(),
    weighted=st.booleans(),
    dead=st.integers(0, 3),
)
@settings(max_examples=25)
def test_any_number_of_parts_is_merged(parts, batch, last, total, weighted, dead):
    torch.manual_seed(parts)
    state = RowState(*torch.randn(4, parts, batch).unbind()) if total else RowState(*torch.randn(3, parts, batch), None)
    state.sum.abs_()
    state.most[:dead], state.sum[:dead] = -torch.inf, 0.0  # programs that had no class of their own
    state.most[-1], state.sum[-1] = 1.0, 2.0
    target = torch.randint(8, (batch,))
    own = LastClass(torch.randn(batch), 8, target, torch.rand(8) if weighted else None) if last else None
    found, expected = triton_form.merged(state, own), torch_form.merged(state, own)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_kernels_refuse_to_apply_the_matrix_to_logits():
    given = torch.randn(3, 8), torch.randn(9, 8), torch.tensor([0, 3, 9])
    with pytest.raises(ValueError, match=r"at least the 8 features, got 3 samples. Leave form out, or pass 'torch'"):
        row_losses(*given, form="triton")


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
def test_classes_that_are_ruled_out_leave_the_losses_of_the_plain_form():
    x, weight, target = torch.ones(2, 4), torch.ones(4, 4), torch.tensor([0, 4])
    offset = torch.tensor([*[-torch.inf] * 4, 0.0])  # all that parts have seen is infinite
    found = [row_losses(x, weight, target, offset, basis="householder", form=form)[0] for form in ("triton", "torch")]
    torch.testing.assert_close(*found)
    assert found[0].tolist() == [torch.inf, 0.0]


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
def test_programs_take_several_tiles_where_a_launch_has_too_few(monkeypatch):
    monkeypatch.setattr(triton_form, "MOST_GROUPS", 2)
    size = (300, 70, 3, "recursive", False, None)
    for ours, theirs in zip(derivatives("triton", *size), derivatives("torch", *size), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_two_million_samples_are_no_more_programs_than_cuda_takes(monkeypatch):
    class Launches(list):
        fn, arg_names = object(), ()

        def __getitem__(self, grid):
            return lambda *given, **options: self.append(grid)

    launches = Launches()
    monkeypatch.setattr(triton_form.chunks, "gradient_rows", launches)
    triton_form.gradient_(torch.empty(2**21, 2), None, None, None, 0, (None,) * 5, None)
    ((across, down),) = list(launches)
    assert across == 1
    assert down <= 65_535


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@given(
    num_classes=st.integers(2, 300),
    batch=st.integers(1, 20),
    width=st.integers(1, 3).map(lambda units: 4 * units),
    basis=st.sampled_from(["none", "householder"]),
    full=st.booleans(),
    radius=st.sampled_from([0.01, 1.0, 3.0]),
)
@settings(max_examples=20)
def test_kernels_with_a_factor_of_any_size(num_classes, batch, width, basis, full, radius):
    size = (num_classes, batch, width, basis, full, None)
    exact = derivatives("dense", *size, torch.float64, radius)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORWARD_TILE", "BACKWARD_TILE"):
            patch.setattr(tile_form, name, getattr(tile_form, name) | {"ROWS": 16, "COLS": 64, "INNER": 16})
        found = derivatives("triton", *size, torch.float32, radius)
    for ours, theirs in zip(found, exact, strict=True):
        # sums of large numbers may cancel: they are as exact as float32 holds the largest
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5 * max(3.0, theirs.abs().max().item()), rtol=3e-5)
    for ours, theirs in zip(derivatives("torch", *size, torch.float64, radius), exact, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["none", "householder"])
@pytest.mark.parametrize("mixed", [False, True])
def test_where_kernels_have_the_factor_the_weight_is_used_as_it_lies(basis, mixed, monkeypatch):
    seen = []

    class Noted(chunks.Scratch):
        def __init__(self, sizes, *given):
            super().__init__(sizes, *given)
            seen.append(sizes.folds)

    for module in (passes, in_chunks):
        monkeypatch.setattr(module, "Scratch", Noted)
    x, weight = torch.randn(20, 8), torch.randn(599, 8, requires_grad=True)
    options = {"radius": 0.5, "separate": basis != "none", "basis": basis, "form": "triton"}
    nll, _ = row_losses(x.half() if mixed else x, weight, torch.arange(20), **options)
    nll.sum().backward()
    assert seen == [mixed, mixed]  # a copy in the precision of the products is made, one for the factor is not
    unaligned = torch.randn(20, 7)
    row_losses(unaligned, weight[:, :7], torch.arange(20), **options)
    assert seen[-1]


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
def test_a_large_offset_is_no_matter_of_samples_that_are_not_there():
    torch.manual_seed(0)
    x, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    offset = torch.full((10,), 200.0, requires_grad=True)  # exp(200) is no float32
    target = torch.tensor([0, 3, 9, 9, 1])
    found = []
    for form in ("triton", "torch"):
        nll, _ = row_losses(x, weight, target, offset, form=form)
        found.append(torch.autograd.grad(nll.sum(), (x, weight, offset)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["recursive", "householder"])
@pytest.mark.parametrize(("form", "width"), [("triton", 8), ("triton", 6), ("torch", 8)])
def test_the_offset_of_a_rare_class_has_its_gradient_whatever_the_others_gain(form, width, basis):
    torch.manual_seed(0)
    x, weight = torch.randn(40, width), torch.randn(299, width)
    offset = torch.zeros(300)
    offset[:100] = -25.0  # probabilities of 1e-13, where a shift for the last class is 0.05
    offset.requires_grad_()
    target = torch.full((40,), 299)
    nll, _ = row_losses(x, weight, target, offset, basis=basis, form=form)
    (found,) = torch.autograd.grad(nll.sum(), offset)
    logits = x.double() @ weight.double().T @ matrix_of(basis, 300, torch.float64) + offset
    (exact,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target, reduction="sum"), offset)
    torch.testing.assert_close(found, exact, atol=0, rtol=1e-4)


@pytest.mark.parametrize("basis", ["recursive", "none", "householder"])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("batch", "width"), [(3, 8), (8, 3)], ids=["logits side", "weight side"])
@pytest.mark.parametrize(("num_classes", "chunk"), [(2, None), (3, 1), (50, 7), (600, None), (601, 100), (2_000, None)])
def test_plain_form(num_classes, chunk, batch, width, basis, full, monkeypatch):
    monkeypatch.setitem(chunks.OWN_LEAST, "cpu", 1 << 14)
    size = (num_classes, batch, width, basis, full, chunk, torch.float64)
    for ours, theirs in zip(derivatives("torch", *size), derivatives("dense", *size), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_torch_registers_it_well():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 3, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    target, offset = torch.tensor([0, 8, 3, 3]), torch.randn(9, requires_grad=True)
    for side in ("weight", "logits", "householder"):
        torch.library.opcheck(
            torch.ops.maxsep.row_losses.default, (x, weight, target, offset, None, 0.5, side, 4, "torch", True)
        )


@pytest.mark.parametrize("basis", ["recursive", "householder"])
@pytest.mark.parametrize("which", [0, 1], ids=["nll", "smooth"])
def test_either_loss_alone(which, basis):
    torch.manual_seed(0)
    x, weight = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((6, 3), (8, 3)))
    target = torch.tensor([0, 8, 3, 3, 1, 7])
    ours = row_losses(x, weight, target, basis=basis, smoothing=True)[which].sum()
    log_p = (x @ weight.T @ matrix_of(basis, 9, torch.float64)).log_softmax(1)
    exact = -(log_p.mean(1) if which else log_p.gather(1, target[:, None])[:, 0]).sum()
    gradients = (torch.autograd.grad(value, (x, weight)) for value in (ours, exact))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["recursive", "none", "householder"])
@pytest.mark.parametrize("weighted", [False, True])
def test_smoothing_without_an_offset(basis, weighted):
    torch.manual_seed(0)
    x, weight = torch.randn(20, 8, requires_grad=True), torch.randn(99 + (basis == "none"), 8, requires_grad=True)
    target, shares = torch.randint(100, (20,)), torch.rand(100) if weighted else None
    options = {"radius": 0.7, "separate": basis != "none", "basis": basis, "smoothing": True, "form": "triton"}
    _, smooth = row_losses(x, weight, target, None, shares, **options)
    log_p = (x.double() @ weight.double().T @ (0.7 * matrix_of(basis, 100, torch.float64))).log_softmax(1)
    exact = -(log_p * shares if weighted else log_p).mean(1)
    torch.testing.assert_close(smooth.double(), exact, atol=1e-5, rtol=1e-5)
    gradients = (torch.autograd.grad(value.sum(), (x, weight)) for value in (smooth, exact))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
