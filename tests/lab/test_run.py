import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from maxsep.files import sha256_of
from maxsep.lab.run import Run, RunError, find_runs
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(epochs=1)
RECORDED = Path(__file__).parents[2] / "results" / "runs"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def test_a_run_from_its_begin_to_its_end(tmp_path):
    run = Run(tmp_path / SPEC.name)
    run.record_failure(SPEC, ValueError("the folder is missing, which hides no error"))
    assert (run.state, run.name) == ("new", SPEC.name)
    run.begin(SPEC)
    assert (run.state, run.spec) == ("unfinished", SPEC)
    run.resume.mkdir()
    run.append({"epoch": 0})
    run.record_failure(SPEC, ValueError("bad"))
    assert run.state == "failed"
    assert run.read("failure.json")["error"] == "ValueError: bad"
    result = {"schema": 1, "spec": SPEC.to_dict(), "metrics": {"angular_fisher": float("inf")}}
    run.finish({"w": torch.ones(2)}, [{"epoch": 0, "loss": 1.0}], result)
    assert run.state == "finished"
    names = ["MANIFEST.json", "metrics.jsonl", "result.json", "spec.json", "weights.safetensors"]
    assert sorted(path.name for path in run.folder.iterdir()) == names
    finished = Run(run.folder)
    assert (finished.spec, finished.metrics) == (SPEC, {"angular_fisher": None})
    assert finished.history == [{"epoch": 0, "loss": 1.0}]
    assert (finished.unknown, finished.detection, finished.features) == (None, None, None)
    assert finished.weights()["w"].tolist() == [1, 1]


def test_a_torn_last_line_is_ignored_and_a_bad_one_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for epoch in range(3):
        Run(tmp_path).append({"epoch": epoch})
    Run(tmp_path).rewrite_history([])  # as after a resume: a killed run has logged epochs beyond its resume point
    Run(tmp_path).append({"epoch": 0, "loss": 0.5})
    whole = path.read_bytes()
    for end in range(len(whole)):  # a kill can come at any byte
        path.write_bytes(whole + whole[:end])
        assert Run(tmp_path).history == [{"epoch": 0, "loss": 0.5}]
    for content in (whole + b'{"epoch\n' + whole, whole + b"3\n"):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"metrics.jsonl: line 2"):
            _ = Run(tmp_path).history
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=path.name):
        Run(tmp_path).append({"epoch": 0})


def test_the_folder_of_another_spec_is_refused(tmp_path):
    Run(tmp_path).begin(SPEC)
    with pytest.raises(RunError, match="radius, seed"):
        Run(tmp_path).check_spec(SPEC.replace(seed=5, radius=0.5))
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file"):
        Run(tmp_path / "file").begin(SPEC)


def test_a_run_of_an_earlier_version_is_known_again(tmp_path):
    earlier = {key: value for key, value in SPEC.to_dict().items() if key not in ("mixup", "start_from", "clip_norm")}
    (tmp_path / "spec.json").write_text(json.dumps(earlier))
    Run(tmp_path).check_spec(SPEC)
    assert Run(tmp_path).spec == SPEC


@pytest.mark.parametrize(
    ("name", "content"),
    [("spec.json", "{"), ("spec.json", '{"colour": 1}'), ("result.json", "[]"), ("result.json", '{"schema": 2}')],
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=name):
        _ = Run(tmp_path).spec


def test_what_is_missing_is_said(tmp_path):
    for ask in (lambda run: run.result, lambda run: run.spec, Run.weights):
        with pytest.raises(FileNotFoundError):
            ask(Run(tmp_path))
    (tmp_path / "weights.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(RunError, match=r"weights\.safetensors"):
        Run(tmp_path).weights()


def test_a_lock_is_reentrant_makes_no_folder_and_excludes_others(tmp_path):
    run = Run(tmp_path / "runs" / SPEC.name)

    def take():
        try:
            with run.lock():
                outcomes.append("taken")
        except BlockingIOError:
            outcomes.append("refused")

    outcomes = []
    with run.lock(), run.lock(), Run(run.folder.with_name("another")).lock():
        assert not run.folder.exists()
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    with pytest.raises(RuntimeError), run.lock():
        raise RuntimeError("whatever happens")
    take()
    assert outcomes == ["refused", "taken"]
    assert list(tmp_path.iterdir()) == [], "a run that did not begin leaves nothing"


def test_a_killed_process_holds_no_lock(tmp_path):
    code = "import sys; from maxsep.lab.run import Run\nwith Run(sys.argv[1]).lock(): print(flush=True), input()"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], **PIPES) as process:
        process.stdout.readline()
        with pytest.raises(BlockingIOError), Run(tmp_path / "run").lock():
            pass
        process.kill()
    with Run(tmp_path / "run").lock():
        pass


