"""The kernels for Hopper in a simulator: their numbers, whatever the interleaving, and what it finds in broken ones."""

import functools
import itertools
import re
import sys
import threading
import types
from pathlib import Path

import gluon_simulator
import pytest
import torch
from gluon_simulator import RuleError
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.ops import kernels, launching
from maxsep.ops.fused.state import RowState

joined = pytest.importorskip("maxsep.ops.fused.joined", reason="no Triton for this platform")
hopper_form = pytest.importorskip("maxsep.ops.fused.hopper_form")

SOURCE = Path(kernels.__file__).with_name("hopper.py")
SCALE = 0.7
EPS = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


def simulated(seed=0, *changes):
    """The kernels with an interleaving, and with texts of their source replaced."""
    return gluon_simulator.simulated(SOURCE, seed, changes)


def switches(count):
    """All ways of turning options on and off."""
    return list(itertools.product((False, True), repeat=count))


def told(options):
    return "".join("01"[option] for option in options)


class Problem:
    """A layer in half precision."""

    def __init__(self, batch, num_classes, width, dtype=torch.bfloat16):
        torch.manual_seed(batch + num_classes)
        self.x, self.w = (torch.randn(rows, width).div(3).to(dtype) for rows in (batch, num_classes))
        self.offset, self.weight = torch.randn(num_classes), torch.rand(num_classes)
        self.target = torch.randint(num_classes, (batch,))

    def logits(self, offset):
        return SCALE * (self.x.double() @ self.w.double().T) + (self.offset.double() if offset else 0)

    def chunks(self, cuts, offset, weight):
        """First class of each chunk, its part of the weight, and offset and weight of its classes where there are."""
        for start, stop in itertools.pairwise((0, *cuts, len(self.w))):
            offsets, weights = self.offset[start:stop], self.weight[start:stop]
            yield start, self.w[start:stop], offsets if offset else None, weights if weight else None


