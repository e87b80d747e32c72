"""Chunks cover the classes once, start where the running sums do, and keep within their memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.ops.fused.chunks import Scratch, Sizes, borrowing_chunks, equal_chunks, most_bytes, own_bytes, wave

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
    assert_covers(chunks[::-1], sizes, grain)
    whole = chunks if chunks[0][1] - chunks[0][0] > grain else chunks[1:]  # an odd end may stand alone
    assert_whole_waves([stop - start for start, stop in whole[1:-1]], wave * grain)  # both ends have what is left
    for start, stop in chunks:
        taken, below = (stop - start) * sizes.per_class, start * sizes.row
        folded = (stop - start) * sizes.per_folded
        fits = taken <= max(own, below) or (taken - folded <= own and folded <= below)
        assert stop - start <= grain or (taken <= most and fits)


@given(sizes=sizes, grain=grains, most=st.integers(1, 10**5), own=st.integers(1, 10**4), spare=st.booleans())
def test_scratch_never_touches_what_is_written(sizes, grain, most, own, spare):
    chunks = borrowing_chunks(sizes, most, own, grain)
    gradient = torch.zeros(sizes.num_classes, sizes.row, dtype=torch.int8)
    like = torch.empty(0, dtype={2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[sizes.item])
    scratch = Scratch(sizes, chunks, gradient, like, like.new_empty(sizes.batch, sizes.width) if spare else None)
    for start, stop in chunks:
        logits, weight = scratch.take(start, stop)
        assert logits.shape == (sizes.batch, stop - start)
        assert weight.shape == ((stop - start, sizes.width) if sizes.folds else (0, 0))
        logits.fill_(1.5)
        weight.fill_(2.5)
        assert (logits == 1.5).all()
        assert scratch.take(start, stop)[0] is logits  # so that what describes it to a kernel can be kept
        assert (gradient[stop:] == 7).all()
        gradient[start:stop] = 7
    assert (gradient == 7).all()


def test_most_of_the_chunks_borrow_at_the_size_that_matters():
    sizes = Sizes(100_000, 4096, 512, 2, 2, True, 8)
    own = own_bytes(sizes, torch.device("cuda"), "triton")
    chunks = borrowing_chunks(sizes, most_bytes(torch.device("cuda")), own, 256, wave(torch.device("cuda")))
    assert len(chunks) <= 45  # equal ones within the same memory would be 196
    assert max((stop - start) * sizes.per_class for start, stop in chunks) > 10 * own
    spare = torch.empty(4096, 512, dtype=torch.bfloat16)
    gradient = torch.empty(100_000, 512, dtype=torch.bfloat16)
    scratch = Scratch(sizes, chunks, gradient, spare, spare)
    places = {logits.untyped_storage().data_ptr() for logits, _ in (scratch.take(*chunk) for chunk in chunks)}
    assert places == {tensor.untyped_storage().data_ptr() for tensor in (gradient, spare)}  # none of its own


def test_chunks_of_a_gpu_fill_its_processors():
    cuda = torch.device("cuda")
    sizes = Sizes(1_000_000, 4096, 512, 2, 2, True, 8)
    given = (most_bytes(cuda), own_bytes(sizes, cuda, "triton"), 256, wave(cuda))
    lengths = [stop - start for start, stop in borrowing_chunks(sizes, *given)]
    assert 16_384 - 256 < lengths[0] <= 16_384
    assert set(lengths[1:-1]) == {16_384, 12_288, 8_192, 4_096}
    assert lengths[-1] < 4_096
    assert lengths.count(16_384) > 45


@pytest.mark.parametrize(("num_classes", "odd"), [(99_999, 159), (100_000, 0), (10_007, 23), (5_001, 0)])
def test_products_over_many_classes_have_no_odd_end(num_classes, odd):
    cuda = torch.device("cuda")
    sizes = Sizes(num_classes, 4096 if num_classes > 50_000 else 64, 512, 2, 2, False, 8)
    given = (most_bytes(cuda), own_bytes(sizes, cuda, "triton"), 256, wave(cuda))
    lengths = [stop - start for start, stop in borrowing_chunks(sizes, *given)]
    assert (lengths[0] == odd) == bool(odd)
    assert all(length % 8 == 0 for length in lengths[1:])
    assert lengths[0] % 8 == 0 or lengths[0] < 4096


def test_steps_of_a_training_share_one_list_of_chunks():
    given = (120, 24, 2)
    first, second = (borrowing_chunks(Sizes(40, 3, 1, 4, 4, False), *given) for _ in range(2))
    assert first is second
