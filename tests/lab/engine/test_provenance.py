import subprocess
from importlib.metadata import PackageNotFoundError

import torch

from maxsep.lab.engine import provenance


def test_versions_name_what_decides_the_numbers():
    found = provenance.versions()
    assert found["torch"] == torch.__version__
    assert found["lightning-fabric"]
    assert set(found) >= {"maxsep", "python", "cuda", "numpy", "safetensors"}


def test_a_missing_package_is_none(monkeypatch):
    monkeypatch.setattr(provenance, "_PACKAGES", {"thing": ("no-such-package", "nor-this-one")})
    assert provenance.versions.__wrapped__()["thing"] is None


def test_fabric_may_come_with_pytorch_lightning(monkeypatch):
    def version(package):
        if package == "pytorch-lightning":
            return "2.6.6"
        raise PackageNotFoundError(package)

    monkeypatch.setattr(provenance, "version", version)
    assert provenance.versions.__wrapped__()["lightning-fabric"] == "2.6.6"


def test_hardware_names_the_processor_and_the_threads():
    told = provenance.hardware(torch.device("cpu"))
    assert told["device"] == "cpu"
    assert told["cpu"]
    assert told["threads"] == torch.get_num_threads()


def test_the_source_digest_follows_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("one")
    first = provenance.source(tmp_path)
    assert first == provenance.source(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert first == provenance.source(tmp_path)
    (tmp_path / "a.py").write_text("two")
    second = provenance.source(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, provenance.source(tmp_path)}) == 3


def test_a_commit_is_named_and_says_when_files_were_changed(tmp_path):
    def git(*arguments):
        own = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert provenance.commit(tmp_path) is None
    git("init")
    (tmp_path / "a.py").write_text("one")
    git("add", "a.py")
    git("commit", "-m", "first")
    clean = provenance.commit(tmp_path)
    assert len(clean) >= 7
    (tmp_path / "a.py").write_text("two")
    assert provenance.commit(tmp_path) == f"{clean}-dirty"
    assert provenance.commit(tmp_path / "nowhere") is None
