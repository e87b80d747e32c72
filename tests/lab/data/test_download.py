"""Completing a data folder: resumed, never taken for good when wrong, once for two processes, whole after a kill."""

import io
import random
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.io import savemat

from maxsep.files import MANIFEST
from maxsep.lab.data import Dataset, DownloadError
from maxsep.lab.data.download import SOURCES, Source, download, ensure

CONTENT = random.Random(0).randbytes(300_000)


def ranges(server):
    return [span for _, span in server.requests]


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_plain_download(tmp_path, server):
    seen, file = [], server.publish(CONTENT, "/a")
    path = download(file, tmp_path, progress=lambda *n: seen.append(n))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert download(file, tmp_path) == path
    assert len(server.requests) == 1
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match="5 bytes instead of 300000"):
        download(file, tmp_path)


def test_cut_connections_are_resumed_also_by_a_later_call_and_another_mirror(tmp_path, server, monkeypatch):
    def stop(done, total):
        raise KeyboardInterrupt

    file = server.publish(CONTENT, "/slow", "/good")
    server.faults["/slow"] = partial(server.send_file, most=5000)
    with pytest.raises(KeyboardInterrupt):
        download(file, tmp_path, progress=stop)
    assert visible(tmp_path) == []
    monkeypatch.setattr("maxsep.lab.data.download._CONNECTIONS", 1)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/slow", None), ("/slow", "bytes=5000-"), ("/good", "bytes=10000-")]


@pytest.mark.parametrize("left", [1000, 300_000, 300_500])
@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_wrong_leftover_is_thrown_away(tmp_path, server, left, has_ranges):
    (tmp_path / ".data.bin.part").write_bytes(b"x" * left)
    server.faults["/a"] = partial(server.send_file, ranges=has_ranges)
    assert download(server.publish(CONTENT, "/a"), tmp_path).read_bytes() == CONTENT


def endless(handler, content):
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        handler.close_connection = True


WRONG = {
    "page": lambda send, handler, content: send(handler, b"<html>please log in</html>"),
    "endless": lambda send, handler, content: endless(handler, content),
    "another file": lambda send, handler, content: send(handler, content[::-1]),
    "404": lambda send, handler, content: handler.send_error(404),
    "closes at once": lambda send, handler, content: handler.connection.close(),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_is_never_taken_for_good(tmp_path, server, case, monkeypatch):
    file = server.publish(CONTENT, "/bad")
    server.faults["/bad"] = partial(WRONG[case], server.send_file)
    with pytest.raises(DownloadError) as caught:
        download(replace(file, urls=("http://127.0.0.1:9/x", *file.urls)), tmp_path, timeout=2)
    assert visible(tmp_path) == []
    for part in ("300000 bytes", file.sha256, str(tmp_path / "data.bin"), "/bad", "127.0.0.1:9/x", "MAXSEP_MIRRORS"):
        assert part in str(caught.value)
    server.files["/mirror/data.bin"] = CONTENT
    monkeypatch.setenv("MAXSEP_MIRRORS", f"{server.url('/none')} {server.url('/mirror/')}")
    assert download(file, tmp_path).read_bytes() == CONTENT, "own mirrors come first"


FETCH = """
import sys
from pathlib import Path
from maxsep.lab.data import download
name, size, sha256, url, folder = sys.argv[1:]
download.SOURCES["svhn"] = download.Source("svhn", (download.RemoteFile(name, int(size), sha256, (url,)),))
print("ready", flush=True)
download.ensure("svhn", Path(folder), fetch=True)
"""


@pytest.fixture
def command(tmp_path, server):
    """The command that completes a data folder in a process of its own."""
    file = server.publish(CONTENT, "/a")
    return [sys.executable, "-c", FETCH, file.name, str(file.size), file.sha256, file.urls[0], str(tmp_path)]


def test_two_processes_download_once(tmp_path, command, server):
    both_run = threading.Event()

    def answer(handler, content):
        both_run.wait(240)
        server.send_file(handler, content, most=60_000)

    server.faults["/a"] = answer
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == [b"ready\n"] * 2
    time.sleep(0.3)  # time enough for a process that does not wait to ask the server too
    both_run.set()
    assert [process.communicate(timeout=240) and process.returncode for process in both] == [0, 0]
    assert (tmp_path / "svhn" / "data.bin").read_bytes() == CONTENT
    assert len(server.requests) == 5, "the second process waited and fetched nothing"


def test_a_killed_download_shows_nothing_and_is_continued(tmp_path, command, server):
    sent, over = threading.Event(), threading.Event()

    def hang(handler, content):
        server.send_file(handler, content, most=200_000)
        handler.wfile.flush()
        sent.set()
        over.wait(240)

    server.faults["/a"] = hang
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        assert sent.wait(240)
        part, deadline = tmp_path / ".data.bin.part", time.monotonic() + 240
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    over.set()
    assert visible(tmp_path) == []
    server.faults.clear()
    (tmp_path / ".svhn.tmp-1").mkdir()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=240)
    assert visible(tmp_path) == ["svhn"]
    assert not (tmp_path / ".svhn.tmp-1").exists(), "what a killed process left is removed"
    assert ranges(server)[-1].startswith("bytes="), "what had arrived was kept"


