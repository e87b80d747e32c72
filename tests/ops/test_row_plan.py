import math

import torch

from maxsep.ops.row_plan import Tile, as_matrix, layout_of, plan_rows, power_of_two, reading, spare, split


def test_a_long_row_is_shared_among_programs():
    chunks, span = split(1, 1_000_000, 2048)
    assert (chunks - 1) * span < 1_000_000 <= chunks * span
    assert chunks > 100
    assert split(1024, 1_000_000, 2048)[0] == 1


def read(x):
    """Where the reading of a row ends, and in which unit."""
    return reading(x.shape, x.stride(), spare(x))[2:]


def test_padding_is_read_along_where_it_is_there():
    buffer = torch.full((4, 16), math.nan)
    bare = torch.randn(4 * 16 - 1).as_strided((4, 15), (16, 1))  # the storage ends with the last class
    assert read(bare) == (15, 1)
    assert read(buffer[:, :15]) == (1, 16)
    assert read(buffer) == (1, 16)
    assert read(torch.randn(3, 9)) == (9, 1)
    assert read(torch.randn(15)[None]) == (15, 1)  # one row may be read to the end of its memory, no further
    assert read(torch.randn(16)[None, :15]) == (1, 16)


def test_a_plan_says_who_takes_what():
    x, out = torch.empty(3, 99), torch.empty(3, 100)
    plan = plan_rows(layout_of(x, out), 99, Tile(2, 16, 4))
    assert plan.grid == (2, plan.shares[1])
    assert plan.shares[0] * plan.shares[1] >= 100
    assert (plan.options["ROWS"], plan.options["BLOCK"], plan.options["num_warps"]) == (2, 16, 4)
    whole = plan_rows(layout_of(x, out), 99, Tile(2, 128, 4), whole=True)
    assert (whole.grid, whole.shares) == ((2, 1), (100, 1))
    assert whole.sums_of_shares(x, 99, 99, 1.0, weighted=False) is x


def test_transposed_matrices_are_known_by_their_strides():
    assert layout_of(torch.empty(5, 3).T, torch.empty(6, 3).T).is_column_major
    assert not layout_of(torch.empty(3, 5), torch.empty(3, 6)).is_column_major


def test_leading_dimensions_are_seen_as_one():
    assert [as_matrix(torch.empty(*shape)).shape for shape in ((4,), (2, 4), (2, 3, 4))] == [(1, 4), (2, 4), (6, 4)]


def test_powers_of_two_start_at_16():
    assert [power_of_two(number) for number in (1, 16, 17, 1000)] == [16, 16, 32, 1024]
