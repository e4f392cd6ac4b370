"""The connections of clients: kept, shared, discarded, ended; never mixed up."""

import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import StoreClosed, StoreUnreachable
from penstock.http.client import connection as pools
from penstock.http.client import failures
from penstock.http.client.backend import RemoteBackend
from penstock.http.client.calls import AnswerReader
from penstock.http.client.failures import Garbage
from penstock.wire import frames
from tests.http.serving import make_certificate
from tests.scripted import (
    CLAIMED,
    COUNT,
    PUT,
    QUEUE,
    Act,
    Conversation,
    ScriptedServer,
    answer,
    close,
    queue_at,
    scripted,
    silence,
    talking_to,
    then_close,
)


def test_one_connection_serves_one_request_after_the_other(client: str) -> None:
    with scripted(PUT) as server, talking_to(server, client) as queue:
        assert [queue.put(b"a") for _ in range(20)] == ["7"] * 20
        assert server.connections == 1
        assert len(server.requests) == 20


def test_a_connection_that_the_server_has_closed_is_not_used_again(client: str) -> None:
    with scripted(PUT) as server, talking_to(server, client) as queue:
        for _ in range(3):
            queue.put(b"a")
            server.hang_up()
        assert (len(server.requests), server.connections) == (3, 3)


def test_a_connection_on_which_the_server_spoke_out_of_turn_is_not_used_again(client: str) -> None:
    with scripted(PUT) as server, talking_to(server, client) as queue:
        queue.put(b"a")
        server.say(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        time.sleep(0.05)
        assert queue.put(b"a") == "7"
        assert server.connections == 2


def test_a_server_may_want_each_connection_to_end(client: str) -> None:
    act = answer(status="201 Created", headers="X-Message-Id: 7\r\nConnection: close\r\n")
    with scripted(act) as server, talking_to(server, client) as queue:
        queue.put(b"a")
        queue.put(b"a")
        assert server.connections == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(PUT) as server, talking_to(server) as queue:
        queue.put(b"a")
        queue.put(b"a")
        assert server.connections == 1
        monkeypatch.setattr(pools, "MAX_IDLE_SECONDS", 0.05)
        time.sleep(0.06)
        queue.put(b"a")
        assert server.connections == 2


def test_threads_share_connections_but_never_at_the_same_time(client: str) -> None:
    with scripted(QUEUE) as server, talking_to(server, client) as queue, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: queue.count(), range(400))) == [3] * 400
        assert server.connections <= 8


def test_no_more_connections_are_kept_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_IDLE", 2)
    together = threading.Barrier(6)

    def wait_for_all(conversation: Conversation) -> None:
        together.wait()
        conversation.socket.sendall(QUEUE)

    with (
        scripted(*[wait_for_all] * 6, QUEUE) as server,
        talking_to(server) as queue,
        ThreadPoolExecutor(6) as threads,
    ):
        list(threads.map(lambda _: queue.count(), range(6)))
        backend = queue._store.backend
        assert isinstance(backend, RemoteBackend)
        assert len(backend.pool._idle) == 2


def test_an_answer_may_come_in_any_pieces(client: str) -> None:
    def drop_by_drop(conversation: Conversation) -> None:
        for at in range(len(CLAIMED)):
            conversation.socket.sendall(CLAIMED[at : at + 1])

    with scripted(drop_by_drop) as server, talking_to(server, client) as queue:
        conversations = [queue.claim()[0].payload for _ in range(2)]
        assert conversations == [b"hello"] * 2
        assert server.connections == 1


def test_an_answer_may_be_chunked_and_announced(client: str) -> None:
    frame = CLAIMED.partition(b"\r\n\r\n")[2]
    chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(piece), piece) for piece in (frame[:7], frame[7:]))
    act = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: y\r\n\r\n"
    )
    with scripted(act) as server, talking_to(server, client) as queue:
        for _ in range(2):
            assert [message.payload for message in queue.claim()] == [b"hello"]
        assert server.connections == 1


def test_an_answer_without_an_end_is_not_trusted(client: str) -> None:
    with scripted(then_close(b"HTTP/1.1 200 OK\r\n\r\n{}"), COUNT) as server, talking_to(server, client) as queue:
        with pytest.raises(StoreUnreachable, match="closed in the middle of the answer"):
            queue.purge()
        assert queue.purge() == 3


def test_closing_ends_what_waits_for_an_answer(client: str) -> None:
    with scripted(silence) as server, talking_to(server, client) as queue, ThreadPoolExecutor(3) as threads:
        waiting: list[Future[Any]] = [
            threads.submit(queue.put, b"a"),
            threads.submit(queue.counts),
            threads.submit(queue.claim, wait=1_000_000),
        ]
        while len(server.requests) < 3:
            time.sleep(0.001)
        queue._store.close()
        for each in waiting:
            with pytest.raises(StoreClosed, match="was closed: open it again"):
                each.result()
        with pytest.raises(StoreClosed):
            queue.counts()


