"""The publish log as an Arrow table for Spark: batch reads, streaming reads, and matches with queues' filters.

Entries are decoded by columns: Python lists where each entry begins and ends, and NumPy and Arrow decode the bytes
of some thousand entries at a time.

A row of matches is an entry and a queue whose filter it matches. Tasks match the entries that they scan. The rows
of a batch, in the order of the log, are sent to the owner of the store (routing.py).
"""

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock import filters
from penstock.contract.arrow import column_of
from penstock.contract.tables import Opener
from penstock.engine.arrow_columns import times
from penstock.errors import StoreCorrupt
from penstock.filters.dispatch import Dispatcher
from penstock.filters.expressions import Subject
from penstock.stores.owner_operations import SlateOwner
from penstock.stores.slate import entries, extensions, recovery, snapshot
from penstock.stores.slate.format import (
    decode_metadata,
    decode_payload,
    key_u64,
    log_prefix,
    object_of,
    payload_key,
)
from penstock.stores.slate.kind import KIND
from penstock.stores.slate.log import Published
from penstock.stores.slate.place import SUBFOLDER, parse
from penstock.stores.slate.routing import COLUMNS, Matches, subject_of
from penstock.stores.slate.snapshot import Snapshot, Values, View

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
_PART, _SMALL_PART = 500_000, 20_000  # entries that one task reads, at most and at least
_MOST_PARTS = 1_000
_LOOKED_AT = 10_000  # entries that the driver scans to size a batch
MATCHED = pa.schema([("queue", pa.string()), *((name, pa.int64()) for name in COLUMNS)])
Numbers = npt.NDArray[np.int64]
Filters = tuple[tuple[str, str], ...]  # queues and their filters


@dataclass(frozen=True)
class LogPart:
    """A range of the log, read by one task: its entries, or with `filters` their matches."""

    snapshot: Snapshot
    log: str
    first: int
    end: int
    filters: Filters | None = None

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with closing(snapshot.opened(self.snapshot)) as view:
            yield from log_batches(view, self, schema) if self.filters is None else match(view, self, self.filters)


def log_end(view: View, log: str) -> int:
    """The number up to which the log is complete; its end if only another program has written it."""
    value = view.get(extensions.LOG_END_KEY)
    return recovery.adoption(view, log).last + 1 if value is None else extensions.decode_log_end(value)


def log_parts(view: View, taken: Snapshot, log: str, end: int) -> list[LogPart]:
    """The log before a number, cut into parts for tasks."""
    prefix = log_prefix(log)
    for key, _ in view.scan(prefix + key_u64(0), prefix + key_u64(end)):
        return _parts(taken, log, int.from_bytes(key[-8:]), end)
    return []


