"""Exactly once, with a Spark that is killed again and again.

    events --publish--> queues by filter --Spark, consume--> results --workers--> done --Spark--> archive

Events come in all the time, and find their queues. Spark reads `orders` and `visits` batch by batch, each batch
claimed durably before Spark hears of it. Orders go through a plain streaming query. Visits go through
foreachBatch, which turns some of them down: they fail, and are tried again. Meanwhile tasks fail and are
repeated, and the whole of Spark is killed with SIGKILL, again and again. At the end each event is in the archive
once. To copy: `enrich`, and what it calls.

    python examples/stream.py [STORE]        a folder (penstock-stream/store), slate:DIR, or http://host:port
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import (
    broadcast,
    col,
    crc32,
    format_string,
    from_json,
    get_json_object,
    struct,
    to_json,
    udf,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console

import penstock
import penstock.spark
from penstock.spark import jobs

EVENTS = 4_000
KILLS = 3
FOLDER = Path("penstock-stream")
LOG = FOLDER / "spark.log"
KINDS = ("order", "visit")
_random = random.Random(7)


def main(store: str) -> None:
    """Publish events, have them enriched by a Spark that does not live long, deliver, archive, count."""
    console = Console()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with penstock.open(store) as opened:
        for kind in KINDS:
            opened.create(f"{kind}s", filter=f"kind = '{kind}'", max_attempts=5)
        opened.create("results", keep_done=None)
        publishing = threading.Thread(target=publish, args=(opened,))
        publishing.start()
        for number in range(KILLS):
            enriching = start(store)
            wait_for_results(opened, (number + 1) * EVENTS // (KILLS + 2), enriching)
            time.sleep(_random.uniform(0, 2))  # wherever it is then
            kill(enriching)
            counts = opened.queue("results").counts()
            console.print(f"Spark was killed: {sum(counts.values()):,} of {EVENTS:,} results are there")
        publishing.join()
        if start(store, "all").wait() != 0:
            raise SystemExit(f"Spark failed: {LOG} says why")
        penstock.work(opened.queue("results"), lambda message: None, concurrency=8, until_empty=True)
    spark = penstock.spark.session()
    jobs.archive(spark, store, str(FOLDER / "archive"))
    check(spark, console)
    spark.stop()


def publish(store: penstock.Store) -> None:
    """Events, one after the other."""
    for number in range(EVENTS):
        kind = KINDS[number % len(KINDS)]
        event = {"event": number, "customer": number % 10, "amount": number % 97}
        store.publish(json.dumps(event), headers={"kind": kind})


def start(store: str, *how: str) -> subprocess.Popen[bytes]:
    """Enrich in a process of its own, which can be killed."""
    with LOG.open("ab") as log:
        command = [sys.executable, __file__, "--enrich", store, *how]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def kill(enriching: subprocess.Popen[bytes]) -> None:
    """As a power cut would, the processes that Spark has started included."""
    os.killpg(enriching.pid, signal.SIGKILL)
    enriching.wait()


def wait_for_results(store: penstock.Store, count: int, enriching: subprocess.Popen[bytes]) -> None:
    """Return once there are so many."""
    while sum(store.queue("results").counts().values()) < count:
        if enriching.poll() is not None:
            raise SystemExit(f"Spark failed: {LOG} says why")
        time.sleep(0.1)


def enrich(store: str, until_all: bool) -> None:
    """Both queries, as long as they may live; or until there is nothing left."""
    spark = penstock.spark.session("local[2,4]")  # a task may fail three times
    if not until_all:
        for query in queries(spark, store).values():
            query.trigger(processingTime="0 seconds").start()
        spark.streams.awaitAnyTermination()
        raise SystemExit(1)  # none should end
    with penstock.open(store) as opened:
        while any(sum(opened.queue(name).counts().values()) for name in ("orders", "visits")):
            for name, query in queries(spark, store).items():
                query.trigger(availableNow=True).start().awaitTermination()
                penstock.spark.settle(checkpoint(name))  # the last batch; what it turned down is there again


def queries(spark: SparkSession, store: str) -> dict[str, DataStreamWriter]:
    """What is to run, by name; all that a restart needs is the checkpoint."""
    orders = enriched(spark, stream(spark, store, "orders")).writeStream.format("penstock")
    orders = orders.option("store", store).option("queue", "results")
    visits = stream(spark, store, "visits").writeStream.foreachBatch(VisitBatches(store))
    both = {"orders": orders, "visits": visits}
    return {name: query.option("checkpointLocation", checkpoint(name)) for name, query in both.items()}


def checkpoint(name: str) -> str:
    """Where Spark keeps how far a query has come."""
    return str(FOLDER / "checkpoints" / name)


def stream(spark: SparkSession, store: str, queue: str) -> DataFrame:
    """A queue, batch by batch."""
    reader = spark.readStream.format("penstock").option("store", store).option("queue", queue)
    return reader.option("mode", "consume").option("stream", "enrich").option("maxRowsPerBatch", 300).load()


def enriched(spark: SparkSession, events: DataFrame) -> DataFrame:
    """Events with the names of their customers, which a table has."""
    customers = spark.range(10).select(col("id").alias("customer"), format_string("Ada %d", "id").alias("name"))
    parsed = events.select(
        from_json(col("payload").cast("string"), "event LONG, customer LONG, amount LONG").alias("event")
    ).select("event.*")
    steady = udf(unsteady, "long")
    joined = parsed.join(broadcast(customers), "customer").withColumn("amount", steady("amount"))
    return joined.select(to_json(struct("event", "name", "amount")).alias("payload"))


def unsteady(amount: int) -> int:
    """Work that fails now and then, so that Spark does the whole task again."""
    if random.random() < 0.0005:
        raise ConnectionError("out of luck")
    return amount * 2


class VisitBatches:
    """Writes batches, and turns some visits down the first time."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, batch: DataFrame, number: int) -> None:
        """A batch; Spark may call this again with the same one."""
        odd = (crc32("payload") % 20 == 0) & (col("attempts") == 1)
        penstock.spark.fail(batch.where(odd), "not today")
        results = enriched(batch.sparkSession, batch.where(~odd)).write.format("penstock").mode("append")
        # The id makes a batch that is written again land once, as the sink does by itself.
        results.option("store", self._store).option("queue", "results").option("id", f"visits {number}").save()


def check(spark: SparkSession, console: Console) -> None:
    """Every event came out once."""
    archived = jobs.archived(spark, str(FOLDER / "archive")).where("queue = 'results' AND state = 'done'")
    numbers = archived.select(get_json_object(col("payload").cast("string"), "$.event").cast("long").alias("n"))
    seen = sorted(row.n for row in numbers.collect())
    assert seen == list(range(EVENTS)), f"{len(seen)} results of {len(set(seen))} events, not {EVENTS}"
    console.print(f"Each of {EVENTS:,} events came out once, though Spark was killed {KILLS} times.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--enrich"]:
        enrich(sys.argv[2], until_all=sys.argv[3:] == ["all"])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else str(FOLDER / "store"))
