import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.lab.data import prepare
from maxsep.lab.estimate import MARGIN, Estimator, num_train, write_wall
from maxsep.lab.spec import Execution, RunSpec

CPU = Execution(device="cpu")
SPEC = RunSpec(dataset="cifar10", network="resnet34", epochs=10)


def finish(runs, spec, seconds, device="cpu", images=50_000, start=0.0):
    folder = runs / spec.name
    folder.mkdir(parents=True)
    result = {
        "spec": spec.to_dict(),
        "metrics": {"num_train": images},
        "seconds": seconds,
        "hardware": {"device": device},
    }
    (folder / "result.json").write_text(json.dumps(result))
    if start is not None:
        write_wall(folder, seconds + start)


@pytest.mark.parametrize(
    ("dataset", "imbalance", "count"),
    [
        ("cifar10", 1.0, 50_000),
        ("cifar10", 0.2, 25_423),
        ("cifar10", 0.1, 20_431),
        ("cifar10", 0.02, 13_996),
        ("cifar10", 0.01, 12_406),
        ("cifar100", 0.1, 19_573),
        ("cifar100", 0.01, 10_847),
    ],
)
def test_images_of_the_long_tails(dataset, imbalance, count):
    assert num_train(RunSpec(dataset=dataset, imbalance=imbalance)) == count


def test_limits_and_hold_out_count():
    assert num_train(SPEC.replace(max_train=100)) == 100
    assert num_train(SPEC.replace(validation=0.1)) == 45_000
    assert num_train(SPEC.replace(calibration=0.1)) == 45_000
    assert num_train(RunSpec(dataset="folder:birds")) > 0


def test_a_guess_until_something_was_measured(tmp_path):
    estimator = Estimator(tmp_path / "none", CPU)
    guess = estimator.estimate(SPEC)
    assert guess.basis == "a first guess"
    assert guess.seconds > 10 * Estimator(tmp_path, Execution(device="cuda")).estimate(SPEC).seconds
    assert estimator.estimate(SPEC.replace(network="timm/unheard_of")).seconds > 0


def test_measured_speed_replaces_the_guess(tmp_path):
    estimator = Estimator(tmp_path, CPU)
    finish(tmp_path, SPEC.replace(seed=1), seconds=100.0)
    assert estimator.estimate(SPEC).basis == "a first guess"
    estimator.refresh()
    found = estimator.estimate(SPEC)
    assert found.seconds == pytest.approx(100 * MARGIN)
    assert found.basis == "1 run of the same setting"
    half = estimator.estimate(SPEC.replace(epochs=5, dataset="cifar100"))
    assert half.seconds == pytest.approx((50 + 10) * MARGIN), "nobody has measured how long cifar100 takes to read"
    assert half.basis == "1 run of the same network"


def test_a_run_on_another_kind_of_device_predicts_nothing(tmp_path):
    finish(tmp_path, SPEC.replace(seed=1), seconds=1.0, device="NVIDIA H200")
    assert Estimator(tmp_path, CPU).estimate(SPEC).basis == "a first guess"
    assert Estimator(tmp_path, Execution(device="cuda")).estimate(SPEC).basis == "1 run of the same setting"


def test_a_started_run_counts_what_is_left(tmp_path):
    finish(tmp_path, SPEC.replace(seed=1), seconds=100.0)
    folder = tmp_path / SPEC.name
    for number, epoch in enumerate((4, 8)):
        (folder / "resume" / f"save_{number:06d}").mkdir(parents=True)
        (folder / "resume" / f"save_{number:06d}" / "state.json").write_text(json.dumps({"epoch": epoch}))
    (folder / "metrics.jsonl").write_text('{"epoch": 0}\n' * 9)
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(20 * MARGIN), "the log is ahead"
    (folder / "resume" / "save_000001" / "state.json").write_text('{"epo')
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(60 * MARGIN)


def test_without_a_resume_point_a_started_run_begins_anew(tmp_path):
    finish(tmp_path, SPEC.replace(seed=1), seconds=100.0)
    (tmp_path / SPEC.name).mkdir()
    (tmp_path / SPEC.name / "metrics.jsonl").write_text('{"epoch": 0}\n' * 8)
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(100 * MARGIN)


def test_what_happens_around_training_is_counted(tmp_path):
    finish(tmp_path, SPEC.replace(seed=1), seconds=1.2, start=11.0)
    assert Estimator(tmp_path, CPU).estimate(SPEC).seconds == pytest.approx(12.2 * MARGIN)
    finish(tmp_path / "b", SPEC.replace(seed=1), seconds=1.2, start=None)
    assert Estimator(tmp_path / "b", CPU).estimate(SPEC).seconds == pytest.approx(11.2 * MARGIN)


def test_a_smoke_run_says_nothing_about_a_whole_one(tmp_path):
    smoke = SPEC.replace(max_train=12, epochs=1)
    for seed in range(5):
        finish(tmp_path, smoke.replace(seed=seed), seconds=1.0, images=12)
    assert Estimator(tmp_path, CPU).estimate(SPEC).basis == "a first guess"
    assert Estimator(tmp_path, CPU).estimate(smoke.replace(seed=9)).seconds == pytest.approx(MARGIN)
    finish(tmp_path, SPEC.replace(seed=1), seconds=100.0)
    found = Estimator(tmp_path, CPU).estimate(SPEC)
    assert (found.seconds, found.basis) == (pytest.approx(100 * MARGIN), "1 run of the same setting")


@pytest.mark.parametrize("imbalance", [1.0, 0.1, 0.02])
def test_known_counts_are_those_of_the_data(imbalance):
    spec = RunSpec(dataset="digits", imbalance=imbalance)
    assert num_train(spec) == len(prepare(spec).train)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.0, 0.03, 0.5]), st.sampled_from([0.0, 0.07, 0.9]), st.sampled_from([1.0, 0.02]))
def test_images_that_are_held_out_are_counted_class_by_class(validation, calibration, imbalance):
    spec = RunSpec(dataset="digits", imbalance=imbalance, validation=validation, calibration=calibration)
    assert num_train(spec) == len(prepare(spec).train)
    assert num_train(spec.replace(max_train=11)) == len(prepare(spec.replace(max_train=11)).train) == 11


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"spec": {"epochs": 0}}'])
def test_a_broken_record_is_passed_over(tmp_path, text):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text(text)
    assert Estimator(tmp_path, CPU).estimate(SPEC).basis == "a first guess"


def test_the_images_of_a_folder_are_counted(tmp_path):
    for name, count in (("cat", 10), ("dog", 5)):
        (tmp_path / name).mkdir()
        for i in range(count):
            (tmp_path / name / f"{i}.png").touch()  # not read, so it need not be an image
    spec = RunSpec(dataset=f"folder:{tmp_path}", network="resnet32")
    assert num_train(spec) == 8 + 4
    assert num_train(spec.replace(imbalance=0.25)) == 8 + 2
    assert num_train(spec.replace(dataset="folder:nowhere")) == 10_000
    assert Estimator(tmp_path, Execution(device="cpu")).estimate(spec).seconds < 15
