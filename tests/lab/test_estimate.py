import json

import pytest

from maxsep.lab.data import prepare
from maxsep.lab.estimate import MARGIN, Estimator, num_train, parse_budget
from maxsep.lab.spec import Execution, RunSpec

CPU, CUDA = Execution(device="cpu"), Execution(device="cuda")
SPEC = RunSpec(dataset="cifar10", network="resnet34", epochs=10)


@pytest.fixture
def finish(run_folder):
    """Write a run that took so many seconds."""
    facts = {"metrics": {"num_train": 50_000}, "hardware": {"device": "cpu"}}
    return lambda runs, spec, **more: run_folder(runs, spec, **facts | more)


@pytest.mark.parametrize("validation", [0.0, 0.03, 0.5])
@pytest.mark.parametrize("calibration", [0.0, 0.07, 0.9])
@pytest.mark.parametrize("imbalance", [1.0, 0.02])
def test_counts_are_those_of_the_data(validation, calibration, imbalance):
    spec = RunSpec(dataset="digits", imbalance=imbalance, validation=validation, calibration=calibration)
    assert num_train(spec) == len(prepare(spec).train)
    assert num_train(spec.replace(max_train=11)) == len(prepare(spec.replace(max_train=11)).train) == 11


def test_images_are_counted_without_reading_them(tmp_path):
    assert [num_train(SPEC.replace(imbalance=share)) for share in (1.0, 0.1, 0.01)] == [50_000, 20_431, 12_406]
    assert num_train(RunSpec(dataset="cifar100", imbalance=0.01)) == 10_847
    for name, count in (("cat", 10), ("dog", 5)):
        (tmp_path / name).mkdir()
        for i in range(count):
            (tmp_path / name / f"{i}.png").touch()  # not read, so it need not be an image
    spec = RunSpec(dataset=f"folder:{tmp_path}", network="resnet32")
    assert num_train(spec) == 8 + 3
    assert num_train(spec.replace(imbalance=0.25)) == 8 + 2
    assert num_train(spec.replace(dataset="folder:nowhere")) == 10_000


def test_a_guess_until_something_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    guess = Estimator(tmp_path / "none", CPU).estimate(SPEC)
    assert guess.basis == "a first guess"
    assert guess.seconds > 10 * Estimator(tmp_path, CUDA).estimate(SPEC).seconds
    assert Estimator(tmp_path, CPU).estimate(SPEC.replace(network="timm/unheard_of")).seconds > 0
    for number, broken in enumerate(("", "[]", "{}", '{"spec": {"epochs": 0}}')):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "result.json").write_text(broken)
        assert Estimator(tmp_path, CPU).estimate(SPEC).basis == "a first guess"


def test_measured_speed_replaces_the_guess_on_the_same_kind_of_device(finish, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    estimator = Estimator(tmp_path, CPU)
    finish(tmp_path, SPEC.replace(seed=1), seconds=100.0)
    assert estimator.estimate(SPEC).basis == "a first guess"
    estimator.refresh()
    estimate = estimator.estimate(SPEC)
    assert (estimate.seconds, estimate.basis) == (pytest.approx(100 * MARGIN), "1 run of the same setting")
    half = estimator.estimate(SPEC.replace(epochs=5, dataset="cifar100"))
    assert half.seconds == pytest.approx(50 * MARGIN)
    assert half.basis == "1 run of the same network"
    assert Estimator(tmp_path, CUDA).estimate(SPEC).basis == "a first guess"


@pytest.mark.parametrize(("facts", "seconds"), [({}, 1.2), ({"wall_seconds": 12.2}, 12.2)])
def test_what_happens_around_training_is_counted_where_it_was_measured(finish, tmp_path, facts, seconds):
    finish(tmp_path, SPEC.replace(seed=1), seconds=1.2, **facts)
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(seconds * MARGIN)


def test_a_started_run_counts_what_its_resume_point_leaves(finish, tmp_path):
    finish(tmp_path, SPEC.replace(seed=1), seconds=100.0)
    folder = tmp_path / SPEC.name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"epoch": 0}\n' * 9)
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(100 * MARGIN), "no resume point"
    for number, epoch in enumerate((4, 8)):
        (folder / "resume" / f"save_{number:06d}").mkdir(parents=True)
        (folder / "resume" / f"save_{number:06d}" / "state.json").write_text(json.dumps({"epoch": epoch}))
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(20 * MARGIN)
    (folder / "resume" / "save_000001" / "state.json").write_text('{"epo')
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(60 * MARGIN)


def test_a_smoke_run_says_nothing_about_a_whole_one(finish, tmp_path):
    smoke = SPEC.replace(max_train=12, epochs=1)
    for seed in range(5):
        finish(tmp_path, smoke.replace(seed=seed), seconds=1.0, metrics={"num_train": 12})
    assert Estimator(tmp_path, CPU).estimate(SPEC).basis == "a first guess"
    assert Estimator(tmp_path, CPU).estimate(smoke.replace(seed=9)).seconds == pytest.approx(MARGIN)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25m", 1500), ("1h30m", 5400), ("90s", 90), (45, 45), ("1.5h", 5400), ("2d", 172800), ("5min", 300)],
)
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-", "5x", "1..5h", "m", "0", "0h0m", "4", "1h30", "-5m", 0, -2.5, "nan"])
def test_bad_budgets(text):
    with pytest.raises(ValueError, match="time budget"):
        parse_budget(text)
