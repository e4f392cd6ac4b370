"""Spark with slate stores, in folders and in buckets."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
import penstock.spark
from penstock import Draft
from penstock.stores.slate import snapshot
from tests.spark.reads import in_milliseconds

PLACES = ["folder", "bucket"]


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"slate:{tmp_path / 'store'}"
    bucket: str = request.getfixturevalue("bucket")
    return bucket


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").option("store", url).options(**options).load()


def fill(store: penstock.Store) -> None:
    """Messages in every state, published ones, and one that is an object."""
    queue = store.create("jobs", max_attempts=2, keep_done=None)
    queue.put_many([b"done", b"failing", b"held", b"popped"])
    queue.ack(*queue.claim(1, consumer="worker \N{SNOWMAN}"))
    for reason in (None, "no luck"):
        queue.fail(*queue.claim(1, consumer="you"), reason=reason)
    queue.claim(1, lease=3_600, consumer="holder")
    queue.pop()
    store.create("orders", filter="type = 'order'")
    store.create("large", filter="size > 1000")
    store.publish(b"an order", headers={"type": "order"}, priority=3)
    store.publish(b"nobody's")
    store.publish(b"\x00" * 100_000, headers={"type": "order"}, retention=3_600)
    queue.put_many(
        [
            Draft(b"", headers={"type": "order", "odd \N{SNOWMAN}": ""}, priority=255),
            Draft(b"\x00\x01\x02", created_at=1),
            Draft(b"later", delay=3_600),
            Draft(b"not for ever", retention=3_600),
            Draft(b"x" * 100_000),
        ]
    )


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return in_milliseconds([row.asDict() for row in frame.collect()])


def by_id(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["queue"], int(row["id"])))


def test_queues_attempts_and_the_log_are_tables_too(spark: SparkSession, url: str) -> None:
    with penstock.open(url) as store:
        fill(store)
        counts = {info.name: info.counts for info in store.queues()}
        ids = {message.id for info in store.queues() for message in store.queue(info.name).messages()}
    queues = {row["name"]: row for row in load(spark, url, table="queues").collect()}
    assert {name: {state: row[state] for state in counts[name]} for name, row in queues.items()} == counts
    assert queues["orders"]["filter"] == "type = 'order'"
    attempts = load(spark, url, table="attempts", queue="jobs").collect()
    outcomes = sorted((row["outcome"] or "", row["consumer"]) for row in attempts)
    assert [each for each in outcomes if each[1] in ("holder", "worker \N{SNOWMAN}", "you")] == [
        ("", "holder"),
        ("acked", "worker \N{SNOWMAN}"),
        ("failed", "you"),
        ("failed", "you"),
    ]
    log = load(spark, url, table="log").orderBy("sequence").collect()
    assert {row["id"] for row in log} >= ids
    published = [row for row in log if row["queue"] is None]
    assert [(bytes(row["payload"])[:8], row["size"], row["priority"]) for row in published] == [
        (b"an order", 8, 3),
        (b"nobody's", 8, 0),
        (b"\x00" * 8, 100_000, 0),
    ]
    assert published[0]["headers"] == {"type": "order"}
    assert (published[2]["expires_at"] - published[2]["received_at"]).total_seconds() == 3_600
    spark.catalog.dropTempView("penstock_log")
    penstock.spark.views(spark, url)
    answer = spark.sql("SELECT count(*) FROM penstock_log l JOIN penstock_messages m USING (id)").collect()
    assert answer[0][0] == sum(sum(each.values()) for each in counts.values())


def test_a_frame_shows_one_moment_whatever_becomes_of_the_store(spark: SparkSession, tmp_path: Path) -> None:
    url = f"slate:{tmp_path}"
    with penstock.open(url, share=False) as store:
        queue = store.queue()
        ids = queue.put_many([b"x" * 1_000, b"y" * 100_000])
        frame = load(spark, url)
        assert frame.count() == 2
        queue.ack(*queue.claim(2))
        queue.put(b"later")
        store.backend.collect()  # type: ignore[attr-defined]
        assert [row["id"] for row in frame.orderBy("id").collect()] == ids
        assert load(spark, url).count() == 1
    with penstock.open(url) as store:
        assert len(frame.collect()) == 2


def test_snapshots_of_processes_that_are_gone_are_dropped(url: str) -> None:
    with penstock.open(url) as store:
        store.queue().put(b"x")
    code = (
        "import os, sys; from penstock.stores.slate import snapshot; "
        "print(snapshot.take(sys.argv[1], os.getpid()).held)"
    )
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True)
    gone = done.stdout.strip()
    moment = snapshot.take(url, os.getpid())
    if "://" in url:
        from penstock.stores.slate.binding import blocking
        from penstock.stores.slate.snapshot import _InBucket

        bucket = _InBucket(moment.url)
        assert gone not in [each.id for each in blocking(bucket._admin.list_checkpoints(None), 30)]
    else:
        assert not os.path.exists(gone)
        assert os.path.exists(moment.held)
    snapshot.drop(moment)


def test_what_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no store at "):
        load(spark, f"slate:{tmp_path / 'none'}").collect()
    penstock.open(f"slate:{tmp_path}").close()
    with pytest.raises(PySparkException, match="there is no queue 'lost'"):
        load(spark, f"slate:{tmp_path}", queue="lost").collect()
    with pytest.raises(PySparkException, match="table 'log' is for slate stores"):
        load(spark, str(tmp_path), table="log").collect()
