"""Chunks cover the classes once, start where the running sums do, and keep within their memory."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.ops.fused.chunks import Scratch, Sizes, borrowing_chunks, equal_chunks, most_bytes, own_bytes

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


def assert_covers(chunks, sizes, grain):
    assert [edge for chunk in chunks for edge in chunk][1:-1:2] == [edge for chunk in chunks for edge in chunk][2::2]
    assert (chunks[0][0], chunks[-1][1]) == (0, sizes.num_classes)
    assert all(start % grain == 0 and start < stop for start, stop in chunks)


@given(sizes=sizes, grain=grains, most=st.integers(1, 10**6))
def test_equal_chunks(sizes, grain, most):
    chunks = equal_chunks(sizes, most, grain)
    assert_covers(chunks, sizes, grain)
    assert all((stop - start) * sizes.per_class <= most or stop - start <= grain for start, stop in chunks)


@given(sizes=sizes, grain=grains, most=st.integers(1, 10**6), own=st.integers(1, 10**5))
def test_borrowing_chunks(sizes, grain, most, own):
    chunks = borrowing_chunks(sizes, most, own, grain)
    assert_covers(chunks[::-1], sizes, grain)
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
        assert (gradient[stop:] == 7).all()
        gradient[start:stop] = 7
    assert (gradient == 7).all()


def test_most_of_the_chunks_borrow_at_the_size_that_matters():
    sizes = Sizes(100_000, 4096, 512, 2, 2, True, 8)
    own = own_bytes(sizes, torch.device("cuda"), "triton")
    chunks = borrowing_chunks(sizes, most_bytes(torch.device("cuda")), own, 256)
    assert len(chunks) < 45  # equal ones within the same memory would be 196
    assert max((stop - start) * sizes.per_class for start, stop in chunks) > 10 * own
    spare = torch.empty(4096, 512, dtype=torch.bfloat16)
    gradient = torch.empty(100_000, 512, dtype=torch.bfloat16)
    scratch = Scratch(sizes, chunks, gradient, spare, spare)
    places = {logits.untyped_storage().data_ptr() for logits, _ in (scratch.take(*chunk) for chunk in chunks)}
    assert places == {tensor.untyped_storage().data_ptr() for tensor in (gradient, spare)}  # none of its own
