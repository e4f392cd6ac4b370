"""penstock.aio beyond the conformance suite: cancellation, gathering of puts, many consumers, files."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import penstock
from penstock import InvalidArgument, LeaseExpired, QueueNotFound, StoreClosed, StoreUnreachable, aio
from penstock.contract.operations import Pop
from penstock.engine.backend import Engine
from penstock.engine.coroutines import LocalBackend
from penstock.http.client import connection as pools
from penstock.http.client.coroutines import RemoteBackend
from penstock.http.server import serve_in_thread
from penstock.http.server.server import raise_file_limit
from penstock.sharing import coroutines as shared
from penstock.sharing.backend import engine_of
from penstock.sharing.ownership import Folder, Owner
from tests.scripted import COUNT, QUEUE, Conversation, answer, problem, scripted, silence

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(coroutine)


@pytest.fixture
def kept() -> Iterator[penstock.Store]:
    with penstock.open("memory:") as store:
        yield store


@pytest.fixture
def url(kept: penstock.Store) -> Iterator[str]:
    raise_file_limit()  # before the server looks how many connections that allows
    server = serve_in_thread(kept)
    yield server.url
    server.stop()


@pytest.fixture(params=["remote", "local"])
def any_url(request: pytest.FixtureRequest, url: str) -> str:
    return url if request.param == "remote" else "memory:"


@asynccontextmanager
async def queue_at(url: str) -> AsyncIterator[aio.Queue]:
    """A queue of a server that has had no request yet."""
    async with aio.Store(url, RemoteBackend(url)) as store:
        yield aio.Queue(store, "jobs")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_store_is_opened_by_async_with_or_by_await(any_url: str) -> None:
    async def main() -> None:
        async with aio.open(any_url) as store:
            assert await (await store.queue()).put(b"a") == "1"
        with pytest.raises(StoreClosed, match=r"open it again with penstock\.aio\.open"):
            await store.queues()
        store = await aio.open(any_url)
        assert repr(store) == f"<penstock.aio.Store {any_url!r}>"
        assert repr(await store.queue()) == f"<penstock.aio.Queue 'default' of {any_url!r}>"
        await store.close()
        await store.close()
        assert repr(store) == f"<penstock.aio.Store {any_url!r} (closed)>"

    run(main())


def test_a_message_has_coroutines(any_url: str) -> None:
    async def main() -> None:
        async with aio.open(any_url) as store:
            jobs = await store.create("jobs", max_attempts=2, keep_done=None)
            await jobs.put_many([b"a", b"b"])
            first, second = await jobs.claim(2)
            assert isinstance(first, aio.Message)
            assert isinstance(first, penstock.Message)
            before = first.lease_until or 0
            await first.extend(600)
            assert (first.lease_until or 0) > before + 500_000
            await first.release()
            await second.fail(delay=100, reason="not today")
            [again] = await jobs.claim()
            assert again.id == first.id
            await again.ack()
            with pytest.raises(LeaseExpired):
                await first.ack()
            assert [(each.state, each.reason) async for each in jobs.messages()] == [
                ("done", None),
                ("delayed", "not today"),
            ]

    run(main())


def test_only_a_claimed_message_can_be_settled(any_url: str) -> None:
    async def main() -> None:
        async with aio.open(any_url) as store:
            jobs = await store.queue()
            await jobs.put_many([b"a", b"b"])
            peeked = await anext(jobs.peek())
            assert isinstance(peeked, aio.Message)
            popped = await jobs.pop()
            assert isinstance(popped, aio.Message)
            for message in (peeked, popped):
                with pytest.raises(InvalidArgument, match="was not claimed"):
                    await message.ack()

    run(main())


def test_iterators_are_asynchronous_and_may_be_left_early(any_url: str) -> None:
    async def main() -> None:
        async with aio.open(any_url) as store:
            jobs = await store.create("jobs")
            await jobs.put_many([str(number).encode() for number in range(2_500)])
            async for message in jobs.messages("available"):
                if message.payload == b"3":
                    break
            assert [message.payload async for message in jobs.peek(3)] == [b"0", b"1", b"2"]
            assert len([message async for message in jobs.messages()]) == 2_500
            with pytest.raises(InvalidArgument, match="state='asleep'"):
                jobs.messages("asleep")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="n=0"):
                jobs.peek(0)
            await store.delete("jobs")
            for iterator in (jobs.messages(), jobs.peek()):
                with pytest.raises(QueueNotFound):
                    await anext(iterator)

    run(main())


def test_a_consumer_that_is_cancelled_leaves_the_line(kept: penstock.Store, url: str) -> None:
    backend = engine_of(kept)
    assert isinstance(backend, Engine)
    line = backend.find("default")

    async def main() -> None:
        async with aio.open(url) as store:
            jobs = await store.queue()
            waiting = asyncio.create_task(jobs.claim(wait=60))
            await until(lambda: line.in_line == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: line.in_line == 0)
            await jobs.put(b"a")
            assert len(await jobs.claim()) == 1

    run(main())


def test_thousands_wait_without_a_thread_of_their_own(kept: penstock.Store, url: str) -> None:
    backend = engine_of(kept)
    assert isinstance(backend, Engine)
    line = backend.find("default")

    async def main() -> None:
        async with aio.open(url) as store:
            jobs = await store.queue()
            before = threading.active_count()
            waiting = [asyncio.create_task(jobs.claim(wait=300)) for _ in range(2_000)]
            await until(lambda: line.in_line == 2_000)
            assert threading.active_count() <= before + 1
            await jobs.put_many([b"a"] * 2_000)
            claimed = [message for each in await asyncio.gather(*waiting) for message in each]
            assert len({message.id for message in claimed}) == 2_000
            await jobs.ack(*claimed)
            assert sum((await jobs.counts()).values()) == 0

    run(main())


def test_a_cancelled_request_leaves_no_answer_behind_for_the_next_one() -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def late(conversation: Conversation) -> None:
        asked.set()
        cancelled.wait()
        conversation.socket.sendall(answer(b'{"count": 1}'))

    async def main(url: str) -> None:
        async with queue_at(url) as jobs:
            purging = asyncio.create_task(jobs.purge())
            await until(asked.is_set)
            purging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await purging
            cancelled.set()
            assert await jobs.purge() == 3

    with scripted(late, COUNT) as server:
        run(main(server.url))
        assert server.connections == 2


def test_connections_are_kept_but_not_for_ever_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (pools.MAX_IDLE_SECONDS, pools.MAX_IDLE) == (30, 100)
    monkeypatch.setattr(pools, "MAX_IDLE", 2)

    async def main(url: str) -> None:
        backend = RemoteBackend(url)
        async with aio.Store(url, backend) as store:
            jobs = aio.Queue(store, "jobs")
            for _ in range(3):
                await asyncio.gather(*[jobs.count() for _ in range(5)])
                assert len(backend.pool._idle) == 2
                assert len(backend.pool._all) == 2
            monkeypatch.setattr(pools, "MAX_IDLE_SECONDS", 0)
            await jobs.count()
            assert len(backend.pool._idle) == 1

    with scripted(QUEUE) as server:
        run(main(server.url))
        assert len(server.requests) == 16


def test_a_store_belongs_to_the_event_loop_in_which_it_was_opened(url: str) -> None:
    async def open_there() -> aio.Store:
        return await aio.open(url)

    other = asyncio.new_event_loop()
    store = other.run_until_complete(open_there())

    async def use_here() -> None:
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            await store.queues()

    run(use_here())
    other.run_until_complete(store.close())
    other.close()


def test_a_busy_server_is_asked_again_when_it_said() -> None:
    busy = problem(503, "StoreClosed", "later", "Retry-After: 1\r\n")

    async def main(url: str) -> None:
        async with queue_at(url) as jobs:
            before = asyncio.get_running_loop().time()
            assert await jobs.count() == 3
            assert asyncio.get_running_loop().time() - before >= 1

    with scripted(busy, QUEUE) as server:
        run(main(server.url))
        assert len(server.requests) == 2


def test_a_long_wait_is_several_shorter_ones_by_the_clock_that_was_given() -> None:
    clock = penstock.SimulatedClock()

    async def main(url: str) -> None:
        async with aio.Store(url, RemoteBackend(url, clock=clock)) as store:
            waiting = asyncio.create_task(aio.Queue(store, "jobs").claim(wait=70))
            await until(lambda: bool(server.requests))
            assert not waiting.done()
            waiting.cancel()

    with scripted(silence) as server:
        run(main(server.url))
        assert b'"wait":30' in server.requests[0]


@pytest.mark.parametrize(
    ("opening", "error"),
    [
        (lambda: aio.open("http://localhost:1/prefix"), "goes on after host and port"),
        (lambda: aio.open("http://localhost:1", sync="never"), "that is for the server to say"),
        (lambda: aio.open("http://localhost:1", timeout=0), "timeout=0"),
        (lambda: aio.open("journal:"), "give journal:DIR"),
        (lambda: aio.open("memory:", sync="sometimes"), "is none of"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_opened_says_why(opening: Callable[[], Awaitable[aio.Store]], error: str) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match=error):
            await opening()

    run(main())


def test_opening_a_store_whose_server_is_not_there_fails_at_once(port: int) -> None:
    async def main() -> None:
        with pytest.raises(StoreUnreachable, match=r"cannot be reached: Connection refused\. Nothing was done"):
            await aio.open(f"http://127.0.0.1:{port}")

    run(main())


def test_a_store_on_disk_is_opened_and_closed_for_good(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(2):
            async with aio.open(tmp_path) as store:
                await (await store.queue()).put(b"a")
                assert await (await store.queue()).count() == number + 1

    run(main())
    with penstock.open(tmp_path) as store:
        assert len(store.queue()) == 2


def test_who_is_cancelled_while_opening_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def open_slowly(folder: Folder) -> Owner:
        began.set()
        go_on.wait()
        return Owner(folder)

    monkeypatch.setattr(shared, "become_owner", open_slowly)

    async def main() -> None:
        opening = asyncio.ensure_future(_open(tmp_path))
        await until(began.is_set)
        opening.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await opening
        finally:
            go_on.set()

    run(main())
    with penstock.open(tmp_path, share=False) as store:  # StoreLocked if it was still open
        assert len(store.queue()) == 0


async def _open(folder: Path) -> aio.Store:
    return await aio.open(folder)


def test_puts_that_come_together_are_answered_one_by_one(tmp_path: Path) -> None:
    async def check() -> None:
        async with aio.open(tmp_path) as store:
            queue = await store.create("few", max_size=3, max_payload=5)
            puts = [queue.put(payload) for payload in (b"a", b"too long", b"b", b"c", b"d")]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            kinds = [type(each).__name__ for each in answers]
            assert kinds == ["str", "PayloadTooLarge", "str", "str", "QueueFull"]
            there = [(message.payload, message.id) async for message in queue.messages()]
            assert there == [(b"a", answers[0]), (b"b", answers[2]), (b"c", answers[3])]

    run(check())


def test_a_put_that_is_cancelled_at_once_is_not_made_and_the_others_are(tmp_path: Path) -> None:
    async def check() -> None:
        async with aio.open(tmp_path) as store:
            queue = await store.queue()
            puts = [asyncio.ensure_future(queue.put(payload)) for payload in (b"a", b"b", b"c")]
            asyncio.get_running_loop().call_soon(puts[1].cancel)  # after they are begun, before they are made
            answers = await asyncio.gather(*puts, return_exceptions=True)
            assert isinstance(answers[1], asyncio.CancelledError)
            assert [message.payload async for message in queue.messages()] == [b"a", b"c"]

    run(check())


def test_a_consumer_that_was_cancelled_takes_no_message_that_is_put_later() -> None:
    """A cancelled pop (its token was revoked) takes no message, even if all threads are busy."""

    async def run(store: penstock.Store) -> None:
        owned = engine_of(store)
        assert owned is not None
        backend, go_on = LocalBackend(owned), threading.Event()
        for _ in range(backend._threads._max_workers):
            backend._threads.submit(go_on.wait)
        popping = asyncio.ensure_future(backend.run(Pop("default", 60, "me")))
        while not owned.find("default").in_line:
            await asyncio.sleep(0.001)
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        store.queue().put(b"a")
        go_on.set()
        await backend.detach()
        assert store.queue().counts()["available"] == 1

    with penstock.open("memory:") as store:
        asyncio.run(run(store))
