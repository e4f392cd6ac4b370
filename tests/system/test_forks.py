"""Forks: parent and child can both use a store that was open before the fork."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
import penstock.aio
from penstock.http.server import serve_in_thread
from tests.harness.children import noted, scenario

URLS = {
    "journal": "{}/store",
    "slate": "slate:{}/store",
    "text": "text:{}/store",
    "tq": "{}/default.tq",
    "folder": "folder:{}/store",
}


AGAIN = ("tq", "http-text", "http-folder")  # two ways that are each tried by themselves


@pytest.fixture(
    params=[
        *(kind for kind in URLS if kind not in AGAIN), "guest", "http",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in AGAIN),
    ]
)  # fmt: skip
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that nobody has open, one whose owner is another process, or one behind a server."""
    if request.param in URLS:
        yield URLS[request.param].format(tmp_path)
        return
    kind = request.param.removeprefix("http-") if "-" in request.param else "journal"
    with penstock.open(URLS[kind].format(tmp_path)) as store:
        if request.param == "guest":
            yield URLS[kind].format(tmp_path)
            return
        server = serve_in_thread(store)
        try:
            yield server.url
        finally:
            server.stop()


def check_history(url: str, log: Path) -> None:
    """No message that was put is missing, none was given to two."""
    put = Counter(each["put"] for each in noted(log) if "put" in each)
    claimed = Counter(each["claimed"] for each in noted(log) if "claimed" in each)
    assert [payload for payload, times in claimed.items() if times > 1] == []
    with penstock.open(url) as store:
        queue = store.queue()
        waiting = Counter(message.payload.decode() for message in queue.messages("available"))
        held = Counter(message.payload.decode() for message in queue.messages("in_flight"))
        assert put - claimed == waiting
        assert held - claimed == Counter()
        queue.put(b"afterwards")


@pytest.mark.parametrize("how", ["busy", "pool", "preload"])
def test_children_use_a_store_that_their_parent_has_open_as_if_it_were_theirs(
    url: str, tmp_path: Path, how: str
) -> None:
    log = tmp_path / "log"
    with scenario("fork", log, url, how) as process:
        process.end()
    check_history(url, log)


def test_a_child_holds_nothing_of_a_parent_that_was_killed(url: str, tmp_path: Path) -> None:
    for number in range(3):
        with scenario("fork", tmp_path / f"log {number}", url, "killed") as process:
            process.wait_until_ready()
            process.process.kill()
            with penstock.open(url) as store:
                store.queue().put(b"after")
                assert store.queue().claim()


def test_a_child_that_closes_a_store_closes_its_own(url: str) -> None:
    with penstock.open(url) as store:
        queue = store.queue()
        [held] = (queue.put(b"a"), queue.claim())[1]
        if (pid := os.fork()) == 0:
            store.close()
            try:
                queue.put(b"b")
            except penstock.StoreClosed:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        held.ack()
        queue.put(b"c")
        assert [message.payload for message in queue.messages()] == [b"c"]


def test_a_child_goes_on_with_a_store_that_its_parent_has_closed(url: str) -> None:
    told, tell = os.pipe()
    with penstock.open(url) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        [held] = queue.claim()
        if (pid := os.fork()) == 0:
            status = 1
            try:
                os.read(told, 1)
                queue.put(b"c")
                held.ack()
                status = 0 if [message.payload for message in queue.claim()] == [b"b"] else 2
                store.close()
            except penstock.NotSupported as error:
                status = 3 if "SlateDB" in str(error) else 4
            finally:
                os._exit(status)
    os.write(tell, b".")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (3 if url.startswith("slate:") else 0)  # SlateDB's threads are no child's
    with penstock.open(url) as store:
        expected = [b"a", b"b"] if status else [b"b", b"c"]
        assert [message.payload for message in store.queue().messages()] == expected
        store.queue().put(b"afterwards")


def test_a_child_that_closes_a_store_leaves_its_parents_consumers_waiting(url: str) -> None:
    with penstock.open(url) as store, ThreadPoolExecutor() as threads:
        queue = store.queue()
        waiting = threads.submit(queue.claim, wait=60)
        while not waiting.running():
            time.sleep(0.001)
        time.sleep(0.05)  # it asks by now, most of the time
        for _ in range(3):
            if (pid := os.fork()) == 0:
                store.close()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        queue.put(b"a")
        [message] = waiting.result()
        assert (message.payload, message.attempts) == (b"a", 1)


def test_a_child_that_closes_a_store_cuts_off_no_answer_to_its_parent(url: str) -> None:
    payloads = [b"%d" % number for number in range(100)]
    with penstock.open(url) as store, ThreadPoolExecutor() as threads:
        queue = store.queue()
        queue.put_many(payloads)

        def pop_all() -> list[bytes]:
            return [message.payload for message in iter(queue.pop, None)]

        popping = [threads.submit(pop_all) for _ in range(3)]
        while not all(each.done() for each in popping):
            if (pid := os.fork()) == 0:
                store.close()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        assert sorted(payload for each in popping for payload in each.result()) == sorted(payloads)


@pytest.mark.parametrize("kind", ["journal", "slate"])
def test_a_store_that_its_owner_does_not_share_is_refused_in_a_child(tmp_path: Path, kind: str) -> None:
    with penstock.open(URLS[kind].format(tmp_path), share=False) as store:
        queue = store.queue()
        queue.put(b"a")
        if (pid := os.fork()) == 0:
            status = 1
            try:
                queue.put(b"b")
            except penstock.StoreClosed:
                store.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        queue.put(b"c")
        assert [message.payload for message in queue.claim(9)] == [b"a", b"c"]


def test_a_store_for_coroutines_is_refused_in_a_child_which_opens_its_own(url: str) -> None:
    async def use() -> None:
        async with penstock.aio.open(url) as store:
            queue = await store.queue()
            await asyncio.gather(*(queue.put(f"before {each}") for each in range(20)))
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    status = asyncio.run(refused(queue, store))
                finally:
                    os._exit(status)
            await queue.put(b"beside")
            while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                await asyncio.sleep(0.001)
            assert ended[1] == 0
            await queue.put(b"after")
            assert (await queue.counts())["available"] == 23

    async def refused(queue: penstock.aio.Queue, store: penstock.aio.Store) -> int:
        try:
            await queue.put(b"lost")
        except penstock.StoreClosed:
            await store.close()
            async with penstock.aio.open(url) as own:
                await (await own.queue()).put(b"child")
            return 0
        return 2

    asyncio.run(use())


def test_what_a_parent_has_claimed_its_child_can_settle(url: str) -> None:
    with penstock.open(url) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        [first, second] = queue.claim(2)
        if (pid := os.fork()) == 0:
            first.ack()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        second.ack()
        assert list(queue.messages()) == []


def test_a_memory_store_is_refused_in_a_child_whose_puts_nobody_would_see() -> None:
    with penstock.open("memory:"), penstock.open("memory:shared") as store:
        queue = store.queue()
        queue.put(b"a")
        if (pid := os.fork()) == 0:
            try:
                queue.put(b"b")
            except penstock.StoreClosed:
                with penstock.open("memory:shared") as other:
                    os._exit(0 if other.queue().count() == 0 else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert queue.count() == 1
