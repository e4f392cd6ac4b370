"""A slate store shared by processes of a machine: the first owns it, others ask the owner, one succeeds it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

import penstock
from penstock import StoreClosed, StoreLocked, aio
from penstock.http.server import serve_in_thread
from penstock.sharing.backend import engine_of

OWN = """
import sys, penstock
store = penstock.open(sys.argv[1])
queue = store.queue()
queue.put_many([b"a", b"b"])
print(queue.claim(1, lease=600)[0].receipt, flush=True)
sys.stdin.read()
store.close()
"""


@contextmanager
def owner(url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has the store open, and the receipt of a message that it holds."""
    command = [sys.executable, "-c", OWN, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_when_the_owner_goes_the_next_takes_over_and_leases_stay_valid(
    url: str, ending: signal.Signals | None
) -> None:
    with owner(url) as (process, receipt), penstock.open(url) as store:
        queue = store.queue()
        assert engine_of(store) is None
        assert queue.counts()["in_flight"] == 1
        own = queue.put(b"c")
        if ending is None:
            process.communicate()
        else:
            process.send_signal(ending)
            process.wait()
        queue.ack(receipt)
        assert engine_of(store) is not None
        assert [message.payload for message in queue.claim(5)] == [b"b", b"c"]
        assert own in [message.id for message in queue.messages()]


async def _use(url: str) -> list[bytes]:
    async with aio.open(url) as store:
        queue = await store.queue()
        await queue.put(b"c")
        return [message.payload for message in await queue.claim(5)]


def test_coroutines_share_a_slate_store_too(tmp_path: Path) -> None:
    url = f"slate:{tmp_path}"
    with owner(url):
        assert asyncio.run(_use(url)) == [b"b", b"c"]


def test_a_child_that_was_forked_asks_its_parent(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}") as store:
        queue = store.queue()
        queue.put(b"a")
        child = os.fork()
        if not child:
            try:
                os._exit(0 if queue.put(b"from the child") and len(queue) == 2 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [message.payload for message in queue.messages()] == [b"a", b"from the child"]


def test_a_child_of_a_process_that_does_not_share_is_told_so(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}", share=False) as store:
        queue = store.queue()
        child = os.fork()
        if not child:
            try:
                queue.put(b"x")
            except StoreClosed as error:
                os._exit(0 if "was forked" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        queue.put(b"y")
        assert len(queue) == 1


# Behind a server, and by coroutines


def test_a_slate_store_is_served(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}") as store:
        server = serve_in_thread(store)
        with penstock.open(server.url) as client:
            orders = client.create("orders", filter="type = 'order'", start="beginning")
            published = client.publish(b"x", headers={"type": "order"})
            [message] = orders.claim(wait=60)
            assert (message.id, message.payload) == (published, b"x")
            message.ack()
            client.queue().put_many([bytes(70_000), b"small"])
            assert [len(message.payload) for message in client.queue().claim(5)] == [70_000, 5]
            client.create("narrow", filter="1 = 1", max_size=1)
            for _ in range(3):
                client.publish(b"x", headers={"type": "order"})
            lags = {"default": None, "narrow": 2, "orders": 0}
            assert {info.name: info.lag for info in client.queues()} == lags
            with urlopen(f"{server.url}/-/api/queues/narrow") as answer:
                assert json.load(answer)["lag"] == 2
        server.stop()


def test_clients_are_told_that_another_writer_has_taken_over(bucket: str) -> None:
    with penstock.open(bucket, share=False) as store:
        server = serve_in_thread(store)
        with (
            penstock.open(server.url) as client,
            penstock.open(bucket, share=False),
            pytest.raises(StoreLocked),
        ):
            client.queue().put(b"x")
        server.stop()


def test_coroutines_use_a_slate_store_side_by_side(tmp_path: Path) -> None:
    async def use() -> int:
        async with aio.open(f"slate:{tmp_path}", share=False) as store:
            queue = await store.queue()
            await asyncio.gather(*[queue.put(b"%d" % number) for number in range(200)])
            popped = await asyncio.gather(*[queue.pop() for _ in range(100)])
            claimed = await queue.claim(100)
            await queue.ack(*claimed)
            return len({message.payload for message in popped if message}) + len(claimed)

    assert asyncio.run(use()) == 200
