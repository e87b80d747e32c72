import json

import pytest

from maxsep.files import sha256_of
from maxsep.lab.report.runs import collect
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(head="maxsep", radius=0.1)


def test_nested_folders_are_found_and_a_run_folder_itself(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a" / "b", SPEC)
    run_folder(tmp_path / "c", SPEC.replace(seed=1))
    assert {run.spec.seed for run in collect(tmp_path).runs} == {0, 1}
    assert collect(folder).runs[0].spec == SPEC


@pytest.mark.parametrize(
    "change",
    [
        *({"metrics": metrics} for metrics in ({}, {"top1": 81.2}, {"top1": float("nan")}, [1, 2])),
        *({"spec": {"colour": "red"}}, {"spec": {"imbalance": 7}}, {"schema": 99}),
    ],
)
def test_a_result_that_cannot_be_meant_is_a_problem(tmp_path, run_folder, change):
    folder = run_folder(tmp_path, SPEC)
    (folder / "result.json").write_text(json.dumps(json.loads((folder / "result.json").read_text()) | change))
    found = collect(tmp_path)
    assert (found.runs, [problem.kind for problem in found.problems]) == ((), ["broken"])


@pytest.mark.parametrize(("name", "text"), [("result.json", "[]"), ("spec.json", "[]"), ("metrics.jsonl", '{"epo\n')])
def test_damaged_files_are_problems(tmp_path, run_folder, name, text):
    folder = run_folder(tmp_path, SPEC)
    if name == "spec.json":
        (folder / "result.json").unlink()
    (folder / name).write_text(text)
    (tmp_path / "x" / "resume").mkdir(parents=True)  # an empty started folder
    assert [problem.kind for problem in collect(tmp_path).problems] == ["broken"] * 2


@pytest.mark.parametrize("name", ["result.json", "spec.json", "metrics.jsonl", "weights.safetensors"])
def test_a_changed_byte_in_any_file_of_a_run_is_a_problem(tmp_path, run_folder, name):
    path = run_folder(tmp_path, SPEC) / name
    (path.parent / "weights.safetensors").write_bytes(bytes(9))
    lines = [f"{sha256_of(file)}  {SPEC.name}/{file.name}\n" for file in path.parent.iterdir()]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    assert collect(tmp_path).problems == ()
    path.write_bytes(path.read_bytes() + b"\n")
    assert [problem.kind for problem in collect(tmp_path).problems] == ["broken"]


def test_the_same_run_twice_is_used_once(tmp_path, run_folder):
    run_folder(tmp_path / "a", SPEC)
    run_folder(tmp_path / "b", SPEC)
    found = collect(tmp_path)
    assert (len(found.runs), found.problems[0].kind) == (1, "duplicate")
    assert len(collect(tmp_path / "a", tmp_path / "a").problems) == 0
    with pytest.raises(ValueError, match="nowhere"):
        collect(tmp_path / "nowhere")


def broken(content, *path, value=None):
    """Change or remove an entry of nested dictionaries."""
    *first, last = path
    for key in first:
        content = content[key]
    if value is None:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sets",), None),
        (("sets", "svhn", "origin"), None),
        (("sets", "svhn", "scores", "energy", "full", "auroc"), None),
        (("sets", "svhn", "scores", "energy", "full", "auroc"), 81.0),
        (("sets", "svhn", "histograms", "energy", "known"), [0.1]),
        (("sets", "svhn", "histograms", "energy", "gap"), "wide"),
    ],
)
def test_damaged_detection_leaves_the_run(tmp_path, run_folder, write_detection, path, value):
    folder = run_folder(tmp_path, SPEC, top1=0.8)
    write_detection(folder, ("svhn",))
    content = json.loads((folder / "detection.json").read_text())
    broken(content, *path, value=value)
    (folder / "detection.json").write_text(json.dumps(content))
    found = collect(tmp_path)
    assert (found.problems[0].kind, found.runs[0].detection) == ("detection", None)
    assert found.values[SPEC.name]["top1"] == 0.8


@pytest.mark.parametrize("text", ["{", '{"epochs": {"15": {"known": [], "labels": [], "unknown": []}}}'])
def test_damaged_features_leave_the_run(tmp_path, run_folder, text):
    (run_folder(tmp_path, SPEC) / "features.json").write_text(text)
    found = collect(tmp_path)
    assert (found.problems[0].kind, found.runs[0].features, len(found.runs)) == ("features", None, 1)
