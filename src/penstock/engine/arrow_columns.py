"""Messages as Arrow columns: those of a queue's index, and those of a table.

A plan has only the needed columns of the index, so that it is small and quickly made; tasks turn them into
columns of the table. Columns of the index: `seq` is the message's number, `queue` a number in the plan's list of
names, `place`, `size` and `crc` are those of the body, `ends_at` is the end of the lease or when the message was
settled.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.arrow import ATTEMPT, HISTORY, TIME, column_of
from penstock.contract.message import LATEST, STATES, Attempt
from penstock.contract.settings import Settings
from penstock.rules.recent import History
from penstock.rules.rows import DONE, FAILED, IN_FLIGHT, Page
from penstock.rules.state import State

Column = Any  # of numpy
BODY = frozenset(("payload", "headers", "created_at", "received_at"))  # columns that are not in a queue's index
_PLACE = ("seq", "queue", "place", "size", "crc")
SOURCES: Mapping[str, tuple[str, ...]] = {
    "id": ("seq",),
    "queue": ("queue",),
    "payload": _PLACE,
    "headers": _PLACE,
    "priority": ("priority",),
    "created_at": _PLACE,
    "received_at": _PLACE,
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
    "group": ("group",),
    "history": ("past", "state", "attempts", "consumer", "claimed_at", "ends_at"),
}
_STATES = pa.array([None, *STATES], pa.string())
_TEXTS = ("consumer", "reason", "group")  # columns that are no numbers
_CLAIMED = (IN_FLIGHT, DONE, FAILED)
_PART, _SMALL_PART = 96 << 20, 4 << 20  # bytes of bodies that one task reads, at most and at least
_PART_ROWS, _SMALL_PART_ROWS = 2_000_000, 100_000  # and rows
_BATCH_ROWS, _BATCH_BYTES = 10_000, 12 << 20  # of a batch with bodies; a larger body has a batch of its own
INDEX_ROWS = 50_000  # of a batch without


def sources_of(columns: Iterable[str]) -> list[str]:
    """The columns of an index that these columns of a table need."""
    return list(dict.fromkeys(source for column in columns for source in SOURCES[column])) or ["state"]


def rows_of(
    pages: Sequence[tuple[int, Page]],
    queue: int,
    wanted: Iterable[str],
    states: Sequence[str] = STATES,
    history: History | None = None,
) -> pa.RecordBatch:
    """The rows of a queue as Arrow columns, ordered by the places of their bodies if those are wanted."""
    wanted = list(wanted)
    state = _joined(pages, lambda page: np.frombuffer(page.state, np.uint8), np.uint8)
    chosen = state if len(states) == len(STATES) else np.isin(state, [STATES.index(each) + 1 for each in states])
    there = None if chosen.all() else np.flatnonzero(chosen)
    place: Column = _numbers(pages, "place") if "place" in wanted else None
    order = there
    if place is not None:
        lying = place if there is None else place[there]
        if (lying[1:] < lying[:-1]).any():
            by_place = np.argsort(lying, kind="stable")
            order = by_place if there is None else there[by_place]
    columns: dict[str, pa.Array] = {}
    for name in wanted:
        if name in _TEXTS:
            columns[name] = _texts(pages, name, order)
            continue
        values = place if name == "place" else _column("seq" if name == "past" else name, pages, state, queue)
        if name == "past":
            columns[name] = _past(values if order is None else values[order], history)
            continue
        columns[name] = pa.array(values if order is None else values[order])
    return pa.record_batch(columns)


def _column(name: str, pages: Sequence[tuple[int, Page]], state: Column, queue: int) -> Column:
    if name == "state":
        return state
    if name == "queue":
        return np.full(len(state), queue, np.int32)
    if name == "seq":
        return _joined(pages, _seqs, np.int64, with_first=True)
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
    """The columns of claimed messages, which may be longer or shorter than the page."""
    values = np.zeros(len(page.state), np.int64)
    if page.claims is not None:
        known = np.frombuffer(getattr(page.claims, name), np.int64)[: len(values)]
        values[: len(known)] = known
    return values


def _texts(pages: Sequence[tuple[int, Page]], name: str, order: Column) -> pa.Array:
    parts = []
    for _, page in pages:
        count = len(page.state)
        if name == "group":
            known = (page.groups or [])[:count]
        else:
            known = [] if page.claims is None else getattr(page.claims, name)[:count]
        parts.append(pa.nulls(count, pa.string()) if not any(known) else _text(known, count))
    texts = pa.concat_arrays(parts) if parts else pa.nulls(0, pa.string())
    return texts if order is None else texts.take(pa.array(order))


def _past(seqs: Column, history: History | None) -> pa.Array:
    """The attempts of each message that are in the history."""
    counts = np.zeros(len(seqs) + 1, np.int32)
    ended: list[Attempt] = []
    if history is not None and (known := history.dump()):
        for at in np.flatnonzero(np.isin(seqs, list(known))).tolist():
            attempts = history.of(int(seqs[at]))
            counts[at + 1] = len(attempts)
            ended += attempts
    offsets = pa.array(np.cumsum(counts, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, _attempts(ended), type=HISTORY.type)


def _attempts(ended: Sequence[Attempt]) -> pa.Array:
    columns = dict(zip(Attempt._fields, zip(*ended, strict=True), strict=True)) if ended else {}
    return pa.StructArray.from_arrays(
        [column_of(columns.get(field.name, ()), field.type) for field in ATTEMPT], fields=list(ATTEMPT)
    )


def _text(known: list[str | None], count: int) -> pa.Array:
    return pa.array(known + [None] * (count - len(known)), pa.string())


# Plans cut into parts, and parts into batches


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one."""
    some = [each for each in batches if len(each)] or batches[:1]  # a table of empty ones has no batches
    return some[0] if len(some) == 1 else pa.Table.from_batches(some).combine_chunks().to_batches()[0]


