"""Penstock on Spark.

    spark = penstock.spark.session()

Spark itself is imported when the first session is asked for, not before.
"""

from penstock.spark.sessions import session

__all__ = ["session"]
