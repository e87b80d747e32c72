"""Two runs that search in each other's galleries, `maxsep.lab.compatibility`: what is measured, and what is kept."""

import json

import pytest

from maxsep.lab import compatibility
from maxsep.lab.engine import train
from maxsep.lab.report import render
from maxsep.lab.spec import RunSpec, options


def trained(runs, seed, **changes):
    spec = RunSpec(dataset="osr_digits_0", network="mlp", epochs=4, batch_size=32, seed=seed, **changes)
    return train(spec, runs=runs, progress=False)


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
