"""Calls of one process that go as one request: what comes while a request is under way goes with the next one."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import LeaseExpired, Message, Queue, QueueFull, StoreUnreachable
from penstock.http.client import failures, together
from penstock.http.server import serve_in_thread
from penstock.wire import frames, jsons
from tests.scripted import (
    CLAIMED,
    NOTHING,
    PUT,
    SETTLED,
    Act,
    Conversation,
    ScriptedServer,
    answer,
    close,
    problem,
    queue_at,
    scripted,
    talking_to,
)

CALLS = 5


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, calls that wait for each other do so in these tests."""
    monkeypatch.setattr(together, "PATIENCE", 1_000)


class Crowd:
    """Calls that wait while the first one's request is under way."""

    def __init__(
        self, server: ScriptedServer, queue: Queue, pool: ThreadPoolExecutor, held: threading.Event
    ) -> None:
        self._server, self._queue, self._pool, self._held = server, queue, pool, held

    def calls(self, *calls: Callable[[Queue], Any]) -> list[Future[Any]]:
        """The first call is sent; the others wait for its answer, in order."""
        first, *others = calls
        futures = [self._pool.submit(first, self._queue)]
        _until(lambda: len(self._server.requests) == 1)
        for number, call in enumerate(others, 1):
            futures.append(self._pool.submit(call, self._queue))
            _until(lambda number=number: _waiting(self._queue) == number)  # type: ignore[misc]
        self._held.set()
        return futures


def _waiting(queue: Any) -> int:
    queue = getattr(queue, "_target", queue)
    return sum(len(waiting) for waiting in list(queue._store._open_backend._lanes._lanes.values()))


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


@contextmanager
def crowded(client: str, first: bytes, *acts: Act) -> Iterator[tuple[Crowd, ScriptedServer]]:
    """A server that answers the first request with `first`, once the others wait, and then plays the acts."""
    held = threading.Event()

    def hold(conversation: Conversation) -> None:
        held.wait()
        conversation.socket.sendall(first)

    with scripted(hold, *acts) as server, talking_to(server, client) as queue, ThreadPoolExecutor(20) as pool:
        try:
            yield Crowd(server, queue, pool, held), server
        finally:
            held.set()


def _body(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def _message(number: int) -> Message:
    return penstock.Message(
        f"{number}", "jobs", b"a", {}, 0, 1, 1, 1, None, 1, "in_flight", f"{number}.ff", 1, 2, "me"
    )


def _claimed(*numbers: int) -> bytes:
    return answer(b"".join(frames.message_parts([_message(number) for number in numbers])))


def _put(payload: bytes) -> Callable[[Queue], str]:
    return lambda queue: queue.put(payload)


def _ack(receipt: str) -> Callable[[Queue], None]:
    return lambda queue: queue.ack(receipt)


def test_a_call_does_not_wait_for_ever_beside_a_request_that_is_not_answered(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "PATIENCE", 0.01)
    come = threading.Event()

    def stuck(conversation: Conversation) -> None:
        come.wait()
        conversation.socket.sendall(PUT)

    def answered(conversation: Conversation) -> None:
        come.set()
        conversation.socket.sendall(PUT)

    with scripted(stuck, answered) as server, talking_to(server, client) as queue, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(queue.put, [b"a", b"b"])) == ["7", "7"]
        assert [_body(request) for request in server.requests] in ([b"a", b"b"], [b"b", b"a"])


def test_puts_that_wait_go_together(client: str) -> None:
    ids = answer(jsons.dumps({"ids": ["8", "9", "10", "11"]}))
    with crowded(client, PUT, ids) as (crowd, server):
        futures = crowd.calls(*[_put(b"%d" % number) for number in range(CALLS)])
        assert [each.result() for each in futures] == ["7", "8", "9", "10", "11"]
        _, second = server.requests
        assert [entry.payload for entry in frames.decode_entries(_body(second))] == [b"1", b"2", b"3", b"4"]


def test_settlements_that_wait_go_together_and_each_learns_what_it_has_lost(client: str) -> None:
    lost = answer(
        jsons.dumps({"error": "LeaseExpired", "detail": "", "queue": "jobs", "receipts": ["2.ff"]}), "409 Conflict"
    )
    with crowded(client, SETTLED, lost) as (crowd, server):
        first, second, third = crowd.calls(_ack("1.ff"), _ack("2.ff"), _ack("3.ff"))
        assert (first.result(), third.result()) == (None, None)
        with pytest.raises(LeaseExpired) as error:
            second.result()
        assert error.value.receipts == ["2.ff"]
        assert jsons.loads(_body(server.requests[1])) == {"receipts": ["2.ff", "3.ff"]}


