"""Learning rates and radii chosen on held-out training images."""

import json

import pytest
from class_folders import write_classes, write_digits

from maxsep.lab import grid
from maxsep.lab.report.own_data import verdict, write_page
from maxsep.lab.run import Run
from maxsep.lab.search import (
    FOLDER,
    NUM_RATES,
    SPLITS,
    candidate,
    candidates_of,
    choose_epoch,
    choose_radius,
    rates_of,
    search,
    without_search,
)
from maxsep.lab.spec import Execution, RunSpec

CPU = Execution(device="cpu", threads=1)
PLAIN = RunSpec(dataset="digits", head="plain", epochs=4, batch_size=64, optimiser="adamw", max_train=300)


def test_every_method_gets_the_best_of_nine_rates_and_the_test_images_are_not_read(tmp_path):
    specs = [PLAIN.replace(head=head, seed=seed) for seed in (0, 1) for head in ("plain", "maxsep")]
    found = search(specs, runs=tmp_path, execution=CPU)
    assert [spec.replace(learning_rate=0.1) for spec in found.specs] == [s.replace(learning_rate=0.1) for s in specs]
    for choice in found.choices:
        assert len({trial.learning_rate for trial in choice.trials}) == NUM_RATES
        assert len(choice.trials) == NUM_RATES + 3
        last = [trial for trial in choice.trials if trial.epochs == 2]
        assert choice.spec.learning_rate == min(last, key=lambda trial: (-trial.score, trial.loss)).learning_rate
    assert found.specs[0].learning_rate == found.specs[2].learning_rate == found.choices[0].spec.learning_rate
    records = list((tmp_path / FOLDER).glob("*/result.json"))
    assert len(records) == 2 * (NUM_RATES + 3 * SPLITS), "of few images three fifths are held out in turn"
    assert all(json.loads(path.read_text())["spec"]["validation"] == 0.2 for path in records)
    before = [path.stat().st_mtime_ns for path in records]
    assert search(specs, runs=tmp_path, execution=CPU).specs == found.specs
    assert [path.stat().st_mtime_ns for path in records] == before
    grid.run(found.specs, runs=tmp_path, execution=CPU)
    runs = [Run(tmp_path / spec.name) for spec in found.specs]
    page = write_page(verdict(found.specs, runs, None, found.choices), tmp_path / "page")
    data = json.loads(page.with_name("report.json").read_text())
    assert [len(entry["trials"]) for entry in data["search"]] == [12, 12]
    (table,) = [table for table in data["tables"] if table["id"] == "search"]
    assert [row["cells"][1]["text"] for row in table["rows"]] == [f"{spec.learning_rate:g}" for spec in found.specs[:2]]


@pytest.mark.parametrize(("sizes", "splits"), [((40, 40), 1), ((40, 4), SPLITS)])
def test_a_class_of_few_images_is_held_out_more_than_once(tmp_path, monkeypatch, sizes, splits):
    monkeypatch.setattr("maxsep.lab.search.FEW_IMAGES", 1)
    write_classes(tmp_path, cat=sizes[0], dog=sizes[1])
    spec = PLAIN.replace(dataset=f"folder:{tmp_path}?size=8", max_train=None)
    assert len(candidates_of([spec])) == NUM_RATES + 3 * splits


def test_a_rate_that_diverges_is_not_chosen(tmp_path, diverge):
    diverge(lambda spec: spec.learning_rate > 1e-3)
    (spec,) = search([PLAIN], runs=tmp_path, execution=CPU).specs
    assert spec.learning_rate <= 1e-3


