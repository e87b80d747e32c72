import dataclasses
import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from maxsep.lab import grid, recipes
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

SPECS = [
    RunSpec(head=head, radius=0.1 if head != "plain" else 1.0, seed=s) for s in (0, 1) for head in ("plain", "maxsep")
]
CPU = Execution(device="cpu")


class Clock:
    """Time that passes only when a run says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Trainer:
    """Stands in for the engine: writes a result and lets time pass."""

    def __init__(self, clock=None, seconds=10.0, fails=(), score=lambda spec: 0.5):
        self.clock, self.seconds, self.fails, self.score = clock or Clock(), seconds, fails, score
        self.trained = []

    def __call__(self, spec, *, data_root, runs, execution, progress, **more):
        self.more = more
        self.trained.append(spec)
        self.clock.now += self.seconds
        if spec in self.fails:
            raise RuntimeError("the loss is not finite")
        folder = Path(runs) / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        metrics = {"top1": self.score(spec), "balanced": self.score(spec), "num_train": 1198}
        result = {"spec": spec.to_dict(), "metrics": metrics, "seconds": self.seconds, "hardware": {"device": "cpu"}}
        (folder / "result.json").write_text(json.dumps(result))
        return folder


def start(runs, trainer, specs=SPECS, **options):
    return grid.run(specs, runs=runs, train=trainer, clock=trainer.clock, execution=CPU, **options)


def test_a_finished_run_is_never_trained_again(tmp_path):
    trainer = Trainer()
    first = start(tmp_path, trainer)
    second = start(tmp_path, trainer)
    assert (first.finished, first.skipped) == (SPECS, [])
    assert (second.finished, second.skipped) == ([], SPECS)
    assert trainer.trained == SPECS
    assert str(first) == "4 trained, 0 already there in 40 s"


def test_equal_runs_are_trained_once(tmp_path):
    trainer = Trainer()
    start(tmp_path, trainer, [RunSpec(head="plain"), RunSpec(head="scaled"), RunSpec(head="plain")])
    assert [spec.head for spec in trainer.trained] == ["plain"]


def test_only(tmp_path):
    trainer = Trainer()
    start(tmp_path, trainer, only="head=maxsep,seed=1")
    assert trainer.trained == [SPECS[3]]


def test_a_failure_is_written_down_and_the_rest_goes_on(tmp_path):
    trainer = Trainer(fails={SPECS[1]})
    summary = start(tmp_path, trainer)
    assert summary.finished == [SPECS[0], *SPECS[2:]]
    assert summary.failed == [(SPECS[1], "RuntimeError: the loss is not finite")]
    assert summary.status == 1
    assert "1 failed" in str(summary)
    written = json.loads((tmp_path / SPECS[1].name / "failure.json").read_text())
    assert written["error"] == "RuntimeError: the loss is not finite"
    assert "Traceback" in written["traceback"]
    again = start(tmp_path, Trainer())
    assert again.finished == [SPECS[1]]
    assert not (tmp_path / SPECS[1].name / "failure.json").exists()


def test_an_interruption_ends_the_grid_cleanly(tmp_path):
    def trainer(spec, **_):
        raise KeyboardInterrupt

    summary = grid.run(SPECS, runs=tmp_path, train=trainer, execution=CPU)
    assert (summary.interrupted, summary.status, summary.finished) == (130, 130, [])
    assert "the same command goes on" in str(summary)


def test_a_budget_starts_no_run_that_does_not_fit(tmp_path):
    trainer = Trainer(seconds=10)
    first = start(tmp_path, trainer, budget=33)
    assert len(first.finished) == 3, "the fourth would end at 30 + 11 seconds"
    assert first.postponed == [SPECS[3]]
    assert first.status == 0
    assert "1 left for next time" in str(first)
    assert trainer.clock.now <= 33
    second = start(tmp_path, trainer, budget=33)
    assert second.finished == [SPECS[3]]


def test_a_shorter_run_takes_the_place_of_one_that_does_not_fit(tmp_path):
    trainer = Trainer(seconds=10)
    long = SPECS[2].replace(epochs=2000)
    start(tmp_path, trainer, SPECS[:1])
    trainer.trained.clear()
    summary = start(tmp_path, trainer, [long, SPECS[1]], budget=30)
    assert (summary.postponed, summary.finished) == ([long], [SPECS[1]])


def test_events_tell_the_story(tmp_path):
    events = []
    start(tmp_path, Trainer(fails={SPECS[1]}), SPECS[:2], on_event=events.append)
    assert [(e.kind, e.index, e.total) for e in events] == [
        ("start", 1, 2),
        ("finished", 1, 2),
        ("start", 2, 2),
        ("failed", 2, 2),
    ]
    assert events[1].seconds == 10
    assert events[3].message == "RuntimeError: the loss is not finite"
    start(tmp_path, Trainer(), SPECS[:2], on_event=events.append, budget=1)
    assert [e.kind for e in events[4:]] == ["skipped", "postponed"]


def test_a_plan_lists_and_estimates_without_training(tmp_path):
    start(tmp_path, Trainer(), SPECS[:1])
    Run(tmp_path / SPECS[1].name).begin(SPECS[1])
    planned = grid.plan(SPECS, runs=tmp_path, execution=CPU)
    assert [p.state for p in planned] == ["finished", "unfinished", "new", "new"]
    assert planned[0].estimate.seconds == 0
    assert planned[1].estimate.seconds == pytest.approx(11)
    assert len(grid.plan(SPECS, runs=tmp_path, execution=CPU, only="seed=1")) == 2


def best_at(radius):
    return lambda spec: 0.9 - 0.1 * abs(spec.radius - radius)


def test_the_demo_chooses_on_held_out_data_and_then_tests(tmp_path):
    trainer = Trainer(score=best_at(3.0))
    recipe = recipes.get("demo")
    summary = grid.reproduce(recipe, runs=tmp_path, train=trainer, clock=trainer.clock, execution=CPU)
    assert summary.radii == {"scaled": 3.0, "maxsep": 3.0}
    assert len(trainer.trained) == len(set(trainer.trained))
    first_test = next(i for i, spec in enumerate(trainer.trained) if spec.validation == 0)
    assert all(spec.validation == 0 for spec in trainer.trained[first_test:])
    tested = {(s.head, s.radius) for s in trainer.trained if s.validation == 0}
    assert {("maxsep", 3.0), ("scaled", 3.0), ("maxsep", 0.1), ("scaled", 0.1), ("plain", 1.0)} <= tested
    again = grid.reproduce(recipe, runs=tmp_path, train=trainer, clock=trainer.clock, execution=CPU)
    assert (again.finished, again.radii) == ([], summary.radii)


def test_only_holds_for_the_runs_after_the_search_too(tmp_path):
    trainer = Trainer()
    options = {"runs": tmp_path, "train": trainer, "clock": trainer.clock, "execution": CPU}
    grid.reproduce(recipes.get("demo"), only="head=maxsep", **options)
    assert {spec.head for spec in trainer.trained} == {"maxsep"}


def test_a_budget_that_ends_in_the_search_tests_nothing_by_half_a_choice(tmp_path):
    trainer = Trainer()
    recipe = recipes.get("demo")
    summary = grid.reproduce(recipe, runs=tmp_path, train=trainer, clock=trainer.clock, execution=CPU, budget=100)
    assert summary.postponed
    assert summary.radii == {}


def interrupt_after_first_epoch(folder):
    """Send this process a SIGINT, as Ctrl-C does, once the run in a folder has logged an epoch."""

    def wait():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (folder / "result.json").exists():
            log = folder / "metrics.jsonl"
            if log.exists() and log.stat().st_size:
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.002)

    threading.Thread(target=wait, daemon=True).start()


def test_the_engine_goes_on_where_a_grid_was_cut_off(tmp_path):
    spec = RunSpec(head="maxsep", imbalance=0.1, epochs=80, batch_size=64, evaluate_every=40)
    execution = Execution(device="cpu", checkpoint_every=1)
    grid.run([spec], runs=tmp_path / "whole", execution=execution)
    interrupt_after_first_epoch(tmp_path / "cut" / spec.name)
    cut = grid.run([spec, spec.replace(seed=1)], runs=tmp_path / "cut", execution=execution)
    assert (cut.status, cut.finished) == (130, [])
    assert grid.plan([spec], runs=tmp_path / "cut", execution=execution)[0].state == "unfinished"
    assert grid.run([spec], runs=tmp_path / "cut", execution=execution).finished == [spec]
    whole, resumed = (json.loads((tmp_path / d / spec.name / "result.json").read_text()) for d in ("whole", "cut"))
    assert resumed["resumed"] == 1
    assert resumed["metrics"] == whole["metrics"]


def test_after_a_failed_search_run_no_radius_is_chosen(tmp_path):
    recipe = recipes.get("demo")
    bad = next(spec for spec in recipe.specs() if spec.validation and spec.head == "maxsep")
    trainer = Trainer(fails={bad}, score=best_at(3.0))
    options = {"runs": tmp_path, "clock": trainer.clock, "execution": CPU}
    summary = grid.reproduce(recipe, train=trainer, **options)
    assert summary.radii == {}
    assert "No radius was chosen: 1 run of the search failed." in str(summary)
    assert not any(spec.radius == 3.0 for spec in trainer.trained if spec.validation == 0)
    again = grid.reproduce(recipe, train=Trainer(trainer.clock, score=best_at(3.0)), **options)
    assert (again.radii, again.notes) == ({"scaled": 3.0, "maxsep": 3.0}, [])


def test_the_whole_time_of_a_run_is_kept_for_the_next_estimate(tmp_path):
    trainer = Trainer(seconds=10)

    def slow_to_start(spec, **settings):
        trainer.clock.now += 5
        return trainer(spec, **settings)

    grid.run(SPECS[:1], runs=tmp_path, train=slow_to_start, clock=trainer.clock, execution=CPU)
    assert json.loads((tmp_path / SPECS[0].name / "wall.json").read_text())["seconds"] == 15
    assert grid.plan(SPECS[1:2], runs=tmp_path, execution=CPU)[0].estimate.seconds == pytest.approx(15 * 1.1)


def test_a_resumed_run_is_no_measurement_of_the_whole(tmp_path):
    (tmp_path / SPECS[0].name / "resume").mkdir(parents=True)
    start(tmp_path, Trainer(), SPECS[:1])
    assert not (tmp_path / SPECS[0].name / "wall.json").exists()


def test_downloading_is_passed_on_only_where_it_is_wanted(tmp_path):
    trainer = Trainer()
    start(tmp_path, trainer, SPECS[:1])
    assert trainer.more == {}
    start(tmp_path, trainer, SPECS[1:2], download=True)
    assert trainer.more == {"download": True}


def test_a_failure_stays_beside_the_run_and_goes_with_its_success(tmp_path):
    folder = tmp_path / SPECS[0].name
    folder.mkdir()
    settings = {"runs": tmp_path, "data_root": None, "execution": CPU, "progress": False}
    with pytest.raises(RuntimeError):
        grid.attempt(Trainer(fails=SPECS), SPECS[0], **settings)
    assert "not finite" in json.loads((folder / "failure.json").read_text())["error"]
    assert grid.attempt(Trainer(), SPECS[0], **settings) == folder
    assert not (folder / "failure.json").exists()


def test_a_run_that_another_process_trains_is_left_alone(tmp_path):
    events = []

    def busy(spec, **_):
        (tmp_path / spec.name).mkdir(exist_ok=True)
        raise BlockingIOError("another process is training it")

    second = SPECS[0].replace(start_from=SPECS[0], epochs=1)
    summary = grid.run([second], runs=tmp_path, train=busy, execution=CPU, on_event=events.append)
    assert summary.elsewhere == [SPECS[0], second]
    assert not summary.failed
    assert {event.kind for event in events} == {"start", "elsewhere"}
    assert str(summary).startswith("0 trained, 0 already there, 2 in the hands of another process")
    assert list((tmp_path / SPECS[0].name).iterdir()) == []


def test_what_another_process_has_in_hand_is_not_announced(tmp_path, held_elsewhere):
    events, trainer = [], Trainer()
    with held_elsewhere(Run(tmp_path / SPECS[0].name)):
        summary = start(tmp_path, trainer, SPECS[:2], on_event=events.append)
    assert [(event.kind, event.spec) for event in events if event.spec == SPECS[0]] == [("elsewhere", SPECS[0])] * 2
    assert (summary.elsewhere, summary.finished, trainer.trained) == ([SPECS[0]], [SPECS[1]], [SPECS[1]])
    assert start(tmp_path, trainer, SPECS[:2]).finished == [SPECS[0]]


def test_a_run_that_was_finished_just_before_its_claim_is_skipped(tmp_path, monkeypatch):
    events, trainer = [], Trainer()

    @contextmanager
    def late(folder):
        Trainer()(SPECS[0], data_root=None, runs=tmp_path, execution=CPU, progress=False)
        yield

    monkeypatch.setattr(Run, "lock", late)
    summary = start(tmp_path, trainer, SPECS[:1], on_event=events.append)
    assert (summary.skipped, trainer.trained, [event.kind for event in events]) == (SPECS[:1], [], ["skipped"])


def test_what_another_process_held_is_looked_at_again(tmp_path):
    """The other process finishes one run and gives up another while this one trains the rest."""
    held, given_up = SPECS[0], SPECS[1]
    trainer = Trainer()

    def train(spec, **how):
        if spec == held or (spec == given_up and SPECS[2] not in trainer.trained):
            raise BlockingIOError("another process is training it")
        if spec == SPECS[3]:
            Trainer()(held, **how)
        return trainer(spec, **how)

    summary = grid.run(SPECS, runs=tmp_path, train=train, execution=CPU)
    assert summary.finished == [*SPECS[2:], given_up]
    assert (summary.skipped, summary.elsewhere) == ([held], [])


def test_missing_data_are_one_error(tmp_path):
    specs = recipes.get("table1").specs(1, only="dataset=cifar10,imbalance=0.01")
    with pytest.raises(OSError, match=r"cifar10 is not in"):
        grid.check_data(specs, runs=tmp_path, data_root=tmp_path / "none")
    start(tmp_path, Trainer(), specs)
    grid.check_data(specs, runs=tmp_path, data_root=tmp_path / "none")


class Step:
    """Stands in for what a recipe does after training: notes what it was asked to do, once for every run."""

    def __init__(self, clock, seconds=5.0, fails=(), note=""):
        self.clock, self.seconds, self.fails, self.note, self.done = clock, seconds, fails, note, []

    def check(self, specs, runs, data_root, download):
        self.checked = [spec.head for spec in specs]

    def __call__(self, specs, place):
        for spec in specs:
            if spec.head in self.fails:
                raise RuntimeError("no outliers")
            if (place.runs / spec.name).is_dir() and spec not in self.done:
                self.clock.now += self.seconds
                self.done.append(spec)
        return self.note


@pytest.fixture
def with_step():
    def make(trainer, **options):
        step = Step(trainer.clock, **options)
        recipe = dataclasses.replace(recipes.get("demo"), after=step, sweep=None)
        return recipe, step

    return make


def test_the_step_after_a_run_comes_at_once_and_counts_as_its_time(tmp_path, with_step):
    trainer = Trainer(seconds=10.0)
    recipe, step = with_step(trainer)
    told = []
    options = {"runs": tmp_path, "train": trainer, "clock": trainer.clock, "execution": CPU}
    summary = grid.reproduce(recipe, seeds=1, on_event=told.append, **options)
    assert step.done == trainer.trained == summary.finished
    assert {event.seconds for event in told if event.kind == "finished"} == {15.0}
    walls = [json.loads(path.read_text())["seconds"] for path in tmp_path.glob("*/wall.json")]
    assert walls == [15.0] * 4
    step.done.clear()
    again = grid.reproduce(recipe, seeds=1, **options)
    assert len(again.skipped) == len(step.done) == 4, "runs of an earlier call get what they lack"


def test_a_step_that_fails_is_a_failure_of_its_run_alone(tmp_path, with_step):
    trainer = Trainer()
    recipe, step = with_step(trainer, fails=("control",), note="Some are left.")
    options = {"runs": tmp_path, "train": trainer, "clock": trainer.clock, "execution": CPU}
    summary = grid.reproduce(recipe, seeds=1, **options)
    assert [(spec.head, why) for spec, why in summary.failed] == [("control", "RuntimeError: no outliers")]
    assert len(step.done) == 3
    assert summary.notes == ["Some are left."]
    again = grid.reproduce(recipe, seeds=1, **options)
    assert (again.status, len(again.skipped), [spec.head for spec, _ in again.failed]) == (1, 4, ["control"])


def test_what_the_step_needs_is_checked_with_the_data(tmp_path, with_step):
    recipe, step = with_step(Trainer())
    grid.check_data(recipe.specs(1), after=recipe.after, runs=tmp_path)
    assert step.checked == ["plain", "scaled", "maxsep", "control"]


FIRST = RunSpec(head="plain")
SECOND = RunSpec(head="plain", epochs=3, start_from=FIRST)


def test_a_run_comes_after_the_run_it_starts_from(tmp_path):
    trainer = Trainer()
    start(tmp_path, trainer, [SECOND, FIRST])
    assert trainer.trained == [FIRST, SECOND]
    again = start(tmp_path, trainer, [SECOND], only="backbone=trained")
    assert again.skipped == [FIRST, SECOND]


def test_a_run_waits_with_the_run_it_starts_from(tmp_path):
    trainer = Trainer(fails={FIRST})
    summary = start(tmp_path, trainer, [SECOND])
    assert trainer.trained == [FIRST]
    assert summary.failed[1] == (SECOND, f"the run it starts from has failed: {FIRST.name}")
    trainer = Trainer()
    summary = start(tmp_path / "late", trainer, [SECOND], budget=1e-6)
    assert summary.postponed == [FIRST, SECOND]
    assert trainer.trained == []
