import json

import pytest


def test_a_run_that_diverges_leaves_its_reason(call, invoke, tmp_path):
    found = invoke("train", "--learning-rate", 1e30, "--runs", tmp_path / "runs", "--json")
    assert isinstance(found.exception, ArithmeticError)
    call("report", tmp_path / "runs", "--out", tmp_path)
    (problem,) = json.loads((tmp_path / "report.json").read_text())["problems"]
    assert problem["kind"] == "failed"
    assert problem["reason"].startswith("NonFiniteError: ")


def test_downloads_are_asked_for(call, asked, tmp_path):
    call("train", "--runs", tmp_path)
    call("train", "--runs", tmp_path, "--download")
    assert [settings.get("download") for _, settings in asked] == [None, True]


def test_options_reach_the_spec(call, asked, tmp_path):
    call("train", "--runs", tmp_path, "--momentum", 0.5, "--nesterov", "--mixup", 1, "--precision", "bf16-mixed")
    ((spec, _),) = asked
    assert (spec.momentum, spec.nesterov, spec.mixup, spec.precision) == (0.5, True, 1.0, "bf16-mixed")


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.1), ("adamw", 0.001)])
def test_each_optimiser_has_its_own_learning_rate(call, asked, tmp_path, optimiser, rate):
    call("train", "--runs", tmp_path, "--optimiser", optimiser)
    call("train", "--runs", tmp_path, "--optimiser", optimiser, "--learning-rate", 0.3)
    assert [spec.learning_rate for spec, _ in asked] == [rate, 0.3]


def test_adamw_without_nesterov_is_adamw(call, asked, tmp_path):
    call("train", "--runs", tmp_path, "--optimiser", "adamw")
    call("train", "--runs", tmp_path, "--optimiser", "adamw", "--no-nesterov")
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--head", "nope"], "unknown head 'nope'. Known: "),
        (["--dataset", "nope"], "nope"),
        (["--imbalance", 2], "imbalance must be a number in (0, 1]"),
        (["--radius", 0], "radius must be a positive finite number, got 0.0"),
        (["--precision", "fp8"], "unknown precision 'fp8'. Known: "),
        (["--mixup", -1], "mixup must be"),
        (["--momentum", 1.5], "momentum must be a number in [0, 1), got 1.5"),
        (["--momentum", "nan"], "momentum must be a number in [0, 1), got nan"),
        (["--momentum", 0, "--nesterov"], "momentum must be a number in (0, 1), as Nesterov's form needs it, got 0.0"),
        (["--optimiser", "adamw", "--momentum", 0.9], "adamw has no --momentum and no --nesterov. Leave them out"),
        (["--optimiser", "adamw", "--nesterov"], "or use --optimiser sgd"),
        (["--precision", "16-mixed", "--device", "cpu"], "'16-mixed' needs a CUDA device"),
        (["--calibration", 1], "calibration must be a fraction in [0, 1), got 1.0"),
    ],
)
def test_bad_input_is_one_clear_line(refuse_in_one_line, arguments, told):
    assert told in refuse_in_one_line("train", *arguments)
