from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data import ImageSet
from maxsep.lab.engine.optim import build_optimiser, learning_rate
from maxsep.lab.engine.step import Step
from maxsep.lab.spec import RunSpec
from maxsep.losses import mixup


def make(rank=0, world=1, calls=None, spec=None):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    images = ImageSet(torch.arange(40, dtype=torch.uint8).view(10, 1, 2, 2), torch.arange(10) % 3, ("a", "b", "c"))
    fabric = SimpleNamespace(
        device=torch.device("cpu"),
        world_size=world,
        global_rank=rank,
        backward=lambda loss: loss.backward(),
        all_reduce=lambda tensor, reduce_op: tensor,
    )

    def augment(batch, generator):
        if calls is not None:
            calls.append(batch[:, 0, 0, 0].tolist())
        return batch.double() / 40

    return Step(
        spec=spec or RunSpec(),
        fabric=fabric,
        model=network,
        network=network,
        optimiser=torch.optim.SGD(network.parameters(), lr=0.5),
        loss=F.cross_entropy,
        images=images,
        augment=augment,
        generator=torch.Generator(),
        mixing=torch.Generator().manual_seed(5),
    )


def test_a_step_trains_on_the_asked_images_with_the_asked_rate():
    calls = []
    step = make(calls=calls)
    before = step.network[1].weight.detach().clone()
    step.at(0, 0, 0.0)
    step(torch.tensor([7, 2]))
    assert calls == [[28, 8]]
    assert torch.equal(step.network[1].weight, before)
    step.at(0, 1, 0.25)
    loss = step(torch.tensor([7, 2]))
    assert not torch.equal(step.network[1].weight, before)
    assert not loss.requires_grad


@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_the_mean_over_processes_is_the_mean_over_images(size):
    indices = torch.arange(size)

    def gradient(rank, world):
        step = make(rank, world)
        step.at(0, 0, 0.1)
        loss = step(indices)
        return step.network[1].weight.grad, loss

    whole, loss = gradient(0, 1)
    parts = [gradient(rank, 3) for rank in range(3)]
    torch.testing.assert_close(torch.stack([grad for grad, _ in parts]).mean(0), whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.stack([part for _, part in parts]).mean(), loss, rtol=1e-12, atol=1e-14)


def test_mixup_mixes_images_and_losses_by_one_share():
    step = make(spec=RunSpec(mixup=1.0))
    step.network.float()
    step.at(0, 0, 0.0)
    indices = torch.tensor([7, 2, 5, 0, 9, 4])
    images, labels = step.images.images[indices] / 40, step.images.labels[indices]
    x, first, second, share = mixup(images, labels, 1.0, torch.Generator().manual_seed(5))
    logits = step.network(x)
    expected = share * F.cross_entropy(logits, first) + (1 - share) * F.cross_entropy(logits, second)
    torch.testing.assert_close(step(indices), expected)
    assert 0 < share < 1
    assert not torch.equal(first, second)
    assert step.generators == (step.generator, step.mixing)


class NoWaiting(TorchDispatchMode):
    """Fails on operations that make the host wait for the device or whose result shape depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh"), name
        return function(*args, **(kwargs or {}))


def test_a_new_rate_for_every_step_reaches_a_captured_one_without_waiting():
    step, spec = make(), RunSpec(schedule="cosine_steps", epochs=2, nesterov=True)
    step.network.float()
    step.optimiser = build_optimiser(spec, step.network, capturable=True)
    tensor = step.optimiser.param_groups[0]["lr"]
    expected = [learning_rate(spec, epoch, position, 5) for epoch in range(2) for position in range(5)]
    found = []
    for number, rate in enumerate(expected):
        with NoWaiting():
            step.at(number // 5, number % 5, rate)
        found.append(tensor.item())
    assert step.optimiser.param_groups[0]["lr"] is tensor  # a graph reads this very memory
    assert found == pytest.approx(expected, rel=1e-7)
    assert len(set(found)) == 10


def test_a_step_with_mixup_can_be_captured():
    step = make(spec=RunSpec(mixup=1.0))
    step.network.float()
    step.watch = step.watch_gradients = False  # as on a device that must not be waited for
    step.at(0, 0, 0.1)
    with NoWaiting():
        loss = step(torch.arange(6))
    assert bool(loss.isfinite())
