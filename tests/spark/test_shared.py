"""Spark with stores that any number of processes may open: text and folder stores."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import NotSupported
from penstock.spark import jobs

KINDS = ["text", "folder"]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"{request.param}:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        queue = store.create("jobs", max_attempts=1, keep_done=None)
        queue.put_many(
            [penstock.Draft(f"job {number}", priority=number, headers={"n": str(number)}) for number in range(5)]
        )
        queue.ack(*queue.claim(consumer="me"))
        queue.fail(*queue.claim(consumer="you"), reason="no luck")
        store.queue().put("plain")
    return url


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").option("store", url).options(**options).load()


def test_spark_reads_every_message_as_the_store_shows_it(spark: SparkSession, url: str) -> None:
    rows = {(row["queue"], bytes(row["payload"])): row for row in load(spark, url).collect()}
    with penstock.open(url) as store:
        for info in store.queues():
            for message in store.queue(info.name).messages():
                row = rows.pop((info.name, message.payload))
                assert (row["id"], row["state"], row["priority"]) == (message.id, message.state, message.priority)
                assert (row["headers"], row["attempts"], row["reason"]) == (
                    message.headers, message.attempts, message.reason,
                )  # fmt: skip
                assert row["settled_at"] is None or message.settled_at is not None
    assert not rows
    assert load(spark, url, queue="jobs", state="done,failed").count() == 2


def test_queues_and_attempts_are_tables_too(spark: SparkSession, url: str) -> None:
    queues = {row["name"]: row for row in load(spark, url, table="queues").collect()}
    assert (queues["jobs"]["max_attempts"], queues["jobs"]["available"], queues["jobs"]["done"]) == (1, 3, 1)
    attempts = load(spark, url, table="attempts").orderBy("id").collect()
    assert sorted((row["outcome"], row["consumer"]) for row in attempts) == [("acked", "me"), ("failed", "you")]


def test_a_queue_that_is_not_there_is_named(spark: SparkSession, url: str) -> None:
    with pytest.raises(PySparkException, match="there is no queue 'lost'"):
        load(spark, url, queue="lost").collect()


def test_rows_become_messages(spark: SparkSession, url: str) -> None:
    rows = spark.range(300).selectExpr(
        "concat('row ', id) AS payload",
        "id AS priority",
        "map('a', 'b') AS headers",
        "if(id % 2 = 0, 'jobs', 'default') AS queue",
    )
    for _ in range(2):
        rows.write.format("penstock").mode("append").option("store", url).option("id", "monday").save()
    with penstock.open(url) as store:
        assert store.queue("jobs").counts()["available"] == 153
        found = [message for message in store.queue().messages() if message.payload.startswith(b"row")]
        assert [message.priority for message in found] == list(range(1, 300, 2))
        assert found[0].headers == {"a": "b"}


def test_a_load_says_what_it_brought_and_that_it_was_done_before(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\nthree\n")
    first, again = (jobs.load(spark, str(lines), url, "jobs") for _ in range(2))
    assert (first.repeated, again.repeated) == (False, True)
    assert first.rows == again.rows == [["jobs", 3, 11]]
    with penstock.open(url) as store:
        assert store.queue("jobs").counts()["available"] == 6


def test_a_row_that_cannot_be_is_named_and_nothing_is_put(spark: SparkSession, url: str) -> None:
    rows = spark.sql("SELECT if(id = 7, NULL, 'x') AS payload FROM range(10)").coalesce(1)
    with pytest.raises(PySparkException, match="row 8 of partition 0: its payload is NULL"):
        rows.write.format("penstock").mode("append").option("store", url).option("queue", "jobs").save()
    with penstock.open(url) as store:
        assert store.queue("jobs").counts()["available"] == 3


def test_such_a_store_is_converted_into_a_journal_store(spark: SparkSession, url: str, tmp_path: Path) -> None:
    jobs.convert(spark, url, str(tmp_path / "journal"))
    with penstock.open(tmp_path / "journal") as store:
        assert store.queue("jobs").counts() == {
            "delayed": 0,
            "available": 3,
            "in_flight": 0,
            "done": 1,
            "failed": 1,
        }
        (failed,) = store.queue("jobs").messages("failed")
        assert (failed.reason, store.queue("jobs").attempts(failed.id)[0].consumer) == ("no luck", "you")


def test_what_waits_in_a_journal_store_is_converted_into_such_a_store(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with penstock.open(tmp_path / "journal") as store:
        queue = store.create("mail", max_attempts=3)
        queue.put_many([penstock.Draft(b"a", headers={"x": "y"}), b"b"])
        queue.put(b"later", delay=1000)
    jobs.convert(spark, str(tmp_path / "journal"), url)
    with penstock.open(url) as store:
        assert store.queue("mail").settings.max_attempts == 3
        assert [message.payload for message in store.queue("mail").claim(5)] == [b"a", b"b"]
        assert store.queue("mail").counts()["delayed"] == 1
    with penstock.open(tmp_path / "journal") as store:
        store.create("kept", keep_done=None).put(b"x")
        store.queue("kept").pop()
    with pytest.raises(NotSupported, match="queue 'kept' has done or failed ones"):
        jobs.convert(spark, str(tmp_path / "journal"), url)
