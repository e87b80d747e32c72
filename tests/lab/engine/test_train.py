"""Whole runs: their record, the same bits after any interruption, and refusals that leave nothing behind."""

import importlib
import math
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from class_folders import write_classes
from safetensors.torch import load_file

from maxsep.lab.data import Dataset
from maxsep.lab.engine import CheckpointError, NonFiniteError, checkpoint, step, train, trainer
from maxsep.lab.engine.trainer import StopRequest
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec, options

SPEC = RunSpec(epochs=3, batch_size=256, evaluate_every=2, max_train=700, max_test=200, augmentation="crop_flip")
CPU = Execution(device="cpu")
SMALL = {"max_train": 60, "epochs": 2, "batch_size": 32}
DEFERRED = options(reweight="effective", reweight_from=1)
MODULE = importlib.import_module("maxsep.lab.engine.train")


def run(runs, spec=SPEC, execution=CPU, progress=False):
    return train(spec, runs=runs, execution=execution, progress=progress)


def rows(folder):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in Run(folder).history]


def weights(folder):
    return (folder / "weights.safetensors").read_bytes()


def assert_same(folder, reference):
    assert weights(folder) == weights(reference)
    assert rows(folder) == rows(reference)


def stop_at(patch, number, action=lambda: os.kill(os.getpid(), signal.SIGTERM)):
    """Do something before step `number`, counted over all epochs."""
    call, steps = step.Step.__call__, iter(range(1000))

    def counted(self, indices):
        if next(steps) == number:
            action()
        return call(self, indices)

    patch.setattr(step.Step, "__call__", counted)


@pytest.fixture
def interrupt(monkeypatch):
    """Train until a signal comes before a step; a resume point is left."""

    def train_until(runs, at, spec=SPEC, execution=CPU):
        with monkeypatch.context() as patch:
            stop_at(patch, at)
            with pytest.raises(SystemExit):
                run(runs, spec, execution)

    return train_until


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("reference"))


def test_the_record_of_a_run(finished):
    found = Run(finished)
    names = ["MANIFEST.json", "metrics.jsonl", "result.json", "spec.json", "weights.safetensors"]
    assert sorted(path.name for path in finished.iterdir()) == names
    assert set(found.result) == {
        *("schema", "name", "spec", "metrics", "preprocessing", "command", "execution", "versions", "hardware"),
        *("seconds", "images_per_second", "started", "finished", "resumed", "wall_seconds"),
    }
    assert (found.name, found.spec) == (SPEC.name, SPEC)
    metrics = found.metrics
    assert (metrics["num_train"], metrics["num_test"], sum(metrics["class_counts"])) == (700, 200, 700)
    assert 0.3 < metrics["top1"] <= metrics["top5"] <= 1
    assert metrics["best_top1"] >= metrics["top1"]
    assert metrics["angular_fisher"] > 0
    assert 0 < found.result["seconds"] < found.result["wall_seconds"]
    assert found.result["images_per_second"] > 0
    assert (found.result["hardware"]["threads"], found.result["execution"]["compile"]) == (1, False)
    lines = rows(finished)
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert [{"top1", "top5", "loss", "ece"} <= set(line) for line in lines] == [True, False, True]
    assert lines[0]["learning_rate"] == 0.1
    assert lines[2]["train_loss"] < lines[0]["train_loss"]
    assert lines[2]["top1"] == metrics["top1"]


def test_the_same_spec_gives_the_same_bits_and_leaves_the_callers_state_alone(finished, tmp_path):
    torch.manual_seed(11)
    before = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    assert_same(run(tmp_path), finished)  # the small network has one thread
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before[1])
    assert torch.equal(before[0], torch.get_rng_state())
    assert weights(run(tmp_path, SPEC.replace(seed=1))) != weights(finished)


