"""Connections alone never stop a store: descriptors are kept for it."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import penstock
from penstock.system import socket_path as place
from tests.harness.children import ServerChild
from tests.http.serving import make_certificate

FEW = ("prlimit", "--nofile=256:256")
GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def ask(port: int, path: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(GET % path)
        return b"".join(iter(lambda: raw.recv(1 << 16), b""))


def make_and_put(worker: socket.socket, number: int) -> None:
    """A new queue with a message: it has a file of its own."""
    worker.sendall(b"PUT /q%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number)
    assert worker.recv(1 << 16).startswith(b"HTTP/1.1 201 ")
    worker.sendall(b"POST /q%d/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na" % number)
    assert worker.recv(1 << 16).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize("kind", ["", "slate:", "text:", "folder:"])
def test_idle_connections_leave_the_store_its_descriptors(tmp_path: Path, kind: str) -> None:
    with ServerChild(f"{kind}{tmp_path / 'data'}", prefix=FEW) as server, ExitStack() as idle:
        worker = idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        answered = [idle.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(400)]
        turned_away = 0
        for number in range(20):
            make_and_put(worker, number)
        for each in answered:
            each.setblocking(False)
            with suppress(BlockingIOError):
                turned_away += each.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        assert 0 < turned_away < 400
        for each in answered:
            each.close()
        while not (said := ask(server.port, b"-/readyz")).startswith(b"HTTP/1.1 200 "):
            assert said.startswith(b"HTTP/1.1 503 ")  # until the others are known to be gone
        assert server.stop() == 0
    assert server.errors.read_text() == ""
    with penstock.open(f"{kind}{tmp_path / 'data'}") as store:
        assert sum(info.counts["available"] for info in store.queues()) == 20


def test_handshakes_that_never_end_leave_the_store_its_descriptors(tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make_certificate(cert, key)
    tls = ("--tls-cert", cert, "--tls-key", key)
    with ServerChild(tmp_path / "data", *tls, prefix=FEW) as server, ExitStack() as silent:
        with penstock.open(f"https://localhost:{server.port}", ca=cert) as store:
            jobs = store.create("jobs")
            for _ in range(400):  # which say nothing
                silent.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for number in range(20):
                jobs.put(b"a")
                store.create(f"q{number}").put(b"b")
            assert jobs.count() == 20
        assert server.stop() == 0
    assert server.errors.read_text() == ""


def test_connections_that_were_idle_longest_end_when_the_store_needs_their_descriptors(tmp_path: Path) -> None:
    with ServerChild(tmp_path / "data", prefix=FEW) as server, ExitStack() as idle:
        longest = idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        worker = idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        for _ in range(400):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        for number in range(160):  # more than are kept
            if number == 80:
                assert longest.recv(1) == b""
            make_and_put(worker, number)
        assert server.stop() == 0
    assert server.errors.read_text() == ""


def test_a_store_that_has_taken_nearly_all_descriptors_is_still_served(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data", sync="never") as store:
        for number in range(150):
            store.create(f"q{number}").put(b"a")
    with ServerChild(tmp_path / "data", prefix=FEW) as server, ExitStack() as idle:
        with penstock.open(server.url) as served:
            for _ in range(400):
                idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for number in range(20):
                served.create(f"new{number}").put(b"a")
            assert len(served.queues()) == 171  # with the default one
        assert server.stop() == 0
    assert server.errors.read_text() == ""


def test_long_polls_at_a_server_that_asks_the_owner_leave_both_their_descriptors(tmp_path: Path) -> None:
    few = ("prlimit", "--nofile=512:512")
    with penstock.open(tmp_path / "data") as owner, ExitStack() as waiting:
        jobs = owner.create("jobs")
        with ServerChild(tmp_path / "data", prefix=few) as server:
            with penstock.open(server.url) as served:
                for _ in range(400):  # each is there twice: here, and at the owner
                    poll = waiting.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    with suppress(ConnectionError):  # of those that are told to come back later
                        poll.sendall(b"GET /default/messages?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                for _ in range(20):
                    served.queue("jobs").put(b"a")
            assert jobs.count() == 20
            assert server.stop() == 0
        assert server.errors.read_text() == ""


def test_guests_that_only_connect_leave_the_owner_its_descriptors(tmp_path: Path) -> None:
    data = tmp_path / "data"
    script = (
        "import penstock, sys\n"
        f"with penstock.open({str(data)!r}) as store:\n"
        "  print(flush=True)\n"
        "  sys.stdin.readline()\n"
        "  for number in range(30): store.create(f'q{number}').put(b'a')\n"
        "  print(sum(info.counts['available'] for info in store.queues()), flush=True)\n"
    )
    owner = subprocess.Popen(
        [*FEW, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner, ExitStack() as idle:
        owner.stdout.readline()
        with penstock.open(data) as guest:
            guest.queue().put(b"a")
            share = os.path.relpath(data / ".penstock" / "share")
            for _ in range(400):
                idle.enter_context(place.connect(share, 60))
            guest.queue().put(b"a")
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.read() == "32\n"
    assert owner.returncode == 0
