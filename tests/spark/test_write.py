"""df.write.format("penstock"): rows become messages, all of them or none."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def write(rows: DataFrame, store: Path, **options: str) -> None:
    rows.write.format("penstock").mode("append").option("store", str(store)).options(**options).save()


def staged(store: Path) -> list[str]:
    folder = store / ".penstock" / "staged"
    return os.listdir(folder) if folder.exists() else []


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "store") as made:
        made.create("jobs")
        made.create("strict", max_payload=10, priorities=(0, 5), max_size=3, retention=60)
    return tmp_path / "store"


def test_rows_become_messages_that_can_be_claimed(spark: SparkSession, store: Path) -> None:
    write(spark.range(1000).selectExpr("cast(id as string) AS payload"), store, queue="jobs")
    with penstock.open(store) as opened:
        claimed = opened.queue("jobs").claim(1000)
        assert [message.payload for message in claimed] == [b"%d" % number for number in range(1000)]
        opened.queue("jobs").ack(*claimed)
    assert not staged(store)


def test_every_column_that_can_be_set_is_kept(spark: SparkSession, store: Path) -> None:
    rows = spark.createDataFrame(
        [
            (bytearray(b"\x00\xff"), {"a": "b", "ü": "ß"}, -7, NOON, None, None, "jobs"),
            (bytearray(b""), None, None, None, NOON.replace(year=2099), None, "jobs"),
            (bytearray(b"3"), {}, 3, None, None, NOON.replace(year=2098), "strict"),
        ],
        "payload binary, headers map<string,string>, priority int, created_at timestamp, visible_at timestamp, "
        "expires_at timestamp, queue string",
    )
    write(rows.coalesce(1), store)
    with penstock.open(store) as opened:
        first, second = opened.queue("jobs").messages()
        assert (first.payload, first.headers, first.priority) == (b"\x00\xff", {"a": "b", "ü": "ß"}, -7)
        assert first.created_at == NOON.timestamp() * 1000
        assert first.expires_at is None
        assert (second.payload, second.headers, second.priority, second.state) == (b"", {}, 0, "delayed")
        assert second.visible_at == NOON.replace(year=2099).timestamp() * 1000
        assert second.created_at == second.received_at
        (third,) = opened.queue("strict").messages()
        assert third.expires_at == NOON.replace(year=2098).timestamp() * 1000


def test_a_queue_s_retention_holds_for_what_says_nothing_else(spark: SparkSession, store: Path) -> None:
    write(spark.sql("SELECT 'x' AS payload"), store, queue="strict")
    with penstock.open(store) as opened:
        (message,) = opened.queue("strict").messages()
        assert message.expires_at == message.received_at + 60_000


def test_a_column_says_which_queue_and_the_option_what_it_leaves_open(spark: SparkSession, store: Path) -> None:
    rows = spark.range(3000).selectExpr(
        "cast(id as string) AS payload", "CASE id % 3 WHEN 0 THEN 'jobs' WHEN 1 THEN 'default' END AS queue"
    )
    with pytest.raises(PySparkException, match="row 3 of partition 0: no queue is named"):
        write(rows.coalesce(1), store)
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == opened.queue().count() == 0
    write(rows, store, queue="jobs")
    with penstock.open(store) as opened:
        assert (opened.queue("jobs").count(), opened.queue().count()) == (2000, 1000)


def test_large_writes_come_as_files_of_their_own_beside_small_ones(spark: SparkSession, store: Path) -> None:
    rows = spark.range(20_000).selectExpr(
        "repeat(cast(id as string), 200) AS payload", "if(id % 1000 = 7, 'default', 'jobs') AS queue"
    )
    write(rows, store)
    read = spark.read.format("penstock").option("store", str(store)).load()
    assert read.count() == 20_000
    assert read.groupBy("queue").count().where("queue = 'default'").first()["count"] == 20  # type: ignore[index]
    assert read.selectExpr("cast(payload as string) AS payload").exceptAll(rows.select("payload")).count() == 0
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == 19_980


@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        (
            "'x' AS text",
            {"queue": "jobs"},
            "there is no column 'payload' among text|column 'text' is not one of a",
        ),
        ("'x' AS payload, '1' AS id", {"queue": "jobs"}, "column 'id' is the queue's to set: drop it"),
        ("'x' AS payload, 'high' AS priority", {"queue": "jobs"}, "column 'priority' is string, not tinyint or"),
        (
            "'x' AS payload, map(1, 2) AS headers",
            {"queue": "jobs"},
            "column 'headers' is map<int,int>, not map<st",
        ),
        ("'x' AS payload", {}, "into which queue\\?"),
        ("'x' AS payload", {"queue": "lost"}, "there is no queue 'lost'"),
        ("'x' AS payload", {"queue": "two words"}, "queue name 'two words' has ' '"),
        ("'x' AS payload", {"queue": "jobs", "mod": "x"}, "there is no option 'mod'; there are store, queue, id"),
        ("NULL AS payload", {"queue": "jobs"}, "column 'payload' is void, not binary or string"),
        ("cast(NULL AS binary) AS payload", {"queue": "jobs"}, "row 1 of partition 0: its payload is NULL"),
        (
            "'x' AS payload, 6 AS priority",
            {"queue": "strict"},
            "row 1 of partition 0: priority 6; queue 'strict' ta",
        ),
        (
            "'0123456789a' AS payload",
            {"queue": "strict"},
            "row 1 of partition 0: a payload of 11 bytes; queue 'st",
        ),
        (
            "'x' AS payload, map('', 'x') AS headers",
            {"queue": "jobs"},
            "row 1 of partition 0: a header without a n",
        ),
        ("'x' AS payload, map('penstock.x', 'x') AS headers", {"queue": "jobs"}, "row 1 of .*Penstock's own"),
        (
            "'x' AS payload, timestamp'1969-01-01' AS created_at",
            {"queue": "jobs"},
            "row 1 of partition 0: created_at is not between the years 1970 and 9999",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, store: Path, select: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text) as caught:
        write(spark.sql(f"SELECT {select}"), store, **options)
    assert "Traceback" not in str(caught.value)
    with penstock.open(store) as opened:
        assert sum(sum(info.counts.values()) for info in opened.queues()) == 0
    assert not staged(store)


def test_a_write_that_does_not_fit_into_a_queue_changes_nothing(spark: SparkSession, store: Path) -> None:
    rows = spark.sql(
        "SELECT 'x' AS payload, explode(array('strict', 'strict', 'jobs', 'strict', 'strict')) AS queue"
    )
    with pytest.raises(PySparkException, match="queue 'strict' holds 0 of at most 3 messages; 4 more do not fit"):
        write(rows, store)
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == opened.queue("strict").count() == 0
    assert not staged(store)


def test_a_write_never_replaces_a_queue(spark: SparkSession, store: Path) -> None:
    writer = spark.sql("SELECT 'x' AS payload").write.format("penstock").mode("overwrite").option("queue", "jobs")
    with pytest.raises(PySparkException, match="a queue is never overwritten"):
        writer.save(str(store))


def test_a_store_that_is_not_there_is_not_made(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no store at "):
        write(spark.sql("SELECT 'x' AS payload"), tmp_path / "lost", queue="default")
    assert not (tmp_path / "lost").exists()


def test_a_store_that_is_not_shared_is_refused_before_the_work_begins(spark: SparkSession, store: Path) -> None:
    with (
        penstock.open(store, share=False),
        pytest.raises(PySparkException, match=f"is open in pid {os.getpid()}"),
    ):
        write(spark.range(3).selectExpr("cast(id as string) AS payload"), store, queue="jobs")
    assert not staged(store)


def test_a_store_that_someone_has_open_takes_the_rows_in(spark: SparkSession, store: Path) -> None:
    rows = spark.range(1000).selectExpr("cast(id as string) AS payload").coalesce(1)
    with penstock.open(store) as opened:
        queue = opened.queue("jobs")
        queue.put(b"before")
        write(rows, store, queue="jobs")
        assert [message.payload for message in queue.messages()][:3] == [b"before", b"0", b"1"]
        for _ in range(2):
            write(rows, store, queue="jobs", id="once")
        assert queue.count() == 2001
        with pytest.raises(PySparkException, match="QueueFull"):
            write(rows, store, queue="strict")
        queue.put(b"after")
    assert not staged(store)
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == 2002


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, store: Path) -> None:
    rows = spark.range(1000).selectExpr("if(id = 999, raise_error('the last one'), repeat(id, 100)) AS payload")
    with pytest.raises(PySparkException, match="the last one"):
        write(rows, store, queue="jobs")
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == 0
    assert not staged(store)


def test_a_run_takes_effect_once(spark: SparkSession, store: Path) -> None:
    for _ in range(2):
        write(spark.sql("SELECT 'x' AS payload"), store, queue="jobs", id="monday")
    write(spark.sql("SELECT 'x' AS payload"), store, queue="jobs", id="tuesday")
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == 2


def test_no_rows_at_all_are_a_write_too(spark: SparkSession, store: Path) -> None:
    write(spark.range(0).selectExpr("cast(id as string) AS payload"), store, queue="jobs")
    assert not staged(store)


def test_what_a_killed_driver_has_staged_is_gone_when_the_store_is_opened(store: Path) -> None:
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
        "rows.write.format('penstock').mode('append').option('queue', 'jobs').save(sys.argv[1])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(store)], capture_output=True, text=True)
    assert ran.returncode != 0
    with penstock.open(store) as opened:
        assert opened.queue("jobs").count() == 0
        opened.queue("jobs").put(b"it goes on")
    assert not staged(store)
