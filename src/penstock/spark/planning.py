"""From what is to be read to the parts that tasks read: the rows of a moment, filtered, cut up, in one file."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.spark import plans
from penstock.spark.options import Options
from penstock.spark.rows import SOURCES, rows_of
from penstock.spark.tables import BODY, attempt_row, queue_row
from penstock.stores.journal.pins import Pins
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.system.clock import SystemClock
from penstock.system.files import File, ReadingDisk

_PART = 96 << 20  # bytes of bodies that one task reads, about
_SMALL_PART = 4 << 20  # and at least, where there are tasks for all processors
_PART_ROWS, _SMALL_PART_ROWS = 2_000_000, 100_000  # the same for tasks that read no bodies
Part = tuple[str, int]  # the path of a plan, and the number of a part in it


def plan(options: Options, schema: pa.Schema) -> list[Part]:
    """The parts of a read, as of now. Their files are pinned for as long as the driver lives."""
    store = StoreSnapshot(options.store, ReadingDisk(), SystemClock().now())
    found = store.settings(options.queue)
    pins = plans.new_plan(options.store)
    try:
        if options.table == "messages":
            return _Messages(store, pins, schema, options.states).parts(list(found))
        rows = _queues(store, found, schema) if options.table == "queues" else _attempts(store, found)
        return _ready(pins, rows, schema)
    except BaseException:
        pins.drop()
        raise


class _Messages:
    """Plans a read of messages."""

    def __init__(self, store: StoreSnapshot, pins: Pins, schema: pa.Schema, states: Sequence[str]) -> None:
        self._store = store
        self._pins = pins
        self._states = states
        self._bodies = bool(BODY.intersection(schema.names))
        self._wanted = sources_of(schema.names)
        self._queues: list[str] = []
        self._files: list[tuple[str, str]] = []  # the name of each pin, and the name that it stands for
        self._disk = ReadingDisk()

    def parts(self, queues: Sequence[str]) -> list[Part]:
        """One part for each task."""
        found = [rows for queue in queues if (rows := self._rows(queue)) is not None and len(rows)]
        if not found:
            self._pins.drop()
            return []
        rows = found[0] if len(found) == 1 else _joined(found)
        names = json.dumps({"queues": self._queues, "files": self._files}).encode()
        path = plans.write(self._pins, list(self._cut(rows)), names)
        return [(path, number) for number in range(len(self._ends))]

    def _rows(self, queue: str) -> pa.RecordBatch | None:
        open_file = self._open_pinned if self._bodies else self._disk.open
        view = self._store.view(queue, open_file, self._pins.unpin if self._bodies else _nothing)
        if view is None:
            return None
        numbers = sorted(each.number for each in view.files)
        pages = view.contents.pages()
        rows = rows_of(pages, numbers, len(self._queues), len(self._files), self._wanted, self._states)
        self._queues.append(queue)
        if self._bodies:
            if not len(rows):
                for each in view.files:
                    self._pins.unpin(each.path)
            files = sorted(view.files, key=lambda each: each.number)
            self._files += [(os.path.basename(each.path), each.name) for each in files]
        return rows

    def _open_pinned(self, path: str) -> File:
        return self._disk.open(self._pins.pin(path))

    def _cut(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows in parts of about the same size, at least one for each processor if there is enough to do."""
        self._ends = ends_of_parts(rows, self._bodies)
        for start, end in zip([0, *self._ends[:-1]], self._ends, strict=True):
            yield rows.slice(start, end - start)


def ends_of_parts(rows: pa.RecordBatch, bodies: bool) -> list[int]:
    """Where parts of rows end that take about the same time, at least one for each processor."""
    if bodies:
        sums = np.cumsum(rows["size"].to_numpy(), dtype=np.int64)
        total, most, least = int(sums[-1]), _PART, _SMALL_PART
    else:
        sums = np.arange(1, len(rows) + 1)
        total, most, least = len(rows), _PART_ROWS, _SMALL_PART_ROWS
    count = max(-(-total // most), min(os.cpu_count() or 1, total // least), 1)
    cuts = np.searchsorted(sums, [total * number // count for number in range(1, count)], side="right")
    return list(dict.fromkeys([*(cut for cut in cuts.tolist() if 0 < cut < len(rows)), len(rows)]))


def sources_of(columns: Sequence[str]) -> list[str]:
    """What of a row is needed for these columns."""
    return list(dict.fromkeys(source for column in columns for source in SOURCES[column])) or ["state"]


def _joined(found: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0]


def _nothing(path: str) -> None:
    """There is nothing to let go of."""


# Tables that are small enough to be made here


def _ready(pins: Pins, rows: list[dict[str, Any]], schema: pa.Schema) -> list[Part]:
    made = pa.RecordBatch.from_pylist(rows, schema=schema)
    if not len(made):
        pins.drop()
        return []
    return [(plans.write(pins, [made], b"null"), 0)]


def _queues(store: StoreSnapshot, found: Mapping[str, Settings], schema: pa.Schema) -> list[dict[str, Any]]:
    counted = not set(STATES).isdisjoint(schema.names)
    disk = ReadingDisk()
    rows = []
    for queue, given in found.items():
        row = queue_row(queue, given)
        if counted:
            view = store.view(queue, disk.open, _nothing)
            if view is None:
                continue
            row |= view.contents.counts()
        rows.append({name: row[name] for name in schema.names})
    return rows


def _attempts(store: StoreSnapshot, queues: Iterable[str]) -> list[dict[str, Any]]:
    disk = ReadingDisk()
    rows = []
    for queue in queues:
        view = store.view(queue, disk.open, _nothing)
        if view is None:
            continue
        for seq in view.contents.attempted():
            rows += [attempt_row(queue, str(seq), *each) for each in view.contents.attempts(seq)]
    return rows
