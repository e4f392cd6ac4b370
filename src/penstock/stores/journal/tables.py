"""Tables of journal stores for Spark: the rows of a snapshot, cut up and pinned when a read is planned.

A plan is a folder with the pins of a read and an Arrow file with the rows of its tasks. It belongs to the process
that drives Spark, because the one that makes it ends before the tasks begin. Spark does not say when a DataFrame
is no longer used, so a plan is dropped when its process ends, or when it was not used for long.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.contract.streams import Ahead, BatchPlan, StreamInfo
from penstock.contract.tables import Opener, Part, Read, Tables, Target
from penstock.engine.arrow_columns import (
    BODY,
    INDEX_ROWS,
    attempts_of,
    batches_of,
    joined,
    parts_of,
    queue_row,
    rows_as_batch,
    rows_of,
    shown,
    sources_of,
    table_of,
    times,
)
from penstock.engine.backend import check_start
from penstock.errors import PenstockError
from penstock.stores.journal.catalog import FOLDER, Catalog
from penstock.stores.journal.files import PLACE_BITS
from penstock.stores.journal.follow import Follower
from penstock.stores.journal.kind import dialect_of, folder_of
from penstock.stores.journal.loader import JournalLoader
from penstock.stores.journal.loads import read_run
from penstock.stores.journal.pins import Pins, drop_plan, sweep
from penstock.stores.journal.reading import Item
from penstock.stores.journal.scan import Scan
from penstock.stores.journal.snapshot import QueueSnapshot, SegmentFile, StoreSnapshot
from penstock.system.clock import SystemClock
from penstock.system.files import File, ReadingDisk, SystemDisk

ROWS = "rows.arrow"
_UNUSED = 24 * 3600  # seconds after which a plan that no task has read is dropped
_IN_USE = 600  # seconds for which a plan is kept in any case
_MOST = 1_000  # plans of one process
_MOST_BYTES = 1 << 30  # of the rows of its plans
_OFFSET = np.uint64((1 << PLACE_BITS) - 1)


class JournalTables(Tables):
    """The tables of journal stores."""

    has_history = True

    def check_settings(self, settings: Settings) -> None:
        check_start(settings)

    def parts(self, read: Read, schema: pa.Schema, owner: int) -> Sequence[Part]:
        folder, store = folder_of(read.store), _snapshot(read.store)
        found = store.settings(read.queue)
        pins = new_plan(folder, owner)
        try:
            if read.table == "messages":
                return _Messages(store, pins, schema, read).parts(list(found))
            if read.table == "queues":
                made = rows_as_batch(_queues(store, found, schema), schema)
            else:
                made = joined([rows_as_batch((), schema), *_attempts(store, found, schema)])
            if not len(made):
                pins.drop()
                return []
            if not os.path.isdir(os.path.join(folder, FOLDER)):  # Kestrel left the folder: make nothing there
                return [RowsPart(made)]
            pins.make()
            return write_plan(pins.folder, parts_of(made, bodies=False), None)
        except BaseException:
            pins.drop()
            raise

    def loader(self, target: Target, owner: int, opened: Opener) -> JournalLoader:
        return JournalLoader(target, owner, opened)

    def check(self, store: str) -> None:
        _snapshot(store)

    def settings(self, store: str, opened: Opener) -> dict[str, Settings]:
        return _snapshot(store).settings()

    def streams(self, store: str, opened: Opener) -> list[StreamInfo]:
        disk, found, snapshot = ReadingDisk(), [], _snapshot(store)
        for queue in snapshot.settings():
            view = snapshot.view(queue, disk.open, _nothing)
            if view is not None:
                found += view.contents.streams.all()
        return found

    def brought(self, store: str, run: str, opened: Opener) -> list[list[Any]] | None:
        disk = ReadingDisk()
        load = read_run(disk, Catalog(folder_of(store), disk), run)
        return None if load is None else [list(each) for each in load.brought()]

    def follower(self, store: str, queue: str, schema: pa.Schema, owner: int) -> "FileFollower":
        _snapshot(store).check_ours(queue)
        return FileFollower(folder_of(store), queue, schema, owner)

    def batch_files(
        self, plan: BatchPlan, rows: Sequence[pa.RecordBatch], queue: str, receipt: tuple[str, str]
    ) -> "PinnedBatch | None":
        if not plan.files:
            return None
        folder = os.path.dirname(plan.files[0][2])
        numbers = sorted(number for number, _, _ in plan.files)
        files = [(os.path.basename(path), name) for _, name, path in sorted(plan.files)]
        parts = [_in_order(located(part, numbers), "file", "offset") for part in rows]
        try:
            names = {"queues": [queue], "files": files, "receipt": receipt}
            return PinnedBatch(write_plan(folder, parts, names), folder)
        except OSError:  # on another machine, or of another user: then the owner is asked for the messages
            return None


def _snapshot(url: str) -> StoreSnapshot:
    return StoreSnapshot(folder_of(url), ReadingDisk(), SystemClock().now(), kestrel=dialect_of(url))


# Plans


def new_plan(store: str, owner: int) -> Pins:
    """The pins for a new plan, after unused plans are dropped."""
    sweep(store, SystemDisk())
    pins = Pins(store, owner)
    _drop_unused(pins.owner)
    return pins


def _drop_unused(owner: str) -> None:
    disk, now, total = SystemDisk(), time.time(), 0
    plans: list[tuple[float, str]] = []
    with suppress(FileNotFoundError), os.scandir(owner) as found:
        for each in found:
            with suppress(FileNotFoundError):
                plans.append((each.stat().st_mtime, each.path))
    for number, (used, path) in enumerate(sorted(plans, reverse=True)):
        with suppress(FileNotFoundError):
            total += os.stat(os.path.join(path, ROWS)).st_size
        many = number >= _MOST or total > _MOST_BYTES
        if now - used > _UNUSED or (many and now - used > _IN_USE):
            drop_plan(path, disk)


def write_plan(
    folder: str, parts: Sequence[pa.RecordBatch], names: Mapping[str, Any] | None, file_name: str = ROWS
) -> list["PlanPart"]:
    """Write the parts of a plan beside its pins. Without `names` the rows are those of the table."""
    path = os.path.join(folder, file_name)
    metadata = {"penstock": json.dumps(names).encode()}
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, parts[0].schema.with_metadata(metadata)) as to:
        for part in parts:
            to.write_batch(part)
    return [PlanPart(path, number) for number in range(len(parts))]


class PlanPart(NamedTuple):
    """A part of a plan, by its number."""

    path: str
    number: int

    def exists(self) -> bool:
        """Whether this machine has the plan."""
        return os.path.exists(self.path)

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of the snapshot."""
        folder = os.path.dirname(self.path)
        try:
            with pa.memory_map(self.path) as file:
                plan = pa.ipc.open_file(file)
                rows = plan.get_batch(self.number)
                os.utime(folder)  # marks it as used
        except FileNotFoundError:
            raise PenstockError(
                f"the plan of this DataFrame is gone ({self.path!r}), as it was not used for long: load() it again"
            ) from None
        names = json.loads(plan.schema.metadata[b"penstock"])
        if not names:
            for start in range(0, len(rows), INDEX_ROWS):
                yield rows.slice(start, INDEX_ROWS).replace_schema_metadata(None)
            return
        queues = pa.array(names["queues"], pa.string())
        scan = Scan(folder, names["queues"], names["files"])
        wanted = BODY.intersection(schema.names)
        for part in batches_of(rows, bool(wanted)):
            found = scan.columns(part, wanted) if wanted else {}
            if "receipt" in names and "receipt" in schema.names:
                before, after = names["receipt"]
                found["receipt"] = pc.binary_join_element_wise(before, shown("id", part, queues), after, "")
            yield table_of(found, part, queues, schema)


