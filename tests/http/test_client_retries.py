"""What clients try again, and what they never do."""

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock import PenstockError, Queue, StoreClosed, StoreUnreachable
from penstock.http.client import failures
from tests.scripted import (
    CLAIMED,
    COUNT,
    NOTHING,
    PUT,
    QUEUE,
    SETTLED,
    Act,
    Conversation,
    HurriedClock,
    answer,
    close,
    problem,
    queue_at,
    reset,
    scripted,
    silence,
    talking_to,
    then_close,
)

READS: dict[str, tuple[Callable[[Queue], object], bytes]] = {
    "counts": (lambda queue: queue.counts(), QUEUE),
    "settings": (lambda queue: queue.settings, QUEUE),
    "attempts": (lambda queue: queue.attempts("7"), answer(b'{"attempts": []}')),
    "queues": (lambda queue: queue._store.queues(), answer(b'{"queues": []}')),
}
REPEATABLE: dict[str, tuple[Callable[[Queue], object], bytes]] = READS | {
    "claim": (lambda queue: queue.claim(), CLAIMED),
    "claim with acks": (lambda queue: queue.claim(ack="6.ff"), CLAIMED),
    "ack": (lambda queue: queue.ack("7.ff"), SETTLED),
    "fail": (lambda queue: queue.fail("7.ff"), SETTLED),
    "release": (lambda queue: queue.release("7.ff"), SETTLED),
    "extend": (lambda queue: queue.extend("7.ff"), answer(b'{"lease_until": 3, "lost": []}')),
    "put with a key": (lambda queue: queue.put(b"a", key="k"), answer(b'{"ids": ["7"]}')),
}
ONCE: dict[str, tuple[Callable[[Queue], object], bytes]] = {
    "put": (lambda queue: queue.put(b"a"), PUT),
    "put with headers": (lambda queue: queue.put(b"a", headers={"a": "b"}), answer(b'{"ids": ["7"]}')),
    "put_many": (lambda queue: queue.put_many([b"a", b"b"]), answer(b'{"ids": ["7", "8"]}')),
    "pop": (lambda queue: queue.pop(), NOTHING),
    "publish": (lambda queue: queue._store.publish(b"a"), answer(b'{"id": "x"}')),
    "remove": (lambda queue: queue.remove("7"), COUNT),
    "revoke": (lambda queue: queue.revoke("7"), COUNT),
    "redrive": (lambda queue: queue.redrive(), COUNT),
    "purge": (lambda queue: queue.purge(), COUNT),
    "create": (lambda queue: queue._store.create("more"), answer(b"{}", "201 Created")),
    "delete": (lambda queue: queue._store.delete("jobs"), SETTLED),
}
EVERYTHING = REPEATABLE | ONCE
LOSSES: dict[str, Act] = {
    "closed before the answer": close,
    "reset before the answer": reset,
    "closed in the middle of the head": then_close(PUT[:20]),
    "closed in the middle of the body": then_close(answer(b"x" * 100)[:-50]),
}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again takes no time."""
    monkeypatch.setattr(failures, "_FIRST", 0.001)
    monkeypatch.setattr(failures, "_LONGEST", 0.002)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", REPEATABLE)
def test_what_does_no_harm_is_tried_again_when_its_answer_is_lost(name: str, loss: str, client: str) -> None:
    call, good = REPEATABLE[name]
    with scripted(LOSSES[loss], LOSSES[loss], good) as server, talking_to(server, client) as queue:
        call(queue)
        assert len(server.requests) == 3
        assert len(set(server.requests)) == 1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ONCE)
def test_what_could_happen_twice_is_never_tried_again_when_its_answer_is_lost(
    name: str, loss: str, client: str
) -> None:
    call, good = ONCE[name]
    with scripted(LOSSES[loss], good) as server, talking_to(server, client) as queue:
        with pytest.raises(StoreUnreachable, match="may have happened: look before you try again"):
            call(queue)
        assert len(server.requests) == 1
        call(queue)


@pytest.mark.parametrize("name", EVERYTHING)
def test_everything_is_tried_again_while_nobody_is_reached(
    name: str, client: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, there = threading.Event(), threading.Event()
    pause = failures.Patience.pause

    def pause_until_there(self: failures.Patience, failure: failures.Failure) -> float:
        failed.set()
        there.wait()
        return pause(self, failure)

    monkeypatch.setattr(failures.Patience, "pause", pause_until_there)
    call, good = EVERYTHING[name]
    with queue_at(f"http://127.0.0.1:{port}", client) as queue, ThreadPoolExecutor(1) as threads:
        trying = threads.submit(call, queue)
        failed.wait()
        with scripted(good, port=port) as server:
            there.set()
            trying.result()
            assert len(server.requests) == 1


@pytest.mark.parametrize("act", [NOTHING, close], ids=["nobody there", "no answer"])
def test_trying_again_ends_after_ten_seconds(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    clock = HurriedClock()
    with scripted(act) as server, talking_to(server, clock=clock) as queue:
        if act is NOTHING:
            server.stop()
        with pytest.raises(StoreUnreachable, match="Nothing was done" if act is NOTHING else "does no harm"):
            queue.counts()
        assert 4 < clock.monotonic() <= 10
        assert len(server.requests) in (range(1) if act is NOTHING else range(5, 10))


def test_each_pause_is_longer_than_the_one_before_and_no_two_clients_come_back_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    clients = [failures.Patience("http://a", "put", False, HurriedClock()) for _ in range(10)]
    pauses = [[client.pause(failures.NotSent("x")) for _ in range(5)] for client in clients]
    assert len({tuple(each) for each in pauses}) == 10
    for each in pauses:
        assert 0.05 <= each[0] <= each[2] <= each[4] <= 2


def test_what_may_have_happened_at_first_may_have_happened_in_the_end(client: str) -> None:
    def stop(conversation: Conversation) -> None:
        server._listening.shutdown(socket.SHUT_RDWR)
        server._listening.close()
        conversation.close()

    with (
        scripted(stop) as server,
        talking_to(server, client) as queue,
        pytest.raises(StoreUnreachable, match=r"refused. The ack may have happened: trying again does no harm"),
    ):
        queue.ack("7.ff")


def test_a_request_that_the_server_never_had_whole_is_sent_again(client: str) -> None:
    def accept_little(connected: socket.socket) -> socket.socket:
        if not refused:
            refused.append(connected.recv(100))
            Conversation(connected).reset()
        return connected

    refused: list[bytes] = []
    payload = os.urandom(16 << 20)
    with scripted(PUT, wrap=accept_little) as server, talking_to(server, client, timeout=30) as queue:
        assert queue.put(payload) == "7"
        assert refused
        assert server.requests[0].endswith(payload)


def test_who_is_refused_while_still_sending_learns_why(client: str) -> None:
    def refuse(connected: socket.socket) -> socket.socket:
        connected.recv(100)
        connected.sendall(problem(413, "PayloadTooLarge", "far too large", "Connection: close\r\n"))
        return connected

    with (
        scripted(PUT, wrap=refuse) as server,
        talking_to(server, client, timeout=30) as queue,
        pytest.raises(penstock.PayloadTooLarge, match="far too large"),
    ):
        queue.put(bytes(16 << 20))


def test_who_takes_too_long_is_not_asked_twice(client: str) -> None:
    for name in ("counts", "put", "claim", "ack"):
        call, _ = EVERYTHING[name]
        with scripted(silence) as server, talking_to(server, client, timeout=0.05) as queue:
            before = time.monotonic()
            with pytest.raises(StoreUnreachable, match=r"it takes too long\. The .* may have happened"):
                call(queue)
            assert time.monotonic() - before >= 0.05
            while not server.requests:  # it may be slower than the client
                time.sleep(0.001)
            assert len(server.requests) == 1


def test_a_slow_answer_has_to_be_whole_in_time(client: str) -> None:
    def trickle(conversation: Conversation) -> None:
        for at in range(len(QUEUE) - 1):
            conversation.socket.sendall(QUEUE[at : at + 1])
            time.sleep(0.02)
        silence(conversation)

    late = pytest.raises(StoreUnreachable, match="it takes too long")
    with scripted(trickle) as server, talking_to(server, client, timeout=0.1) as queue, late:
        queue.counts()


def test_a_server_that_takes_nothing_in_is_given_up_in_time(client: str) -> None:
    def ignore(connected: socket.socket) -> socket.socket:
        done.wait()
        return connected

    done = threading.Event()
    with scripted(PUT, wrap=ignore) as server, talking_to(server, client, timeout=0.1) as queue:
        try:
            with pytest.raises(StoreUnreachable, match="Nothing was done"):
                queue.put(bytes(16 << 20))
        finally:
            done.set()


BUSY = problem(503, "StoreClosed", "later", "Retry-After: 1\r\n")


@pytest.mark.parametrize("name", REPEATABLE)
def test_a_server_that_cannot_do_it_now_is_asked_again_when_it_said(name: str) -> None:
    call, good = REPEATABLE[name]
    clock = HurriedClock()
    with scripted(BUSY, BUSY, good) as server, talking_to(server, clock=clock) as queue:
        call(queue)
        assert len(server.requests) == 3
        assert clock.monotonic() >= 2


@pytest.mark.parametrize("name", ONCE)
def test_what_could_happen_twice_is_not_asked_again_of_a_server_that_cannot_do_it_now(
    name: str, client: str
) -> None:
    call, good = ONCE[name]
    with scripted(BUSY, good) as server, talking_to(server, client) as queue:
        with pytest.raises(StoreClosed, match="later"):
            call(queue)
        assert len(server.requests) == 1


@pytest.mark.parametrize("name", EVERYTHING)
def test_an_overloaded_server_has_done_nothing_and_is_asked_again(name: str, client: str) -> None:
    call, good = EVERYTHING[name]
    overloaded = problem(503, "Overloaded", "later", "Retry-After: 0\r\nConnection: close\r\n")
    with scripted(overloaded, good) as server, talking_to(server, client) as queue:
        call(queue)
        assert len(server.requests) == 2


def test_a_server_that_sends_new_connections_away_is_tried_again(client: str) -> None:
    def send_away(connected: socket.socket) -> socket.socket:
        if not sent_away:
            sent_away.append(connected)
            connected.sendall(problem(503, "Overloaded", "later", "Retry-After: 0\r\nConnection: close\r\n"))
            connected.close()
        return connected

    sent_away: list[socket.socket] = []
    with scripted(PUT, wrap=send_away) as server, talking_to(server, client) as queue:
        assert queue.put(b"a") == "7"
        assert len(server.requests) == 1


def test_nobody_waits_an_hour_for_a_busy_server() -> None:
    clock = HurriedClock()
    act = problem(503, "Overloaded", "come back tomorrow", "Retry-After: 3600\r\n")
    with scripted(act) as server, talking_to(server, clock=clock) as queue:
        with pytest.raises(PenstockError, match="come back tomorrow"):
            queue.counts()
        assert clock.monotonic() == 0


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Unavailable", "504 Timeout"])
def test_a_gateway_that_cannot_reach_the_server_is_asked_again(status: str, client: str) -> None:
    act = answer(b"<html>", status)
    with scripted(act, QUEUE) as server, talking_to(server, client) as queue:
        assert queue.count() == 3
        assert len(server.requests) == 2
    error = pytest.raises(StoreUnreachable, match=f"says {status[:3]}. The put may have happened")
    with scripted(act) as server, talking_to(server, client) as queue, error:
        queue.put(b"a")


@pytest.mark.parametrize(
    ("call", "act"),
    [
        (EVERYTHING["put"][0], answer(status="201 Created")),
        (EVERYTHING["put with headers"][0], answer(b'{"ids": []}')),
        (EVERYTHING["put with headers"][0], answer(b'{"ids": [7]}')),
        (EVERYTHING["put_many"][0], answer(b'{"ids": ["7"]}')),
        (EVERYTHING["claim"][0], answer(b"{}")),
        (EVERYTHING["claim"][0], answer(CLAIMED[-20:])),
        (EVERYTHING["purge"][0], answer(b'{"count": "3"}')),
        (EVERYTHING["publish"][0], answer(b'{"id": null}')),
        (EVERYTHING["extend"][0], answer(b'{"lease_until": null, "lost": []}')),
        (EVERYTHING["attempts"][0], answer(b'{"attempts": [{}]}')),
        (EVERYTHING["attempts"][0], answer(b'{"attempts": 3}')),
        (EVERYTHING["queues"][0], answer(b'{"queues": [3]}')),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error_and_is_not_asked_for_again(
    call: Callable[[Queue], object], act: bytes, client: str
) -> None:
    with scripted(act) as server, talking_to(server, client) as queue:
        with pytest.raises(StoreUnreachable, match="is not Penstock's"):
            call(queue)
        assert len(server.requests) == 1
