"""What is refused before training, and what is seen of a run while it trains."""

import hashlib
import importlib
import io
import sys
from types import SimpleNamespace

import pytest
import torch

from maxsep.lab.data import Dataset, prepare, subsets
from maxsep.lab.engine import progress as progress_module
from maxsep.lab.engine import train
from maxsep.lab.engine.progress import Progress
from maxsep.lab.engine.train import check_names, dry_run, make_fabric
from maxsep.lab.engine.trainer import DeadlineError
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec, options

SPEC = RunSpec(epochs=1, batch_size=256, max_train=700, max_test=200)
CPU = Execution(device="cpu")
MODULE = importlib.import_module("maxsep.lab.engine.train")
FIELDS = ("dataset", "network", "head", "loss", "schedule", "optimiser", "augmentation", "normalisation", "precision")


@pytest.mark.parametrize("field", FIELDS)
def test_unknown_names_are_refused_before_data_are_read(tmp_path, monkeypatch, field):
    monkeypatch.setattr(MODULE, "prepare", None)
    with pytest.raises(ValueError, match=rf"unknown {field} 'nothing'\. Known: \w+"):
        train(SPEC.replace(**{field: "nothing"}), runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"dataset": "folder:nowhere"}, FileNotFoundError),
        ({"network": "timm/nothing"}, ValueError),
        ({"head_options": options(nothing=1)}, TypeError),
        ({"head_start": 0.1}, ValueError),  # maxsep has no row for each class
        ({"class_order": (1, 0)}, ValueError),
        ({"loss_options": options(nothing=1)}, ValueError),
        ({"normalisation": "cifar10"}, ValueError),
        ({"max_train": 3}, ValueError),
    ],
)
def test_errors_of_building_leave_nothing_behind(tmp_path, change, error):
    with pytest.raises(error):
        train(SPEC.replace(**change), runs=tmp_path / "runs", progress=False)
    assert not (tmp_path / "runs").exists()
    if "max_train" not in change and "normalisation" not in change:
        with pytest.raises(error):
            dry_run(SPEC.replace(**change), CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "folder:"}, "folder:"),
        ({"network": "keras/resnet"}, "timm/NAME"),
        ({"network_options": options(nothing=1)}, "nothing"),
        ({"augmentation": "rand_augment_m40"}, "40"),
        ({"schedule_options": options(nothing=1)}, "nothing"),
        ({"loss": "ldam", "head": "plain"}, "cosine"),
        ({"features_at": (1,)}, "features_at"),
    ],
)
def test_names_that_nearly_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        check_names(RunSpec(**changes))


@pytest.mark.parametrize("loss", ["balanced_softmax", "logit_adjusted"])
def test_a_double_correction_for_frequency_is_warned_of(loss):
    with pytest.warns(UserWarning, match="class_balanced"):
        check_names(RunSpec(loss=loss, sampler="class_balanced"))


def test_official_images_under_the_name_of_an_earlier_draw_are_warned_of(tmp_path, tiny_cifar, monkeypatch):
    tiny_cifar(tmp_path, "cifar100", images=100)
    spec = SPEC.replace(dataset="cifar100", max_train=None, max_test=None)
    how = {"data_root": tmp_path, "execution": CPU, "progress": False}
    train(spec, runs=tmp_path / "other order", **how)
    labels = Dataset.parse("cifar100").read(tmp_path).train.labels
    monkeypatch.setitem(subsets.OFFICIAL, "cifar100", hashlib.sha256(bytes(labels.tolist())).hexdigest())
    prepare(spec, tmp_path)
    train(spec.replace(data_order="official"), runs=tmp_path, **how)
    with pytest.warns(UserWarning, match="data_order"):
        train(spec, runs=tmp_path, **how)


