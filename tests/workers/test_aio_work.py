"""penstock.aio.work(): the worker for coroutines."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import penstock
from penstock import LeaseExpired, QueueNotFound, aio
from penstock.http.server import serve_in_thread
from penstock.workers import Result, Worked

Answer = TypeVar("Answer")
KINDS = pytest.mark.parametrize("kind", ["memory", "journal", "http"])


def run(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    return asyncio.run(coroutine)


@asynccontextmanager
async def queue_of(
    kind: str, folder: Path, clock: penstock.SimulatedClock | None = None
) -> AsyncIterator[aio.Queue]:
    server, kept = None, None
    if kind == "http":
        kept = penstock.open("memory:", clock=clock)
        server = serve_in_thread(kept)
    url = server.url if server else "memory:" if kind == "memory" else str(folder / "store")
    async with aio.open(url, clock=None if server else clock) as store:
        yield await store.create("jobs", max_attempts=3, keep_done=None)
    if server is not None and kept is not None:
        server.stop()
        kept.close()


async def left(queue: aio.Queue) -> dict[str, int]:
    return {state: count for state, count in (await queue.counts()).items() if count}


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    while not await condition():
        await asyncio.sleep(0.005)


async def nothing(message: aio.Message) -> None:
    pass


@KINDS
def test_ten_thousand_messages_of_which_handlers_fail_one_in_twenty_end_as_the_rules_say(
    kind: str, tmp_path: Path
) -> None:
    async def handler(message: aio.Message) -> None:
        number = int(message.payload)
        if number % 20 == 0 and message.attempts <= number // 20 % 5:
            raise ValueError(number)

    async def main() -> None:
        async with queue_of(kind, tmp_path) as jobs:
            for start in range(0, 10_000, 1000):
                await jobs.put_many([b"%d" % number for number in range(start, start + 1000)])
            worked = await aio.work(jobs, handler, concurrency=50, backoff=0, until_empty=True)
            assert worked == Worked(acked=9800, failed=900)
            assert await left(jobs) == {"done": 9800, "failed": 200}
            reasons = [message.reason async for message in jobs.messages("failed")]
            assert all(reason is not None and reason.startswith("ValueError: ") for reason in reasons)

    run(main())


@KINDS
def test_a_plain_function_runs_in_threads(kind: str, tmp_path: Path) -> None:
    threads: set[threading.Thread] = set()

    def handler(message: aio.Message) -> None:
        threads.add(threading.current_thread())
        if message.payload == b"bad":
            raise ValueError("no")

    async def main() -> None:
        async with queue_of(kind, tmp_path) as jobs:
            await jobs.put_many([b"good", b"bad"])
            assert await aio.work(jobs, handler, backoff=0, until_empty=True) == Worked(acked=1, failed=3)

    run(main())
    assert threading.main_thread() not in threads


@KINDS
def test_work_that_takes_longer_than_its_lease_stays_ours(kind: str, tmp_path: Path) -> None:
    clock = penstock.SimulatedClock()

    async def main() -> None:
        async with queue_of(kind, tmp_path, clock) as jobs:
            begun, outlasted = asyncio.Semaphore(0), asyncio.Event()

            async def extended() -> bool:
                held = [message async for message in jobs.messages("in_flight")]
                return all((message.lease_until or 0) >= clock.now() + 300 for message in held)

            async def handler(message: aio.Message) -> None:
                begun.release()
                if message.payload == b"1":
                    await begun.acquire()
                    await begun.acquire()
                    for _ in range(5):
                        clock.advance(0.15)
                        await until(extended)
                    outlasted.set()
                await outlasted.wait()

            await jobs.put_many([b"1", b"2"])
            assert await aio.work(jobs, handler, lease=0.3, until_empty=True) == Worked(acked=2)
            assert [message.attempts async for message in jobs.messages()] == [1, 1]

    run(main())


@KINDS
def test_a_handler_may_settle_its_message_by_itself(kind: str, tmp_path: Path) -> None:
    results: list[Result] = []

    async def handler(message: aio.Message) -> None:
        if message.payload == b"ack":
            await message.ack()
            raise ValueError("after the fact")
        if message.payload == b"fail":
            await message.fail(reason="my own")
        elif message.attempts == 1:
            await message.release()

    async def main() -> None:
        async with queue_of(kind, tmp_path) as jobs:
            await jobs.put_many([b"ack", b"fail", b"release"])
            worked = await aio.work(jobs, handler, until_empty=True, report=results.append)
            assert worked == Worked(acked=2, failed=3, released=1)
            [failed] = [message async for message in jobs.messages("failed")]
            assert failed.reason == "my own"

    run(main())
    assert Counter(each.outcome for each in results) == Counter(ack=2, fail=3, release=1)


@KINDS
def test_never_more_is_held_than_can_be_worked_on(kind: str, tmp_path: Path) -> None:
    most = 0

    async def main() -> None:
        async with queue_of(kind, tmp_path) as jobs:

            async def handler(message: aio.Message) -> None:
                nonlocal most
                most = max(most, (await jobs.counts())["in_flight"])

            await jobs.put_many([b"%d" % number for number in range(100)])
            await aio.work(jobs, handler, concurrency=3, until_empty=True)

    run(main())
    assert most == 3


@KINDS
def test_a_stop_lets_handlers_finish(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        started, stop = asyncio.Semaphore(0), asyncio.Event()

        async def handler(message: aio.Message) -> None:
            started.release()
            await stop.wait()

        async with queue_of(kind, tmp_path) as jobs:
            await jobs.put_many([b"%d" % number for number in range(5)])
            working = asyncio.create_task(aio.work(jobs, handler, concurrency=2, stop=stop, grace=1000))
            for _ in range(2):
                await started.acquire()
            stop.set()
            assert await working == Worked(acked=2)
            assert await left(jobs) == {"available": 3, "done": 2}

    run(main())


@KINDS
def test_what_does_not_finish_in_time_is_cancelled_and_released(kind: str, tmp_path: Path) -> None:
    cancelled: list[bytes] = []
    dropped: list[bytes] = []

    async def main() -> None:
        started, stop = asyncio.Semaphore(0), asyncio.Event()

        async def handler(message: aio.Message) -> None:
            started.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.payload)
                raise

        async with queue_of(kind, tmp_path) as jobs:
            await jobs.put_many([b"1", b"2"])
            working = asyncio.create_task(
                aio.work(
                    jobs,
                    handler,
                    concurrency=2,  # so that nobody waits for what is released
                    stop=stop,
                    grace=0.1,
                    on_drop=lambda each: dropped.append(each.payload),
                )
            )
            for _ in range(2):
                await started.acquire()
            stop.set()
            assert await working == Worked(released=2)
            assert await left(jobs) == {"available": 2}
            assert [message.attempts async for message in jobs.messages()] == [1, 1]

    run(main())
    assert sorted(cancelled) == sorted(dropped) == [b"1", b"2"]


def test_a_worker_that_is_cancelled_releases_what_it_holds(tmp_path: Path) -> None:
    going_on = threading.Event()

    async def main() -> None:
        async with queue_of("journal", tmp_path) as jobs:
            await jobs.put_many([b"1", b"2"])
            working = asyncio.create_task(aio.work(jobs, lambda message: going_on.wait()))

            async def held() -> bool:
                return (await left(jobs)) == {"in_flight": 2}

            await until(held)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert await left(jobs) == {"available": 2}

    run(main())
    going_on.set()


def test_work_whose_lease_was_lost_is_cancelled_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with queue_of("memory", tmp_path, penstock.SimulatedClock()) as jobs:

            async def handler(message: aio.Message) -> None:
                if message.payload == b"removed":
                    await jobs.remove(message.id)
                    await asyncio.Event().wait()

            await jobs.put_many([b"removed", b"kept"])
            assert await aio.work(jobs, handler, lease=0.3, until_empty=True) == Worked(acked=1, lost=1)

    run(main())
    assert "was lost while it was worked on" in caplog.text


def test_an_error_of_the_store_ends_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open("memory:") as store:
            jobs = await store.create("jobs")
            await jobs.put(b"x")

            async def handler(message: aio.Message) -> None:
                await store.delete("jobs")

            with pytest.raises((QueueNotFound, LeaseExpired)):
                await aio.work(jobs, handler)

    run(main())


def test_signals_stop_the_worker_and_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        stop = asyncio.Event()

        async def handler(message: aio.Message) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait()

        async with queue_of("memory", tmp_path) as jobs:
            await jobs.put_many([b"1", b"2"])
            worked = await aio.work(jobs, handler, concurrency=1, stop=stop)
            assert worked == Worked(acked=1, signal=int(signal.SIGTERM))
            assert await left(jobs) == {"available": 1, "done": 1}

    run(main())
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_releases_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        stop = asyncio.Event()

        async def handler(message: aio.Message) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

        async with queue_of("memory", tmp_path) as jobs:
            await jobs.put(b"1")
            worked = await aio.work(jobs, handler, concurrency=1, grace=1000, stop=stop)
            assert worked == Worked(released=1, signal=int(signal.SIGINT))

    run(main())


def test_a_worker_waits_for_messages_that_come_later(tmp_path: Path) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        async with queue_of("memory", tmp_path) as jobs:
            working = asyncio.create_task(aio.work(jobs, nothing, stop=stop))
            await asyncio.sleep(0.05)
            await jobs.put(b"late")

            async def done() -> bool:
                return (await left(jobs)) == {"done": 1}

            await until(done)
            stop.set()
            assert await working == Worked(acked=1)

    run(main())
