import json
import math
import os
import signal

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from maxsep.lab.data import Dataset
from maxsep.lab.engine import CheckpointError, NonFiniteError, assemble, checkpoint, loop, state, step, train, trainer
from maxsep.lab.spec import Execution, RunSpec, options

SPEC = RunSpec(epochs=3, batch_size=256, evaluate_every=2, max_train=700, max_test=200, augmentation="crop_flip")
CPU = Execution(device="cpu")
SMALL = {"max_train": 60, "epochs": 2, "batch_size": 32}
DEFERRED = options(reweight="effective", reweight_from=1)


def run(runs, spec=SPEC, execution=CPU):
    return train(spec, runs=runs, execution=execution, progress=False)


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def weights(folder):
    return (folder / "weights.safetensors").read_bytes()


def result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("reference"))


def test_the_folder_tells_what_was_done(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        "metrics.jsonl",
        "result.json",
        "spec.json",
        "weights.safetensors",
    ]
    assert finished.name == SPEC.name
    told = result(finished)
    assert set(told) == {
        *("schema", "name", "spec", "metrics", "preprocessing", "execution", "versions", "hardware"),
        *("seconds", "images_per_second", "started", "finished", "resumed"),
    }
    assert RunSpec.from_dict(told["spec"]) == SPEC
    metrics = told["metrics"]
    assert (metrics["num_train"], metrics["num_test"], sum(metrics["class_counts"])) == (700, 200, 700)
    assert 0.3 < metrics["top1"] <= metrics["top5"] <= 1
    assert metrics["best_top1"] >= metrics["top1"]
    assert len(metrics["per_class"]) == 10
    assert metrics["angular_fisher"] > 0
    parameters = sum(tensor.numel() for tensor in load_file(finished / "weights.safetensors").values())
    assert metrics["parameters"] <= parameters
    assert told["seconds"] > 0
    assert told["images_per_second"] > 0


def test_a_line_an_epoch_and_evaluation_where_it_is_due(finished):
    lines = rows(finished)
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert [sorted(set(line) & {"top1", "top5", "loss", "ece"}) for line in lines] == [
        ["ece", "loss", "top1", "top5"],
        [],
        ["ece", "loss", "top1", "top5"],
    ]
    assert lines[0]["learning_rate"] == 0.1
    assert lines[2]["train_loss"] < lines[0]["train_loss"]
    assert lines[2]["top1"] == result(finished)["metrics"]["top1"]


