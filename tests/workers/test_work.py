"""penstock.work() and penstock.aio.work() on every kind of store. No test depends on how long something takes."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock import DiskFull, Draft, LeaseExpired, Message, Queue, QueueNotFound, StoreClosed
from penstock.contract.operations import Ack, Claim
from penstock.http.server import serve_in_thread
from penstock.workers import Fail, Release, Result, Worked, exponential
from tests.conformance.blocking import BlockingQueue, BlockingStore
from tests.harness.children import ServerChild, scenario
from tests.harness.scenarios import handle, is_hopeless

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clock() -> penstock.SimulatedClock:
    return penstock.SimulatedClock()


@contextmanager
def opened(kind: str, folder: Path, clock: penstock.Clock | None = None) -> Iterator[penstock.Store]:
    is_async, name = kind.startswith("aio-"), kind.removeprefix("aio-")
    with ExitStack() as stack:
        url = {"memory": "memory:", "journal": str(folder)}.get(name, f"{name}:{folder}")
        if name == "http":
            server = serve_in_thread(stack.enter_context(penstock.open("memory:", clock=clock)))
            stack.callback(server.stop)
            url, clock = server.url, None
        if is_async:
            store: Any = BlockingStore(lambda: penstock.aio.open(url, clock=clock))
        else:
            store = penstock.open(url, clock=clock)
        yield stack.enter_context(store)


class Asked(asyncio.Event):
    """A threading.Event as an asyncio.Event."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()
        super().set()


def work(
    queue: Queue, handler: Callable[[Message], object], stop: threading.Event | None = None, **options: Any
) -> Worked:
    """`penstock.work`; on a queue of `penstock.aio`, `penstock.aio.work`."""
    if not isinstance(queue, BlockingQueue):
        return penstock.work(queue, handler, stop=stop, **options)
    asked = threading.Event() if stop is None else stop

    async def main() -> Worked | BaseException:
        stopping = Asked(asked)

        async def handle(message: penstock.aio.Message) -> None:
            await asyncio.to_thread(handler, queue._blocking(message))

        async def hear() -> None:
            while not asked.is_set():
                await asyncio.sleep(0.005)
            stopping.set()

        hearing = asyncio.create_task(hear())
        try:
            return await penstock.aio.work(queue._target, handle, stop=stopping, **options)
        except BaseException as error:  # such as SystemExit, which would end the loop
            return error
        finally:
            hearing.cancel()

    worked: Worked | BaseException = queue._loop.run(main())
    if isinstance(worked, BaseException):
        raise worked
    return worked


