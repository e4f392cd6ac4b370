"""Spark tables of text stores: a snapshot of each queue's messages as Arrow columns."""

from collections.abc import Iterator
from typing import Any

import numpy as np
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
    plain = found.plain if "available" in read.states else found.plain.part(0, 0)
    wanted = [at for at, message in enumerate(found.others) if message.state in read.states]
    offsets = np.array([found.offsets[at] for at in wanted], np.int64)
    others = [found.others[at] for at in wanted]
    count, rows = len(plain.starts), _ROWS
    if count:
        rows = max(1, min(_ROWS, _BYTES // int((plain.stops - plain.starts).max() + 1)))
    order = np.argsort(np.concatenate([plain.starts, offsets]), kind="stable")  # that of the file
    for at in range(0, len(order), rows):
        some = order[at : at + rows]
        first, second = some[some < count], some[some >= count] - count
        batches = []
        if len(first):
            part = plain.part(first[0], first[-1] + 1)
            arrays = [_column(field, queue, found.data, part) for field in schema]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        if len(second):
            batches.append(messages_as_batch(others[second[0] : second[-1] + 1], schema))
        if len(batches) == 2:
            places = pa.array(np.searchsorted(np.sort(some), some))
            batches = pa.Table.from_batches(batches).take(places).combine_chunks().to_batches()
        yield from batches


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
