"""readStream with mode "consume": every message comes out once, whatever Spark repeats."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

import penstock
import penstock.spark
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import StreamInfo, boot, reader_name
from penstock.errors import InvalidArgument, NotSupported
from penstock.http.server import serve_in_thread
from penstock.spark.options import parse_stream
from penstock.spark.streaming.consuming import parts_of_batch
from penstock.spark.streaming.settling import BatchName
from penstock.spark.tables import schema_of
from penstock.system import processes
from tests.spark.stores import opened
from tests.spark.streams import Recorder, check_groups, consuming, forget_last, reject, run


@pytest.mark.parametrize("kind", ["journal", "slate"])
def test_a_groups_messages_come_in_order_within_and_across_batches(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    url, sink = f"{kind}:{tmp_path / 'store'}", Recorder()
    with penstock.open(url) as found:
        drafts = [penstock.Draft(b"x", group="a" if number < 40 else None) for number in range(50)]
        found.create("jobs").put_many(drafts)
    groups: list[str | None] = []

    def process(rows: DataFrame, number: int) -> None:
        sink(rows, number)
        groups.extend(row["group"] for row in rows.select("id", "group").orderBy("id").collect())

    assert penstock.spark.drain(consuming(spark, url, maxRowsPerBatch=20), process, tmp_path / "checkpoint") == 3
    assert groups.count("a") == 40
    in_order = [int(each) for number in range(3) for each in sorted(sink.batches[number][0], key=int)]
    assert [each for each in in_order if each <= 40] == list(range(1, 41))
    with penstock.open(url) as found:
        assert found.queue("jobs").count() == 0


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("journal", {"maxRowsPerBatch": 17}),
        pytest.param("slate", {"maxBytesPerBatch": 1_700}, marks=pytest.mark.long),
    ],
)
def test_groups_keep_their_order_across_limits_failures_and_lost_commits(
    spark: SparkSession, kind: str, limits: dict[str, Any], tmp_path: Path
) -> None:
    url, sink, checkpoint = f"{kind}:{tmp_path / 'store'}", Recorder(), tmp_path / "checkpoint"
    with penstock.open(url) as found:
        queue = found.create("jobs", max_attempts=2)
        names = [("a", "b", "a", None, "c")[number % 5] for number in range(60)]
        ids = queue.put_many([penstock.Draft(b"x" * 100, group=name) for name in names])

    def process(rows: DataFrame, number: int) -> None:
        reject(rows)
        sink(rows, number)

    stream = consuming(spark, url, **limits)
    run(stream.load(), process, checkpoint)
    last = forget_last(checkpoint)
    while True:
        run(stream.load(), process, checkpoint)
        penstock.spark.settle(checkpoint)
        with penstock.open(url) as found:
            if not any(found.queue("jobs").counts().values()):
                break
    assert len(sink.batches[last]) == 2
    sink.ids()  # asserts that a batch had the same messages each time
    batches = [sink.batches[number][0] for number in sorted(sink.batches)]
    assert max(map(len, batches)) == 17
    check_groups(batches, dict(zip(ids, names, strict=True)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "store") as made:
        made.create("jobs", max_attempts=2)
        made.queue("jobs").put_many([b"message %d" % number for number in range(50)])
    return tmp_path / "store"


def counts(store: Path) -> dict[str, int]:
    with penstock.open(store) as found:
        return {state: count for state, count in found.queue("jobs").counts().items() if count}


def streams(store: Path) -> list[StreamInfo]:
    with penstock.open(store) as found:
        return Streams(found.run).all()


def ids(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def test_a_queue_is_drained_and_settled_within_limits(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    sink = Recorder()
    stream = consuming(spark, store, maxRowsPerBatch=20)
    assert penstock.spark.drain(stream, sink, tmp_path / "checkpoint") == 3
    assert sink.batches == {0: [ids(1, 20)], 1: [ids(21, 40)], 2: [ids(41, 50)]}
    assert counts(store) == {}
    [info] = streams(store)
    assert (info.queue, info.stream, info.batch, info.settled, info.messages) == ("jobs", "nightly", 3, 3, 0)
    assert not os.listdir(store / ".penstock" / "pins") or penstock.spark.settle(tmp_path / "checkpoint") == 0


@pytest.mark.parametrize("kind", ["journal", pytest.param("slate", marks=pytest.mark.long)])
def test_every_message_comes_out_once_and_a_lost_commit_brings_the_same_again(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    url, sink, checkpoint = f"{kind}:{tmp_path / 'other'}", Recorder(), tmp_path / "checkpoint"
    with penstock.open(url) as found:
        queue = found.create("jobs", max_attempts=0)
        expected = queue.put_many([*[b"message %d" % number for number in range(48)], b"x" * 70_000, b""])
    payloads: dict[str, bytes] = {}

    def process(rows: DataFrame, number: int) -> None:
        sink(rows, number)
        payloads.update({row.id: bytes(row.payload) for row in rows.select("id", "payload").collect()})
        if number == 0:
            penstock.spark.fail(rows.where(f"id = '{expected[3]}'"), "odd")

    stream = consuming(spark, url, maxRowsPerBatch=20)
    run(stream.load(), process, checkpoint)
    with penstock.open(url) as found:
        more = found.queue("jobs").put_many(["more"] * 10)
    for _ in range(2):
        last = forget_last(checkpoint)
        run(stream.load(), process, checkpoint)
    assert len(sink.batches[last]) == 2
    assert len(sink.batches[0][0]) == 20
    assert sorted(sink.ids(), key=int) == sorted([*expected, expected[3], *more], key=int)
    assert (payloads[expected[47]], payloads[expected[48]]) == (b"message 47", b"x" * 70_000)
    penstock.spark.settle(checkpoint)
    with penstock.open(url) as found:
        assert not any(found.queue("jobs").counts().values())


def test_a_batch_that_spark_never_logged_is_offered_again(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    sink, checkpoint = Recorder(), tmp_path / "checkpoint"
    stream = consuming(spark, store, maxRowsPerBatch=20)

    def fails_at(number: int) -> Any:
        def process(rows: DataFrame, batch: int) -> None:
            if batch == number:
                raise RuntimeError("no")
            sink(rows, batch)

        return process

    with pytest.raises(StreamingQueryException, match="no"):
        run(stream.load(), fails_at(1), checkpoint)
    assert counts(store)["in_flight"] == 20
    forget_last(checkpoint, "offsets")
    run(stream.load(), sink, checkpoint)
    assert sink.batches == {0: [ids(1, 20)], 1: [ids(21, 40)], 2: [ids(41, 50)]}
    assert counts(store) == {}


def test_a_rewound_checkpoint_gets_the_last_batch_again_and_an_older_one_is_refused(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    sink, checkpoint = Recorder(), tmp_path / "checkpoint"
    stream = consuming(spark, store, maxRowsPerBatch=20)
    run(stream.load(), sink, checkpoint)
    for log in ("commits", "offsets"):
        forget_last(checkpoint, log)
    run(stream.load(), sink, checkpoint)
    assert sink.batches[2] == [ids(41, 50)] * 2
    for log in ("commits", "offsets"):
        for _ in range(2):
            forget_last(checkpoint, log)
    with pytest.raises(StreamingQueryException, match="what is between is gone"):
        run(stream.load(), sink, checkpoint)
    with pytest.raises(StreamingQueryException, match="the checkpoint is new"):
        run(stream.load(), sink, tmp_path / "another")


def test_rows_that_processing_rejects_fail_when_the_batch_is_settled(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream = consuming(spark, store)

    def first(rows: DataFrame, number: int) -> None:
        assert penstock.spark.fail(rows.where("id < 5"), "too small") == 4
        with pytest.raises(InvalidArgument, match="no column receipt"):
            penstock.spark.fail(rows.select("id"))
        raise RuntimeError("stopped")

    def second(rows: DataFrame, number: int) -> None:
        penstock.spark.fail(rows.where("id IN (7, 8)"), "odd")
        penstock.spark.fail(rows.where("id = 9").select("receipt"), "odder")

    with pytest.raises(StreamingQueryException, match="stopped"):
        run(stream.load(), first, checkpoint)
    assert streams(store)[0].failures == 4
    run(stream.load(), second, checkpoint)
    penstock.spark.settle(checkpoint)
    with penstock.open(store) as found:
        reasons = {message.id: (message.reason, message.state) for message in found.queue("jobs").messages()}
    assert reasons == {"7": ("odd", "available"), "8": ("odd", "available"), "9": ("odder", "available")}


@pytest.mark.parametrize(
    "kind", ["journal", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("server", "server of slate"))]
)
def test_drain_delivers_all_that_is_there_once_however_many_rows_are_rejected(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    seen: list[str] = []

    def process(batch: DataFrame, number: int) -> None:
        seen.extend(row.id for row in batch.select("id").collect())
        penstock.spark.fail(batch.where("cast(id AS bigint) % 5 < 2"), "no", delay=3_600)
        penstock.spark.fail(batch.where("cast(id AS bigint) % 5 = 0"), "at once")

    with opened(kind, request, tmp_path / "other") as place:
        expected = place.store.create("many").put_many([b"x"] * 400)
        stream = consuming(spark, place.url, "many", maxRowsPerBatch=100)
        assert penstock.spark.drain(stream, process, tmp_path / "checkpoint") == 4
        counts = place.store.queue("many").counts()
    assert sorted(seen, key=int) == sorted(expected, key=int)
    assert (counts["delayed"], counts["available"], counts["in_flight"]) == (80, 80, 0)


@pytest.mark.long
def test_two_streams_share_a_queue_and_two_queries_never_one_stream(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    sinks, count = [Recorder(), Recorder()], 50
    queries = [
        consuming(spark, store, stream=f"s{number}", maxRowsPerBatch=7)
        .load()
        .writeStream.foreachBatch(sinks[number])
        .option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
        .trigger(processingTime="10 milliseconds")
        .start()
        for number in range(2)
    ]
    try:
        while len(streams(store)) < 2:  # else the twin might be the first
            assert all(query.isActive for query in queries)
            time.sleep(0.05)
        twin = consuming(spark, store, stream="s0").load().writeStream.foreachBatch(Recorder())
        with pytest.raises(StreamingQueryException, match="is read by another process"):
            twin.option("checkpointLocation", str(tmp_path / "twin")).start().awaitTermination()
        with penstock.open(store) as found:
            while not all(sink.batches for sink in sinks):  # one may have been much quicker than the other
                count += len(found.queue("jobs").put_many([b"more"] * 14))
                time.sleep(0.05)
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert sorted([*sinks[0].ids(), *sinks[1].ids()], key=int) == ids(1, count)
    for number in range(2):
        penstock.spark.settle(tmp_path / f"checkpoint{number}")
    assert counts(store) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "other"},
        *(pytest.param(each, marks=pytest.mark.long) for each in ({"stream": "weekly"}, {"store": "elsewhere"})),
    ],
)
def test_the_checkpoint_of_another_stream_is_refused_and_no_stream_is_made(
    spark: SparkSession, store: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    elsewhere = tmp_path / options.pop("store", "store")
    for url in {store, elsewhere}:
        with penstock.open(url) as found:
            for name in {"jobs", "other"} - {info.name for info in found.queues()}:
                found.create(name).put(b"x")
    run(consuming(spark, store, maxRowsPerBatch=20).load(), Recorder(), tmp_path / "checkpoint")
    before = streams(store), streams(elsewhere)
    with pytest.raises(StreamingQueryException, match="the checkpoint is of stream 'nightly' of queue 'jobs' in"):
        run(consuming(spark, elsewhere, **options).load(), Recorder(), tmp_path / "checkpoint")
    assert (streams(store), streams(elsewhere)) == before


def test_progress_says_how_many_messages_wait_behind_a_batch(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    query = run(consuming(spark, store, maxRowsPerBatch=20).load(), Recorder(), tmp_path / "checkpoint")
    latest = [json.loads(str(each["sources"][0]["latestOffset"])) for each in query.recentProgress]
    assert [(each["batch"], each["behind"]) for each in latest][:3] == [(1, 30), (2, 10), (3, 0)]


def test_a_batch_has_as_many_tasks_as_are_asked_for(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    tasks = []

    def process(rows: DataFrame, number: int) -> None:
        tasks.append((rows.rdd.getNumPartitions(), rows.count()))

    run(consuming(spark, store, numPartitions=5).load(), process, tmp_path / "checkpoint")
    assert tasks == [(5, 50)]


@pytest.mark.long
def test_a_batch_that_is_given_back_replays_empty(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    sink, checkpoint = Recorder(), tmp_path / "checkpoint"
    stream = consuming(spark, store, maxRowsPerBatch=30)

    def fail(rows: DataFrame, number: int) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(StreamingQueryException, match="stopped"):
        run(stream.load(), fail, checkpoint)
    with penstock.open(store) as found:
        assert Streams(found.run).release("jobs", "nightly") == 30
    run(stream.load(), sink, checkpoint)
    assert sink.batches[0] == [[]]
    assert sorted(sink.ids(), key=int) == ids(1, 50)


def test_a_store_that_another_process_has_open_is_read_through_it_and_packed_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    with penstock.open(tmp_path / "store") as owner:
        queue = owner.create("jobs")
        queue.put_many([b"x" * 1_000] * 400)

        def pack(rows: DataFrame, number: int) -> None:
            owner.backend.pack("jobs")  # type: ignore[attr-defined]
            sink(rows, number)
            owner.backend.pack("jobs")  # type: ignore[attr-defined]

        sink = Recorder()
        stream = consuming(spark, tmp_path / "store", maxRowsPerBatch=150)
        run(stream.load(), pack, tmp_path / "checkpoint")
        forget_last(tmp_path / "checkpoint")
        run(stream.load(), pack, tmp_path / "checkpoint")
        assert sink.ids() == ids(1, 400)
        assert len(sink.batches[2]) == 2
        assert not any(queue.counts().values())


def test_a_server_is_read_through_its_files(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner:
        owner.create("jobs").put_many([b"x" * 100] * 2_500)
        server = serve_in_thread(owner)
        try:
            seen: list[Any] = []
            sink = Recorder()

            def look(rows: DataFrame, number: int) -> None:
                seen.append(rows.select("payload", "receipt", "consumer").first())
                sink(rows, number)

            stream = consuming(spark, server.url, maxRowsPerBatch=2_000)
            run(stream.load(), look, tmp_path / "checkpoint")
            assert sorted(sink.ids(), key=int) == ids(1, 2_500)
            assert [row.payload for row in seen if row] == [b"x" * 100] * 2
            assert seen[0].receipt.startswith("stream:1:")
        finally:
            server.stop()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "eat"}, "follow or consume"),
        ({"stream": ""}, "is no name for a stream"),
        ({"maxRowsPerBatch": "0"}, "whole number from 1 on"),
        ({"startingOffset": "earliest"}, "is for mode follow"),
        ({"table": "queues"}, "there is no option 'table' of a stream; there are store, queue, mode, stream, "),
        ({"maxrowperbatch": "7"}, r"'maxrowperbatch' of a stream \(is it maxRowsPerBatch\?\); there are store, "),
        ({"numPartitions": "0"}, "option numPartitions is a whole number from 1 on"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        parse_stream({"store": "data", "mode": "consume", "stream": "s", **options})


@pytest.mark.parametrize("url", ["text:data", "folder:data", "queue.tq"])
def test_other_stores_have_no_streams_and_say_so(url: str) -> None:
    with pytest.raises(NotSupported, match="has no streams"):
        parse_stream({"store": url, "mode": "consume", "stream": "s"})


def test_who_sees_no_files_asks_for_the_messages_of_its_part(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner:
        queue = owner.create("jobs")
        queue.put_many([penstock.Draft(b"%d" % number, priority=number % 2) for number in range(1_700)])
        server = serve_in_thread(owner)
        try:
            given = Streams(owner.run)
            given.begin("jobs", "s", reader_name())
            given.next("jobs", "s", reader_name(), 0, 1_600, 1 << 30)
            schema = to_arrow_schema(schema_of("messages"), timezone="UTC")
            name = BatchName(1, "s", "jobs", server.url)
            [asked] = parts_of_batch(given.read("jobs", "s", 1, None), name, schema)[0]
            assert asked.files is None
            pins = f"{processes.name_of(os.getpid())}@{boot()}"
            [seen], files = parts_of_batch(given.read("jobs", "s", 1, pins), name, schema)
            assert seen.files.exists()
            rows = [
                sorted((row for batch in part.read(schema) for row in batch.to_pylist()), key=by_id)
                for part in (asked, seen)
            ]
            assert rows[0] == rows[1]
            assert len({row["id"] for row in rows[0]}) == 1_600
            assert files is not None
            files.drop()
            assert not os.path.exists(os.path.dirname(seen.files.path))
        finally:
            server.stop()


def by_id(row: dict[str, Any]) -> int:
    return int(row["id"])


@pytest.mark.long
def test_a_bucket_is_drained_through_the_process_that_has_it_open(
    spark: SparkSession, bucket: str, tmp_path: Path
) -> None:
    sink = Recorder()
    with penstock.open(bucket) as store:
        queue = store.create("jobs")
        ids = queue.put_many(["a", "b", "c"])
        stream = consuming(spark, bucket, maxRowsPerBatch=2)
        assert penstock.spark.drain(stream, sink, tmp_path / "checkpoint") == 2
        assert not any(queue.counts().values())
    assert sink.batches == {0: [ids[:2]], 1: [ids[2:]]}


def test_a_task_on_another_machine_is_told_to_ask_a_server(tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        store.create("jobs").put_many(["a", "b"])
        given, schema = Streams(store.run), to_arrow_schema(schema_of("messages"), timezone="UTC")
        given.begin("jobs", "s", reader_name())
        given.next("jobs", "s", reader_name(), 0, 9, 1 << 30)
        [part] = parts_of_batch(given.read("jobs", "s", 1, None), BatchName(1, "s", "jobs", url), schema)[0]
        assert sum(len(batch) for batch in part.read(schema)) == 2
        with pytest.raises(NotSupported, match="give Spark its http://host:port"):
            list(replace(part, machine="another").read(schema))
