"""The rows of messages as Arrow columns: first as the index has them, then as Spark wants them.

A plan has the first kind, of the columns that are needed, so that it is small and quickly made; tasks make the
second of it. `seq` is the message's number, `queue` and `file` are numbers in the plan's lists of names, `offset`,
`size` and `crc` say where the body is, and `ends_at` is the end of the lease or when the message was settled.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.message import LATEST, STATES
from penstock.rules.rows import DONE, FAILED, IN_FLIGHT, Page
from penstock.stores.journal.files import PLACE_BITS

Column = Any  # of numpy
_BODY = ("seq", "queue", "file", "offset", "size", "crc")
SOURCES: Mapping[str, tuple[str, ...]] = {
    "id": ("seq",),
    "queue": ("queue",),
    "payload": _BODY,
    "headers": _BODY,
    "priority": ("priority",),
    "created_at": _BODY,
    "received_at": _BODY,
    "visible_at": ("visible_at",),
    "expires_at": ("expires_at",),
    "attempts": ("attempts",),
    "state": ("state",),
    "receipt": ("state",),
    "claimed_at": ("claimed_at", "state"),
    "lease_until": ("ends_at", "state"),
    "consumer": ("consumer", "state"),
    "settled_at": ("ends_at", "state"),
    "reason": ("reason",),
}
TIME = pa.timestamp("us", "UTC")
_STATES = pa.array([None, *STATES], pa.string())
_CLAIMED = (IN_FLIGHT, DONE, FAILED)
_OFFSET = (1 << PLACE_BITS) - 1


def rows_of(
    pages: Sequence[tuple[int, Page]],
    files: Sequence[int],
    queue: int,
    first_file: int,
    wanted: Iterable[str],
    states: Sequence[str] = STATES,
) -> pa.RecordBatch:
    """The rows of a queue in the order of their places, which have the numbers of files: ascending, those that the
    plan numbers from first_file on.
    """
    wanted = list(wanted)
    state = _joined(pages, lambda page: np.frombuffer(page.state, np.uint8), np.uint8)
    chosen = state if len(states) == len(STATES) else np.isin(state, [STATES.index(each) + 1 for each in states])
    there = None if chosen.all() else np.flatnonzero(chosen)
    place = _numbers(pages, "place") if "offset" in wanted else None
    order = there
    if place is not None:
        lying = place if there is None else place[there]
        if (lying[1:] < lying[:-1]).any():
            by_place = np.argsort(lying, kind="stable")
            order = by_place if there is None else there[by_place]
    columns: dict[str, pa.Array] = {}
    for name in wanted:
        if name in ("consumer", "reason"):
            columns[name] = _texts(pages, name, order)
            continue
        values = _column(name, pages, files, state, place, queue, first_file)
        columns[name] = pa.array(values if order is None else values[order])
    return pa.record_batch(columns)


def _column(
    name: str,
    pages: Sequence[tuple[int, Page]],
    files: Sequence[int],
    state: Column,
    place: Column,
    queue: int,
    first: int,
) -> Column:
    if name == "state":
        return state
    if name == "queue":
        return np.full(len(state), queue, np.int32)
    if name == "seq":
        return _joined(pages, _seqs, np.int64, with_first=True)
    if name == "file":
        numbers = np.array(files, np.uint64)
        return (np.searchsorted(numbers, place >> np.uint64(PLACE_BITS)) + first).astype(np.int32)
    if name == "offset":
        return (place & np.uint64(_OFFSET)).astype(np.int64)
    if name in ("claimed_at", "ends_at"):
        return _joined(pages, lambda page: _claims(page, name), np.int64)
    return _numbers(pages, name)


def _joined(pages: Sequence[tuple[int, Page]], part: Any, dtype: Any, with_first: bool = False) -> Column:
    parts = [part(first, page) if with_first else part(page) for first, page in pages]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _numbers(pages: Sequence[tuple[int, Page]], name: str) -> Column:
    typecode = getattr(Page(), name).typecode
    return _joined(pages, lambda page: np.frombuffer(getattr(page, name), typecode), typecode)


def _seqs(first: int, page: Page) -> Column:
    count = len(page.state)
    if page.positions is None:
        return np.arange(first, first + count, dtype=np.int64)
    return first + np.fromiter(page.keys(), np.int64, count)


def _claims(page: Page, name: str) -> Column:
    """What only claimed messages have; the columns may be longer or shorter than the page."""
    values = np.zeros(len(page.state), np.int64)
    if page.claims is not None:
        known = np.frombuffer(getattr(page.claims, name), np.int64)[: len(values)]
        values[: len(known)] = known
    return values


def _texts(pages: Sequence[tuple[int, Page]], name: str, order: Column) -> pa.Array:
    parts = []
    for _, page in pages:
        count = len(page.state)
        known = [] if page.claims is None else getattr(page.claims, name)[:count]
        parts.append(pa.nulls(count, pa.string()) if not any(known) else _text(known, count))
    texts = pa.concat_arrays(parts) if parts else pa.nulls(0, pa.string())
    return texts if order is None else texts.take(pa.array(order))


def _text(known: list[str | None], count: int) -> pa.Array:
    return pa.array(known + [None] * (count - len(known)), pa.string())


def shown(name: str, rows: pa.RecordBatch, queues: pa.Array) -> pa.Array:
    """A column that needs no body, as Spark wants it."""
    if name == "id":
        return pc.cast(rows["seq"], pa.string())
    if name == "queue":
        return queues.take(rows["queue"])
    if name == "state":
        return _STATES.take(rows["state"])
    if name == "priority":
        return rows["priority"]
    if name == "attempts":
        return pc.cast(rows["attempts"], pa.int32())
    if name == "visible_at":
        return times(_numpy(rows["visible_at"]))
    if name == "expires_at":
        expires_at = _numpy(rows["expires_at"])
        return times(expires_at, expires_at == 0)
    if name == "receipt":
        return pa.nulls(len(rows), pa.string())
    if name == "reason":
        return rows["reason"]
    states = {"lease_until": (IN_FLIGHT,), "settled_at": (DONE, FAILED)}.get(name, _CLAIMED)
    applies = np.isin(_numpy(rows["state"]), states)
    if name == "consumer":
        return pc.if_else(pa.array(applies), rows["consumer"], pa.scalar(None, pa.string()))
    if name == "claimed_at":
        return times(_numpy(rows["claimed_at"]), ~applies)
    ends_at = _numpy(rows["ends_at"])
    return times(ends_at, ~applies | (ends_at == 0))  # what a stream holds has no end


def times(milliseconds: Column, missing: Column | None = None) -> pa.Array:
    """Times as Spark wants them; it knows none after the year 9999."""
    return pa.array(np.minimum(milliseconds, LATEST) * 1000, mask=missing).view(TIME)


def _numpy(column: pa.Array) -> Column:
    return column.to_numpy(zero_copy_only=False)
