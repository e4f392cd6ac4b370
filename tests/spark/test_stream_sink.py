"""writeStream.format("penstock"): every batch of a query lands once."""

import json
import os
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from penstock.contract.loads import SinkCommit
from penstock.contract.message import Entry
from penstock.contract.operations import Counts
from penstock.errors import StreamMismatch
from penstock.stores.journal import staging
from penstock.stores.journal.loads import Load
from penstock.stores.journal.store import open_journal
from tests.spark.stores import opened
from tests.spark.streams import forget_last
from tests.stores.journal.journals import staged


def write(spark: SparkSession, source: Path, store: object, checkpoint: Path, **options: str) -> None:
    """Write what is in a folder of texts, a file in each batch."""
    texts = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
    query = texts.selectExpr("value AS payload").writeStream.format("penstock").option("store", str(store))
    query = query.option("queue", "out").option("checkpointLocation", str(checkpoint)).options(**options)
    query.trigger(availableNow=True).start().awaitTermination()


def texts(folder: Path, first: int, last: int) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(first, last + 1):
        (folder / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
        os.utime(folder / f"{number}.txt", (number, number))
    return folder


def payloads(store: penstock.Store) -> list[str]:
    return [message.payload.decode() for message in store.queue("out").messages()]


@pytest.mark.parametrize(
    "kind",
    [
        "journal", "slate",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in ("server", "server of slate", "server of a guest", "bucket")
        ),
    ],
)  # fmt: skip
def test_a_batch_that_spark_writes_again_lands_once_and_a_new_query_lands_anew(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    source, checkpoint = texts(tmp_path / "texts", 1, 2), tmp_path / "checkpoint"
    with opened(kind, request, tmp_path / "store") as place:  # which takes in what Spark stages
        place.store.create("out")
        write(spark, source, place.url, checkpoint)
        texts(source, 3, 3)
        assert forget_last(checkpoint) == 1
        write(spark, source, place.url, checkpoint)
        assert payloads(place.store) == ["1a", "1b", "2a", "2b", "3a", "3b"]
        shutil.rmtree(checkpoint)
        write(spark, source, place.url, checkpoint)
        assert payloads(place.store) == ["1a", "1b", "2a", "2b", "3a", "3b"] * 2
        write(spark, source, place.url, tmp_path / "named", sinkId="nightly")
        with pytest.raises(StreamingQueryException, match="give the new query a sinkId of its own"):
            write(spark, source, place.url, tmp_path / "renamed", sinkId="nightly")
        assert len(payloads(place.store)) == 18
        assert place.staged() == []
        if kind == "server":
            assert not place.store.backend.owned.uploads()._open  # type: ignore[attr-defined]


def test_a_landing_is_remembered_with_the_load_that_brought_it(tmp_path: Path) -> None:
    """Also when a crash came right after the load began to count."""
    backend = open_journal(tmp_path / "store")

    def load(sink: SinkCommit) -> Load:
        return staged(backend, {"part-0": {"default": [Entry(b"x")]}}, sink=sink)

    assert backend.load(load(SinkCommit("s", "q", 4)))
    assert not backend.load(load(SinkCommit("s", "q", 4)))
    assert not backend.load(load(SinkCommit("s", "q", 3)))
    with pytest.raises(StreamMismatch, match="of a new query"):
        backend.load(load(SinkCommit("s", "another", 4)))
    assert backend.load(load(SinkCommit("s", "another", 5)))
    interrupted = load(SinkCommit("s", "another", 6))
    backend._loads._begin_to_count(staging.folder_of(backend.folder, interrupted.name), interrupted)
    backend.close()
    backend = open_journal(tmp_path / "store")
    assert backend.run(Counts("default"))["available"] == 3
    assert not backend.load(load(SinkCommit("s", "another", 6)))
    [file] = (tmp_path / "store/.penstock/sinks").iterdir()
    assert json.loads(file.read_text().splitlines()[0]) == ["s", "another", 6]
    backend.close()


@pytest.mark.parametrize(
    ("options", "mode", "says"),
    [
        ({}, "complete", 'output mode "complete" writes the whole result with every batch'),
        (
            {"sinkid": "s", "quee": "out"},
            "append",
            r"'quee' of a streaming write \(is it queue\?\); there are",
        ),
        ({"id": "x"}, "append", "option id is for df.write"),
        ({"sinkId": ""}, "append", "option sinkId has 0 characters"),
    ],
)
def test_what_a_sink_cannot_do_is_refused_and_nothing_lands(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], mode: str, says: str
) -> None:
    with penstock.open(tmp_path / "store") as store:
        store.create("out")
    rows = spark.readStream.format("text").load(str(texts(tmp_path / "texts", 1, 1)))
    rows = rows.groupBy("value").count() if mode == "complete" else rows
    query = rows.selectExpr("value AS payload").writeStream.format("penstock").outputMode(mode)
    query = query.options(store=str(tmp_path / "store"), **{"queue": "out", **options})
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(PySparkException, match=says):
        query.start().awaitTermination()
    with penstock.open(tmp_path / "store") as store:
        assert store.queue("out").count() == 0
