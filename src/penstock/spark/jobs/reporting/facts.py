"""One row per message of a store and an archive: what happened to it, and when.

Times are milliseconds since the epoch. A message that is in both is taken from the store: it may have gone on.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from penstock.spark.jobs.archiving.reading import archived
from penstock.spark.jobs.stores import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGES = (
    "queue string, id string, created_at timestamp, received_at timestamp, visible_at timestamp, attempts int, "
    "state string, claimed_at timestamp, settled_at timestamp, reason string"
)
_ATTEMPTS = "queue string, id string, claimed_at timestamp, outcome string, reason string"
_NAMES = [column.split()[0] for column in _MESSAGES.split(", ")]
_IDENTITY = ["queue", "id", "received_at", "created_at"]
_REASON = 300  # letters of one; some have a traceback in them


def gathered(session: "SparkSession", store: str, archive: str | None) -> "tuple[DataFrame, DataFrame]":
    """All messages, and all attempts that failed with their reasons."""
    attempts = table(session, store, "attempts", _ATTEMPTS)
    stored = table(session, store, "messages", _MESSAGES)
    first = attempts.groupBy("queue", "id").agg(F.min("claimed_at").alias("first_claim"))
    messages = stored.join(first, ["queue", "id"], "left")
    failures = attempts.where("outcome = 'failed'").select("queue", "reason")
    if archive is not None:
        old = archived(session, archive).join(stored.select(_IDENTITY), _IDENTITY, "anti")
        first_claim = F.array_min(F.transform("history", lambda each: each["claimed_at"]))
        messages = messages.unionByName(old.select(*_NAMES, first_claim.alias("first_claim")))
        each = old.select("queue", F.explode("history").alias("attempt"))
        each = each.where("attempt.outcome = 'failed'").select("queue", F.col("attempt.reason").alias("reason"))
        failures = failures.unionByName(each)
    return _timed(messages), failures.withColumn("reason", F.substring("reason", 1, _REASON))


def _timed(messages: "DataFrame") -> "DataFrame":
    claimed = F.coalesce("first_claim", "claimed_at")
    # When it could first be claimed. Coming back sets visible_at anew; then it is later than the first claim.
    ready = F.when(F.col("visible_at") <= claimed, F.col("visible_at")).otherwise(F.col("received_at"))
    settled = F.col("state").isin("done", "failed")
    return messages.select(
        "queue",
        "state",
        F.substring("reason", 1, _REASON).alias("reason"),
        F.when(settled, F.col("attempts")).alias("attempts"),
        F.unix_millis("received_at").alias("put_at"),
        F.unix_millis(claimed).alias("first_claim"),
        F.when(settled, F.unix_millis("settled_at")).alias("settled_at"),
        (F.unix_millis(claimed) - F.unix_millis(ready)).alias("waiting"),
        F.when(settled, F.unix_millis("settled_at") - F.unix_millis("claimed_at")).alias("processing"),
    )
