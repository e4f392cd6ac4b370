"""Penstock on Spark: sessions, SQL views of a store, and the settling of streams.

    spark = penstock.spark.session()
    penstock.spark.views(spark, "data")

The first call of session() imports PySpark; importing this package does not.
"""

from penstock.spark.sessions import session, views
from penstock.spark.streaming.settling import drain, fail, settle

__all__ = ["drain", "fail", "session", "settle", "views"]