def test_closing_ends_what_waits_to_try_again(client: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def pause_for_days(self: failures.Patience, failure: failures.Failure) -> float:
        failed.set()
        return 1_000_000

    monkeypatch.setattr(failures.Patience, "pause", pause_for_days)
    with queue_at(f"http://127.0.0.1:{port}", client) as queue, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.counts)
        failed.wait()
        queue._store.close()
        with pytest.raises(StoreClosed):
            waiting.result()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests were started in the background and it was ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_request_leaves_no_answer_behind_for_the_next_one() -> None:
    interrupted = threading.Event()

    def interrupt(conversation: Conversation) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait(5)
        conversation.socket.sendall(answer(b'{"count": 1}'))

    with scripted(interrupt, COUNT) as server, talking_to(server) as queue:
        with pytest.raises(KeyboardInterrupt):
            queue.purge()
        interrupted.set()
        assert queue.purge() == 3


# In secret


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    make_certificate(f"{file}.crt", str(file))
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


@contextmanager
def speaking_tls(certificate: Path, *acts: Act) -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with scripted(*acts, wrap=lambda connected: context.wrap_socket(connected, server_side=True)) as server:
        server.url = f"https://localhost:{server.port}"
        yield server


def test_tls_works_and_its_connections_are_kept(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    payload = os.urandom(4 << 20)
    frame = frames.message_parts([penstock.Message("7", "jobs", payload, {}, 0, 1, 1, 1, None, 1, "done")])
    with speaking_tls(certificate, PUT, answer(b"".join(frame))) as server, talking_to(server, client) as queue:
        assert queue.put(payload) == "7"
        assert server.requests[0].endswith(payload)
        assert [queue.claim()[0].payload for _ in range(3)] == [payload] * 3
        assert server.connections == 1


def test_tls_failures_are_as_any_other(certificate: Path, monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with (
        speaking_tls(certificate, close, QUEUE) as server,
        talking_to(server, client) as queue,
    ):
        assert queue.count() == 3
        server.hang_up()
        assert queue.count() == 3
    error = pytest.raises(StoreUnreachable, match="it takes too long")
    with speaking_tls(certificate, silence) as server, talking_to(server, client, timeout=0.1) as queue, error:
        queue.put(b"a")


def test_who_cannot_be_trusted_is_not_talked_to(certificate: Path) -> None:
    with speaking_tls(certificate, QUEUE) as server:
        with pytest.raises(StoreUnreachable, match="is not trusted: self-signed certificate"):
            penstock.open(server.url)
        assert server.requests == []


_ADDED = b"HTTP/1.1 201 Created\r\nDate: now\r\nX-Message-Id: 17\r\nContent-Length: 0\r\n\r\n"
_FILLED = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "said",
    [
        _ADDED,
        _ADDED.replace(b"Content-Length", b"Connection: close\r\nContent-Length"),
        _ADDED.replace(b"Length: 0", b"Length: 2") + b"ok",
        _FILLED,
        _FILLED.replace(b"Content-Length", b"Connection: close\r\nContent-Length"),
        _FILLED.replace(b"Length: 2", b"Length: 0")[:-2],
        b"HTTP/1.1 204 No Content\r\nDate: now\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nDate: now\r\nConnection: close\r\n\r\n",
    ],
)
def test_an_answer_says_the_same_in_one_piece_and_byte_by_byte(said: bytes) -> None:
    at_once = AnswerReader().feed(said)
    reader = AnswerReader()
    *pieces, last = [reader.feed(bytes([byte])) for byte in said]
    assert set(pieces) == {None}
    assert at_once is not None
    assert last is not None
    assert at_once.headers.get(b"x-message-id") == last.headers.get(b"x-message-id")
    assert (at_once.status, at_once.body, at_once.keep_alive) == (last.status, last.body, last.keep_alive)


@pytest.mark.parametrize("whole", [_ADDED, _FILLED])
def test_answers_follow_one_another_however_they_come(whole: bytes) -> None:
    reader = AnswerReader()
    for at in range(1, len(whole)):
        assert reader.feed(whole) is not None
        assert reader.feed(whole[:at]) is None
        read = reader.feed(whole[at:])
        assert read is not None
        assert (read.headers.get(b"x-message-id"), read.body) in [(b"17", b""), (None, b"{}")]


@pytest.mark.parametrize("whole", [_ADDED, _FILLED])
def test_an_answer_with_another_behind_it_is_garbage(whole: bytes) -> None:
    with pytest.raises(Garbage, match="more than it was asked"):
        AnswerReader().feed(2 * whole)
