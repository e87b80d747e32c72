"""The commands of a report, typed in: together they train every run that it shows."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.lab import recipes
from maxsep.lab.report.collect import collect
from maxsep.lab.report.commands import commands
from maxsep.lab.spec import RunSpec

RECORDS = Path(__file__).parents[3] / "results" / "runs"


def told(folder, specs, run_folders):
    return commands(collect(run_folders(folder, specs)).records, ["runs"], ())


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_cifar):
    """The names of the runs that a command would train, as its own dry run lists them.

    Where the command does not ask for another order, DIR has no files: the order is the official one.
    """
    other = str(tiny_cifar(tmp_path_factory.mktemp("data"), "cifar100", images=100))
    return lambda line, runs: dry_run(line, runs, other if "another order" in line else str(runs))


def dry_run(line, runs, data):
    program, *arguments = shlex.split(line, comments=True)
    assert program == "maxsep"
    arguments = [data if argument == "DIR" else argument for argument in arguments]
    found = CliRunner().invoke(app, [*arguments, "--runs", str(runs), "--dry-run", "--json"])
    assert found.exit_code == 0, (line, found.output, found.exception)
    return {run["name"] for run in json.loads(found.stdout)}


def test_every_committed_record_is_trained_by_a_command_or_named(tmp_path, trained):
    names = {record.spec.name for record in collect(RECORDS).records}
    *lines, last = commands(collect(RECORDS).records, ["results/runs"], ())
    assert last == "maxsep report results/runs"
    named = {line.split()[-1] for line in lines if line.startswith("#")}
    made = [trained(line, tmp_path) for line in lines if not line.startswith("#")]
    assert names - named == names & set().union(*made)
    assert all(each & names for each in made), "no command is there for nothing"
    assert len(named) <= 3, "heads on held-out data, which the search no longer tries"


def test_a_command_says_how_much_of_it_is_there(tmp_path, run_folders):
    specs = recipes.get("ood").specs(seeds=1)
    sgd = [spec for spec in specs if spec.optimiser == "sgd"]
    line, _ = told(tmp_path / "whole", sgd, run_folders)
    assert "--only 'optimiser=sgd'" in line
    assert "runs are here" not in line
    line, _ = told(tmp_path / "part", sgd[1:], run_folders)
    assert f"  # {len(sgd) - 1} of its {len(sgd)} runs are here" in line


def test_a_command_says_which_order_of_the_data_it_needs(tmp_path, run_folders, trained):
    only = "dataset=cifar100|cifar10,imbalance=0.01,network=convnet"
    earlier = recipes.get("table1").specs(1, only=only)
    ours = [spec.replace(data_order="official") if spec.dataset == "cifar100" else spec for spec in earlier]
    lines = told(tmp_path / "official", ours, run_folders)[:-1]
    assert [("another order" in line, trained(line, tmp_path)) for line in lines] == [(False, {s.name for s in ours})]
    lines = told(tmp_path / "both", [*earlier, *ours], run_folders)[:-1]
    assert ["another order" in line for line in lines] == [False, True]
    assert {s.name for s in (*earlier, *ours)} <= set().union(*(trained(line, tmp_path) for line in lines))


CALLS = {
    "all seeds": {},
    "more seeds": {"seeds": 7},
    "shorter": {"seeds": 1, "epochs": 7},
    "a smoke run": {"seeds": 1, "epochs": 2, "max_train": 200, "max_test": 50},
    "another precision": {"seeds": 1, "precision": "bf16-mixed"},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", [name for name in recipes.names() if name != "demo"])
def test_commands_train_every_run_of_a_recipe(tmp_path, run_folders, trained, name, call):
    specs = recipes.get(name).specs(**CALLS[call])[::7]
    *lines, last = told(tmp_path / "runs", specs, run_folders)
    assert last == "maxsep report runs"
    assert {spec.name for spec in specs} <= set().union(*(trained(line, tmp_path / "none") for line in lines))


@pytest.mark.parametrize("name", [name for name in recipes.names() if name != "demo"])
def test_seeds_count_from_the_first_of_the_recipe(tmp_path, run_folders, name):
    recipe = recipes.get(name)
    (line, _) = told(tmp_path / "runs", recipe.specs([recipe.seeds[0] + 3])[:1], run_folders)
    assert "--seeds 4" in line or len(recipes.get(line.split()[2]).seeds) == 4


def test_runs_of_several_calls_have_a_command_each(tmp_path, run_folders, trained):
    table1, smoke = recipes.get("table1"), {"seeds": 2, "max_train": 100, "only": "dataset=cifar10"}
    specs = [*table1.specs(2), *table1.specs(1, epochs=3), *table1.specs(**smoke), *recipes.get("beyond").specs(1)]
    *lines, _ = told(tmp_path / "runs", specs, run_folders)
    assert [line.split()[2] for line in lines] == ["table1"] * 3 + ["beyond"]
    assert {spec.name for spec in specs} <= set().union(*(trained(line, tmp_path / "none") for line in lines))


def test_a_search_and_its_final_runs_are_not_confused(tmp_path, run_folders):
    """Runs on held-out data and on all data differ in nothing else."""
    search, beyond = (recipes.get(name) for name in ("beyond_search", "beyond"))
    specs = [*search.specs(), *beyond.specs(only="network=resnet32,head=plain")]
    specs = [s.replace(data_order="official" if s.dataset == "cifar100" else "") for s in specs]
    assert told(tmp_path, specs, run_folders)[:2] == (
        "maxsep reproduce beyond_search --data DIR --precision 32-true",
        "maxsep reproduce beyond --data DIR --only 'imbalance=0.01,network=resnet32' --precision 32-true"
        "  # 54 of its 102 runs are here",
    )


def test_commands_follow_from_the_runs(tmp_path, run_folders):
    only = "dataset=cifar10,imbalance=0.02|0.01,network=resnet34"
    specs = recipes.get("table1").specs(2, epochs=5, precision="bf16-mixed", only=only)
    assert told(tmp_path / "a", specs, run_folders)[0] == (
        "maxsep reproduce table1 --data DIR --only 'dataset=cifar10,imbalance=0.02|0.01,network=resnet34' "
        "--seeds 2 --epochs 5 --precision bf16-mixed"
    )
    learned = recipes.get("fixed").specs(only="head=etf")
    line, share = told(tmp_path / "b", learned, run_folders)[0].split(";")[0].split("  # ")
    assert line == "maxsep reproduce fixed --data DIR --precision 32-true"
    assert share == f"{len(learned)} of its {len(recipes.get('fixed').specs())} runs are here"
    specs = recipes.get("table1").specs(only="dataset=cifar100,network=convnet,imbalance=1")
    command = told(tmp_path / "c", specs, run_folders)[0]
    assert recipes.get("table1").specs(only=command.split("'")[1]) == specs


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({}, "maxsep demo"),
        ({"seeds": 2, "epochs": 3}, "maxsep demo --seeds 2 --epochs 3"),
        ({"precision": "bf16-mixed"}, "maxsep reproduce demo --data DIR --precision bf16-mixed"),
        ({"max_test": 50}, "maxsep reproduce demo --data DIR --precision 32-true --max-test 50"),
    ],
)
def test_the_demo_with_the_runs_after_its_search(tmp_path, run_folders, options, command):
    demo = recipes.get("demo")
    specs = demo.specs(**options)
    specs += demo.final_specs({"maxsep": 3.0, "scaled": 0.3}, specs)
    assert told(tmp_path, specs, run_folders) == (command, "maxsep report runs")


def test_runs_of_no_recipe_are_named(tmp_path, run_folders):
    far = recipes.get("table1").specs([1_000_000], only="dataset=cifar10,imbalance=1,head=plain")[0]
    first, second, last = told(tmp_path / "a", [RunSpec(dataset="folder:birds"), far], run_folders)
    assert last == "maxsep report runs"
    assert {line.split()[-1] for line in (first, second)} == {RunSpec(dataset="folder:birds").name, far.name}
    assert all(line.startswith("# of no recipe, its spec.json says what was trained: ") for line in (first, second))
    many = [RunSpec(dataset="folder:birds", seed=seed) for seed in range(8)]
    assert told(tmp_path / "b", many, run_folders)[-2] == "# and 3 more"


def test_given_commands_are_taken_as_they_are():
    assert commands((), ["runs"], ("make it",)) == ("make it",)
