"""The gradient of the last classes' rows for Hopper in a simulator: its numbers, and what it finds in broken ones."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from gluon_simulator import Descriptor, RuleError, simulated
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.ops import kernels, launching

hopper_form = pytest.importorskip("maxsep.ops.fused.hopper_form", reason="no Triton for this platform")
triton_form = pytest.importorskip("maxsep.ops.fused.triton_form")

SOURCE = Path(kernels.__file__).with_name("hopper_tail.py")
SCALE = 0.7
EPS = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
OPTIONS = list(itertools.product((False, True), repeat=5))
NONE, ALL = OPTIONS[0], OPTIONS[-1]
SMALL = (100, 70, 128)  # neither samples nor classes are whole blocks


class Problem:
    """A layer in half precision, of which some classes are the last; targets are also others, or none."""

    def __init__(self, batch, size, width, dtype=torch.bfloat16, start=20):
        torch.manual_seed(batch + size)
        self.x, self.w = (torch.randn(rows, width).div(3).to(dtype) for rows in (batch, size))
        self.offset, self.weight, self.start = torch.randn(size), torch.rand(size), start
        self.target = torch.randint(size + 2 * start, (batch,))
        self.target[::7] = -100
        self.target[::5] = start  # one class of many samples
        self.factors = (self.logits(offset=True).logsumexp(1).float(), *torch.randn(4, batch))

    def logits(self, offset):
        return SCALE * (self.x.double() @ self.w.double().T) + (self.offset.double() if offset else 0)

    def exact(self, offset, weight, smooth, shift):
        """The gradient at the logits without the shift, how much that is, and both in float64."""
        lse, a, u, v, moved = (factor.double()[:, None] for factor in self.factors)
        g = a * (self.logits(offset) - lse).exp() - u * (torch.arange(len(self.w)) + self.start == self.target[:, None])
        g -= v * (self.weight if weight else 1) * smooth
        return SCALE * g, SCALE * moved * shift


def launch(problem, options, rows, out, seed=0, replaced=(), **form):
    """Run the kernel's source, with texts of it replaced, in a form, and return sums over samples."""
    offset, weight, smooth, shift, columns = options
    module, (lse, a, u, v, moved) = simulated(SOURCE, seed, replaced), problem.factors
    factors = (lse, a, u, v if smooth else None, moved if shift else None)
    sums = torch.full((len(problem.w),), float("nan")) if columns else None
    parts = problem.offset if offset else None, problem.weight if weight else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper_form, "weight_gradients", module.weight_gradients)
        patch.setattr(triton_form, "form_of_tail", lambda x: hopper_form)
        patch.setattr(hopper_form, "described", Descriptor)
        chosen = hopper_form.tail_options(problem.x.shape[1]) | form
        patch.setattr(hopper_form, "tail_options", lambda width: chosen)
        patch.setattr(launching, "_launchers", {})
        triton_form.weight_gradients(problem.x, rows, out, problem.target, factors, SCALE, *parts, problem.start, sums)
    return sums


def wrong(problem, options, out=torch.float32, **asked):
    """Return what is wrong with the gradient of rows that lie between others, and with sums over samples."""
    size, width = problem.w.shape
    room = torch.full((size + 100, width), 7.0, dtype=out)
    sums = launch(problem, options, problem.w, room[30 : 30 + size], **asked)
    g, moved = problem.exact(*options[:4])
    found = []
    if not bool((room[:30] == 7).all() and (room[30 + size :] == 7).all()):
        found.append("other rows are written")
    # gradients are rounded before the product: by at most half of eps each
    least = EPS[problem.x.dtype] * ((g + moved).abs().T @ problem.x.double().abs()) + 1e-4
    exact = (g + moved).T @ problem.x.double()
    if not ((room[30 : 30 + size] - exact).abs() <= least + torch.finfo(out).eps * exact.abs()).all():
        found.append("the gradient differs")
    if options[4] and not ((sums - g.sum(0)).abs() <= 1e-5 * (1 + g.abs().sum(0))).all():
        found.append("the sum over samples differs")
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "".join("01"[option] for option in options))
@pytest.mark.parametrize("dtype", EPS)
def test_every_set_of_options(options, dtype):
    assert not wrong(Problem(*SMALL, dtype), options)


SHAPES = [(300, 200, 128), (420, 130, 256), (500, 65, 512), (33, 64, 512), (32, 1, 128), (1, 3, 256)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [NONE, ALL, (False, False, False, True, False), (True, False, False, False, True)])
def test_larger_layers_in_the_form_that_is_launched(shape, options, seed):
    assert not wrong(Problem(*shape), options, seed=seed)


