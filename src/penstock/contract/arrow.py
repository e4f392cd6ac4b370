"""Messages as Arrow columns, as every table of messages has them: Spark's, and that of `queue.to_arrow()`."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.message import LATEST, Message

TIME = pa.timestamp("us", "UTC")
MESSAGES = pa.schema(
    {
        "id": pa.string(),
        "queue": pa.string(),
        "payload": pa.binary(),
        "headers": pa.map_(pa.string(), pa.string()),
        "priority": pa.int64(),
        "created_at": TIME,
        "received_at": TIME,
        "visible_at": TIME,
        "expires_at": TIME,
        "attempts": pa.int32(),
        "state": pa.string(),
        "receipt": pa.string(),  # always NULL: a secret of the consumer that holds the message
        "claimed_at": TIME,
        "lease_until": TIME,
        "consumer": pa.string(),
        "settled_at": TIME,
        "reason": pa.string(),
        "group": pa.string(),
    }
)
ATTEMPT = pa.struct(
    {
        "attempt": pa.int32(),
        "consumer": pa.string(),
        "claimed_at": TIME,
        "ended_at": TIME,
        "outcome": pa.string(),
        "reason": pa.string(),
    }
)
HISTORY = pa.field("history", pa.list_(pa.field("element", ATTEMPT)))  # the attempts at a message, oldest first
_ROWS, _BYTES = 10_000, 12 << 20  # of a batch


def column_of(values: Any, kind: pa.DataType) -> pa.Array:
    """A column from a list or an array of values in the form that messages have."""
    if pa.types.is_timestamp(kind):
        milliseconds = pc.min_element_wise(pa.array(values, pa.int64()), LATEST, skip_nulls=False)
        return pc.multiply(milliseconds, 1000).cast(kind)
    if pa.types.is_map(kind):
        values = [list((each or {}).items()) for each in values]
    return pa.array(values, kind)


def messages_as_batch(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """Messages as columns."""
    arrays = [column_of([getattr(each, field.name) for each in messages], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class TableBuilder:
    """Makes a table from messages that come one by one, in batches: columns of bytes hold 2 GB at most."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._messages: list[Message] = []
        self._bytes = 0

    def add(self, message: Message) -> None:
        """Add a row."""
        self._messages.append(message)
        self._bytes += len(message.payload)
        if len(self._messages) >= _ROWS or self._bytes >= _BYTES:
            self._end_batch()

    def table(self) -> pa.Table:
        """The table of all rows."""
        self._end_batch()
        return pa.Table.from_batches(self._batches, MESSAGES)

    def _end_batch(self) -> None:
        if self._messages:
            self._batches.append(messages_as_batch(self._messages, MESSAGES))
            self._messages, self._bytes = [], 0
