"""Writing into slate stores, and the jobs on them."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.contract.message import Plain
from penstock.spark import jobs
from penstock.stores.slate import loads
from penstock.stores.slate.loads import Frame, Load, new_name
from penstock.stores.slate.snapshot import place_at
from penstock.stores.slate.store import open_slate
from penstock.wire.frames import encode_entries
from tests.spark.reads import listed


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"slate:{tmp_path / 'store'}"
    bucket: str = request.getfixturevalue("bucket")
    return bucket


def write(rows: DataFrame, url: str, **options: str) -> None:
    rows.write.format("penstock").mode("append").option("store", url).options(**options).save()


def test_rows_become_messages_once_while_another_process_has_the_store(spark: SparkSession, url: str) -> None:
    rows = spark.range(300).selectExpr(
        "concat('row ', id) AS payload",
        "id % 256 AS priority",
        "map('a', 'b') AS headers",
        "if(id % 2 = 0, 'jobs', 'default') AS queue",
        "if(id = 7, timestamp '2100-01-01 00:00:00Z', NULL) AS visible_at",
    )
    with penstock.open(url) as store:
        store.create("jobs")
        for _ in range(2):
            write(rows, url, id="monday")
        assert store.queue("jobs").counts()["available"] == 150
        assert store.queue().counts() == {"delayed": 1, "available": 149, "in_flight": 0, "done": 0, "failed": 0}
        found = [*store.queue().messages(), *store.queue("jobs").messages()]
        assert {message.payload for message in found} == {f"row {number}".encode() for number in range(300)}
        assert all(message.headers == {"a": "b"} for message in found)
        assert not place_at(url).list_loads()
        with pytest.raises(PySparkException, match="takes 0 to 255"):
            write(spark.sql("SELECT 'x' AS payload, 256 AS priority"), url, queue="jobs")
        assert not place_at(url).list_loads()
    with penstock.open(url) as store:
        assert store.queue("jobs").counts()["available"] == 150


def comparable(store: penstock.Store) -> list[dict[str, Any]]:
    rows = [{name: value for name, value in row.items() if name not in ("id", "receipt")} for row in listed(store)]
    return sorted(rows, key=lambda row: (row["queue"], row["payload"]))


def test_a_store_is_converted_into_a_slate_store_and_back(spark: SparkSession, url: str, tmp_path: Path) -> None:
    source, back = str(tmp_path / "journal"), str(tmp_path / "back")
    with penstock.open(source) as store:
        queue = store.create("jobs", max_attempts=2, keep_done=None, retention=10_000)
        queue.put_many([b"done", b"failed", b"retried"])
        queue.ack(*queue.claim(1, consumer="me"))
        for reason in ("bad", "worse"):
            queue.fail(*queue.claim(1, consumer="you"), reason=reason)
        queue.fail(*queue.claim(1), reason="once")
        queue.put(b"large" * 20_000, headers={"kind": "x"}, priority=9)
        queue.put(b"later", delay=3_600)
        expected = comparable(store)
        failed = next(message.id for message in queue.messages("failed"))
        attempts = queue.attempts(failed)
    jobs.convert(spark, source, url)
    assert jobs.convert(spark, source, url).repeated
    with penstock.open(url) as store:
        assert comparable(store) == expected
        assert store.queue("jobs").settings.retention == 10_000
        again = next(message.id for message in store.queue("jobs").messages("failed"))
        assert store.queue("jobs").attempts(again) == attempts
    jobs.convert(spark, url, back)
    with penstock.open(back) as store:
        assert comparable(store) == expected


def test_the_jobs_work_on_slate_stores(spark: SparkSession, tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'store'}"
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\nc\n")
    with penstock.open(url) as store:
        store.create("jobs", keep_done=None)
        store.create("short", retention=0.01)
    summary = jobs.load(spark, str(lines), url, "jobs")
    assert [list(row) for row in summary.rows] == [["jobs", 3, 3]]
    assert jobs.load(spark, str(lines), url, "jobs").repeated
    with penstock.open(url) as store:
        store.queue("jobs").ack(*store.queue("jobs").claim(2))
        store.queue("short").put(b"12345")
    archived = jobs.archive(spark, url, tmp_path / "archive", remove=True)
    assert [list(row)[:5] for row in archived.rows] == [["jobs", 2, 0, 0, 2]]
    time.sleep(0.05)
    assert [list(row)[:4] for row in jobs.expire(spark, url, dry_run=True).rows] == [["short", 1, 0, 5]]
    assert len(jobs.expire(spark, url).rows) == 1
    assert jobs.expire(spark, url).rows == []
    assert jobs.pack(spark, url).notes
    report = jobs.report(spark, url, tmp_path / "report", archive=tmp_path / "archive")
    assert report.job == "report"
    with penstock.open(url) as store:
        assert store.queue("jobs").counts()["available"] == 1


def test_a_load_that_was_interrupted_is_finished_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"slate:{tmp_path}"
    penstock.open(url).close()
    monkeypatch.setattr(loads, "_MESSAGES", 10)
    name, place = new_name(os.getpid()), place_at(url)
    frames = []
    for number in range(5):
        payloads = [f"{number} {each}".encode() for each in range(10)]
        place.stage(name, str(number), encode_entries(Plain(payloads)))
        frames.append(Frame("default", str(number), 10, sum(map(len, payloads))))
    backend = open_slate(url)
    taken = 0
    put = backend.loads._put

    def stop(queue: str, staged: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == 3:
            raise KeyboardInterrupt
        put(queue, staged)

    monkeypatch.setattr(backend.loads, "_put", stop)
    with pytest.raises(KeyboardInterrupt):
        backend.loads.take_in(Load(name, frames, {}, "run"))
    backend.close()
    with penstock.open(url) as store:
        found = [message.payload.decode() for message in store.queue().messages()]
        assert found == [f"{number} {each}" for number in range(5) for each in range(10)]
    assert not place.list_loads()