def test_the_same_spec_gives_the_same_bits_and_leaves_the_callers_randomness_alone(finished, tmp_path):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    again = run(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert weights(again) == weights(finished)
    assert rows(again) == rows(finished)


def test_every_epoch_sees_every_image_once_the_short_last_batch_included(tmp_path, monkeypatch):
    call, seen = step.Step.__call__, []
    monkeypatch.setattr(step.Step, "__call__", lambda self, indices: seen.append(indices) or call(self, indices))
    run(tmp_path)
    assert [len(indices) for indices in seen] == [256, 256, 188] * SPEC.epochs
    epochs = [torch.cat(seen[start : start + 3]) for start in range(0, len(seen), 3)]
    assert all(sorted(epoch.tolist()) == list(range(700)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_another_seed_gives_other_weights(finished, tmp_path):
    assert weights(run(tmp_path, SPEC.replace(seed=1))) != weights(finished)


def test_a_finished_run_is_not_trained_again(finished, monkeypatch):
    monkeypatch.setattr(step.Step, "__call__", None)
    assert run(finished.parent) == finished


def test_a_folder_with_another_spec_is_refused(tmp_path):
    folder = tmp_path / SPEC.name
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps(SPEC.replace(seed=9).to_dict()))
    with pytest.raises(ValueError, match=r"holds another run: its spec.json differs in seed"):
        run(tmp_path)


def stop_at(monkeypatch, number, action):
    """Do something before step `number` (counted over all epochs)."""
    call, steps = step.Step.__call__, iter(range(1000))

    def counted(self, indices):
        if next(steps) == number:
            action()
        return call(self, indices)

    monkeypatch.setattr(step.Step, "__call__", counted)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_signal_finishes_the_step_saves_and_exits(finished, tmp_path, monkeypatch, capsys, number, code, at):
    with monkeypatch.context() as patch:
        stop_at(patch, at, lambda: os.kill(os.getpid(), number))
        with pytest.raises(SystemExit) as caught:
            train(SPEC, runs=tmp_path, execution=CPU)
    assert caught.value.code == code
    assert f"stopped by a signal after epoch {at // 3 + 1}/3, step {at % 3 + 1}/3; run again" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    folder = run(tmp_path)
    assert weights(folder) == weights(finished)
    assert rows(folder) == rows(finished)
    assert result(folder)["resumed"] == 1


def test_a_signal_in_the_last_evaluation_lets_the_run_finish_and_then_asks_the_caller_to_stop(tmp_path, monkeypatch):
    from maxsep.lab.engine.trainer import Trainer

    finish = Trainer._finish
    monkeypatch.setattr(Trainer, "_finish", lambda self: (os.kill(os.getpid(), signal.SIGTERM), finish(self)))
    with pytest.raises(SystemExit) as caught:
        train(SPEC, runs=tmp_path, execution=CPU, progress=False)
    assert caught.value.code == 143
    assert result(train(SPEC, runs=tmp_path, execution=CPU, progress=False))["resumed"] == 0


def test_a_signal_that_meets_an_error_is_not_lost(tmp_path, monkeypatch):
    from maxsep.lab.engine import loop

    def late(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("no data")

    monkeypatch.setattr(loop, "prepare", late)
    with pytest.raises(SystemExit) as caught:
        train(SPEC, runs=tmp_path, execution=CPU, progress=False)
    assert caught.value.code == 143


def fail():
    raise KeyboardInterrupt


def test_a_run_goes_on_from_the_point_before_a_damaged_one(finished, tmp_path, monkeypatch):
    often = Execution(device="cpu", extra=options(checkpoint_steps=2))
    with monkeypatch.context() as patch:
        stop_at(patch, 7, fail)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, execution=often)
    newest = sorted((tmp_path / SPEC.name / "resume").iterdir())[-1]
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        folder = run(tmp_path)
    assert weights(folder) == weights(finished)
    assert rows(folder) == rows(finished)


def test_resume_points_come_every_few_epochs(tmp_path, monkeypatch):
    saved = []
    save = trainer.save_point
    monkeypatch.setattr(trainer, "save_point", lambda folder, point: saved.append(point.state) or save(folder, point))
    monkeypatch.setattr(trainer, "_SAVING_SHARE", 0)
    run(tmp_path, SPEC.replace(epochs=5), Execution(device="cpu", checkpoint_every=2))
    assert [(state["epoch"], state["step"]) for state in saved] == [(2, 0), (4, 0)]


def test_saving_may_not_eat_the_time(tmp_path, monkeypatch):
    saved = []
    save = trainer.save_point
    monkeypatch.setattr(trainer, "save_point", lambda folder, point: saved.append(point.state) or save(folder, point))
    monkeypatch.setattr(trainer, "_SAVING_SHARE", 1e6)
    run(tmp_path, SPEC.replace(epochs=5), Execution(device="cpu", checkpoint_every=1))
    assert [state["epoch"] for state in saved] == [1]


def test_a_resume_point_of_other_data_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(tmp_path)
    monkeypatch.setattr(trainer, "load_point", lambda folder: _shorter(checkpoint.load_point(folder)))
    with pytest.raises(CheckpointError, match="made with 2 steps per epoch, the data now give 3"):
        run(tmp_path)


def _shorter(point):
    point.tensors["losses"] = point.tensors["losses"][:2]
    return point


def test_a_resume_point_of_other_pictures_is_refused(tmp_path, monkeypatch):
    for name, shade in (("dark", 40), ("light", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), (shade + i,) * 3).save(tmp_path / "pictures" / name / f"{i}.png")
    spec = RunSpec(dataset=f"folder:{tmp_path / 'pictures'}?size=8", epochs=2, batch_size=8)
    with monkeypatch.context() as patch:
        stop_at(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(tmp_path / "runs", spec)
    old, new = (tmp_path / "pictures" / "dark" / name for name in ("0.png", "new.png"))
    old.rename(new)
    with pytest.raises(CheckpointError, match=r"made with other images of folder:.*: files have been replaced, or"):
        run(tmp_path / "runs", spec)
    new.rename(old)
    told = result(run(tmp_path / "runs", spec))
    assert told["resumed"] == 1
    assert told["metrics"]["files"] == Dataset.parse(spec.dataset).fingerprint()


def test_other_conditions_are_told_on_resume(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr(trainer, "versions", lambda: {"torch": "1.0"})
        with pytest.raises(SystemExit):
            run(tmp_path)
    train(SPEC, runs=tmp_path, execution=CPU)
    assert "resumed under other conditions (torch 1.0 -> 2." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"channels_last": True}, "channels_last False -> True"),
        ({"compile": True}, "compile False -> True"),
        ({"extra": options(compile_mode="max-autotune")}, "compile_mode None -> max-autotune"),
        ({"extra": options(compile_options="combo_kernels")}, "compile_options None -> combo_kernels"),
    ],
)
def test_another_way_to_compute_is_told_on_resume(tmp_path, monkeypatch, capsys, change, told):
    with monkeypatch.context() as patch:
        stop_at(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(tmp_path)
    monkeypatch.setattr(assemble, "_compile", lambda *_: None)  # what is told does not wait for a compiler
    train(SPEC, runs=tmp_path, execution=Execution(device="cpu", **change))
    assert f"resumed under other conditions ({told}): not bit-identical" in capsys.readouterr().err


def test_a_loss_that_is_no_number_stops_before_the_weights_move(tmp_path, monkeypatch):
    seen = []

    def spoil(self, indices):
        if (self.epoch, self.position) == (1, 2):
            seen.append([p.detach().clone() for p in self.network.parameters()])
            seen.append(self.network)
            self.loss = lambda logits, target: logits.sum() * float("nan")
        return call(self, indices)

    call = step.Step.__call__
    monkeypatch.setattr(step.Step, "__call__", spoil)
    with pytest.raises(NonFiniteError, match="became nan at epoch 2/3, step 3") as caught:
        run(tmp_path)
    assert (caught.value.epoch, caught.value.step) == (1, 2)
    before, network = seen
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_a_real_divergence_is_caught(tmp_path):
    with pytest.raises(NonFiniteError, match=r"at epoch \d/3, step \d.*learning rate 1e\+20"):
        run(tmp_path, SPEC.replace(learning_rate=1e20, schedule="constant", weight_decay=0.1))


def test_a_device_that_is_not_waited_for_is_checked_at_the_end_of_the_epoch(tmp_path, monkeypatch):
    call = step.Step.__call__

    def unwatched(self, indices):
        self.watch = self.watch_gradients = False
        loss = call(self, indices)
        return loss * float("inf") if (self.epoch, self.position) == (1, 1) else loss

    monkeypatch.setattr(step.Step, "__call__", unwatched)
    with pytest.raises(NonFiniteError, match=r"became inf at epoch 2/3, step 2. Nothing was saved since"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("spec", "execution"),
    [
        ({"precision": "bf16-mixed"}, {}),
        ({"precision": "64-true"}, {}),
        ({"optimiser": "adamw", "learning_rate": 0.01}, {}),
        ({"nesterov": True, "batch_size": 699}, {}),  # a last batch of one image
        ({"head": "hpn", "loss": "squared_cosine"}, {}),
        ({"mixup": 1.0, "precision": "64-true", "augmentation": "crop_flip_auto_cutout"}, {}),
        ({"sampler": "class_balanced", "imbalance": 0.1, "max_train": None}, {}),
        ({"head": "cosine_maxsep", "loss": "ldam", "loss_options": DEFERRED, "max_train": 300}, {}),
        ({"network": "resnet32", "max_train": 60, "epochs": 1, "batch_size": 32}, {"channels_last": True}),
        (SMALL | {"network": "vgg32", "augmentation": "rand_augment_m6", "schedule": "restarts"}, {}),
        (SMALL | {"network": "wrn40_2", "nesterov": True, "schedule": "cosine_steps"}, {"channels_last": True}),
    ],
)
def test_variants_train_and_resume_to_the_same_bits(tmp_path, monkeypatch, spec, execution):
    spec, execution = SPEC.replace(**spec), Execution(device="cpu", **execution)
    whole = run(tmp_path / "whole", spec, execution)
    with monkeypatch.context() as patch:
        stop_at(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(tmp_path / "parts", spec, execution)
    parts = run(tmp_path / "parts", spec, execution)
    assert weights(parts) == weights(whole)
    assert rows(parts) == rows(whole)
    assert torch.get_default_dtype() == torch.float32
    assert all(torch.isfinite(tensor).all() for tensor in load_file(whole / "weights.safetensors").values())


def test_a_run_begun_on_another_kind_of_device_goes_on_and_says_so(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        read = state.RandomStates.get
        other = {name: torch.zeros(16, dtype=torch.uint8) for name in ("augmentation", "mixup", "cuda")}
        patch.setattr(state.RandomStates, "get", lambda self: read(self) | other)
        with pytest.raises(SystemExit):
            run(tmp_path, SPEC)
    folder = train(SPEC, runs=tmp_path, execution=Execution(device="cpu"))
    assert (
        "written on another kind of device and is taken up on cpu: the weights are the same" in capsys.readouterr().err
    )
    assert json.loads((folder / "result.json").read_text())["resumed"] == 1


@pytest.mark.parametrize("network", ["vgg32", "wrn40_2"])
def test_dropout_alone_needs_torchs_own_random_state(tmp_path, monkeypatch, network):
    spec = SPEC.replace(**SMALL, network=network, augmentation="none")
    whole = run(tmp_path / "whole", spec)

    def interrupted(runs, forget):
        with monkeypatch.context() as patch:
            stop_at(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
            with pytest.raises(SystemExit):
                run(runs, spec)
        with monkeypatch.context() as patch:
            if forget:
                put_back = state.RandomStates.set
                torchs = torch.get_rng_state()
                patch.setattr(state.RandomStates, "set", lambda self, found: put_back(self, found | {"torch": torchs}))
            return run(runs, spec)

    assert weights(interrupted(tmp_path / "kept", forget=False)) == weights(whole)
    assert weights(interrupted(tmp_path / "forgotten", forget=True)) != weights(whole)


def test_a_schedule_by_steps_gives_every_update_its_own_rate(tmp_path, monkeypatch):
    spec = SPEC.replace(schedule="cosine_steps")
    rates, setter = [], step.set_learning_rate
    monkeypatch.setattr(
        step, "set_learning_rate", lambda optimiser, rate: rates.append(rate) or setter(optimiser, rate)
    )
    with monkeypatch.context() as patch:
        stop_at(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(tmp_path, spec)
    folder = run(tmp_path, spec)
    expected = [1e-6 + (0.1 - 1e-6) * 0.5 * (1 + math.cos(math.pi * i / 9)) for i in range(1, 10)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert [row["learning_rate"] for row in rows(folder)] == pytest.approx(expected[::3])


@pytest.mark.parametrize(
    "field",
    ["dataset", "network", "head", "loss", "schedule", "optimiser", "augmentation", "normalisation"],
)
def test_unknown_names_list_the_known_and_leave_nothing_behind(tmp_path, monkeypatch, field):
    monkeypatch.setattr(loop, "prepare", None)  # before any data are read or fetched
    with pytest.raises(ValueError, match=rf"unknown {field} 'nothing'\. Known: \w+"):
        run(tmp_path / "runs", SPEC.replace(**{field: "nothing"}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"dataset": "folder:nowhere"}, FileNotFoundError),
        ({"network": "timm/nothing"}, ValueError),
        ({"head_options": options(nothing=1)}, TypeError),
        ({"loss_options": options(nothing=1)}, ValueError),
        ({"normalisation": "cifar10"}, ValueError),
        ({"max_train": 3}, ValueError),
    ],
)
def test_what_shows_when_it_is_built_leaves_nothing_behind(tmp_path, change, error):
    with pytest.raises(error):
        run(tmp_path / "runs", SPEC.replace(**change))
    assert not (tmp_path / "runs").exists()


def test_a_failure_is_written_down_until_the_run_is_finished(finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(step.Step, "__call__", lambda self, indices: torch.tensor(float("nan")))
        with pytest.raises(NonFiniteError):
            run(tmp_path)
    told = json.loads((tmp_path / SPEC.name / "failure.json").read_text())
    assert set(told) == {"schema", "spec", "error", "traceback"}
    assert told["schema"] == 1
    assert RunSpec.from_dict(told["spec"]) == SPEC
    assert told["error"].startswith("NonFiniteError: the training loss became nan at epoch 1/3, step 1")
    assert "in check_losses" in told["traceback"]
    folder = run(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in finished.iterdir())
    assert weights(folder) == weights(finished)


def test_an_interruption_is_no_failure(tmp_path, monkeypatch):
    stop_at(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        run(tmp_path)
    assert not (tmp_path / SPEC.name / "failure.json").exists()


def test_a_torn_line_of_metrics_is_mended_on_resume(finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(tmp_path)
    with (tmp_path / SPEC.name / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1, "learn')
    folder = run(tmp_path)
    assert rows(folder) == rows(finished)
    assert weights(folder) == weights(finished)


@pytest.mark.parametrize("download", [False, True])
def test_a_download_is_allowed_only_where_it_is_asked_for(tmp_path, monkeypatch, capsys, download):
    def prepare(spec, root, *, download, progress):
        asked.append((root, download))
        for done in (0, 10_000_000, 11_000_000, 30_000_000):
            progress(done, 30_000_000)
        return real(spec, root)

    asked, real = [], loop.prepare
    monkeypatch.setattr(loop, "prepare", prepare)
    spec = SPEC.replace(epochs=1)
    train(spec, data_root=tmp_path, runs=tmp_path, execution=CPU, **({"download": True} if download else {}))
    assert asked == [(tmp_path, download)]
    told = [line.removeprefix(f"{spec.name}: ") for line in capsys.readouterr().err.splitlines()]
    assert told[:3] == ["data: 10 of 30 MB", "data: 30 of 30 MB", "training, 3 steps"]


def test_the_number_of_threads_can_be_set(tmp_path):
    before = torch.get_num_threads()
    try:
        folder = run(tmp_path, SPEC.replace(epochs=1), Execution(device="cpu", extra=options(threads=1)))
        assert result(folder)["hardware"]["threads"] == 1
    finally:
        torch.set_num_threads(before)
