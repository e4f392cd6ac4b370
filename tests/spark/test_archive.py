"""Archiving: each settled message once, whatever happens, and nothing removed that is not in the archive."""

import os
import string
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import unix_millis

import penstock
from penstock.errors import InvalidArgument, PenstockError, StoreLocked
from penstock.http.server import serve_in_thread
from penstock.spark.jobs import Summary, archive, archived
from penstock.spark.jobs.archive_table import Folder, Move, confirmed, parquet
from penstock.spark.jobs.archiving import remove_archived
from penstock.spark.jobs.runs import own_session
from tests.spark.reads import COLUMNS, TIMES, listed, varied

KEPT = [name for name in COLUMNS if name != "receipt"]


def in_archive(spark: SparkSession, dest: Path) -> list[dict[str, Any]]:
    """The archived messages as rows, with times in milliseconds."""
    shown = [unix_millis(name).alias(name) if name in TIMES else name for name in KEPT]
    rows = [row.asDict() for row in archived(spark, dest).select(*shown).collect()]
    found = [row | {"payload": bytes(row["payload"])} for row in rows]
    return sorted(found, key=lambda row: (row["queue"], int(row["id"])))


def settled(store: penstock.Store) -> list[dict[str, Any]]:
    """The settled messages of a store, likewise."""
    rows = [{name: row[name] for name in KEPT} for row in listed(store) if row["state"] in ("done", "failed")]
    return sorted(rows, key=lambda row: (row["queue"], int(row["id"])))


def numbers(summary: Summary, queue: str) -> tuple[Any, ...]:
    """Of a queue: done, failed, already archived, removed."""
    (row,) = [row for row in summary.rows if row[0] == queue]
    return tuple(row[1:5])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "a {b} [c] %41*"  # nothing in a path may mean anything to Spark
    folder.mkdir()
    return folder


def test_settled_messages_are_archived_once_and_removed_when_they_are_there(
    spark: SparkSession, home: Path
) -> None:
    with penstock.open(home / "store") as store:
        queue = varied(store)
        expected = settled(store)
        attempts = {row["id"]: queue.attempts(row["id"]) for row in expected}
        first = archive(spark, home / "store", home / "archive")  # the store may be open elsewhere
        assert numbers(first, "varied") == (3, 2, 0, 0)
        assert in_archive(spark, home / "archive") == expected
        for row in archived(spark, home / "archive").collect():
            assert [tuple(each)[:2] for each in row.history] == [each[:2] for each in attempts[row.id]]
            assert [each.outcome for each in row.history] == [each.outcome for each in attempts[row.id]]
        again = archive(spark, home / "store", home / "archive")
        assert (again.id, again.repeated) == (first.id, True)
        queue.put(b"new")
        new = queue.pop()
        others = {row["id"] for row in listed(store)} - {row["id"] for row in settled(store)}
    assert new is not None
    planned = archive(spark, home / "store", home / "archive", remove=True, dry_run=True)
    assert numbers(planned, "varied") == (1, 0, 5, 6)
    done = archive(spark, home / "store", home / "archive", remove=True)
    assert numbers(done, "varied") == (1, 0, 5, 6)
    assert len(in_archive(spark, home / "archive")) == 6
    with penstock.open(home / "store") as store:
        assert {row["id"] for row in listed(store)} == others
    assert "no done or failed" in archive(spark, home / "store", home / "archive", remove=True).notes[0]


@pytest.mark.long
def test_every_name_of_a_queue_comes_back(spark: SparkSession, home: Path) -> None:
    names = {
        "007",
        "2020-01-01",
        "a/../b",
        "%41",
        "A",
        "a",
        "__HIVE_DEFAULT_PARTITION__",
        "null",
        "x=y",
        "/" * 255,
    }
    names |= {string.punctuation, "L" * 255, "l" * 255}
    with penstock.open(home / "store", sync="never") as store:
        for name in names:
            store.create(name, keep_done=None).put(name.encode())
            store.queue(name).pop()
        archive(spark, home / "store", home / "archive")
        found = in_archive(spark, home / "archive")
        assert found == settled(store)
    assert {row["queue"] for row in found} == {row["payload"].decode() for row in found} == names
    folders = [name for name in os.listdir(home / "archive") if name.startswith("queue=")]
    assert len({name.casefold() for name in folders}) == len(names)
    plain = parquet(own_session(spark), home / "archive").select("queue").distinct().collect()
    assert names - {row.queue for row in plain} == {"/" * 255, "L" * 255, "l" * 255}  # too long for a folder


