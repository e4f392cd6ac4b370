"""Waiting for messages: woken at once, served in turn, never left behind."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest

from penstock import Draft, Message, Queue, QueueNotFound, SimulatedClock, Store, StoreClosed
from penstock.contract.operations import Claim
from tests.conformance.conftest import WatchedClock
from tests.conformance.stores import StoreUnderTest

FOR_EVER = 1_000_000.0
Taken = TypeVar("Taken")


class Line:
    """Consumers that stand in line, each in a thread of its own."""

    def __init__(self, pool: ThreadPoolExecutor, waiting: Callable[[], int]) -> None:
        self._pool = pool
        self._waiting = waiting

    def join(self, take: Callable[..., Taken], *arguments: object, **options: object) -> Future[Taken]:
        """Let a new consumer wait; returns once it stands in line, be it in its own thread or in a server's."""
        before = self._waiting()
        future = self._pool.submit(take, *arguments, **options)
        until(lambda: self._waiting() > before or future.done())
        return future


@pytest.fixture
def line(kind: StoreUnderTest, store: Store, clock: WatchedClock) -> Iterator[Line]:
    """The store is closed before the threads are joined, so that a failed test does not hang."""

    def waiting() -> int:
        if kind.in_line is not None:
            return kind.in_line(store)
        return sum(thread.name != "penstock-alarm" for thread in list(clock.waiting))

    with ThreadPoolExecutor(100) as pool:
        yield Line(pool, waiting)
        store.close()


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def consumers(queue: Queue, line: Line, count: int) -> list[Future[list[Message]]]:
    return [line.join(queue.claim, wait=FOR_EVER, consumer=f"w{number}") for number in range(count)]


def test_a_claim_that_waits_gets_what_is_put(queue: Queue, line: Line) -> None:
    [waiting] = consumers(queue, line, 1)
    put = queue.put(b"a")
    [message] = waiting.result()
    assert message.id == put
    message.ack()


def test_a_claim_that_need_not_wait_does_not(queue: Queue) -> None:
    queue.put(b"a")
    assert len(queue.claim(5, wait=FOR_EVER)) == 1


def test_a_consumer_waits_for_its_turn_in_a_group(queue: Queue, line: Line) -> None:
    queue.put_many([Draft(b"a", group="g"), Draft(b"b", group="g")])
    [first] = queue.claim(10)
    [waiting] = consumers(queue, line, 1)
    assert not waiting.done()
    first.ack()
    assert [message.payload for message in waiting.result()] == [b"b"]


def test_a_claim_that_waits_acknowledges_before(queue: Queue, line: Line) -> None:
    queue.put(b"a")
    waiting = line.join(queue.claim, wait=FOR_EVER, ack=queue.claim())
    assert sum(queue.counts().values()) == 0
    queue.put(b"b")
    assert [message.payload for message in waiting.result()] == [b"b"]


def test_an_operation_may_acknowledge_and_wait_in_one(store: Store, queue: Queue, line: Line) -> None:
    queue.put(b"a")
    [held] = queue.claim()
    waiting = line.join(store.run, Claim(queue.name, wait=30, consumer="w", ack=[held.receipt or ""]))
    assert sum(queue.counts().values()) == 0
    queue.put(b"b")
    assert [message.payload for message in waiting.result()] == [b"b"]


def test_pop_waits_too(queue: Queue, line: Line) -> None:
    waiting = line.join(queue.pop, FOR_EVER)
    queue.put(b"a")
    message = waiting.result()
    assert message is not None
    assert message.payload == b"a"
    assert sum(queue.counts().values()) == 0


def test_a_wait_ends_empty_handed_in_time(queue: Queue, clock: SimulatedClock, line: Line) -> None:
    waiting = line.join(queue.claim, wait=20)
    clock.advance(19.9)
    time.sleep(0.01)  # nothing must happen now; whoever is early would be
    assert not waiting.done()
    clock.advance(0.1)
    assert waiting.result() == []
    queue.put(b"a")
    assert queue.counts()["available"] == 1


