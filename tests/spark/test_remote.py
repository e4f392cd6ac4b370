"""Reading a store through its server: the same rows, parts for many tasks, and what holds while others work."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Draft
from penstock.errors import PenstockError, QueueNotFound, StoreCorrupt, StoreUnreachable
from penstock.http.client import tables
from penstock.http.server import serve_in_thread
from penstock.spark.errors import as_ours
from tests.spark import reads
from tests.spark.reads import arrow
from tests.stores.journal.test_tables import flip


class Served:
    """A store on disk and its server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = penstock.open(folder, sync="never")
        self._server = serve_in_thread(self.store)
        self.url = self._server.url

    def plan(self, columns: Sequence[str] = (), **options: str) -> Sequence[Any]:
        return reads.plan(self.url, arrow(options.get("table", "messages"), columns), **options)

    def rows(self, columns: Sequence[str] = (), **options: str) -> list[dict[str, Any]]:
        return reads.rows(self.url, columns, **options)

    def stop(self) -> None:
        self._server.stop()
        self.store.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.stop()


def test_a_large_queue_is_read_in_parts_and_small_ones_together(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_PART", 3_000)
    monkeypatch.setattr(tables, "_SMALL_PART", 3_000)
    large = served.store.create("large")
    for start in range(0, 10_000, 1_000):
        large.put_many([b"%d" % number for number in range(start, start + 1_000)])
    for number in range(50):
        served.store.create(f"small-{number}").put_many([b"x"] * 10)
    parts = served.plan(payload="false")
    assert 4 <= len(parts) <= 6
    sizes = [len(reads.read([part], arrow(columns=["id"]))) for part in parts]
    assert sum(sizes) == 10_500
    assert max(sizes) < 4_100
    found = served.rows(["payload"], queue="large")
    assert [row["payload"] for row in found] == [b"%d" % number for number in range(10_000)]


def test_payloads_up_to_the_largest_come_page_by_page(served: Served) -> None:
    payloads = [bytes([number]) * (5 << 20) for number in range(5)] + [b"", b"\xff" * (16 << 20)]
    for payload in payloads:
        served.store.queue().put(payload)
    assert [row["payload"] for row in served.rows(["payload"])] == payloads


def test_what_stays_is_there_once_and_what_is_put_later_is_not(served: Served) -> None:
    queue = served.store.create("jobs", keep_done=None)
    queue.put_many([b"%d" % number for number in range(5_000)])
    queue.remove(*map(str, range(1, 4_000)))
    parts = served.plan()
    queue.put_many([b"new"] * 10)
    queue.ack(*queue.claim(100))
    queue.remove("5000")
    found = reads.read(parts, arrow(columns=["payload", "state"]))
    assert [int(row["payload"]) for row in found] == list(range(3_999, 4_999))
    assert sum(row["state"] == "done" for row in found) == 100  # each as it was when it was listed


def test_a_queue_that_is_deleted_meanwhile_has_no_rows(served: Served) -> None:
    for name in "ab":
        served.store.create(name).put_many([b"x"] * 3)
    for table in ("messages", "attempts"):
        parts = served.plan(table=table)
        if table == "messages":
            served.store.delete("a")
        assert {row["queue"] for row in reads.read(parts, arrow(table, ["queue"]))} <= {"b"}
    with pytest.raises(QueueNotFound, match="there is no queue 'a'"):
        served.plan(queue="a")


def test_bodies_that_are_not_wanted_are_not_read(served: Served) -> None:
    queue = served.store.create("jobs")
    queue.put_many([b"first", Draft(b"second" * 1000, headers={"a": "b"})])
    journal = served.folder / "jobs"
    flip(journal, journal.read_bytes().index(b"second"))
    assert [row["id"] for row in served.rows(["id", "state", "visible_at"])] == ["1", "2"]
    with pytest.raises(StoreCorrupt, match="stored bytes are damaged: the server's log says where"):
        served.rows(["headers"])


def test_a_server_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.store.queue().put(b"x")
    parts = served.plan()
    served.stop()
    with pytest.raises(StoreUnreachable, match=f"the server at {served.url} cannot be reached"):
        served.plan()
    with pytest.raises(StoreUnreachable, match=f"the server at {served.url} cannot be reached"):
        reads.read(parts, arrow())


def test_what_is_wrong_is_said_in_one_line(spark: SparkSession, served: Served) -> None:
    queue = served.store.create("jobs")
    queue.put_many([b"first", b"second" * 1000])
    flip(served.folder / "jobs", (served.folder / "jobs").read_bytes().index(b"second"))
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
