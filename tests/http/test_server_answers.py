"""Answers are bounded in memory: who does not read holds nobody up."""

import json
import socket
import ssl
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import penstock
from tests.harness.children import ServerChild
from tests.http.serving import make_certificate

MIB = 1 << 20
READERS = 40


def resident(server: ServerChild) -> int:
    """The most memory that the server has had, in MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [line] = [each for each in status.splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) >> 10


def ask(server: ServerChild, path: str, trusted: ssl.SSLContext | None = None) -> bytes:
    with urllib.request.urlopen(server.url + path, context=trusted) as answer:
        body: bytes = answer.read()
        return body


@pytest.mark.parametrize(
    ("kind", "method", "target", "given", "tls"),
    [
        ("", "GET", "/jobs/messages?lease=3600", None, False),
        ("", "GET", "/jobs/messages?lease=3600", None, True),
        ("", "POST", "/-/api/queues/jobs/claim", {"n": 1, "lease": 3600}, False),
        ("", "GET", "/-/api/queues/jobs/messages?limit=1000", None, False),
        pytest.param("folder:", "GET", "/jobs/messages?lease=3600", None, False, marks=pytest.mark.long),
    ],
    ids=["get", "tls", "claim", "messages", "folder"],
)
def test_readers_that_do_not_read_take_no_more_than_their_share(
    tmp_path: Path, kind: str, method: str, target: str, given: object, tls: bool
) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make_certificate(cert, key)
    trusted = ssl.create_default_context(cafile=cert) if tls else None
    options = ("--tls-cert", cert, "--tls-key", key) if tls else ()
    with penstock.open(f"{kind}{tmp_path / 'data'}", sync="never") as store:
        jobs = store.create("jobs")
        for _ in range(READERS):
            jobs.put(b"x" * (8 * MIB))
    with (
        ServerChild(f"{kind}{tmp_path / 'data'}", "--max-buffered", str(32 * MIB), *options) as server,
        ExitStack() as ends,
    ):
        before = resident(server)
        readers = []
        body = b"" if given is None else json.dumps(given).encode()
        for _ in range(READERS):
            reader = ends.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", server.port))
            if trusted is not None:
                reader = ends.enter_context(trusted.wrap_socket(reader, server_hostname="127.0.0.1"))
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            head += f"Accept: application/vnd.penstock.batch\r\nContent-Length: {len(body)}\r\n\r\n"
            reader.sendall(head.encode() + body)
            readers.append(reader)
        for reader in readers:  # each is answered, or was dropped
            with suppress(ConnectionError):
                assert reader.recv(1) in (b"H", b"")
            assert json.loads(ask(server, "/-/healthz", trusted)) == {"status": "ok"}
        assert resident(server) - before < 200, "of 320 MiB that were asked for"
        for reader in readers:
            reader.close()
        assert len(ask(server, "/-/api/queues/jobs/peek", trusted)) > 0
        assert server.stop() == 0
