"""Chunks cover the classes once, start where the running sums do, and keep within their memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.ops.fused.chunks import (
    Scratch,
    Sizes,
    borrowing_chunks,
    equal_chunks,
    kept_bytes,
    most_bytes,
    own_bytes,
    rows_beside,
    wave,
)

sizes = st.builds(
    Sizes,
    num_classes=st.integers(2, 3_000),
    batch=st.integers(1, 50),
    width=st.integers(1, 50),
    item=st.sampled_from([2, 4, 8]),
    weight_item=st.sampled_from([2, 4, 8]),
    folds=st.booleans(),
    pad=st.sampled_from([1, 8]),
)
grains = st.sampled_from([1, 3, 16, 256])
waves = st.sampled_from([1, 2, 16])
"""In grains."""


def assert_covers(chunks, sizes, grain):
    assert [edge for chunk in chunks for edge in chunk][1:-1:2] == [edge for chunk in chunks for edge in chunk][2::2]
    assert (chunks[0][0], chunks[-1][1]) == (0, sizes.num_classes)
    assert all(start % grain == 0 and start < stop for start, stop in chunks)


def assert_whole_waves(lengths, wave):
    assert all(length < wave or length % wave == 0 for length in lengths)


@given(sizes=sizes, grain=grains, most=st.integers(1, 10**6), wave=waves)
def test_equal_chunks(sizes, grain, most, wave):
    chunks = equal_chunks(sizes, most, grain, wave * grain)
    assert_covers(chunks, sizes, grain)
    assert_whole_waves([stop - start for start, stop in chunks[:-1]], wave * grain)
    assert all((stop - start) * sizes.per_class <= most or stop - start <= grain for start, stop in chunks)


@given(sizes=sizes, grain=grains, most=st.integers(1, 10**6), own=st.integers(1, 10**5), wave=waves)
def test_borrowing_chunks(sizes, grain, most, own, wave):
    chunks = borrowing_chunks(sizes, most, own, grain, wave * grain)
    assert_covers(chunks, sizes, grain)
    assert_whole_waves([stop - start for start, stop in chunks[:-2]], wave * grain)  # an odd end may stand alone
    for start, stop in chunks:
        taken, free = (stop - start) * sizes.per_class, (sizes.num_classes - stop) * sizes.row + own
        assert stop - start <= grain or taken <= min(most, free)


@given(sizes=sizes, grain=grains, most=st.integers(1, 10**5), own=st.integers(1, 10**4), least=st.integers(0, 10**4))
def test_scratch_never_touches_what_is_written(sizes, grain, most, own, least):
    chunks = borrowing_chunks(sizes, most, own, grain)
    last, more = sizes.num_classes, rows_beside(sizes, chunks, least)
    assert more * sizes.row >= least
    assert (more - 1) * sizes.row <= max(least, own, grain * sizes.per_class) + 2 * 16 * 8 + 7 * sizes.per_output
    gradient = torch.zeros(last + more, sizes.row, dtype=torch.int8)
    like = torch.empty(0, dtype={2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[sizes.item])
    scratch = Scratch(sizes, chunks, like, gradient)
    for start, stop in chunks:
        logits, weight = scratch.take(start, stop)
        assert logits.shape == (sizes.batch, stop - start)
        assert weight.shape == ((stop - start, sizes.width) if sizes.folds else (0, 0))
        assert logits.storage_offset() % 16 == 0
        weight.fill_(2.5)
        logits.fill_(1.5)
        assert (weight == 2.5).all()
        assert scratch.take(start, stop)[0] is logits  # so that what describes it to a kernel can be kept
        assert (gradient[:start] == 7).all()
        gradient[start:stop] = 7
        assert (logits == 1.5).all()  # their product is written while they are read
    assert (gradient[:last] == 7).all()


@given(sizes=sizes, chunk=st.integers(1, 400), numbers=st.integers(1, 3_000))
def test_scratch_of_its_own_holds_every_chunk_and_a_rounded_tensor(sizes, chunk, numbers):
    chunks = equal_chunks(sizes, chunk * sizes.per_class, chunk)
    scratch = Scratch(sizes, chunks, torch.empty(0, dtype=torch.bfloat16))
    for start, stop in chunks:
        logits, weight = scratch.take(start, stop)
        logits.fill_(1.5)
        weight.fill_(2.5)
        assert (logits == 1.5).all()
    wide = torch.linspace(0, 1, numbers).view(1, -1)
    assert torch.equal(scratch.rounded(wide), wide.bfloat16())


@given(sizes=sizes, more=st.integers(0, 40), numbers=st.integers(1, 3_000))
def test_a_rounded_tensor_lies_behind_the_gradient_or_apart(sizes, more, numbers):
    gradient = torch.full((sizes.num_classes + more, sizes.row), 7, dtype=torch.int8)
    scratch = Scratch(sizes, [], torch.empty(0, dtype=torch.bfloat16), gradient)
    wide = torch.linspace(0, 1, numbers)
    assert torch.equal(scratch.rounded(wide), wide.bfloat16())
    assert (gradient[: sizes.num_classes] == 7).all()


@pytest.mark.parametrize("samples", [4_000, 4_096, 5_000, 8_000, 9_000])
def test_features_are_rounded_behind_the_gradient_wherever_the_promise_of_memory_needs_it(samples):
    """With it, a step holds twice the bytes of x beside what is needed; without it, that and its scratch."""
    sizes, cuda = Sizes(100_000, samples, 512, 2, 2, True, 8), torch.device("cuda")
    x, both = 2 * 512 * samples, 2 * 100_000 * sizes.row
    is_kept = 2 * x <= 0.05 * (both + 2 * x)
    assert x <= kept_bytes(sizes, cuda) or not is_kept
    assert kept_bytes(Sizes(1_000, 65_536, 512, 2, 2, True), cuda) == 4 << 20  # few classes keep little of many samples


def on_a_gpu(sizes):
    cuda = torch.device("cuda")
    return borrowing_chunks(sizes, most_bytes(cuda), own_bytes(sizes, cuda, "triton"), 256, wave(cuda))


@pytest.mark.parametrize(("num_classes", "folds", "most"), [(100_000, True, 38), (99_999, False, 34)])
def test_few_chunks_at_the_size_that_matters(num_classes, folds, most):
    sizes = Sizes(num_classes, 4096, 512, 2, 2, folds, 8)
    own = own_bytes(sizes, torch.device("cuda"), "triton")
    chunks = on_a_gpu(sizes)
    assert len(chunks) <= most  # equal ones within the same memory would be 196
    assert max((stop - start) * sizes.per_class for start, stop in chunks) > 10 * own
    rounded = 4096 * 512 * 2
    beside = rows_beside(sizes, chunks, rounded) * sizes.row
    assert rounded <= beside <= own + 2 * sizes.row  # what the rounded gradient of x needs anyway


def test_chunks_of_a_gpu_fill_its_processors():
    lengths = [stop - start for start, stop in on_a_gpu(Sizes(1_000_000, 4096, 512, 2, 2, True, 8))]
    assert lengths == sorted(lengths, reverse=True)
    assert all(length % 4_096 == 0 for length in lengths[:-1])
    assert lengths[-1] < 4_096
    assert lengths.count(28_672) > 20


@pytest.mark.parametrize(("num_classes", "odd"), [(99_999, 159), (100_000, 160), (10_007, 23), (5_001, 905)])
def test_products_over_many_classes_have_no_odd_end(num_classes, odd):
    lengths = [
        stop - start
        for start, stop in on_a_gpu(Sizes(num_classes, 4096 if num_classes > 50_000 else 64, 512, 2, 2, False, 8))
    ]
    assert lengths[-1] == odd
    assert all(length % 8 == 0 for length in lengths[:-1])


def test_steps_of_a_training_share_one_list_of_chunks():
    given = (120, 24, 2)
    first, second = (borrowing_chunks(Sizes(40, 3, 1, 4, 4, False), *given) for _ in range(2))
    assert first is second
