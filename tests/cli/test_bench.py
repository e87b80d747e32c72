import json

import pytest
from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.lab.bench import cases

SMALL = ["bench", "--quick", "--device", "cpu", "--classes", "20,5", "--batch", "4", "--features", "8"]
runner = CliRunner()


def test_a_table_a_figure_and_a_record(tmp_path):
    found = runner.invoke(app, [*SMALL, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.exception
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.svg", "bench.png"}
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["classes", "form", "ms", "quartiles", "times", "nn.Linear", "quartiles"]
    assert [line.split()[:3] for line in lines if line.startswith("head")] == [
        ["head", n, "maxsep"] for n in ("5", "20")
    ]
    assert "1 thread, CPU time; float32, batch 4, 8 features, torch" in found.stdout
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["settings"] == {"batch": 4, "features": 8, "dtype": "float32", "classes": [5, 20]}
    assert record["versions"]["torch"]
    assert len(record["rows"]) == 20


def test_json_is_all_that_is_printed(tmp_path):
    found = runner.invoke(app, [*SMALL, "--json", "--out", str(tmp_path)])
    assert json.loads(found.stdout) == json.loads((tmp_path / "bench.json").read_text())


def test_what_did_not_run_is_told_and_an_error_is_no_success(tmp_path, monkeypatch):
    monkeypatch.setattr("maxsep.cli.bench.available_memory", lambda: 3000)
    found = runner.invoke(app, [*SMALL, "--out", str(tmp_path)])
    assert found.exit_code == 0
    assert "dense     not run: needs about 0.0 GiB, 0.0 GiB are free" in found.stdout
    monkeypatch.undo()

    def broken(head, x, target):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(cases, "fused_cross_entropy", broken)
    found = runner.invoke(app, [*SMALL, "--out", str(tmp_path)])
    assert found.exit_code == 1
    assert "fused     not run: RuntimeError: no kernel" in found.stdout


@pytest.mark.parametrize("classes", ["", "ten", "1,10", "10,"])
def test_numbers_of_classes_are_checked(classes):
    found = runner.invoke(app, ["bench", "--classes", classes or ","])
    assert isinstance(found.exception, ValueError)
    assert str(found.exception).startswith("--classes must be whole numbers of at least 2 with commas")


def test_devices_are_checked():
    failure = runner.invoke(app, ["bench", "--device", "tpu"]).exception
    assert isinstance(failure, ValueError)
    assert "'tpu'" in str(failure)
