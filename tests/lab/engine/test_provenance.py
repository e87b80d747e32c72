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
