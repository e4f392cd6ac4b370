"""readStream with mode "follow": what enters a queue, in order, and nothing is taken from it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import penstock
from penstock.contract.stream_operations import Streams
from tests.spark.stores import opened
from tests.spark.streams import Recorder, forget_last, run


def following(spark: SparkSession, store: object, **options: object) -> DataStreamReader:
    given = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("penstock").option("store", str(store)).option("queue", "jobs").options(**given)


def ids(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


@pytest.fixture
def clock() -> penstock.SimulatedClock:
    return penstock.SimulatedClock()


@pytest.fixture(
    params=[pytest.param("server", marks=pytest.mark.long), "slate"]
)  # which are asked, as there are no files to be read
def place(
    request: pytest.FixtureRequest, tmp_path: Path, clock: penstock.SimulatedClock
) -> Iterator[tuple[str, penstock.Store]]:
    """What Spark is given, and the store."""
    with opened(request.param, request, tmp_path / "store", clock) as found:
        found.store.create("jobs")
        yield found.url, found.store


def settle_all(store: penstock.Store) -> None:
    queue = store.queue("jobs")
    while messages := queue.claim(100):
        queue.ack(*messages)
    if not store.url.startswith("slate"):
        store.backend.pack("jobs")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "place",
    [
        "journal",
        pytest.param("server", marks=pytest.mark.long),
        "slate",
        pytest.param("server of slate", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_every_message_is_read_once_though_it_is_settled_and_a_lost_commit_brings_the_same_again(
    spark: SparkSession, place: tuple[str, penstock.Store], tmp_path: Path
) -> None:
    url, store = place
    sink, checkpoint, payloads = Recorder(), tmp_path / "checkpoint", dict[str, bytes]()
    queue = store.queue("jobs")
    ids = queue.put_many([*[b"old %d" % number for number in range(24)], b"x" * 70_000])

    def process(rows: DataFrame, number: int) -> None:
        sink(rows, number)
        payloads.update({row.id: bytes(row.payload) for row in rows.select("id", "payload").collect()})
        if number == 1 and len(sink.batches[1]) == 1:  # the third batch is not read yet
            store.queue().put_many(["of another queue"] * 5)
            settle_all(store)

    stream = following(spark, url, maxRowsPerBatch=10, stream="tail")
    run(stream.load(), process, checkpoint)
    assert sink.batches == {0: [ids[:10]], 1: [ids[10:20]], 2: [ids[20:]]}
    ids += queue.put_many(["new"] * 10)
    settle_all(store)
    forget_last(checkpoint)
    run(stream.load(), process, checkpoint)
    assert sink.batches[2] == [ids[20:25]] * 2
    assert sink.ids() == ids
    assert (payloads[ids[23]], payloads[ids[24]], payloads[ids[25]]) == (b"old 23", b"x" * 70_000, b"new")
    [info] = Streams(store.run).all()
    assert (info.mode, info.stream, str(info.batch)) == ("follow", "tail", ids[-1])
    assert queue.counts()["in_flight"] == 0


def test_queries_begin_where_each_is_told_and_say_what_they_have_lost(
    spark: SparkSession, place: tuple[str, penstock.Store], clock: penstock.SimulatedClock, tmp_path: Path
) -> None:
    url, store = place
    queue, first, second = store.queue("jobs"), Recorder(), Recorder()
    old = queue.put_many(["old"] * 5)
    clock.advance(1)
    moment = datetime.fromtimestamp(clock.now() / 1000, UTC).isoformat()
    latest = following(spark, url, startingOffset="latest")
    since = following(spark, url, startingOffset=moment)
    run(latest.load(), first, tmp_path / "first")
    new = queue.put_many(["new"] * 5)
    run(since.load(), second, tmp_path / "second")
    run(latest.load(), first, tmp_path / "first")
    assert (first.ids(), second.ids()) == (new, new)
    clock.advance(61)  # nobody was heard for a minute
    store.backend._backend.tend()  # type: ignore[attr-defined]
    queue.put_many(["lost"] * 3)
    settle_all(store)
    last = queue.put_many(["last"])
    with pytest.raises(StreamingQueryException, match="messages of queue 'jobs' were settled and"):
        run(latest.load(), first, tmp_path / "first")
    run(since.option("failOnDataLoss", "false").load(), second, tmp_path / "second")
    assert second.ids() == [*new, *last]
    assert old[0] not in second.ids()


@pytest.mark.parametrize("place", ["slate"], indirect=True)
def test_a_query_that_goes_on_misses_nothing_that_is_settled_at_once(
    spark: SparkSession, place: tuple[str, penstock.Store], tmp_path: Path
) -> None:
    url, store = place
    queue, sink = store.queue("jobs"), Recorder()
    query = (
        following(spark, url, startingOffset="latest", payload="false")
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        ids: list[str] = []
        for _ in range(3):
            ids += queue.put_many(["x"] * 20)
            settle_all(store)
            query.processAllAvailable()
    finally:
        query.stop()
    assert sink.ids() == ids


@pytest.mark.long
def test_a_query_that_begins_with_what_comes_next_keeps_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    folder, checkpoint, sink = tmp_path / "store", tmp_path / "checkpoint", Recorder()
    with penstock.open(folder) as store:
        queue = store.create("jobs")
        queue.put_many(["old"] * 5)
        stream = following(spark, folder, startingOffset="latest")
        run(stream.load(), sink, checkpoint)
        queue.put_many(["new"] * 5)
        forget_last(checkpoint)
        run(stream.load(), sink, checkpoint)
        assert sink.ids() == ids(6, 10)


@pytest.mark.long
def test_messages_that_were_packed_away_unread_are_an_error_unless_it_is_said_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, checkpoint, sink = tmp_path / "store", tmp_path / "checkpoint", Recorder()
    with penstock.open(folder) as store:
        queue = store.create("jobs")
        queue.put_many(["a"] * 5)
        run(following(spark, folder).load(), sink, checkpoint)
        queue.put_many(["b"] * 5)
        queue.ack(*queue.claim(8))
        store.backend.pack("jobs")  # type: ignore[attr-defined]
        with pytest.raises(StreamingQueryException, match="3 messages of queue 'jobs' were settled and packed"):
            run(following(spark, folder).load(), sink, checkpoint)
        run(following(spark, folder, failOnDataLoss="false").load(), sink, checkpoint)
        assert sink.ids() == [*ids(1, 5), *ids(9, 10)]


def test_the_checkpoint_of_another_queue_is_refused_and_no_follower_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    with penstock.open(tmp_path / "store") as store:
        for name in ("jobs", "other"):
            store.create(name).put_many([b"x"] * 10)
    run(following(spark, tmp_path / "store").load(), Recorder(), tmp_path / "checkpoint")
    other = following(spark, tmp_path / "store", queue="other", stream="audit").load()
    with pytest.raises(StreamingQueryException, match="the checkpoint is of queue 'jobs': follow that one"):
        run(other, Recorder(), tmp_path / "checkpoint")
    with penstock.open(tmp_path / "store") as store:
        assert Streams(store.run).all() == []


def test_a_checkpoint_of_an_older_version_names_no_queue_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        store.create("jobs").put_many([b"x"] * 10)
    sink, checkpoint = Recorder(), tmp_path / "checkpoint"
    run(following(spark, tmp_path / "store", maxRowsPerBatch=6).load(), sink, checkpoint)
    for path in (checkpoint / "offsets").glob("[0-9]"):
        path.write_text(path.read_text().replace(', "queue": "jobs"', ""))
        (checkpoint / "offsets" / f".{path.name}.crc").unlink(missing_ok=True)
    assert '"queue"' not in (checkpoint / "offsets" / "1").read_text()
    with penstock.open(tmp_path / "store") as store:
        store.queue("jobs").put(b"one more")
    run(following(spark, tmp_path / "store").load(), sink, checkpoint)
    assert sink.batches == {0: [ids(1, 6)], 1: [ids(7, 10)], 2: [ids(11, 11)]}


@pytest.mark.parametrize("place", ["journal", "server", "slate"], indirect=True)
def test_progress_says_how_far_a_follower_is_behind(
    spark: SparkSession, place: tuple[str, penstock.Store], tmp_path: Path
) -> None:
    url, store = place
    store.queue("jobs").put_many([b"x"] * 30)
    query = run(
        following(spark, url, maxRowsPerBatch=20, numPartitions=1).load(), Recorder(), tmp_path / "checkpoint"
    )
    latest = [json.loads(str(each["sources"][0]["latestOffset"])) for each in query.recentProgress]
    assert [each["behind"] for each in latest][:2] == [10, 0]
