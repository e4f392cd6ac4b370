"""readStream with mode "consume" on slate stores: tasks ask whoever has the store open for the messages."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

import penstock
import penstock.spark
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.errors import NotSupported
from penstock.http.server import serve_in_thread
from penstock.spark.streaming.consuming import parts_of_batch
from penstock.spark.streaming.settling import BatchName
from penstock.spark.tables import schema_of
from tests.spark.streams import Recorder, consuming, forget_last, run


def test_every_message_of_a_folder_comes_out_once_and_a_lost_commit_brings_the_same_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink, checkpoint = f"slate:{tmp_path / 'store'}", Recorder(), tmp_path / "checkpoint"
    with penstock.open(url) as store:
        queue = store.create("jobs", max_attempts=0)
        ids = queue.put_many([*[b"message %d" % number for number in range(48)], b"x" * 70_000, b""])
    payloads: dict[str, bytes] = {}

    def process(rows: DataFrame, number: int) -> None:
        sink(rows, number)
        payloads.update({row.id: bytes(row.payload) for row in rows.select("id", "payload").collect()})
        if number == 0:
            penstock.spark.fail(rows.where(f"id = '{ids[3]}'"), "odd")

    stream = consuming(spark, url, maxRowsPerBatch=20)
    run(stream.load(), process, checkpoint)
    last = forget_last(checkpoint)
    run(stream.load(), process, checkpoint)
    assert len(sink.batches[last]) == 2
    assert len(sink.batches[0][0]) == 20
    assert sorted(set(sink.ids()), key=int) == ids
    assert sorted([*ids, ids[3]], key=int) == sorted(sink.ids(), key=int)
    assert payloads[ids[48]] == b"x" * 70_000
    assert payloads[ids[47]] == b"message 47"
    penstock.spark.settle(checkpoint)
    with penstock.open(url) as store:
        assert not any(store.queue("jobs").counts().values())


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
        streams, schema = Streams(store.run), to_arrow_schema(schema_of("messages"), timezone="UTC")
        streams.begin("jobs", "s", reader_name())
        streams.next("jobs", "s", reader_name(), 0, 9, 1 << 30)
        [part] = parts_of_batch(streams.read("jobs", "s", 1, None), BatchName(1, "s", "jobs", url), schema)[0]
        assert sum(len(batch) for batch in part.read(schema)) == 2
        with pytest.raises(NotSupported, match="give Spark its http://host:port"):
            list(replace(part, machine="another").read(schema))


@pytest.mark.parametrize("kind", ["", "slate:"])
def test_a_server_is_drained_of_all_that_is_there_however_many_rows_are_rejected(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[str] = []

    def process(batch: DataFrame, number: int) -> None:
        seen.extend(row.id for row in batch.select("id").collect())
        penstock.spark.fail(batch.where("cast(id AS bigint) % 5 < 2"), "no", delay=3_600)
        penstock.spark.fail(batch.where("cast(id AS bigint) % 5 = 0"), "at once")

    with penstock.open(f"{kind}{tmp_path / 'store'}") as store:
        ids = store.create("jobs").put_many([b"x"] * 200)
        server = serve_in_thread(store)
        try:
            stream = consuming(spark, server.url, maxRowsPerBatch=50)
            assert penstock.spark.drain(stream, process, tmp_path / "checkpoint") == 4
        finally:
            server.stop()
        counts = store.queue("jobs").counts()
    assert sorted(seen, key=int) == sorted(ids, key=int)
    assert (counts["delayed"], counts["available"], counts["in_flight"]) == (40, 40, 0)
