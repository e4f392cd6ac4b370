"""A nightly Spark job: what failed, by reason, as a table; and what can be mended goes back as new messages.

    python examples/nightly.py [STORE] [OUT]        a folder or a server's URL; a folder for the table

The store may be open elsewhere, and consumers go on meanwhile: Spark reads one moment of it. The bulk load takes
effect as a whole or not at all, and once for each date, however often cron starts this: `id` is its name.
"""

import sys
from datetime import UTC, datetime

from pyspark.sql import functions as f

import penstock
import penstock.spark


def main(store: str = "penstock-data", out: str = "failures") -> None:
    """Read, aggregate, write, load."""
    today = datetime.now(UTC).date().isoformat()
    spark = penstock.spark.session()
    messages = spark.read.format("penstock").option("store", store).load()
    failed = messages.where("state = 'failed' AND queue = 'orders'")

    by_reason = failed.groupBy("queue", "reason").agg(
        f.count("*").alias("messages"),
        f.avg("attempts").alias("attempts"),
        f.min("created_at").alias("oldest"),
    )
    by_reason.coalesce(1).write.mode("overwrite").parquet(f"{out}/date={today}")  # the same day: the same files
    by_reason.show(truncate=False)

    mended = failed.where("reason LIKE '%no currency%'").select(
        f.lit("orders").alias("queue"),
        f.concat(f.col("payload").cast("string"), f.lit(" EUR")).alias("payload"),
        f.map_from_arrays(f.array(f.lit("mends")), f.array("id")).alias("headers"),
    )
    load = mended.write.format("penstock").mode("append").option("store", store)
    load.option("id", f"mended {today}").save()
    spark.stop()

    with penstock.open(store) as opened:
        print(f"orders: {opened.queue('orders').counts()}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
