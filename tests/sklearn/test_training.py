"""The loop: batches that cover everything, the loss that is meant, random numbers that belong to it alone."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from maxsep import heads
from maxsep.losses import LogitAdjustedLoss
from maxsep.sklearn.samples import Samples
from maxsep.sklearn.training import Best, DrawnFrom, Training, own_modes


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Watched(nn.Module):
    """A layer that remembers the first feature of what it was given."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 2, dtype=torch.float64), []

    def forward(self, x):
        self.seen.append(x[:, 0].tolist())
        return self.layer(x)


@given(rows=st.integers(1, 40), batch_size=st.integers(1, 50))
def test_an_epoch_sees_every_sample_once_in_parts_of_one_size(rows, batch_size):
    network = Watched()
    samples = Samples(torch.arange(rows).double()[:, None], torch.zeros(rows, dtype=torch.long), torch.ones(rows))
    training = Training(network, torch.zeros(2), batch_size, seeded(), {"lr": 0.0}, {})
    training.epoch(samples)
    sizes = [len(part) for part in network.seen]
    assert sorted(chain(*network.seen)) == list(range(rows))
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-rows // batch_size)


def test_the_order_changes_from_epoch_to_epoch_and_follows_the_generator():
    samples = Samples(torch.arange(9.0).double()[:, None], torch.zeros(9, dtype=torch.long), torch.ones(9))
    orders = []
    for seed in (0, 0, 1):
        network = Watched()
        training = Training(network, torch.zeros(2), 3, seeded(seed), {"lr": 0.0}, {})
        training.epoch(samples), training.epoch(samples)
        orders.append(network.seen)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:3] != orders[0][3:]


def test_the_loss_is_logit_adjustment_and_weights_multiply():
    network, generator = nn.Linear(3, 4, dtype=torch.float64), seeded()
    x, target = torch.randn(20, 3, dtype=torch.float64, generator=generator), torch.arange(20) % 4
    counts = torch.tensor([50, 20, 5, 1])
    training = Training(network, (counts / counts.sum().double()).log(), 20, generator, {"lr": 0.0}, {})
    samples = Samples(x, target, torch.ones(20, dtype=torch.float64))
    expected = LogitAdjustedLoss(counts)(network(x), target)
    assert training.loss(samples).item() == pytest.approx(expected.item(), abs=1e-12)
    assert training.validate(samples) == training.epoch(samples) == pytest.approx(expected.item(), abs=1e-12)
    plain = Training(network, torch.zeros(4), 20, generator, {"lr": 0.0}, {})
    weight = torch.rand(20, dtype=torch.float64, generator=generator)
    values = F.cross_entropy(network(x), target, reduction="none")
    assert plain.loss(Samples(x, target, weight)).item() == pytest.approx((weight * values).mean().item(), abs=1e-12)


def test_a_state_carries_the_momentum_and_not_the_options():
    samples = Samples(torch.eye(2), torch.tensor([0, 1]), torch.ones(2))
    options = {"lr": 0.1, "momentum": 0.9}
    whole, parts = nn.Linear(2, 2), nn.Linear(2, 2)
    parts.load_state_dict(whole.state_dict())
    through = Training(whole, torch.zeros(2), 2, seeded(), options, {})
    through.epoch(samples), through.epoch(samples)
    first = Training(parts, torch.zeros(2), 2, seeded(), options, {})
    first.epoch(samples)
    second = Training(parts, torch.zeros(2), 2, seeded(), options, first.state())
    second.epoch(samples)
    assert whole.weight.equal(parts.weight)
    still = Training(parts, torch.zeros(2), 2, seeded(), {"lr": 0.0, "momentum": 0.9}, second.state())
    still.epoch(samples)
    assert whole.weight.equal(parts.weight)


@pytest.mark.parametrize("name", heads.names())
def test_heads_start_from_the_generator_alone(name):
    options = {"iterations": 10} if name == "hpn" else {}
    with DrawnFrom(seeded(0)):
        before = torch.get_rng_state()
        first, torch_draws = heads.build(name, 8, 5, **options), torch.randn(3)
        assert torch.get_rng_state().equal(before)
    torch.manual_seed(7)
    with DrawnFrom(seeded(0)):
        again, torch_again = heads.build(name, 8, 5, **options), torch.randn(3)
    torch.manual_seed(0)
    globally = heads.build(name, 8, 5, **options)
    assert torch_draws.equal(torch_again)
    for one, two, three in zip(first.parameters(), again.parameters(), globally.parameters(), strict=True):
        assert one.equal(two)
        assert one.equal(three)  # what the same seed gives otherwise


def test_a_generator_that_is_given_is_kept():
    with DrawnFrom(seeded(0)):
        assert torch.rand(2, generator=seeded(5)).equal(torch.rand(2, generator=seeded(5)))
        assert torch.empty(2).uniform_().equal(torch.rand(2, generator=seeded(0)))
        assert nn.init.normal_(torch.empty(2), generator=seeded(5)).equal(torch.randn(2, generator=seeded(5)))


def test_modes_are_put_back():
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        with own_modes():
            assert nn.Linear(2, 2)(torch.ones(1, 2)).requires_grad
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")


def test_the_best_epoch_comes_back():
    network = nn.Linear(1, 1)
    best = Best(network, patience=2)
    over = []
    for number, loss in enumerate((3.0, 1.0, 2.0, 1.0)):  # as good again is no better
        nn.init.constant_(network.weight, number)
        over.append(best.is_over_after(loss))
    best.restore()
    assert over == [False, False, False, True]
    assert network.weight.item() == 1
    assert best.curve == [3.0, 1.0, 2.0, 1.0]
