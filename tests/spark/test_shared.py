"""Spark with stores that any number of processes may open: text and folder stores."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import Draft, SimulatedClock
from penstock.errors import InvalidArgument, NotSupported, PenstockError
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


def shown(store: penstock.Store, queue: str) -> list[Any]:
    found = store.queue(queue)
    return [
        (
            each.payload, each.headers, each.priority, each.created_at, each.received_at, each.visible_at,
            each.expires_at, each.attempts, each.state, each.claimed_at, each.consumer, each.settled_at,
            each.reason, found.attempts(each.id),
        )
        for each in found.messages()
    ]  # fmt: skip


def lived(path: Path) -> str:
    """A journal store with messages in every state."""
    clock = SimulatedClock(int(time.time() * 1000) - 60_000)
    with penstock.open(path, clock=clock) as store:
        queue = store.create("mail", max_attempts=2, keep_done=None, priorities=(-5, 5))
        queue.put_many(
            [Draft(b"%d" % number, priority=number % 3, headers={"n": str(number)}) for number in range(9)]
        )
        queue.put(b"later", delay=1_000_000, created_at=5)
        queue.put(b"\xff soon gone", retention=1_000_000)
        for _ in range(2):
            clock.advance(1)
            for message in queue.claim(2, consumer="loser"):
                clock.advance(1)
                message.fail(reason="no luck")
        for message in queue.claim(2, consumer="winner"):
            clock.advance(2)
            message.ack()
        queue.claim(1, consumer="release")[0].release()
        queue.claim(1, lease=40_000, consumer="holder")
        queue.claim(1, consumer="loser")[0].fail(reason="once")
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_store_is_converted_into_such_a_store_with_all_that_became_of_its_messages(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    source, target = lived(tmp_path / "journal"), f"{kind}:{tmp_path / 'store'}"
    summary = jobs.convert(spark, source, target)
    assert summary.notes == ["messages in flight arrive as available"]
    with penstock.open(source) as one, penstock.open(target) as other:
        assert one.queue("mail").settings == other.queue("mail").settings
        before, after = shown(one, "mail"), shown(other, "mail")
        assert {row[8] for row in before} == {"delayed", "available", "in_flight", "done", "failed"}
        [held] = [row for row in before if row[8] == "in_flight"]
        ended = [each for each in held[13] if each.outcome is not None]
        before[before.index(held)] = (*held[:8], "available", None, None, None, held[12], ended)
        for is_done in (True, False):  # what is done comes apart, each in its order
            assert [row for row in after if (row[8] == "done") == is_done] == [
                row for row in before if (row[8] == "done") == is_done
            ]
        claimed = [each.payload for each in one.queue("mail").claim(20)]
        assert [each.payload for each in other.queue("mail").claim(20) if each.payload != held[0]] == claimed


def test_such_a_store_is_converted_into_another_of_the_kind(spark: SparkSession, url: str, tmp_path: Path) -> None:
    target = f"{url.partition(':')[0]}:{tmp_path / 'copy'}"
    jobs.convert(spark, url, target)
    with penstock.open(url) as one, penstock.open(target) as other:
        assert sorted(shown(other, "jobs"), key=str) == sorted(shown(one, "jobs"), key=str)


def test_a_second_conversion_does_nothing_and_says_what_has_changed(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    source = str(tmp_path / "journal")
    with penstock.open(source) as store:
        store.create("mail", keep_done=None).put_many([b"a", b"b"])
    first, again = (jobs.convert(spark, source, url) for _ in range(2))
    assert (first.repeated, again.repeated) == (False, True)
    with penstock.open(source) as store:
        store.queue("mail").pop()  # as many messages as before
    with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say, attempts,"):
        jobs.convert(spark, source, url)
    with penstock.open(source) as store:
        store.queue("mail").put(b"c")
    with pytest.raises(PenstockError, match=r"has changed since \(queue 'mail': 2 messages then, 3 now\)"):
        jobs.convert(spark, source, url)
    with penstock.open(url) as store:
        assert store.queue("mail").counts()["available"] == 2
    jobs.convert(spark, source, url, id="again")
    with penstock.open(url) as store:
        assert (store.queue("mail").counts()["available"], store.queue("mail").counts()["done"]) == (4, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_notices_reasons_and_what_a_person_has_edited(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    source, target = f"text:{tmp_path / 'source'}", f"{kind}:{tmp_path / 'store'}"
    with penstock.open(source) as store:
        queue = store.create("mail")
        queue.put_many([b"a", b"b"])
        [held] = queue.claim()
    jobs.convert(spark, source, target)
    assert jobs.convert(spark, source, target).repeated
    with penstock.open(source) as store:
        store.queue("mail").fail(held, reason="no luck")  # its attempt was counted when it was claimed
    with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say"):
        jobs.convert(spark, source, target)
    jobs.convert(spark, source, f"{target}2")
    path = tmp_path / "source" / "mail.tq"
    path.write_text(path.read_text().replace("-b\n", "-B\n"))
    with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say"):
        jobs.convert(spark, source, f"{target}2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_however_the_stores_are_written(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "journal") as store:
        store.queue().put_many([b"a", b"b"])
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    target = f"{kind}:{tmp_path / 'store'}"
    jobs.convert(spark, f"journal:{tmp_path / 'journal'}", target)
    assert jobs.convert(spark, str(tmp_path / "journal"), f"{kind.upper()}:{tmp_path}/./store").repeated
    jobs.load(spark, str(lines), target, "default")
    assert jobs.load(spark, str(lines), f"{kind}:{os.path.relpath(tmp_path / 'store')}", "default").repeated
    (tmp_path / "link").symlink_to("store")
    with pytest.raises(InvalidArgument, match="are the same store"):
        jobs.convert(spark, target, f"{kind}:{tmp_path / 'link'}")
    with penstock.open(target) as store:
        assert store.queue().counts()["available"] == 4


def test_a_file_takes_one_queue_and_others_are_named_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = str(tmp_path / "journal")
    with penstock.open(source) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        queue.claim()[0].fail(reason="no luck")
        before = shown(store, "default")
    for _ in range(2):
        jobs.convert(spark, source, str(tmp_path / "copy.tq"))
    with penstock.open(tmp_path / "copy.tq") as store:
        assert shown(store, "default") == before
    with penstock.open(source) as store:
        store.create("jobs")
    with pytest.raises(NotSupported, match="a file is the queue 'jobs' alone, and these are default, jobs"):
        jobs.convert(spark, source, str(tmp_path / "jobs.tq"))
    assert not (tmp_path / "jobs.tq").exists()
    with penstock.open(source) as store:
        store.queue().purge()
        store.queue("jobs").put(b"c")
    jobs.convert(spark, source, str(tmp_path / "jobs.tq"))
    with penstock.open(tmp_path / "jobs.tq") as store:
        assert [message.payload for message in store.queue("jobs").messages()] == [b"c"]
