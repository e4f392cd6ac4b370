"""Rows of Spark to batches that a server stages: what one task of a write does.

The payloads of a batch go over the wire as they lie in Spark's memory. Whatever is wrong with a row is said before
anything of its batch is sent.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client.loads import LoadingKeeper, Sent
from penstock.settings import Settings
from penstock.spark.checking import Column, RowChecker, binary, runs, slices
from penstock.wire import frames

_BATCH = 2 << 20  # bytes from which on a batch is sent; it has at most twice as many, and a payload
_WAITING = 32 << 20  # bytes that wait for more of their queue
_ROW = 64  # bytes that a row costs beside its payload and headers: no batch has too many


class _Chunk(NamedTuple):
    """Messages of one queue whose payloads lie one after the other."""

    payloads: bytes  # and no view, which would hold all rows that came with these
    sizes: list[int]
    columns: dict[str, list[Any]]  # those that say something
    cost: int


class Sender(RowChecker):
    """Sends the rows of one task as a part of a load."""

    def __init__(
        self,
        keeper: LoadingKeeper,
        load: str,
        part: str,
        queues: Mapping[str, Settings],
        queue: str | None,
        partition: int,
    ) -> None:
        super().__init__(queues, queue, partition)
        self._keeper = keeper
        self._load = load
        self._part = part
        self._sent = 0
        self._waiting: dict[str, list[_Chunk]] = {}
        self._costs: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch, or keep them for the next one."""
        for rows in slices(batch, _BATCH):
            self._add(rows)
            self._row += len(rows)
        while sum(self._costs.values()) > _WAITING:
            self._send(max(self._costs, key=self._costs.__getitem__))

    def finish(self) -> Sent:
        """Send what waits."""
        for queue in list(self._waiting):
            self._send(queue)
        return Sent(self._part, self._sent)

    def _add(self, rows: pa.RecordBatch) -> None:
        payload, number = binary(rows["payload"]), self._queues(rows)
        lengths = self._lengths(payload, number)
        columns = self._columns(rows, number)
        cost = lengths + _ROW + _cost(columns.get("headers"))
        if not (number == number[0]).all():
            order = np.argsort(number, kind="stable")
            payload, lengths, number, cost = (
                payload.take(pa.array(order)),
                lengths[order],
                number[order],
                cost[order],
            )
            columns = {name: [column[at] for at in order.tolist()] for name, column in columns.items()}
        content, starts = _content(payload)
        for first, last in runs(number):
            for start, stop in _cut(cost, first, last):
                chunk = _Chunk(
                    bytes(content[starts[start] : starts[stop]]),
                    lengths[start:stop].tolist(),
                    {name: column[start:stop] for name, column in columns.items()},
                    int(cost[start:stop].sum()),
                )
                self._wait(self._names[number[first]], chunk)

    def _wait(self, queue: str, chunk: _Chunk) -> None:
        self._waiting.setdefault(queue, []).append(chunk)
        self._costs[queue] = self._costs.get(queue, 0) + chunk.cost
        if self._costs[queue] >= _BATCH:
            self._send(queue)

    def _send(self, queue: str) -> None:
        chunks = self._waiting.pop(queue)
        del self._costs[queue]
        sizes = [size for chunk in chunks for size in chunk.sizes]
        columns = {
            name: [value for chunk in chunks for value in chunk.columns.get(name) or [None] * len(chunk.sizes)]
            for name in dict.fromkeys(name for chunk in chunks for name in chunk.columns)
        }
        frame = frames.encode_columns(columns, sizes, [chunk.payloads for chunk in chunks])
        self._keeper.add(self._load, self._part, self._sent, queue, frame)
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
                columns[name] = [time if time >= 0 else None for time in self._times(rows, name, -1).tolist()]
        if "headers" in rows.schema.names:
            pairs = enumerate(rows["headers"].to_pylist())
            columns["headers"] = [self._headers(at, each) if each else None for at, each in pairs]
        return {name: column for name, column in columns.items() if column.count(None) < len(column)}


def _content(payload: pa.Array) -> tuple[memoryview, list[int]]:
    """The bytes of all payloads, and where each starts and the last ends."""
    _, offsets, content = payload.buffers()
    starts = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload) + 1].tolist()
    return memoryview(content if content is not None else b""), starts


def _cost(headers: list[dict[str, str] | None] | None) -> Column:
    """What headers take at most in JSON, where a character may become six."""
    if headers is None:
        return 0
    return np.array(
        [sum(6 * len(text) + 6 for pair in each.items() for text in pair) if each else 0 for each in headers]
    )


def _cut(cost: Column, first: int, last: int) -> list[tuple[int, int]]:
    """Parts of these rows that cost no more than a batch, or are one row."""
    ends = np.cumsum(cost[first:last])
    cuts, start, before = [], 0, 0
    while start < last - first:
        stop = max(int(np.searchsorted(ends, before + _BATCH, side="right")), start + 1)
        cuts.append((first + start, first + stop))
        start, before = stop, int(ends[stop - 1])
    return cuts
