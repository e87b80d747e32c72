import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_for

from maxsep.lab import grid, recipes
from maxsep.lab.engine.trainer import DeadlineError
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

SPECS = [
    RunSpec(head=head, radius=0.1 if head != "plain" else 1.0, seed=s) for s in (0, 1) for head in ("plain", "maxsep")
]
CPU = Execution(device="cpu")


class Clock:
    """Time that passes only when a run says so."""

    now = 0.0

    def __call__(self):
        return self.now


class Trainer:
    """Stands in for the engine: writes a result and lets time pass."""

    def __init__(self, seconds=10.0, fails=()):
        self.clock, self.seconds, self.fails, self.trained = Clock(), seconds, fails, []

    def __call__(self, spec, *, runs, download, deadline=math.inf, **_):
        self.download = download
        self.trained.append(spec)
        if self.clock.now + self.seconds > deadline:
            self.clock.now = deadline
            raise DeadlineError
        self.clock.now += self.seconds
        if spec in self.fails:
            raise RuntimeError("the loss is not finite")
        folder = Path(runs) / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        result = {"schema": 1, "spec": spec.to_dict(), "metrics": {"num_train": 1198}, "seconds": self.seconds}
        (folder / "result.json").write_text(json.dumps(result | {"hardware": {"device": "cpu"}}))
        (folder / "failure.json").unlink(missing_ok=True)
        return folder


def start(runs, trainer, specs=SPECS, **options):
    return grid.run(specs, runs=runs, train=trainer, clock=trainer.clock, execution=CPU, **options)


