import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.detect.class_moments import ClassMoments


def by_the_book(x, y):
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    centred = torch.cat([x[y == label] - x[y == label].mean(0) for label in y.unique()])
    return means, centred.T @ centred


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(0, 6), min_size=0, max_size=6),
    offset=st.sampled_from([0.0, 1e3, -1e7]),
)
def test_any_division_into_batches_gives_the_moments_of_the_whole(seed, sizes, offset):
    sizes = [3, *sizes]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(sum(sizes), 3, dtype=torch.float64, generator=generator)
    y = torch.randint(-2, 5, (sum(sizes),), generator=generator)
    moments = ClassMoments()
    for rows, labels in zip((noise + offset).split(sizes), y.split(sizes), strict=True):
        moments.add(rows, labels)
    means, scatter = by_the_book(noise, y)
    tolerance = 1e-12 + 1e-14 * abs(offset)  # the input itself is rounded at this size
    assert moments.classes.tolist() == y.unique().tolist()
    assert moments.counts.tolist() == [int((y == label).sum()) for label in y.unique()]
    torch.testing.assert_close(moments.means - offset, means, rtol=0, atol=tolerance)
    torch.testing.assert_close(moments.scatter, scatter, rtol=1e-12, atol=100 * tolerance)


def test_half_precision_is_accumulated_in_double():
    moments = ClassMoments()
    x = torch.tensor([[1024.0], [1025.0]]).half()
    for _ in range(100):
        moments.add(x, torch.zeros(2, dtype=torch.int32))
    assert moments.means.tolist() == [[1024.5]]
    assert moments.scatter.item() == pytest.approx(200 * 0.25, rel=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "kind", "message"),
    [
        (torch.ones(2), torch.zeros(2).long(), ValueError, r"must be \(N, D\) and labels a tensor \(N,\), got \(2,\)"),
        (torch.ones(2, 3), torch.zeros(3).long(), ValueError, r"got \(2, 3\) and \(3,\)"),
        (torch.ones(2, 3), [0, 1], ValueError, r"got \(2, 3\) and list"),
        (torch.ones(2, 3), torch.zeros(2), TypeError, "labels must be whole numbers, got dtype torch.float32"),
        (torch.ones(2, 3), torch.zeros(2).bool(), TypeError, "labels must be whole numbers, got dtype torch.bool"),
        (torch.ones(2, 3).long(), torch.zeros(2).long(), TypeError, "features must be a real floating-point tensor"),
        (torch.ones(0, 3), torch.zeros(0).long(), ValueError, "the first batch is empty"),
        (
            torch.tensor([[1.0, float("nan")]]),
            torch.zeros(1).long(),
            ValueError,
            "features hold NaN or infinite values",
        ),
        (
            torch.tensor([[1.0, float("inf")]]),
            torch.zeros(1).long(),
            ValueError,
            "features hold NaN or infinite values",
        ),
    ],
)
def test_bad_batches_are_explained(x, y, kind, message):
    with pytest.raises(kind, match=message):
        ClassMoments().add(x, y)


def test_a_change_of_width_is_explained():
    moments = ClassMoments()
    moments.add(torch.ones(2, 3), torch.zeros(2).long())
    with pytest.raises(ValueError, match="this batch has 4 features, the ones before had 3"):
        moments.add(torch.ones(2, 4), torch.zeros(2).long())
