"""Spark with slate stores, in folders and in buckets: their log as a table, a stream and routed; jobs on them."""

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
import penstock.spark
from penstock import Draft
from penstock.contract.message import Plain
from penstock.spark import jobs
from penstock.stores.slate import loads, snapshot
from penstock.stores.slate.loads import Frame, Load, new_name
from penstock.stores.slate.log_tables import Router
from penstock.stores.slate.snapshot import place_at
from penstock.stores.slate.store import open_slate
from penstock.wire.frames import encode_entries

LONG_BUCKET = ["folder", pytest.param("bucket", marks=pytest.mark.long)]


@pytest.fixture(params=LONG_BUCKET)
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


@pytest.mark.parametrize("url", ["folder", "bucket"], indirect=True)
def test_the_log_is_a_table_too(spark: SparkSession, url: str) -> None:
    with penstock.open(url) as store:
        fill(store)
        counts = {info.name: info.counts for info in store.queues()}
        ids = {message.id for info in store.queues() for message in store.queue(info.name).messages()}
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


# The log as a stream


def stream(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.readStream.format("penstock").option("store", url).options(table="log", **options).load()


def drained(frame: DataFrame, checkpoint: Path) -> list[list[str]]:
    """The payloads of each batch that was there to read."""
    batches: list[list[str]] = []

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("sequence", "cast(payload AS string) AS payload").orderBy("sequence").collect()
        batches.append([row["payload"] for row in rows])

    writing = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    return batches


def flat(batches: list[list[str]]) -> list[str]:
    return [payload for batch in batches for payload in batch]


def test_a_stream_follows_the_log_and_every_entry_is_there_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with penstock.open(url) as store:
        store.publish("a")
        store.queue().put("b")
        store.publish("c")
        assert drained(stream(spark, url), checkpoint) == [["a", "b", "c"]]
        assert flat(drained(stream(spark, url), checkpoint)) == []
        store.publish("d")
    assert flat(drained(stream(spark, url), checkpoint)) == ["d"]
    assert drained(stream(spark, url, maxRowsPerBatch="2"), tmp_path / "other") == [["a", "b"], ["c", "d"]]
    assert flat(drained(stream(spark, url, startingOffset="3"), tmp_path / "later")) == ["c", "d"]


def test_nothing_is_missed_while_many_threads_put_and_publish(spark: SparkSession, tmp_path: Path) -> None:
    url, found = f"slate:{tmp_path / 'store'}", list[str]()
    with penstock.open(url) as store:
        queues = [store.create(f"queue-{number}") for number in range(4)]
        done = threading.Event()

        def put(queue: penstock.Queue) -> None:
            for number in range(150):
                queue.put(f"{queue.name} {number}")

        def publish() -> None:
            for number in range(150):
                store.publish(f"published {number}")

        threads = [threading.Thread(target=put, args=(queue,)) for queue in queues]
        threads.append(threading.Thread(target=publish))

        def take(batch: DataFrame, number: int) -> None:
            found.extend(row[0] for row in batch.selectExpr("cast(payload AS string)").collect())
            if len(found) >= 750:
                done.set()

        writing = stream(spark, url).writeStream.foreachBatch(take)
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while not done.wait(1):
            assert query.isActive, query.exception()
        query.stop()
    expected = [f"queue-{queue} {number}" for queue in range(4) for number in range(150)]
    assert sorted(found) == sorted([*expected, *(f"published {number}" for number in range(150))])


def test_only_a_log_is_such_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    penstock.open(f"slate:{tmp_path}").close()
    with pytest.raises(PySparkException, match="startingOffset"):
        stream(spark, f"slate:{tmp_path}", startingOffset="never").schema  # noqa: B018 - Spark asks then


# The log routed


def payloads(store: penstock.Store, queue: str) -> list[int]:
    return [int(message.payload) for message in store.queue(queue).messages()]


def routed(spark: SparkSession, url: str) -> dict[str, int]:
    return {
        str(queue): int(count or 0) for queue, count in jobs.route(spark, url, available_now=True, rows=25).rows
    }


def publish(store: penstock.Store, start: int, end: int) -> None:
    for number in range(start, end):
        store.publish(str(number), headers={"digit": str(number % 10)}, priority=number % 2)


@pytest.mark.parametrize("url", LONG_BUCKET, indirect=True)
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


# Jobs


def test_the_jobs_work_on_slate_stores(spark: SparkSession, tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'store'}"
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\nc\n")
    with penstock.open(url) as store:
        store.create("jobs", keep_done=None)
        store.create("short", retention=0.01)
    summary = jobs.load(spark, str(lines), url, "jobs")
    assert [list(row) for row in summary.rows] == [["jobs", 3, 3]]
    assert jobs.load(spark, str(lines), url, "jobs").repeated
    with penstock.open(url) as store:
        store.queue("jobs").ack(*store.queue("jobs").claim(2))
        store.queue("short").put(b"12345")
    archived = jobs.archive(spark, url, tmp_path / "archive", remove=True)
    assert [list(row)[:5] for row in archived.rows] == [["jobs", 2, 0, 0, 2]]
    time.sleep(0.05)
    assert [list(row)[:4] for row in jobs.expire(spark, url, dry_run=True).rows] == [["short", 1, 0, 5]]
    assert len(jobs.expire(spark, url).rows) == 1
    assert jobs.expire(spark, url).rows == []
    assert jobs.pack(spark, url).notes
    report = jobs.report(spark, url, tmp_path / "report", archive=tmp_path / "archive")
    assert report.job == "report"
    with penstock.open(url) as store:
        assert store.queue("jobs").counts()["available"] == 1


def test_a_load_that_was_interrupted_is_finished_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"slate:{tmp_path}"
    penstock.open(url).close()
    monkeypatch.setattr(loads, "_MESSAGES", 10)
    name, place = new_name(os.getpid()), place_at(url)
    frames = []
    for number in range(5):
        payloads = [f"{number} {each}".encode() for each in range(10)]
        place.stage(name, str(number), encode_entries(Plain(payloads)))
        frames.append(Frame("default", str(number), 10, sum(map(len, payloads))))
    backend = open_slate(url)
    taken = 0
    put = backend.loads._put

    def stop(queue: str, staged: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == 3:
            raise KeyboardInterrupt
        put(queue, staged)

    monkeypatch.setattr(backend.loads, "_put", stop)
    with pytest.raises(KeyboardInterrupt):
        backend.loads.commit(Load(name, frames, {}, "run"))
    backend.close()
    with penstock.open(url) as store:
        found = [message.payload.decode() for message in store.queue().messages()]
        assert found == [f"{number} {each}" for number in range(5) for each in range(10)]
    assert not place.list_loads()
