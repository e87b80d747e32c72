import json

import pytest
import torch

from maxsep.lab import recipes
from maxsep.lab.recipes.timing import time_inference


def read(folder):
    return json.loads((folder / "timing.json").read_text())["rows"]


class Contest:
    """Small models instead of networks, a clock that moves with each of them, and a list of who was built."""

    def __init__(self, seconds=1.0):
        self.built, self.now, self.seconds = [], 0.0, seconds

    def __call__(self):
        return self.now

    def build(self, spec, classes):
        self.built.append((spec.dataset, spec.head))
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, classes))
        model.register_forward_hook(self.tick)
        return model

    def tick(self, *_):
        self.now += self.seconds

    def time(self, specs, folder, batch_size=2, **more):
        return time_inference(specs, folder, device="cpu", batch_size=batch_size, repeats=3, build=self.build, **more)


def test_only_what_is_missing_is_timed(tmp_path):
    contest = Contest()
    some = recipes.get("runtime").specs(only="network=convnet,dataset=cifar10,head=plain|maxsep")
    assert contest.time(some, tmp_path)
    before = read(tmp_path)
    contest.built.clear()
    assert contest.time(some, tmp_path)
    assert (contest.built, read(tmp_path)) == ([], before), "nothing new was asked for"
    contest.time(recipes.get("runtime").specs(only="network=convnet"), tmp_path)
    assert set(contest.built) == {(d, h) for d in ("cifar10", "cifar100") for h in ("plain", "scaled", "maxsep")}
    assert len(read(tmp_path)) == 6, "a new head means a new contest, and old rows make way"
    contest.time(some, tmp_path, batch_size=4)
    assert len(read(tmp_path)) == 8, "another batch size is another contest"


def test_a_damaged_file_is_written_anew(tmp_path):
    (tmp_path / "timing.json").write_text('{"rows": [')
    assert Contest().time(recipes.get("runtime").specs(only="network=convnet,dataset=cifar10"), tmp_path)
    assert len(read(tmp_path)) == 3


def test_timing_ends_before_the_deadline(tmp_path):
    contest = Contest(seconds=1.0)
    specs = recipes.get("runtime").specs(only="network=convnet")
    assert not contest.time(specs, tmp_path, deadline=20.0, clock=contest)
    assert contest.now <= 20
    assert {row["dataset"] for row in read(tmp_path)} == {"cifar100"}, "one contest of 12 passes fits, two do not"
    assert contest.time(specs, tmp_path, deadline=contest.now + 20.0, clock=contest)
    assert len(read(tmp_path)) == 6
    contest.built.clear()
    assert not Contest().time(specs, tmp_path / "late", deadline=0.0, clock=lambda: 1.0)
    assert contest.built == []


def test_every_head_of_a_network_is_timed(tmp_path):
    built = []

    def build(spec, classes):
        built.append((spec.head, classes))
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, classes))

    specs = recipes.get("runtime").specs(only="network=convnet")
    assert time_inference(specs, tmp_path / "new", device="cpu", batch_size=2, repeats=5, build=build)
    rows = read(tmp_path / "new")
    assert {(row["dataset"], row["head"]) for row in rows} == {
        (dataset, head) for dataset in ("cifar10", "cifar100") for head in ("plain", "scaled", "maxsep")
    }
    assert ("maxsep", 100) in built
    for row in rows:
        assert 0 < row["quartiles"][0] <= row["median_seconds"] <= row["quartiles"][1]
        assert row["images_per_second"] == pytest.approx(2 / row["median_seconds"])


def test_too_few_repeats(tmp_path):
    with pytest.raises(ValueError, match="repeats must be at least 3 for a median and a spread, got 2"):
        time_inference([], tmp_path, repeats=2)
