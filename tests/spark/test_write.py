"""df.write.format("penstock"): rows become messages of a store of any kind, all of them or none."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import NotSupported
from penstock.spark.errors import cause
from tests.spark.stores import EACH_KIND, KINDS, Place, opened

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TWO_KINDS = ["journal", "server"]  # groups are staged, or frames are sent


def write(rows: DataFrame, store: object, **options: str) -> None:
    rows.write.format("penstock").mode("append").option("store", str(store)).options(**options).save()


@pytest.fixture(params=[kind for kind in KINDS if kind != "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store in which no write leaves anything staged."""
    with opened(request.param, request, tmp_path / "store") as found:
        found.store.create("jobs")
        found.store.create("strict", max_payload=10, priorities=(0, 5), max_size=3, retention=60)
        yield found
        assert found.staged() == []


def test_rows_become_messages_and_waiting_consumers_are_served(spark: SparkSession, place: Place) -> None:
    with penstock.open(place.url) as store, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.queue("jobs").claim, 1000, wait=120)
        write(spark.range(1000).selectExpr("cast(id as string) AS payload"), place.url, queue="jobs")
        claimed = waiting.result()
        while len(claimed) < 1000:  # slate stores take rows in frame by frame
            claimed += store.queue("jobs").claim(1000, wait=120)
        assert [message.payload for message in claimed] == [b"%d" % number for number in range(1000)]
        store.queue("jobs").ack(*claimed)


def test_every_column_that_can_be_set_is_kept(spark: SparkSession, place: Place) -> None:
    priority = 7 if place.is_slate else -7
    rows = spark.createDataFrame(
        [
            (bytearray(b"\x00\xff"), {"a": "b", "ü": "ß"}, priority, NOON, None, None, "jobs"),
            (bytearray(b""), None, None, None, NOON.replace(year=2099), None, "jobs"),
            (bytearray(b"3"), {}, 3, None, None, NOON.replace(year=2098), "strict"),
        ],
        "payload binary, headers map<string,string>, priority int, created_at timestamp, visible_at timestamp, "
        "expires_at timestamp, queue string",
    )
    write(rows.coalesce(1), place.url)
    first, second = place.store.queue("jobs").messages()
    assert (first.payload, first.headers, first.priority) == (b"\x00\xff", {"a": "b", "ü": "ß"}, priority)
    assert first.created_at == NOON.timestamp() * 1000
    assert first.expires_at is None
    assert (second.payload, second.headers, second.priority, second.state) == (b"", {}, 0, "delayed")
    assert abs(second.visible_at - NOON.replace(year=2099).timestamp() * 1000) <= place.late
    assert second.created_at == second.received_at
    (third,) = place.store.queue("strict").messages()
    assert third.expires_at is not None
    assert abs(third.expires_at - NOON.replace(year=2098).timestamp() * 1000) <= place.late
    write(spark.sql("SELECT 'x' AS payload"), place.url, queue="strict")
    _, last = place.store.queue("strict").messages()
    assert last.expires_at == last.received_at + 60_000  # as the queue says


@pytest.mark.parametrize("place", [*TWO_KINDS, "slate"], indirect=True)
def test_groups_are_written_and_read_as_a_column(spark: SparkSession, place: Place) -> None:
    place.store.create("later", delay=60)
    rows = spark.range(8).selectExpr(
        "cast(id as string) AS payload", "if(id % 4 = 3, NULL, concat('ü', id % 4)) AS `group`"
    )
    write(rows.coalesce(1), place.url, queue="jobs")
    write(rows.where("id < 3").select("payload"), place.url, queue="later")
    queue = place.store.queue("jobs")
    groups = [None if at % 4 == 3 else f"ü{at % 4}" for at in range(8)]
    assert [message.group for message in queue.messages()] == groups
    assert [message.payload for message in queue.claim(9)] == [b"0", b"1", b"2", b"3", b"7"]
    assert place.store.queue("later").counts()["delayed"] == 3
    found = spark.read.format("penstock").load(place.url).where("queue = 'jobs'").orderBy("payload")
    assert [row["group"] for row in found.select("group").collect()] == groups
    for wrong, why in (("''", "a group of 0 bytes"), ("repeat('ü', 128)", "a group of 256 bytes")):
        with pytest.raises(PySparkException, match=f"row 1 of partition 0: {why}"):
            write(spark.sql(f"SELECT 'x' AS payload, {wrong} AS `group`"), place.url, queue="jobs")


def test_a_column_says_which_queue_and_the_option_what_it_leaves_open(spark: SparkSession, place: Place) -> None:
    rows = spark.range(3000).selectExpr(
        "cast(id as string) AS payload", "CASE id % 3 WHEN 0 THEN 'jobs' WHEN 1 THEN 'default' END AS queue"
    )
    with pytest.raises(PySparkException, match="row 3 of partition 0: no queue is named"):
        write(rows.coalesce(1), place.url)
    assert place.total() == 0
    write(rows, place.url, queue="jobs")
    assert (place.store.queue("jobs").count(), place.store.queue().count()) == (2000, 1000)


