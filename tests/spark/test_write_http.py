"""df.write.format("penstock") with the URL of a server: rows become messages there, all of them or none."""

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.contract.loads import Sent
from penstock.engine import arrow_rows
from penstock.engine.arrow_rows import Sender
from penstock.http.client.backend import RemoteLoads
from penstock.http.server import serve_in_thread
from tests.harness.children import ServerChild

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Served:
    """A store that a server has open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = penstock.open(folder)
        self.store.create("jobs")
        self.store.create("strict", max_payload=10, priorities=(0, 5), max_size=3, retention=60)
        self.server = serve_in_thread(self.store)
        self.url = self.server.url

    def stop(self) -> None:
        self.server.stop()
        self.store.close()

    @property
    def staged(self) -> list[str]:
        folder = self.folder / ".penstock" / "staged"
        return os.listdir(folder) if folder.exists() else []

    def total(self) -> int:
        return sum(sum(info.counts.values()) for info in self.store.queues())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "store")
    yield made
    left = made.staged
    made.stop()
    assert left == []


def write(rows: DataFrame, url: str, **options: str) -> None:
    rows.write.format("penstock").mode("append").option("store", url).options(**options).save()


def test_a_server_that_is_not_there_is_said_to_be_so(spark: SparkSession, served: Served) -> None:
    with pytest.raises(PySparkException, match=r"the server at http://127\.0\.0\.1:1 cannot be reached"):
        write(spark.sql("SELECT 'x' AS payload"), "http://127.0.0.1:1", queue="jobs")


def test_a_memory_store_takes_no_loads(spark: SparkSession) -> None:
    with penstock.open("memory:") as store:
        server = serve_in_thread(store)
        with pytest.raises(PySparkException, match="takes no loads"):
            write(spark.sql("SELECT 'x' AS payload"), server.url, queue="default")
        server.stop()


def test_a_server_that_is_killed_and_comes_back_has_nothing_of_a_write_it_did_not_commit(
    spark: SparkSession, tmp_path: Path, port: int
) -> None:
    with ServerChild(tmp_path / "store", "--port", str(port)) as server:
        killed = threading.Event()
        folder = tmp_path / "store" / ".penstock" / "staged"

        def kill() -> None:
            while not any(folder.glob("*/part-*")):
                killed.wait(0.05)
            server.kill()
            killed.set()

        killer = threading.Thread(target=kill)
        killer.start()
        # Some rows take as long as a server needs to come back.
        slow = "if(id % 10000 = 0, aggregate(sequence(1, 3000000), 0L, (sum, x) -> sum + x), id)"
        rows = spark.range(0, 100_000, 1, 2).selectExpr(f"repeat(cast({slow} AS string), 60) AS payload")
        again: list[ServerChild] = []

        def restart() -> None:
            killed.wait()
            again.append(ServerChild(tmp_path / "store", "--port", str(port)))

        restarting = threading.Thread(target=restart)
        restarting.start()
        with pytest.raises(PySparkException, match="there is no load"):
            write(rows, server.url, queue="default")
        killer.join()
        restarting.join()
    with again[0], penstock.open(again[0].url) as store:
        assert store.queue().count() == 0
        assert not list(folder.iterdir())


# Batches, without Spark


def test_batches_are_small_whatever_the_rows_are(served: Served) -> None:
    sizes: list[int] = []

    class Counting(RemoteLoads):
        def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
            sizes.append(len(frame))
            super().add(load, part, number, queue, frame)

    backend = Counting(served.url)
    load = backend.begin({})
    queues = {name: served.store.queue(name).settings for name in ("default", "jobs")}
    sender = Sender(backend, load, "a", queues, "jobs", 0)
    texts = ["x" * 30_000 for _ in range(300)]
    sender.add(pa.record_batch({"payload": texts}))
    sender.add(pa.record_batch({"payload": [b"y"] * 150_000}))
    sender.add(pa.record_batch({"payload": [b"z" * 10_000_000, b"z"]}))
    headers = pa.array([[("name", "\0" * 60_000)]] * 100, pa.map_(pa.string(), pa.string()))
    sender.add(pa.record_batch({"payload": [b"h"] * 100, "headers": headers}))
    sender.add(pa.record_batch({"payload": [b"d", b"j"] * 1000, "queue": ["default", "jobs"] * 1000}))
    sent = sender.finish()
    assert sent.batches == len(sizes)
    assert max(sizes) < 10_000_000 + 2 * arrow_rows._BATCH
    assert len([size for size in sizes if size > 2 * arrow_rows._BATCH]) == 1
    assert backend.commit(load, [Sent(*sent)], None).messages == 300 + 150_000 + 2 + 100 + 2000
    backend.close()
    found = [message.payload[:1] for message in served.store.queue("jobs").messages()]
    assert found == [b"x"] * 300 + [b"y"] * 150_000 + [b"z"] * 2 + [b"h"] * 100 + [b"j"] * 1000


def test_sliced_columns_and_texts_are_sent_as_they_are(served: Served) -> None:
    backend = RemoteLoads(served.url)
    load = backend.begin({})
    sender = Sender(backend, load, "a", {"jobs": served.store.queue("jobs").settings}, "jobs", 0)
    sender.add(pa.record_batch({"payload": ["a", "bü", "c", "", "d"]}).slice(1, 3))
    sender.add(pa.record_batch({"payload": ["e"]}).slice(1, 0))
    backend.commit(load, [Sent(*sender.finish())], None)
    backend.close()
    assert [message.payload for message in served.store.queue("jobs").messages()] == ["bü".encode(), b"c", b""]
