"""Damaged files are refused or harmless: never other numbers, a traceback or a hang. `corruptions.py` makes them."""

import corruptions
import pytest

from maxsep.cli import main


def check(count, seed, cases):
    found = corruptions.run(count, seed, cases)
    assert found["failures"] == []
    assert sum(sum(counts.values()) for counts in found["counts"].values()) == count
    assert sum(counts["refused"] for counts in found["counts"].values()) > 0.75 * count
    assert found["slowest"] < 60


def test_a_hundred_corruptions():
    check(100, 0, corruptions.CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 9))
def test_two_thousand_corruptions(seed):
    check(250, seed, corruptions.CASES | corruptions.ONNX)


def test_a_silent_reader_would_be_noticed(tmp_path):
    case = corruptions.Case(
        lambda root, variant: (root / "a.json").write_text(f'{{"number": {12345678 + variant}}}'),
        lambda root: (root / "a.json").read_bytes(),
    )
    results = {failure.split()[-1] for failure in corruptions.run(60, 0, {"bare": case})["failures"]}
    assert "silent" in results


def test_a_resume_folder_without_a_whole_point_says_what_to_delete(tmp_path, monkeypatch, capsys):
    spec = corruptions.SPEC
    corruptions.write_resume(tmp_path, 0)
    (point,) = (tmp_path / spec.name / "resume").iterdir()
    (point / "state.json").write_text("[" * 100_000)
    fields = {"calibration": spec.calibration, "max_train": spec.max_train, "max_test": spec.max_test}
    settings = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
    options = [
        "--epochs",
        spec.epochs,
        "--batch-size",
        spec.batch_size,
        "--runs",
        tmp_path,
        "--device",
        "cpu",
        "--json",
    ]
    monkeypatch.setattr("sys.argv", ["maxsep", "train", *map(str, options), *settings])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert f"Delete {point.parent}" in printed.err
