import errno
import json
import os
import random
import shutil

import pytest
import torch

from maxsep.lab.engine import checkpoint
from maxsep.lab.engine.checkpoint import CheckpointError, Point, clean, load_point, read_point, save_point


def point(value=1.0):
    weight = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last) * value
    tensors = {"random.torch": torch.get_rng_state()[None], "permutation": torch.randperm(10)}
    return Point({"weight": weight, "tied": weight}, tensors, {"epoch": 3, "history": [{"loss": 0.1}]})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_point_comes_back_bit_for_bit(tmp_path):
    saved = point()
    loaded = read_point(save_point(tmp_path, saved))
    assert loaded.state == saved.state
    for mine, other in ((loaded.model, saved.model), (loaded.tensors, saved.tensors)):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) and mine[name].dtype == other[name].dtype for name in mine)


def test_nothing_in_a_point_is_a_pickle(tmp_path):
    assert names(save_point(tmp_path, point())) == [
        "MANIFEST.json",
        "model.safetensors",
        "state.json",
        "train_state.safetensors",
    ]


def test_the_last_two_points_are_kept(tmp_path):
    for value in range(1, 5):
        save_point(tmp_path, point(value))
    assert names(tmp_path) == ["save_000002", "save_000003"]
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 4


def test_no_point_is_no_error(tmp_path):
    assert load_point(tmp_path / "nothing") is None


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
        bad = tmp_path / "bad"
        shutil.copytree(good, bad)
        name = dice.choice(names(good))
        damage(bad / name, dice.randrange(10_000), change)
        with pytest.raises(CheckpointError, match=r"bad/.*(is damaged: expected|missing or damaged)"):
            read_point(bad)
        shutil.rmtree(bad)


def test_a_damaged_point_is_passed_over_loudly(tmp_path):
    save_point(tmp_path, point(1.0))
    newest = save_point(tmp_path, point(2.0))
    damage(newest / "model.safetensors", 200, "flip")
    with pytest.warns(RuntimeWarning, match=r"save_000001/model.safetensors is damaged: expected \d+ bytes with SHA"):
        loaded = load_point(tmp_path)
    assert loaded.model["weight"][0, 0, 0, 1] == 1


def test_if_all_points_are_damaged_the_way_out_is_told(tmp_path):
    (save_point(tmp_path, point()) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state.json cannot be read.*Delete that folder to start"):
        load_point(tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    path = save_point(tmp_path, Point({"w": torch.tensor([1.0, float("nan")])}, {}, {}))
    with pytest.raises(CheckpointError, match="the tensor w is not finite"):
        read_point(path)


def test_a_manifest_over_nonsense_is_refused(tmp_path):
    path = save_point(tmp_path, point())
    content = b"no tensors"
    (path / "model.safetensors").write_bytes(content)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    digest = checkpoint.hashlib.sha256(content).hexdigest()
    manifest["files"]["model.safetensors"] = {"size": len(content), "sha256": digest}
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="cannot be read"):
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
    monkeypatch.setattr(os, function, failing(getattr(os, function), {call}))
    save_point(tmp_path, point(2.0))
    monkeypatch.undo()
    assert names(tmp_path) == ["save_000000", "save_000001"]
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 2


@pytest.mark.parametrize("function", ["write", "fsync", "mkdir", "rename"])
def test_a_full_disk_leaves_earlier_points_and_no_litter(tmp_path, monkeypatch, function):
    save_point(tmp_path, point(1.0))
    monkeypatch.setattr(os, function, failing(getattr(os, function), range(10_000)))
    with pytest.raises(CheckpointError, match=r"save_000001 \([\d,]+ bytes\).*No space left.*Free some space"):
        save_point(tmp_path, point(2.0))
    monkeypatch.undo()
    assert names(tmp_path) == ["save_000000"]
    assert load_point(tmp_path).model["weight"][0, 0, 0, 1] == 1


def test_what_a_killed_save_left_is_no_point_and_is_cleaned(tmp_path):
    save_point(tmp_path, point())
    shutil.copytree(tmp_path / "save_000000", tmp_path / "save_000001.tmp-123")
    assert load_point(tmp_path) is not None
    clean(tmp_path)
    assert names(tmp_path) == ["save_000000"]
