"""The second pass without scratch: its plan never writes where something is still needed, and its values are right."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.ops.fused import in_place, passes, row_losses
from maxsep.ops.fused.chunks import ALIGNED, Sizes, most_bytes
from maxsep.simplex import simplex

triton_form = pytest.importorskip("maxsep.ops.fused.triton_form", reason="no Triton for this platform")
joined = pytest.importorskip("maxsep.ops.fused.joined")
GPU = torch.device("cuda")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda has the compiled kernels")


@given(
    num_classes=st.integers(1, 300_000),
    batch=st.integers(1, 9000),
    width=st.sampled_from([8, 64, 200, 512]),
    item=st.sampled_from([2, 4]),
    wider=st.booleans(),
    folds=st.booleans(),
    most=st.sampled_from([1 << 14, 1 << 22, 160 << 20]),
)
def test_nothing_lies_where_something_is_needed(num_classes, batch, width, item, wider, folds, most):
    sizes = Sizes(num_classes, batch, width, item, item * (1 + wider), folds or wider, pad=8)
    plan = in_place.plan_of(sizes, 64 * 132, most, 256)
    if plan is None:
        return
    assert plan.first_of_tail % 256 == 0
    assert 0 < num_classes - plan.first_of_tail <= in_place.MOST_TAIL * num_classes
    stops = [stop for _, stop in plan.pieces]
    assert [start for start, _ in plan.pieces] == [plan.first_of_tail, *stops[:-1]]
    assert stops[-1] == num_classes
    for start, stop in plan.pieces:
        assert item * batch * sizes.padded(stop - start) <= plan.first_of_tail * sizes.row
        assert (start - plan.first_of_tail) % 256 == 0
    stops = [stop for _, stop, _ in plan.chunks]
    assert [start for start, _, _ in plan.chunks] == [0, *stops[:-1]]
    assert stops[-1] == plan.first_of_tail
    until = 0
    for start, stop, ready in plan.chunks:
        assert stop > start
        assert start % 256 == 0
        if ready is not None:
            assert start == until  # nothing is made twice
            until = ready
        assert not sizes.folds or until >= stop
        free = (num_classes - max(stop, until)) * sizes.row - ALIGNED * item
        assert item * batch * sizes.padded(stop - start) <= free


@pytest.mark.parametrize(
    ("num_classes", "householder", "chunks", "made"),
    [(100_000, False, 24, 9), (99_999, True, 23, 0), (1_000_000, False, 56, 40)],
)
def test_the_plan_of_an_h200(num_classes, householder, chunks, made):
    sizes = Sizes(num_classes, 4096, 512, 2, 2, not householder, 8)
    plan = in_place.plan_of(sizes, 64 * 132, most_bytes(GPU), 256)
    assert num_classes - plan.first_of_tail <= 64 * 132  # one program for every processor
    assert len(plan.pieces) == 1
    assert len(plan.chunks) == chunks
    assert sum(ready is not None for _, _, ready in plan.chunks) == made
    assert in_place.plan_of(Sizes(30_000, 4096, 512, 2, 2, False, 8), 64 * 132, most_bytes(GPU), 256) is None


@pytest.fixture
def planned(monkeypatch):
    """Plans for few classes, and all that were followed."""
    monkeypatch.setattr(passes, "GRAIN", 32)
    monkeypatch.setattr(in_place, "LEAST_CHUNK", 32)
    for module in (triton_form, joined):
        monkeypatch.setattr(module, "processors", lambda device: 3)
    in_place.plan_of.cache_clear()
    followed = []

    def noted(stream, plan, *given):
        followed.append(plan)
        return in_place.gradients_in_place(stream, plan, *given)

    monkeypatch.setattr(passes, "gradients_in_place", noted)
    yield followed
    in_place.plan_of.cache_clear()


def problem(num_classes, batch, width, basis, full, dtype, weight_dtype):
    torch.manual_seed(0)
    x, target = torch.randn(batch, width).to(dtype), torch.randint(num_classes, (batch,))
    target[:2] = torch.tensor([num_classes - 1, num_classes - 2])
    weight = torch.randn(num_classes - (basis != "none"), width).div(width**0.5).to(weight_dtype)
    offset, shares = (torch.randn(num_classes), torch.rand(num_classes)) if full else (None, None)
    return x, weight, target, offset, shares


def gradients(value, *leaves):
    return torch.autograd.grad(value, [leaf for leaf in leaves if leaf is not None])


def exact_gradients(x, weight, target, offset, shares, basis, u, v):
    num_classes = len(weight) + (basis != "none")
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    offset = None if offset is None else offset.double().requires_grad_()
    matrix = (
        torch.eye(num_classes).double() if basis == "none" else simplex(num_classes, dtype=torch.float64, basis=basis)
    )
    log_p = (0.7 * x @ weight.T @ matrix + (0 if offset is None else offset)).log_softmax(1)
    value = -(u * log_p.gather(1, target[:, None])[:, 0]).sum()
    if shares is not None:
        value = value - (v * (log_p * shares).mean(1)).sum()
    return gradients(value, x, weight, offset)


@interpreted
@pytest.mark.parametrize("basis", ["recursive", "none", "householder"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("num_classes", "batch", "width", "dtype", "weight_dtype", "slack"),
    [
        (1301, 20, 8, torch.float32, torch.float32, 1e-5),
        (2000, 70, 24, torch.float32, torch.float32, 1e-5),
        (1301, 20, 8, torch.float16, torch.float16, 3e-3),
        (1304, 20, 8, torch.float16, torch.float32, 2e-3),
    ],
)
def test_gradients(num_classes, batch, width, dtype, weight_dtype, slack, basis, full, planned):
    x, weight, target, offset, shares = problem(num_classes, batch, width, basis, full, dtype, weight_dtype)
    u, v = torch.rand(2, batch)
    exact = exact_gradients(x, weight, target, offset, shares, basis, u, v)
    leaves = [None if leaf is None else leaf.requires_grad_() for leaf in (x, weight, offset)]
    options = {"separate": basis != "none", "basis": "recursive" if basis == "none" else basis}
    nll, smooth = row_losses(x, weight, target, offset, shares, radius=0.7, smoothing=full, form="triton", **options)
    value = (u * nll).sum() + (v * smooth).sum()
    found = gradients(value, *leaves)
    assert len(planned) == 1
    for ours, theirs in zip(found, exact, strict=True):
        assert (ours.double() - theirs).norm() < slack * theirs.norm()


@interpreted
@pytest.mark.parametrize("basis", ["recursive", "householder"])
def test_the_gradients_hold_no_memory_but_their_own(basis, planned):
    x, weight, target, *_ = problem(1301, 16, 16, basis, False, torch.float16, torch.float16)
    x.requires_grad_(), weight.requires_grad_()
    nll, _ = row_losses(x, weight, target, basis=basis, form="triton")
    dx, dw = torch.autograd.grad(nll.sum(), (x, weight))
    assert len(planned) == 1
    assert dx.untyped_storage().nbytes() == x.nbytes
    assert dw.untyped_storage().nbytes() == weight.nbytes + (basis == "recursive") * weight[0].nbytes


def test_the_tail_has_room_for_the_features():
    assert triton_form.MOST_WIDTH <= in_place.LEAST_CHUNK


@interpreted
@pytest.mark.parametrize(
    ("width", "chunk", "frozen"), [(8, 256, None), (520, None, None), (8, None, "x"), (8, None, "weight")]
)
def test_other_ways_where_it_cannot_be(width, chunk, frozen, planned):
    x, weight, target, *_ = problem(1301, 16, width, "householder", False, torch.float32, torch.float32)
    leaves = {"x": x, "weight": weight}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name != frozen)
    nll, _ = row_losses(x, weight, target, basis="householder", chunk=chunk, form="triton")
    nll.sum().backward()
    assert not planned


@interpreted
def test_a_step_at_a_time_is_compiled_too(planned):
    """The gradient's place is an operator's output: what traces it must not see more memory than it has."""
    x, weight, target, *_ = problem(1301, 16, 8, "recursive", False, torch.float32, torch.float32)
    layer = x, weight, target, None, None, 1.0, "weight", 0, "triton"
    nll, _, lse, carries = torch.ops.maxsep.row_losses(*layer, False)
    given = (*layer, torch.ones_like(nll), None, lse, carries, [True, True, False])
    torch.library.opcheck(torch.ops.maxsep.row_losses_backward.default, given)
    assert planned
