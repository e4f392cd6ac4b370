"""readStream on the log of a slate store."""

import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"slate:{tmp_path / 'store'}"
    bucket: str = request.getfixturevalue("bucket")
    return bucket


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
