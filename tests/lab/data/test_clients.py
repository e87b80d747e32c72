import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.lab.data import dirichlet_clients

LABELS = torch.arange(200) % 4


@st.composite
def shared(draw):
    labels = torch.tensor(draw(st.lists(st.integers(0, 5), min_size=1, max_size=60)))
    clients = draw(st.integers(1, len(labels)))
    return labels, clients, draw(st.floats(1e-4, 1e4)), draw(st.integers(0, 2**32 - 1))


@given(shared())
def test_every_image_goes_to_one_client_and_no_client_is_empty(given):
    labels, clients, _, _ = given
    found = dirichlet_clients(*given)
    assert len(found) == clients
    assert min(map(len, found)) >= 1
    assert sorted(torch.cat(found).tolist()) == list(range(len(labels)))
    assert all(torch.equal(own, own.sort().values) for own in found)


@given(shared())
def test_the_seed_decides_alone(given):
    state = torch.get_rng_state()
    first, again = dirichlet_clients(*given), dirichlet_clients(*given)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert torch.equal(state, torch.get_rng_state())


def unevenness(concentration, seed):
    """The mean over classes of sum p^2, with p the clients' parts of a class: 1 / clients to 1."""
    found = dirichlet_clients(LABELS, 5, concentration, seed)
    counts = torch.stack([torch.bincount(LABELS[own], minlength=4) for own in found]).double()
    return float(((counts / counts.sum(dim=0)) ** 2).sum(dim=0).mean())


def test_a_larger_concentration_is_more_even():
    means = [sum(unevenness(c, seed) for seed in range(50)) / 50 for c in (0.01, 0.1, 1.0, 10.0, 1e4)]
    assert means == sorted(means, reverse=True)
    # for a symmetric Dirichlet over K: E sum p^2 = (a + 1) / (K a + 1)
    for concentration, mean in zip((0.1, 1.0, 10.0), means[1:4], strict=True):
        assert mean == pytest.approx((concentration + 1) / (5 * concentration + 1), abs=0.06)
    assert means[-1] == pytest.approx(1 / 5, abs=0.001)
    assert means[0] > 0.9


def test_seeds_differ_and_one_client_has_all():
    first, other = (dirichlet_clients(LABELS, 5, 0.1, seed) for seed in (0, 1))
    assert any(not torch.equal(one, two) for one, two in zip(first, other, strict=True))
    (alone,) = dirichlet_clients(LABELS, 1, 0.1, seed=3)
    assert alone.tolist() == list(range(200))


def test_an_empty_client_gets_an_image_of_the_largest():
    found = dirichlet_clients(torch.zeros(10, dtype=torch.int64), 4, 1e-6, seed=0)
    assert sorted(map(len, found)) == [1, 1, 1, 7]


@pytest.mark.parametrize(
    ("clients", "concentration", "told"),
    [
        (201, 0.1, "200 training images cannot be shared by 201 clients, each of which needs one"),
        (0, 0.1, "200 training images cannot be shared by 0 clients"),
        (2, 0.0, "concentration must be a positive finite number, got 0.0. 0.1 is usual"),
        (2, float("inf"), "concentration must be a positive finite number, got inf"),
        (2, float("nan"), "concentration must be a positive finite number, got nan"),
    ],
)
def test_what_cannot_be_shared(clients, concentration, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        dirichlet_clients(LABELS, clients, concentration)
