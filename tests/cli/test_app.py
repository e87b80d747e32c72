"""Every verb, its options, and the version."""

import re
import subprocess
import sys

import pytest

VERBS = ["demo", "train", "compare", "reproduce", "evaluate", "predict", "export", "report", "matrix", "bench"]


@pytest.fixture
def options(call):
    """Name the options of a verb."""

    def ask(verb):
        text = re.sub(r"\x1b\[[0-9;]*m", "", call(verb, "--help"))
        return set(re.findall(r"(--[a-z][a-z-]*)", text)) - {"--help"}

    return ask


def test_every_verb_has_help_with_an_example(call):
    for verb in VERBS:
        assert f"maxsep {verb}" in " ".join(call(verb, "--help").split())


def test_options_are_frozen(options):
    """A new option is a promise: add it here when it is meant."""
    shared = {"--data", "--download", "--no-download", "--runs", "--device", "--fast", "--no-fast", "--json"}
    assert options("matrix") == {"--draw", "--json"}
    shown = {"--classes", "--batch", "--features", "--threads", "--quick", "--out"}
    assert options("bench") == shown | {"--device", "--json"}
    assert options("report") == {"--out", "--title"}
    asked = {"--data", "--download", "--no-download", "--ood", "--mahalanobis", "--no-mahalanobis"}
    assert options("evaluate") == asked | {"--dataset", "--out", "--device", "--json"}
    assert options("predict") == {"--score", "--threshold", "--top", "--device", "--json"}
    assert options("export") == {"--out", "--format"}
    assert options("demo") == {"--out", "--seeds", "--epochs"}
    own = {"--network", "--epochs", "--seeds", "--radius", "--loss", "--imbalance", "--augmentation", "--batch-size"}
    own |= {"--optimiser", "--learning-rate", "--size", "--budget", "--dry-run", "--jobs", "--out", "--loss-option"}
    assert options("compare") == shared | own
    assert options("reproduce") >= shared | {"--only", "--seeds", "--epochs", "--budget", "--dry-run", "--precision"}
    assert options("train") >= shared | {"--dataset", "--imbalance", "--network", "--head", "--radius", "--seed"}
    assert options("train") >= {
        "--validation",
        "--calibration",
        "--loss-option",
        "--sampler",
        "--mixup",
        "--head-option",
    }
    assert options("train") >= {"--batch-size", "--from", "--backbone", "--logit-scaling", "--head-rate"}


def test_version(call):
    assert re.fullmatch(r"maxsep \d+\.\d+\.\d+\n", call("--version"))


def test_the_program_itself_refuses_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "maxsep", "matrix", "1"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("maxsep: num_classes must be at least 2, got 1")
    assert found.stderr.count("\n") == 1
