"""`route`: the log of a slate store routed by a stream of Spark."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark import jobs
from penstock.stores.slate.log_tables import Router


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"slate:{tmp_path / 'store'}"
    bucket: str = request.getfixturevalue("bucket")
    return bucket


def payloads(store: penstock.Store, queue: str) -> list[int]:
    return [int(message.payload) for message in store.queue(queue).messages()]


def routed(spark: SparkSession, url: str) -> dict[str, int]:
    return {
        str(queue): int(count or 0) for queue, count in jobs.route(spark, url, available_now=True, rows=25).rows
    }


def publish(store: penstock.Store, start: int, end: int) -> None:
    for number in range(start, end):
        store.publish(str(number), headers={"digit": str(number % 10)}, priority=number % 2)


def test_every_message_enters_each_queue_once_whoever_routes(spark: SparkSession, url: str) -> None:
    off = f"{url}?router=off"
    with penstock.open(off) as store:
        store.create("threes", filter="digit = 3")
        store.create("odd", filter="priority = 1 AND size < 3")
        store.create("few", filter="digit IS NOT NULL", max_size=4)
        store.queue().put(b"nobody's")
        publish(store, 0, 40)
        assert payloads(store, "odd") == []
        assert routed(spark, off) == {"threes": 4, "odd": 20, "few": 4}
        assert payloads(store, "threes") == [3, 13, 23, 33]
        assert payloads(store, "odd") == list(range(1, 40, 2))
        assert payloads(store, "few") == [0, 1, 2, 3]
        publish(store, 40, 44)
    with penstock.open(url) as store:  # with the router of its own
        assert payloads(store, "threes") == [3, 13, 23, 33, 43]
        publish(store, 44, 50)
        assert not sum(routed(spark, url).values())
    with penstock.open(off) as store:
        publish(store, 50, 60)
    with closing(Router(off, penstock.open)) as router:
        shutil.rmtree(router.checkpoint)  # which is a hint, and no more
    assert routed(spark, off) == {"threes": 1, "odd": 5}
    with penstock.open(url) as store:
        assert payloads(store, "threes") == [3, 13, 23, 33, 43, 53]
        assert payloads(store, "odd") == list(range(1, 60, 2))
        had = []
        few = store.queue("few")
        while messages := few.claim(3):
            had += sorted(int(message.payload) for message in messages)
            few.ack(*messages)
        assert sorted(had) == list(range(60))
