"""Penstock on Spark.

    spark = penstock.spark.session()
    penstock.spark.views(spark, "data")

Spark itself is imported when the first session is asked for, not before.
"""

from penstock.spark.sessions import session, views
from penstock.spark.streaming.settling import drain, fail, settle

__all__ = ["drain", "fail", "session", "settle", "views"]
