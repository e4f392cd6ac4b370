"""A real S3 server on this machine, and stores in its buckets."""

import atexit
import functools
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import penstock


class S3:
    """A real S3 server, on this machine: moto's, in a process of its own."""

    def __init__(self) -> None:
        reserved = socket.socket()  # bound as long as this process lives, so that nobody else gets the port
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self.port = reserved.getsockname()[1]
        reserved.detach()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            assert self._process.poll() is None
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def stop(self) -> None:
        assert self._process is not None
        self.resume()
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Answer nobody until resume(), as if the network were gone; what is stored stays."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def variables(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def new_bucket(self) -> str:
        name = f"bucket-{uuid4().hex[:12]}"
        made = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        urllib.request.urlopen(made).close()
        return name


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@functools.cache
def the_server() -> tuple[S3, str]:
    """One server for all tests of this process, and a bucket there."""
    server = S3()
    atexit.register(server.stop)
    return server, server.new_bucket()


def open_slate_bucket(folder: Path, clock: penstock.Clock) -> penstock.Store:
    """A store that belongs to a folder, as far as tests are concerned."""
    server, bucket = the_server()
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    with environment(server.variables()):
        return penstock.open(f"slate:s3://{bucket}/{name}", clock=clock)