def located(rows: pa.RecordBatch, files: Sequence[int], first: int = 0) -> pa.RecordBatch:
    """Rows with `file` and `offset` instead of `place`. `files`, ascending, are numbered from `first` on."""
    if "place" not in rows.schema.names:
        return rows
    place, numbers = rows["place"].to_numpy(), np.array(files, np.uint64)
    file = (np.searchsorted(numbers, place >> np.uint64(PLACE_BITS)) + first).astype(np.int32)
    columns = {"file": pa.array(file), "offset": pa.array((place & _OFFSET).astype(np.int64))}
    kept = {name: rows[name] for name in rows.schema.names if name != "place"}
    return pa.record_batch({**kept, **columns})


def _in_order(rows: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    columns = [rows[name].to_numpy() for name in names]
    order = np.lexsort(columns[::-1])
    return rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))


class RowsPart(NamedTuple):
    """Rows of a table that travel with the task."""

    rows: pa.RecordBatch

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows."""
        for start in range(0, len(self.rows), INDEX_ROWS):
            yield self.rows.slice(start, INDEX_ROWS)


class KestrelPart(NamedTuple):
    """Messages in files that Kestrel left. They are not pinned: that would change the folder."""

    queue: str
    files: list[SegmentFile]
    rows: bytes  # of the queue's index, as an Arrow stream; with bodies also the items' places

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with payloads from the files."""
        queues = pa.array([self.queue], pa.string())
        with ExitStack() as stack, pa.ipc.open_stream(self.rows) as stream:
            wanted = BODY.intersection(schema.names)
            files = [stack.enter_context(closing(_open_same(each))) for each in self.files] if wanted else []
            for part in batches_of(stream.read_next_batch(), bool(wanted)):
                found: dict[str, pa.Array] = {}
                if "payload" in wanted:
                    places = zip(*(part[name].to_pylist() for name in ("file", "offset", "size")), strict=True)
                    payloads = [_read(files[file], offset, size) for file, offset, size in places]
                    found["payload"] = pa.array(payloads, pa.binary())
                if "headers" in wanted:
                    found["headers"] = pa.array([[]] * len(part), schema.field("headers").type)
                for name in wanted.intersection(("created_at", "received_at")):
                    found[name] = times(part["added"].to_numpy())
                yield table_of(found, part, queues, schema)


