"""Stores over HTTP: where they are, what is sent to them, and what is made of the answers."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock import InvalidArgument, StoreUnreachable
from penstock.contract.operations import PAGE, Messages, Peek
from penstock.http.client import address, tls
from penstock.http.server import serve_in_thread
from penstock.wire import frames, jsons
from tests.scripted import (
    CLAIMED,
    NOTHING,
    PUT,
    QUEUE,
    SETTLED,
    Conversation,
    HurriedClock,
    answer,
    problem,
    scripted,
    silence,
    talking_to,
)

# Addresses


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://localhost:8390", "localhost", 8390, "localhost:8390"),
        ("http://localhost:8390/", "localhost", 8390, "localhost:8390"),
        ("HTTP://Queue.Example", "queue.example", 80, "queue.example:80"),
        ("http://[::1]:8390", "::1", 8390, "[::1]:8390"),
        ("https://queue.example", "queue.example", 443, "queue.example:443"),
    ],
)
def test_a_url_says_where_the_server_is(url: str, host: str, port: int, authority: str) -> None:
    parsed = address.parse(url)
    assert (parsed.host, parsed.port, parsed.authority) == (host, port, authority)
    assert (parsed.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://", "names no host"),
        ("http://:8390", "names no host"),
        ("http:localhost", "names no host"),
        ("http://localhost:port", "cannot be read: .*; give http://host:port"),
        ("http://localhost:99999", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("http://local host", "has spaces"),
        ("http://localhost\r\nX: y", "has spaces"),
        ("http://größe.example", "letters that no URL has"),
        ("http://localhost:1/prefix", "goes on after host and port.*give http://localhost:1$"),
        ("http://localhost:1/?a=b", "goes on after host and port"),
        ("http://localhost:1#a", "goes on after host and port"),
    ],
)
def test_a_url_that_says_something_else_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        penstock.open(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgument, match="a server asks for tokens: give http://localhost") as raised:
        penstock.open("http://me:secret@localhost:1")
    assert "secret" not in str(raised.value)


def test_what_the_server_decides_cannot_be_asked_for() -> None:
    with pytest.raises(InvalidArgument, match="sync='never': that is for the server to say"):
        penstock.open("http://localhost:1", sync="never")
    with pytest.raises(InvalidArgument, match=r"dialect='2\.x': that is for the server to say"):
        penstock.open("http://localhost:1", dialect="2.x")


@pytest.mark.parametrize(("timeout", "kind"), [(0, InvalidArgument), (-1, InvalidArgument), ("1", TypeError)])
def test_a_timeout_is_a_number_of_seconds(timeout: float, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="timeout"):
        penstock.open("http://localhost:1", timeout=timeout)


# Opening


def test_opening_a_store_whose_server_is_not_there_fails_at_once(port: int) -> None:
    clock = HurriedClock()
    with pytest.raises(
        StoreUnreachable, match=r"cannot be reached: Connection refused\. Nothing was done"
    ) as raised:
        penstock.open(f"http://127.0.0.1:{port}", clock=clock)
    assert clock.monotonic() == 0
    assert isinstance(raised.value, ConnectionError)
    assert "penstock serve" in str(raised.value)


def test_a_host_that_nobody_knows_cannot_be_reached() -> None:
    for host in ("nobody.invalid", "a" * 300, "a..b"):
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            penstock.open(f"http://{host}:1")


def test_opening_asks_the_server_once() -> None:
    with scripted(QUEUE) as server, penstock.open(server.url) as store:
        assert store.url == server.url
        [request] = server.requests
        assert request.startswith(b"GET /-/api/queues/default HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize(
    "act",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * 10_000,
        answer(b"<html>It works!</html>"),
        answer(b"<html>Not found</html>", "404 Not Found"),
        answer(b"", "302 Found", "Location: http://elsewhere\r\n"),
        answer(b"[]"),
        answer(b"{}"),
        answer(b'{"name": "a", "settings": {"max_size": "x"}, "counts": {}}'),
        QUEUE + QUEUE,
    ],
    ids=lambda act: act[:60].decode("ascii", "replace"),
)
def test_what_is_no_penstock_server_is_found_out(act: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_SECONDS", 0.1)  # the script never answers the handshake that is tried then
    with scripted(act) as server, pytest.raises(StoreUnreachable, match="did not answer: "):
        penstock.open(server.url)
    assert len(server.requests) == 1


def test_a_server_may_say_more_than_we_know() -> None:
    body = jsons.dumps(
        {"name": "default", "settings": {"max_size": 3, "colour": 1}, "counts": {"available": 1}, "more": []}
    )
    with scripted(answer(body)) as server, talking_to(server) as queue:
        assert queue.settings.max_size == 3


# What is sent


def test_a_plain_message_goes_the_short_way() -> None:
    with scripted(PUT) as server, talking_to(server) as queue:
        queue.put(b"\x00\xff")
        queue.put(b"", priority=-3)
        first, second = server.requests
        assert first.startswith(b"POST /jobs/messages HTTP/1.1\r\n")
        assert first.endswith(b"Content-Length: 2\r\n\r\n\x00\xff")
        assert b"X-Message-Priority: -3\r\nContent-Length: 0\r\n\r\n" in second


@pytest.mark.parametrize(("name", "path"), [("a/b", b"a%2Fb"), ("..", b"%2E%2E"), ("a?b#c%", b"a%3Fb%23c%25")])
def test_a_name_is_one_segment_of_the_path(name: str, path: bytes) -> None:
    with scripted(PUT, QUEUE) as server, talking_to(server) as queue:
        queue.name = name
        queue.put(b"a")
        queue.counts()
        assert server.requests[0].startswith(b"POST /%b/messages HTTP/1.1" % path)
        assert server.requests[1].startswith(b"GET /-/api/queues/%b HTTP/1.1" % path)


def test_a_batch_that_no_server_takes_is_not_sent() -> None:
    with scripted(PUT) as server, talking_to(server) as queue:
        with pytest.raises(InvalidArgument, match=r"100,001 messages .* put them in several"):
            queue.put_many([b""] * 100_001)
        with pytest.raises(InvalidArgument, match="at most 100,000 messages and 67,108,864 bytes"):
            queue.put_many([bytes(16 << 20)] * 4)
        assert server.requests == []


def test_a_listing_goes_page_by_page_as_far_as_it_is_read() -> None:
    with scripted(CLAIMED, CLAIMED, NOTHING) as server, talking_to(server) as queue:
        listing = queue._store.run(Messages("jobs", PAGE, state="failed"))
        assert next(listing).id == next(listing).id == "7"
        assert len(server.requests) == 2
        assert list(listing) == []
        targets = [request.split(b" ")[1].partition(b"?")[2] for request in server.requests]
        assert targets[0] == b"limit=1000&state=failed"
        assert targets[1] == targets[2] == b"limit=1000&state=failed&after=7"


def test_a_peek_asks_for_no_more_than_is_wanted() -> None:
    with scripted(CLAIMED, CLAIMED, NOTHING) as server, talking_to(server) as queue:
        peeked = queue._store.run(Peek("jobs", 2))
        assert len(list(peeked)) == 2
        targets = [request.split(b" ")[1].partition(b"?")[2] for request in server.requests]
        assert targets == [b"n=2&skip=0", b"n=1&skip=1"]
        assert b"Accept: " + frames.MEDIA_TYPE.encode() in server.requests[0]


# Waiting


def test_a_long_wait_is_several_shorter_ones() -> None:
    clock = penstock.SimulatedClock()

    def nothing_yet(conversation: Conversation) -> None:
        clock.advance(30)
        conversation.socket.sendall(NOTHING)

    for take in ("claim", "pop"):
        with scripted(nothing_yet) as server, talking_to(server, clock=clock) as queue:
            assert not getattr(queue, take)(wait=70)
            bodies = [jsons.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
            assert [body["wait"] for body in bodies] == [30, 30, 10]
        with scripted(nothing_yet, nothing_yet, CLAIMED) as server, talking_to(server, clock=clock) as queue:
            assert getattr(queue, take)(wait=1_000_000)
            assert len(server.requests) == 3


def test_an_earlier_server_that_knows_no_acks_in_claims_gets_two_requests(client: str) -> None:
    refusal = problem(400, "InvalidArgument", "this request has no 'ack'; it has consumer, lease, n, wait")
    acts = refusal, SETTLED, CLAIMED, SETTLED, NOTHING
    with scripted(*acts) as server, talking_to(server, client) as queue:
        [message] = queue.claim(ack="6.ff")
        assert queue.claim(ack=message) == []
        targets = [request.split(b" ", 2)[1].rpartition(b"/")[2] for request in server.requests]
        assert targets == [b"claim", b"ack", b"claim", b"ack", b"claim"]  # it is not asked that way again


def test_a_claim_that_is_wrong_beside_its_acks_is_refused() -> None:
    refusal = problem(400, "InvalidArgument", "lease")
    with scripted(refusal, SETTLED, refusal) as server, talking_to(server) as queue:
        with pytest.raises(InvalidArgument):
            queue.claim(ack="6.ff")
        assert len(server.requests) == 3


def test_a_timeout_begins_after_the_wait() -> None:
    def late(conversation: Conversation) -> None:
        time.sleep(0.2)
        conversation.socket.sendall(CLAIMED)

    with scripted(late, silence) as server, talking_to(server, timeout=0.1) as queue:
        assert queue.claim(wait=30)
        with pytest.raises(StoreUnreachable, match="it takes too long"):
            queue.claim()


# With a real server


def test_a_restart_of_the_server_goes_unnoticed(tmp_path: Path, port: int) -> None:
    with penstock.open(tmp_path) as kept:
        server = serve_in_thread(kept, port=port)
        with penstock.open(server.url) as store, ThreadPoolExecutor(2) as threads:
            jobs, other = store.create("jobs"), store.create("other")
            jobs.put(b"before")
            waiting = threads.submit(other.claim, wait=60)
            server.stop()
            putting = threads.submit(jobs.put, b"meanwhile")
            time.sleep(0.2)
            assert not waiting.done()
            server = serve_in_thread(kept, port=port)
            putting.result()
            assert [message.payload for message in jobs.claim(5)] == [b"before", b"meanwhile"]
            other.put(b"for the one who waits")
            assert len(waiting.result()) == 1
        server.stop()


def test_ipv6_works_where_there_is_any() -> None:
    with penstock.open("memory:") as kept:
        try:
            server = serve_in_thread(kept, host="::1")
        except OSError:
            pytest.skip("this machine has no IPv6")
        with penstock.open(server.url) as store:
            assert store.queue().put(b"a") == "1"
        server.stop()


FORK = """
import os, sys, penstock
with penstock.open(sys.argv[1]) as store:
    queue = store.queue()
    queue.put(b"before")
    child = os.fork()
    for number in range(200):
        queue.put(f"{'parent' if child else 'child'} {number}")
    if child:
        assert os.waitpid(child, 0)[1] == 0
        queue.put(b"after")
"""


def test_a_fork_shares_no_connection() -> None:
    with penstock.open("memory:") as kept:
        server = serve_in_thread(kept)
        subprocess.run([sys.executable, "-W", "error", "-c", FORK, server.url], check=True)
        server.stop()
        payloads = [message.payload for message in kept.queue().messages()]
        assert len(payloads) == len(set(payloads)) == 402
