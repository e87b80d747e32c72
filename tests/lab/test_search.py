"""Learning rates and radii chosen on held-out training images."""

import json

import pytest

from maxsep.lab import grid
from maxsep.lab.report.own_data import verdict, write_page
from maxsep.lab.run import Run
from maxsep.lab.search import FOLDER, NUM_RATES, candidate, choose_radius, rates_of, search, without_search
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
    assert len(records) == 24
    assert all(json.loads(path.read_text())["spec"]["validation"] == 0.2 for path in records)
    before = [path.stat().st_mtime_ns for path in records]
    assert search(specs, runs=tmp_path, execution=CPU).specs == found.specs
    assert [path.stat().st_mtime_ns for path in records] == before


def test_a_rate_that_diverges_is_not_chosen(tmp_path, monkeypatch):
    real = grid.engine.train

    def train(spec, **settings):
        if spec.learning_rate > 1e-3:
            raise ArithmeticError("the loss is not finite")
        return real(spec, **settings)

    monkeypatch.setattr("maxsep.lab.engine.train", train)
    (spec,) = search([PLAIN], runs=tmp_path, execution=CPU).specs
    assert spec.learning_rate <= 1e-3


def test_a_budget_without_room_for_a_search_keeps_its_rate_by_batch_size(tmp_path):
    found = search([PLAIN], runs=tmp_path, execution=CPU, budget=1.0)
    assert found.specs == [without_search(PLAIN)]
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


def test_the_page_names_what_was_tried_for_every_method(tmp_path):
    specs = [PLAIN.replace(head=head) for head in ("plain", "maxsep")]
    found = search(specs, runs=tmp_path / "runs", execution=CPU)
    grid.run(found.specs, runs=tmp_path / "runs", execution=CPU)
    runs = [Run(tmp_path / "runs" / spec.name) for spec in found.specs]
    page = write_page(verdict(found.specs, runs, None, found.choices), tmp_path / "page")
    data = json.loads(page.with_name("report.json").read_text())
    assert [len(entry["trials"]) for entry in data["search"]] == [12, 12]
    (table,) = [table for table in data["tables"] if table["id"] == "search"]
    assert [row["cells"][1]["text"] for row in table["rows"]] == [f"{spec.learning_rate:g}" for spec in found.specs]


@pytest.mark.nightly
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize(("head", "radius"), [("plain", 1.0), ("control", 0.1)])
def test_the_rate_is_within_a_point_of_the_best_of_nine(tmp_path, optimiser, head, radius):
    spec = RunSpec(dataset="digits", head=head, radius=radius, epochs=30, batch_size=32, optimiser=optimiser)
    (chosen,) = search([spec], runs=tmp_path, execution=CPU).specs
    every = [spec.replace(learning_rate=rate) for rate in rates_of(optimiser)]
    grid.run(every, runs=tmp_path, execution=CPU)
    runs = {run.spec: run for s in every if (run := Run(tmp_path / s.name)).state == "finished"}
    best = max(run.metrics["top1"] for run in runs.values())
    assert runs[chosen].metrics["top1"] >= best - 0.01
