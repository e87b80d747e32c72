import pytest
import torch
from torch import nn

from maxsep.lab.engine.checkpoint import CheckpointError, Point, RandomStates, State, pack, unpack


def make(optimiser, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    return network, optimiser(network.parameters())


def advance(network, optimiser):
    images = torch.ones(2, 3, 5, 5) * torch.arange(2).view(2, 1, 1, 1)
    network(images).square().sum().backward()
    optimiser.step()
    optimiser.zero_grad()


OPTIMISERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "no momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_restored_run_takes_the_same_steps_in_the_same_memory_order(name):
    network, optimiser = make(OPTIMISERS[name], 0)
    state = State(torch.zeros(4), epoch=2, step=1, permutation=torch.randperm(9), history=[{"epoch": 0}])
    advance(network, optimiser)
    saved = torch.get_rng_state()
    point = pack(state, network, optimiser, {"torch": saved}, {"torch": "2"})
    # a resume point that has been to the disk shares no memory with the run
    point = Point(
        *({key: value.clone() for key, value in part.items()} for part in (point.model, point.tensors)), point.state
    )
    other, other_optimiser = make(OPTIMISERS[name], 1)
    restored = State(torch.ones(4))
    random = unpack(point, restored, other, other_optimiser)
    assert torch.equal(random["torch"], saved)
    assert (restored.epoch, restored.step, restored.history) == (2, 1, [{"epoch": 0}])
    assert torch.equal(restored.permutation, state.permutation)
    assert torch.equal(restored.losses, state.losses)
    advance(network, optimiser)
    advance(other, other_optimiser)
    for (key, mine), theirs in zip(network.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), key
    for parameter, values in other_optimiser.state.items():
        for value in values.values():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                assert value.stride() == parameter.stride()


def test_another_network_is_refused():
    network, optimiser = make(OPTIMISERS["sgd"], 0)
    point = pack(State(torch.zeros(1)), nn.Linear(2, 2), optimiser, {}, {})
    with pytest.raises(CheckpointError, match=r"holds another network: .*weight.* differ in name or shape"):
        unpack(point, State(torch.zeros(1)), network, optimiser)


def test_all_generators_are_put_back():
    random = RandomStates(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), torch.device("cpu"))

    def draw():
        generators = (random.order, random.augmentation, torch.default_generator)
        return [torch.rand(3, generator=generator) for generator in generators]

    states = random.get()
    first = draw()
    assert random.set(states)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(), strict=True))


def test_generators_of_another_kind_of_device_start_anew_and_the_order_goes_on():
    """A state of CUDA's generator is 16 bytes; a CPU's cannot take it."""
    random = RandomStates(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), torch.device("cpu"))
    states = random.get()
    order, augmentation = (torch.rand(3, generator=each) for each in (random.order, random.augmentation))
    there = {name: torch.zeros(16, dtype=torch.uint8) for name in ("augmentation", "mixup", "cuda")}
    random.augmentation.manual_seed(2)
    assert not random.set(states | there)
    assert torch.equal(torch.rand(3, generator=random.order), order)
    assert torch.equal(torch.rand(3, generator=random.augmentation), augmentation)