def test_a_dry_run_returns_the_data_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    assert dry_run(RunSpec(imbalance=0.1), CPU).train.class_counts == [119, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    assert torch.equal(torch.get_rng_state(), before)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(MODULE, "build_model", lambda *_: torch.nn.Sequential(torch.nn.Conv2d(1, 4, 11)))
    with pytest.raises(ValueError, match="8 x 8"):
        dry_run(RunSpec(), CPU)


def test_an_execution_must_suit_the_machine(monkeypatch):
    with pytest.raises(ValueError, match="cuda_graph"):
        make_fabric(RunSpec(), Execution(device="cpu", cuda_graph=True))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        for execution in ({"devices": 4}, {"devices": 2, "cuda_graph": True}):
            with pytest.raises(ValueError, match=r"devices|cuda_graph"):
                make_fabric(RunSpec(), Execution(**execution))
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=r"\.\[lab\]"):
        make_fabric(RunSpec(), CPU)


def test_processes_that_fail_end_their_group_too(tmp_path, monkeypatch):
    registered, fabric = [], SimpleNamespace(world_size=2, device=torch.device("cpu"), is_global_zero=True)
    monkeypatch.setattr(MODULE, "make_fabric", lambda *_: fabric)
    monkeypatch.setattr(MODULE.atexit, "register", registered.append)
    fabric.launch = lambda function: function(fabric)
    with pytest.raises(FileNotFoundError):
        train(SPEC.replace(dataset="folder:nowhere"), runs=tmp_path)
    assert MODULE.end_group in registered


@pytest.mark.parametrize("download", [False, True])
def test_a_download_is_allowed_only_where_it_is_asked_for(tmp_path, monkeypatch, capsys, download):
    def prepare(spec, root, *, download, progress):
        asked.append((root, download))
        for done in (0, 10_000_000, 11_000_000, 30_000_000):
            progress(done, 30_000_000)
        return real(spec, root)

    asked, real = [], MODULE.prepare
    monkeypatch.setattr(MODULE, "prepare", prepare)
    train(SPEC, data_root=tmp_path, runs=tmp_path, execution=CPU, download=download)
    assert asked == [(tmp_path, download)]
    lines = [line.removeprefix(f"{SPEC.name}: ") for line in capsys.readouterr().err.splitlines()]
    assert lines[:3] == ["data: 10 of 30 MB", "data: 30 of 30 MB", "training, 3 steps"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_is_lines_in_a_log_and_a_bar_on_a_terminal(monkeypatch, stream):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    spec, stream = RunSpec(epochs=2, loss="balanced_softmax"), stream()
    with Progress(spec, stream) as progress:
        progress.start(2, 4)
        for epoch in range(2):
            progress.step()
            progress.epoch({"epoch": epoch, "train_loss": 0.5} | ({"top1": 0.25} if epoch else {}))
        progress.note("done")
    texts = ["4/4", "loss 0.500, top-1 25.00 %", "done"]
    if stream.isatty():
        assert all(text in stream.getvalue() for text in texts)
    else:
        lines = ["resumed at step 2 of 4", "epoch 2/2, loss 0.500, top-1 25.00 %", "done"]
        assert stream.getvalue().splitlines() == [f"{spec.name} (balanced_softmax): {line}" for line in lines]


def test_a_log_is_never_silent_for_longer_than_half_a_minute(monkeypatch):
    clock, stream = iter(range(0, 1000, 20)), io.StringIO()
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    progress = Progress(RunSpec(), stream)
    for _ in range(4):
        progress.step()
    progress.epoch({"epoch": 3, "train_loss": 0.5})
    assert len(stream.getvalue().splitlines()) == 2
    assert "step 2 of" in stream.getvalue()


def test_tensorboard_has_every_epoch_once_also_after_a_resume(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    spec = SPEC.replace(epochs=3, network="mlp")
    execution = Execution(device="cpu", tensorboard=True, checkpoint_every=1)
    with pytest.raises(DeadlineError):
        train(spec, runs=tmp_path, execution=execution, progress=False, deadline=0.0)
    folder = train(spec, runs=tmp_path, execution=execution, progress=False)
    events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    assert {"train_loss", "top1", "learning_rate"} <= set(events.Tags()["scalars"])
    rows = Run(folder).history
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [
        (row["epoch"] + 1, pytest.approx(row["train_loss"])) for row in rows
    ]
    assert "tensorboard" not in Run(folder).result["execution"]
