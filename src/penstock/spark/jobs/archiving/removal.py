"""Taking archived messages out of their store, each only if it still is as it was archived."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from penstock.contract.store import Queue, Store
from penstock.errors import QueueNotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH = 500  # messages between a look and their removal: few, as someone may redrive them in between


class Settled(NamedTuple):
    """How a message was when it was archived."""

    state: str
    settled_at: int
    received_at: int


def remove(store: Store, confirmed: "DataFrame") -> dict[str, int]:
    """Remove messages that are confirmed to be in the archive; how many, by queue."""
    rows = confirmed.select(
        "queue_name",
        "id",
        "state",
        F.unix_millis("settled_at").alias("settled_at"),
        F.unix_millis("received_at").alias("received_at"),
    )
    removed = {}
    # Sorted, so that Spark has read everything before the first message goes, and each queue is listed once.
    found = rows.orderBy("queue_name").toLocalIterator(prefetchPartitions=True)
    for name, group in groupby(found, key=lambda row: row["queue_name"]):
        known = {row["id"]: Settled(row["state"], row["settled_at"], row["received_at"]) for row in group}
        try:
            queue = store.queue(name)
        except QueueNotFound:  # deleted meanwhile
            continue
        removed[name] = sum(queue.remove(*batch) for batch in _unchanged(queue, known))
    return removed


def _unchanged(queue: Queue, known: dict[str, Settled]) -> Iterator[list[str]]:
    """Batches of the messages that are known and still the same: a failed one may have been redriven."""
    batch: list[str] = []
    for state in dict.fromkeys(each.state for each in known.values()):
        for message in queue.messages(state):
            if known.get(message.id) == (message.state, message.settled_at, message.received_at):
                batch.append(message.id)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
    if batch:
        yield batch
