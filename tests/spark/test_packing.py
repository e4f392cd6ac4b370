"""pack and expire with Spark: all that is there stays as it is, what is not goes, whatever fails on the way."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import penstock
from penstock import NotSupported, PenstockError, QueueNotFound, Store, StoreCorrupt, StoreLocked
from penstock.cli import cli
from penstock.spark import jobs
from penstock.spark.jobs import Summary
from penstock.spark.jobs.runs import SparkTasks, spread
from penstock.stores.journal import replay
from penstock.stores.journal.packer import build
from penstock.stores.journal.packing import Round
from tests.spark.reads import expired, listed, open_small, varied
from tests.stores.journal.test_packing import backend_of, half_done, temporaries

# Does what pack() does, and dies when all is built and nothing is in its place.
DRIVER_THAT_DIES = """
import os, signal, sys
import penstock.spark
from penstock.stores.journal.packing import Round
from penstock.stores.journal.store import open_journal
from penstock.spark.jobs.runs import SparkTasks
from penstock.stores.journal.packer import build

spark = penstock.spark.session("local[2]")
backend = open_journal(sys.argv[1])
with Round(backend, [info.name for info in backend.queues()]) as packing:
    orders = packing.begin()
    answers = SparkTasks(spark).run(build, orders, [order.size for order in orders], "packing")
    assert len(answers) == len(orders) == 2, answers
    os.kill(os.getpid(), signal.SIGKILL)
