"""Reading a store in this process, the way Spark's tasks do; and stores with messages of every kind to read."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from penstock import Draft, Message, Queue, Store
from penstock.contract.kinds import kind_of
from penstock.contract.tables import Part
from penstock.spark.options import parse
from penstock.spark.tables import TABLES
from penstock.stores.journal.store import open_journal

COLUMNS = TABLES["messages"].names
TIMES = [name for name in COLUMNS if name.endswith("_at") or name == "lease_until"]


def arrow(table: str = "messages", columns: Sequence[str] = ()) -> pa.Schema:
    schema = to_arrow_schema(TABLES[table], timezone="UTC")
    return pa.schema([schema.field(name) for name in columns or schema.names])


def plan(url: str | Path, schema: pa.Schema, **options: str) -> Sequence[Any]:
    """The parts of a table."""
    read = parse({"store": str(url), **options})
    return kind_of(read.store).tables(read.store).parts(read, schema, os.getpid())


def read(parts: Sequence[Part], schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of parts, with times in milliseconds."""
    return in_milliseconds([row for part in parts for batch in part.read(schema) for row in batch.to_pylist()])


def batches(url: str | Path, columns: Sequence[str] = (), **options: str) -> list[pa.RecordBatch]:
    """All batches of a table, planned and read."""
    schema = arrow(options.get("table", "messages"), columns)
    found = [batch for part in plan(url, schema, **options) for batch in part.read(schema)]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return found


def rows(url: str | Path, columns: Sequence[str] = (), **options: str) -> list[dict[str, Any]]:
    """All rows of a table, with times in milliseconds."""
    return in_milliseconds([row for batch in batches(url, columns, **options) for row in batch.to_pylist()])


def in_milliseconds(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with times in milliseconds and headers as dicts."""
    for row in found:
        for name, value in row.items():
            if hasattr(value, "timestamp"):
                row[name] = round(value.timestamp() * 1000)
            elif name == "headers":
                row[name] = dict(value)
    return found


def shown(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as rows."""
    return [{name: getattr(message, name) for name in COLUMNS} | {"receipt": None} for message in messages]


def by_id(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of queue and id."""
    return sorted(found, key=lambda row: (row["queue"], len(row["id"]), row["id"]))


def listed(store: Store) -> list[dict[str, Any]]:
    """All messages of a store as rows."""
    queues = [store.queue(info.name) for info in store.queues()]
    return shown([message for queue in queues for message in queue.messages()])


def varied(store: Store, name: str = "varied", few_priorities: bool = False) -> Queue:
    """A queue with messages in every state and with every field; slate stores have few priorities."""
    low, high, lowest = (1, 255, 2) if few_priorities else (-5, 2**63 - 1, -(2**63))
    queue = store.create(name, max_attempts=2, keep_done=None)
    queue.put_many([b"done 1", b"done 2", b"failing", b"failing more", b"held", b"popped"])
    queue.ack(*queue.claim(2, consumer="worker \N{SNOWMAN}"))
    for reason in (None, "no luck"):
        queue.fail(*queue.claim(2), reason=reason)
    queue.fail(queue.claim(1, consumer="impatient")[0], reason="too early")
    queue.claim(1, lease=3_600, consumer="holder")
    queue.pop()
    queue.put(b"retried")
    queue.fail(*queue.claim(), reason="once more")
    drafts = [
        Draft(b"", priority=low),
        Draft(b"with headers", headers={"type": "order", "odd \N{SNOWMAN}": ""}, priority=high),
        Draft(b"\x00\x01\x02", created_at=1),
        Draft(b"later", delay=3_600, priority=lowest),
        Draft(b"not for ever", retention=3_600),
        Draft(b"x" * 100_000, headers={}, key="a key"),
    ]
    queue.put_many(drafts)
    queue.put(b"one more", headers={"n": "1"}, created_at=1_700_000_000_000)
    queue.remove(queue.put(b"removed"))
    return queue


def expired(queue: Queue) -> None:
    """Put a message, and see it expire."""
    queue.put(b"short-lived", retention=0.001)
    time.sleep(0.02)


def open_small(folder: Path, segment_size: int = 4_000, **options: Any) -> Store:
    """A journal store with small files, which rotate soon."""
    return Store(str(folder), open_journal(folder, segment_size=segment_size, sync="never", **options))
