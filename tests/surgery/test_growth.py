import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep import simplex
from maxsep.surgery.growth import grow_rows, grow_squares

CLASSES, MORE = st.integers(2, 60), st.integers(1, 20)


def dense_map(num_classes: int, more: int) -> torch.Tensor:
    """The definition: compose with P, append zero rows, undo P'."""
    total = num_classes + more
    old, new = simplex(num_classes, dtype=torch.float64), simplex(total, dtype=torch.float64)
    return (total - 1) / total * new[:, :num_classes] @ old.T


@given(CLASSES, MORE, st.integers(0, 2**31))
def test_one_running_sum_equals_the_definition(num_classes, more, seed):
    rows = torch.randn(num_classes - 1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = dense_map(num_classes, more) @ rows
    torch.testing.assert_close(grow_rows(rows, more), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(grow_rows(rows[:, 0], more), expected[:, 0], rtol=0, atol=1e-12)


@given(CLASSES, MORE, st.integers(0, 2**31))
def test_squares_use_the_squared_map_where_there_is_a_past_and_the_mean_elsewhere(num_classes, more, seed):
    rows = torch.rand(num_classes - 1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = dense_map(num_classes, more).square() @ rows
    expected[num_classes:] = rows.mean(0)
    torch.testing.assert_close(grow_squares(rows, more), expected, rtol=0, atol=1e-12)


@given(CLASSES, MORE, MORE)
def test_growing_twice_is_growing_once(num_classes, first, second):
    rows = torch.randn(num_classes - 1, 2, dtype=torch.float64)
    twice = grow_rows(grow_rows(rows, first), second)
    torch.testing.assert_close(twice, grow_rows(rows, first + second), rtol=0, atol=1e-12)


def test_many_classes_in_linear_memory():
    rows = torch.randn(1_000_000)
    assert grow_rows(rows, 5).shape == (1_000_005,)
    assert grow_squares(rows.square(), 5).min() >= 0