@pytest.mark.parametrize("place", TWO_KINDS, indirect=True)
def test_large_writes_arrive_as_they_were(spark: SparkSession, place: Place) -> None:
    rows = spark.range(0, 20_000, 1, 4).selectExpr(
        "repeat(cast(id as string), 200) AS payload", "if(id % 1000 = 7, 'default', 'jobs') AS queue"
    )
    write(rows, place.url)  # a journal's come as files of their own, beside small ones
    found = [message.payload for message in place.store.queue("jobs").messages()]
    assert found == [b"%d" % number * 200 for number in range(20_000) if number % 1000 != 7]
    assert place.store.queue().count() == 20
    read = spark.read.format("penstock").option("store", place.url).load()
    assert read.selectExpr("cast(payload as string) AS payload").exceptAll(rows.select("payload")).count() == 0
    assert read.count() == 20_000


ROWS = [  # of which each is wrong
    ("cast(NULL AS binary) AS payload", "jobs", "row 1 of partition 0: its payload is NULL"),
    ("'x' AS payload, 6 AS priority", "strict", "row 1 of partition 0: priority 6; queue 'strict' takes"),
    ("'0123456789a' AS payload", "strict", "row 1 of partition 0: a payload of 11 bytes; queue 'strict'"),
    ("'x' AS payload, map('', 'x') AS headers", "jobs", "row 1 of partition 0: a header without a name"),
    ("'x' AS payload, map('a', cast(NULL AS string)) AS headers", "jobs", "row 1 of .*'a': None"),
    ("'x' AS payload, map('penstock.x', 'x') AS headers", "jobs", "row 1 of .*Penstock's own"),
    ("'x' AS payload, timestamp'1969-01-01' AS created_at", "jobs", "row 1 .*: created_at is not between the y"),
]


@pytest.mark.parametrize(
    ("place", "select", "options", "text"),
    [
        *((kind, row, {"queue": queue}, text) for kind in TWO_KINDS for row, queue, text in ROWS),
        *((kind, "'x' AS payload", {"queue": "lost"}, "there is no queue 'lost'") for kind in KINDS[:5]),
        ("journal", "'x' AS text", {"queue": "jobs"}, "column 'text' is not one of a message"),
        ("journal", "1 AS priority", {"queue": "jobs"}, "there is no column 'payload' among priority"),
        ("journal", "'x' AS payload, '1' AS id", {"queue": "jobs"}, "column 'id' is the queue's to set: drop it"),
        ("journal", "'x' AS payload, 'high' AS priority", {"queue": "jobs"}, "column 'priority' is string, not t"),
        ("journal", "'x' AS payload, map(1, 2) AS headers", {"queue": "jobs"}, "'headers' is map<int,int>, not m"),
        ("journal", "NULL AS payload", {"queue": "jobs"}, "column 'payload' is void, not binary or string"),
        ("journal", "'x' AS payload", {}, r"into which queue\?"),
        ("journal", "'x' AS payload", {"queue": "two words"}, "queue name 'two words' has ' '"),
        (
            "journal",
            "'x' AS payload",
            {"queue": "jobs", "mod": "x"},
            "'mod' of a write; there are store, queue and id",
        ),
        ("journal", "'x' AS payload", {"queue": "jobs", "id": ""}, "option id has 0 characters"),
        ("slate", "'x' AS payload, 256 AS priority", {"queue": "jobs"}, "takes 0 to 255"),
        ("server of slate", "'x' AS payload, 256 AS priority", {"queue": "jobs"}, "takes 0 to 255"),
    ],
    indirect=["place"],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, place: Place, select: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text) as caught:
        write(spark.sql(f"SELECT {select}"), place.url, **options)
    assert "Traceback" not in str(caught.value)
    assert place.total() == 0


@pytest.mark.parametrize("place", [*TWO_KINDS, "slate", "server of slate"], indirect=True)
def test_a_write_that_does_not_fit_into_a_queue_changes_nothing(spark: SparkSession, place: Place) -> None:
    rows = spark.sql(
        "SELECT 'x' AS payload, explode(array('strict', 'strict', 'jobs', 'strict', 'strict')) AS queue"
    )
    with pytest.raises(PySparkException, match="queue 'strict' holds 0 of at most 3 messages; 4 more do not fit"):
        write(rows, place.url)
    assert place.total() == 0


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, place: Place) -> None:
    rows = spark.range(0, 60_000, 1, 1).selectExpr(
        "if(id = 59999, raise_error('the last one'), repeat(cast(id as string), 20)) AS payload"
    )
    with pytest.raises(PySparkException, match="the last one"):
        write(rows, place.url, queue="jobs")
    assert place.total() == 0


@pytest.mark.parametrize("place", EACH_KIND, indirect=True)
def test_a_run_takes_effect_once_and_may_have_no_rows(spark: SparkSession, place: Place) -> None:
    for run in ("monday", "monday", "tuesday"):
        write(spark.sql("SELECT 'x' AS payload"), place.url, queue="jobs", id=run)
        write(spark.range(0).selectExpr("cast(id as string) AS payload"), place.url, queue="jobs", id=f"no {run}")
    assert place.total() == 2