@pytest.mark.long
def test_a_message_that_was_settled_again_replaces_its_earlier_row(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store") as store:
        queue = store.create("jobs", max_attempts=1, keep_done=None)
        queue.put_many([b"a", b"b"])
        queue.fail(*queue.claim(2), reason="no luck")
        archive(spark, home / "store", home / "archive")
        queue.redrive("1")
        queue.ack(*queue.claim())
        summary = archive(spark, home / "store", home / "archive")
        assert numbers(summary, "jobs") == (1, 0, 1, 0)
        assert "archived before" in summary.notes[0]
        assert in_archive(spark, home / "archive") == settled(store)
        outcomes = archived(spark, home / "archive").where("id = '1'").collect()[0].history
        assert [each.outcome for each in outcomes] == ["failed", "acked"]


@pytest.mark.long
def test_stores_may_share_an_archive_also_if_their_messages_have_the_same_ids(
    spark: SparkSession, home: Path
) -> None:
    for name in "one", "two":
        clock = penstock.SimulatedClock()  # all at the same times
        with penstock.open(home / name, clock=clock) as store:
            store.create("jobs", keep_done=None).put(name.encode())
            store.queue("jobs").pop()
        archive(spark, home / name, home / "archive", remove=True)
    assert [row["payload"] for row in in_archive(spark, home / "archive")] == [b"one", b"two"]


def test_what_changed_after_it_was_confirmed_is_not_removed(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store") as store:
        queue = store.create("jobs", max_attempts=1, keep_done=None)
        queue.put_many([b"a", b"b", b"c"])
        queue.fail(*queue.claim(3))
        archive(spark, home / "store", home / "archive")
        session = own_session(spark)
        there = confirmed(session, str(home / "store"), parquet(session, home / "archive")).cache()
        assert there.count() == 3
        queue.redrive("1", "2")
        queue.fail(queue.claim()[0], reason="another time")  # failed again, but not what was archived
        assert remove_archived(store, there) == {"jobs": 1}
        assert [message.id for message in queue.messages()] == ["1", "2"]
        there.unpersist()


def test_what_cannot_be_read_back_the_same_stays_in_the_store(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store") as store:
        queue = store.create("jobs", keep_done=None)
        queue.put_many([b"good", b"bad"])
        queue.ack(*queue.claim(2))
    archive(spark, home / "store", home / "archive")
    (path,) = (home / "archive").glob("queue=jobs/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    payloads = [b"BAD" if payload == b"bad" else payload for payload in table["payload"].to_pylist()]
    at = table.schema.get_field_index("payload")
    pq.write_table(table.set_column(at, "payload", pa.array(payloads, pa.binary())), path)
    summary = archive(spark, home / "store", home / "archive", remove=True)
    assert numbers(summary, "jobs") == (0, 0, 2, 1)
    with penstock.open(home / "store") as store:
        assert [message.payload for message in store.queue("jobs").messages()] == [b"bad"]


def test_a_run_of_a_given_name_takes_effect_once(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store") as store:
        queue = store.create("jobs", keep_done=None)
        for _ in range(2):
            queue.put(b"x")
            queue.pop()
            summary = archive(spark, home / "store", home / "archive", id="monday")
    assert summary.repeated
    assert len(in_archive(spark, home / "archive")) == 1


@pytest.mark.long
def test_a_store_that_is_not_shared_is_told_of_before_anything_is_written(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store", share=False) as store:
        store.create("jobs", keep_done=None).put(b"x")
        store.queue("jobs").pop()
        with pytest.raises(StoreLocked, match="is open in"):
            archive(spark, home / "store", home / "archive", remove=True)
    assert not (home / "archive").exists()
    dry = archive(spark, home / "store", home / "archive", dry_run=True)
    assert (numbers(dry, "jobs"), dry.dry_run) == ((1, 0, 0, 0), True)
    assert not (home / "archive").exists()


def test_what_another_process_has_open_is_archived_and_removed_through_it(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store") as store:
        varied(store)
        expected = settled(store)
        summary = archive(spark, home / "store", home / "archive", remove=True)
        assert numbers(summary, "varied") == (3, 2, 0, 5)
        assert in_archive(spark, home / "archive") == expected
        assert settled(store) == []


def test_what_a_server_keeps_is_archived_and_removed_through_it(spark: SparkSession, home: Path) -> None:
    with penstock.open(home / "store") as store:
        varied(store)
        expected = settled(store)
        server = serve_in_thread(store)
        summary = archive(spark, server.url, home / "archive", remove=True)
        assert numbers(summary, "varied") == (3, 2, 0, 5)
        assert in_archive(spark, home / "archive") == expected
        assert settled(store) == []
        server.stop()


def test_wrong_places_are_refused(spark: SparkSession, home: Path) -> None:
    with pytest.raises(PenstockError, match="no store at "):
        archive(spark, home / "none", home / "archive")
    penstock.open(home / "store").close()
    with pytest.raises(InvalidArgument, match="inside of the store"):
        archive(spark, home / "store", home / "store" / "archive")
    with pytest.raises(InvalidArgument, match="a folder of this machine"):
        archive(spark, home / "store", "s3://bucket/archive")
    with pytest.raises(PenstockError, match="there is no archive"):
        archived(spark, home / "archive")


# The folder by itself


def staged(folder: Folder, name: str) -> Move:
    folder.staging.mkdir(exist_ok=True)
    (folder.staging / name).write_text(name)
    return Move(str((folder.staging / name).relative_to(folder.path)), f"queue=q/day={name}/{name}.parquet")


def test_a_second_run_is_refused_while_the_first_writes(tmp_path: Path) -> None:
    first, second = Folder(tmp_path / "archive", None), Folder(tmp_path / "archive", None)
    with first.locked(), pytest.raises(StoreLocked, match=f"process {os.getpid()}"), second.locked():
        pass
    with second.locked():
        pass


def test_a_run_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "archive", None)
    with folder.locked():
        old = tmp_path / "archive" / "queue=q" / "day=0" / "old.parquet"
        old.parent.mkdir(parents=True)
        old.write_text("old")
        obstacle = tmp_path / "archive" / "queue=q" / "day=2"
        obstacle.write_text("a file where a folder should be")
        moves = [staged(folder, "1"), staged(folder, "2")]
        with pytest.raises(FileExistsError):
            folder.commit({"id": "run", "state": "done"}, moves, [str(old.relative_to(folder.path))])
    assert folder.run("run") is None
    obstacle.unlink()
    with folder.locked():
        assert folder.run("run") == {"id": "run", "state": "done"}
    assert sorted(path.name for path in folder.path.rglob("*.parquet")) == ["1.parquet", "2.parquet"]
    assert not folder.staging.exists()


def test_what_was_written_but_does_not_count_is_cleared(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "archive", None)
    with folder.locked():
        staged(folder, "1")
    with folder.locked():
        assert not folder.staging.exists()
