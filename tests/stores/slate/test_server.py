"""A slate store behind a server: the same over HTTP, and by coroutines."""

import asyncio
import json
from pathlib import Path
from urllib.request import urlopen

import pytest

import penstock
from penstock import StoreLocked, aio
from penstock.http.server import serve_in_thread


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
