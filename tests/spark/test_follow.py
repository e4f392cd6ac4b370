"""readStream with mode "follow": what enters a queue, in order, and nothing is taken from it."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import penstock
from penstock.contract.stream_operations import Streams
from tests.spark.streams import Recorder, forget_last, run


def following(spark: SparkSession, store: Path, **options: Any) -> DataStreamReader:
    given = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("penstock").option("store", str(store)).option("queue", "jobs").options(**given)


def ids(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def test_what_enters_a_queue_is_read_once_while_it_is_consumed_and_packed(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, checkpoint, sink = tmp_path / "store", tmp_path / "checkpoint", Recorder()
    with penstock.open(folder) as store:
        queue = store.create("jobs")
        queue.put_many(["old"] * 25)
        stream = following(spark, folder, maxRowsPerBatch=10, stream="tail")
        run(stream.load(), sink, checkpoint)
        assert sink.batches == {0: [ids(1, 10)], 1: [ids(11, 20)], 2: [ids(21, 25)]}
        queue.put_many(["new"] * 10)
        queue.ack(*queue.claim(35))
        store.backend.pack("jobs")  # type: ignore[attr-defined]
        forget_last(checkpoint)
        run(stream.load(), sink, checkpoint)
        assert sink.batches[2] == [ids(21, 25)] * 2
        assert sink.ids() == ids(1, 35)
        [info] = Streams(store.run).all()
        assert (info.mode, info.batch) == ("follow", 35)
        assert queue.counts()["in_flight"] == 0


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
