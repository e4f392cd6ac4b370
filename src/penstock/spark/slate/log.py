"""The log of a slate store as Arrow columns."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.slate import entries
from penstock.slate.format import decode_metadata, decode_payload, log_prefix, payload_key
from penstock.slate.primitives import key_u64
from penstock.slate.view import View
from penstock.spark.rows import times

if TYPE_CHECKING:
    from penstock.spark.slate.planning import Work

_HEAD = np.dtype(
    [
        ("id", "<u8"),
        ("created_at", "<i8"),
        ("received_at", "<i8"),
        ("visible_at", "<i8"),
        ("retention", "<u4"),
        ("headers", "u1"),
    ]
)
_ROWS = 8_000  # in a batch, about
_MOST_BYTES = 12 << 20  # of payloads in a batch


def log_batches(view: View, work: "Work", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of a part of the log, in batches of the schema that Spark wants."""
    prefix = log_prefix(work.log)
    payloads = None
    if not {"payload", "size"}.isdisjoint(schema.names):
        payloads = Payloads(view, work.first, work.end, "payload" in schema.names)
    for some in _larger(view.batches(prefix + key_u64(work.first), prefix + key_u64(work.end))):
        found = Entries(some)
        if payloads is None:
            yield found.batch(schema, [], [])
        else:
            yield from _with_payloads(found, payloads, schema)


def _larger(batches: Iterator[list[tuple[bytes, bytes]]]) -> Iterator[list[bytes]]:
    """The values of many rows: each batch costs Spark something, however small it is."""
    values: list[bytes] = []
    for some in batches:
        values += [value for _, value in some]
        if len(values) >= _ROWS:
            yield values
            values = []
    if values:
        yield values


def _with_payloads(found: "Entries", payloads: "Payloads", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    contents: list[bytes] = []
    sizes: list[int] = []
    there: list[int] = []
    total = 0
    for at, (seq, size) in enumerate(zip(found.sequences(), found.sizes, strict=True)):
        content = b""
        if size is None or payloads.wanted:
            payload = payloads.next(seq)
            if payload is None:
                continue  # it was removed, and this was about to be
            content, size = payload
        there.append(at)
        contents.append(content)
        sizes.append(size)
        total += len(content)
        if total > _MOST_BYTES:
            yield found.batch(schema, contents, sizes, there)
            there, contents, sizes, total = [], [], [], 0
    if there:
        yield found.batch(schema, contents, sizes, there)


class Entries:
    """Some entries of the log, by columns: what entries.py says of one, of all of them at once."""

    def __init__(self, values: list[bytes]) -> None:
        size = _HEAD.itemsize
        if any(len(value) < size for value in values):
            decode_metadata(min(values, key=len))  # says what is wrong
        self._head = np.frombuffer(b"".join([value[:size] for value in values]), _HEAD)
        count = len(values)
        self._queue: list[str | None] = [None] * count
        self._priority = [0] * count
        self._exactly: list[int | None] = [None] * count  # when it expires, if whole seconds do not say
        self.sizes: list[int | None] = [None] * count
        self._names: list[str] = []
        self._texts: list[str] = []
        self._counts = [0] * (count + 1)
        for at, value in enumerate(values):
            self._take(at, value, size)

    def _take(self, at: int, value: bytes, start: int) -> None:
        """The headers of an entry, of which some are ours."""
        names, texts, before = self._names, self._texts, len(self._names)
        try:
            for _ in range(value[start - 1]):
                end = start + 2 + value[start] + 256 * value[start + 1]
                name = value[start + 2 : end].decode()
                start = end + 2 + value[end] + 256 * value[end + 1]
                text = value[end + 2 : start].decode()
                if name not in entries.OURS:
                    names.append(name)
                    texts.append(text)
                elif name == entries.SIZE_HEADER:
                    self.sizes[at] = int(text)
                elif name == entries.QUEUE_HEADER:
                    self._queue[at] = text
                elif name == entries.PRIORITY_HEADER:
                    self._priority[at] = int(text)
                elif name == entries.EXPIRES_AT_HEADER:
                    self._exactly[at] = int(text)
                else:
                    more = json.loads(text)
                    names += more
                    texts += more.values()
        except (IndexError, ValueError):
            start = -1
        if start != len(value):
            decode_metadata(value)  # says what is wrong
        self._counts[at + 1] = len(names) - before

    def sequences(self) -> list[int]:
        """Their numbers."""
        found: list[int] = self._head["id"].tolist()
        return found

    def batch(
        self, schema: pa.Schema, payloads: list[bytes], sizes: list[int], only: list[int] | None = None
    ) -> pa.RecordBatch:
        """The columns that are wanted, of all entries or of some; payloads and sizes are of these."""
        some = None if only is None or len(only) == len(self._head) else pa.array(only, pa.int64())
        given = {"payload": payloads, "size": sizes}
        columns = []
        for field in schema:
            if field.name in given:
                columns.append(pa.array(given[field.name], field.type))
                continue
            column = self._column(field.name, field.type)
            columns.append(column if some is None else column.take(some))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, name: str, kind: pa.DataType) -> pa.Array:
        head = self._head
        match name:
            case "sequence":
                return pa.array(head["id"].astype(np.int64))
            case "id":
                return pa.array([str(seq) for seq in self.sequences()], kind)
            case "queue":
                return pa.array(self._queue, kind)
            case "priority":
                return pa.array(self._priority, kind)
            case "headers":
                offsets = pa.array(np.cumsum(self._counts, dtype=np.int32))
                return pa.MapArray.from_arrays(
                    offsets, pa.array(self._names, pa.string()), pa.array(self._texts, pa.string())
                )
            case "expires_at" | "retention":
                return self._expiry(name, kind)
        return times(head[name].astype(np.int64))

    def _expiry(self, name: str, kind: pa.DataType) -> pa.Array:
        received = self._head["received_at"].astype(np.int64)
        seconds = self._head["retention"].astype(np.int64)
        exactly = pa.array(self._exactly, pa.int64())
        said = pc.if_else(pa.array(seconds > 0), pa.array(received + 1000 * seconds), pa.scalar(None, pa.int64()))
        ends = pc.coalesce(exactly, said)  # NULL: as each queue says; 0: never
        if name == "retention":
            lasts = pc.divide(pc.subtract(ends, pa.array(received)).cast(pa.float64()), 1000.0)
            return pc.if_else(pc.equal(ends, 0), pa.scalar(0.0), lasts)
        never = pc.equal(pc.fill_null(ends, 0), 0).to_numpy(zero_copy_only=False)
        return times(pc.fill_null(ends, 0).to_numpy(zero_copy_only=False), never)


class Payloads:
    """Payloads of a range, asked for in the order of their numbers."""

    def __init__(self, view: View, first: int, end: int, wanted: bool) -> None:
        self._view = view
        self.wanted = wanted
        self._rows = (row for some in view.batches(payload_key(first), payload_key(end)) for row in some)
        self._at, self._value = -1, b""

    def next(self, seq: int) -> tuple[bytes, int] | None:
        """A payload, if it is wanted, and its size; None if there is none."""
        while self._at < seq:
            row = next(self._rows, None)
            if row is None:
                return None
            self._at, self._value = int.from_bytes(row[0][-8:]), row[1]
        if self._at != seq:
            return None
        value = self._value
        if value[0] == 1 and not self.wanted:
            return b"", len(value) - 3
        content = decode_payload(value)
        if isinstance(content, str):
            try:
                content = self._view.get_object(content.removeprefix("objects/"))
            except FileNotFoundError:
                return None
        return content if self.wanted else b"", len(content)
