"""The recipe of models that were trained apart: its arms, its pairs, and what the report says."""

import pytest

from maxsep.lab import grid, recipes
from maxsep.lab.report import render

RECIPE = recipes.get("compatible")
ONLY = "dataset=osr_digits_0"


def test_every_fixed_head_has_its_control_and_all_run_on_the_same_classes():
    arms = {(s.head, s.head_options) for s in RECIPE.specs(1, only=ONLY)}
    for head, given in arms:
        if head == "etf":
            assert ("orthonormal", tuple(pair for pair in given if pair[0] != "rotation")) in arms
            assert dict(given)["rotation"] == 0  # the same for all runs, or nothing could be compared
    assert len(arms) == 6
    assert {s.dataset for s in RECIPE.specs(1)} == {"osr_digits_0", "osr_digits_1", "osr_cifar10_0"}


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
