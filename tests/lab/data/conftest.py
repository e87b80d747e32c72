"""Tiny official datasets, and a web server that misbehaves on demand."""

import hashlib
import http.server
import threading

import pytest

from maxsep.lab.data.download import RemoteFile


@pytest.fixture
def write_cifar(tiny_cifar):
    """Write a tiny CIFAR of one image per class in each of its files, and return its folder."""

    def write(root, name="cifar10"):
        root.mkdir(parents=True, exist_ok=True)
        tiny_cifar(root, name, images=10 if name == "cifar10" else 100)
        return root / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")

    return write


class Server:
    """Serves files on 127.0.0.1; `faults` maps a path to the function that answers in the usual one's place."""

    def __init__(self):
        self.files, self.faults, self.requests = {}, {}, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append((self.path, self.headers.get("Range")))
                outer.faults.get(self.path, send_file)(self, outer.files.get(self.path))

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def publish(self, content, *paths, name="data.bin"):
        """Put bytes under some paths, and describe them as a RemoteFile."""
        self.files |= dict.fromkeys(paths, content)
        return RemoteFile(name, len(content), hashlib.sha256(content).hexdigest(), tuple(map(self.url, paths)))

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send_file(handler, content, *, most=None, ranges=True):
    """Answer, ranges included; close the connection after `most` bytes, while promising all of them."""
    if content is None:
        handler.send_error(404)
        return
    span = handler.headers.get("Range") if ranges else None
    start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Length", str(len(content) - start))
    handler.end_headers()
    handler.wfile.write(content[start : len(content) if most is None else start + most])


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("maxsep.lab.data.download._PAUSE", 0.0)


@pytest.fixture
def server():
    server = Server()
    server.send_file = send_file
    yield server
    server.stop()