def _parts(taken: Snapshot, log: str, first: int, end: int, wanted: Filters | None = None) -> list[LogPart]:
    total = end - first
    count = max(-(-total // _PART), min(os.cpu_count() or 1, total // _SMALL_PART), 1)
    if count > _MOST_PARTS:  # most numbers are unused, as in another program's log
        count = os.cpu_count() or 1
    cuts = pairwise(first + total * number // count for number in range(count + 1))
    return [LogPart(sliced(taken, log, *cut), log, *cut, wanted) for cut in cuts]


def sliced(taken: Snapshot, log: str, first: int, end: int) -> Snapshot:
    """The snapshot for a task that reads only messages from `first` to before `end`."""
    prefix = log_prefix(log)
    return taken.within((payload_key(first), payload_key(end)), (prefix + key_u64(first), prefix + key_u64(end)))


class LogFollower:
    """A streaming read of the log: all committed entries, in the order of their numbers, each once.

    Numbers are given before they are committed, and commits may be out of order. So a batch ends at the log end
    that the store has recorded: no lower number will be added (extensions.py).
    """

    def __init__(self, store: str, schema: pa.Schema, route: bool, owner: int) -> None:
        self._store, self._route, self._owner = store, route, owner
        self._objects = bool({"payload", "size"}.intersection(schema.names))
        self._log = parse(store).log
        self._taken: Snapshot | None = None  # the latest snapshot, which batches are read from
        self._view: View | None = None  # that snapshot, open
        self._end = 0  # the log's end in it
        self._filters: Filters | None = None  # the queues' filters in it, if matches are wanted

    def end(self) -> int:
        if self._taken is not None and snapshot.tail(self._store) == self._taken.tail:
            return self._end
        self.close()
        self._taken = snapshot.take(
            self._store, self._owner, objects=self._objects
        )  # close() drops it even if opening fails
        self._taken, view = snapshot.opened_for(self._taken, self._log)
        recovery.check_instance(view, self._log)
        self._view, self._end = view, log_end(view, self._log)
        if self._route:
            self._filters = _filters_in(view)
        return self._end

    def reach(self, start: int, end: int, rows: int) -> int:
        if self._view is None or start >= end:
            return start
        prefix = log_prefix(self._log)
        keys = (key for key, _ in self._view.scan(prefix + key_u64(start), prefix + key_u64(end)))
        first = next(keys, None)
        if first is None:
            return end
        reached = int.from_bytes(first[-8:]) + rows
        if reached < end:  # another program's numbers may be far apart
            last = max(islice(keys, min(rows, _LOOKED_AT) - 1), default=first)
            reached = max(reached, int.from_bytes(last[-8:]) + 1)
        return reached

    def parts(self, first: int, last: int) -> list[LogPart]:
        if self._taken is None or self._end < last:
            self.end()
        return [] if self._taken is None else _parts(self._taken, self._log, first, last, self._filters)

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None
        if self._taken is not None:
            snapshot.drop(self._taken)
            self._taken = None


def log_batches(view: View, part: LogPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of a range of the log, as batches of the schema."""
    prefix = log_prefix(part.log)
    payloads = None
    if not {"payload", "size"}.isdisjoint(schema.names):
        payloads = Payloads(view, part.first, part.end, "payload" in schema.names)
    for some in _larger(view.values(prefix + key_u64(part.first), prefix + key_u64(part.end))):
        found = Entries(some)
        if payloads is None:
            yield found.batch(schema, [], [])
        else:
            yield from _with_payloads(found, payloads, schema)


def _larger(batches: Iterator[Values]) -> Iterator[Values]:
    """Join small batches of values: Spark's cost per batch does not depend on its size."""
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
                continue  # the message is being removed: its payload went first
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
    """Some entries of the log, decoded by columns: entries.py for many entries at once."""

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
        self._owner = np.repeat(np.arange(len(starts)), counts)  # the entry of each header
        names, self._texts = self._strings(places)
        ours = pc.index_in(names, value_set=pa.array(_OURS, pa.string()))
        self._kind: Numbers = pc.fill_null(ours, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        self._names = names
        try:
            self.sizes: pa.Array = self._header(entries.SIZE_HEADER).cast(pa.int64())
            self._priority = pc.fill_null(self._header(entries.PRIORITY_HEADER).cast(pa.int64()), 0)
            self._exactly = self._header(entries.EXPIRES_AT_HEADER).cast(pa.int64())
        except pa.ArrowInvalid:
            self._refuse()

    def _places(self, at: Numbers, ends: Numbers, counts: Numbers) -> Numbers:
        """The positions of each header's name and text: four columns, begin and end of each."""
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
        """The ends of texts that begin with their length; each must end within its entry."""
        if (at + 2 > ends).any():
            self._refuse()
        end: Numbers = at + 2 + self._data[at] + 256 * self._data[at + 1].astype(np.int64)
        if (end > ends).any():
            self._refuse()
        return end

    def _strings(self, places: Numbers) -> tuple[pa.Array, pa.Array]:
        """Names and texts, as slices of the bytes: of four slices the first is a name, the third a text."""
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
        """Raise the error of the first bad entry, by decoding one by one."""
        for value in self._values.each():
            metadata = decode_metadata(value)
            (entries.size_of(metadata), entries.priority_of(metadata), entries.expires_at_of(metadata))
        raise StoreCorrupt("an entry of the log cannot be decoded")

    def published(self, payloads: "Payloads") -> "PublishedEntries | None":
        """The published messages among the entries; None if there are none."""
        at = np.flatnonzero(pc.is_null(self._header(entries.QUEUE_HEADER)).to_numpy(zero_copy_only=False))
        if not len(at):
            return None
        head, there = self._head[at], pa.array(at)
        columns = {name: head[name].astype(np.int64) for name in ("created_at", "received_at", "visible_at")}
        columns["sequence"] = head["id"].astype(np.int64)
        columns["priority"] = self._priority.take(there).to_numpy(zero_copy_only=False)
        ends = pc.fill_null(self._ends(), -1)  # by each queue's retention
        columns["expires_at"] = ends.take(there).to_numpy(zero_copy_only=False)
        sizes = self.sizes.take(there)
        if sizes.null_count:  # another program's entries
            known = zip(columns["sequence"].tolist(), sizes.to_pylist(), strict=True)
            sizes = pa.array(
                [(payloads.next(seq) or (b"", 0))[1] if size is None else size for seq, size in known]
            )
        return PublishedEntries(self, at, columns | {"size": sizes.to_numpy(zero_copy_only=False)})

    def value(self, at: int) -> bytes:
        """The bytes of an entry."""
        return self._values.data[self._values.starts[at] : self._values.ends[at]]

    def packed(self) -> npt.NDArray[np.bool_]:
        """Which entries have some of their headers packed into one."""
        packed = np.zeros(len(self._head), bool)
        packed[self._owner[self._kind == _OURS.index(entries.MORE_HEADER)]] = True
        return packed

    def header(self, name: str) -> pa.Array:
        """The value of a producer's header, for each entry; NULL if an entry has none."""
        given = pc.equal(self._names, name).to_numpy(zero_copy_only=False) & (self._kind < 0)
        return self._first(np.flatnonzero(given))

    def _header(self, header: str) -> pa.Array:
        """The value of a header of our own, for each entry; NULL if an entry has none."""
        return self._first(np.flatnonzero(self._kind == _OURS.index(header)))

    def _first(self, where: Numbers) -> pa.Array:
        """The text of the header of each entry that is at one of these places; NULL if none is."""
        at = np.full(len(self._head), -1)
        at[self._owner[where]] = where
        return self._texts.take(pa.array(at, mask=at < 0))

    def checksums(self) -> list[str | None]:
        """The checksums of payloads that are objects."""
        found: list[str | None] = self._header(entries.CHECKSUM_HEADER).to_pylist()
        return found

    def sequences(self) -> list[int]:
        found: list[int] = self._head["id"].tolist()
        return found

    def batch(
        self, schema: pa.Schema, payloads: list[bytes], sizes: list[int], only: list[int] | None = None
    ) -> pa.RecordBatch:
        """A batch of the schema: all entries, or those at the positions `only`, with their payloads and sizes."""
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
                return self._header(entries.QUEUE_HEADER)
            case "priority":
                return self._priority.cast(kind)
            case "headers":
                return self._headers(kind)
            case "expires_at" | "retention":
                return self._expiry(name, kind)
        return times(head[name].astype(np.int64))

    def _headers(self, kind: pa.DataType) -> pa.Array:
        if (self._kind == _OURS.index(entries.MORE_HEADER)).any():  # some are packed into that header
            return column_of([entries.headers_of(decode_metadata(each)) for each in self._values.each()], kind)
        given = self._kind < 0
        counts = np.bincount(self._owner[given], minlength=len(self._head))
        offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
        mask = pa.array(given)
        return pa.MapArray.from_arrays(offsets, self._names.filter(mask), self._texts.filter(mask))

    def _ends(self) -> pa.Array:
        """When each entry expires. 0: never; NULL: by each queue's retention."""
        received, seconds = (self._head[name].astype(np.int64) for name in ("received_at", "retention"))
        said = pc.if_else(pa.array(seconds > 0), pa.array(received + 1000 * seconds), pa.scalar(None, pa.int64()))
        return pc.coalesce(self._exactly, said)

    def _expiry(self, name: str, kind: pa.DataType) -> pa.Array:
        received, ends = self._head["received_at"].astype(np.int64), self._ends()
        if name == "retention":
            lasts = pc.divide(pc.subtract(ends, pa.array(received)).cast(pa.float64()), 1000.0)
            return pc.if_else(pc.equal(ends, 0), pa.scalar(0.0), lasts)
        never = pc.equal(pc.fill_null(ends, 0), 0).to_numpy(zero_copy_only=False)
        return times(pc.fill_null(ends, 0).to_numpy(zero_copy_only=False), never)


class Payloads:
    """The payloads of a range, read in one scan; callers ask in the order of numbers."""

    def __init__(self, view: View, first: int, end: int, wanted: bool) -> None:
        self._view = view
        self.wanted = wanted
        self.what = view.what
        self._rows = (row for some in view.batches(payload_key(first), payload_key(end)) for row in some)
        self._at, self._value = -1, b""

    def next(self, seq: int) -> tuple[bytes, int] | None:
        """The payload, empty if it is not wanted, and its size; None if there is no payload."""
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


# Matches


def _filters_in(view: View) -> Filters:
    """The valid filters of queues; a queue with an invalid one gets no messages."""
    found = [(queue, each.filter) for queue, each in sorted(recovery.settings_of(view).items()) if each.filter]
    return tuple((queue, text) for queue, text in found if filters.reason_against(text) is None)


@lru_cache(maxsize=4)
def _dispatcher(wanted: Filters) -> Dispatcher[str]:
    """Parsed filters, shared by the tasks of a Spark process."""
    return Dispatcher([(filters.parse(text), queue) for queue, text in wanted])


def match(view: View, part: LogPart, filters: Filters) -> Iterator[pa.RecordBatch]:
    """The matches in a range of the log. Rows without a queue have the first and last entry of each batch."""
    prefix, dispatcher = log_prefix(part.log), _dispatcher(filters)
    payloads = Payloads(view, part.first, part.end, wanted=False)
    for some in _larger(view.values(prefix + key_u64(part.first), prefix + key_u64(part.end))):
        found = Entries(some).published(payloads)
        if found is None:
            continue
        row, target = _pairs(found, dispatcher)
        names = pa.array(dispatcher.targets, pa.string()).take(pa.array(target))
        seqs = found.columns["sequence"]
        bounds = pa.array([seqs[0], seqs[-1]])
        columns = [pa.concat_arrays([names, pa.nulls(2, pa.string())])]
        for name in COLUMNS:
            marks = bounds if name == "sequence" else pa.array([0, 0])
            columns.append(pa.concat_arrays([pa.array(found.columns[name][row]), marks]))
        yield pa.RecordBatch.from_arrays(columns, schema=MATCHED)


class PublishedEntries(NamedTuple):
    """The published messages among some entries, by columns."""

    entries: "Entries"
    at: Numbers  # the place of each among the entries
    columns: dict[str, Numbers]  # COLUMNS, and created_at

    def subject(self, row: int) -> Subject:
        """A message as filters see it."""
        metadata = decode_metadata(self.entries.value(int(self.at[row])))
        return subject_of(Published(metadata, int(self.columns["size"][row])))


def _pairs(found: PublishedEntries, dispatcher: Dispatcher[str]) -> tuple[Numbers, Numbers]:
    """The messages and the targets whose filters match, as two columns of numbers."""
    entries, count = found.entries, len(found.at)
    packed = entries.packed()[found.at]  # headers of these are no columns
    asked = [
        _asked(entries.header(name).take(pa.array(found.at)), partial(dispatcher.asked_by_header, name))
        for name in dispatcher.headers
    ]
    asked += [
        _asked(pa.array(found.columns[name]), partial(dispatcher.asked_by_field, name))
        for name in dispatcher.fields
    ]
    always = np.array(dispatcher.always, np.int64)
    asked.append((np.repeat(np.arange(count), len(always)), np.tile(always, count)))
    most = len(dispatcher.targets)
    pairs = np.concatenate([row * most + target for row, target in asked])
    pairs = np.unique(pairs) if len(asked) > 2 or len(always) else pairs
    row, target = pairs // most, pairs % most
    checks = dispatcher.filters
    matched = ~packed[row]
    for at in np.flatnonzero(matched & np.array([each is not None for each in checks])[target]).tolist():
        check = checks[target[at]]
        matched[at] = check is None or check.matches(found.subject(int(row[at])))
    row, target = row[matched], target[matched]
    numbers = {each: number for number, each in enumerate(dispatcher.targets)}
    for at in np.flatnonzero(packed).tolist():
        more = [numbers[each] for each in dispatcher.matching(found.subject(at))]
        row, target = np.append(row, [at] * len(more)), np.append(target, more)
    return row.astype(np.int64), target.astype(np.int64)


def _asked(values: pa.Array, targets_of: Callable[[Any], list[int]]) -> tuple[Numbers, Numbers]:
    """The rows whose values ask for targets, and these; NULL asks for none."""
    encoded = values.dictionary_encode()
    targets = [targets_of(each) for each in encoded.dictionary.to_pylist()]
    counts = np.array([*map(len, targets), 0], np.int64)  # the last is that of NULL
    starts = np.cumsum(counts) - counts
    each = pc.fill_null(encoded.indices, len(targets)).to_numpy(zero_copy_only=False)
    row = np.repeat(np.arange(len(each)), counts[each])
    first = np.repeat(np.cumsum(counts[each]) - counts[each], counts[each])
    place = np.repeat(starts[each], counts[each]) + np.arange(len(row)) - first
    return row, np.array([target for some in targets for target in some], np.int64)[place]


def matches_in(found: pa.Table) -> Matches:
    """The matches of a batch, by queue, from the rows of all tasks."""
    names = found["queue"].combine_chunks().dictionary_encode()
    queue = names.indices.fill_null(-1).to_numpy()
    columns = [found[name].to_numpy() for name in COLUMNS]
    sequence = columns[0]
    start, end = int(sequence.min()), int(sequence.max()) + 1
    order = np.lexsort((sequence, queue))
    order = order[np.searchsorted(queue[order], 0) :]
    known = names.dictionary.to_pylist()
    cuts = pairwise(np.searchsorted(queue[order], np.arange(len(known) + 1)).tolist())
    places = (order[first:last] for first, last in cuts)
    queues = {
        name: [array("q", column[at].tobytes()) for column in columns]
        for name, at in zip(known, places, strict=True)
    }
    return Matches(start, end, queues)


class Router:
    """Sends matches to the owner of the store, which delivers them; opens the store if no process has it open."""

    def __init__(self, store: str, opened: Opener) -> None:
        self._store = opened(_without_router(store))
        self._owner = SlateOwner(self._store.run)
        folder = KIND.meeting_folder(store)  # for a bucket, a folder of this machine: nothing is lost without it
        self.checkpoint = os.path.join(folder, SUBFOLDER, "route")

    def position(self) -> int:
        return self._owner.position()

    def deliver(self, found: pa.Table) -> dict[str, int]:
        return self._owner.route(matches_in(found)) if len(found) else {}

    def close(self) -> None:
        self._store.close()


def _without_router(url: str) -> str:
    """The store's URL with the router off."""
    where, _, query = url.partition("?")
    kept = [each for each in query.split("&") if each and not each.startswith("router=")]
    return f"{where}?{'&'.join([*kept, 'router=off'])}"
