"""Messages on their way into an archive, and the archive as a table.

A message is known by its queue, its id, when it was received, and a checksum of all that never changes about it:
several stores may have a message of the same queue and id. The same message may be settled again after it was
archived (redriven, and failed once more): the later settling counts.
"""

import os
from datetime import date
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import ArrayType, DateType, LongType, StringType, StructField, StructType

from penstock.errors import PenstockError
from penstock.spark.jobs.stores import own_session, table
from penstock.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ATTEMPT = StructType([each for each in TABLES["attempts"] if each.name not in ("queue", "id")])
_STORED = StructType(
    [
        StructField("queue_name", StringType()),
        *(each for each in TABLES["messages"] if each.name not in ("queue", "receipt")),
        StructField("history", ArrayType(_ATTEMPT)),
        StructField("checksum", LongType()),
    ]
)
DAY = 86_400_000  # milliseconds
IDENTITY = ("queue_name", "id", "received_at", "checksum")
_GLOB = "{}[]*?\\"


def archived(spark: "SparkSession", path: str | os.PathLike[str]) -> "DataFrame":
    """The messages of an archive: the columns of the table messages but `receipt`, `history`, and `day`.

    `history` has the attempts at each message, oldest first. Unlike a plain spark.read.parquet(path) this shows
    all queues under their names: by itself Spark takes a queue 007 for the number 7.
    """
    if not os.path.isdir(path):
        raise PenstockError(f"there is no archive {os.fspath(path)!r}: no such folder")
    return named(parquet(own_session(spark), path))


def named(messages: "DataFrame") -> "DataFrame":
    """Archived messages under the names that the columns have elsewhere."""
    shown = messages.drop("queue", "checksum").withColumnRenamed("queue_name", "queue")
    first = ("id", "queue")
    return shown.select(*first, *(name for name in shown.columns if name not in first))


def parquet(session: "SparkSession", path: str | os.PathLike[str], since: date | None = None) -> "DataFrame":
    """The table as it is stored, perhaps only what was settled since a day; empty if nothing is there yet."""
    schema = StructType([*_STORED, StructField("queue", StringType()), StructField("day", DateType())])
    if not os.path.isdir(path):
        return session.createDataFrame([], schema)
    table = session.read.schema(schema).parquet(local(path, glob=True))
    return table if since is None else table.where(F.col("day") >= F.lit(since))


def local(path: str | os.PathLike[str], glob: bool = False) -> str:
    """A path of this machine as Spark wants it, also if the paths of a cluster are elsewhere by default."""
    text = os.path.abspath(path)
    return "file:" + ("".join("\\" + each if each in _GLOB else each for each in text) if glob else text)


def day_of(time: str) -> "Column":
    """The day of a time, in UTC whatever the session's time zone is."""
    return F.date_from_unix_date(F.floor(F.unix_millis(time) / DAY).cast("int"))


def settled(session: "SparkSession", store: str, schema: str = "") -> "DataFrame":
    """The messages of a store that are done or failed."""
    return table(session, store, "messages", schema, state="done,failed")


def summed(messages: "DataFrame") -> "DataFrame":
    """Messages of a store with their queue's name and checksum as an archive has them."""
    return messages.withColumnRenamed("queue", "queue_name").withColumn("checksum", checksum())


def checksum() -> "Column":
    """Of all that stays the same in a message's life."""
    headers = F.sort_array(F.map_entries("headers"))
    return F.xxhash64("queue_name", "id", "payload", headers, "priority", "created_at", "received_at")


def unarchived(session: "SparkSession", store: str, archive: "DataFrame") -> "DataFrame":
    """The settled messages of a store that an archive does not have, as it will have them."""
    messages = summed(settled(session, store)).alias("new")
    known = archive.select(*IDENTITY, "settled_at").alias("known")
    missing = messages.join(
        known, _same("new", "known", F.col("known.settled_at") >= F.col("new.settled_at")), "anti"
    )
    return _with_history(missing, table(session, store, "attempts").where("ended_at IS NOT NULL"))


def superseded(archive: "DataFrame", new: "DataFrame") -> "DataFrame":
    """Messages in an archive that were settled again since; with the file in which each is."""
    old = archive.select(*IDENTITY, "settled_at", F.col("_metadata.file_path").alias("file")).alias("old")
    later = new.select(*IDENTITY, "settled_at").alias("new")
    return old.join(later, _same("old", "new", F.col("old.settled_at") < F.col("new.settled_at")), "semi")


def confirmed(session: "SparkSession", store: str, archive: "DataFrame") -> "DataFrame":
    """The settled messages of a store that are in an archive word for word, and settled at the same time."""
    there = archive.withColumn("checksum", checksum())  # of what can be read, not what was meant to be written
    same = [*IDENTITY, "state", "settled_at"]
    return summed(settled(session, store)).join(there.select(same), same, "semi")


def _same(one: str, other: str, condition: "Column") -> "Column":
    for name in IDENTITY:
        condition = condition & (F.col(f"{one}.{name}") == F.col(f"{other}.{name}"))
    return condition


def _with_history(messages: "DataFrame", attempts: "DataFrame") -> "DataFrame":
    """Messages with their attempts: those until they were settled, as both may be read at different moments."""
    fields = [each.name for each in _ATTEMPT]
    in_order = F.sort_array(
        F.collect_list(F.struct("claimed_at", *(each for each in fields if each != "claimed_at")))
    )
    gathered = attempts.groupBy(F.col("queue").alias("queue_name"), "id").agg(in_order.alias("gathered"))
    until = F.filter("gathered", lambda each: each["ended_at"] <= F.col("settled_at"))
    history = F.transform(until, lambda each: F.struct(*(each[name].alias(name) for name in fields)))
    joined = messages.join(gathered, ["queue_name", "id"], "left")
    known = F.coalesce(history, F.array().cast(ArrayType(_ATTEMPT)))
    return joined.withColumn("history", known).select(*(each.name for each in _STORED))
