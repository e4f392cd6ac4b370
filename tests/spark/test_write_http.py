"""df.write.format("penstock") with the URL of a server: rows become messages there, all of them or none."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from penstock.spark import jobs
from tests.harness.children import ServerChild
from tests.spark.reads import listed, varied

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


def test_rows_become_messages_and_waiting_consumers_are_served(spark: SparkSession, served: Served) -> None:
    rows = spark.range(1000).selectExpr("cast(id as string) AS payload")
    with penstock.open(served.url) as store, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.queue("jobs").claim, 1000, wait=120)
        write(rows, served.url, queue="jobs")
        claimed = waiting.result()
        assert [message.payload for message in claimed] == [b"%d" % number for number in range(1000)]
        store.queue("jobs").ack(*claimed)


def test_every_column_that_can_be_set_is_kept(spark: SparkSession, served: Served) -> None:
    rows = spark.createDataFrame(
        [
            (bytearray(b"\x00\xff"), {"a": "b", "ü": "ß"}, -7, NOON, None, None, "jobs"),
            (bytearray(b""), None, None, None, NOON.replace(year=2099), None, "jobs"),
            (bytearray(b"3"), {}, 3, None, None, NOON.replace(year=2098), "strict"),
        ],
        "payload binary, headers map<string,string>, priority int, created_at timestamp, visible_at timestamp, "
        "expires_at timestamp, queue string",
    )
    write(rows.coalesce(1), served.url)
    first, second = served.store.queue("jobs").messages()
    assert (first.payload, first.headers, first.priority) == (b"\x00\xff", {"a": "b", "ü": "ß"}, -7)
    assert first.created_at == NOON.timestamp() * 1000
    assert first.expires_at is None
    assert (second.payload, second.headers, second.priority, second.state) == (b"", {}, 0, "delayed")
    assert second.visible_at == NOON.replace(year=2099).timestamp() * 1000
    assert second.created_at == second.received_at
    (third,) = served.store.queue("strict").messages()
    assert third.expires_at == NOON.replace(year=2098).timestamp() * 1000


def test_a_queue_s_retention_holds_for_what_says_nothing_else(spark: SparkSession, served: Served) -> None:
    write(spark.sql("SELECT 'x' AS payload"), served.url, queue="strict")
    (message,) = served.store.queue("strict").messages()
    assert message.expires_at == message.received_at + 60_000


def test_a_column_says_which_queue_and_the_option_what_it_leaves_open(spark: SparkSession, served: Served) -> None:
    rows = spark.range(3000).selectExpr(
        "cast(id as string) AS payload", "CASE id % 3 WHEN 0 THEN 'jobs' WHEN 1 THEN 'default' END AS queue"
    )
    with pytest.raises(PySparkException, match="row 3 of partition 0: no queue is named"):
        write(rows.coalesce(1), served.url)
    assert served.total() == 0
    write(rows, served.url, queue="jobs")
    assert (served.store.queue("jobs").count(), served.store.queue().count()) == (2000, 1000)


def test_large_writes_arrive_as_they_were(spark: SparkSession, served: Served) -> None:
    rows = spark.range(0, 20_000, 1, 4).selectExpr(
        "repeat(cast(id as string), 200) AS payload", "if(id % 1000 = 7, 'default', 'jobs') AS queue"
    )
    write(rows, served.url)
    found = [message.payload for message in served.store.queue("jobs").messages()]
    assert found == [b"%d" % number * 200 for number in range(20_000) if number % 1000 != 7]
    assert served.store.queue().count() == 20


@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        ("'x' AS payload, '1' AS id", {"queue": "jobs"}, "column 'id' is the queue's to set: drop it"),
        ("'x' AS payload", {}, r"into which queue\?"),
        ("'x' AS payload", {"queue": "lost"}, "there is no queue 'lost'"),
        ("'x' AS payload", {"queue": "jobs", "id": ""}, "option id has 0 characters"),
        ("cast(NULL AS binary) AS payload", {"queue": "jobs"}, "row 1 of partition 0: its payload is NULL"),
        ("'x' AS payload, 6 AS priority", {"queue": "strict"}, "row 1 of partition 0: priority 6; queue 'strict'"),
        ("'0123456789a' AS payload", {"queue": "strict"}, "row 1 of partition 0: a payload of 11 bytes; queue"),
        ("'x' AS payload, map('', 'x') AS headers", {"queue": "jobs"}, "row 1 of partition 0: a header without a"),
        ("'x' AS payload, map('a', cast(NULL AS string)) AS headers", {"queue": "jobs"}, "row 1 of .*'a': None"),
        (
            "'x' AS payload, timestamp'1969-01-01' AS created_at",
            {"queue": "jobs"},
            "row 1 of partition 0: created_at is not between the years 1970 and 9999",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, served: Served, select: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text) as caught:
        write(spark.sql(f"SELECT {select}"), served.url, **options)
    assert "Traceback" not in str(caught.value)
    assert served.total() == 0


def test_a_write_that_does_not_fit_into_a_queue_changes_nothing(spark: SparkSession, served: Served) -> None:
    rows = spark.sql(
        "SELECT 'x' AS payload, explode(array('strict', 'strict', 'jobs', 'strict', 'strict')) AS queue"
    )
    with pytest.raises(PySparkException, match="queue 'strict' holds 0 of at most 3 messages; 4 more do not fit"):
        write(rows, served.url)
    assert served.total() == 0


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, served: Served) -> None:
    rows = spark.range(0, 60_000, 1, 1).selectExpr(
        "if(id = 59999, raise_error('the last one'), repeat(cast(id as string), 20)) AS payload"
    )
    with pytest.raises(PySparkException, match="the last one"):
        write(rows, served.url, queue="jobs")
    assert served.total() == 0


def test_a_run_takes_effect_once(spark: SparkSession, served: Served) -> None:
    for _ in range(2):
        write(spark.sql("SELECT 'x' AS payload"), served.url, queue="jobs", id="monday")
    write(spark.sql("SELECT 'x' AS payload"), served.url, queue="jobs", id="tuesday")
    assert served.store.queue("jobs").count() == 2


def test_no_rows_at_all_are_a_write_too(spark: SparkSession, served: Served) -> None:
    write(spark.range(0).selectExpr("cast(id as string) AS payload"), served.url, queue="jobs")


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


def shown(store: penstock.Store) -> list[str]:
    """All that there is in a store but ids, in no particular order."""
    left_out = ("id", "receipt", "lease_until")
    found = []
    for row in listed(store):
        attempts = store.queue(row["queue"]).attempts(row["id"])
        found.append(str([*(value for name, value in row.items() if name not in left_out), attempts]))
    return sorted(found)


def test_what_a_store_holds_arrives_in_that_of_a_server_as_in_a_folder(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    with penstock.open(tmp_path / "source") as source:
        varied(source)
        source.create("nothing", max_attempts=7)
        source.queue().put_many([b"%d" % number * 1000 for number in range(5000)])
    for repeated in (False, True):
        summary = jobs.convert(spark, str(tmp_path / "source"), served.url)
        assert summary.repeated is repeated
    jobs.convert(spark, str(tmp_path / "source"), str(tmp_path / "folder"))
    with penstock.open(tmp_path / "folder") as folder:
        assert len(shown(folder)) > 5010
        assert shown(served.store) == shown(folder)
    assert served.store.queue("nothing").settings.max_attempts == 7


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
