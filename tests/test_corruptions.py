"""Damaged files are refused or harmless: never other numbers, a traceback or a hang. `corruptions.py` makes them."""

import time

import corruptions
import pytest

from maxsep.cli import main


def check(count, seed, cases):
    found = corruptions.run(count, seed, cases)
    assert found["failures"] == []
    assert sum(sum(counts.values()) for counts in found["counts"].values()) == count
    assert sum(counts["refused"] for counts in found["counts"].values()) > 0.75 * count
    assert found["total"]["silent"] == 0


def test_a_hundred_corruptions():
    check(100, 0, corruptions.CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 9))
def test_two_thousand_corruptions(seed):
    check(250, seed, corruptions.CASES | corruptions.ONNX)


def test_a_silent_or_a_slow_reader_would_be_noticed(tmp_path):
    case = corruptions.Case(
        lambda root, variant: (root / "a.json").write_text(f'{{"number": {12345678 + variant}}}'),
        lambda root: (root / "a.json").read_bytes(),
    )
    results = {failure.split()[-1] for failure in corruptions.run(60, 0, {"bare": case})["failures"]}
    assert "silent" in results
    slow = corruptions.Case(None, lambda root: time.sleep(60))
    assert corruptions.outcome(slow, "bare", tmp_path, "", "bits", tmp_path, seconds=0.1) == "hang"


def test_a_resume_folder_without_a_whole_point_says_what_to_delete(tmp_path, monkeypatch, capsys):
    spec = corruptions.SPEC
    corruptions.write_resume(tmp_path, 0)
    (point,) = (tmp_path / spec.name / "resume").iterdir()
    (point / "state.json").write_text("[" * 100_000)
    settings = [f"--set={name}={getattr(spec, name)}" for name in ("calibration", "max_train", "max_test")]
    settings += [f"--epochs={spec.epochs}", f"--batch-size={spec.batch_size}", f"--runs={tmp_path}"]
    monkeypatch.setattr("sys.argv", ["maxsep", "train", "--device=cpu", "--json", *settings])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert f"Delete {point.parent}" in printed.err
