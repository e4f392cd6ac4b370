"""What works with every supported PySpark, run by test_versions.py in an environment that has another version.

python oldest.py VERSION
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from penstock.spark import jobs
from penstock.spark.errors import cause
from penstock.spark.versions import pyspark_version


def main(version: str) -> None:
    assert pyspark.__version__ == version
    with penstock.open("data") as store:
        for name in ("jobs", "copied", "streamed"):
            store.create(name, keep_done=None)
        store.queue("jobs").put_many([penstock.Draft(b"%d" % n, headers={"n": str(n)}) for n in range(100)])
        store.queue("jobs").pop()
    spark = penstock.spark.session("local[2]")
    tables(spark)
    writes(spark)
    the_jobs(spark)
    sink(spark)
    source(spark)
    spark.stop()
    print(f"all of it with PySpark {version}")  # noqa: T201


def tables(spark: SparkSession) -> None:
    read = spark.read.format("penstock").option("store", "data").option("queue", "jobs")
    rows = {row.id: row for row in read.load().collect()}
    assert len(rows) == 100
    assert (bytes(rows["7"].payload), rows["7"].headers, rows["1"].state) == (b"6", {"n": "6"}, "done")
    assert rows["7"].received_at is not None
    assert read.option("numPartitions", "3").load().rdd.getNumPartitions() == 3
    penstock.spark.views(spark, "data")
    assert spark.sql("SELECT count(*) FROM penstock_messages WHERE state = 'available'").first() == (99,)
    assert spark.sql("SELECT available FROM penstock_queues WHERE name = 'jobs'").first() == (99,)
    refused(lambda: read.option("tabel", "queues").load(), "there is no option 'tabel'")


def writes(spark: SparkSession) -> None:
    rows = spark.range(50).selectExpr(
        "cast(id AS string) AS payload", "map('n', cast(id AS string)) AS headers", "id AS priority",
        "timestamp'2026-03-01 12:00:00' AS created_at",
    )  # fmt: skip
    for _ in range(2):
        rows.write.format("penstock").mode("append").option("queue", "copied").option("id", "once").save("data")
    with penstock.open("data") as store:
        found = list(store.queue("copied").messages())
    assert sorted(int(each.payload) for each in found) == list(range(50))
    assert {each.created_at for each in found} == {1_772_366_400_000}
    assert all(each.headers["n"] == each.payload.decode() and each.priority == int(each.payload) for each in found)
    refused(lambda: rows.write.format("penstock").mode("overwrite").save("data"), "a queue is never overwritten")


def the_jobs(spark: SparkSession) -> None:
    Path("rows.json").write_text("".join(json.dumps({"body": f"b{n}"}) + "\n" for n in range(10)))
    assert jobs.load(spark, "rows.json", "data", "copied").rows == [["copied", 10, 20]]
    assert jobs.load(spark, "rows.json", "data", "copied").repeated
    assert [row[:3] for row in jobs.archive(spark, "data", "archive").rows] == [["jobs", 1, 0]]
    assert jobs.archived(spark, "archive").count() == 1
    assert jobs.convert(spark, "data", "slate:copy").rows
    assert jobs.report(spark, "data", "page", archive="archive").rows
    assert Path("page/report.html").stat().st_size > 10_000
    assert jobs.pack(spark, "data").rows
    assert jobs.expire(spark, "data").notes


def sink(spark: SparkSession) -> None:
    for number in range(3):
        Path("texts").mkdir(exist_ok=True)
        Path("texts", f"{number}.txt").write_text(f"{number}a\n{number}b\n")
        query = spark.readStream.format("text").load("texts").selectExpr("value AS payload").writeStream
        query = query.format("penstock").options(store="data", queue="streamed", checkpointLocation="checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
    with penstock.open("data") as store:
        found = sorted(each.payload.decode() for each in store.queue("streamed").messages())
    assert found == ["0a", "0b", "1a", "1b", "2a", "2b"]


def source(spark: SparkSession) -> None:
    reader = spark.readStream.format("penstock").options(store="data", queue="jobs", mode="consume", stream="s")
    seen: list[int] = []

    def process(rows: Any, number: int) -> None:
        seen.extend(int(row.payload) for row in rows.collect())
        penstock.spark.fail(rows.where("id = '5'"), "odd")

    if pyspark_version() < (4, 2):
        refused(lambda: penstock.spark.drain(reader, process, "drained"), "readStream needs PySpark 4.2 or 4.3")
        return
    penstock.spark.drain(reader, process, "drained")
    with penstock.open("data") as store:
        assert store.queue("jobs").counts()["available"] == 1
    assert sorted(seen) == list(range(1, 100))


def refused(call: Any, says: str) -> None:
    found = ""
    try:
        call()
    except Exception as error:
        found = cause(error)
    assert says in found, found or f"this was not refused: {says}"


if __name__ == "__main__":
    main(sys.argv[1])
