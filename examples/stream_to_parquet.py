"""Exactly once from a queue into Parquet, whatever is killed meanwhile.

    python examples/stream_to_parquet.py [STORE] [OUT]

Each run takes what waits in the queue `events`, batch by batch, and ends; start it by cron, or in a loop. A batch
is claimed durably, under a number, before Spark hears of it. If Spark dies, the next run gets the same batch with
the same messages and overwrites the same folder; only then is it settled. Rows that are no events fail: they are
tried again, or stay as `failed` for a person to look at. STORE, OUT and OUT.checkpoint belong together.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import penstock.spark

SCHEMA = "user LONG, page STRING"


def main(store: str = "penstock-data", out: str = "pages") -> None:
    """Drain the queue into OUT/batch=N."""
    spark = penstock.spark.session()
    events = (
        spark.readStream.format("penstock")
        .option("store", store)
        .option("queue", "events")
        .option("mode", "consume")
        .option("stream", "to-parquet")
        .option("maxRowsPerBatch", 100_000)
    )

    def write(batch: DataFrame, number: int) -> None:
        parsed = batch.withColumn("event", f.from_json(f.col("payload").cast("string"), SCHEMA))
        penstock.spark.fail(parsed.where("event.user IS NULL"), "no event")
        rows = parsed.where("event.user IS NOT NULL").select("id", "created_at", "event.*")
        rows.write.mode("overwrite").parquet(f"{out}/batch={number}")

    batches = penstock.spark.drain(events, write, f"{out}.checkpoint")
    written = spark.read.parquet(out)
    print(f"{batches} batches, {written.count()} rows of {written.select('id').distinct().count()} messages")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