def test_processes_of_torchrun_do_not_share_a_list_of_runs(tmp_path, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    trainer = Trainer()
    with pytest.raises(ValueError, match="torchrun"):
        start(tmp_path, trainer)
    assert not trainer.trained
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(start(tmp_path, trainer).finished) == len(SPECS)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(start(tmp_path, trainer).skipped) == len(SPECS), "the choice of an earlier call can be read"


def test_a_finished_run_is_never_trained_again(tmp_path):
    trainer = Trainer()
    first = start(tmp_path, trainer, download=True)
    second = start(tmp_path, trainer)
    assert (first.finished, first.skipped, first.seconds) == (SPECS, [], 40)
    assert (second.finished, second.skipped) == ([], SPECS)
    assert trainer.trained == SPECS
    assert trainer.download


def test_a_failure_is_recorded_and_the_rest_goes_on(tmp_path):
    summary = start(tmp_path, Trainer(fails={SPECS[1]}))
    assert summary.finished == [SPECS[0], *SPECS[2:]]
    assert summary.failed == [(SPECS[1], "RuntimeError: the loss is not finite")]
    assert summary.status == 1
    run = Run(tmp_path / SPECS[1].name)
    assert run.state == "failed"
    assert "Traceback" in run.read("failure.json")["traceback"]
    assert start(tmp_path, Trainer()).finished == [SPECS[1]]
    assert run.state == "finished"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interruption_ends_the_grid(tmp_path, error, status):
    def trainer(spec, **_):
        raise error

    summary = grid.run(SPECS, runs=tmp_path, train=trainer, execution=CPU)
    assert (summary.interrupted, summary.status, summary.finished) == (status, status, [])


def test_a_run_that_does_not_fit_is_started_last_and_stopped_when_the_budget_is_over(tmp_path):
    trainer, events = Trainer(seconds=10), []
    first = start(tmp_path, trainer, budget=33, on_event=events.append)
    assert (len(first.finished), first.seconds) == (3, 33)
    assert (first.postponed, first.status) == ([SPECS[3]], 0)
    assert [event.kind for event in events if event.spec == SPECS[3]] == ["start", "postponed"]
    assert start(tmp_path, trainer, budget=33).finished == [SPECS[3]]


def test_a_shorter_run_takes_the_place_of_one_that_does_not_fit(tmp_path):
    trainer = Trainer(seconds=10)
    long = SPECS[2].replace(epochs=2000)
    start(tmp_path, trainer, SPECS[:1])
    summary = start(tmp_path, trainer, [long, SPECS[1]], budget=15)
    assert (summary.postponed, summary.finished) == ([long], [SPECS[1]])
    assert trainer.trained == [SPECS[0], SPECS[1], long]


def test_events_and_the_summary_name_every_run(tmp_path):
    events = []
    start(tmp_path, Trainer(fails={SPECS[1]}), SPECS[:2], on_event=events.append)
    kinds = [("start", 1, 2), ("finished", 1, 2), ("start", 2, 2), ("failed", 2, 2)]
    assert [(e.kind, e.index, e.total) for e in events] == kinds
    assert (events[1].seconds, events[3].message) == (10, "RuntimeError: the loss is not finite")
    summary = start(tmp_path, Trainer(), SPECS[:2], on_event=events.append, budget=1)
    assert [e.kind for e in events[4:]] == ["skipped", "start", "postponed"]
    assert "1 postponed" in str(summary)


def test_a_plan_lists_and_estimates_without_training(tmp_path):
    start(tmp_path, Trainer(), SPECS[:1])
    Run(tmp_path / SPECS[1].name).begin(SPECS[1])
    planned = grid.plan(SPECS, runs=tmp_path, execution=CPU)
    assert [p.state for p in planned] == ["finished", "unfinished", "new", "new"]
    assert planned[0].estimate.seconds == 0
    assert planned[1].estimate.seconds == pytest.approx(11)


def test_a_run_that_another_process_holds_is_left_alone(tmp_path, held_elsewhere):
    events, trainer = [], Trainer()
    second = SPECS[0].replace(start_from=SPECS[0], epochs=1)
    with held_elsewhere(Run(tmp_path / SPECS[0].name)):
        summary = start(tmp_path, trainer, [second, SPECS[1]], on_event=events.append)
    assert (summary.elsewhere, summary.failed, trainer.trained) == ([SPECS[0], second], [], [SPECS[1]])
    assert [event.kind for event in events] == ["start", "finished", "elsewhere", "elsewhere"]
    assert start(tmp_path, trainer, [second]).finished == [SPECS[0], second]


def test_what_another_process_held_is_considered_again(tmp_path):
    """The other process finishes one run and releases another while this one trains the rest."""
    held, released = SPECS[0], SPECS[1]
    trainer = Trainer()

    def train(spec, **how):
        if spec == held or (spec == released and SPECS[2] not in trainer.trained):
            raise BlockingIOError("another process is training it")
        if spec == SPECS[3]:
            Trainer()(held, **how)
        return trainer(spec, **how)

    summary = grid.run(SPECS, runs=tmp_path, train=train, execution=CPU)
    assert summary.finished == [*SPECS[2:], released]
    assert (summary.skipped, summary.elsewhere, summary.failed) == ([held], [], [])


def test_missing_data_are_one_error(tmp_path):
    specs = recipes.get("table1").specs(1, only="dataset=cifar10,imbalance=0.01")
    with pytest.raises(OSError, match="cifar10"):
        grid.check_data(specs, runs=tmp_path, data_root=tmp_path / "none")
    start(tmp_path, Trainer(), specs)
    grid.check_data(specs, runs=tmp_path, data_root=tmp_path / "none")


class Step:
    """Stands in for what a recipe does after training."""

    def __init__(self, clock, fails=(), note=""):
        self.clock, self.fails, self.note, self.done = clock, fails, note, []

    def check(self, specs, runs, data_root, download):
        self.checked = [spec.head for spec in specs]

    def is_done(self, run):
        return run.name in self.done

    def __call__(self, run, *, data_root, device):
        if run.spec.head in self.fails:
            raise RuntimeError("no outliers")
        self.clock.now += 5
        self.done.append(run.name)
        return self.note


def demo_with(step):
    return dataclasses.replace(recipes.get("demo"), after=step)


def test_the_step_after_training_counts_as_the_runs_time_and_is_taken_once(tmp_path):
    trainer, events = Trainer(), []
    step = Step(trainer.clock)
    settings = {"runs": tmp_path, "train": trainer, "clock": trainer.clock, "execution": CPU, "seeds": 1}
    grid.reproduce(recipes.get("demo"), only="head=plain", **settings)
    grid.reproduce(demo_with(step), on_event=events.append, **settings)
    assert {event.seconds for event in events if event.kind == "finished"} == {15}
    names = [spec.name for spec in recipes.get("demo").specs(1)]
    assert step.done == names, "runs of an earlier call get what they lack"
    assert grid.reproduce(demo_with(step), **settings).seconds == 0


def test_a_step_that_fails_is_a_failure_of_its_run_alone(tmp_path):
    trainer = Trainer()
    step = Step(trainer.clock, fails=("control",), note="Some are left.")
    settings = {"runs": tmp_path, "train": trainer, "clock": trainer.clock, "execution": CPU, "seeds": 1}
    for _ in range(2):
        summary = grid.reproduce(demo_with(step), **settings)
        assert {why for _, why in summary.failed} == {"RuntimeError: no outliers"}
        assert {spec.head for spec, _ in summary.failed} == {"control"}
    late = grid.reproduce(demo_with(Step(trainer.clock)), budget=1e-9, **settings)
    assert len(late.notes) == 1
    grid.check_data(recipes.get("demo").specs(1), after=step, runs=tmp_path)
    assert "plain" in step.checked


FIRST = RunSpec(head="plain")
SECOND = RunSpec(head="plain", epochs=3, start_from=FIRST)


@pytest.mark.parametrize(("specs", "trained"), [([FIRST, FIRST], [FIRST]), ([SECOND, FIRST], [FIRST, SECOND])])
def test_every_run_is_trained_once_and_after_the_run_it_starts_from(tmp_path, specs, trained):
    trainer = Trainer()
    start(tmp_path, trainer, specs)
    assert trainer.trained == trained


def test_a_run_shares_the_fate_of_the_run_it_starts_from(tmp_path):
    trainer = Trainer(fails={FIRST})
    summary = start(tmp_path, trainer, [SECOND])
    assert trainer.trained == [FIRST]
    assert [spec for spec, _ in summary.failed] == [FIRST, SECOND]
    assert start(tmp_path / "late", trainer, [SECOND], budget=1e-6).postponed == [FIRST, SECOND]
    assert trainer.trained == [FIRST, FIRST]


SCRIPT = """
import sys
from maxsep.lab import grid
from maxsep.lab.spec import Execution, RunSpec

if __name__ == "__main__":
    runs, epochs, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    specs = [RunSpec(seed=seed, epochs=epochs, batch_size=16, evaluate_every=epochs) for seed in range(4)]
    specs[1:1] = [RunSpec(network="no_such_network")] if epochs == 1 else []
    tell = lambda event: print(event.kind, event.index, flush=True)
    summary = grid.run(specs, runs=runs, jobs=jobs, execution=Execution(device="cpu"), on_event=tell)
    print("end", len(summary.finished), len(summary.failed), flush=True)
    sys.exit(summary.status)
"""


@pytest.fixture
def launch(tmp_path):
    """Start the script; end what still runs."""
    script, processes = tmp_path / "script.py", []
    script.write_text(SCRIPT)

    def start(epochs, jobs=2):
        command = [sys.executable, str(script), str(tmp_path / "runs"), str(epochs), str(jobs)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.distributed
def test_several_processes_train_every_run_once(tmp_path, launch):
    process = launch(epochs=1)
    lines = process.communicate(timeout=240)[0].splitlines()
    assert process.returncode == 1
    assert lines[-1] == "end 4 1"
    assert sorted(lines[:-1]) == sorted(
        [f"start {n}" for n in range(1, 6)] + [f"finished {n}" for n in (1, 3, 4, 5)] + ["failed 2"]
    )
    shared = {run.name: run.metrics for run in map(Run, (tmp_path / "runs").iterdir()) if run.state == "finished"}
    specs = [RunSpec(seed=seed, epochs=1, batch_size=16, evaluate_every=1) for seed in range(4)]
    alone = grid.run(specs, runs=tmp_path / "alone", execution=CPU)
    assert shared == {spec.name: Run(tmp_path / "alone" / spec.name).metrics for spec in alone.finished}


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_processes_end_with_their_parent_and_their_runs_can_be_resumed(tmp_path, launch, number):
    process = launch(epochs=100_000)
    for _ in range(2):  # both are training
        assert process.stdout.readline().startswith("start")
    started = [pid for pid in children(process.pid) if is_running(pid)]
    assert len(started) >= 2
    wait_for(lambda: len(list((tmp_path / "runs").glob("*/metrics.jsonl"))) == 2)
    process.send_signal(number)
    lines = process.communicate(timeout=60)[0].splitlines()  # to the end of all that can write
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert lines == ([] if number == signal.SIGKILL else ["end 0 0"]), "what was stopped is not said to be lost"
    wait_for(lambda: not any(map(is_running, started)))
    states = {Run(path.parent).state for path in (tmp_path / "runs").glob("*/spec.json")}
    assert states == {"unfinished"}
    assert len(list((tmp_path / "runs").glob("*/resume/save_*"))) >= 2


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_whose_process_dies_is_started_again(launch):
    process = launch(epochs=10)
    assert process.stdout.readline().startswith("start")  # every process has a run by now, however late it begins
    busy = [pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(busy[0], signal.SIGKILL)
    lines = process.communicate(timeout=240)[0].splitlines()
    assert [line.split()[0] for line in lines].count("lost") == 1
    assert lines[-1] == "end 4 0"


def test_the_run_in_progress_stops_with_a_resume_point_when_the_budget_is_over(tmp_path, monkeypatch):
    spec = RunSpec(head="plain", epochs=100_000, batch_size=32)
    monkeypatch.setattr(grid.Estimator, "estimate", lambda self, spec: grid.Estimate(0.0, "a wrong guess"))
    summary = grid.run([spec, SPECS[0]], runs=tmp_path, execution=CPU, budget=2.0)
    assert (summary.finished, summary.postponed, summary.failed, summary.status) == ([], [spec, SPECS[0]], [], 0)
    run = Run(tmp_path / spec.name)
    assert run.state == "unfinished"
    assert run.resume.is_dir()
