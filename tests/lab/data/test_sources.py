"""Completing a data folder: found, unpacked, or downloaded."""

import hashlib
import re
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from maxsep.lab.data import Dataset, sources
from maxsep.lab.data.checksums import SUMS
from maxsep.lab.data.download import DownloadError


@pytest.fixture
def official(tmp_path, write_cifar, server, monkeypatch):
    """Let a tiny archive be the official CIFAR-10, on the server and in the table."""
    folder = write_cifar(tmp_path / "source")
    path = tmp_path / "source" / "archive"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    content = path.read_bytes()
    server.files["/cifar-10-python.tar.gz"] = content
    file = replace(
        sources.ARCHIVES["cifar10"],
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        md5=hashlib.md5(content).hexdigest(),
        urls=(server.url("/cifar-10-python.tar.gz"),),
    )
    monkeypatch.setitem(sources.ARCHIVES, "cifar10", file)
    return content


def test_download_unpack_and_load(tmp_path, official, server, visible):
    root, seen = tmp_path / "data", []
    data = Dataset.parse("cifar10").read(root, download=True, progress=lambda *n: seen.append(n))
    assert len(data.train) == 20
    assert seen
    assert (root / "cifar-10-batches-py" / SUMS).is_file()
    assert visible(root) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    Dataset.parse("cifar10").read(root, download=True)
    assert len(server.requests) == 1


def test_archive_put_there_by_hand_is_unpacked_without_a_network(tmp_path, official, server):
    root = tmp_path / "data"
    root.mkdir()
    (root / "cifar-10-python.tar.gz").write_bytes(official)
    assert len(Dataset.parse("cifar10").read(root).test) == 4
    assert not server.requests


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_archive_is_never_unpacked(tmp_path, official, damage):
    root = tmp_path / "data"
    root.mkdir()
    wrong = official[:-100] if damage == "truncated" else bytes([official[0] ^ 1]) + official[1:]
    (root / "cifar-10-python.tar.gz").write_bytes(wrong)
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz is not the official archive \(.* instead of"):
        Dataset.parse("cifar10").read(root)
    assert not (root / "cifar-10-batches-py").exists()


def test_wrong_archive_on_the_server(tmp_path, official, server):
    server.files["/cifar-10-python.tar.gz"] = official[::-1]
    with pytest.raises(DownloadError, match=r"SHA-256 \w+ instead of \w+\n") as caught:
        Dataset.parse("cifar10").read(tmp_path / "data", download=True)
    assert f"Without a network, fetch it elsewhere ({len(official)} bytes" in str(caught.value)
    assert f"put it at {tmp_path / 'data' / 'cifar-10-python.tar.gz'}" in str(caught.value)
    assert "set MAXSEP_MIRRORS to the address of a mirror" in str(caught.value)
    assert not (tmp_path / "data").exists(), "a folder that was made in vain is removed"


def test_own_mirrors_come_first(tmp_path, official, server, monkeypatch):
    server.files["/mirror/cifar-10-python.tar.gz"] = official
    monkeypatch.setenv("MAXSEP_MIRRORS", f"{server.url('/none')} {server.url('/mirror/')}")
    Dataset.parse("cifar10").read(tmp_path / "data", download=True)
    assert [path for path, _ in server.requests] == [
        "/none/cifar-10-python.tar.gz",
        "/mirror/cifar-10-python.tar.gz",
    ]


def test_svhn_is_downloaded_file_by_file(tmp_path, server, monkeypatch):
    files = []
    for file in sources.SVHN:
        path = tmp_path / file.name
        digits = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]
        savemat(path, {"X": np.zeros((32, 32, 3, 20), np.uint8), "y": digits})
        content = path.read_bytes()
        server.files[f"/{file.name}"] = content
        sums = {"sha256": hashlib.sha256(content).hexdigest(), "md5": hashlib.md5(content).hexdigest()}
        files.append(replace(file, size=len(content), urls=(server.url(f"/{file.name}"),), **sums))
    monkeypatch.setattr(sources, "SVHN", tuple(files))
    data = Dataset.parse("svhn").read(tmp_path / "data", download=True)
    assert len(data.test) == 20
    assert len((tmp_path / "data" / "svhn" / SUMS).read_text().splitlines()) == 2
    Dataset.parse("svhn").read(tmp_path / "data")
    assert len(server.requests) == 2


def test_table_of_official_files():
    files = [*sources.ARCHIVES.values(), *sources.SVHN]
    assert {file.md5 for file in files} == {
        "c58f30108f718f92721af3b95e74349a",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "e26dedcc434d2e4c54c9b2d4a06d8373",
        "eb5a983be6a315427106f1b164d9cef3",
    }
    for file in files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert all(url.endswith(f"/{file.name}") for url in file.urls)


@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        ("cifar10", "cifar-10-batches-py/ .or cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python/ .or cifar-100-python.tar.gz"),
        ("svhn", "svhn/train_32x32.mat and svhn/test_32x32.mat"),
    ],
)
def test_missing_data_says_what_to_put_where(tmp_path, dataset, parts):
    with pytest.raises(
        FileNotFoundError, match=f"{dataset} is not in .*expected {parts}.*--data DIR or MAXSEP_DATA"
    ) as caught:
        Dataset.parse(dataset).read(tmp_path)
    assert "add --download to fetch them (set MAXSEP_MIRRORS to try mirrors of your own first)" in str(caught.value)
    with pytest.raises(FileNotFoundError, match="That folder does not exist"):
        Dataset.parse(dataset).read(tmp_path / "nowhere")


def test_folder_one_level_too_deep_is_pointed_out(tmp_path, write_cifar):
    folder = write_cifar(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"Did you mean its parent, {tmp_path}"):
        Dataset.parse("cifar10").read(folder)
