"""A read of a slate store: a snapshot of it (slate/snapshot.py), and the ranges of keys that tasks scan in it.

Where a message is and in what state, is in records of its queue, which are read here; payloads, headers and the
log are left to tasks. A task is sent the rows it is about, and what it needs to open the same moment.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import QueueNotFound
from penstock.rules.ledger import Ledger
from penstock.spark.options import Options
from penstock.spark.plans import driver
from penstock.spark.rows import SOURCES, rows_of
from penstock.spark.tables import BODY, attempt_row, queue_row
from penstock.stores.slate import extensions, recovery, snapshot
from penstock.stores.slate.format import key_u64, log_prefix, payload_key
from penstock.stores.slate.place import parse
from penstock.stores.slate.view import Snapshot, View
from penstock.system.clock import SystemClock

_PART_BYTES, _SMALL_PART_BYTES = 96 << 20, 4 << 20  # of payloads that one task reads, at most and at least
_PART_ROWS, _SMALL_PART_ROWS = 200_000, 20_000  # the same of rows, which are sent to it
_BESIDE = 200  # bytes that a body costs beside its payload
_LOG_PART, _SMALL_LOG_PART = 500_000, 20_000  # entries of the log
_MOST_LOG_PARTS = 1_000
_OF_JOURNALS = ("file", "offset", "crc")


@dataclass(frozen=True)
class Work:
    """What one task does: find bodies for rows, or read a part of the log; without a moment the rows are all."""

    moment: Snapshot | None
    log: str
    rows: bytes | None  # as an Arrow stream; None: a part of the log
    queues: tuple[str, ...]  # names, of which rows have numbers
    first: int  # of the messages that it is about
    end: int
    filters: tuple[tuple[str, str], ...] | None = None  # of queues: who wants what of the log is asked for


def plan(options: Options, schema: pa.Schema) -> list[Work]:
    """What tasks read, as of now. The moment is held for as long as the driver lives, if they need it."""
    address = parse(options.store)
    moment = snapshot.take(options.store, driver(), objects="payload" in schema.names or options.table == "log")
    needed = False
    try:
        moment, view = snapshot.opened_for(moment, address.log)
        with closing(view):
            if options.table == "log":
                recovery.check_instance(view, address.log)
                works = log_works(view, moment, address.log, 0, log_end(view, address.log))
            else:
                works = _rows(view, moment, address.log, options, schema)
        needed = any(work.moment is not None for work in works)
        return works
    finally:
        if not needed:
            snapshot.drop(moment)


def log_end(view: View, log: str) -> int:
    """Up to where the log is complete; all of it is, if only another program has written it."""
    value = view.get(extensions.LOG_END_KEY)
    return recovery.adoption(view, log).last + 1 if value is None else extensions.decode_log_end(value)


def log_works(view: View, moment: Snapshot, log: str, first: int, end: int) -> list[Work]:
    """The log from one number on and before another, in parts."""
    prefix = log_prefix(log)
    for key, _ in view.scan(prefix + key_u64(first), prefix + key_u64(end)):
        first = int.from_bytes(key[-8:])
        break
    else:
        return []
    return [log_work(moment, log, *cut) for cut in pairwise(log_cuts(first, end))]


def log_cuts(first: int, end: int) -> list[int]:
    """Where parts of the log begin, and the last of them ends."""
    total = end - first
    count = max(-(-total // _LOG_PART), min(os.cpu_count() or 1, total // _SMALL_LOG_PART), 1)
    if count > _MOST_LOG_PARTS:  # most numbers are missing, as in the log of another program
        count = os.cpu_count() or 1
    return [first + total * number // count for number in range(count + 1)]


def log_work(
    moment: Snapshot, log: str, first: int, end: int, filters: tuple[tuple[str, str], ...] | None = None
) -> Work:
    """A part of the log."""
    return Work(_sliced(moment, log, first, end), log, None, (), first, end, filters)


def _sliced(moment: Snapshot, log: str, first: int, end: int) -> Snapshot:
    prefix = log_prefix(log)
    return moment.within((payload_key(first), payload_key(end)), (prefix + key_u64(first), prefix + key_u64(end)))


def _rows(view: View, moment: Snapshot, log: str, options: Options, schema: pa.Schema) -> list[Work]:
    found = recovery.load(view, log)
    sized = options.table == "messages" and BODY.intersection(schema.names)  # tasks and batches are cut by size
    if sized or recovery.has_others(found):
        recovery.measure(found, view, log)
    now = max(SystemClock().now(), found.at)
    ledgers = {name: loaded.ledger for name, loaded in sorted(found.queues.items())}
    if options.queue is not None:
        if options.queue not in ledgers:
            raise QueueNotFound(f"there is no queue {options.queue!r}: create it first")
        ledgers = {options.queue: ledgers[options.queue]}
    for ledger in ledgers.values():
        ledger.state.advance(now)
    if options.table == "messages":
        return _messages(ledgers, moment, log, options.states, schema)
    rows = _queues(ledgers) if options.table == "queues" else _attempts(ledgers)
    if not rows:
        return []
    made = pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)
    return [Work(None, log, _sent(made), (), 0, 0)]


def _queues(ledgers: dict[str, Ledger]) -> list[dict[str, Any]]:
    return [queue_row(name, ledger.settings) | ledger.state.counts() for name, ledger in ledgers.items()]


def _attempts(ledgers: dict[str, Ledger]) -> list[dict[str, Any]]:
    return [
        attempt_row(name, str(seq), *each)
        for name, ledger in ledgers.items()
        for seq in ledger.state.attempted()
        for each in ledger.state.attempts(seq)
    ]


def _messages(
    ledgers: dict[str, Ledger], moment: Snapshot, log: str, states: Sequence[str], schema: pa.Schema
) -> list[Work]:
    bodies = bool(BODY.intersection(schema.names))
    wanted = dict.fromkeys(source for name in schema.names for source in SOURCES[name])
    wanted = {name: None for name in [*wanted, "seq", "size"] if name not in _OF_JOURNALS}
    batches = [
        rows_of(ledger.state.pages(), [], number, 0, wanted, states)
        for number, ledger in enumerate(ledgers.values())
    ]
    batches = [each for each in batches if len(each)]
    if not batches:
        return []
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    if bodies and len(batches) > 1:
        rows = rows.take(pa.array(np.argsort(rows["seq"].to_numpy(), kind="stable")))
    works, names = [], tuple(ledgers)
    for part in _cut(rows, bodies):
        first, end = int(part["seq"][0].as_py()), int(part["seq"][-1].as_py()) + 1
        held = _sliced(moment, log, first, end) if bodies else None
        works.append(Work(held, log, _sent(part), names, first, end))
    return works


def _cut(rows: pa.RecordBatch, bodies: bool) -> Iterable[pa.RecordBatch]:
    """Rows in parts of about the same size, at least one for each processor if there is enough to do."""
    sizes = rows["size"].to_numpy().astype(np.int64) + _BESIDE if bodies else np.zeros(len(rows), np.int64)
    sums = np.cumsum(sizes)
    total = int(sums[-1])
    count = max(
        -(-total // _PART_BYTES),
        -(-len(rows) // _PART_ROWS),
        min(os.cpu_count() or 1, max(total // _SMALL_PART_BYTES, len(rows) // _SMALL_PART_ROWS)),
        1,
    )
    if bodies:
        cuts = np.searchsorted(sums, [total * number // count for number in range(1, count)], side="right")
    else:
        cuts = np.array([len(rows) * number // count for number in range(1, count)], np.int64)
    ends = list(dict.fromkeys([*(cut for cut in cuts.tolist() if 0 < cut < len(rows)), len(rows)]))
    return [rows.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _sent(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())