def test_claims_that_wait_go_together_and_ask_again_if_less_came(client: str) -> None:
    with crowded(client, CLAIMED, _claimed(1, 2, 3), NOTHING) as (crowd, server):
        futures = crowd.calls(
            *[lambda queue: queue.claim()] * 2, *[lambda queue: queue.claim(2)] * 2, lambda queue: queue.claim()
        )
        assert [[each.id for each in future.result()] for future in futures] == [["7"], ["1"], ["2", "3"], [], []]
        asked = [jsons.loads(_body(request))["n"] for request in server.requests]
        assert (asked[:2], sum(asked[2:])) == ([1, 6], 3)


def test_a_put_that_is_refused_keeps_no_other_from_being_stored(client: str) -> None:
    full = problem(507, "QueueFull")
    with crowded(client, PUT, full, PUT, full, PUT) as (crowd, server):
        futures = crowd.calls(*[_put(b"%d" % number) for number in range(4)])
        errors = [each.exception() for each in futures]
        assert sum(isinstance(error, QueueFull) for error in errors) == 1
        assert errors.count(None) == 3
        assert sorted(map(_body, server.requests[2:])) == [b"1", b"2", b"3"]


def test_when_an_answer_is_lost_what_does_no_harm_is_tried_again(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_FIRST", 0.001)
    with crowded(client, SETTLED, close, SETTLED) as (crowd, server):
        futures = crowd.calls(*[_ack(f"{number}.ff") for number in range(3)])
        assert [each.result() for each in futures] == [None] * 3
        assert len(server.requests) == 4  # the two that were together, each on its own


def test_when_an_answer_is_lost_no_put_is_repeated(client: str) -> None:
    with crowded(client, PUT, close, PUT) as (crowd, server):
        first, *others = crowd.calls(*[_put(b"a")] * 3)
        assert first.result() == "7"
        for each in others:
            with pytest.raises(StoreUnreachable, match="may have happened"):
                each.result()
        assert len(server.requests) == 2


def test_a_consumer_that_waits_holds_nobody_up(client: str) -> None:
    with penstock.open("memory:") as kept:
        server = serve_in_thread(kept)
        with queue_at(server.url, client) as queue, ThreadPoolExecutor(2) as pool:
            kept.create("jobs")
            waiting = pool.submit(queue.claim, wait=60)
            assert queue.claim() == []
            queue.put(b"a")
            assert [message.payload for message in waiting.result()] == [b"a"]
        server.stop()


def test_a_consumer_that_may_wait_gets_what_is_there_with_the_others(client: str) -> None:
    with crowded(client, SETTLED, _claimed(1), NOTHING, _claimed(2)) as (crowd, server):
        futures = crowd.calls(_ack("1.ff"), lambda queue: queue.claim(wait=9), lambda queue: queue.claim(wait=9))
        assert futures[0].result() is None
        assert sorted(future.result()[0].id for future in futures[1:]) == ["1", "2"]
        asked = [jsons.loads(_body(request)) for request in server.requests]
        assert [each["n"] for each in asked[1:]] == [2, 1, 1]
        assert [each["wait"] > 0 for each in asked[1:]] == [False, False, True]


def test_every_call_of_a_crowd_is_answered_with_its_own(client: str, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as kept:
        kept.create("jobs")
        server = serve_in_thread(kept)
        with queue_at(server.url, client) as queue, ThreadPoolExecutor(20) as pool:

            def live(name: int) -> list[bytes]:
                done = []
                for number in range(10):
                    put = b"%d %d" % (name, number)
                    id_ = queue.put(put)
                    found = queue.message(id_)
                    assert found is None or found.payload == put
                    for message in queue.claim(2):
                        done.append(message.payload)
                        message.ack()
                return done

            done = [payload for each in pool.map(live, range(20)) for payload in each]
            while left := queue.claim(100):
                done += [message.payload for message in left]
                queue.ack(*left)
        server.stop()
        assert sorted(done) == sorted(b"%d %d" % (name, number) for name in range(20) for number in range(10))
        assert sum(kept.queue("jobs").counts().values()) == 0
