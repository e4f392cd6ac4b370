"""Writing into slate stores, and the jobs on them."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.contract.message import Plain
from penstock.spark import jobs
from penstock.stores.slate import loads
from penstock.stores.slate.loads import Frame, Load, new_name
from penstock.stores.slate.snapshot import place_at
from penstock.stores.slate.store import open_slate
from penstock.wire.frames import encode_entries


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