"""


def everything(store: Store) -> tuple[Any, ...]:
    """All that a store shows, attempts and settings included."""
    queues = [store.queue(info.name) for info in store.queues()]
    attempts = {(queue.name, each.id): queue.attempts(each.id) for queue in queues for each in queue.messages()}
    receipts = {(each.queue, each.id): each.receipt for queue in queues for each in queue.messages("in_flight")}
    return listed(store), attempts, receipts, [(info.name, info.settings, info.counts) for info in store.queues()]


def freed(summary: Summary) -> list[int]:
    return [int(row[-1] or 0) for row in summary.rows]


def test_packing_changes_nothing_but_the_bytes(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        expired(varied(store))
        queue = store.queue("varied")
        (held,) = queue.claim(1, lease=3_600)
        acked = queue.claim(1)[0]
        queue.ack(acked)
        half_done(store, "a/b", 500)
        store.create("empty").put(b"x" * 5_000)
        store.queue("empty").pop()
        before = everything(store)
    foreseen = jobs.pack(spark, tmp_path, dry_run=True)
    assert foreseen.dry_run
    summary = jobs.pack(spark, f"journal:{tmp_path}", id="nightly")
    assert (summary.job, summary.id, summary.dry_run, summary.repeated) == ("pack", "nightly", False, False)
    assert [row[0] for row in summary.rows] == ["a/b", "default", "empty", "varied"]
    assert sum(freed(summary)) > 10_000
    assert [row[:2] for row in summary.rows] == [row[:2] for row in foreseen.rows]
    assert max(abs(real - guess) for real, guess in zip(freed(summary), freed(foreseen), strict=True)) < 200
    assert not temporaries(tmp_path)
    waiting = [row["payload"] for row in before[0] if row["queue"] == "varied" and row["state"] != "done"]
    assert sorted(replay(tmp_path, "varied").open.values()) == sorted(waiting)
    with penstock.open(tmp_path) as store:
        assert everything(store) == before
        queue = store.queue("varied")
        assert queue.put(b"x" * 100_000, key="a key") == next(
            row["id"] for row in before[0] if row["payload"] == b"x" * 100_000
        )
        assert held.receipt
        queue.ack(held.receipt)
        assert acked.receipt
        queue.ack(acked.receipt)  # once more, within five minutes
        assert queue.counts()["done"] == 5
    again = jobs.pack(spark, tmp_path, ["a/b"])
    assert [row[0] for row in again.rows] == ["a/b"]
    assert freed(again) == [0]


def test_a_thousand_queues_are_a_few_tasks() -> None:
    sizes = [10_000] * 1_000
    together = spread(range(1_000), sizes, cores=2)
    assert 2 <= len(together) <= 8
    assert sorted(each for task in together for each in task) == list(range(1_000))
    assert max(map(len, together)) - min(map(len, together)) <= 1
    large = spread(["large", *"abcdefg"], [1 << 30, *[1 << 20] * 7], cores=2)
    assert ["large"] in large
    assert spread(["one"], [0], cores=64) == [["one"]]


def test_a_driver_that_is_killed_before_the_swap_loses_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        varied(store)
        half_done(store, "jobs")
        before = everything(store)
    killed = subprocess.run([sys.executable, "-c", DRIVER_THAT_DIES, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(temporaries(tmp_path)) == 2
    with penstock.open(tmp_path) as store:
        assert not temporaries(tmp_path)
        assert everything(store) == before
        assert backend_of(store).pack("jobs") > 0


def test_a_task_that_fails_leaves_everything_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        left = half_done(store, "jobs")
        backend = backend_of(store)

        def pack_without(name: str) -> None:
            with Round(backend, ["jobs"]) as packing:
                orders = packing.begin()
                (tmp_path / orders[0].files[-1][1]).rename(tmp_path / name)
                try:
                    SparkTasks(spark).run(build, orders, [1], "packing")
                finally:
                    (tmp_path / name).rename(tmp_path / orders[0].files[-1][1])

        with pytest.raises(PenstockError, match=r"packing failed in a task of Spark.*No such file.*same path"):
            pack_without("elsewhere")
        assert not temporaries(tmp_path)
        assert [each.id for each in store.queue("jobs").messages()] == left
        assert backend.pack("jobs") > 0


def test_a_damaged_message_is_named_and_all_other_queues_are_packed(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        for name in ("bad", "good", "worse"):
            half_done(store, name)
    for name in ("bad", "worse"):  # where only the snapshot is read, opening does not notice
        file = tmp_path / name
        file.write_bytes(file.read_bytes().replace(f"{name} 9".encode(), f"{name} X".encode()))
    with pytest.raises(
        StoreCorrupt, match=r"queue 'bad': a message is damaged at offset \d+ of bad\.\d+.*2 were packed and 1"
    ):
        jobs.pack(spark, tmp_path)
    assert not temporaries(tmp_path)
    with penstock.open(tmp_path) as store:
        assert store.queue("bad").counts()["available"] == 10
        assert len(list(store.queue("good").messages())) == 10
        store.queue("bad").remove("10")
        store.queue("worse").remove("10")
    assert freed(jobs.pack(spark, tmp_path, ["bad"]))[0] > 0


@pytest.mark.long
def test_what_cannot_be_packed_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="this is for journal and slate stores"):
        jobs.pack(spark, "memory:")
    with pytest.raises(PenstockError, match="no store at "):
        jobs.expire(spark, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with penstock.open(tmp_path) as store:
        half_done(store, "jobs")
        foreseen = jobs.pack(spark, tmp_path, ["jobs"], dry_run=True)  # reads without the lock
        assert freed(foreseen)[0] > 0
    with penstock.open(tmp_path, share=False), pytest.raises(StoreLocked, match="does not share"):
        jobs.pack(spark, tmp_path)
    for dry_run in (False, True):
        with pytest.raises(QueueNotFound):
            jobs.pack(spark, tmp_path, ["jobs", "nothing"], dry_run=dry_run)


def test_a_store_that_is_open_elsewhere_is_packed_by_its_owner(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        half_done(store, "jobs")
        before = sorted(message.payload for message in store.queue("jobs").messages())
        assert freed(jobs.pack(spark, tmp_path, ["jobs"]))[0] > 0
        assert sorted(message.payload for message in store.queue("jobs").messages()) == before
        brief = store.create("brief", retention=0.01)
        brief.put(b"secret" * 100)
        time.sleep(0.02)
        summary = jobs.expire(spark, tmp_path)
        assert [row[:2] for row in summary.rows] == [["brief", 1]]
        assert jobs.expire(spark, tmp_path).rows == []


def test_what_time_let_go_is_taken_out_of_the_files_once(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        short = store.create("short", retention=0.01)
        short.put_many([f"secret {number}" for number in range(3)])
        short.put(b"for ever", retention=0)
        brief = store.create("brief", keep_done=0.01)
        brief.put_many([f"secret {number}" for number in range(5)])
        brief.ack(*brief.claim(2))
        store.create("other").put(b"other")
        time.sleep(0.05)
        foreseen = jobs.expire(spark, tmp_path, dry_run=True)  # while it is open
        assert [row[:3] for row in foreseen.rows] == [["brief", 0, 2], ["short", 3, 0]]
        before = everything(store)
    assert b"secret" in (tmp_path / "short").read_bytes()
    summary = jobs.expire(spark, tmp_path)
    assert [row[:4] for row in summary.rows] == [row[:4] for row in foreseen.rows]
    assert all(
        all_of_it > int(row[3] or 0) > 0 for all_of_it, row in zip(freed(summary), summary.rows, strict=True)
    )
    assert summary.notes == ["4 queues were looked at, 2 of them had something to let go"]
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.glob("short*"))
    left = b"".join(path.read_bytes() for path in tmp_path.glob("brief*"))
    assert [f"secret {number}".encode() in left for number in range(5)] == [False, False, True, True, True]
    again = jobs.expire(spark, tmp_path)
    assert again.rows == []
    assert again.id == summary.id == foreseen.id
    with penstock.open(tmp_path) as store:
        assert everything(store) == before


@pytest.mark.long
def test_the_commands_show_what_the_jobs_did(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        half_done(store, "jobs")
        store.create("short", retention=0.001).put(b"x")

    refused = CliRunner().invoke(cli, ["--store", str(tmp_path), "pack", "--dry-run"])
    assert refused.exit_code == 2
    assert "go with --spark" in refused.output
    refused = CliRunner().invoke(cli, ["--store", "memory:", "expire"])
    assert "this is for journal and slate stores" in refused.output
    command = [sys.executable, "-c", "from penstock.cli import main; main()", "--store", str(tmp_path), "expire"]
    done = subprocess.run(
        [*command, "--json", "--master", "local[2]", "--id", "tidy"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["job"], summary["id"]) == ("expire", "tidy")
    assert [(row["queue"], row["expired"], row["done"]) for row in summary["rows"]] == [("short", 1, 0)]