def test_consumers_are_served_in_the_order_of_their_arrival(queue: Queue, line: Line) -> None:
    waiting = consumers(queue, line, 4)
    ids = queue.put_many([b"a", b"b"])
    until(lambda: sum(each.done() for each in waiting) == 2)
    ids += [queue.put(b"c"), queue.put(b"d")]
    assert [each.result()[0].id for each in waiting] == ids
    assert [each.result()[0].consumer for each in waiting] == ["w0", "w1", "w2", "w3"]


def test_nobody_overtakes_those_who_wait(queue: Queue, line: Line) -> None:
    [waiting] = consumers(queue, line, 1)
    queue.put(b"a")
    assert queue.claim() == []
    assert len(waiting.result()) == 1


def test_the_first_in_line_gets_all_it_asked_for_and_the_next_gets_the_rest(queue: Queue, line: Line) -> None:
    first = line.join(queue.claim, 3, wait=FOR_EVER)
    second = line.join(queue.claim, 3, wait=FOR_EVER)
    queue.put_many([b"a", b"b", b"c", b"d"])
    assert [message.payload for message in first.result()] == [b"a", b"b", b"c"]
    assert [message.payload for message in second.result()] == [b"d"]


@pytest.mark.parametrize(
    "how", ["release", "revoke", "fail", "redrive", "delay is over", "lease ends", "delayed put"]
)
def test_whatever_makes_a_message_available_wakes_those_who_wait(
    queue: Queue, clock: SimulatedClock, how: str, line: Line
) -> None:
    if how == "delay is over":
        queue.put(b"a", delay=10)
    elif how != "delayed put":
        queue.put(b"a")
        [held] = queue.claim(lease=10)
    if how == "redrive":
        for _ in range(4):
            held.fail()
            [held] = queue.claim()
        held.fail()
    [waiting] = consumers(queue, line, 1)
    if how == "release":
        held.release()
    elif how == "revoke":
        queue.revoke(held.id)
    elif how == "fail":
        held.fail()
    elif how == "redrive":
        queue.redrive()
    elif how == "delayed put":
        queue.put(b"a", delay=10)
        clock.advance(10)
    else:
        clock.advance(10)
    [message] = waiting.result()
    assert message.payload == b"a"


def test_an_earlier_end_of_waiting_overtakes_a_later_one(queue: Queue, clock: SimulatedClock, line: Line) -> None:
    queue.put(b"in an hour", delay=3_600)
    [waiting] = consumers(queue, line, 1)
    queue.put(b"soon", delay=10)
    clock.advance(10)
    assert [message.payload for message in waiting.result()] == [b"soon"]


def test_a_clock_that_is_set_ahead_is_noticed_within_a_second(
    queue: Queue, clock: SimulatedClock, line: Line
) -> None:
    queue.put(b"in an hour", delay=3_600)
    [waiting] = consumers(queue, line, 1)
    clock.jump(3_600)
    clock.advance(1)
    assert len(waiting.result()) == 1


@pytest.mark.many_queues
def test_a_deleted_queue_sends_its_waiting_consumers_away(store: Store, queue: Queue, line: Line) -> None:
    waiting = consumers(queue, line, 2)
    store.delete(queue.name)
    for each in waiting:
        with pytest.raises(QueueNotFound):
            each.result()


def test_a_closed_store_sends_its_waiting_consumers_away(store: Store, queue: Queue, line: Line) -> None:
    waiting = consumers(queue, line, 2)
    store.close()
    for each in waiting:
        with pytest.raises(StoreClosed):
            each.result()


def test_a_hundred_consumers_get_a_hundred_messages(queue: Queue, line: Line) -> None:
    waiting = consumers(queue, line, 100)
    ids = [queue.put(str(number)) for number in range(100)]
    assert sorted(each.result()[0].id for each in waiting) == sorted(ids)


def test_settings_that_change_hold_for_consumers_that_wait(
    queue: Queue, line: Line, clock: SimulatedClock
) -> None:
    first, second = consumers(queue, line, 2)
    queue.update(max_lease=5, max_attempts=1)
    queue.put(b"a")
    [message] = first.result()
    assert message.lease_until == clock.now() + 5_000
    message.fail()
    assert queue.counts()["failed"] == 1
    queue.update(max_attempts=2)
    queue.redrive()
    assert [message.payload for message in second.result()] == [b"a"]
