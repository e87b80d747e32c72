import json

import pytest

from maxsep.lab import recipes
from maxsep.lab.report.collect import collect
from maxsep.lab.report.provenance import commands, environment, facts
from maxsep.lab.spec import RunSpec


def told(folder, specs, run_folders):
    return commands(collect(run_folders(folder, specs)).records, ["runs"], ())


def test_commands_follow_from_the_runs(tmp_path, run_folders):
    fixed = recipes.get("fixed")
    assert told(tmp_path / "a", recipes.get("demo").specs(), run_folders) == ("maxsep demo", "maxsep report runs")
    only = "dataset=cifar10,imbalance=0.02|0.01,network=resnet34"
    specs = recipes.get("table1").specs(2, epochs=5, precision="bf16-mixed", only=only)
    assert told(tmp_path / "b", specs, run_folders)[0] == (
        "maxsep reproduce table1 --data DIR --only 'dataset=cifar10,imbalance=0.02|0.01,network=resnet34' "
        "--seeds 2 --epochs 5"
    )
    learned = fixed.specs(only="head=etf")
    assert told(tmp_path / "c", learned, run_folders)[0] == "maxsep reproduce fixed --data DIR"
    assert told(tmp_path / "d", [RunSpec(dataset="folder:birds")], run_folders) == ("maxsep report runs",)


def test_a_command_selects_the_runs_it_stands_for(tmp_path, run_folders):
    specs = recipes.get("table1").specs(only="dataset=cifar100,network=convnet,imbalance=1")
    command = told(tmp_path, specs, run_folders)[0]
    assert recipes.get("table1").specs(only=command.split("'")[1]) == specs


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


def test_facts(everything):
    found = dict(facts(collect(everything)))
    assert found["runs without a result"] == "3"
    assert found["heads"].startswith("plain, scaled, maxsep, twin")
    assert "CIFAR-10" in found["datasets"]
