"""The step that detects: what it needs, what it leaves alone, and when it gives up."""

import json

import pytest

from maxsep.lab.ood import OODProtocol
from maxsep.lab.recipes.after import Detect, Place
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(head="plain", epochs=1)
STEP = Detect(OODProtocol(outliers=("places",)))


def place(runs, **more):
    return Place(runs=runs, clock=lambda: 7.0, **more)


@pytest.fixture
def asked(monkeypatch):
    found = []
    monkeypatch.setattr(
        "maxsep.lab.recipes.after.ensure_detection", lambda folder, protocol, **_: found.append(folder.name)
    )
    return found


def make(runs, *files):
    folder = runs / SPEC.name
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    return folder


def test_only_finished_runs_with_weights(tmp_path, asked):
    assert STEP([SPEC], place(tmp_path)) == ""
    folder = make(tmp_path, "result.json")
    assert "kept without weights" in STEP([SPEC], place(tmp_path))
    assert asked == []
    (folder / "weights.safetensors").write_text("")
    assert STEP([SPEC], place(tmp_path)) == ""
    assert asked == [SPEC.name]


def test_the_budget_ends_it(tmp_path, asked):
    make(tmp_path, "result.json", "weights.safetensors")
    assert "the budget was spent. The same command goes on" in STEP([SPEC], place(tmp_path, deadline=7.0))
    assert asked == []


def test_what_is_there_is_left_alone(tmp_path, asked):
    folder = make(tmp_path, "result.json")
    scores = {name: {"full": {"auroc": 0.5}, "draws": {"repeats": 10}} for name in STEP.protocol.scores}
    record = {"schema": 1, "in_distribution": {"dataset": "digits"}, "sets": {"places": {"scores": scores}}}
    record["mahalanobis"] = {"magnitudes": list(STEP.protocol.magnitudes)}
    (folder / "detection.json").write_text(json.dumps(record))
    assert STEP([SPEC], place(tmp_path)) == ""
    STEP.check([SPEC], tmp_path, tmp_path, download=False)  # nothing is needed, so nothing is missing
    assert asked == []


def test_a_record_of_other_probabilities_is_not_what_was_asked_for(tmp_path, asked):
    spec = SPEC.replace(loss="ldam", head="cosine")
    folder = tmp_path / spec.name
    folder.mkdir()
    for name in ("result.json", "weights.safetensors"):
        (folder / name).write_text("{}")
    scores = {name: {"full": {"auroc": 0.5}, "draws": {"repeats": 10}} for name in STEP.protocol.scores}
    record = {"schema": 1, "in_distribution": {"dataset": "digits"}, "sets": {"places": {"scores": scores}}}
    record["mahalanobis"] = {"magnitudes": list(STEP.protocol.magnitudes)}
    for scale, expected in (({"softmax_scale": 30.0}, []), ({}, [spec.name])):
        (folder / "detection.json").write_text(json.dumps(record | scale))
        assert STEP([spec], place(tmp_path)) == ""
        assert asked == expected


def test_missing_outliers_are_told_before_training(tmp_path):
    with pytest.raises(FileNotFoundError, match="places is not in"):
        STEP.check([SPEC], tmp_path, tmp_path, download=False)
