"""Completing a data folder: resumed, never taken for good when wrong, once for two processes, whole after a kill."""

import hashlib
import io
import random
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from maxsep.files import MANIFEST
from maxsep.lab.data import Dataset, DownloadError
from maxsep.lab.data.download import SOURCES, download, ensure

CONTENT = random.Random(0).randbytes(300_000)


def cut_after(size):
    """Close the connection after some bytes of each answer, while promising all of them."""

    def answer(handler, content):
        span = handler.headers.get("Range")
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start : start + size])

    return answer


def ranges(server):
    return [span for _, span in server.requests]


def test_a_plain_download(tmp_path, remote, server, visible):
    seen, file = [], remote(CONTENT, "/a")
    path = download(file, tmp_path, progress=lambda *n: seen.append(n))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert download(file, tmp_path) == path
    assert len(server.requests) == 1
    assert visible(tmp_path) == ["data.bin"]
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match="5 bytes instead of 300000"):
        download(file, tmp_path)


def test_cut_connections_are_resumed(tmp_path, remote, server):
    file = remote(CONTENT, "/a")
    server.faults["/a"] = cut_after(100_000)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-", "bytes=200000-"]


def test_a_later_call_and_another_mirror_continue(tmp_path, remote, server, visible, monkeypatch):
    def stop(done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr("maxsep.lab.data.download._CONNECTIONS", 10)
    file = remote(CONTENT, "/slow", "/good")
    server.faults["/slow"] = cut_after(500)
    with pytest.raises(KeyboardInterrupt):
        download(file, tmp_path, progress=stop)
    assert visible(tmp_path) == []
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert ranges(server)[1] == "bytes=500-"
    assert server.requests[-1] == ("/good", "bytes=5500-")


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * 300_000, b"x" * 300_500], ids=["short", "full", "long"])
@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_wrong_leftover_is_thrown_away(tmp_path, remote, server, left, has_ranges):
    (tmp_path / ".data.bin.part").write_bytes(left)
    if not has_ranges:
        server.faults["/a"] = lambda handler, content: server.send_file(handler, content, status=200, body=content)
    assert download(remote(CONTENT, "/a"), tmp_path).read_bytes() == CONTENT


def endless(handler, content):
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        handler.close_connection = True


def page(handler, content):
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    handler.wfile.write(b"<html>please log in</html>")


WRONG = {
    "page": page,
    "endless": endless,
    "another file": lambda handler, content: handler.server.send(handler, content[::-1]),
    "404": lambda handler, content: handler.send_error(404),
    "closes at once": lambda handler, content: handler.connection.close(),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_is_never_taken_for_good(tmp_path, remote, server, visible, case):
    file = remote(CONTENT, "/bad")
    server.http.send = server.send_file
    server.faults["/bad"] = WRONG[case]
    with pytest.raises(DownloadError) as caught:
        download(replace(file, urls=("http://127.0.0.1:9/x", *file.urls)), tmp_path, timeout=2)
    assert visible(tmp_path) == []
    for part in ("300000 bytes", file.sha256, str(tmp_path / "data.bin"), "/bad", "127.0.0.1:9/x", "MAXSEP_MIRRORS"):
        assert part in str(caught.value)
    server.files["/good"] = CONTENT
    assert download(replace(file, urls=(*file.urls, server.url("/good"))), tmp_path).read_bytes() == CONTENT


def test_a_full_disk_is_no_matter_of_mirrors(tmp_path, remote, monkeypatch):
    def full(done, total):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        download(remote(CONTENT, "/a"), tmp_path, progress=full)
    assert not isinstance(caught.value, DownloadError)


FETCH = """
import sys
from pathlib import Path
from maxsep.lab.data import download
name, size, sha256, url, folder = sys.argv[1:]
file = download.RemoteFile(name, int(size), sha256, (url,))
download.SOURCES["svhn"] = download.Source("svhn", (file,))
print("ready", flush=True)
download.ensure("svhn", Path(folder), fetch=True)
"""


@pytest.fixture
def command(tmp_path, remote):
    """The command that completes a data folder in a process of its own."""
    file = remote(CONTENT, "/a")
    return [sys.executable, "-c", FETCH, file.name, str(file.size), file.sha256, file.urls[0], str(tmp_path)]


def test_two_processes_download_once(tmp_path, command, server):
    both_run, cut = threading.Event(), cut_after(60_000)

    def answer(handler, content):
        both_run.wait(60)
        cut(handler, content)

    server.faults["/a"] = answer
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == [b"ready\n"] * 2
    time.sleep(0.3)  # time enough for a process that does not wait to ask the server too
    both_run.set()
    assert [process.communicate(timeout=120) and process.returncode for process in both] == [0, 0]
    assert (tmp_path / "svhn" / "data.bin").read_bytes() == CONTENT
    assert len(server.requests) == 5, "the second process waited and fetched nothing"


def test_a_killed_download_shows_nothing_and_is_continued(tmp_path, command, server, visible):
    sent, over = threading.Event(), threading.Event()

    def hang(handler, content):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:200_000])
        sent.set()
        over.wait(60)

    server.faults["/a"] = hang
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        assert sent.wait(60)
        part, deadline = tmp_path / ".data.bin.part", time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    over.set()
    assert visible(tmp_path) == []
    server.faults.clear()
    (tmp_path / ".svhn.tmp-1").mkdir()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert visible(tmp_path) == ["svhn"]
    assert not (tmp_path / ".svhn.tmp-1").exists(), "what a killed process left is removed"
    assert ranges(server)[-1].startswith("bytes="), "what had arrived was kept"