def test_the_ring_of_the_longest_rows_goes_round():
    blocks = -(-500 // hopper_form.TAIL_ROWS)
    assert blocks > 2 * hopper_form.tail_options(512)["STAGES"]


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", EPS)
def test_gradients_in_any_precision(out, dtype):
    assert not wrong(Problem(*SMALL, dtype), ALL, out)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("options", [NONE, ALL])
def test_the_gradient_lies_where_the_rows_do(options, wide):
    """Also where it is wider, and the rows are in the first half of its own."""
    problem, width = Problem(150, 200, 256), 256
    gradient = torch.full((200, width), 7.0, dtype=torch.float32 if wide else torch.bfloat16)
    rows = gradient.view(torch.bfloat16)[:, :width]
    rows.copy_(problem.w)
    apart = torch.empty_like(gradient)
    expected = launch(problem, options, problem.w, apart)
    sums = launch(problem, options, rows, gradient)
    assert torch.equal(gradient, apart)
    assert sums is None or torch.equal(sums, expected)


def test_offsets_whose_exponentials_are_no_numbers_and_classes_that_are_ruled_out():
    problem = Problem(100, 130, 128)
    problem.offset[:] = 200.0  # also of samples beyond the batch
    problem.offset[:50] = -torch.inf
    problem.factors = (problem.logits(offset=True).logsumexp(1).float(), *problem.factors[1:])
    assert not wrong(problem, (True, False, False, False, True))


FORMS = [
    {"STAGES": 3, "BUFFERS": 2, "HELD": 0},  # the smallest rings
    {"STAGES": 4, "BUFFERS": 2, "HELD": 4},
    {"STAGES": 3, "BUFFERS": 4, "HELD": 1},
    {"STAGES": 5, "BUFFERS": 3, "HELD": 2},
    {"STAGES": 3, "BUFFERS": 2, "HELD": 3, "ROWS": 64},
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
def test_other_forms(form, seed):
    assert not wrong(Problem(300, 100, 256), ALL, seed=seed, **form)


@given(
    slices=st.sampled_from([2, 4]),
    batch=st.integers(1, 260),
    size=st.integers(1, 140),
    options=st.tuples(*[st.booleans()] * 5),
    stages=st.integers(3, 6),
    buffers=st.integers(2, 4),
    held=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_any_form_and_layer(slices, batch, size, options, stages, buffers, held, seed):
    form = {"STAGES": stages, "BUFFERS": buffers, "HELD": min(held, slices)}
    assert not wrong(Problem(batch, size, 64 * slices), options, seed=seed, **form)


EMPTY = "mbarrier.wait(empty.index(place), (slot // PLACES & 1) ^ 1)"
FULL = "        mbarrier.wait(full.index(place), slot // PLACES & 1)\n"
TAKEN = "    mbarrier.wait(empty.index(place), (block // BUFFERS & 1) ^ 1)\n"
MADE = "    mbarrier.wait(gradients[1].index(block % gradients[0].shape[0]), block // gradients[0].shape[0] & 1)\n"
THERE = "    mbarrier.wait(full.index(slot % parts.shape[0]), slot // parts.shape[0] & 1)\n"
SUMMED = "        mbarrier.arrive(gradients[2].index((block - 1) % gradients[0].shape[0]))\n"
LEFT = "        mbarrier.arrive(ring[2].index((PARTS * (block - 1) + PART) % parts.shape[0]))\n"
NEXT, LAST = "        total = warpgroup_mma_wait(1, deps", "    total = warpgroup_mma_wait(0, deps"
BROKEN = {
    "the mover does not wait for empty places": (EMPTY, "pass", "a copy to a slot|more arrivals"),
    "the mover waits for the wrong phase": (EMPTY, EMPTY.replace(" ^ 1", ""), "deadlock"),
    "the mover waits for the next place": (EMPTY, EMPTY.replace("(place)", "((slot + 1) % PLACES)"), "deadlock|a copy"),
    "the mover expects too few bytes": ("full.index(place), x.block_type.nbytes", "full.index(place), 64", "deadlock"),
    "the mover sends the first part twice": ("[at, part * parts.shape[2]]", "[at, 0]", "gradient differs"),
    "a block is not sent": ("in range(_blocks(ring, batch))", "in range(_blocks(ring, batch) - 1)", "deadlock"),
    "logits do not wait for samples": (FULL, "", "reading a slot that is"),
    "logits wait for the wrong phase": (FULL, FULL.replace("& 1", "& 1 ^ 1"), "reading a slot that is|deadlock"),
    "logits are not waited for": ("mma_wait(0, deps=[after])", "mma_wait(8, deps=[after])", "unsupported operand"),
    "logits are of other features": ("rows[part * OF_PART + k]", "rows[k]", "differs"),
    "gradients do not wait for an empty place": (TAKEN, "", "writing to a slot"),
    "gradients wait for the wrong phase": (TAKEN, TAKEN.replace(" ^ 1", ""), "deadlock"),
    "a place is empty after one group": ("_barriers(BUFFERS, PARTS)", "_barriers(BUFFERS, 1)", "deadlock|writing to"),
    "gradients are not fenced": ("fence_async_shared()  # matrix units must see it", "pass  #", "without a fence"),
    "kept rows are not fenced": ("fence_async_shared()  # matrix units must see what", "pass  #", "without a fence"),
    "barriers are not fenced": ("fence_async_shared()  # the copy engine must", "pass  #", "may not see the barriers"),
    "gradients are not handed over": ("    mbarrier.arrive(full.index(place))\n", "", "deadlock"),
    "sums do not wait for gradients": (MADE, "", "reading a slot that is"),
    "sums wait for the wrong phase": (MADE, MADE.replace("& 1)", "& 1 ^ 1)"), "reading a slot that is"),
    "sums wait for the wrong samples": (THERE, THERE.replace("& 1)", "& 1 ^ 1)"), "deadlock"),
    "gradients are kept": (SUMMED, "", "deadlock"),
    "gradients are given back too early": (SUMMED, SUMMED.replace("block - 1", "block"), "deadlock|writing to a slot"),
    "samples are kept": (LEFT, "", "deadlock"),
    "samples are given back too early": (LEFT, LEFT.replace("(block - 1)", "block"), "deadlock|a copy to a slot"),
    "the other part is given back": (LEFT, LEFT.replace("PART)", "1 - PART)"), "a copy to a slot|more arrivals"),
    "products are not waited for": (NEXT, NEXT.replace("wait(1", "wait(2"), "that a product still reads"),
    "the last product is not waited for": (LAST, LAST.replace("wait(0", "wait(1"), "no attribute"),
    "numbers of samples come too early": (
        "        after = _logits(",
        "        _put(loaded, room)\n        after = _logits(",
        "writing to a slot that is not empty",
    ),
    "numbers of samples are not renewed": ("        _put(loaded, room)\n", "", "differs"),
    "samples beyond the batch are read": ("there = sample < batch", "there = sample <= batch", "out of bounds"),
    "classes beyond the last are read": ("(first + row < size)", "(first + row <= size)", "out of bounds"),
    "classes beyond the last are written": ("mask=(number < size)", "mask=(number <= size)", "out of bounds"),
    "sums of classes beyond the last": ("summed + sums, mask=inside", "summed + sums, mask=number >= 0", "bounds"),
    "the last block is not in the sums": ("summed + sums, mask", "summed, mask", "sum over samples differs"),
    "the shift is in the sums": (
        "gl.sum(g, 1)",
        "gl.sum(g + room[5].index(0).load(of_samples)[None, :], 1)",
        "sum over",
    ),
    "targets are not those of the chunk": ("other=-1) - start)", "other=-1))", "differs"),
    "groups write the same half": (" + PART * FEATURES)", ")", "written before|differs"),
}
TRIED = [{"STAGES": 3, "BUFFERS": 2, "HELD": 3}, {"STAGES": 4, "BUFFERS": 3, "HELD": 0}]


def findings(*replaced):
    """What the simulator says of a source, in several forms and interleavings."""
    problem = Problem(300, 100, 256)
    for seed, form in itertools.product(range(3), TRIED):
        try:
            yield from wrong(problem, ALL, seed=seed, replaced=replaced, **form)
        except (RuleError, TypeError, AttributeError) as found:
            yield str(found)


def test_nothing_is_found_in_the_source_itself():
    assert not list(findings())


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_source_is_found(how):
    old, new, expected = BROKEN[how]
    found = list(findings((old, new)))
    assert any(re.search(expected, finding) for finding in found), found


@pytest.mark.parametrize("form", [{"STAGES": 2}, {"BUFFERS": 1}], ids=str)
def test_rings_that_are_too_short_do_not_compile_and_would_be_a_deadlock(form):
    problem, check = Problem(300, 64, 128), "STAGES >= 3 and BUFFERS >= 2"
    with pytest.raises(RuleError, match="the groups would wait for each other for ever"):
        wrong(problem, NONE, **form)
    with pytest.raises(RuleError, match="deadlock"):
        wrong(problem, NONE, replaced=[(check, "True")], **form)
