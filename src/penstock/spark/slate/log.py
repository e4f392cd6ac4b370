"""The log of a slate store as Arrow columns.

Entries are understood by columns: where each begins and ends is a list, all the rest is done by numpy and Arrow on
the bytes as they came, some thousand entries at a time.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import StoreCorrupt
from penstock.spark.columns import column_of
from penstock.spark.rows import times
from penstock.stores.slate import entries
from penstock.stores.slate.format import (
    decode_metadata,
    decode_payload,
    key_u64,
    log_prefix,
    object_of,
    payload_key,
)
from penstock.stores.slate.view import Values, View

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
_OURS = sorted(entries.OURS)
_ROWS = 16_000  # in a batch, about
_MOST_BYTES = 12 << 20  # of payloads or entries in a batch, about
Numbers = npt.NDArray[np.int64]


def log_batches(view: View, work: "Work", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of a part of the log, in batches of the schema that Spark wants."""
    prefix = log_prefix(work.log)
    payloads = None
    if not {"payload", "size"}.isdisjoint(schema.names):
        payloads = Payloads(view, work.first, work.end, "payload" in schema.names)
    for some in _larger(view.values(prefix + key_u64(work.first), prefix + key_u64(work.end))):
        found = Entries(some)
        if payloads is None:
            yield found.batch(schema, [], [])
        else:
            yield from _with_payloads(found, payloads, schema)


def _larger(batches: Iterator[Values]) -> Iterator[Values]:
    """The values of many rows: each batch costs Spark something, however small it is."""
    kept: list[Values] = []
    for some in batches:
        kept.append(some)
        if sum(len(each.starts) for each in kept) >= _ROWS or sum(len(each.data) for each in kept) >= _MOST_BYTES:
            yield _joined(kept)
            kept = []
    if kept:
        yield _joined(kept)


def _joined(some: list[Values]) -> Values:
    if len(some) == 1:
        return some[0]
    firsts = accumulate((len(each.data) for each in some[:-1]), initial=0)
    starts: list[int] = []
    ends: list[int] = []
    for first, each in zip(firsts, some, strict=True):
        starts += [first + start for start in each.starts]
        ends += [first + end for end in each.ends]
    return Values(b"".join([each.data for each in some]), starts, ends)


