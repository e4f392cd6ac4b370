"""penstock.aio.work(): the worker for coroutines."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import penstock
from penstock import aio
from penstock.http.server import serve_in_thread
from penstock.workers import Worked

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
                    concurrency=2,  # no idle handler that would claim the released messages
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
