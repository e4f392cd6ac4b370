"""Writing through a server that keeps a slate store, or that is the guest of a process that has it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from penstock.http.server import serve_in_thread
from penstock.spark import jobs
from penstock.stores.slate.snapshot import place_at
from tests.spark.streams import forget_last
from tests.spark.test_slate_jobs import comparable, write
from tests.spark.test_stream_sink import payloads, texts
from tests.spark.test_stream_sink import write as write_stream


class Served:
    """A slate store, and the URL of a server of it."""

    def __init__(self, url: str, owned: bool) -> None:
        self.owner = penstock.open(url)
        self.store = self.owner if owned else penstock.open(url)
        self.server = serve_in_thread(self.store)
        self.url = self.server.url

    def stop(self) -> None:
        self.server.stop()
        self.store.close()
        self.owner.close()


@pytest.fixture(params=["folder", "folder of another process", pytest.param("bucket", marks=pytest.mark.long)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    bucket = request.param == "bucket"
    url = request.getfixturevalue("bucket") if bucket else f"slate:{tmp_path / 'store'}"
    made = Served(url, owned=request.param != "folder of another process")
    yield made
    left = place_at(url).list_loads()
    made.stop()
    assert left == []


def test_rows_become_messages_once(spark: SparkSession, served: Served) -> None:
    served.store.create("jobs", max_size=200)
    rows = spark.range(300).selectExpr(
        "concat('row ', id) AS payload",
        "id % 256 AS priority",
        "map('a', 'b') AS headers",
        "if(id % 2 = 0, 'jobs', 'default') AS queue",
        "if(id = 7, timestamp '2100-01-01 00:00:00Z', NULL) AS visible_at",
    )
    for _ in range(2):
        write(rows, served.url, id="monday")
    assert served.store.queue("jobs").counts()["available"] == 150
    assert served.store.queue().counts() == {
        "delayed": 1, "available": 149, "in_flight": 0, "done": 0, "failed": 0,
    }  # fmt: skip
    found = [*served.store.queue().messages(), *served.store.queue("jobs").messages()]
    assert {message.payload for message in found} == {f"row {number}".encode() for number in range(300)}
    with pytest.raises(PySparkException, match="takes 0 to 255"):
        write(spark.sql("SELECT 'x' AS payload, 256 AS priority"), served.url, queue="jobs")
    with pytest.raises(PySparkException, match="holds 150 of at most 200 messages; 150 more do not fit"):
        write(rows, served.url, id="tuesday")
    assert served.store.queue().count() == 150


def test_a_batch_of_a_stream_lands_once(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    source, checkpoint = texts(tmp_path / "texts", 1, 2), tmp_path / "checkpoint"
    served.store.create("out")
    write_stream(spark, source, served.url, checkpoint)
    forget_last(checkpoint)
    write_stream(spark, source, served.url, checkpoint)
    assert payloads(served.store) == ["1a", "1b", "2a", "2b"]
    write_stream(spark, source, served.url, tmp_path / "named", sinkId="nightly")
    shutil.rmtree(tmp_path / "named")
    with pytest.raises(StreamingQueryException, match="give the new query a sinkId of its own"):
        write_stream(spark, source, served.url, tmp_path / "named", sinkId="nightly")
    assert len(payloads(served.store)) == 8


def test_stores_and_files_are_loaded_and_converted_into_it(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    source, lines = str(tmp_path / "journal"), tmp_path / "lines.txt"
    with penstock.open(source) as store:
        queue = store.create("jobs", max_attempts=2, keep_done=None, retention=10_000, max_size=3)
        queue.put_many([b"done", b"failed", b"retried"])
        queue.ack(*queue.claim(1, consumer="me"))
        for reason in ("bad", "worse"):
            queue.fail(*queue.claim(1, consumer="you"), reason=reason)
        queue.fail(*queue.claim(1), reason="once")
        queue.put(b"large" * 20_000, headers={"kind": "x"}, priority=9)
        expected = comparable(store)
    for repeated in (False, True):
        assert jobs.convert(spark, source, served.url).repeated is repeated
    assert comparable(served.store) == expected
    lines.write_text("a\nb\nc\n")
    for repeated in (False, True):
        assert jobs.load(spark, str(lines), served.url, "default").repeated is repeated
    assert served.store.queue().count() == 3
