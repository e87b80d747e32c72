import json

import pytest

from maxsep.lab.report.collect import collect, read_run
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(head="maxsep", radius=0.1)


def test_a_finished_run_is_read_whole(tmp_path, run_folder):
    folder = run_folder(tmp_path, SPEC, top1=0.8)
    record = collect(tmp_path).records[0]
    assert record.spec == SPEC
    assert record.value("top1") == 0.8
    assert len(record.history) == SPEC.epochs
    assert record.hardware["cpu"] == "an example processor"
    assert collect(folder).records[0].spec == SPEC, "a run folder itself may be given"


def test_nested_folders_are_found(tmp_path, run_folder):
    run_folder(tmp_path / "a" / "b", SPEC)
    run_folder(tmp_path / "c", SPEC.replace(seed=1))
    assert {record.spec.seed for record in collect(tmp_path).records} == {0, 1}


def test_no_bad_folder_is_dropped(everything):
    found = {problem.folder.name: problem for problem in collect(everything).problems}
    assert set(found) == {"started", "failed", "broken"}
    assert (found["started"].kind, found["failed"].kind) == ("unfinished", "failed")
    assert found["started"].reason == "1 of 200 epochs done; train it again to go on"
    assert "out of memory" in found["failed"].reason
    assert "result.json is not valid JSON" in found["broken"].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metrics": {}}, "no field 'top1'"),
        ({"metrics": {"top1": 81.2}}, "top1 must be a fraction in [0, 1], got 81.2"),
        ({"metrics": {"top1": float("nan")}}, "top1 must be a fraction"),
        ({"spec": {"colour": "red"}}, "unknown fields in a run spec: colour"),
        ({"spec": {"imbalance": 7}}, "imbalance must be"),
        ({"metrics": [1, 2]}, ""),
    ],
)
def test_a_result_that_cannot_be_meant_is_a_problem(tmp_path, run_folder, change, reason):
    found = read_run(run_folder(tmp_path, SPEC, **change))
    assert found.kind == "broken"
    assert reason in found.reason


@pytest.mark.parametrize("name", ["result.json", "spec.json"])
def test_json_that_is_no_object(tmp_path, name):
    (tmp_path / name).write_text("[]")
    assert f"{name} holds no JSON object" in collect(tmp_path).problems[0].reason


def test_a_torn_log_is_named_with_its_line(tmp_path, run_folder):
    folder = run_folder(tmp_path, SPEC)
    (folder / "metrics.jsonl").write_text('{"epoch": 0}\n{"epo')
    assert read_run(folder).reason == "metrics.jsonl line 2 is not JSON"


def test_an_empty_started_folder_is_a_problem(tmp_path):
    (tmp_path / "x" / "resume").mkdir(parents=True)
    assert collect(tmp_path).problems[0].kind == "broken"


def test_the_same_run_twice_is_used_once_and_said(tmp_path, run_folder):
    run_folder(tmp_path / "a", SPEC)
    run_folder(tmp_path / "b", SPEC)
    found = collect(tmp_path)
    assert len(found.records) == 1
    assert found.problems[0].kind == "duplicate"
    assert len(collect(tmp_path / "a", tmp_path / "a").problems) == 0


def test_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"is not a folder. Give a run folder"):
        collect(tmp_path / "nowhere")


def test_a_failure_that_was_written_down_is_the_reason(tmp_path, run_folder):
    folder = run_folder(tmp_path, SPEC)
    (folder / "result.json").unlink()
    (folder / "failure.json").write_text(json.dumps({"error": "NonFiniteError: the loss\nbecame nan"}))
    (problem,) = collect(tmp_path).problems
    assert (problem.kind, problem.reason) == ("failed", "NonFiniteError: the loss became nan")