def _as_stream(rows: pa.RecordBatch) -> bytes:
    """Rows for another process. A pickled slice would take along all that it is a slice of."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


def _read(file: File, offset: int, size: int) -> bytes:
    data = file.read(offset, size)
    if len(data) < size:
        raise _changed(file.path)
    return data


def _open_same(file: SegmentFile) -> File:
    """Open a file of Kestrel's; an error if it is not the one that was planned."""
    with suppress(FileNotFoundError):
        opened = ReadingDisk().open(file.path)
        if opened.status().inode == file.inode:
            return opened
        opened.close()
    raise _changed(file.path)


def _changed(path: str) -> PenstockError:
    return PenstockError(
        f"{path!r} has changed since this DataFrame was planned: Kestrel, or a process that opened the "
        "folder with Penstock, has written the journal anew. load() it again"
    )


class _Messages:
    """Plans a read of messages."""

    def __init__(self, store: StoreSnapshot, pins: Pins, schema: pa.Schema, read: Read) -> None:
        self._store = store
        self._pins = pins
        self._states, self._split = read.states, read.split
        self._bodies = bool(BODY.intersection(schema.names))
        self._wanted = sources_of(schema.names)
        self._queues: list[str] = []
        self._files: list[tuple[str, str]] = []  # the name of each pin, and of the file
        self._disk = ReadingDisk()

    def parts(self, queues: Sequence[str]) -> list[Part]:
        """One part for each task."""
        parts: list[Part] = []
        found: list[pa.RecordBatch] = []
        for queue in queues:
            open_file = self._open_pinned if self._bodies else self._disk.open
            view = self._store.view(queue, open_file, self._pins.unpin if self._bodies else _nothing)
            if view is not None and view.items is not None:
                parts += self._kestrel_parts(queue, view, view.items)
            elif view is not None and len(rows := self._rows(queue, view)):
                found.append(rows)
        if not found:
            self._pins.drop()
            return parts
        self._pins.make()
        names = {"queues": self._queues, "files": self._files}
        written = write_plan(self._pins.folder, parts_of(joined(found), self._bodies, split=self._split), names)
        return [*parts, *written]

    def _kestrel_parts(self, queue: str, view: QueueSnapshot, items: Mapping[int, Item]) -> list[KestrelPart]:
        wanted = dict.fromkeys(["seq", "size", *self._wanted])
        contents, names = view.contents, [name for name in wanted if name != "place"]
        rows = rows_of(contents.pages(), 0, names, self._states, contents.history)
        if not len(rows):
            return []
        if self._bodies:
            there = [items[seq] for seq in rows["seq"].to_pylist()]
            numbers = {each.number: position for position, each in enumerate(view.files)}
            columns = {name: rows[name] for name in rows.schema.names}
            columns["file"] = pa.array([numbers[item.segment] for item in there], pa.int32())
            columns["offset"] = pa.array([item.offset for item in there], pa.int64())
            columns["added"] = pa.array([item.added for item in there], pa.int64())
            rows = pa.record_batch(columns)
        return [KestrelPart(queue, view.files, _as_stream(part)) for part in parts_of(rows, self._bodies)]

    def _rows(self, queue: str, view: QueueSnapshot) -> pa.RecordBatch:
        contents = view.contents
        rows = rows_of(contents.pages(), len(self._queues), self._wanted, self._states, contents.history)
        rows = located(rows, sorted(each.number for each in view.files), len(self._files))
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