def _with_payloads(found: "Entries", payloads: "Payloads", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    contents: list[bytes] = []
    sizes: list[int] = []
    there: list[int] = []
    total = 0
    checksums = found.checksums() if payloads.wanted else []
    for at, (seq, size) in enumerate(zip(found.sequences(), found.sizes.to_pylist(), strict=True)):
        content = b""
        if size is None or payloads.wanted:
            payload = payloads.next(seq)
            if payload is None:
                continue  # it was removed, and this was about to be
            content, size = payload
            if payloads.wanted:
                entries.check_object(f"objects/{seq}", content, checksums[at], payloads.what)
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

    def __init__(self, values: Values) -> None:
        self._values = values
        self._data = np.frombuffer(values.data, np.uint8)
        starts, ends = np.array(values.starts, np.int64), np.array(values.ends, np.int64)
        size = _HEAD.itemsize
        if (ends - starts < size).any():
            self._refuse()
        heads = self._data[starts[:, None] + np.arange(size)]
        self._head: Any = np.ascontiguousarray(heads).view(_HEAD)[:, 0]
        counts = self._head["headers"].astype(np.int64)
        places = self._places(starts + size, ends, counts)
        self._owner = np.repeat(np.arange(len(starts)), counts)  # the entry that each header belongs to
        names, self._texts = self._strings(places)
        ours = pc.index_in(names, value_set=pa.array(_OURS, pa.string()))
        self._kind: Numbers = pc.fill_null(ours, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        self._names = names
        try:
            self.sizes: pa.Array = self._said(entries.SIZE_HEADER).cast(pa.int64())
            self._priority = pc.fill_null(self._said(entries.PRIORITY_HEADER).cast(pa.int64()), 0)
            self._exactly = self._said(entries.EXPIRES_AT_HEADER).cast(
                pa.int64()
            )  # where whole seconds do not say
        except pa.ArrowInvalid:
            self._refuse()

    def _places(self, at: Numbers, ends: Numbers, counts: Numbers) -> Numbers:
        """Where the name and the text of each header begin and end, header after header."""
        data, firsts = self._data, np.cumsum(counts) - counts
        places = np.zeros((int(counts.sum()), 4), np.int64)
        some = np.arange(len(at))
        for number in range(int(counts.max(initial=0))):
            some = some[counts[some] > number]
            here, end = at[some], ends[some]
            name_end = self._end_of_text(here, end)
            text_end = self._end_of_text(name_end, end)
            places[firsts[some] + number] = np.stack([here + 2, name_end, name_end + 2, text_end], axis=1)
            at[some] = text_end
        if len(data) and (at != ends).any():
            self._refuse()
        return places

    def _end_of_text(self, at: Numbers, ends: Numbers) -> Numbers:
        """Where texts end that begin with their length, and must end before what they are in."""
        if (at + 2 > ends).any():
            self._refuse()
        end: Numbers = at + 2 + self._data[at] + 256 * self._data[at + 1].astype(np.int64)
        if (end > ends).any():
            self._refuse()
        return end

    def _strings(self, places: Numbers) -> tuple[pa.Array, pa.Array]:
        """Names and texts, cut out of the bytes: of four pieces one is a name, one a text, two are in between."""
        count = len(places)
        offsets = np.append(places.reshape(-1), places[-1:, -1]).astype(np.int32)
        offsets = offsets if count else np.zeros(1, np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._values.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 4 * count, buffers)
        try:
            names, texts = (
                pieces.take(pa.array(np.arange(first, 4 * count, 4))).cast(pa.string()) for first in (0, 2)
            )
        except pa.ArrowInvalid:
            self._refuse()
        return names, texts

    def _refuse(self) -> NoReturn:
        """Say what is wrong with one of the entries."""
        for value in self._values.each():
            metadata = decode_metadata(value)
            (entries.size_of(metadata), entries.priority_of(metadata), entries.expires_at_of(metadata))
        raise StoreCorrupt("an entry of the log was not understood")

    def _said(self, header: str) -> pa.Array:
        """What a header of ours says, for each entry; NULL where it is not there."""
        where = np.flatnonzero(self._kind == _OURS.index(header))
        at = np.full(len(self._head), -1)
        at[self._owner[where]] = where
        return self._texts.take(pa.array(at, mask=at < 0))

    def checksums(self) -> list[str | None]:
        """Those of payloads that are objects."""
        found: list[str | None] = self._said(entries.CHECKSUM_HEADER).to_pylist()
        return found

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
                return pa.array(head["id"].astype(np.int64)).cast(kind)
            case "queue":
                return self._said(entries.QUEUE_HEADER)
            case "priority":
                return self._priority.cast(kind)
            case "headers":
                return self._headers(kind)
            case "expires_at" | "retention":
                return self._expiry(name, kind)
        return times(head[name].astype(np.int64))

    def _headers(self, kind: pa.DataType) -> pa.Array:
        """The headers that messages were given."""
        if (self._kind == _OURS.index(entries.MORE_HEADER)).any():  # some are in one of them
            return column_of([entries.headers_of(decode_metadata(each)) for each in self._values.each()], kind)
        given = self._kind < 0
        counts = np.bincount(self._owner[given], minlength=len(self._head))
        offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
        mask = pa.array(given)
        return pa.MapArray.from_arrays(offsets, self._names.filter(mask), self._texts.filter(mask))

    def _expiry(self, name: str, kind: pa.DataType) -> pa.Array:
        received = self._head["received_at"].astype(np.int64)
        seconds = self._head["retention"].astype(np.int64)
        said = pc.if_else(pa.array(seconds > 0), pa.array(received + 1000 * seconds), pa.scalar(None, pa.int64()))
        ends = pc.coalesce(self._exactly, said)  # NULL: as each queue says; 0: never
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
        self.what = view.what
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
                content = self._view.get_object(object_of(content))
            except FileNotFoundError:
                return None
        return content if self.wanted else b"", len(content)
