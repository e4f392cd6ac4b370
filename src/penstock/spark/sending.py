"""Rows of Spark to batches that a server stages: what one task of a write does.

The payloads of a batch go over the wire as they lie in Spark's memory. Whatever is wrong with a row is said before
anything of its batch is sent.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.loads import Sent
from penstock.contract.settings import Settings
from penstock.spark.checking import Column, RowChecker, binary, histories, integers, runs, slices
from penstock.wire import frames, jsons
from penstock.wire.restored import attempts_as_json

_BATCH = 2 << 20  # bytes from which on a batch is sent; it has at most twice as many, and a payload
_WAITING = 32 << 20  # bytes that wait for more of their queue
_ROW = 64  # bytes that a row costs beside its payload and what is long: no batch has too many
_LONG = ("headers", "consumer", "reason", "history")  # columns that may take much
Key = tuple[str, bool]  # a queue, and whether its messages are done


class _Chunk(NamedTuple):
    """Messages of one queue whose payloads lie one after the other."""

    payloads: bytes  # and no view, which would hold all rows that came with these
    sizes: list[int]
    columns: dict[str, list[Any]]  # those that say something
    cost: int


class Taker(Protocol):
    """Who takes frames: a server, or a folder."""

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Take a frame with messages of one queue, the next of its part."""


class Sender(RowChecker):
    """Sends the rows of one task as a part of a load."""

    def __init__(
        self,
        backend: Taker,
        load: str,
        part: str,
        queues: Mapping[str, Settings],
        queue: str | None,
        partition: int,
        restore: bool = False,
    ) -> None:
        super().__init__(queues, queue, partition)
        self._backend = backend
        self._load = load
        self._part = part
        self._restore = restore
        self._sent = 0
        self._waiting: dict[Key, list[_Chunk]] = {}
        self._costs: dict[Key, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch, or keep them for the next one."""
        for rows in slices(batch, _BATCH):
            self._add(rows)
            self._row += len(rows)
        while sum(self._costs.values()) > _WAITING:
            self._send(max(self._costs, key=self._costs.__getitem__))

    def finish(self) -> Sent:
        """Send what waits."""
        for key in list(self._waiting):
            self._send(key)
        return Sent(self._part, self._sent)

    def _add(self, rows: pa.RecordBatch) -> None:
        payload, number = binary(rows["payload"]), self._queues(rows)
        lengths = self._lengths(payload, number)
        columns = self._columns(rows, number)
        group = number * 2
        if self._restore:
            columns |= self._restored(rows)
            group += pc.equal(rows["state"], "done").to_numpy(zero_copy_only=False)
        cost = lengths + _ROW + sum(_cost(columns[name]) for name in _LONG if name in columns)
        if not (group == group[0]).all():
            order = np.argsort(group, kind="stable")
            payload, lengths, group, cost = (
                payload.take(pa.array(order)),
                lengths[order],
                group[order],
                cost[order],
            )
            columns = {name: [column[at] for at in order.tolist()] for name, column in columns.items()}
        content, starts = _content(payload)
        for first, last in runs(group):
            key = (self._names[group[first] // 2], bool(group[first] % 2))
            for start, stop in _cut(cost, first, last):
                chunk = _Chunk(
                    bytes(content[starts[start] : starts[stop]]),
                    lengths[start:stop].tolist(),
                    {name: column[start:stop] for name, column in columns.items()},
                    int(cost[start:stop].sum()),
                )
                self._wait(key, chunk)

    def _wait(self, key: Key, chunk: _Chunk) -> None:
        self._waiting.setdefault(key, []).append(chunk)
        self._costs[key] = self._costs.get(key, 0) + chunk.cost
        if self._costs[key] >= _BATCH:
            self._send(key)

    def _send(self, key: Key) -> None:
        chunks, (queue, _) = self._waiting.pop(key), key
        del self._costs[key]
        sizes = [size for chunk in chunks for size in chunk.sizes]
        columns = {
            name: [value for chunk in chunks for value in chunk.columns.get(name) or [None] * len(chunk.sizes)]
            for name in dict.fromkeys(name for chunk in chunks for name in chunk.columns)
        }
        frame = frames.encode_columns(columns, sizes, [chunk.payloads for chunk in chunks])
        self._backend.add(self._load, self._part, self._sent, queue, frame)
        self._sent += 1

    def _columns(self, rows: pa.RecordBatch, number: Column) -> dict[str, list[Any]]:
        """What a frame says beside payloads; a column that says nothing is not there."""
        columns: dict[str, list[Any]] = {}
        if "priority" in rows.schema.names:
            columns["priority"] = self._priorities(rows, number).tolist()
        else:
            self._priorities(rows, number)
        for name in ("created_at", "visible_at", "expires_at"):
            if name in rows.schema.names:
                columns[name] = self._times_or_none(rows, name)
        if self._restore:  # there NULL says that it never expires
            columns["expires_at"] = self._times(rows, "expires_at", 0).tolist()
        if "headers" in rows.schema.names:
            pairs = enumerate(rows["headers"].to_pylist())
            columns["headers"] = [self._headers(at, each) if each else None for at, each in pairs]
        return {name: column for name, column in columns.items() if column.count(None) < len(column)}

    def _restored(self, rows: pa.RecordBatch) -> dict[str, list[Any]]:
        """What became of messages elsewhere."""
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


def _content(payload: pa.Array) -> tuple[memoryview, list[int]]:
    """The bytes of all payloads, and where each starts and the last ends."""
    _, offsets, content = payload.buffers()
    starts = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload) + 1].tolist()
    return memoryview(content if content is not None else b""), starts


def _cost(column: list[Any]) -> Column:
    """What each value takes in JSON, if it is one that may take much."""
    return np.array([len(jsons.dumps(each)) if each else 0 for each in column])


def _cut(cost: Column, first: int, last: int) -> list[tuple[int, int]]:
    """Parts of these rows that cost no more than a batch, or are one row."""
    ends = np.cumsum(cost[first:last])
    cuts, start, before = [], 0, 0
    while start < last - first:
        stop = max(int(np.searchsorted(ends, before + _BATCH, side="right")), start + 1)
        cuts.append((first + start, first + stop))
        start, before = stop, int(ends[stop - 1])
    return cuts
