import json

import pytest
import torch

from maxsep.lab import recipes
from maxsep.lab.recipes.timing import time_inference


def test_every_head_of_a_network_is_timed(tmp_path):
    built = []

    def build(spec, classes):
        built.append((spec.head, classes))
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, classes))

    specs = recipes.get("runtime").specs(only="network=convnet")
    path = time_inference(specs, tmp_path / "new", device="cpu", batch_size=2, repeats=5, build=build)
    rows = json.loads(path.read_text())["rows"]
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
