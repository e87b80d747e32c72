"""The split of classes over ranks; what the ranks compute together is in tests/heads/test_class_parallel.py."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from maxsep.ops.sharded import Shard

from maxsep.simplex import coefficients


@given(classes=st.integers(2, 300), ranks=st.integers(1, 17))
def test_every_class_has_one_owner_and_shares_are_equal(classes, ranks):
    shards = Shard(classes, 0, ranks).others()
    owned = [(shard.rank, label) for shard in shards for label in range(shard.start, shard.stop)]
    assert [label for _, label in owned] == list(range(classes))
    assert shards[0].owner(torch.arange(classes)).tolist() == [rank for rank, _ in owned]
    sizes = [shard.num_columns for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    rows = [row for shard in shards for row in range(*shard.rows)]
    assert rows == list(range(classes - 1))


@given(classes=st.integers(2, 60), ranks=st.integers(1, 9))
def test_the_coefficients_of_a_rank_are_those_of_its_rows(classes, ranks):
    whole = coefficients(classes)
    for shard in Shard(classes, 0, ranks).others():
        own = shard.scaled_coefficients(0.5, torch.empty(0, dtype=torch.float64))
        for found, expected in zip(own, whole, strict=True):
            assert torch.equal(found, 0.5 * expected[slice(*shard.rows)])


def test_owners_are_exact_at_ten_million_classes():
    shard = Shard(10_000_000, 5, 7)
    edges = torch.tensor([shard.start - 1, shard.start, shard.stop - 1, shard.stop])
    assert shard.owner(edges).tolist() == [4, 5, 5, 6]
