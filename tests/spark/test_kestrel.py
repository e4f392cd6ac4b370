"""A folder that Kestrel left, in Spark: read and copied where it is, and never changed."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark import jobs
from penstock.stores.journal.format import Continue, RemoveTentative, RemoveTentativeXid
from tests.stores.journal.journals import NOW, item, written
from tests.stores.journal.test_kestrel_tables import everything_in, make


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return make(
        tmp_path / "spool",
        jobs_100=written(item(b"rotated"), item(b"handed out")),
        jobs=written(RemoveTentative(), *[item(b"%d" % number) for number in range(2_000)]),
        mails=written(item(b"hello")),
    )


EXPECTED = [b"rotated", b"handed out", *[b"%d" % number for number in range(2_000)]]


def test_its_messages_and_queues_are_tables(spark: SparkSession, spool: Path) -> None:
    before = everything_in(spool)
    frame = spark.read.format("penstock").option("store", str(spool)).load()
    rows = sorted(frame.where("queue = 'jobs'").collect(), key=lambda row: int(row["id"]))
    assert [bytes(row["payload"]) for row in rows] == EXPECTED
    assert {row["state"] for row in rows} == {"available"}
    assert frame.count() == 2_003
    assert frame.select("queue").distinct().count() == 2
    queues = spark.read.format("penstock").option("store", str(spool)).option("table", "queues").load()
    assert {row["name"]: row["available"] for row in queues.collect()} == {"default": 0, "jobs": 2_002, "mails": 1}
    penstock.spark.views(spark, str(spool))
    [[count]] = spark.sql("SELECT count(*) FROM penstock_attempts").collect()
    assert count == 0
    assert everything_in(spool) == before


def test_the_dialect_is_an_option_of_its_url(spark: SparkSession, tmp_path: Path) -> None:
    content = written(item(b"a"), RemoveTentativeXid(7), Continue(7, NOW, 0, b"went on"), item(b"b"))
    spool = make(tmp_path / "spool", q=content)
    before = everything_in(spool)
    frame = spark.read.format("penstock").option("store", f"journal:{spool}?dialect=2.x").load()
    assert [bytes(row["payload"]) for row in frame.collect()] == [b"went on", b"b"]
    assert everything_in(spool) == before


@pytest.mark.parametrize(
    "target",
    [
        "{}/copy",
        *(pytest.param(f"{kind}:{{}}/copy", marks=pytest.mark.long) for kind in ("text", "folder", "slate")),
    ],
)
def test_convert_copies_it_into_any_store_once(
    spark: SparkSession, spool: Path, tmp_path: Path, target: str
) -> None:
    before = everything_in(spool)
    to = target.format(tmp_path)
    source = f"journal:{spool}?dialect=2.x"
    assert not jobs.convert(spark, source, to).repeated
    assert jobs.convert(spark, source, to).repeated
    with penstock.open(to) as store:
        found = list(store.queue("jobs").messages())
        assert [message.payload for message in found] == EXPECTED
        assert {(message.state, message.created_at) for message in found} == {("available", NOW - 60_000)}
        assert [message.payload for message in store.queue("mails").messages()] == [b"hello"]
    assert everything_in(spool) == before
