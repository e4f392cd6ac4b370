"""Spark tables of text stores: a snapshot of each queue's messages as Arrow columns."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.contract.arrow import column_of, messages_as_batch
from penstock.contract.tables import Read
from penstock.stores.text.snapshot import Plain, Snapshot, payloads
from penstock.stores.unowned import UnownedTables

_ROWS, _BYTES = 10_000, 8 << 20  # of a batch


class TextTables(UnownedTables):
    """The tables of text stores."""

    def messages(self, backend: Any, queue: str, read: Read, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        found = backend.snapshot(queue)
        if found is None:
            return super().messages(backend, queue, read, schema)
        return _messages(found, queue, read, schema)


def _messages(found: Snapshot, queue: str, read: Read, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    plain = found.plain
    if "available" in read.states and len(plain.starts):
        rows = max(1, min(_ROWS, _BYTES // int((plain.stops - plain.starts).max() + 1)))
        for at in range(0, len(plain.starts), rows):
            some = plain.part(at, at + rows)
            arrays = [_column(field, queue, found.data, some) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    others = [message for message in found.others if message.state in read.states]
    for at in range(0, len(others), _ROWS):
        yield messages_as_batch(others[at : at + _ROWS], schema)


def _column(field: pa.Field, queue: str, data: bytes, plain: Plain) -> pa.Array:
    """A column of plain messages."""
    count = len(plain.starts)
    match field.name:
        case "id":
            fixed = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16), count, [None, pa.py_buffer(plain.ids.tobytes())]
            )
            return fixed.cast(pa.binary()).cast(field.type)
        case "payload":
            return pa.array(payloads(data, plain), field.type)
        case "created_at" | "received_at" | "visible_at":
            return column_of(plain.received_at, field.type)
        case "headers":
            return pa.array([[]] * count, field.type)
        case "queue":
            return pa.array([queue] * count, field.type)
        case "state":
            return pa.array(["available"] * count, field.type)
        case "priority" | "attempts":
            return pa.array([0] * count, field.type)
        case _:
            return pa.nulls(count, field.type)
