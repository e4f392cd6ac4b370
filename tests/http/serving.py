"""Servers for the time of a test, single requests to them, and certificates."""

import http.client
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import penstock
from penstock.http.server import RunningServer, serve_in_thread


@contextmanager
def serving(store: penstock.Store, **options: Any) -> Iterator[RunningServer]:
    """A server in a thread, with the options of serve_in_thread()."""
    running = serve_in_thread(store, **options)
    try:
        yield running
    finally:
        running.stop()


def ask(
    url: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, Any, bytes]:
    """Status, headers and body of the answer to a request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():
        time.sleep(0.005)


def make_certificate(cert: str, key: str) -> None:
    """A certificate of localhost that signs itself, and its key, as PEM files."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
