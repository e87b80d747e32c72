import subprocess
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from maxsep.lab import environment


@pytest.mark.parametrize(
    ("name", "available", "device"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_auto_is_a_gpu_where_there_is_one(monkeypatch, name, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert environment.pick_device(name).type == device
    assert environment.default_precision(name) == ("bf16-mixed" if device == "cuda" else "32-true")


@pytest.mark.parametrize("name", ["cuda", "tpu"])
def test_an_unknown_or_missing_device_is_refused(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=name):
        environment.pick_device(name)


def test_images_fit_where_they_leave_room_for_the_network(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 10**9))
    limit = int(environment.ROOM * 1000)
    assert environment.fits(limit, torch.device("cuda", 0))
    assert not environment.fits(limit + 1, torch.device("cuda", 0))
    assert environment.fits(10**15, torch.device("cpu"))


def test_versions_and_hardware_name_what_decides_the_numbers():
    versions = environment.versions()
    assert versions["torch"] == torch.__version__
    assert versions["lightning-fabric"]
    assert set(versions) >= {"maxsep", "python", "source", "cuda", "cudnn", "numpy", "safetensors", "triton"}
    hardware = environment.hardware(torch.device("cpu"))
    assert (hardware["device"], hardware["threads"]) == ("cpu", torch.get_num_threads())
    assert hardware["cpu"]


@pytest.mark.parametrize("installed", ["2.6.6", None])
def test_fabric_may_come_with_pytorch_lightning_and_missing_packages_are_none(monkeypatch, installed):
    def version(package):
        if package == "pytorch-lightning" and installed:
            return installed
        raise PackageNotFoundError(package)

    monkeypatch.setattr(environment, "version", version)
    versions = environment.versions.__wrapped__()
    assert versions["lightning-fabric"] == installed
    assert versions["triton"] is None


@pytest.mark.parametrize(
    ("program", "words"),
    [("/bin/maxsep", "maxsep"), ("/src/maxsep/__main__.py", "maxsep"), ("/home/me/fit.py", "python fit.py")],
)
def test_a_command_has_no_path_of_its_program(monkeypatch, program, words):
    monkeypatch.setattr("sys.argv", [program, "train", "--runs", "my runs"])
    assert environment.command_line() == f"{words} train --runs 'my runs'"


def test_the_source_digest_follows_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("one")
    first = environment.source(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert first == environment.source(tmp_path)
    (tmp_path / "a.py").write_text("two")
    second = environment.source(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, environment.source(tmp_path)}) == 3


def test_a_commit_is_named_and_says_when_files_were_changed(tmp_path):
    def git(*arguments):
        user = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *user, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert environment.commit(tmp_path) is None
    git("init")
    (tmp_path / "a.py").write_text("one")
    git("add", "a.py")
    git("commit", "-m", "first")
    clean = environment.commit(tmp_path)
    assert len(clean) >= 7
    (tmp_path / "a.py").write_text("two")
    assert environment.commit(tmp_path) == f"{clean}-dirty"
