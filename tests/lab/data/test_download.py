"""Downloads from a server that cuts off, lies, and serves something else."""

import dataclasses
import errno
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from maxsep.lab.data.download import DownloadError, RemoteFile, download

CONTENT = random.Random(0).randbytes(300_000)


def cut_after(server, size):
    """Close the connection after some bytes of each answer, while promising all of them."""

    def answer(handler, content):
        span = handler.headers.get("Range")
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start : start + size])

    return answer


def stop(done, total):
    raise KeyboardInterrupt


def ranges(server):
    return [span for _, span in server.requests]


def test_plain_download_reports_progress_and_leaves_one_file(tmp_path, remote, visible):
    seen = []
    path = download(remote(CONTENT, "/a"), tmp_path / "new", progress=lambda *n: seen.append(n))
    assert path == tmp_path / "new" / "data.bin"
    assert path.read_bytes() == CONTENT
    assert visible(path.parent) == ["data.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert not (path.parent / ".data.bin.part").exists()


def test_good_file_is_not_fetched_again(tmp_path, remote, server):
    file = remote(CONTENT, "/a")
    download(file, tmp_path)
    download(file, tmp_path)
    assert len(server.requests) == 1


def test_foreign_file_under_the_name_is_an_error(tmp_path, remote):
    (tmp_path / "data.bin").write_bytes(b"other")
    with pytest.raises(DownloadError, match=r"data.bin is not the official file \(5 bytes instead of 300000\). Delete"):
        download(remote(CONTENT, "/a"), tmp_path)


def test_cut_connections_are_resumed(tmp_path, remote, server):
    file = remote(CONTENT, "/a")
    server.faults["/a"] = cut_after(server, 100_000)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-", "bytes=200000-"]


def test_interrupted_download_is_continued_by_a_later_call(tmp_path, remote, server, visible):
    file = remote(CONTENT, "/a")
    server.faults["/a"] = cut_after(server, 100_000)
    with pytest.raises(KeyboardInterrupt):
        download(file, tmp_path, progress=stop)
    assert visible(tmp_path) == []
    server.faults.clear()
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert ranges(server)[1].startswith("bytes=")


def test_server_that_ignores_ranges_restarts(tmp_path, remote, server):
    file = remote(CONTENT, "/a")
    (tmp_path / ".data.bin.part").write_bytes(b"x" * 1000)
    server.faults["/a"] = lambda handler, content: server.send_file(handler, content, status=200, body=content)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == ["bytes=1000-"]


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * 300_000, b"x" * 300_500], ids=["short", "full", "long"])
def test_wrong_leftover_is_thrown_away(tmp_path, remote, left):
    (tmp_path / ".data.bin.part").write_bytes(left)
    assert download(remote(CONTENT, "/a"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [299_999, 300_001, 5_000_000_000, 0])
def test_server_that_lies_about_the_length_is_left_for_the_next(tmp_path, remote, server, length):
    file = remote(CONTENT, "/liar", "/good")
    server.faults["/liar"] = lambda handler, content: server.send_file(handler, content, length=length)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.requests[-1][0] == "/good"


def test_endless_answer_is_cut_at_the_known_size(tmp_path, remote, server):
    file = remote(CONTENT, "/endless", "/good")

    def endless(handler, content):
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            handler.close_connection = True

    server.faults["/endless"] = endless
    assert download(file, tmp_path).read_bytes() == CONTENT


def html(server, kind):
    page = b"<!DOCTYPE html><html>please log in</html>"
    return lambda handler, content: server.send_file(handler, content, body=page, length="none", kind=kind)


WRONG = {
    "HTML page": (lambda s: html(s, "text/html"), "HTML page instead of the file"),
    "HTML as data": (lambda s: html(s, "application/gzip"), "HTML page instead of the file"),
    "short": (
        lambda s: lambda handler, content: s.send_file(handler, content, status=200, body=b"no", length="none"),
        "connection closed after 2 of 300000 bytes",
    ),
    "another file": (
        lambda s: lambda handler, content: s.send_file(handler, content[::-1]),
        r"SHA-256 \w{64} instead of \w{64}",
    ),
    "404": (lambda s: lambda handler, content: handler.send_error(404), "HTTP 404"),
    "503": (lambda s: lambda handler, content: handler.send_error(503), "HTTP Error 503"),
    "closes at once": (lambda s: lambda handler, content: handler.connection.close(), "RemoteDisconnected|Error"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_is_never_taken_for_good(tmp_path, remote, server, visible, case):
    make, message = WRONG[case]
    file = remote(CONTENT, "/bad")
    server.faults["/bad"] = make(server)
    with pytest.raises(DownloadError, match=message) as caught:
        download(file, tmp_path)
    assert visible(tmp_path) == []
    for part in ("Without a network", "300000 bytes", file.sha256, str(tmp_path / "data.bin"), "/bad"):
        assert part in str(caught.value)
    server.faults.clear()  # and once the server is well again, so is the download
    assert download(file, tmp_path).read_bytes() == CONTENT


def test_trickling_mirror_is_given_up(tmp_path, remote, server, monkeypatch):
    monkeypatch.setattr("maxsep.lab.data.download._MAX_CONNECTIONS", 10)
    file = remote(CONTENT, "/slow", "/good")
    server.faults["/slow"] = cut_after(server, 5)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert ranges(server)[-1] == "bytes=50-", "the good mirror goes on where the slow one stopped"


def test_dead_mirror_is_followed_by_a_good_one(tmp_path, remote):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
        file = remote(CONTENT, "/a")
        file = dataclasses.replace(file, urls=(dead, "ftp://nowhere/a", *file.urls))
        assert download(file, tmp_path).read_bytes() == CONTENT


def test_offline_message_lists_every_mirror(tmp_path):
    file = RemoteFile("x.tar.gz", 5, "0" * 64, ("file:///etc/passwd", "http://127.0.0.1:9/x"))
    with pytest.raises(DownloadError) as caught:
        download(file, tmp_path, timeout=2)
    text = str(caught.value)
    assert "file:///etc/passwd: only http and https" in text
    assert "http://127.0.0.1:9/x: URLError" in text
    assert f"put it at {tmp_path / 'x.tar.gz'}" in text


def test_published_md5_is_checked_too(tmp_path, remote):
    file = dataclasses.replace(remote(CONTENT, "/a"), md5="0" * 32)
    with pytest.raises(DownloadError, match=r"MD5 \w{32} instead of 0{32}"):
        download(file, tmp_path)


def test_full_disk_says_how_much_is_needed(tmp_path, remote, visible):
    def full(done, total):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match=r"No space left on device. data.bin needs 300000 bytes"):
        download(remote(CONTENT, "/a"), tmp_path, progress=full)
    assert visible(tmp_path) == []


HTML = b"<html>Sign in to this network</html>".ljust(len(CONTENT))


@pytest.mark.parametrize("wrong", [b"other" * 60_000, HTML], ids=["another file", "a page"])
def test_a_download_in_vain_removes_the_folders_it_made_and_no_others(tmp_path, remote, server, wrong):
    file = remote(CONTENT, "/a")
    server.files["/a"] = wrong
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "new" / "deep", tmp_path / "mine", tmp_path / "mine" / "new"):
        with pytest.raises(DownloadError):
            download(file, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [".data.bin.lock"]


def test_what_has_arrived_keeps_its_new_folder(tmp_path, remote, server):
    file = remote(CONTENT, "/a")
    server.faults["/a"] = cut_after(server, 100_000)
    with pytest.raises(KeyboardInterrupt):
        download(file, tmp_path / "new", progress=stop)
    assert (tmp_path / "new" / ".data.bin.part").stat().st_size > 0


FETCH = """
import sys
from pathlib import Path
from maxsep.lab.data.download import RemoteFile, download
name, size, sha256, url, folder = sys.argv[1:]
print("ready", flush=True)
print(download(RemoteFile(name, int(size), sha256, (url,)), Path(folder)))
"""


@pytest.fixture
def command(tmp_path, remote):
    """The command that downloads in a process of its own."""
    file = remote(CONTENT, "/a")
    return [sys.executable, "-c", FETCH, file.name, str(file.size), file.sha256, file.urls[0], str(tmp_path)]


def test_two_processes_download_once(tmp_path, command, server, visible):
    both_run, cut = threading.Event(), cut_after(server, 60_000)

    def answer(handler, content):
        both_run.wait(60)
        cut(handler, content)

    server.faults["/a"] = answer
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == [b"ready\n"] * 2
    time.sleep(0.3)  # time enough for a process that does not wait to ask the server too
    both_run.set()
    outputs = [process.communicate(timeout=120)[0].decode().strip() for process in both]
    assert outputs == [str(tmp_path / "data.bin")] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert visible(tmp_path) == ["data.bin"]
    assert len(server.requests) == 5, "the second process waited and fetched nothing"


def test_killed_download_shows_nothing_and_is_continued(tmp_path, command, remote, server, visible):
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
    assert download(remote(CONTENT, "/a"), tmp_path).read_bytes() == CONTENT
    assert visible(tmp_path) == ["data.bin"]
    assert ranges(server)[-1].startswith("bytes="), "what had arrived was kept"
