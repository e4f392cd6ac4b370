"""The tables of a store as views, for SQL."""

import os
from typing import TYPE_CHECKING

from penstock.contract.urls import absolute, is_slate, journal_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "penstock_"


def views(spark: "SparkSession", url: str | os.PathLike[str]) -> None:
    """Register the store's tables as temporary views: penstock_messages, penstock_queues, penstock_attempts.

    Of a slate store there is penstock_log as well.

        penstock.spark.views(spark, "data")
        spark.sql("SELECT state, count(*) FROM penstock_messages WHERE queue = 'jobs' GROUP BY state").show()

    Each query sees the store as it is when the query is planned. Those of another store take their place.
    """
    from penstock.spark.tables import TABLES

    url = os.fspath(url)
    folder = journal_folder(url)
    url = absolute(url) if folder is None else os.path.abspath(folder)  # Spark's own processes may be elsewhere
    for table in TABLES if is_slate(url) else [each for each in TABLES if each != "log"]:
        frame = spark.read.format("penstock").option("store", url).option("table", table).load()
        frame.createOrReplaceTempView(f"{PREFIX}{table}")
