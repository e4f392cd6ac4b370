"""A store that a server keeps: read in parts while others work, written all at once; and errors that say so."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import Draft
from penstock.contract.loads import Sent
from penstock.engine import arrow_rows
from penstock.engine.arrow_rows import Sender
from penstock.errors import PenstockError, QueueNotFound, StoreCorrupt, StoreUnreachable
from penstock.http.client import tables
from penstock.http.client.backend import RemoteLoads
from penstock.http.server import serve_in_thread
from penstock.spark.errors import as_ours
from tests.harness.children import ServerChild
from tests.spark import reads
from tests.spark.reads import arrow
from tests.spark.stores import Place, opened
from tests.stores.journal.journals import flip


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with opened("server", request, tmp_path / "store") as place:
        yield place
        assert place.staged() == []


def test_a_large_queue_is_read_in_parts_and_small_ones_together(
    served: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_PART", 3_000)
    monkeypatch.setattr(tables, "_SMALL_PART", 3_000)
    large = served.store.create("large")
    for start in range(0, 10_000, 1_000):
        large.put_many([b"%d" % number for number in range(start, start + 1_000)])
    for number in range(50):
        served.store.create(f"small-{number}").put_many([b"x"] * 10)
    parts = reads.plan(served.url, arrow(), payload="false")
    assert 4 <= len(parts) <= 6
    sizes = [len(reads.read([part], arrow(columns=["id"]))) for part in parts]
    assert sum(sizes) == 10_500
    assert max(sizes) < 4_100
    found = reads.rows(served.url, ["payload"], queue="large")
    assert [row["payload"] for row in found] == [b"%d" % number for number in range(10_000)]


def test_payloads_up_to_the_largest_come_page_by_page(served: Place) -> None:
    payloads = [bytes([number]) * (5 << 20) for number in range(5)] + [b"", b"\xff" * (16 << 20)]
    for payload in payloads:
        served.store.queue().put(payload)
    assert [row["payload"] for row in reads.rows(served.url, ["payload"])] == payloads


def test_what_stays_is_there_once_and_what_is_put_later_is_not(served: Place) -> None:
    queue = served.store.create("jobs", keep_done=None)
    queue.put_many([b"%d" % number for number in range(5_000)])
    queue.remove(*map(str, range(1, 4_000)))
    parts = reads.plan(served.url, arrow())
    queue.put_many([b"new"] * 10)
    queue.ack(*queue.claim(100))
    queue.remove("5000")
    found = reads.read(parts, arrow(columns=["payload", "state"]))
    assert [int(row["payload"]) for row in found] == list(range(3_999, 4_999))
    assert sum(row["state"] == "done" for row in found) == 100  # each as it was when it was listed


def test_a_queue_that_is_deleted_meanwhile_has_no_rows(served: Place) -> None:
    for name in "ab":
        served.store.create(name).put_many([b"x"] * 3)
    for table in ("messages", "attempts"):
        parts = reads.plan(served.url, arrow(table), table=table)
        if table == "messages":
            served.store.delete("a")
        assert {row["queue"] for row in reads.read(parts, arrow(table, ["queue"]))} <= {"b"}
    with pytest.raises(QueueNotFound, match="there is no queue 'a'"):
        reads.plan(served.url, arrow(), queue="a")


def test_bodies_that_are_not_wanted_are_not_read(served: Place, tmp_path: Path) -> None:
    queue = served.store.create("jobs")
    queue.put_many([b"first", Draft(b"second" * 1000, headers={"a": "b"})])
    journal = tmp_path / "store" / "jobs"
    flip(journal, journal.read_bytes().index(b"second"))
    assert [row["id"] for row in reads.rows(served.url, ["id", "state", "visible_at"])] == ["1", "2"]
    with pytest.raises(StoreCorrupt, match="stored bytes are damaged: the server's log says where"):
        reads.rows(served.url, ["headers"])


@pytest.mark.long
def test_a_server_that_is_not_there_is_an_error_that_says_so(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with opened("server", request, tmp_path) as served:
        served.store.queue().put(b"x")
        parts = reads.plan(served.url, arrow())
    gone = f"the server at {served.url} cannot be reached"
    with pytest.raises(StoreUnreachable, match=gone):
        reads.plan(served.url, arrow())
    with pytest.raises(StoreUnreachable, match=gone):
        reads.read(parts, arrow())
    with pytest.raises(PySparkException, match=gone):
        write(spark.sql("SELECT 'x' AS payload"), served.url, queue="jobs")


def test_what_is_wrong_is_said_in_one_line(spark: SparkSession, served: Place, tmp_path: Path) -> None:
    queue = served.store.create("jobs")
    queue.put_many([b"first", b"second" * 1000])
    flip(tmp_path / "store" / "jobs", (tmp_path / "store" / "jobs").read_bytes().index(b"second"))
    for options, kind, says in [
        ({"queue": "lost"}, QueueNotFound, "there is no queue 'lost'"),
        ({"store": "http://127.0.0.1:1"}, StoreUnreachable, "the server at http://127.0.0.1:1 cannot be reached"),
        ({}, StoreCorrupt, "stored bytes are damaged"),
    ]:
        with pytest.raises(Exception, match=says) as caught:
            spark.read.format("penstock").options(**({"store": served.url} | options)).load().collect()
        error: PenstockError = as_ours(caught.value)
        assert type(error) is kind
        assert "Traceback" not in str(caught.value)


def test_columns_of_a_page_may_be_the_same_for_all_or_missing() -> None:
    kinds = {field.name: field.type for field in arrow()}
    assert tables._array("x", kinds["state"], 2).to_pylist() == ["x", "x"]
    assert tables._array(None, kinds["headers"], 2).to_pylist() == [[], []]
    assert tables._array([{"a": "b"}, None], kinds["headers"], 2).to_pylist() == [[("a", "b")], []]
    times = tables._array([1, None, 1 << 60], kinds["expires_at"], 3)
    assert times.type == pa.timestamp("us", "UTC")
    assert times.cast(pa.int64()).to_pylist()[:2] == [1000, None]
    assert times.to_pylist()[2].year == 9999


# Writes


def write(rows: DataFrame, url: str, **options: str) -> None:
    rows.write.format("penstock").mode("append").option("store", url).options(**options).save()


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


def test_batches_are_small_whatever_the_rows_are(served: Place) -> None:
    sizes: list[int] = []

    class Counting(RemoteLoads):
        def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
            sizes.append(len(frame))
            super().add(load, part, number, queue, frame)

    served.store.create("jobs")
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


def test_sliced_columns_and_texts_are_sent_as_they_are(served: Place) -> None:
    served.store.create("jobs")
    backend = RemoteLoads(served.url)
    load = backend.begin({})
    sender = Sender(backend, load, "a", {"jobs": served.store.queue("jobs").settings}, "jobs", 0)
    sender.add(pa.record_batch({"payload": ["a", "bü", "c", "", "d"]}).slice(1, 3))
    sender.add(pa.record_batch({"payload": ["e"]}).slice(1, 0))
    backend.commit(load, [Sent(*sender.finish())], None)
    backend.close()
    assert [message.payload for message in served.store.queue("jobs").messages()] == ["bü".encode(), b"c", b""]
