"""The order of images where clients take turns, `maxsep.lab.engine.rounds`."""

import torch

from maxsep.lab.engine.order import Order
from maxsep.lab.engine.rounds import Rounds
from maxsep.lab.spec import RunSpec

LABELS = torch.arange(26) % 3
SPEC = RunSpec(batch_size=32, clients=4, concentration=0.5, local_epochs=2)


def test_a_round_is_one_client_after_the_other():
    spec = RunSpec(clients=3, concentration=1.0, local_epochs=2, batch_size=4)
    order = Rounds(spec, LABELS)
    drawn, sizes = order.draw(0, torch.Generator().manual_seed(1)), order.sizes().long().tolist()
    assert len(drawn) == sum(sizes) == order.images == 52
    assert len(sizes) == order.steps == order.ends[-1]
    batches = torch.split(drawn, sizes)
    for client, own in enumerate(order.clients):
        mine = [batch for position, batch in enumerate(batches) if order.client(position) == client]
        passes = torch.cat(mine).view(2, -1)
        assert all(sorted(each.tolist()) == own.tolist() for each in passes)
        places = [order.place(p) for p in range(order.steps) if order.client(p) == client]
        assert places == [(number, len(mine)) for number in range(len(mine))]


def test_the_clients_are_those_of_every_seed_and_of_another_subset_seed_others():
    first, other = (Rounds(SPEC.replace(seed=seed), LABELS).clients for seed in (0, 1))
    assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    third = Rounds(SPEC.replace(subset_seed=1), LABELS).clients
    assert any(not torch.equal(one, two) for one, two in zip(first, third, strict=True))


def test_one_client_has_the_order_of_ordinary_training():
    alone, usual = Rounds(RunSpec(clients=1, batch_size=8), LABELS), Order(RunSpec(batch_size=8), LABELS)
    drawn = [order.draw(0, torch.Generator().manual_seed(1)) for order in (alone, usual)]
    assert torch.equal(*drawn)
    assert alone.sizes().tolist() == usual.sizes().tolist()
    assert [alone.place(p) for p in range(4)] == [usual.place(p) for p in range(4)]