def test_every_recorded_run_is_read():
    runs = find_runs(RECORDED)
    assert len(runs) >= 188
    for run in runs:
        assert run.state == "finished"
        assert run.spec.name == run.name
        assert run.metrics["top1"] == run.history[-1]["top1"]


def finished(folder, spec=SPEC):
    run = Run(folder / spec.name)
    run.begin(spec)
    result = {"schema": 1, "name": spec.name, "spec": spec.to_dict(), "metrics": {"top1": 0.5}}
    run.finish({"w": torch.ones(2)}, [{"epoch": 0, "loss": 1.0}], result)
    return run.folder


READERS = {
    "result.json": lambda run: run.metrics,
    "spec.json": lambda run: run.spec,
    "metrics.jsonl": lambda run: run.history,
    "detection.json": lambda run: run.detection,
    "weights.safetensors": Run.weights,
}


@pytest.mark.parametrize("name", READERS)
def test_any_file_of_a_finished_run_that_differs_is_named(tmp_path, name):
    folder = finished(tmp_path)
    Run(folder).add("detection.json", {"sets": {}})
    for read in READERS.values():
        read(Run(folder))
    path = folder / name
    content = path.read_bytes()
    for damaged in (content[:-2] + b"  ", content + b"\n", b"", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        error = (FileNotFoundError if "weights" in name else RunError) if damaged is None else RunError
        with pytest.raises((error, FileNotFoundError) if name == "result.json" else error, match=name):
            READERS[name](Run(folder))
        if damaged is not None and name != "detection.json":
            with pytest.raises(RunError, match=name):
                Run(folder).verify()
    assert Run(folder).state == ("unfinished" if name == "result.json" else "finished")


def test_records_are_kept_without_weights_and_swapped_ones_are_refused(tmp_path):
    one, other = finished(tmp_path / "one"), finished(tmp_path / "other", SPEC.replace(seed=1))
    (one / "weights.safetensors").unlink()
    assert Run(one).metrics == {"top1": 0.5}
    swapped = other.rename(tmp_path / "other" / one.name)
    with pytest.raises(RunError, match="another run"):
        _ = Run(swapped).metrics
    assert Run(swapped.rename(tmp_path / "renamed")).spec.seed == 1
    (one / "detection.json").write_text('{"sets": {}}')  # not written by the run
    with pytest.raises(RunError, match=r"detection\.json"):
        _ = Run(one).detection


def test_sums_beside_run_folders_and_none_at_all(tmp_path):
    folder = finished(tmp_path)
    (folder / "MANIFEST.json").unlink()
    with pytest.warns(UserWarning, match=r"MANIFEST\.json") as warned:
        assert Run(folder).metrics == {"top1": 0.5}
    assert Path(warned[0].filename).name == "run.py", "the command line shortens warnings of this package"
    lines = [f"{sha256_of(path)}  {folder.name}/{path.name}\n" for path in folder.iterdir()]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    (folder / "result.json").write_bytes((folder / "result.json").read_bytes().replace(b"0.5", b"0.6"))
    with pytest.raises(RunError, match=r"result\.json"):
        _ = Run(folder).metrics
    assert Run(folder).history
    (tmp_path / "SHA256SUMS").write_text("".join(lines)[5:])
    with pytest.raises(RunError, match="SHA256SUMS"):
        _ = Run(folder).history


def test_every_file_of_the_recorded_runs_has_its_sum():
    listed = [line.split("  ")[1] for line in (RECORDED / "SHA256SUMS").read_text().splitlines()]
    assert listed == sorted(str(path.relative_to(RECORDED)) for path in RECORDED.glob("*/*"))