def test_every_epoch_sees_every_image_once_the_short_last_batch_included(tmp_path, monkeypatch):
    call, seen = step.Step.__call__, []
    monkeypatch.setattr(step.Step, "__call__", lambda self, indices: seen.append(indices) or call(self, indices))
    run(tmp_path)
    assert [len(indices) for indices in seen] == [256, 256, 188] * SPEC.epochs
    epochs = [torch.cat(seen[start : start + 3]) for start in range(0, len(seen), 3)]
    assert all(sorted(epoch.tolist()) == list(range(700)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_runs_that_are_finished_taken_or_of_another_spec_are_left_alone(
    finished, monkeypatch, tmp_path, held_elsewhere
):
    monkeypatch.setattr(step.Step, "__call__", None)
    assert run(finished.parent) == finished
    with held_elsewhere(Run(tmp_path / SPEC.name)), pytest.raises(BlockingIOError):
        run(tmp_path)
    assert not (tmp_path / SPEC.name).exists()
    Run(tmp_path / SPEC.name).begin(SPEC.replace(seed=9))
    with pytest.raises(ValueError, match="seed"):
        run(tmp_path)


def test_a_run_may_stop_early_on_the_schedule_of_the_whole(finished, tmp_path):
    short = run(tmp_path, SPEC.replace(stop_after=2))
    assert [row["learning_rate"] for row in rows(short)] == [row["learning_rate"] for row in rows(finished)][:2]
    assert [row["train_loss"] for row in rows(short)] == [row["train_loss"] for row in rows(finished)][:2]
    assert "top1" in rows(short)[-1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_signal_finishes_the_step_saves_and_exits(finished, tmp_path, monkeypatch, capsys, number, code, at):
    with monkeypatch.context() as patch:
        stop_at(patch, at, lambda: os.kill(os.getpid(), number))
        with pytest.raises(SystemExit) as caught:
            run(tmp_path, progress=True)
    assert caught.value.code == code
    assert f"epoch {at // 3 + 1}/3, step {at % 3 + 1}/3" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert Run(tmp_path / SPEC.name).state == "unfinished", "an interruption is no failure"
    assert_same(run(tmp_path), finished)
    assert Run(tmp_path / SPEC.name).result["resumed"] == 1
    assert "wall_seconds" not in Run(tmp_path / SPEC.name).result


def test_a_signal_in_the_last_evaluation_lets_the_run_finish_and_asks_the_caller_to_stop(tmp_path, monkeypatch):
    finish = Run.finish
    monkeypatch.setattr(Run, "finish", lambda *args: (os.kill(os.getpid(), signal.SIGTERM), finish(*args)))
    with pytest.raises(SystemExit) as caught:
        run(tmp_path)
    assert caught.value.code == 143
    assert Run(run(tmp_path)).result["resumed"] == 0


def test_a_signal_that_meets_an_error_is_not_lost(tmp_path, monkeypatch):
    def prepare(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("no data")

    monkeypatch.setattr(MODULE, "prepare", prepare)
    with pytest.raises(SystemExit) as caught:
        run(tmp_path)
    assert caught.value.code == 143


def test_stop_requests_keep_the_first_signal_and_restore_the_handlers():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(StopRequest().__enter__().signum))
        thread.start()
        thread.join()
    assert elsewhere == [0], "outside the main thread no handler can be set"
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ValueError, match="no signal"), StopRequest():
        raise ValueError("no signal came")


@pytest.mark.parametrize(
    ("spec", "execution"),
    [
        ({"precision": "bf16-mixed"}, {}),
        ({"precision": "64-true"}, {}),
        ({"optimiser": "adamw", "learning_rate": 0.01, "clip_norm": 0.5}, {}),
        ({"nesterov": True, "batch_size": 699}, {}),  # a last batch of one image
        ({"head": "hpn", "loss": "squared_cosine"}, {}),
        ({"head": "control", "radius": 0.5, "head_rate": 0.1, "head_decay": 3.0}, {}),
        ({"class_order": "frequency", "imbalance": 0.1, "max_train": None}, {}),
        ({"mixup": 1.0, "precision": "64-true", "augmentation": "crop_flip_auto_cutout"}, {}),
        ({"sampler": "class_balanced", "imbalance": 0.1, "max_train": None}, {}),
        ({"head": "cosine_maxsep", "loss": "ldam", "loss_options": DEFERRED, "max_train": 300}, {}),
        ({"network": "resnet32", "max_train": 60, "epochs": 1, "batch_size": 32}, {"channels_last": True}),
        (SMALL | {"network": "vgg32", "augmentation": "rand_augment_m6", "schedule": "restarts"}, {}),
        (SMALL | {"network": "wrn40_2", "nesterov": True, "schedule": "cosine_steps"}, {"channels_last": True}),
    ],
)
def test_variants_train_and_resume_to_the_same_bits(tmp_path, interrupt, spec, execution):
    spec, execution = SPEC.replace(**spec), Execution(device="cpu", **execution)
    whole = run(tmp_path / "whole", spec, execution)
    interrupt(tmp_path / "parts", 1, spec, execution)
    assert_same(run(tmp_path / "parts", spec, execution), whole)
    assert torch.get_default_dtype() == torch.float32
    assert all(torch.isfinite(tensor).all() for tensor in load_file(whole / "weights.safetensors").values())


@pytest.mark.parametrize("network", ["vgg32", "wrn40_2"])
def test_dropout_alone_needs_torchs_own_random_state(tmp_path, interrupt, monkeypatch, network):
    spec = SPEC.replace(**SMALL, network=network, augmentation="none")
    whole = run(tmp_path / "whole", spec)
    for name in ("kept", "forgotten"):
        interrupt(tmp_path / name, 1, spec)
    assert weights(run(tmp_path / "kept", spec)) == weights(whole)
    restore, own = checkpoint.Generators.set, {"torch": torch.get_rng_state()}
    monkeypatch.setattr(checkpoint.Generators, "set", lambda self, states: restore(self, states | own))
    assert weights(run(tmp_path / "forgotten", spec)) != weights(whole)


def test_a_run_resumes_from_the_point_before_a_damaged_one(finished, tmp_path, monkeypatch):
    def fail():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        stop_at(patch, 7, fail)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, execution=Execution(device="cpu", checkpoint_steps=2))
    newest = sorted((tmp_path / SPEC.name / "resume").iterdir())[-1]
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert_same(run(tmp_path), finished)


def test_several_processes_stop_at_the_end_of_an_epoch_only(finished, tmp_path, monkeypatch, interrupt):
    pause = trainer.Trainer._pause

    def among_two(self):
        fabric = self.fabric
        self.fabric = SimpleNamespace(world_size=2, is_global_zero=True, barrier=fabric.barrier)
        signum, self.fabric = pause(self), fabric
        return signum

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_pause", among_two)
        interrupt(tmp_path, 3)
    state = checkpoint.load_point(Run(tmp_path / SPEC.name).resume).state
    assert (state["epoch"], state["step"]) == (1, 3)
    assert_same(run(tmp_path), finished)


def test_a_torn_line_of_metrics_is_mended_on_resume(finished, tmp_path, interrupt):
    interrupt(tmp_path, 4)
    with (tmp_path / SPEC.name / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1}\n{"epoch": 2, "learn')  # also a whole line beyond the resume point
    interrupt(tmp_path, 0)
    assert [row["epoch"] for row in Run(tmp_path / SPEC.name).history] == [0]
    assert_same(run(tmp_path), finished)


@pytest.mark.parametrize(
    ("share", "execution", "saved"),
    [
        (0, {"checkpoint_every": 2}, [(2, 0), (4, 0)]),
        (1e6, {"checkpoint_every": 1}, [(1, 0)]),  # saving may not take most of the time
        (1e6, {"checkpoint_steps": 6}, [(1, 3), (3, 3)]),
    ],
)
def test_when_resume_points_are_saved(tmp_path, monkeypatch, share, execution, saved):
    found, save = [], trainer.save_point
    monkeypatch.setattr(trainer, "save_point", lambda folder, point: found.append(point.state) or save(folder, point))
    monkeypatch.setattr(trainer, "SAVING_SHARE", share)
    folder = run(tmp_path, SPEC.replace(epochs=5), Execution(device="cpu", **execution))
    assert ["top1" in row for row in rows(folder)] == [True, False, True, False, True]
    assert [(state["epoch"], state["step"]) for state in found] == saved


def test_a_resume_point_of_other_images_is_refused(tmp_path, interrupt):
    write_classes(tmp_path / "pictures", dark=10, light=10)
    spec = RunSpec(dataset=f"folder:{tmp_path / 'pictures'}?size=8", epochs=2, batch_size=8)
    interrupt(tmp_path / "runs", 1, spec)
    old, new = (tmp_path / "pictures" / "dark" / name for name in ("00.bmp", "new.bmp"))
    old.rename(new)
    with pytest.raises(CheckpointError, match="folder:"):
        run(tmp_path / "runs", spec)
    new.rename(old)
    found = Run(run(tmp_path / "runs", spec))
    assert found.result["resumed"] == 1
    assert found.metrics["files"] == Dataset.parse(spec.dataset).fingerprint(None)


@pytest.mark.parametrize(
    ("changed", "execution", "message"),
    [
        ({"versions": lambda: {"torch": "1.0"}}, {}, "torch 1.0 -> 2."),
        ({}, {"channels_last": True}, "channels_last False -> True"),
        ({}, {"compile": True}, "compile False -> True"),
    ],
)
def test_other_conditions_are_noted_on_resume(tmp_path, interrupt, monkeypatch, capsys, changed, execution, message):
    with monkeypatch.context() as patch:
        for name, value in changed.items():
            patch.setattr(trainer, name, value)
        interrupt(tmp_path, 2)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    run(tmp_path, execution=Execution(device="cpu", **execution), progress=True)
    assert message in capsys.readouterr().err
    limit = torch._dynamo.config.recompile_limit
    assert limit >= 128 or not execution.get("compile"), "torch.compile would silently run eager code"


def test_a_run_begun_on_another_kind_of_device_goes_on_and_says_so(tmp_path, interrupt, monkeypatch, capsys):
    read = checkpoint.Generators.get
    other = {name: torch.zeros(16, dtype=torch.uint8) for name in ("augmentation", "mixup", "cuda")}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Generators, "get", lambda self: read(self) | other)
        interrupt(tmp_path, 1)
    assert Run(run(tmp_path, progress=True)).result["resumed"] == 1
    assert "another kind of device than cpu" in capsys.readouterr().err


def test_a_schedule_by_steps_gives_every_update_its_own_rate(tmp_path, interrupt, monkeypatch):
    spec, rates, setter = SPEC.replace(schedule="cosine_steps"), [], step.set_learning_rate
    noted = lambda optimiser, rate, **frozen: rates.append(rate) or setter(optimiser, rate, **frozen)  # noqa: E731
    monkeypatch.setattr(step, "set_learning_rate", noted)
    interrupt(tmp_path, 3, spec)
    folder = run(tmp_path, spec)
    expected = [1e-6 + (0.1 - 1e-6) * 0.5 * (1 + math.cos(math.pi * i / 9)) for i in range(1, 10)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert [row["learning_rate"] for row in rows(folder)] == pytest.approx(expected[::3])


def test_a_loss_that_is_no_number_stops_before_the_weights_move_and_is_recorded(finished, tmp_path, monkeypatch):
    seen, call = [], step.Step.__call__

    def spoil(self, indices):
        if (self.epoch, self.position) == (1, 2):
            seen.extend([self.network, [p.detach().clone() for p in self.network.parameters()]])
            self.loss = lambda logits, target: logits.sum() * float("nan")
        return call(self, indices)

    with monkeypatch.context() as patch:
        patch.setattr(step.Step, "__call__", spoil)
        with pytest.raises(NonFiniteError, match="nan at epoch 2/3, step 3") as caught:
            run(tmp_path)
    assert (caught.value.epoch, caught.value.step) == (1, 2)
    network, before = seen
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    failure = Run(tmp_path / SPEC.name).read("failure.json")
    assert failure["error"].startswith("NonFiniteError")
    assert RunSpec.from_dict(failure["spec"]) == SPEC
    assert "in _check_loss" in failure["traceback"]
    assert_same(run(tmp_path), finished)
    assert not (tmp_path / SPEC.name / "failure.json").exists()


def test_losses_are_checked_at_the_end_of_an_epoch_too(tmp_path, monkeypatch):
    """On a GPU a step does not wait for its loss."""
    with pytest.raises(NonFiniteError, match=r"learning rate 1e\+20"):
        run(tmp_path, SPEC.replace(learning_rate=1e20, schedule="constant", weight_decay=0.1))
    call = step.Step.__call__

    def late(self, indices):
        return call(self, indices) * (float("inf") if (self.epoch, self.position) == (1, 1) else 1.0)

    monkeypatch.setattr(step.Step, "__call__", late)
    with pytest.raises(NonFiniteError, match="inf at epoch 2/3, step 2"):
        run(tmp_path)