def parts_of(
    rows: pa.RecordBatch,
    bodies: bool,
    beside: int = 0,
    most: int = _PART_ROWS,
    least: int = _SMALL_PART_ROWS,
    split: int | None = None,
) -> list[pa.RecordBatch]:
    """Parts that take about the same time: `split` of them, or one for each processor if there is enough to do.

    `beside` is what a body costs beside its bytes; a part has at most `most` rows, and `least` are worth a task.
    """
    sizes = rows["size"].to_numpy().astype(np.int64) + beside if bodies else np.ones(len(rows), np.int64)
    sums = np.cumsum(sizes)
    total, size = int(sums[-1]), len(rows)
    worth = max(total // _SMALL_PART if bodies else 0, size // least)
    count = split or max(-(-total // _PART) if bodies else 1, -(-size // most), min(os.cpu_count() or 1, worth), 1)
    cuts = np.searchsorted(sums, [total * number // count for number in range(1, count)], side="right")
    ends = dict.fromkeys([0, *(cut for cut in cuts.tolist() if 0 < cut < size), size])
    return [rows.slice(start, end - start) for start, end in pairwise(ends)]


def batches_of(rows: pa.RecordBatch, bodies: bool) -> Iterator[pa.RecordBatch]:
    """A part cut into batches."""
    count, start, before = len(rows), 0, 0
    if not bodies:
        for start in range(0, count, INDEX_ROWS):
            yield rows.slice(start, INDEX_ROWS)
        return
    ends = np.cumsum(rows["size"].to_numpy(), dtype=np.int64)
    while start < count:
        end = int(np.searchsorted(ends, before + _BATCH_BYTES, side="right"))
        end = min(max(end, start + 1), start + _BATCH_ROWS, count)
        yield rows.slice(start, end - start)
        start, before = end, int(ends[end - 1])


# Columns as a table shows them


def table_of(
    found: Mapping[str, pa.Array], rows: pa.RecordBatch, queues: pa.Array, schema: pa.Schema
) -> pa.RecordBatch:
    """Rows of an index as rows of a table; `found` has the columns that need bodies."""
    columns = [found[name] if name in found else shown(name, rows, queues) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def shown(name: str, rows: pa.RecordBatch, queues: pa.Array) -> pa.Array:
    """A column that needs no body."""
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
    if name == "history":
        return _history(rows)
    if name == "receipt":
        return pa.nulls(len(rows), pa.string())
    if name in ("reason", "group"):
        return rows[name]
    states = {"lease_until": (IN_FLIGHT,), "settled_at": (DONE, FAILED)}.get(name, _CLAIMED)
    applies = np.isin(_numpy(rows["state"]), states)
    if name == "consumer":
        return pc.if_else(pa.array(applies), rows["consumer"], pa.scalar(None, pa.string()))
    if name == "claimed_at":
        return times(_numpy(rows["claimed_at"]), ~applies)
    ends_at = _numpy(rows["ends_at"])
    return times(ends_at, ~applies | (ends_at == 0))  # a stream's lease has no end


def _history(rows: pa.RecordBatch) -> pa.Array:
    """All attempts of each message: those of the past, and that of a message in flight or done."""
    state, past = _numpy(rows["state"]), rows["past"]
    latest = np.isin(state, (IN_FLIGHT, DONE))
    ends = np.cumsum(_numpy(past.value_lengths()) + latest)
    before = past.flatten()
    order = np.zeros(int(ends[-1]) if len(ends) else 0, np.int64)
    order[ends[latest] - 1] = 1
    is_latest = order == 1
    order[is_latest] = len(before) + np.flatnonzero(latest)
    order[~is_latest] = np.arange(len(before))
    values = pa.concat_arrays([before, _latest(rows)]).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends).astype(np.int32)), values, type=HISTORY.type)


def _latest(rows: pa.RecordBatch) -> pa.Array:
    """The attempt of each message in flight or done; it has not come back to its queue since."""
    done = _numpy(rows["state"]) == DONE
    columns = [
        pc.cast(rows["attempts"], pa.int32()),
        rows["consumer"],
        times(_numpy(rows["claimed_at"])),
        times(_numpy(rows["ends_at"]), ~done),
        pc.if_else(pa.array(done), pa.scalar("acked"), pa.scalar(None, pa.string())),
        pa.nulls(len(rows), pa.string()),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(ATTEMPT))


def times(milliseconds: Column, missing: Column | None = None) -> pa.Array:
    """Times in microseconds, at most the end of the year 9999: Spark knows no later ones."""
    return pa.array(np.minimum(milliseconds, LATEST) * 1000, mask=missing).view(TIME)


def _numpy(column: pa.Array) -> Column:
    return column.to_numpy(zero_copy_only=False)


def attempts_of(queue: str, state: State, schema: pa.Schema) -> pa.RecordBatch:
    """A queue's rows in the table of attempts."""
    rows = rows_of(state.pages(), 0, ("seq", *SOURCES["history"]), history=state.history)
    history = _history(rows)
    attempts, seqs = history.flatten(), rows["seq"].take(pc.list_parent_indices(history))
    columns = {"queue": pa.repeat(pa.scalar(queue), len(seqs)), "id": pc.cast(seqs, pa.string())}
    columns |= {field.name: attempts.field(field.name) for field in ATTEMPT}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


# Rows that come one by one


def queue_row(name: str, settings: Settings, counts: Mapping[str, int]) -> dict[str, Any]:
    """A row of the table of queues."""
    labels = None if settings.labels is None else list(settings.labels.items())
    return {"name": name, **asdict(settings), "start": str(settings.start), "labels": labels, **counts}


def attempt_row(queue: str, id: str, attempt: Attempt) -> dict[str, Any]:  # noqa: A002 - the column's name
    """A row of the table of attempts; times are microseconds there."""
    row = {"queue": queue, "id": id, **attempt._asdict()}
    return row | {name: None if row[name] is None else 1000 * row[name] for name in ("claimed_at", "ended_at")}


def rows_as_batch(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as columns; only the wanted ones."""
    return pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)