@pytest.fixture
def official(tmp_path, write_cifar, server, monkeypatch):
    """Let a tiny archive be the official CIFAR-10, on the server and in the table."""
    folder = write_cifar(tmp_path / "source")
    with tarfile.open(tmp_path / "archive", "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    content = (tmp_path / "archive").read_bytes()
    return publish("cifar10", content, server, monkeypatch)


def publish(dataset, content, server, monkeypatch):
    [file] = SOURCES[dataset].files
    server.files[f"/{file.name}"] = content
    file = replace(
        file, size=len(content), sha256=hashlib.sha256(content).hexdigest(), urls=(server.url(f"/{file.name}"),)
    )
    monkeypatch.setitem(SOURCES, dataset, replace(SOURCES[dataset], files=(file,)))
    return content


def test_download_unpack_and_read(tmp_path, official, server, visible):
    root = tmp_path / "data"
    assert len(Dataset.parse("cifar10").read(root, download=True).train) == 50
    assert visible(root) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    assert (root / "cifar-10-batches-py" / MANIFEST).is_file()
    Dataset.parse("cifar10").read(root, download=True)
    assert len(server.requests) == 1


def test_an_archive_put_there_by_hand_is_unpacked_only_if_it_is_the_official_one(tmp_path, official, server):
    root = tmp_path / "data"
    root.mkdir()
    for wrong in (official[:-100], bytes([official[0] ^ 1]) + official[1:]):
        (root / "cifar-10-python.tar.gz").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz"):
            Dataset.parse("cifar10").read(root)
        assert not (root / "cifar-10-batches-py").exists()
    (root / "cifar-10-python.tar.gz").write_bytes(official)
    assert len(Dataset.parse("cifar10").read(root).test) == 10
    assert not server.requests


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cifar-10-batches-py/../../evil", tarfile.REGTYPE),
        ("/tmp/cifar-10-batches-py/evil", tarfile.REGTYPE),
        ("cifar-10-batches-py/link", tarfile.SYMTYPE),
    ],
)
def test_an_archive_writes_nothing_outside_its_folder(tmp_path, server, monkeypatch, name, kind):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    publish("cifar10", stream.getvalue(), server, monkeypatch)
    ensure("cifar10", tmp_path / "deep" / "data", fetch=True)
    names = {path.name for path in tmp_path.rglob("*") if not path.name.startswith(".")}
    assert names <= {"deep", "data", "cifar-10-python.tar.gz", "cifar-10-batches-py", MANIFEST, "evil"}
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "deep" / "evil").exists()


def test_own_mirrors_come_first(tmp_path, official, server, monkeypatch):
    server.files["/mirror/cifar-10-python.tar.gz"] = official
    monkeypatch.setenv("MAXSEP_MIRRORS", f"{server.url('/none')} {server.url('/mirror/')}")
    Dataset.parse("cifar10").read(tmp_path / "data", download=True)
    assert [path.split("/")[1] for path, _ in server.requests] == ["none", "mirror"]


@pytest.mark.parametrize("by_hand", [(), ("test_32x32.mat",)])
def test_svhn_is_downloaded_file_by_file(tmp_path, server, monkeypatch, by_hand):
    files, root = [], tmp_path / "data"
    (root / "svhn").mkdir(parents=True) if by_hand else None
    for file in SOURCES["svhn"].files:
        digits = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]
        savemat(tmp_path / file.name, {"X": np.zeros((32, 32, 3, 20), np.uint8), "y": digits})
        server.files[f"/{file.name}"] = content = (tmp_path / file.name).read_bytes()
        sha256, url = hashlib.sha256(content).hexdigest(), server.url(f"/{file.name}")
        files.append(replace(file, size=len(content), sha256=sha256, urls=(url,)))
        if file.name in by_hand:
            (root / "svhn" / file.name).write_bytes(content)
    monkeypatch.setitem(SOURCES, "svhn", replace(SOURCES["svhn"], files=tuple(files)))
    assert len(Dataset.parse("svhn").read(root, download=True).test) == 20
    assert (root / "svhn" / MANIFEST).is_file() == (not by_hand)
    assert len(server.requests) == 2 - len(by_hand)


@pytest.mark.parametrize("dataset", SOURCES)
def test_missing_data_say_what_to_put_where(tmp_path, dataset, write_cifar):
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="--download") as caught:
            Dataset.parse(dataset).read(root)
        assert all(file.name in str(caught.value) for file in SOURCES[dataset].files)
    with pytest.raises(FileNotFoundError, match=f"mean {tmp_path}"):
        Dataset.parse(dataset).read(write_cifar(tmp_path, "cifar100") / ".." / "svhn")
