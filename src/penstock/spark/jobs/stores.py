"""A store as jobs read it: a session with settings of its own, the tables, and the folder."""

import os
from typing import TYPE_CHECKING

from penstock.contract.kinds import check_exists
from penstock.contract.urls import absolute, journal_folder
from penstock.errors import NotSupported
from penstock.spark.options import parse
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.system.clock import SystemClock
from penstock.system.files import ReadingDisk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what everyone reads, unlike INT96
}


def own_session(spark: "SparkSession") -> "SparkSession":
    """A session beside the given one, so that a job's settings are not the caller's."""
    own = spark.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


def check_store(url: str) -> None:
    """An error of ours if there is no such store: what Spark says of it is long."""
    parse({"store": url})
    check_exists(url)
    folder = journal_folder(url)
    if folder is not None:
        StoreSnapshot(folder, ReadingDisk(), SystemClock().now())


def table(session: "SparkSession", url: str, name: str, schema: str = "", **options: str) -> "DataFrame":
    """A table of a store, or some columns of it."""
    reader = session.read.format("penstock").options(store=absolute(url), table=name, **options)
    return (reader.schema(schema) if schema else reader).load()


def folder_to_pack(store: str | os.PathLike[str]) -> str:
    """The folder of a journal store, for processes that may be elsewhere in the file system."""
    folder = journal_folder(os.fspath(store))
    if folder is None:
        raise NotSupported(f"store {os.fspath(store)!r} has no journals to pack: this is for journal stores")
    check_exists(folder)
    return os.path.abspath(folder)
