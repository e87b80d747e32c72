"""All verbs: options, examples, bad input, exit codes, quiet libraries; and the verbs `matrix` and `report`."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from class_folders import write_classes

import maxsep
from maxsep import cli
from maxsep.cli.app import VERBS, quiet_libraries, split

DATA = {"--data", "--download"}
OPTIONS = {
    "demo": {"--out", "--seeds", "--epochs"},
    "train": DATA
    | {"--dataset", "--imbalance", "--network", "--head", "--radius", "--loss", "--augmentation", "--epochs"}
    | {"--batch-size", "--optimiser", "--learning-rate", "--seed", "--set", "--runs", "--device"}
    | {"--devices", "--sharded", "--accumulate", "--json", "--weights", "--image-size", "--skip-broken"}
    | {"--tensorboard", "--early-stopping"},
    "compare": DATA
    | {"--network", "--epochs", "--seeds", "--radius", "--loss", "--set", "--imbalance", "--augmentation"}
    | {"--batch-size", "--optimiser", "--learning-rate", "--budget", "--jobs", "--dry-run", "--runs"}
    | {"--on", "--gpus", "--out", "--device", "--json", "--weights", "--image-size", "--skip-broken"},
    "reproduce": DATA
    | {"--only", "--seeds", "--epochs", "--precision", "--budget", "--jobs", "--dry-run", "--runs", "--out"}
    | {"--on", "--gpus", "--device", "--json", "--weights"},
    "evaluate": DATA
    | {"--dataset", "--ood", "--mahalanobis", "--no-mahalanobis", "--device", "--json"},
    "predict": {"--score", "--threshold", "--top", "--device", "--json"},
    "export": {"--out", "--format"},
    "report": {"--out", "--title", "--json"},
    "matrix": {"--out"},
    "bench": {"--device", "--classes", "--batch", "--features", "--threads", "--quick", "--json"},
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_options_are_frozen_and_the_help_has_an_example(call, verb, monkeypatch):
    """A new option is a promise: add it here when it is meant."""
    monkeypatch.setenv("COLUMNS", "80")
    text = call(verb, "--help")
    listed = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.M)) | set(re.findall(r" / (--no-[a-z]+)", text))
    assert listed == OPTIONS[verb] | {"--help"}
    assert max(map(len, text.splitlines())) <= 80
    assert VERBS[verb].example.startswith(f"maxsep {verb}")
    assert set(re.findall(r"--[a-z-]+", VERBS[verb].example)) <= OPTIONS[verb]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("demo", "bench")])
def test_the_example_of_the_help_runs(call, run, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "my" / "pictures", (40, 40), cat=5, dog=5)
    write_classes(tmp_path, (40, 40), photos=5)
    (tmp_path / "runs").mkdir()
    shutil.copytree(run["run"], tmp_path / "runs" / "NAME")
    call(*VERBS[verb].example.split()[1:], *(["--dry-run"] if verb in ("compare", "reproduce") else []))


def test_the_help_lists_every_verb_without_importing_the_lab():
    code = (
        "import sys\nfrom maxsep.cli import main\nsys.argv = ['maxsep', '--help']\n"
        "try:\n    main()\nfinally:\n    assert not [name for name in sys.modules if name.startswith('maxsep.lab')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(re.search(rf"^  {verb} +\w", done.stdout, re.M) for verb in VERBS)


BAD = {
    "demo": ["--seeds 0", "--seeds x", "--bogus", "extra"],
    "train": [
        *("--head nope", "--dataset nope", "--dataset folder:nowhere", "--imbalance 2", "--radius 0", "--epochs 0"),
        *("--loss hinge", "--loss ldam", "--optimiser adam", "--network nope", "--augmentation nope", "--device tpu"),
        *("--devices 0", "--runs /dev/null/runs", "--set mixup", "--set mixup=", "--set mixup=-1", "--set mixup=many"),
        *("--set momentum=1.5", "--set momentum=nan", "--set precision=fp8", "--set clip_norm=x"),
        *("--set loss.tau=1", "--set loss.label_smoothing=2", "--set head.rotation=1", "--set epochs=3", "--set x=1"),
        *("--set calibration=1", "--set sampler=balanced", "--set nesterov=yes", "--set head_options=1"),
        *("--set schedule.warmup=x", "--set schedule.bogus=1", "--set network.hidden=x", "--set class_order=x"),
        "--optimiser adamw --set momentum=0.9",
        "--head cosine --loss ldam --epochs 5 --set loss.reweight_from=5",
    ],
    "compare": [
        *("nowhere", "--radius 1,x", "--radius 1,,2", "--radius 0", "--loss hinge", "--loss cross_entropy,"),
        *("--set loss.tau=2", "--set mixup=1", "--budget soon", "--budget 4", "--network nope"),
        *("--seeds 0", "--jobs 0", "--on cloud", "--gpus 0"),
        *("--loss balanced_softmax,logit_adjusted", "--learning-rate -1", "--optimiser adam", "--device tpu"),
        "--loss ldam --set loss.reweight_from=99 --epochs 5",
    ],
    "reproduce": [
        *("nope", "", "table1 --budget soon", "table1 --only imbalance=0.5 --dry-run", "table1", "demo --jobs 0"),
        "demo --runs /dev/null/runs --seeds 1 --epochs 1 --device cpu --jobs 2",
        *("demo --precision fp8 --dry-run", "demo --on ray://host", "demo --gpus 1.5", "adam --weights x"),
    ],
    "evaluate": ["nowhere", "", ". --bogus"],
    "predict": ["nowhere a.png", "nowhere", "nowhere a.png --top 0"],
    "export": ["nowhere --out x", "nowhere", ". --out x"],
    "report": ["nowhere", ""],
    "matrix": ["1", "x", "", "3 --out x.txt", "50000 --out x.npy", "999999999999999"],
    "bench": ["--classes ten", "--classes 1,10", "--classes 10,", "--device tpu", "--batch 0"],
}  # fmt: skip


@pytest.mark.parametrize("arguments", [f"{verb} {bad}".strip() for verb, lines in BAD.items() for bad in lines])
def test_bad_input_is_one_line_and_leaves_nothing_behind(refuse, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    refuse(*arguments.split())
    assert not list(tmp_path.iterdir())


def test_a_cluster_without_ray_is_one_line(refuse, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'pip install ".[cluster]"' in refuse("reproduce", "demo", "--on", "ray")


def test_bad_input_covers_every_verb_and_typing_errors_are_suggested(refuse):
    assert set(BAD) == set(VERBS)
    assert "train" in refuse("trains")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("ArithmeticError('the loss is\\nnot finite')", 1),
        ("KeyboardInterrupt", 130),
        ("PermissionError(13, 'no', 'x')", 2),
    ],
)
def test_exit_codes(error, status):
    """Diverged training is no bad input; an interruption at start-up is one line too."""
    code = (
        "from maxsep import cli\nimport maxsep.cli.app\n"
        f"def app(*_, **__): raise {error}\nmaxsep.cli.app.app = app\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)


def test_an_interruption_while_torch_is_imported_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nsys.argv = ['/bin/maxsep']\nimport maxsep"
    for program in (["-c", code], ["-m", "maxsep"]):
        command, paths = (
            [sys.executable, *program],
            {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(maxsep.__file__).parents[1]}"},
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ | paths)
        assert (done.returncode, done.stderr) == (130, "maxsep: interrupted; the same command resumes\n")


@pytest.mark.parametrize(("code", "lines"), [(130, 1), (143, 0), (None, 1)])
def test_an_interrupted_run_says_how_it_goes_on(monkeypatch, capsys, code, lines):
    def stop(*_, **__):
        if code is None:
            return 130  # as typer does after a KeyboardInterrupt
        raise SystemExit(code)

    monkeypatch.setattr("maxsep.cli.app.app", stop)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr().err
    assert (stopped.value.code, printed.count("\n"), printed.count("resumes")) == (code or 130, lines, lines)


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("maxsep.cli.app.app", broken)
    monkeypatch.setattr("sys.argv", ["maxsep", "demo"])
    with pytest.raises(RuntimeError):
        cli.main()


def test_libraries_are_quiet_and_warnings_of_this_package_are_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    quiet_libraries()
    assert not logging.getLogger("lightning_fabric.utilities.rank_zero").isEnabledFor(logging.INFO)
    assert warnings.formatwarning("two\n words", UserWarning, cli.__file__, 3) == "maxsep: warning: two words\n"
    assert "elsewhere.py:3" in warnings.formatwarning("words", UserWarning, "elsewhere.py", 3)


def test_values_are_joined_by_commas_or_repeated():
    assert split("--loss", ["a, b", "c"], "a", str) == ["a", "b", "c"]
    assert split("--radius", None, "1,0.1", float) == [1.0, 0.1]
    with pytest.raises(ValueError, match="--loss"):
        split("--loss", ["a,,b"], "a", str)


READERS = {".npy": np.load, ".pt": torch.load, ".csv": lambda path: np.loadtxt(path, delimiter=",", ndmin=2)}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("classes", [2, 10])
def test_the_matrix_is_written_exactly(call, tmp_path, classes, suffix):
    printed = call("matrix", classes, "--out", tmp_path / f"P{suffix}")
    matrix = torch.as_tensor(READERS[suffix](tmp_path / f"P{suffix}"))
    assert torch.equal(matrix, maxsep.simplex(classes, dtype=torch.float64))
    assert f"{np.degrees(np.arccos(-1 / (classes - 1))):.4f}" in printed


def test_the_certificate_needs_no_matrix_and_the_version_no_verb(call):
    assert "90.0001" in call("matrix", 1_000_000)
    assert call("--version") == f"maxsep {maxsep.__version__}\n"


def test_report_of_a_run(call, run, tmp_path):
    page = call("report", run["run"], "--out", tmp_path, "--title", "Mine").strip()
    assert page == str(tmp_path / "report.html")
    assert "Mine" in (tmp_path / "report.html").read_text()
    answer = json.loads(call("report", run["run"], "--out", tmp_path, "--json"))
    assert (answer["report"], len(answer["coverage"]), len(answer["runs"])) == (page, 156, 1)