@pytest.fixture(params=["memory", "journal", "text", "folder", "http", "aio-memory", "aio-journal", "aio-http"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[penstock.Store]:
    with opened(kind, tmp_path / "store") as store:
        yield store


@pytest.fixture
def still(kind: str, tmp_path: Path, clock: penstock.SimulatedClock) -> Iterator[penstock.Store]:
    """A store with a simulated clock: leases end only when the test advances it."""
    with opened(kind, tmp_path / "store", clock) as store:
        yield store


@pytest.fixture
def jobs(store: penstock.Store) -> Queue:
    return store.create("jobs", max_attempts=3, keep_done=None)


@pytest.fixture
def still_jobs(still: penstock.Store) -> Queue:
    return still.create("jobs", max_attempts=3, keep_done=None)


@pytest.fixture
def local() -> Iterator[Queue]:
    """A queue in memory, for tests that are the same on every kind of store."""
    with penstock.open("memory:") as store:
        yield store.create("jobs", max_attempts=3, keep_done=None)


@pytest.fixture
def still_local(clock: penstock.SimulatedClock) -> Iterator[Queue]:
    with penstock.open("memory:", clock=clock) as store:
        yield store.create("jobs", max_attempts=3, keep_done=None)


class Running:
    """A worker in a thread, stopped by its event."""

    def __init__(self, queue: Queue, handler: Callable[[Message], object], **options: object) -> None:
        self.stop = threading.Event()
        self.worked: Worked | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.worked = work(queue, handler, self.stop, **options)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def end(self) -> Worked:
        self.stop.set()
        return self.ended()

    def ended(self) -> Worked:
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self.worked is not None
        return self.worked


@contextmanager
def running(queue: Queue, handler: Callable[[Message], object], **options: object) -> Iterator[Running]:
    worker = Running(queue, handler, **options)
    try:
        yield worker
    finally:
        worker.stop.set()
        worker._thread.join()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.005)


def states(queue: Queue) -> dict[bytes, str]:
    return {message.payload: message.state for message in queue.messages()}


def left(queue: Queue) -> dict[str, int]:
    return {state: count for state, count in queue.counts().items() if count}


# What becomes of messages


def test_a_handler_that_returns_has_its_message_acknowledged(jobs: Queue) -> None:
    jobs.put_many([b"%d" % number for number in range(100)])
    seen: list[bytes] = []
    worked = work(jobs, lambda message: seen.append(message.payload), until_empty=True)
    assert Counter(seen) == Counter(b"%d" % number for number in range(100))
    assert worked == Worked(acked=100)
    assert left(jobs) == {"done": 100}


def test_a_handler_that_raises_has_its_message_failed_with_the_exception_as_the_reason(jobs: Queue) -> None:
    def handler(message: Message) -> None:
        raise ValueError(f"no such cat: {message.payload.decode()}")

    jobs.put(b"tom")
    worked = work(jobs, handler, backoff=0, until_empty=True)
    assert worked == Worked(failed=3)
    [message] = jobs.messages("failed")
    assert message.reason == "ValueError: no such cat: tom"
    assert message.attempts == 3
    assert [attempt.reason for attempt in jobs.attempts(message.id)] == ["ValueError: no such cat: tom"] * 3


def test_a_failed_message_is_tried_again_after_its_backoff(jobs: Queue) -> None:
    asked: list[int] = []

    def backoff(message: Message) -> float:
        asked.append(message.attempts)
        return 0.01 * message.attempts

    def handler(message: Message) -> None:
        if message.attempts < 3:
            raise OSError

    jobs.put(b"x")
    assert work(jobs, handler, backoff=backoff, until_empty=True) == Worked(acked=1, failed=2)
    assert asked == [1, 2]
    [message] = jobs.messages("done")
    first, second, third = jobs.attempts(message.id)
    assert first.ended_at is not None
    assert second.ended_at is not None
    assert second.claimed_at - first.ended_at >= 10
    assert third.claimed_at - second.ended_at >= 20


def test_the_usual_backoff_doubles_up_to_five_minutes(local: Queue) -> None:
    local.put(b"x")
    [message] = local.claim()
    delays = []
    for message.attempts in (1, 2, 3, 9, 10, 1_000_000):
        delays.append(exponential(message))
    assert delays == [1, 2, 4, 256, 300, 300]


def test_a_backoff_that_makes_no_sense_is_replaced_by_the_usual_one(
    local: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    local.put(b"x")

    def handler(message: Message) -> None:
        if message.attempts == 1:
            raise OSError

    assert work(local, handler, backoff=lambda message: -1, until_empty=True) == Worked(acked=1, failed=1)
    [message] = local.messages("done")
    first, second = local.attempts(message.id)
    assert first.ended_at is not None
    assert second.claimed_at - first.ended_at >= 1000
    assert "the usual one is taken" in caplog.text


def test_a_handler_may_settle_its_message_by_itself(jobs: Queue) -> None:
    def handler(message: Message) -> None:
        if message.payload == b"ack":
            message.ack()
            raise ValueError("after the fact")
        if message.payload == b"fail":
            message.fail(reason="my own")
        elif message.attempts == 1:
            message.release()

    jobs.put_many([b"ack", b"fail", b"release"])
    results: list[Result] = []
    worked = work(jobs, handler, until_empty=True, report=results.append)
    assert worked == Worked(acked=2, failed=3, released=1)
    assert states(jobs) == {b"ack": "done", b"fail": "failed", b"release": "done"}
    assert next(jobs.messages("failed")).reason == "my own"
    assert Counter((each.message.payload, each.outcome, each.reason) for each in results) == Counter(
        {
            (b"ack", "ack", None): 1,
            (b"fail", "fail", "my own"): 3,
            (b"release", "release", None): 1,
            (b"release", "ack", None): 1,
        }
    )


def test_thousands_of_messages_of_which_handlers_fail_one_in_twenty_end_as_the_rules_say(
    store: penstock.Store, jobs: Queue
) -> None:
    work_on(jobs, 1_000 if store.url.startswith(("text:", "folder:")) else 10_000)  # a sync per message


@pytest.mark.long
@pytest.mark.parametrize("store", ["text", "folder"], indirect=True)
def test_ten_thousand_of_them_do_where_each_is_synced(jobs: Queue) -> None:
    work_on(jobs, 10_000)


def work_on(jobs: Queue, count: int) -> None:
    def handler(message: Message) -> None:
        number = int(message.payload)
        if number % 20 == 0 and message.attempts <= number // 20 % 5:  # the first 0 to 4 attempts
            raise ValueError(number)

    for start in range(0, count, 1000):
        jobs.put_many([b"%d" % number for number in range(start, start + 1000)])
    worked = work(jobs, handler, concurrency=16, backoff=0, until_empty=True)
    hopeless = {b"%d" % number for number in range(0, count, 20) if number // 20 % 5 >= 3}
    assert states(jobs) == {
        b"%d" % number: "failed" if b"%d" % number in hopeless else "done" for number in range(count)
    }
    assert worked == Worked(acked=count * 98 // 100, failed=count // 100 * (1 + 2 + 3 + 3))


# What the queue says


QUEUES_THAT_SAY = pytest.mark.parametrize(
    "kind", ["memory", "journal", "text", "folder", "http", "aio-memory", "aio-http"], indirect=True
)


@QUEUES_THAT_SAY
def test_a_group_is_worked_on_one_message_at_a_time_and_in_order_also_when_handlers_fail(jobs: Queue) -> None:
    lock = threading.Lock()
    seen: list[int] = []

    def handler(message: Message) -> None:
        assert lock.acquire(blocking=False), "two messages of a group at a time"
        try:
            number = int(message.payload)
            seen.append(number)
            time.sleep(0.001)  # long enough for another handler, if there were one
            if number % 5 == 0 and message.attempts == 1:
                raise Fail("once more")
            if number % 7 == 0 and message.attempts == 1:
                raise Release
        finally:
            lock.release()

    jobs.put_many([Draft(str(number), group="a") for number in range(60)])
    assert work(jobs, handler, backoff=0, until_empty=True) == Worked(acked=60, failed=12, released=7)
    twice = [number for number in range(60) if number % 5 == 0 or number % 7 == 0]
    assert seen == sorted([*range(60), *twice])


@QUEUES_THAT_SAY
def test_groups_are_worked_on_side_by_side_each_in_its_order(jobs: Queue) -> None:
    together = threading.Barrier(4)
    lock = threading.Lock()
    at_work: set[str | None] = set()
    seen: dict[str | None, list[bytes]] = {}

    def handler(message: Message) -> None:
        with lock:
            assert message.group not in at_work
            at_work.add(message.group)
            seen.setdefault(message.group, []).append(message.payload)
        if message.payload == b"0" and int(message.group or "") < 4:
            together.wait()  # returns once four groups are worked on
        with lock:
            at_work.remove(message.group)

    jobs.put_many([Draft(str(at), group=str(group)) for at in range(20) for group in range(10)])
    assert work(jobs, handler, until_empty=True) == Worked(acked=200)
    assert seen == {str(group): [str(at).encode() for at in range(20)] for group in range(10)}


def fail_twice(message: Message) -> None:
    if message.attempts < 3:
        raise Fail("not yet")


def waited(queue: Queue) -> int:
    """Milliseconds for which the only message, which has failed twice, waited for its last attempt."""
    [message] = queue.messages("done")
    return message.visible_at - (queue.attempts(message.id)[1].ended_at or 0)


@QUEUES_THAT_SAY
def test_the_backoff_of_the_queue_is_that_of_its_workers_unless_they_have_one(store: penstock.Store) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 30),
        ({"backoff": 0.007}, 7),
        ({"backoff": lambda _: 0.008}, 8),
        ({"backoff": (0.003, 4, 10)}, 12),
    ]
    for options, milliseconds in cases:
        queue = store.create(f"jobs-{milliseconds}", keep_done=None, backoff=(0.01, 3, 10))
        queue.put(b"x")
        assert work(queue, fail_twice, until_empty=True, **options) == Worked(acked=1, failed=2)
        assert waited(queue) == milliseconds


@QUEUES_THAT_SAY
def test_a_backoff_that_changes_applies_to_workers_that_run(store: penstock.Store) -> None:
    queue = store.create("jobs", keep_done=None)
    queue.put(b"x")

    def handler(message: Message) -> None:
        if message.attempts == 1:
            queue.update(backoff=(0.01, 3, 10))
        fail_twice(message)

    assert work(queue, handler, until_empty=True) == Worked(acked=1, failed=2)
    assert waited(queue) == 30


def test_a_backoff_that_is_taken_from_the_queue_leaves_workers_the_usual_one(local: Queue) -> None:
    local.update(backoff=(0.01, 3, 10))
    local.put(b"x")

    def handler(message: Message) -> None:
        local.update(backoff=None)
        if message.attempts == 1:
            raise OSError

    assert work(local, handler, until_empty=True) == Worked(acked=1, failed=1)
    [message] = local.messages("done")
    assert message.visible_at - (local.attempts(message.id)[0].ended_at or 0) == 1000


def test_without_a_backoff_of_the_queue_a_worker_waits_for_seconds_that_double(local: Queue) -> None:
    local.put(b"x")
    assert work(local, fail_twice, until_empty=True) == Worked(acked=1, failed=2)
    assert waited(local) == 2000


@QUEUES_THAT_SAY
def test_the_lease_of_the_queue_is_that_of_its_workers_unless_they_have_one(store: penstock.Store) -> None:
    leases: list[int] = []

    def handler(message: Message) -> None:
        leases.append((message.lease_until or 0) - (message.claimed_at or 0))

    queue = store.create("jobs", lease=77, max_lease=80)
    for lease in (None, 5, 90):
        queue.put(b"x")
        work(queue, handler, until_empty=True, lease=lease)
    assert leases == [77_000, 5_000, 80_000]


# What it holds


def test_never_more_is_held_than_can_be_worked_on(jobs: Queue) -> None:
    most = 0
    lock = threading.Lock()
    at_work = 0

    def handler(message: Message) -> None:
        nonlocal most, at_work
        with lock:
            at_work += 1
            most = max(most, at_work, jobs.counts()["in_flight"])
        with lock:
            at_work -= 1

    jobs.put_many([b"%d" % number for number in range(200)])
    work(jobs, handler, concurrency=3, until_empty=True)
    assert most == 3


def outlast(jobs: Queue, count: int, lease: float, clock: penstock.SimulatedClock) -> None:
    """Let more time pass than a lease lasts, but never so much that it ends before it can be extended."""

    def extended() -> bool:
        messages = list(jobs.messages())  # in a folder, one that is just being extended is not seen
        return len(messages) == count and not any(
            message.state == "in_flight" and (message.lease_until or 0) < clock.now() + lease * 1000
            for message in messages
        )

    for _ in range(5):
        clock.advance(lease / 2)
        until(extended)


def test_work_that_takes_longer_than_its_lease_stays_ours(
    still_jobs: Queue, clock: penstock.SimulatedClock
) -> None:
    begun = threading.Barrier(2)

    def handler(message: Message) -> None:
        if begun.wait() == 0:
            outlast(still_jobs, 2, 0.3, clock)
        begun.wait()

    still_jobs.put_many([b"one", b"two"])
    worked = work(still_jobs, handler, lease=0.3, until_empty=True)
    assert worked == Worked(acked=2)
    assert [message.attempts for message in still_jobs.messages()] == [1, 1]


def test_no_lease_is_longer_than_the_queue_allows(still: penstock.Store, clock: penstock.SimulatedClock) -> None:
    jobs = still.create("short", max_lease=1, keep_done=None)
    jobs.put(b"x")
    worked = work(jobs, lambda message: outlast(jobs, 1, 1, clock), lease=60, until_empty=True)
    assert worked == Worked(acked=1)
    assert [message.attempts for message in jobs.messages()] == [1]


def test_leases_are_extended_in_time_when_the_queue_allows_shorter_ones_only(
    still: penstock.Store, clock: penstock.SimulatedClock
) -> None:
    jobs = still.create("short", keep_done=None)
    jobs.put(b"x")

    def handler(message: Message) -> None:
        jobs.update(max_lease=1)
        clock.advance(2)  # of the three that it has
        outlast(jobs, 1, 1, clock)

    assert work(jobs, handler, lease=3, until_empty=True) == Worked(acked=1)
    assert [message.attempts for message in jobs.messages()] == [1]


def test_a_lease_that_the_handler_made_longer_is_not_made_shorter(
    still_local: Queue, clock: penstock.SimulatedClock
) -> None:
    leases = []

    def handler(message: Message) -> None:
        message.extend(lease=1000)
        time.sleep(0.5)
        [held] = still_local.messages("in_flight")
        leases.append(held.lease_until)

    still_local.put(b"x")
    assert work(still_local, handler, lease=0.3, until_empty=True) == Worked(acked=1)
    assert leases == [clock.now() + 1_000_000]


def test_the_result_of_work_whose_lease_was_lost_is_dropped_and_logged(
    still_jobs: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    dropped: list[str] = []
    results: list[Result] = []

    def handler(message: Message) -> None:
        if message.payload == b"removed":
            still_jobs.remove(message.id)
            until(lambda: dropped)

    still_jobs.put_many([b"removed", b"kept"])
    worked = work(
        still_jobs,
        handler,
        lease=0.3,
        until_empty=True,
        on_drop=lambda message: dropped.append(message.id),
        report=results.append,
    )
    assert worked == Worked(acked=1, lost=1)
    assert [each.message.id for each in results if each.outcome == "lost"] == dropped
    assert "was lost while it was worked on" in caplog.text
    assert "the result is dropped" in caplog.text


def test_a_lease_that_is_lost_just_when_the_work_is_done_does_no_harm(
    jobs: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message) -> None:
        jobs.remove(message.id)

    jobs.put_many([b"1", b"2"])
    assert work(jobs, handler, until_empty=True) == Worked(lost=2)
    assert "its result is dropped" in caplog.text


def test_on_drop_and_report_that_fail_do_not_stop_the_work(local: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def report(result: Result) -> None:
        raise ValueError("cannot count")

    local.put_many([b"1", b"2"])
    assert work(local, lambda message: None, until_empty=True, report=report) == Worked(acked=2)
    assert "cannot count" in caplog.text


# How it stops


def test_a_stop_lets_handlers_finish(jobs: Queue) -> None:
    started, going_on = threading.Semaphore(0), threading.Event()

    def handler(message: Message) -> None:
        started.release()
        going_on.wait()

    jobs.put_many([b"%d" % number for number in range(10)])
    with running(jobs, handler, concurrency=3, grace=1000) as worker:
        for _ in range(3):
            started.acquire()
        worker.stop.set()
        going_on.set()
        assert worker.ended() == Worked(acked=3)
    assert left(jobs) == {"available": 7, "done": 3}


def test_what_does_not_finish_in_time_is_released(jobs: Queue, caplog: pytest.LogCaptureFixture) -> None:
    started, going_on, dropped = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def handler(message: Message) -> None:
        started.release()
        going_on.wait()

    jobs.put_many([b"1", b"2"])
    # No claim waits: one that is slow to stop would get the released message, and release it again.
    with running(jobs, handler, concurrency=2, grace=0.1, on_drop=lambda message: dropped.release()) as worker:
        started.acquire()
        started.acquire()
        assert worker.end() == Worked(released=2)
        assert left(jobs) == {"available": 2}
        dropped.acquire()
        dropped.acquire()
        going_on.set()
        until(lambda: caplog.text.count("the result is dropped") == 2)
    assert left(jobs) == {"available": 2}


def test_a_worker_waits_for_messages_that_come_later(jobs: Queue) -> None:
    seen: list[bytes] = []
    with running(jobs, lambda message: seen.append(message.payload)) as worker:
        jobs.put(b"first")
        until(lambda: seen == [b"first"])
        jobs.put(b"second", delay=0.05)
        until(lambda: seen == [b"first", b"second"])
        until(lambda: left(jobs) == {"done": 2})
        assert worker.end() == Worked(acked=2)


def test_a_worker_on_an_empty_queue_ends_at_once_if_told_so(jobs: Queue) -> None:
    assert work(jobs, lambda message: None, until_empty=True) == Worked()


def test_until_empty_waits_for_what_is_delayed(jobs: Queue) -> None:
    jobs.put(b"later", delay=0.3)
    assert work(jobs, lambda message: None, until_empty=True) == Worked(acked=1)


def test_a_handler_that_exits_ends_the_worker_and_everything_is_released(jobs: Queue) -> None:
    started, exiting = threading.Semaphore(0), threading.Event()

    def handler(message: Message) -> None:
        if message.payload == b"exit":
            started.acquire()
            sys.exit(7)
        started.release()
        exiting.wait()

    jobs.put_many([b"exit", b"other"])
    worker = Running(jobs, handler, concurrency=2)
    with pytest.raises(SystemExit) as raised:
        worker.ended()
    exiting.set()
    assert raised.value.code == 7
    assert left(jobs) == {"available": 2}


# What the store does


def test_an_error_of_the_store_ends_the_worker(store: penstock.Store, jobs: Queue) -> None:
    jobs.put(b"x")

    def handler(message: Message) -> None:
        store.delete("jobs")

    with pytest.raises((QueueNotFound, LeaseExpired)):
        work(jobs, handler)


def test_a_store_that_is_closed_ends_the_worker() -> None:
    store = penstock.open("memory:")
    with running(store.queue(), lambda message: None) as worker:
        time.sleep(0.05)
        store.close()
        with pytest.raises(StoreClosed):
            worker.ended()


def test_a_queue_that_is_not_there_is_an_error() -> None:
    with penstock.open("memory:") as store:
        jobs = store.create("jobs")
        store.delete("jobs")
        with pytest.raises(QueueNotFound):
            work(jobs, lambda message: None)


def test_a_server_that_goes_and_comes_back_is_waited_for(
    tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    with ServerChild(tmp_path / "store", "--port", str(port)) as first, penstock.open(first.url) as store:
        jobs = store.create("jobs", keep_done=None)
        jobs.put(b"before")
        with running(jobs, lambda message: seen.append(message.payload), lease=1000) as worker:
            until(lambda: left(jobs) == {"done": 1})
            first.kill()
            with ServerChild(tmp_path / "store", "--port", str(port)):
                jobs.put(b"after")
                until(lambda: left(jobs) == {"done": 2})
                assert worker.end() == Worked(acked=2)
    assert seen == [b"before", b"after"]


@pytest.mark.parametrize(
    "options",
    [
        *({"concurrency": 0}, {"concurrency": 10_001}, {"lease": 0}, {"grace": -1}, {"consumer": ""}),
        *({"backoff": -1}, {"backoff": (9, 2, 8)}, {"backoff": (1, 2)}),
    ],
)
def test_options_that_make_no_sense_are_refused(local: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidArgument):
        work(local, lambda message: None, **options)


# Signals, in processes of their own

CHILD = r"""
import os, sys, threading
import penstock

how = sys.argv[2]
stop = None if how == "grace" else threading.Event()

def handler(message):
    os.write(1, b"started\n")
    if stop is not None:
        stop.wait()
    if how == "hangs":
        os.write(1, b"stopping\n")
    if how != "finishes":
        threading.Event().wait()

with penstock.open(sys.argv[1]) as store:
    grace = 0.2 if how == "grace" else 1000
    jobs = store.queue("jobs")
    print(penstock.work(jobs, handler, concurrency=2, lease=1000, grace=grace, stop=stop))
"""


@contextmanager
def child(url: str | Path, how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHILD, str(url), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_two(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [f"{word}\n"] * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "store") as store:
        store.create("jobs", keep_done=None).put_many([b"1", b"2", b"3"])
    return tmp_path / "store"


def left_in(folder: Path) -> dict[str, int]:
    with penstock.open(folder) as store:
        return left(store.queue("jobs"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_handlers_finish_and_ends_the_worker(folder: Path, how: signal.Signals) -> None:
    with child(folder, "finishes") as process:
        wait_for_two(process, "started")
        process.send_signal(how)
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out == f"{Worked(acked=2, signal=int(how))}\n"
    assert left_in(folder) == {"available": 1, "done": 2}


def test_after_a_signal_what_does_not_finish_in_time_is_released(folder: Path) -> None:
    with child(folder, "grace") as process:
        wait_for_two(process, "started")
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out == f"{Worked(released=2, signal=int(signal.SIGTERM))}\n"
    assert left_in(folder) == {"available": 3}


def test_a_second_signal_releases_at_once(folder: Path) -> None:
    with child(folder, "hangs") as process:
        wait_for_two(process, "started")
        process.send_signal(signal.SIGTERM)
        wait_for_two(process, "stopping")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out == f"{Worked(released=2, signal=int(signal.SIGINT))}\n"
    assert left_in(folder) == {"available": 3}


def test_what_a_killed_worker_held_goes_to_another_after_the_lease(
    tmp_path: Path, clock: penstock.SimulatedClock
) -> None:
    with penstock.open(tmp_path / "store", clock=clock) as store:
        jobs = store.create("jobs", keep_done=None)
        jobs.put_many([b"1", b"2"])
        server = serve_in_thread(store)
        with child(server.url, "hangs") as process:
            wait_for_two(process, "started")
            process.kill()
            assert process.wait() == -signal.SIGKILL
        server.stop()
        clock.advance(999)
        assert left(jobs) == {"in_flight": 2}
        clock.advance(1)
        seen: list[tuple[bytes, int]] = []
        worked = penstock.work(
            jobs, lambda message: seen.append((message.payload, message.attempts)), until_empty=True
        )
        assert worked == Worked(acked=2)
        assert sorted(seen) == [(b"1", 2), (b"2", 2)]
        assert all(jobs.attempts(message.id)[0].reason == "lease expired" for message in jobs.messages())


def test_signal_handlers_are_put_back(local: Queue) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    during: list[object] = []
    local.put(b"x")
    penstock.work(local, lambda message: during.append(signal.getsignal(signal.SIGTERM)), until_empty=True)
    assert during[0] is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_in_another_thread_signals_are_left_alone(local: Queue) -> None:
    during: list[object] = []
    local.put(b"x")
    with running(local, lambda message: during.append(signal.getsignal(signal.SIGTERM))):
        until(lambda: during)
    assert during == [signal.getsignal(signal.SIGTERM)]


def test_a_signal_that_is_heard_sets_the_stop_event_for_handlers(local: Queue) -> None:
    stop = threading.Event()

    def handler(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait()

    local.put_many([b"1", b"2"])
    worked = penstock.work(local, handler, concurrency=1, stop=stop)
    assert worked == Worked(acked=1, signal=int(signal.SIGTERM))


def test_while_all_is_well_nothing_is_logged(jobs: Queue, caplog: pytest.LogCaptureFixture) -> None:
    jobs.put_many([b"1", b"2"])
    with caplog.at_level(logging.DEBUG, "penstock"):
        work(jobs, lambda message: None, until_empty=True)
    assert not caplog.records


@pytest.mark.long
def test_a_million_messages_through_four_processes_of_which_one_is_killed_end_as_the_rules_say(
    tmp_path: Path,
) -> None:
    count, batch, log = 1_000_000, 1_000, tmp_path / "log"
    with ExitStack() as stack:
        server = stack.enter_context(ServerChild(tmp_path / "store"))
        jobs = stack.enter_context(penstock.open(server.url)).create("jobs", max_attempts=4, keep_done=None)
        for start in range(0, count, batch):
            jobs.put_many([b"%d" % number for number in range(start, start + batch)])
        workers = [stack.enter_context(scenario("work", log, server.url)) for _ in range(4)]
        until(lambda: jobs.counts()["done"] >= count // 2)
        workers.pop().kill()
        workers.append(stack.enter_context(scenario("work", log, server.url)))
        for worker in workers:
            worker.end()
        while sum(jobs.counts()[state] for state in ("delayed", "available", "in_flight")):  # the killed one's
            penstock.work(jobs, handle, backoff=0, until_empty=True)
            time.sleep(0.1)
        assert server.stop() == 0
    with penstock.open(tmp_path / "store") as store:
        states = [(int(message.payload), message.state) for message in store.queue("jobs").messages()]
    expected = [(number, "failed" if is_hopeless(number) else "done") for number in range(count)]
    assert sorted(states) == expected


# Acks that go along with the next claim


def test_a_busy_worker_acknowledges_and_claims_in_one_step() -> None:
    with penstock.open("memory:") as store:
        store.queue().put_many([b"a"] * 9)
        run, asked = store.run, []

        def noted(operation: Any) -> Any:
            asked.append(operation)
            return run(operation)

        store.run = noted
        assert penstock.work(store.queue(), lambda message: None, 1, until_empty=True).acked == 9
        claims = [each for each in asked if isinstance(each, Claim)]
        assert sum(len(claim.ack) for claim in claims) == 9
        assert not any(isinstance(each, Ack) for each in asked)


def test_what_a_claim_could_not_acknowledge_is_acknowledged_all_the_same() -> None:
    with penstock.open("memory:") as store:
        store.queue().put_many([b"a"] * 4)
        run = store.run
        acked: list[str] = []

        def refusing(operation: Any) -> Any:
            if isinstance(operation, Claim) and operation.ack:
                raise DiskFull("no room for claims")
            if isinstance(operation, Ack):
                acked.extend(operation.receipts)
            return run(operation)

        store.run = refusing
        assert penstock.work(store.queue(), lambda message: None, 1, until_empty=True).acked == 4
        assert len(set(acked)) == len(acked) == 4
