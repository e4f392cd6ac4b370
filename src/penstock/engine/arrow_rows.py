"""Arrow rows for queues: checked by columns, and sent as frames of messages.

An error names the first row that is wrong, before anything of its batch is staged. The payloads of a batch go into
frames as they lie in memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.loads import Sent
from penstock.contract.message import LATEST, MAX_GROUP, Attempt, checked_headers
from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY, Settings
from penstock.contract.tables import Target
from penstock.errors import InvalidArgument, InvalidPriority, PayloadTooLarge, PenstockError, QueueNotFound
from penstock.wire import frames, jsons
from penstock.wire.restored import attempts_as_json

Column = Any  # of numpy
_BATCH = 2 << 20  # bytes at which a batch is sent; it has at most twice as many, and one payload
_WAITING = 32 << 20  # bytes of batches that are not full yet
_ROW = 64  # bytes that a row costs beside its payload and its long columns
_LONG = ("headers", "consumer", "reason", "history")  # columns with values of any length
Key = tuple[str, bool]  # a queue, and whether its messages are done


class RowStager:
    """Stages the rows of one task: checks them batch by batch, and collects them by queue."""

    _at_once: int  # bytes of payloads that are checked together
    _enough: int  # bytes of a queue that are staged together
    _most: int  # bytes that are collected for all queues

    def __init__(
        self, queues: Mapping[str, Settings], queue: str | None, partition: int, restore: bool = False
    ) -> None:
        self._names = sorted(queues)
        self._settings = [queues[name] for name in self._names]
        self._queue = queue
        self._partition = partition
        self._restore = restore
        self._row = 0  # the batch's first row, counted in the task
        self._waiting: dict[Key, list[Any]] = {}
        self._costs: dict[Key, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Check the rows of a batch, and stage or collect them."""
        for rows in slices(batch, self._at_once):
            self._add(rows)
            self._row += len(rows)
        while sum(self._costs.values()) > self._most:
            self._take(max(self._costs, key=self._costs.__getitem__))

    def _add(self, rows: pa.RecordBatch) -> None:
        raise NotImplementedError

    def _write(self, key: Key, chunks: list[Any]) -> None:
        raise NotImplementedError

    def _wait(self, key: Key, chunk: Any, cost: int) -> None:
        self._waiting.setdefault(key, []).append(chunk)
        self._costs[key] = self._costs.get(key, 0) + cost
        if self._costs[key] >= self._enough:
            self._take(key)

    def _take(self, key: Key) -> None:
        del self._costs[key]
        self._write(key, self._waiting.pop(key))

    def _take_all(self) -> None:
        for key in list(self._waiting):
            self._take(key)

    def _key(self, group: Column, at: int) -> Key:
        return self._names[group[at] // 2], bool(group[at] % 2)

    def _done(self, rows: pa.RecordBatch) -> Column:
        """Which messages are restored as done."""
        if not self._restore:
            return np.zeros(len(rows), bool)
        return pc.equal(rows["state"], "done").to_numpy(zero_copy_only=False)

    def _queues(self, rows: pa.RecordBatch) -> Column:
        """The number of each row's queue."""
        if "queue" not in rows.schema.names:
            return np.full(len(rows), self._names.index(self._queue or ""))
        names = rows["queue"]
        if self._queue is not None:
            names = names.fill_null(self._queue)
        found = pc.index_in(names, value_set=pa.array(self._names, pa.string()))
        if found.null_count:
            at = _first(pc.is_null(found))
            name = names[at].as_py()
            raise self._bad(
                at,
                QueueNotFound,
                "no queue is named" if name is None else f"there is no queue {name!r}: create it",
            )
        return found.to_numpy().astype(np.int64)

    def _lengths(self, payload: pa.Array, number: Column) -> Column:
        """The size of each payload."""
        if payload.null_count:
            raise self._bad(_first(pc.is_null(payload)), InvalidArgument, "its payload is NULL")
        length = pc.binary_length(payload).to_numpy().astype(np.int64)
        most = np.array([each.max_payload for each in self._settings])[number]
        for at in np.flatnonzero(length > most)[:1].tolist():
            name = self._names[number[at]]
            text = f"a payload of {length[at]} bytes; queue {name!r} takes at most {most[at]}"
            raise self._bad(at, PayloadTooLarge, text)
        return length

    def _priorities(self, rows: pa.RecordBatch, number: Column) -> Column:
        """The priority of each row."""
        priority = integers(rows, "priority", 0)
        limits = [each.priorities or (LOWEST_PRIORITY, HIGHEST_PRIORITY) for each in self._settings]
        lowest, highest = np.array(limits, np.int64).T
        for at in np.flatnonzero((priority < lowest[number]) | (priority > highest[number]))[:1].tolist():
            low, high = limits[number[at]]
            text = f"priority {priority[at]}; queue {self._names[number[at]]!r} takes {low} to {high}"
            raise self._bad(at, InvalidPriority, text)
        return priority

    def _groups(self, rows: pa.RecordBatch) -> dict[str, Column]:
        """The group of each row, as the column `group`; no column if the rows have none."""
        if "group" not in rows.schema.names:
            return {}
        sizes = pc.fill_null(pc.binary_length(rows["group"]), 1).to_numpy()
        for at in np.flatnonzero((sizes < 1) | (sizes > MAX_GROUP))[:1].tolist():
            text = f"a group of {sizes[at]} bytes; give 1 to {MAX_GROUP} bytes, or NULL for none"
            raise self._bad(at, InvalidArgument, text)
        return {"group": np.array(rows["group"].to_pylist(), object)}

    def _times(self, rows: pa.RecordBatch, name: str, missing: Any) -> Column:
        """A column of times as milliseconds."""
        if name not in rows.schema.names:
            return np.broadcast_to(np.asarray(missing, np.int64), len(rows)).copy()
        column = rows[name]
        values = column.cast(pa.int64()).fill_null(0).to_numpy() // 1000
        for at in np.flatnonzero((values < 0) | (values > LATEST))[:1].tolist():
            raise self._bad(at, InvalidArgument, f"{name} is not between the years 1970 and 9999")
        return np.where(column.is_null().to_numpy(zero_copy_only=False), missing, values)

    def _headers(self, at: int, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        try:
            return checked_headers(dict(pairs), self._restore)
        except PenstockError as error:
            raise self._bad(at, type(error), str(error)) from None
        except TypeError as error:  # a value is NULL
            raise self._bad(at, InvalidArgument, str(error)) from None

    def _bad(self, at: int, kind: type[PenstockError], what: str) -> PenstockError:
        return kind(f"row {self._row + at + 1} of partition {self._partition}: {what}")


def slices(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch cut into parts of at most so many bytes of payloads, or of one row."""
    if not len(batch):
        return
    lengths = pc.fill_null(pc.binary_length(batch["payload"]), 0).to_numpy()
    ends = np.cumsum(lengths, dtype=np.int64)
    start, before = 0, 0
    while start < len(batch):
        end = max(int(np.searchsorted(ends, before + most, side="right")), start + 1)
        yield batch.slice(start, end - start)
        start, before = end, int(ends[end - 1])


def runs(group: Column) -> Iterator[tuple[int, int]]:
    """The start and end of each group of rows that are ordered by group."""
    yield from pairwise([0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)])


def binary(column: pa.Array) -> pa.Array:
    """The bytes of a column of bytes or texts."""
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def integers(rows: pa.RecordBatch, name: str, missing: int) -> Column:
    """The integers of a column."""
    if name not in rows.schema.names:
        return np.full(len(rows), missing, np.int64)
    return rows[name].cast(pa.int64()).fill_null(missing).to_numpy()


def histories(rows: pa.RecordBatch) -> list[list[Attempt] | None]:
    """The ended attempts of each row, from a column of attempts."""
    return [
        [_attempt(each) for each in attempts if each["ended_at"] is not None] if attempts else None
        for attempts in rows["history"].to_pylist()
    ]


def _attempt(row: dict[str, Any]) -> Attempt:
    claimed_at, ended_at = (round(row[name].timestamp() * 1000) for name in ("claimed_at", "ended_at"))
    return Attempt(row["attempt"], row["consumer"], claimed_at, ended_at, row["outcome"], row["reason"])


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


# Frames


class _Chunk(NamedTuple):
    """Messages of one queue whose payloads lie one after the other."""

    payloads: bytes  # no view, which would keep the whole Arrow batch in memory
    sizes: list[int]
    columns: dict[str, list[Any]]  # without columns of defaults


class Taker(Protocol):
    """Where frames are staged: a server, a folder, a bucket."""

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Stage the part's next frame, with messages of one queue."""


class Sender(RowStager):
    """Sends the rows of one task as a part of a load."""

    _at_once, _enough, _most = _BATCH, _BATCH, _WAITING

    def __init__(
        self,
        taker: Taker,
        load: str,
        part: str,
        queues: Mapping[str, Settings],
        queue: str | None,
        partition: int,
        restore: bool = False,
    ) -> None:
        super().__init__(queues, queue, partition, restore)
        self._taker = taker
        self._load = load
        self._part = part
        self._sent = 0

    def finish(self) -> Sent:
        """Send the collected rows."""
        self._take_all()
        return Sent(self._part, self._sent)

    def _add(self, rows: pa.RecordBatch) -> None:
        payload, number = binary(rows["payload"]), self._queues(rows)
        lengths = self._lengths(payload, number)
        columns = self._columns(rows, number)
        group = number * 2 + self._done(rows)
        if self._restore:
            columns |= self._restored(rows)
        cost = lengths + _ROW + sum(_cost(columns[name]) for name in _LONG if name in columns)
        if not (group == group[0]).all():
            order = np.argsort(group, kind="stable")
            payload, group = payload.take(pa.array(order)), group[order]
            lengths, cost = lengths[order], cost[order]
            columns = {name: [column[at] for at in order.tolist()] for name, column in columns.items()}
        content, starts = _content(payload)
        for first, last in runs(group):
            for start, stop in _cut(cost, first, last):
                chunk = _Chunk(
                    bytes(content[starts[start] : starts[stop]]),
                    lengths[start:stop].tolist(),
                    {name: column[start:stop] for name, column in columns.items()},
                )
                self._wait(self._key(group, first), chunk, int(cost[start:stop].sum()))

    def _write(self, key: Key, chunks: list[_Chunk]) -> None:
        sizes = [size for chunk in chunks for size in chunk.sizes]
        columns = {
            name: [value for chunk in chunks for value in chunk.columns.get(name) or [None] * len(chunk.sizes)]
            for name in dict.fromkeys(name for chunk in chunks for name in chunk.columns)
        }
        frame = frames.encode_columns(columns, sizes, [chunk.payloads for chunk in chunks])
        self._taker.add(self._load, self._part, self._sent, key[0], frame)
        self._sent += 1

    def _columns(self, rows: pa.RecordBatch, number: Column) -> dict[str, list[Any]]:
        """A frame's columns beside payloads, without columns of defaults."""
        columns: dict[str, list[Any]] = {}
        if "priority" in rows.schema.names:
            columns["priority"] = self._priorities(rows, number).tolist()
        else:
            self._priorities(rows, number)
        columns |= {name: column.tolist() for name, column in self._groups(rows).items()}
        for name in ("created_at", "visible_at", "expires_at"):
            if name in rows.schema.names:
                columns[name] = self._times_or_none(rows, name)
        if self._restore:  # in a restored row NULL means that it never expires
            columns["expires_at"] = self._times(rows, "expires_at", 0).tolist()
        if "headers" in rows.schema.names:
            pairs = enumerate(rows["headers"].to_pylist())
            columns["headers"] = [self._headers(at, each) if each else None for at, each in pairs]
        return {name: column for name, column in columns.items() if column.count(None) < len(column)}

    def _restored(self, rows: pa.RecordBatch) -> dict[str, list[Any]]:
        """The columns of states and attempts of restored messages."""
        attempts = [None if each is None else attempts_as_json(each) for each in histories(rows)]
        return {
            "received_at": self._times_or_none(rows, "received_at"),
            "state": rows["state"].to_pylist(),
            "attempts": integers(rows, "attempts", 0).tolist(),
            "claimed_at": self._times_or_none(rows, "claimed_at"),
            "settled_at": self._times_or_none(rows, "settled_at"),
            "consumer": rows["consumer"].to_pylist(),
            "reason": rows["reason"].to_pylist(),
            "history": attempts,
        }

    def _times_or_none(self, rows: pa.RecordBatch, name: str) -> list[int | None]:
        return [time if time >= 0 else None for time in self._times(rows, name, -1).tolist()]


def send(
    taker: Taker,
    load: str,
    target: Target,
    queues: Mapping[str, Settings],
    batches: Iterable[pa.RecordBatch],
    partition: int,
    attempt: int,
) -> Sent:
    """Send the rows of one task."""
    part = f"{partition:05}-{attempt}"
    sender = Sender(taker, load, part, queues, target.queue, partition, target.restore)
    for batch in batches:
        sender.add(batch)
    return sender.finish()


def _content(payload: pa.Array) -> tuple[memoryview, list[int]]:
    """The bytes of all payloads, and their offsets."""
    _, offsets, content = payload.buffers()
    starts = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload) + 1].tolist()
    return memoryview(content if content is not None else b""), starts


def _cost(column: list[Any]) -> Column:
    """The size in JSON of each value of a long column."""
    return np.array([len(jsons.dumps(each)) if each else 0 for each in column])


def _cut(cost: Column, first: int, last: int) -> list[tuple[int, int]]:
    """These rows cut into parts that fit a batch, or of one row."""
    ends = np.cumsum(cost[first:last])
    cuts, start, before = [], 0, 0
    while start < last - first:
        stop = max(int(np.searchsorted(ends, before + _BATCH, side="right")), start + 1)
        cuts.append((first + start, first + stop))
        start, before = stop, int(ends[stop - 1])
    return cuts
