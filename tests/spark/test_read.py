"""Reading stores with Spark: what the store shows, all of one moment, and errors that say what is wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, unix_millis

import penstock
from penstock import Draft
from penstock.contract.message import STATES
from penstock.sharing.backend import engine_of
from penstock.stores.journal.store import JournalBackend
from tests.spark.reads import COLUMNS, TIMES, by_id, expired, listed, open_small, rows, varied
from tests.spark.stores import Place, place
from tests.stores.journal.journals import flip
from tests.stores.journal.test_tables import Writer, pinned
from tests.tracing.conftest import spans
from tests.tracing.spans import Recorded, identity

__all__ = ["place", "spans"]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, folder: str | Path, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("store", str(folder)).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def collected(messages: DataFrame) -> list[dict[str, Any]]:
    """Messages in the order of queue and id, with times in milliseconds."""
    shown = [unix_millis(name).alias(name) if name in TIMES else name for name in messages.columns]
    order = ("queue", expr("try_cast(id AS bigint)"))
    found = [row.asDict() for row in messages.orderBy(*order).select(*shown).collect()]
    return [row | {"payload": bytes(row["payload"])} if "payload" in row else row for row in found]


def test_spark_sees_every_message_as_the_store_shows_it(spark: SparkSession, place: Place) -> None:
    expired(varied(place.store, few_priorities=place.is_slate))
    place.store.create("a/b").put_many([b"%d" % number for number in range(100)])
    expected, messages = by_id(listed(place.store)), load(spark, place.url)
    assert messages.columns == COLUMNS
    assert by_id(collected(messages)) == expected
    some = load(spark, place.url, queue="varied", state="done,failed", payload="false")
    settled = [row for row in expected if row["queue"] == "varied" and row["state"] in ("done", "failed")]
    assert sorted(row["id"] for row in some.collect()) == sorted(row["id"] for row in settled)
    done, waiting = messages.where("state = 'done'"), messages.where("state = 'available'")
    assert done.union(waiting).count() == done.count() + waiting.count() > 100


def test_queues_and_attempts_are_tables_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        counts = varied(store).counts()
        (found,) = load(spark, tmp_path, table="queues").where("name = 'varied'").collect()
        assert {name: found[name] for name in counts} == counts
        assert (found.max_attempts, found.keep_done, found.priorities) == (2, None, None)
        attempts = load(spark, tmp_path, table="attempts")
        outcomes = {row.outcome: row["count"] for row in attempts.groupBy("outcome").count().collect()}
        assert outcomes == {"acked": 3, "failed": 6, None: 1}
        store.queue("varied").update(max_attempts=7, priorities=(0, 9))
        (found,) = load(spark, tmp_path, table="queues").where("name = 'varied'").collect()
        assert (found.max_attempts, list(found.priorities)) == (7, [0, 9])


def test_the_trace_of_a_message_is_a_header_in_spark(spark: SparkSession, tmp_path: Path, spans: Recorded) -> None:
    with penstock.open(tmp_path) as store:
        store.queue().put(b"a")
        (found,) = load(spark, tmp_path).selectExpr("headers['traceparent'] AS trace").collect()
    trace_id, span_id = identity(spans.one("put"))
    assert found.trace.split("-")[1:3] == [f"{trace_id:032x}", f"{span_id:016x}"]


def test_the_source_is_there_without_being_registered_in_sql_too(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.queue().put_many([b"a", b"bcd"])
        spark.sql(f"CREATE OR REPLACE TEMP VIEW jobs USING Penstock OPTIONS (store 'journal:{tmp_path}')")
        assert spark.sql("SELECT sum(length(payload)) FROM jobs").collect()[0][0] == 4
        assert spark.read.format("penstock").load(str(tmp_path)).count() == 2


def test_an_empty_queue_and_an_empty_store_have_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path):
        for table in ("messages", "attempts"):
            assert load(spark, tmp_path, table=table).collect() == []
        assert load(spark, tmp_path, table="queues").count() == 1


def test_the_largest_payloads_pass_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    payloads = [os.urandom(16 << 20), b"", os.urandom(16 << 20)]
    with penstock.open(tmp_path, sync="never") as store:
        store.queue().put_many(payloads)
        assert [row["payload"] for row in collected(load(spark, tmp_path))] == payloads


def test_columns_that_are_left_out_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.queue().put_many([b"some payload", Draft(b"other", headers={"a": "b"})])
        assert "payload" not in load(spark, tmp_path, payload="false").columns
        assert load(spark, tmp_path, "headers map<string, string>").collect()[1].headers == {"a": "b"}
    flip(tmp_path / "default", (tmp_path / "default").read_bytes().index(b"some"))
    found = load(spark, tmp_path, "state string, id string not null").orderBy("id").collect()
    assert [tuple(row) for row in found] == [("available", "1"), ("available", "2")]


# Filters

CONDITIONS = [
    "state = 'available'",
    "state IN ('done', 'failed') AND attempts > 1",
    "queue = 'b' AND id IN ('1', '3', 'x', '01')",
    "queue >= 'b' AND queue < 'varied'",
    "id = '2'",
    "id > '10'",
    "priority <= -5",
    "priority IN (0, 3) AND state != 'delayed'",
    "visible_at > current_timestamp()",
    "visible_at <= timestamp '9999-12-31' AND expires_at > timestamp '2020-01-01'",
    "expires_at IS NULL",
    "lease_until IS NOT NULL",
    "claimed_at >= timestamp '2020-01-01' OR priority < 0",
    "consumer = 'holder'",
    "created_at < timestamp '2020-01-01'",
    "headers['type'] = 'order'",
    "payload = X'' OR length(payload) > 1000",
    "reason LIKE 'no%'",
]


@pytest.mark.parametrize("pushdown", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_filters_keep_the_right_rows_whatever_else_a_dataframe_is_used_for(
    spark: SparkSession, everything: Path, pushdown: str
) -> None:
    messages = load(spark, everything)
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        every = collected(load(spark, everything))
        for state in STATES:
            kept = [row for row in every if row["state"] == state]
            assert collected(messages.where(messages.state == state)) == kept
            assert messages.count() == len(every)
        done, available = messages.where("state = 'done'"), messages.where("state = 'available'")
        both = done.union(available).groupBy("state").count().collect()
        assert {row.state: row["count"] for row in both} == {
            state: sum(row["state"] == state for row in every) for state in ("done", "available")
        }
        joined = done.alias("a").join(messages.alias("b"), on=["queue", "id"])
        assert joined.count() == done.count()
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_column_can_be_filtered_by(spark: SparkSession, everything: Path, condition: str) -> None:
    messages = load(spark, everything)
    kept = messages.where(condition).count()
    assert 0 < kept < messages.count()
    assert messages.where(f"NOT coalesce({condition}, false)").count() == messages.count() - kept


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("everything")
    with penstock.open(folder) as store:
        varied(store)
        store.create("b").put_many([Draft(b"x", priority=number) for number in range(20)])
    return folder


def test_messages_in_other_states_are_not_even_read(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = store.create("jobs", keep_done=None)
        queue.put_many([b"the first", b"the second", Draft(b"the third", delay=60)])
        queue.ack(*queue.claim())
    flip(tmp_path / "jobs", (tmp_path / "jobs").read_bytes().index(b"the first"))
    (row,) = load(spark, tmp_path, state="available").collect()
    assert row.payload == b"the second"
    assert load(spark, tmp_path, state=" delayed,available").count() == 2
    with pytest.raises(PySparkException, match="message 1 of queue 'jobs' is damaged"):
        load(spark, tmp_path).collect()


@pytest.mark.parametrize("wanted", [1, 3, 7])
def test_a_read_has_as_many_tasks_as_are_asked_for(spark: SparkSession, place: Place, wanted: int) -> None:
    store = place.store
    store.create("many").put_many([b"x"] * 100)
    store.create("more").put_many([b"y"] * 100)
    messages = load(spark, place.url, numPartitions=str(wanted))
    found = messages.rdd.getNumPartitions()
    assert found == wanted if place.kind == "journal" else 1 <= found <= wanted
    assert messages.count() == 200


# Errors


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"store": "nowhere"}, "", "no store at /.*/nowhere: "),
        ({"queue": "lost"}, "", "there is no queue 'lost' in the store"),
        ({"queue": "two words"}, "", "queue name 'two words' has ' ' at position 3"),
        ({"table": "log"}, "", "table 'log' is for slate stores, and "),
        ({"table": "lost"}, "", "there is no table 'lost'; there are messages, queues, attempts"),
        (
            {"tabel": "queues"},
            "",
            r"no option 'tabel' of a read \(is it table\?\); there are store, queue, state",
        ),
        (
            {"maxRowPerBatch": "7"},
            "",
            r"is it maxRowsPerBatch\?\); .*; readStream also has mode, stream, ",
        ),
        ({"maxRowsPerBatch": "7"}, "", "no option 'maxrowsperbatch' of a read; there are store"),
        ({"numPartitions": "two"}, "", "option numPartitions is a whole number from 1 on, not 'two'"),
        (
            {"state": "done,lost"},
            "",
            "there is no state 'lost'; there are delayed, available,",
        ),
        ({"state": "done", "table": "queues"}, "", "option state is for the table 'messages', not for 'queues'"),
        ({"payload": "no"}, "", "option payload is true or false, not 'no'"),
        ({"store": ""}, "", "which store"),
        ({"store": "http://localhost:1"}, "", "the server at http://localhost:1 cannot be reached: Connection"),
        ({"store": "http://localhost:1/x"}, "", "goes on after host and port"),
        ({"store": "memory:"}, "", "Spark works with stores on disk, in buckets and of servers"),
        ({}, "id string, size int", "table 'messages' has no column 'size'; its columns are id, queue,"),
        ({}, "id bigint", "column 'id' of table 'messages' is string, not bigint"),
        ({}, "consumer string not null", "column 'consumer' of table 'messages' may be NULL"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], schema: str, says: str
) -> None:
    penstock.open(tmp_path).close()
    with pytest.raises(PySparkException, match=says) as caught:
        load(spark, tmp_path, schema, **options).collect()
    assert "Traceback" not in str(caught.value)
    assert "File " not in str(caught.value)
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_message_is_named_without_a_traceback(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs").put_many([b"one", b"two " * 1000])
    flip(tmp_path / "jobs", (tmp_path / "jobs").read_bytes().index(b"two ") + 2000)
    with pytest.raises(
        PySparkException, match=r"message 2 of queue 'jobs' is damaged, at offset \d+ of"
    ) as caught:
        load(spark, tmp_path).collect()
    assert "Traceback" not in str(caught.value)


# One moment


def test_a_dataframe_keeps_showing_the_moment_of_its_plan(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        queue = store.create("jobs")
        queue.put_many([b"%d" % number * 100 for number in range(100)])
        messages = load(spark, tmp_path)
        before = sorted(row.payload for row in messages.collect())
        queue.ack(*queue.claim(100))
        queue.put(b"new")
        backend = engine_of(store)
        assert isinstance(backend, JournalBackend)
        backend.pack("jobs")
        assert sorted(row.payload for row in messages.collect()) == before
        assert [row.payload for row in load(spark, tmp_path).collect()] == [b"new"]


def test_spark_reads_one_moment_beside_a_process_that_writes_and_packs(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = Writer(tmp_path, seed=2)
    try:
        for _ in range(8):
            before = writer.so_far()
            found = load(spark, writer.store, "queue string, payload binary").collect()
            writer.check(before, [(row.queue, bytes(row.payload).decode().rstrip(".")) for row in found])
    finally:
        writer.stop()


def test_pins_belong_to_the_process_that_drives_spark(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.queue().put(b"x")
        load(spark, tmp_path).collect()
        java: Any = spark._jvm
        driver = java.java.lang.ProcessHandle.current().pid()
        (owner,) = (tmp_path / ".penstock" / "pins").iterdir()
        assert owner.name.startswith(f"{driver}-")
        assert len(pinned(tmp_path)) == 1
    penstock.open(tmp_path).close()
    assert len(pinned(tmp_path)) == 1  # the driver is still there


@pytest.mark.long
def test_pins_are_dropped_once_the_driver_is_gone(tmp_path: Path) -> None:
    penstock.open(tmp_path).close()
    with penstock.open(tmp_path) as store:
        store.queue().put(b"x")
    program = (
        "import penstock.spark, sys\n"
        "spark = penstock.spark.session('local[1]')\n"
        "print(spark.read.format('penstock').load(sys.argv[1]).count())\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert ran.stdout == "1\n"
    assert len(pinned(tmp_path)) == 1
    rows(tmp_path, ["state"])
    assert not pinned(tmp_path)
