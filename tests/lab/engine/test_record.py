import fcntl
import json

import pytest
import torch

from maxsep.lab.engine.record import RunFolder, read_metrics
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(epochs=1)


def test_a_run_is_finished_when_its_result_is_there(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert not folder.is_finished(SPEC)
    folder.begin(SPEC)
    folder.resume.mkdir()
    folder.append_metrics({"epoch": 0})
    assert not folder.is_finished(SPEC)
    folder.finish({"w": torch.ones(2)}, [{"epoch": 0, "loss": 1.0}], {"metrics": {"angular_fisher": float("inf")}})
    assert folder.is_finished(SPEC)
    assert not folder.resume.exists()
    assert (folder.path / "metrics.jsonl").read_text() == '{"epoch": 0, "loss": 1.0}\n'
    assert json.loads((folder.path / "result.json").read_text()) == {"metrics": {"angular_fisher": None}}


def test_metrics_beyond_the_resume_point_are_dropped(tmp_path):
    folder = RunFolder(tmp_path)
    for epoch in range(3):
        folder.append_metrics({"epoch": epoch})
    folder.rewrite_metrics([{"epoch": 0}])
    folder.append_metrics({"epoch": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"epoch": 0}\n{"epoch": 1}\n'


def test_a_torn_last_line_is_passed_over_and_a_bad_one_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    RunFolder(tmp_path).append_metrics({"epoch": 0, "loss": 0.5})
    whole = path.read_bytes()
    for end in range(len(whole)):  # a kill can come at any byte
        path.write_bytes(whole + whole[:end])
        assert read_metrics(path) == [{"epoch": 0, "loss": 0.5}]
    path.write_bytes(whole + b'{"epoch\n' + whole)
    with pytest.raises(ValueError, match=r"metrics.jsonl: line 2 is damaged"):
        read_metrics(path)
    path.write_bytes(b"3\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl: line 1 is no JSON object"):
        read_metrics(path)


def test_a_failure_that_cannot_be_written_hides_no_error(tmp_path):
    RunFolder(tmp_path / "gone").record_failure(SPEC, ValueError("bad"))
    assert not (tmp_path / "gone").exists()


def test_the_folder_of_another_spec_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(SPEC)
    with pytest.raises(ValueError, match=r"holds another run: its spec.json differs in radius, seed\. Choose"):
        folder.is_finished(SPEC.replace(seed=5, radius=0.5))


def test_a_run_of_an_earlier_version_is_known_again(tmp_path):
    folder = RunFolder(tmp_path)
    earlier = {key: value for key, value in SPEC.to_dict().items() if key not in ("mixup", "start_from")}
    (tmp_path / "spec.json").write_text(json.dumps(earlier))
    (tmp_path / "result.json").write_text("{}")
    assert folder.is_finished(SPEC)


def test_a_damaged_spec_and_a_file_in_the_way_are_named(tmp_path):
    (tmp_path / "spec.json").write_text("{")
    with pytest.raises(ValueError, match=r"spec.json is damaged.*Delete the folder"):
        RunFolder(tmp_path).is_finished(SPEC)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file, not a run folder"):
        RunFolder(tmp_path / "file").begin(SPEC)


def test_a_folder_has_one_writer(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.lock(), pytest.raises(BlockingIOError, match="another process is training"), folder.lock():
        pass
    with folder.lock():
        assert (tmp_path / ".lock").exists()


def test_a_claim_is_held_by_one_and_leaves_nothing(tmp_path):
    folder = RunFolder(tmp_path / "runs" / SPEC.name)
    with folder.claim():
        assert not folder.path.exists(), "a run's folder is made when its data were read"
        with pytest.raises(BlockingIOError, match="another process is training"), folder.claim():
            pass
        with folder.lock():
            pass
        with RunFolder(folder.path.with_name(SPEC.replace(seed=1).name)).claim():
            pass
    with folder.claim():
        pass
    with folder.lock(), pytest.raises(BlockingIOError, match="another process is training"), folder.claim():
        pass
    with pytest.raises(RuntimeError), folder.claim():
        raise RuntimeError("whatever happens")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [SPEC.name]


def test_a_claim_whose_file_was_removed_since_is_none(tmp_path, monkeypatch):
    """The other process ends between our opening of the file and our lock."""
    folder, flock = RunFolder(tmp_path / SPEC.name), fcntl.flock

    def late(file, how):
        next(tmp_path.glob(".*.claim")).unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BlockingIOError, match="another process is training"), folder.claim():
        pass


def test_asking_for_the_lock_keeps_nothing_and_makes_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.check_free()
    assert not folder.path.exists()
    with folder.lock(), pytest.raises(BlockingIOError, match="another process is training"):
        folder.check_free()
    folder.check_free()
    with folder.lock():
        pass
