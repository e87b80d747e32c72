"""Recall at 1: by hand, by brute force, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.analysis import recall_at_1, retrieval


@given(st.integers(2, 40), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_it_is_what_a_loop_over_all_pairs_finds(gallery, queries, width, same):
    torch.manual_seed(gallery * queries)
    queries = gallery if same else queries
    q, g = torch.randn(queries, width), torch.randn(gallery, width)
    mine, theirs = torch.randint(3, (queries,)), torch.randint(3, (gallery,))
    hits = 0
    for i in range(queries):
        near = [-2.0 if same and i == j else torch.cosine_similarity(q[i], g[j], dim=0).item() for j in range(gallery)]
        best = max(near)
        # in one dimension cosines tie; of equals any may be taken
        hits += any(theirs[j] == mine[i] for j in range(gallery) if near[j] >= best - 1e-6)
    found = recall_at_1(q, mine, g, theirs, same_images=same)
    assert found <= hits / queries + 1e-9
    if width > 1:
        assert found == pytest.approx(hits / queries)


def test_blocks_of_queries_know_their_own_place(monkeypatch):
    points = torch.nn.functional.one_hot(torch.arange(10) // 2, 5).float() + 0.01 * torch.randn(10, 5)
    labels = torch.arange(10) // 2
    whole = recall_at_1(points, labels, points, labels, same_images=True)
    monkeypatch.setattr(retrieval, "_BLOCK", 3)
    assert recall_at_1(points, labels, points, labels, same_images=True) == whole == 1.0


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        (
            (torch.ones(2, 3), torch.zeros(2), torch.ones(2, 4), torch.zeros(2)),
            {},
            r"\(Q, D\) and \(G, D\), got \(2, 3\)",
        ),
        (
            (torch.ones(2, 3), torch.zeros(3), torch.ones(2, 3), torch.zeros(2)),
            {},
            "query_labels must have one label for",
        ),
        ((torch.ones(2, 3), torch.zeros(2), torch.ones(2, 3), torch.zeros(1)), {}, "gallery_labels must have one"),
        (
            (torch.ones(2, 3), torch.zeros(2), torch.ones(4, 3), torch.zeros(4)),
            {"same_images": True},
            "same_images needs as many queries as gallery rows, got 2 and 4",
        ),
        (
            (torch.full((2, 3), torch.nan), torch.zeros(2), torch.ones(2, 3), torch.zeros(2)),
            {},
            "must be finite numbers",
        ),
        ((torch.ones(0, 3), torch.zeros(0), torch.ones(2, 3), torch.zeros(2)), {}, "there is nothing to find"),
        (
            (torch.ones(1, 3), torch.zeros(1), torch.ones(1, 3), torch.zeros(1)),
            {"same_images": True},
            "there is nothing to find",
        ),
    ],
)
def test_what_is_refused(arguments, options, told):
    with pytest.raises(ValueError, match=told):
        recall_at_1(*arguments, **options)


def test_arrays_are_told_to_become_tensors():
    points, labels = torch.ones(2, 3), torch.zeros(2)
    with pytest.raises(TypeError, match=r"gallery must be a tensor, got ndarray. Use torch.as_tensor."):
        recall_at_1(points, labels, points.numpy(), labels)
