"""Pairs of runs that search in each other's galleries: what is measured, what is kept, and what the report says."""

import json

import pytest

from maxsep.lab import compatibility, grid, recipes
from maxsep.lab.engine import train
from maxsep.lab.report import render
from maxsep.lab.spec import RunSpec, options

RECIPE = recipes.get("compatible")
ONLY = "dataset=osr_digits_0"


def trained(runs, seed, **changes):
    spec = RunSpec(dataset="osr_digits_0", network="mlp", epochs=4, batch_size=32, seed=seed, **changes)
    return train(spec, runs=runs, progress=False)


def test_every_fixed_head_has_its_control_and_all_run_on_the_same_classes():
    arms = {(s.head, s.head_options) for s in RECIPE.specs(1, only=ONLY)}
    for head, given in arms:
        if head == "etf":
            assert ("orthonormal", tuple(pair for pair in given if pair[0] != "rotation")) in arms
            assert dict(given)["rotation"] == 0  # the same for all runs, or nothing could be compared
    assert len(arms) == 6
    assert {s.dataset for s in RECIPE.specs(1)} == {"osr_digits_0", "osr_digits_1", "osr_cifar10_0"}


def test_fixed_coordinates_can_be_compared_and_trained_ones_cannot(tmp_path):
    turned = {"head": "etf", "head_options": options(rotation=0)}
    found = compatibility.compare_runs(trained(tmp_path, 1, **turned), trained(tmp_path, 0, **turned), device="cpu")
    assert found["known"]["features"]["across"] > 0.8
    assert found["known"]["features"]["self"] > 0.9
    plain = compatibility.compare_runs(
        trained(tmp_path, 1, head="plain"), trained(tmp_path, 0, head="plain"), device="cpu"
    )
    assert plain["known"]["features"]["self"] > 0.9
    assert plain["known"]["features"]["across"] < 0.5
    assert plain["known"]["logits"]["across"] > 0.9  # the control: logits have coordinates as well
    assert 0.2 < plain["unseen"]["logits"]["across"] < 1


def test_one_model_beside_itself(tmp_path):
    folder = trained(tmp_path, 1, head="plain")
    found = compatibility.compare_runs(folder, folder, device="cpu")
    for part in compatibility.PARTS:
        for kind in compatibility.EMBEDDINGS:
            assert found[part][kind]["self"] == found[part][kind]["across"]
    assert found["known"]["images"] + found["unseen"]["images"] == 599  # all test digits, each once
    assert json.loads((folder / "compatibility.json").read_text()) == found


def test_runs_that_know_all_classes_are_refused(tmp_path):
    folder = train(RunSpec(epochs=1), runs=tmp_path, progress=False)
    with pytest.raises(ValueError, match="only runs of open-set splits have unseen classes, and 'digits' is none"):
        compatibility.compare_runs(folder, folder)


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    first = trained(tmp_path, 1, head="plain")
    others = {"dataset": "osr_digits_1", "max_test": 50}
    for name, value in others.items():
        spec = RunSpec(dataset="osr_digits_0", epochs=1, head="plain").replace(**{name: value})
        other = train(spec, runs=tmp_path, progress=False)
        with pytest.raises(ValueError, match=f"the two runs differ in {name}: .* Compare runs that know the same"):
            compatibility.compare_runs(first, other, device="cpu")
    narrow = trained(tmp_path, 0, head="plain", network_options=options(hidden=(32,)))
    with pytest.raises(ValueError, match="features of 128 and 32 numbers cannot be compared"):
        compatibility.compare_runs(first, narrow, device="cpu")
    assert not (first / "compatibility.json").exists()


def test_pairs_are_made_once_and_told(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    limits = {"only": ONLY, "seeds": 3, "epochs": 1, "max_test": 60, "runs": runs}
    assert grid.reproduce(RECIPE, **limits).status == 0
    files = sorted(runs.glob("*/compatibility.json"))
    assert len(files) == 6  # one pair for each arm: the third seed has no partner yet
    assert all("-s1-" in path.parent.name for path in files)
    monkeypatch.setattr("maxsep.lab.recipes.after.compare_runs", lambda *_, **__: pytest.fail("was done already"))
    assert grid.reproduce(RECIPE, **limits).status == 0
    page = render(runs, tmp_path / "report").read_text()
    for told in (
        '<section id="compatible">', "Embeddings of models that were trained apart", "Digits split 0", "1 pair of runs",
        "etf (by cosine, rotation 0, temperature 0.1)", "orthonormal", "recall at 1 across models",
    ):  # fmt: skip
        assert told in page, told


def test_runs_without_weights_are_told(tmp_path):
    runs = tmp_path / "runs"
    limits = {"only": f"{ONLY},head=plain", "seeds": 2, "epochs": 1, "max_test": 60, "runs": runs}
    grid.reproduce(RECIPE, **limits)
    pair = next(runs.glob("*-s1-*"))
    (pair / "compatibility.json").unlink()
    (pair / "weights.safetensors").unlink()
    summary = grid.reproduce(RECIPE, **limits)
    assert "kept without weights, so they cannot be compared any more" in " ".join(summary.notes)


@pytest.mark.parametrize("damage", ["not json", "a number that is none", "of another run"])
def test_a_damaged_file_is_named_or_made_anew(tmp_path, damage):
    folder, other = trained(tmp_path, 1, head="plain"), trained(tmp_path, 0, head="plain")
    compatibility.compare_runs(folder, other, device="cpu")
    path, told = folder / "compatibility.json", json.loads((folder / "compatibility.json").read_text())
    if damage == "not json":
        path.write_text("{")
    elif damage == "of another run":
        path.write_text(json.dumps(told | {"partner": "somebody"}))
    else:
        path.write_text(json.dumps(told | {"known": {"features": {"self": 7}}}))
    partner = compatibility.partner(RunSpec(dataset="osr_digits_0", head="plain", epochs=4, batch_size=32, seed=1))
    assert partner.name == other.name
    assert not compatibility.is_done(folder, partner)
    if damage != "of another run":
        assert "compatibility.json" in render(tmp_path, tmp_path / "report").read_text()
