"""Spark reads a database that another program wrote by OpenData-Queue's document, opened here before or not."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.spark import jobs
from tests.stores.slate.opendata import START, Available, InFlight, Settled, Writer

IDS = [1, 1_024, 70_000, 2**40 + 5, 2**62 - 1]


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").option("store", url).options(**options).load()


def write(folder: Path, numbers: list[int], instance: str = "") -> str:
    """Messages whose IDs lie far apart, in the log under these numbers."""
    writer = Writer(instance)
    for each, number in zip(IDS, numbers, strict=True):
        writer.message(each, b"payload %d" % each, number, kind=f"of {each}")
    far = 2**42 - 1
    writer.queue(
        b"jobs",
        available=[Available(IDS[4], 9), Available(IDS[1], 7)],
        in_flight=[InFlight(IDS[3], 3, START, far)],
        done=[Settled(IDS[2])],
        failed=[Settled(IDS[0])],
    )
    writer.queue(b"other", available=[Available(IDS[4])])
    writer.write(folder)
    return f"slate:{folder}"


@pytest.mark.parametrize("numbers", [IDS, [1, 2, 3, 4, 5], [*IDS[1:], IDS[0]]])
def test_messages_and_the_log_are_read_by_their_ids(
    spark: SparkSession, tmp_path: Path, numbers: list[int]
) -> None:
    url = write(tmp_path / "store", numbers)
    for _ in range(2):
        found = load(spark, url).orderBy("queue", "id").collect()
        states = {(row["queue"], int(row["id"])): (row["state"], row["priority"]) for row in found}
        assert states == {
            ("jobs", IDS[0]): ("failed", 0),
            ("jobs", IDS[1]): ("available", 7),
            ("jobs", IDS[2]): ("done", 0),
            ("jobs", IDS[3]): ("in_flight", 3),
            ("jobs", IDS[4]): ("available", 9),
            ("other", IDS[4]): ("available", 0),
        }
        for row in found:
            assert bytes(row["payload"]) == b"payload " + row["id"].encode()
            assert row["headers"]["kind"] == f"of {row['id']}"
        log = load(spark, url, table="log").collect()
        assert sorted((row["sequence"], bytes(row["payload"])) for row in log) == [
            (each, b"payload %d" % each) for each in IDS
        ]
        counts = {row["name"]: row["available"] for row in load(spark, url, table="queues").collect()}
        assert (counts["jobs"], counts["other"]) == (2, 1)
        with penstock.open(url):
            pass  # and once more as a store that was opened


def test_a_stream_reads_a_sparse_log_in_few_batches(spark: SparkSession, tmp_path: Path) -> None:
    url, batches = write(tmp_path / "store", IDS), list[list[int]]()

    def take(batch: DataFrame, number: int) -> None:
        batches.append(sorted(row["sequence"] for row in batch.collect()))

    frame = spark.readStream.format("penstock").options(store=url, table="log", maxRowsPerBatch="2").load()
    writing = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
    assert [batch for batch in batches if batch] == [IDS[:2], IDS[2:4], IDS[4:]]


def test_a_filter_of_another_grammar_holds_up_no_other_queue(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer()
    for each in range(2_000, 2_010):
        writer.message(each, b"x", kind="a")
    writer.queue(b"odd", "kind ~ '^a'")
    writer.queue(b"ours", "kind = 'a'")
    writer.write(tmp_path / "store")
    url = f"slate:{tmp_path / 'store'}?router=off"
    with penstock.open(url) as store:
        assert store.queue("ours").count() == 0
        assert jobs.route(spark, url, available_now=True).rows == [("ours", 10)]
        assert (store.queue("ours").count(), store.queue("odd").count()) == (10, 0)


def test_another_instance_than_that_of_the_database_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = write(tmp_path / "store", IDS, "news")
    for table in ("messages", "log", "queues"):
        with pytest.raises(PySparkException, match="'news'"):
            load(spark, url, table=table).collect()
    assert load(spark, f"{url}?instance=news").count() == 6


@pytest.mark.long
def test_65_535_messages_in_one_record_are_read_one_for_one(spark: SparkSession, tmp_path: Path) -> None:
    writer, ids = Writer(), [7 * number + 3 for number in range(65_535)]
    for each in ids:
        writer.message(each, str(each).encode())
    writer.queue(b"jobs", available=[Available(each) for each in ids])
    writer.write(tmp_path / "store")
    found = load(spark, f"slate:{tmp_path / 'store'}").selectExpr("id", "cast(payload AS string) AS payload")
    assert found.where("id = payload").distinct().count() == len(ids)