@pytest.mark.parametrize("fails_from", [1, 2], ids=["all runs", "longer runs"])
def test_a_method_of_which_every_rate_fails_keeps_its_rate_by_batch_size(tmp_path, diverge, fails_from):
    diverge(lambda spec: spec.epochs >= fails_from and spec.head == "maxsep")
    specs = [PLAIN, PLAIN.replace(head="maxsep")]
    found = search(specs, runs=tmp_path, execution=CPU, rates=[1e-3, 3e-3])
    assert (bool(found.choices[0].trials), found.choices[1].trials) == (True, ())
    assert (found.specs[0].learning_rate in (1e-3, 3e-3), found.specs[1]) == (True, without_search(specs[1]))
    assert choose_radius(specs[1], [1.0], runs=tmp_path, execution=CPU, rates=[1e-3, 3e-3])[0] == 1


def test_a_budget_without_room_for_a_search_keeps_its_rate_by_batch_size(tmp_path):
    found = search([PLAIN], runs=tmp_path, execution=CPU, budget=1.0)
    assert found.specs == [without_search(PLAIN)]
    assert search([PLAIN], runs=tmp_path, execution=CPU, budget=found.seconds).seconds == found.seconds > 0.5
    assert [choice.trials for choice in found.choices] == [()]
    assert dict(found.specs[0].schedule_options) == {"warmup": 1}
    large = without_search(PLAIN.replace(batch_size=256)).learning_rate
    assert large == pytest.approx(2 * found.specs[0].learning_rate, rel=0.05)
    grid.run(found.specs, runs=tmp_path, execution=CPU)
    assert search([PLAIN], runs=tmp_path, execution=CPU, budget=1e6).specs == found.specs, "what was begun goes on"


def test_a_search_that_was_begun_goes_on_within_any_budget(tmp_path):
    grid.run([candidate(PLAIN, rates_of("adamw")[0], 1 / 8)], runs=tmp_path / FOLDER, execution=CPU)
    assert search([PLAIN], runs=tmp_path, execution=CPU, budget=1e-6).specs == []
    assert search([PLAIN], runs=tmp_path, execution=CPU, budget=1e6).choices[0].trials


def test_the_radius_is_chosen_by_the_same_search(tmp_path):
    spec = PLAIN.replace(head="maxsep")
    radius, found = choose_radius(spec, (1.0, 0.001), runs=tmp_path, execution=CPU, rates=[1e-3])
    assert radius == min(found.choices, key=lambda choice: choice.best.order).spec.radius
    assert {len(choice.trials) for choice in found.choices} == {2}


def test_the_last_epoch_is_chosen_on_held_out_images(tmp_path):
    spec = PLAIN.replace(learning_rate=0.3, schedule="constant", epochs=8)  # so high a rate goes up and down
    stopped, _ = choose_epoch(spec, runs=tmp_path, execution=CPU)
    (path,) = (tmp_path / FOLDER).glob("*/result.json")
    assert json.loads(path.read_text())["spec"]["validation"] == 0.2
    rows = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: (row["top1"], -row["loss"]))["epoch"] + 1
    assert len(rows) == 8
    assert (stopped.trained_epochs, stopped.validation) == (best, 0)
    assert stopped.replace(stop_after=None) == spec
    with pytest.raises(ValueError, match="validation"):
        choose_epoch(spec.replace(validation=0.1), runs=tmp_path, execution=CPU)


@pytest.mark.nightly
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize(("head", "radius"), [("plain", 1.0), ("control", 0.1)])
def test_the_rate_is_within_a_point_of_the_best_of_nine(tmp_path, optimiser, head, radius):
    dataset = f"folder:{write_digits(tmp_path / 'digits')}?size=8"
    spec = RunSpec(dataset=dataset, head=head, radius=radius, epochs=30, batch_size=32, optimiser=optimiser)
    (chosen,) = search([spec], runs=tmp_path, execution=CPU).specs
    every = [spec.replace(learning_rate=rate) for rate in rates_of(optimiser)]
    grid.run(every, runs=tmp_path, execution=CPU)
    runs = {run.spec: run for s in every if (run := Run(tmp_path / s.name)).state == "finished"}
    best = max(run.metrics["top1"] for run in runs.values())
    assert runs[chosen].metrics["top1"] >= best - 0.01
