"""Resume points: bit for bit what was saved, damage that is always found, and disks that fail."""

import errno
import json
import os
import random
import shutil

import pytest
import torch
from torch import nn

from maxsep.files import sha256_of
from maxsep.lab.engine.checkpoint import (
    CheckpointError,
    Generators,
    Point,
    State,
    clean,
    load_point,
    pack,
    read_point,
    save_point,
    unpack,
)


def point(value=1.0):
    weight = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last) * value
    tensors = {"random.torch": torch.get_rng_state()[None], "permutation": torch.randperm(10)}
    return Point({"weight": weight, "tied": weight}, tensors, {"epoch": 3, "history": [{"loss": 0.1}]})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_point_comes_back_bit_for_bit_without_a_pickle(tmp_path):
    saved = point()
    path = save_point(tmp_path, saved)
    assert names(path) == ["MANIFEST.json", "model.safetensors", "state.json", "train_state.safetensors"]
    loaded = read_point(path)
    assert loaded.state == saved.state
    for mine, other in ((loaded.model, saved.model), (loaded.tensors, saved.tensors)):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) and mine[name].dtype == other[name].dtype for name in mine)


def test_the_last_two_points_are_kept(tmp_path):
    assert load_point(tmp_path / "nothing") is None
    for value in range(1, 5):
        save_point(tmp_path, point(value))
    assert names(tmp_path) == ["save_000002", "save_000003"]
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 4


def test_points_are_ordered_by_number(tmp_path):
    """By name, save_1000000 would come before save_999999 and be deleted as the older one."""
    save_point(tmp_path, point(1.0)).rename(tmp_path / "save_999999")
    for value in (2.0, 3.0):
        save_point(tmp_path, point(value))
    assert names(tmp_path) == ["save_1000000", "save_1000001"]
    shutil.copytree(tmp_path / "save_1000000", tmp_path / "save_9")
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 3


def damage(path, offset, change):
    content = bytearray(path.read_bytes())
    if change == "truncate":
        del content[offset % len(content) :]
    elif change == "append":
        content += b"1234567"
    else:
        content[offset % len(content)] ^= 1 << (offset % 8)
    path.write_bytes(content)


@pytest.mark.parametrize("change", ["truncate", "append", "flip"])
def test_any_damage_is_found_and_named(tmp_path, change):
    good = save_point(tmp_path / "good", point())
    dice = random.Random(7)
    for _ in range(100):
        bad = shutil.copytree(good, tmp_path / "bad")
        damage(bad / dice.choice(names(good)), dice.randrange(10_000), change)
        with pytest.raises(CheckpointError, match="bad/"):
            read_point(bad)
        shutil.rmtree(bad)


def test_a_damaged_point_is_skipped_with_a_warning_and_the_last_good_one_needed(tmp_path):
    first, newest = save_point(tmp_path, point(1.0)), save_point(tmp_path, point(2.0))
    damage(newest / "model.safetensors", 200, "flip")
    with pytest.warns(RuntimeWarning, match="save_000001"):
        assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 1
    (first / "state.json").unlink()
    with pytest.raises(CheckpointError, match="save_000000"):
        load_point(tmp_path)


def test_nonsense_under_a_good_manifest_is_refused(tmp_path):
    path = save_point(tmp_path, Point({"w": torch.tensor([1.0, float("nan")])}, {}, {}))
    with pytest.raises(CheckpointError, match="tensor w"):
        read_point(path)
    (path / "model.safetensors").write_bytes(b"no tensors")
    manifest = json.loads((path / "MANIFEST.json").read_text())
    manifest["files"]["model.safetensors"] = {"size": 10, "sha256": sha256_of(path / "model.safetensors")}
    (path / "MANIFEST.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    with pytest.raises(CheckpointError):
        read_point(path)


def failing(function, failures, number=errno.ENOSPC):
    """Fail the calls whose index is in `failures`."""
    calls = iter(range(10_000))

    def wrapped(*args, **kwargs):
        if next(calls) in failures:
            raise OSError(number, os.strerror(number))
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("function", ["write", "fsync", "open"])
def test_one_failed_call_is_survived(tmp_path, monkeypatch, function, call):
    save_point(tmp_path, point(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing(getattr(os, function), {call}))
        save_point(tmp_path, point(2.0))
    assert names(tmp_path) == ["save_000000", "save_000001"]
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("function", ["write", "fsync", "mkdir", "rename"])
def test_a_disk_that_refuses_leaves_earlier_points_and_no_litter(tmp_path, monkeypatch, function, number):
    save_point(tmp_path, point(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing(getattr(os, function), range(10_000), number))
        with pytest.raises(CheckpointError, match=rf"save_000001 \([\d,]+ bytes\).*{os.strerror(number)}"):
            save_point(tmp_path, point(2.0))
    assert names(tmp_path) == ["save_000000"]
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 1


def test_what_a_killed_save_left_is_no_point_and_is_cleaned(tmp_path):
    save_point(tmp_path, point())
    shutil.copytree(tmp_path / "save_000000", tmp_path / ".save_000001.tmp-123")
    assert load_point(tmp_path) is not None
    clean(tmp_path)
    assert names(tmp_path) == ["save_000000"]


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
def test_a_restored_run_takes_the_same_steps_in_the_same_memory_order(name, tmp_path):
    network, optimiser = make(OPTIMISERS[name], 0)
    state = State(torch.zeros(4), epoch=2, step=1, permutation=torch.randperm(9), history=[{"epoch": 0}])
    advance(network, optimiser)
    own = torch.get_rng_state()
    saved = read_point(save_point(tmp_path, pack(state, network, optimiser, {"torch": own}, {"torch": "2"})))
    other, other_optimiser = make(OPTIMISERS[name], 1)
    restored = State(torch.ones(4))
    assert torch.equal(unpack(saved, restored, other, other_optimiser)["torch"], own)
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


def test_another_network_or_number_of_steps_is_refused():
    network, optimiser = make(OPTIMISERS["sgd"], 0)
    for model, steps, message in ((nn.Linear(2, 2), 1, "weight"), (network, 2, "2 steps per epoch")):
        with pytest.raises(CheckpointError, match=message):
            unpack(pack(State(torch.zeros(steps)), model, optimiser, {}, {}), State(torch.zeros(1)), network, optimiser)


def test_all_generators_are_restored_and_those_of_another_kind_of_device_start_anew():
    """A state of CUDA's generator is 16 bytes; a CPU's cannot take it."""
    generators = Generators(*(torch.Generator().manual_seed(seed) for seed in range(3)))

    def draw():
        return [torch.rand(3, generator=generator) for generator in (*generators, torch.default_generator)]

    states, first = generators.get(), draw()
    assert generators.set(states)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(), strict=True))
    other = {name: torch.zeros(16, dtype=torch.uint8) for name in ("augmentation", "mixup", "cuda")}
    generators.augmentation.manual_seed(1)
    assert not generators.set(states | other)
    assert torch.equal(torch.rand(3, generator=generators.order), first[0])
    assert torch.equal(torch.rand(3, generator=generators.augmentation), first[1])