@pytest.fixture
def official(tmp_path, write_cifar, server, monkeypatch):
    """Let a tiny archive be the official CIFAR-10, on the server and in the table."""
    stream, folder = io.BytesIO(), write_cifar(tmp_path / "source")
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.add(folder, arcname=folder.name)
        link = tarfile.TarInfo(f"{folder.name}/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name in (f"{folder.name}/../../evil", "/tmp/evil", "evil"):
            tar.addfile(tarfile.TarInfo(name))
    file = server.publish(stream.getvalue(), "/cifar-10-python.tar.gz", name="cifar-10-python.tar.gz")
    monkeypatch.setitem(SOURCES, "cifar10", Source(folder.name, (file,)))
    return stream.getvalue()


def test_download_unpack_and_read(tmp_path, official, server):
    root = tmp_path / "deep" / "data"
    assert len(Dataset.parse("cifar10").read(root, download=True).train) == 50
    assert visible(root) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    assert (root / "cifar-10-batches-py" / MANIFEST).is_file()
    assert not [path for path in tmp_path.rglob("*") if path.name in ("evil", "link")], "nothing but plain files"
    ensure("cifar10", root, fetch=True)
    assert len(server.requests) == 1
    part = root / "cifar-10-batches-py" / "data_batch_5"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1  # a pixel: no other check can notice
    part.write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_5"):
        Dataset.parse("cifar10").read(root)


def test_an_archive_put_there_by_hand_is_unpacked_only_if_it_is_the_official_one(tmp_path, official, server):
    root = tmp_path / "data"
    root.mkdir()
    for wrong in (official[:-100], bytes([official[0] ^ 1]) + official[1:]):
        (root / "cifar-10-python.tar.gz").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz"):
            ensure("cifar10", root)
        assert not (root / "cifar-10-batches-py").exists()
    (root / "cifar-10-python.tar.gz").write_bytes(official)
    assert len(Dataset.parse("cifar10").read(root).test) == 10
    assert not server.requests


@pytest.mark.parametrize("by_hand", [(), ("test_32x32.mat",)])
def test_svhn_is_downloaded_file_by_file(tmp_path, server, monkeypatch, by_hand):
    files, root = [], tmp_path / "data"
    for name in ("train_32x32.mat", "test_32x32.mat"):
        digits = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]
        savemat(tmp_path / name, {"X": np.zeros((32, 32, 3, 20), np.uint8), "y": digits})
        files.append(server.publish((tmp_path / name).read_bytes(), f"/{name}", name=name))
    for name in by_hand:
        (root / "svhn").mkdir(parents=True)
        (tmp_path / name).rename(root / "svhn" / name)
    monkeypatch.setitem(SOURCES, "svhn", Source("svhn", tuple(files)))
    assert len(Dataset.parse("svhn").read(root, download=True).test) == 20
    assert (root / "svhn" / MANIFEST).is_file()
    assert len(server.requests) == 2 - len(by_hand)


@pytest.mark.parametrize("dataset", SOURCES)
def test_missing_data_say_what_to_put_where(tmp_path, dataset):
    for root in (tmp_path / "nowhere", tmp_path / "svhn"):
        with pytest.raises(FileNotFoundError, match="--download") as caught:
            Dataset.parse(dataset).read(root)
        assert all(file.name in str(caught.value) for file in SOURCES[dataset].files)
        assert (f"mean {tmp_path}?" in str(caught.value)) == (root.name == "svhn")
    assert visible(tmp_path) == []
