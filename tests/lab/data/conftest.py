"""Tiny datasets in the official formats, and a web server that misbehaves on demand."""

import hashlib
import http.server
import pickle
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from maxsep.lab.data.download import RemoteFile

FORMS = {
    "cifar10": (
        "labels",
        "label_names",
        "cifar-10-batches-py",
        "batches.meta",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        10,
    ),
    "cifar100": ("fine_labels", "fine_label_names", "cifar-100-python", "meta", ("train", "test"), 100),
}


class Python2:
    """Writes pickles as Python 2 did: protocol 2, byte strings for all text, numpy.core for arrays."""

    def __init__(self):
        self.memo = 0

    def put(self):
        self.memo += 1
        return b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo)

    def dumps(self, value):
        return b"\x80\x02" + self.item(value) + b"."

    def item(self, value):
        if isinstance(value, dict):
            start = b"}" + self.put() + b"("
            return start + b"".join(self.item(k) + self.item(v) for k, v in value.items()) + b"u"
        if isinstance(value, list):
            return b"]" + self.put() + b"(" + b"".join(self.item(v) for v in value) + b"e"
        if isinstance(value, str):
            raw = value.encode()
            return b"U" + bytes([len(raw)]) + raw + self.put()
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        return self.array(value)

    def array(self, value):
        raw = np.ascontiguousarray(value).tobytes()
        shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in value.shape) + b"t"
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + self.put()
        return made + b"(K\x01" + shape + dtype + b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"


@pytest.fixture(scope="session")
def python2_pickle():
    return lambda value: Python2().dumps(value)


@pytest.fixture
def cifar_batch():
    """A batch of n images whose first pixel is its number, labels counting round."""

    def make(name, n, start=0, **changes):
        key, *_, classes = FORMS[name]
        data = np.random.default_rng(start).integers(0, 256, (n, 3072)).astype(np.uint8)
        data[:, 0] = np.arange(start, start + n) % 256
        labels = [(start + i) % classes for i in range(n)]
        return {"batch_label": "a batch", key: labels, "data": data} | changes

    return make


@pytest.fixture
def write_cifar(cifar_batch, python2_pickle):
    """Write a whole tiny cifar10 or cifar100 below a folder, as Python 2 or Python 3 would."""

    def write(root, name="cifar10", writer="python3"):
        dumps = python2_pickle if writer == "python2" else lambda value: pickle.dumps(value, protocol=2)
        _, names, folder, meta, parts, classes = FORMS[name]
        folder = root / folder
        folder.mkdir(parents=True)
        for number, part in enumerate(parts):
            n = classes if name == "cifar10" or part == "test" else 5 * classes
            (folder / part).write_bytes(dumps(cifar_batch(name, n, start=n * number)))
        (folder / meta).write_bytes(dumps({names: [f"class {i}" for i in range(classes)]}))
        return folder

    return write


class Server:
    """Serves files on 127.0.0.1; `faults` maps a path to the function that answers in the usual one's place."""

    def __init__(self):
        self.files, self.faults, self.requests = {}, {}, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append((self.path, self.headers.get("Range")))
                answer = outer.faults.get(self.path, send_file)
                answer(self, outer.files.get(self.path))

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send_file(handler, content, *, status=None, length=None, body=None, kind="application/octet-stream"):
    """Answer honestly, ranges included; the keywords tell lies."""
    if content is None and body is None:
        handler.send_error(404)
        return
    start = 0
    if status is None and (span := handler.headers.get("Range")):
        start = int(span.removeprefix("bytes=").rstrip("-"))
    body = content[start:] if body is None else body
    handler.send_response(status or (206 if start else 200))
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    if length != "none":
        handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.send_header("Content-Type", kind)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("maxsep.lab.data.download._PAUSE", 0.0)


@pytest.fixture
def server():
    server = Server()
    server.send_file = send_file
    yield server
    server.stop()


@pytest.fixture
def remote(server):
    """Publish bytes on the server under some paths, and describe them as a RemoteFile."""

    def publish(content, *paths, name="data.bin"):
        for path in paths:
            server.files[path] = content
        urls = tuple(server.url(path) for path in paths)
        return RemoteFile(name, len(content), hashlib.sha256(content).hexdigest(), urls)

    return publish


@pytest.fixture
def visible():
    """The names in a folder that a user or a reader would take for data."""
    return lambda folder: sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith("."))
