"""What the rows of a write say, checked by columns; an error names the first row that is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.message import LATEST, Attempt, checked_headers
from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY, Settings
from penstock.errors import InvalidArgument, InvalidPriority, PayloadTooLarge, PenstockError, QueueNotFound

Column = Any  # of numpy


class RowChecker:
    """Checks the rows of one task, batch by batch."""

    def __init__(self, queues: Mapping[str, Settings], queue: str | None, partition: int) -> None:
        self._names = sorted(queues)
        self._settings = [queues[name] for name in self._names]
        self._queue = queue
        self._partition = partition
        self._row = 0  # of the task, where the batch begins

    def _queues(self, rows: pa.RecordBatch) -> Column:
        """Which queue, by number, each row is for."""
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
        """How long each payload is."""
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

    def _times(self, rows: pa.RecordBatch, name: str, missing: Any) -> Column:
        """Milliseconds."""
        if name not in rows.schema.names:
            return np.broadcast_to(np.asarray(missing, np.int64), len(rows)).copy()
        column = rows[name]
        values = column.cast(pa.int64()).fill_null(0).to_numpy() // 1000
        for at in np.flatnonzero((values < 0) | (values > LATEST))[:1].tolist():
            raise self._bad(at, InvalidArgument, f"{name} is not between the years 1970 and 9999")
        return np.where(column.is_null().to_numpy(zero_copy_only=False), missing, values)

    def _headers(self, at: int, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        try:
            return checked_headers(dict(pairs))
        except PenstockError as error:
            raise self._bad(at, type(error), str(error)) from None
        except TypeError as error:  # a value is NULL
            raise self._bad(at, InvalidArgument, str(error)) from None

    def _bad(self, at: int, kind: type[PenstockError], what: str) -> PenstockError:
        return kind(f"row {self._row + at + 1} of partition {self._partition}: {what}")


def slices(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Parts of a batch of which each has at most so many bytes of payloads, or is one row."""
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
    """Where rows of the same group begin and end, if they are ordered by it."""
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
    """The attempts of a column of them, as far as they have ended."""
    return [
        [_attempt(each) for each in attempts if each["ended_at"] is not None] if attempts else None
        for attempts in rows["history"].to_pylist()
    ]


def _attempt(row: dict[str, Any]) -> Attempt:
    claimed_at, ended_at = (round(row[name].timestamp() * 1000) for name in ("claimed_at", "ended_at"))
    return Attempt(row["attempt"], row["consumer"], claimed_at, ended_at, row["outcome"], row["reason"])


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])