def simulate(patch, module, splits, batch, changes):
    """Let the launches of the package be of simulated kernels, with some options changed, and so many splits."""
    form = types.SimpleNamespace(**vars(hopper_form))
    form.accumulate_product, form.gradient_product = module.accumulate_product, module.gradient_product
    form.described = gluon_simulator.Descriptor
    form.options = lambda width, **asked: hopper_form.options(width, **asked) | changes
    patch.setattr(joined, "form_of", lambda x, **asked: form)
    patch.setattr(joined, "processors", lambda device: splits * -(-batch // 128))
    patch.setattr(launching, "_launchers", {})


def differing(compared):
    """Say which numbers differ from those in float64 by more than they may."""
    return [
        f"the {what} differs"
        for what, (found, exact, tolerance) in compared.items()
        if not ((found - exact).abs() / (1 + exact.abs())).max() <= tolerance
    ]


def wrong_sums(module, problem, options, splits=2, cuts=(), **changes):
    """Return what is wrong with the log-sum-exp of a layer, taken in chunks of classes."""
    offset, weight, total = options
    x, target = problem.x, problem.target
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch, module, splits, len(x), changes)
        state = RowState.room(joined.parts(x, per_class=offset or weight), len(x), torch.empty(0), with_total=total)
        for room in (state.most, state.sum, state.target, *([state.total] if total else [])):
            room.fill_(float("nan"))  # what is there before is not to be read
        take = joined.accumulating(x, target, state, SCALE, per_class=offset or weight)
        for start, *chunk in problem.chunks(cuts, offset, weight):
            take(*chunk, start)
    assert len(state.most) == splits
    z, (lse, own, summed) = problem.logits(offset), state.merged()
    compared = {
        "log-sum-exp": (lse, z.logsumexp(1), 1e-5),
        "target logit": (own, z.gather(1, problem.target[:, None])[:, 0], 1e-5),
    }
    if total:
        compared["sum of logits"] = (summed, (z * problem.weight if weight else z).sum(1), 1e-4)
    return differing(compared)


def wrong_gradients(module, problem, options, splits=2, cuts=(), **changes):
    """Return what is wrong with the gradient at the logits of a layer, taken in chunks of classes."""
    offset, weight, smooth, shift, columns = options
    x, w, target = problem.x, problem.w, problem.target
    z, (a, u, v, moved) = problem.logits(offset), torch.randn(4, len(x))
    factors = (z.logsumexp(1).float(), a, u, v if smooth else None, moved if shift else None)
    found, sums, beyond = [], torch.full((len(w),), float("nan")), 0.0
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch, module, splits, len(x), changes)
        write = joined.differentiating(x, target, factors, SCALE)
        for start, part, *numbers in problem.chunks(cuts, offset, weight):
            size = len(part)
            room = x.new_zeros(len(x), -(-size // 8) * 8 + 8)  # rows that the copy engine takes
            write(part, room[:, :size], *numbers, start, sums[start : start + size] if columns else None)
            found.append(room[:, :size])
            beyond += room[:, size:].abs().sum()
    a, u, v, moved = (factor.double()[:, None] for factor in (a, u, v, moved))
    g = a * z.softmax(1) - u * (torch.arange(len(w)) == target[:, None])
    g -= v * (problem.weight if weight else 1) * smooth
    gradient = SCALE * (g + moved * shift)
    compared = {"gradient": (torch.cat(found, 1), gradient, EPS[x.dtype]), "room beyond": (beyond, torch.zeros(1), 0)}
    if columns:
        compared["sum over samples"] = (sums, SCALE * g.sum(0), 1e-5)
    return differing(compared)


SMALL = (100, 200, 64)  # neither samples nor classes are whole tiles
SHAPES = [(300, 520, 64), (130, 700, 192), (257, 400, 512), (64, 128, 512), (1, 1, 64)]


@pytest.mark.parametrize("options", switches(3), ids=told)
@pytest.mark.parametrize("dtype", EPS)
def test_every_set_of_options_of_the_log_sum_exp(options, dtype):
    assert not wrong_sums(simulated(), Problem(*SMALL, dtype), options, cuts=(130,))


@pytest.mark.parametrize("options", switches(5), ids=told)
@pytest.mark.parametrize("dtype", EPS)
def test_every_set_of_options_of_the_gradient(options, dtype):
    assert not wrong_gradients(simulated(), Problem(*SMALL, dtype), options, cuts=(130,))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("full", [False, True])
def test_larger_layers_in_the_forms_that_are_launched(shape, full, seed):
    module, problem, splits = simulated(seed), Problem(*shape), 1 + seed
    cuts = (137,) if shape[1] > 137 else ()
    for options in ((full,) * 3, (False, full, True)):
        assert not wrong_sums(module, problem, options, splits, cuts)
    for options in ((full,) * 5, (False, full, full, True, False)):
        assert not wrong_gradients(module, problem, options, splits, cuts)


FORMS = [
    {"HELD": 0, "STAGES": 2, "TURN": 1},  # the smallest ring
    {"HELD": 0, "STAGES": 6, "TURN": 2},
    {"HELD": 1, "STAGES": 2, "TURN": 2},
    {"HELD": 2, "STAGES": 5, "TURN": 4},
    {"HELD": 3, "STAGES": 3, "TURN": 1},
    {"HELD": 4, "STAGES": 2, "TURN": 2},  # samples wait for each other in the ring
    {"HELD": 4, "STAGES": 4, "TURN": 4},
    {"HELD": 4, "STAGES": 9, "TURN": 2},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
@pytest.mark.parametrize("seed", range(2))
def test_other_forms_of_the_same_tile(form, seed):
    module, problem = simulated(seed), Problem(140, 500, 256)
    assert not wrong_sums(module, problem, (False, False, True), cuts=(10, 300), **form)
    assert not wrong_gradients(module, problem, (True, False, False, False, True), cuts=(300,), **form)


@pytest.mark.parametrize("held", [0, 1, 2])
def test_programs_without_a_class_leave_their_part_of_the_state_as_it_was(held):
    module, problem = simulated(), Problem(140, 150, 128)
    for cuts in ((), (130,), (1, 140)):  # one tile or two
        assert not wrong_sums(module, problem, (True, True, True), 5, cuts, HELD=held)
        assert not wrong_gradients(module, problem, (True, True, True, True, True), 5, cuts, HELD=held)


def test_classes_that_are_ruled_out_and_offsets_whose_exponentials_are_no_numbers():
    module, problem = simulated(), Problem(100, 400, 64)
    problem.offset[:] = 200.0  # also of samples beyond the batch, whose gradients are summed
    problem.offset[:150] = -torch.inf
    problem.target.fill_(399)
    assert not wrong_sums(module, problem, (True, False, False), splits=1)
    assert not wrong_sums(module, problem, (True, False, False), splits=3)
    assert not wrong_gradients(module, problem, (True, False, False, False, True))


def test_targets_that_are_no_classes_of_a_chunk_and_chunks_of_few_classes():
    module, problem = simulated(), Problem(100, 300, 64)
    assert not wrong_sums(module, problem, (False,) * 3, cuts=(1, 20, 21, 299))
    problem.target[::2] = -100
    assert not wrong_gradients(module, problem, (False,) * 5, cuts=(1, 20, 21, 299))


@st.composite
def forms(draw):
    """Any ring that is long enough for a turn, which is a part of a tile."""
    slices = draw(st.integers(1, 5))
    turn = draw(st.sampled_from([turn for turn in range(1, slices + 1) if slices % turn == 0]))
    form = {"HELD": draw(st.integers(0, slices)), "STAGES": draw(st.integers(max(2, turn), 7)), "TURN": turn}
    return 64 * slices, form


@given(
    width_and_form=forms(),
    batch=st.integers(1, 300),
    num_classes=st.integers(1, 600),
    options=st.tuples(*[st.booleans()] * 5),
    splits=st.integers(1, 4),
    cuts=st.sets(st.integers(1, 599), max_size=2),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_any_form_and_layer(width_and_form, batch, num_classes, options, splits, cuts, seed):
    width, form = width_and_form
    module, problem = simulated(seed), Problem(batch, num_classes, width)
    cuts = sorted(cut for cut in cuts if cut < num_classes)
    assert not wrong_sums(module, problem, options[:3], splits, cuts, **form)
    assert not wrong_gradients(module, problem, options, splits, cuts, **form)


EMPTY = "mbarrier.wait(empty.index(stage), (slot // STAGES & 1) ^ 1)"
FULL = "        mbarrier.wait(full.index(stage), slot // STAGES & 1)\n"
HELD = "            mbarrier.wait(full.index(stage), slot // slices.shape[0] & 1)\n"
LEFT = "            mbarrier.arrive(empty.index(stage))\n"
GIVEN = "_give_back(z, 1, ring, slot - 1)"
TURN = "mbarrier.wait(turns.index(GROUP), (turn & 1) ^ (1 - GROUP))"
DRAIN = "tma.store_wait(pendings=0)"
LAST = "_give_back(z, 0, ring, slot - 1)"
SUMS = "gl.sum(g, 0), mask=_before(size - at,"
BROKEN = {
    "the mover does not wait for empty slots": (EMPTY, "pass", "a copy to a slot|more arrivals"),
    "the mover waits for the wrong phase": (EMPTY, EMPTY.replace(" ^ 1", ""), "deadlock"),
    "the mover waits for the next slot": (EMPTY, EMPTY.replace("stage", "(slot + 1) % STAGES"), "deadlock"),
    "the mover expects too few bytes": ("source.block_type.nbytes + MORE", "64 + MORE", "deadlock"),
    "a slot is empty after one group": ("_barriers(STAGES, 2)", "_barriers(STAGES, 1)", "a copy to a slot"),
    "products do not wait for full slots": (FULL, "", "reading a slot that is"),
    "products wait for the wrong phase": (FULL, FULL.replace("& 1", "& 1 ^ 1"), "reading a slot that is empty"),
    "a slot is given back too early": (GIVEN, GIVEN.replace("1, ring", "2, ring"), "that a product still reads"),
    "the wrong slot is given back": (GIVEN, GIVEN.replace("slot - 1", "slot"), "deadlock"),
    "the last slot of a turn is kept": (f"z = {LAST}", "z = warpgroup_mma_wait(0, [z])", "deadlock"),
    "the last slot of a tile is kept": (f"return {LAST}", "return warpgroup_mma_wait(0, [z])", "deadlock"),
    "the first tile is sent twice": ("        at += splits * COLS\n", "", "deadlock|copies under way"),
    "the last tile is left out": ("range(split * COLS, size,", "range(split * COLS, size - COLS,", "copies under way"),
    "held samples are not waited for": (HELD, "", "reading a slot that is"),
    "held samples keep their slot": (LEFT, "", "deadlock"),
    "held samples are not fenced": ("fence_async_shared()  # before the copy", "pass  #", "was read without a fence"),
    "held samples are of the other group": ("slice(GROUP * HALF, HALF)", "slice((1 - GROUP) * HALF, HALF)", "differs"),
    "samples are not waited for": ("slot, 2 * halves.block_type.nbytes)", "slot, 0)", "reading a slot that is"),
    "samples are of the other group": ("2 * (k - HELD) + GROUP", "2 * (k - HELD) + 1 - GROUP", "differs"),
    "both groups have the same samples": ("[first + group * HALF, K", "[first, K", "differs"),
    "turns have the wrong phase": (TURN, TURN.replace(" ^ (1 - GROUP)", ""), "deadlock"),
    "turns are not passed on": ("mbarrier.arrive(turns.index(1 - GROUP))", "pass", "deadlock"),
    "barriers are not fenced": ("fence_async_shared()  # the copy engine must", "pass  #", "may not see the barriers"),
    "results are overwritten": (f"{DRAIN}  # until", "pass  #", "overwriting results"),
    "results are not fenced": ("        fence_async_shared()\n        tma", "        tma", "way out without a fence"),
    "the end does not wait for results": (f"    {DRAIN}\n\n", "\n", "ended with products or stores under way"),
    "there is no mask in the last tile": ("if at + COLS > size:", "if False:", "log-sum-exp differs"),
    "classes beyond the last are read": ("mask=_before(size - at, column), other", "mask=column >= 0, other", "bounds"),
    "sums of classes that are not there": (SUMS, SUMS.replace("size - at", "COLS"), "out of bounds|written before"),
    "the shift is in the sums": (
        "if COLUMNS:",
        "if SHIFT:\n            g += moved[:, None]\n        if COLUMNS:",
        "sum over",
    ),
    "the state is read before there is one": ("there & (start > 0)", "there", "log-sum-exp differs"),
    "the state is forgotten": ("there & (start > 0)", "there & (start < 0)", "log-sum-exp differs"),
    "targets are not those of the chunk": ("other=-1) - start)", "other=-1))", "target logit differs"),
    "splits share their state": ("split.to(gl.int64) * batch + row", "split.to(gl.int64) * 0 + row", "written before"),
    "groups share their sums": ("(block * 2 + GROUP)", "(block * 2)", "written before"),
}
TRIED = [{"HELD": 4, "STAGES": 5, "TURN": 4}, {"HELD": 0, "STAGES": 4, "TURN": 2}, {"HELD": 2, "STAGES": 3, "TURN": 1}]


def findings(*changes):
    """What the simulator says of a source, in several forms and interleavings."""
    problem = Problem(140, 600, 256)
    for seed, form in itertools.product(range(2), TRIED):
        module = simulated(seed, *changes)
        for wrong, options in ((wrong_sums, (True, False, False)), (wrong_gradients, (False, True, True, True, True))):
            try:
                yield from wrong(module, problem, options, cuts=(250,), **form)
            except RuleError as problem_found:
                yield str(problem_found)


def test_nothing_is_found_in_the_source_itself():
    assert not list(findings())


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_source_is_found(how):
    old, new, expected = BROKEN[how]
    assert old in SOURCE.read_text()
    assert any(re.search(expected, finding) for finding in findings((old, new)))


@pytest.mark.parametrize("form", [{"STAGES": 3, "TURN": 4}, {"STAGES": 6, "TURN": 3}], ids=str)
def test_turns_that_do_not_fit_the_ring_or_the_tile_do_not_compile(form):
    with pytest.raises(RuleError, match="the groups would wait for each other for ever"):
        wrong_sums(simulated(), Problem(100, 300, 256), (False,) * 3, **form)


def test_a_turn_that_the_ring_has_no_room_for_is_a_deadlock_and_no_hanging_test():
    before = set(threading.enumerate())
    module = simulated(0, ("TURN <= STAGES,", "True,"))
    with pytest.raises(RuleError, match=r"deadlock: .*_accumulate 0"):
        wrong_sums(module, Problem(100, 300, 256), (False,) * 3, STAGES=3, TURN=4)
    assert set(threading.enumerate()) <= before


def test_a_loop_without_end_is_ended():
    before = set(threading.enumerate())
    module = simulated(0, ("    turn = 0\n", "    while True:\n        fence_async_shared()\n"))
    with pytest.raises(RuleError, match=r"no end after \d+ steps"):
        wrong_sums(module, Problem(*SMALL), (False,) * 3)
    assert set(threading.enumerate()) <= before


def test_a_thread_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(gluon_simulator.machine, "MOST_SECONDS", 0.5)
    before, hangs = set(threading.enumerate()), threading.Event()
    module = simulated(0, ("    turn = 0\n", "    turn = hang()\n"))
    module.hang = functools.partial(hangs.wait, 60)
    with pytest.raises(RuleError, match=r"no end after 0.5 seconds"):
        wrong_sums(module, Problem(*SMALL), (False,) * 3)
    left = set(threading.enumerate()) - before
    hangs.set()
    for thread in left:
        thread.join(60)
    assert left
    assert not any(thread.is_alive() for thread in left)


def test_nobody_meets_what_stands_for_gluon():
    before = dict(sys.modules)
    module = simulated()
    assert sys.modules == before
    for name in ("accumulate_product", "gradient_product"):
        ours, real = getattr(module, name), getattr(hopper_form, name)
        assert ours.arg_names == real.arg_names
        assert type(ours).__module__ == "gluon_simulator.source" != type(real).__module__