def _nothing(path: str) -> None:
    """For files that are not pinned."""


def _queues(store: StoreSnapshot, found: Mapping[str, Settings], schema: pa.Schema) -> Iterator[dict[str, Any]]:
    counted = not set(STATES).isdisjoint(schema.names)
    disk = ReadingDisk()
    for queue, given in found.items():
        counts: dict[str, int] = {}
        if counted:
            view = store.view(queue, disk.open, _nothing)
            if view is None:
                continue
            counts = view.contents.counts()
        yield queue_row(queue, given, counts)


def _attempts(store: StoreSnapshot, queues: Iterable[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    disk = ReadingDisk()
    for queue in queues:
        view = store.view(queue, disk.open, _nothing)
        if view is not None:
            yield attempts_of(queue, view.contents, schema)


# Streams


class PinnedBatch(NamedTuple):
    """The messages of a stream's batch, in files that its owner has pinned."""

    parts: list[PlanPart]
    folder: str

    def drop(self) -> None:
        with suppress(PenstockError):
            drop_plan(self.folder, SystemDisk())


class FileFollower:
    """Follows the files of a queue, pinned for a process: tasks read bodies straight from them."""

    def __init__(self, folder: str, queue: str, schema: pa.Schema, owner: int) -> None:
        self._folder, self._queue, self._owner = folder, queue, owner
        self._wanted = list(dict.fromkeys(["seq", *sources_of([*schema.names, "payload"])]))
        self._follower: Follower | None = None
        self._plans: list[str] = []

    def start(self, starting: str | int) -> tuple[int, int]:
        with closing(self._new()) as follower:
            return follower.start(starting)

    def has_read(self, position: int) -> None:
        while self._plans:
            with suppress(FileNotFoundError):
                os.unlink(self._plans.pop())

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead:
        return self._following(after).ahead(after, gaps, rows, size, until)

    def parts(self, after: int, until: int, ahead: Ahead) -> list[PlanPart]:
        follower = self._following(after)
        pages = follower.entries.pages(after, until)
        if not pages:
            return []
        files = follower.names()
        rows = located(rows_of(pages, 0, self._wanted), sorted(files))
        names = {"queues": [self._queue], "files": [files[number] for number in sorted(files)]}
        found = write_plan(follower.pins.folder, parts_of(rows, bodies=True), names, f"{after}-{until}.arrow")
        self._plans.append(found[0].path)
        return found

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _following(self, after: int) -> Follower:
        follower = self._follower
        if follower is not None and after < follower.begin:
            follower.close()
            follower = None
        if follower is None:
            follower = self._follower = self._new()
            follower.follow(after)
        return follower

    def _new(self) -> Follower:
        return Follower(self._folder, self._queue, self._owner)
