import json

import pytest

from maxsep.lab.report.collect import collect
from maxsep.lab.report.provenance import DEFINITIONS, environment, facts
from maxsep.lab.spec import RunSpec


@pytest.mark.parametrize(("images", "told"), [(1_437, "14,370"), (100_000, "1.0 million")])
def test_few_images_are_counted_and_many_are_rounded(tmp_path, run_folder, images, told):
    path = run_folder(tmp_path, RunSpec(epochs=10)) / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"metrics": result["metrics"] | {"num_train": images}}))
    assert dict(facts(collect(tmp_path)))["training images seen"] == told


def test_the_environment_names_what_was_measured(tmp_path, run_folder):
    run_folder(tmp_path, RunSpec(), execution={"device": "auto", "compile": True})
    run_folder(tmp_path, RunSpec(seed=1), versions={"torch": "2.11.0", "cuda": None}, resumed=2)
    found = dict(environment(collect(tmp_path).records))
    assert found["device"] == "cpu"
    assert set(found["torch"].split(", ")) == {"2.13.0", "2.11.0"}
    assert "cuda" not in found
    assert found["runs that were resumed"] == "1"
    assert found["finished"] == "2026-01-01"


def test_options_of_execution_are_words(tmp_path, run_folder):
    run_folder(tmp_path, RunSpec(), execution={"extra": [["threads", 1], ["checkpoint_steps", 50]]})
    run_folder(tmp_path, RunSpec(seed=1), execution={"extra": []})
    assert dict(environment(collect(tmp_path).records))["extra"] == "threads 1, checkpoint steps 50"


def test_a_second_stage_trains_its_backbone_unless_told_otherwise():
    assert dict(DEFINITIONS)["stage 2"].endswith("; the backbone trains on unless it is frozen.")


def test_facts(everything):
    found = dict(facts(collect(everything)))
    assert found["runs without a result"] == "3"
    assert found["heads"].startswith("plain, scaled, maxsep, control")
    assert "CIFAR-10" in found["datasets"]