def test_a_write_never_replaces_a_queue(spark: SparkSession, tmp_path: Path) -> None:
    penstock.open(tmp_path).close()
    writer = spark.sql("SELECT 'x' AS payload").write.format("penstock").mode("overwrite").option("queue", "jobs")
    with pytest.raises(PySparkException, match="a queue is never overwritten"):
        writer.save(str(tmp_path))


def test_a_store_that_is_not_there_is_not_made(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no store at "):
        write(spark.sql("SELECT 'x' AS payload"), tmp_path / "lost", queue="default")
    assert not (tmp_path / "lost").exists()


@pytest.mark.long
def test_a_store_that_is_not_shared_is_refused_before_the_work_begins(spark: SparkSession, tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path, share=False),
        pytest.raises(PySparkException, match=f"is open in pid {os.getpid()}"),
    ):
        write(spark.range(3).selectExpr("cast(id as string) AS payload"), tmp_path, queue="default")
    assert not os.path.exists(tmp_path / ".penstock" / "staged") or not os.listdir(
        tmp_path / ".penstock" / "staged"
    )


@pytest.mark.parametrize("place", [*TWO_KINDS, "slate"], indirect=True)
def test_rows_come_between_what_others_put(spark: SparkSession, place: Place) -> None:
    rows = spark.range(1000).selectExpr("cast(id as string) AS payload").coalesce(1)
    queue = place.store.queue("jobs")
    queue.put(b"before")
    write(rows, place.url, queue="jobs")
    queue.put(b"after")
    found = [message.payload for message in queue.messages()]
    assert found == [b"before", *(b"%d" % number for number in range(1000)), b"after"]


def test_what_a_killed_driver_has_staged_is_gone_when_the_store_is_opened(tmp_path: Path) -> None:
    penstock.open(tmp_path).close()
    program = (
        "import os, signal, sys\n"
        "import penstock.spark\n"
        "from pyspark.sql.functions import udf\n"
        "spark = penstock.spark.session('local[1]')\n"
        "java = spark._jvm.java.lang.ProcessHandle.current().pid()\n"
        "@udf('string')\n"
        "def kill(number):\n"
        "    if number == 50_000:\n"
        "        os.kill(java, signal.SIGKILL)\n"
        "    return 'x' * 100\n"
        "rows = spark.range(0, 100_000, 1, 1).select(kill('id').alias('payload'))\n"
        "rows.write.format('penstock').mode('append').option('queue', 'default').save(sys.argv[1])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode != 0
    with penstock.open(tmp_path) as store:
        assert store.queue().count() == 0
        store.queue().put(b"it goes on")
    assert not list(tmp_path.glob(".penstock/staged/*"))


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.write.format("penstock").options(**rows.where).saveAsTable("made"),
        lambda rows: rows.write.options(**rows.where).saveAsTable("made", format="Penstock", mode="append"),
        lambda rows: rows.writeTo("made").using("penstock").options(**rows.where).create(),
        lambda rows: rows.sparkSession.sql("CREATE TABLE made USING penstock"),
        lambda rows: rows.sparkSession.sql("CREATE TABLE made USING penstock AS SELECT 'x' AS payload"),
        lambda rows: rows.write.format("penstock").mode("append").save(),
    ],
    ids=["saveAsTable", "format", "writeTo", "CREATE TABLE", "CREATE TABLE AS", "save"],
)
def test_a_table_of_sparks_catalog_is_refused_with_the_line_that_writes(
    spark: SparkSession, tmp_path: Path, write: Callable[[Any], object]
) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs")
    rows: Any = spark.range(3).selectExpr("cast(id AS string) AS payload")
    rows.where = {"store": str(tmp_path), "queue": "jobs"}
    with pytest.raises((NotSupported, PySparkException)) as caught:
        write(rows)
    line = 'df.write.format("penstock").mode("append").option("store", URL).option("queue", NAME).save()'
    assert line in cause(caught.value)
    assert not spark.catalog.tableExists("made")
    with penstock.open(tmp_path) as store:
        assert store.queue("jobs").count() == 0


def test_a_table_that_spark_makes_without_asking_holds_nothing_and_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE made (payload STRING) USING penstock OPTIONS (store '{tmp_path}', queue 'jobs')")
    try:
        for query in ("INSERT INTO made VALUES ('x')", "SELECT * FROM made"):
            with pytest.raises(PySparkException, match="Penstock has no tables in Spark's catalog"):
                spark.sql(query).collect()
    finally:
        spark.sql("DROP TABLE made")


def test_tables_of_other_formats_are_made_as_ever(spark: SparkSession) -> None:
    spark.range(3).write.format("parquet").saveAsTable("made")
    spark.range(3).writeTo("made2").using("parquet").create()
    assert [spark.table(name).count() for name in ("made", "made2")] == [3, 3]
    for name in ("made", "made2"):
        spark.sql(f"DROP TABLE {name}")
