"""Spark tables and loads of text and folder stores: any process may open the store, so each task does.

A read is a listing of the queue, not a snapshot. A load stages rows durably as frames (wire/frames.py) in the
folder `.penstock` of the store. Its commit opens the store, puts the messages of each queue in one durable step,
and then records the queue in the run's file. So a driver that is killed leaves each queue with all of its messages
or with none. The next load into the store removes frames of drivers that died.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from penstock.contract import names
from penstock.contract.arrow import messages_as_batch
from penstock.contract.kinds import Options, kind_of, split
from penstock.contract.loads import SinkCommit
from penstock.contract.message import STATES, Entry, Moved
from penstock.contract.operations import PAGE, Attempts, Create, Lookup, Messages, Put, Queues
from penstock.contract.settings import Settings
from penstock.contract.tables import Opener, Read, Staged, Tables, Target, grouped
from penstock.engine.arrow_columns import attempt_row, queue_row, rows_as_batch
from penstock.engine.arrow_rows import send
from penstock.engine.backend import check_start
from penstock.errors import QueueExists, QueueNotFound
from penstock.stores.folder.shared import SystemNeighbours, process_name
from penstock.system.clock import SystemClock
from penstock.system.files import Disk, ReadingDisk, SystemDisk, make_folder, remove_folder, replace_file
from penstock.wire.frames import decode_staged

_FOLDER = ".penstock"
_DAY = 86_400.0  # seconds without a change after which a driver of another host is taken for dead
_COMPLETE = ""  # marks a complete run in its file; no queue has this name
_BATCH = 2_000  # messages


def opened(store: str) -> Any:
    """The backend of a store."""
    return kind_of(store).open(store, Options())


class UnownedTables(Tables):
    """The tables of text and folder stores."""

    def check_settings(self, settings: Settings) -> None:
        check_start(settings)

    def parts(self, read: Read, schema: pa.Schema, owner: int) -> Sequence["QueuesPart"]:
        with closing(opened(read.store)) as backend:
            sizes, part = backend.sizes(read.queue), backend.part
        if read.table == "queues":
            return [QueuesPart(self, read, ())]
        found = grouped([(name, size) for name, size in sizes.items() if size], part)
        return [QueuesPart(self, read, tuple(queues)) for queues in found]

    def messages(self, backend: Any, queue: str, read: Read, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages of a queue, by a listing."""
        listed = backend.run(Messages(queue, PAGE, state=read.states[0] if len(read.states) == 1 else None))
        while some := list(islice(listed, _BATCH)):
            if len(read.states) < len(STATES):
                some = [message for message in some if message.state in read.states]
            yield messages_as_batch(some, schema)

    def loader(self, target: Target, owner: int, opened: Opener) -> "FrameLoader":
        return FrameLoader(target, owner)

    def brought(self, store: str, run: str, opened: Opener) -> list[list[Any]] | None:
        known = Run(ReadingDisk(), store, run)
        return known.brought() if known.is_complete else None


@dataclass(frozen=True)
class QueuesPart:
    """A part of a table: whole queues."""

    tables: UnownedTables
    asked: Read
    queues: tuple[str, ...]

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of the queues."""
        with closing(opened(self.asked.store)) as backend:
            if self.asked.table == "queues":
                infos = [info for info in backend.run(Queues()) if self.asked.queue in (None, info.name)]
                yield rows_as_batch((queue_row(info.name, info.settings, info.counts) for info in infos), schema)
            for queue in self.queues:
                with suppress(QueueNotFound):  # deleted meanwhile
                    rows = _attempts if self.asked.table == "attempts" else self.tables.messages
                    yield from rows(backend, queue, self.asked, schema)


def _attempts(backend: Any, queue: str, read: Read, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    listed = backend.run(Messages(queue, PAGE))
    while some := list(islice(listed, _BATCH)):
        yield rows_as_batch(
            (
                attempt_row(queue, message.id, attempt)
                for message in some
                for attempt in backend.run(Attempts(queue, message.id))
            ),
            schema,
        )


# Loads


class FrameFolder:
    """The staged frames of one task."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self.files: list[tuple[str, str]] = []  # the queue and the path of each frame

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Write and sync a frame."""
        path = os.path.join(self._folder, f"{part}-{number}")
        with self._disk.open(path, exclusive=True) as file:
            file.write(0, frame)
            file.sync()  # a task may run on another machine, which may stop before the commit
        self.files.append((queue, path))

    def finish(self) -> None:
        """Sync the names of all frames."""
        self._disk.sync_folder(self._folder)


class Run:
    """The file of a load that may be repeated: the queues that have its messages.

    The file is a JSON object: messages and bytes of each queue. Earlier versions wrote a list of queues.
    """

    def __init__(self, disk: Disk, store: str, run: str | None) -> None:
        self._disk = disk
        self._path = None if run is None else os.path.join(_home(store), "loads", names.file_name(run))
        self.queues: dict[str, list[int | None]] = {}
        if self._path is not None and disk.exists(self._path):
            with disk.open(self._path) as file:
                found = json.loads(file.read(0, file.size()) or json.dumps([_COMPLETE]))
            self.queues = found if isinstance(found, dict) else {name: [None, None] for name in found}

    @property
    def is_complete(self) -> bool:
        """Whether all queues have their messages."""
        return _COMPLETE in self.queues

    def brought(self) -> list[list[Any]]:
        """The number of messages and bytes that each queue got; None in files of earlier versions."""
        return [[queue, *numbers] for queue, numbers in sorted(self.queues.items()) if queue != _COMPLETE]

    def remember(self, queue: str = _COMPLETE, messages: int = 0, size: int = 0) -> None:
        """Durably record that a queue has its messages, or that the run is complete."""
        self.queues[queue] = [messages, size]
        if self._path is not None:
            make_folder(self._disk, os.path.dirname(self._path))
            replace_file(self._disk, self._path, json.dumps(self.queues).encode())


def _home(store: str) -> str:
    """The folder of a store's loads."""
    path = os.path.abspath(split(store)[1])
    return os.path.join(os.path.dirname(path) if path.lower().endswith(".tq") else path, _FOLDER)


class FrameLoader:
    """Stages rows of tasks as frames; the commit opens the store and puts them."""

    def __init__(self, target: Target, owner: int) -> None:
        self._target = target
        with closing(opened(target.store)) as backend:
            there = {info.name: info.settings for info in backend.run(Queues())}
            for queue in (names.DEFAULT, *([] if target.queue is None else [target.queue])):
                there[queue] = backend.run(Lookup(queue))  # QueueNotFound before any row is staged
            self._queues: dict[str, Settings] = {**target.create, **there}
        disk, staged = SystemDisk(), os.path.join(_home(target.store), "staged")
        remove_left(disk, staged)
        self._folder = os.path.join(staged, f"{process_name(owner)}.{secrets.token_hex(8)}")
        self.repeated = Run(disk, target.store, target.run).is_complete
        if not self.repeated:
            make_folder(disk, self._folder)

    def stage(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> Staged:
        frames = FrameFolder(SystemDisk(), self._folder)
        send(frames, "", self._target, self._queues, batches, partition, attempt)
        frames.finish()
        return Staged(self._folder, frames.files)

    def commit(self, staged: Sequence[Staged], batch: Callable[[], SinkCommit] | None = None) -> None:
        disk, target = SystemDisk(), self._target
        files: dict[str, list[str]] = {}
        for each in staged:
            for queue, path in each.pieces:
                files.setdefault(queue, []).append(path)
        with closing(opened(target.store)) as backend:
            run, now = Run(disk, target.store, target.run), SystemClock().now()
            # A dead-letter queue exists before the queues that name it.
            for queue, settings in sorted(target.create.items(), key=lambda each: each[1].dead_letter is not None):
                with suppress(QueueExists):
                    backend.run(Create(queue, settings))
            for queue, paths in files.items():
                if queue not in run.queues:
                    entries = [entry for path in paths for entry in _entries(disk, path, now)]
                    _take_in(backend, queue, entries)
                    run.remember(queue, len(entries), sum(len(entry.payload) for entry in entries))
            run.remember()
        self.abort(staged)

    def abort(self, staged: Sequence[Staged]) -> None:
        remove_folder(SystemDisk(), self._folder)


def remove_left(disk: Disk, staged: str) -> None:
    """Remove staged frames of drivers that have ended."""
    neighbours = SystemNeighbours()
    for name in disk.listdir(staged) if disk.exists(staged) else []:
        folder = os.path.join(staged, name)
        with suppress(FileNotFoundError):  # another load has just removed it
            silent = neighbours.idle(disk.status(folder).changed)
            if neighbours.is_gone(name, silent if silent > _DAY else 0):
                remove_folder(disk, folder)


def _take_in(backend: Any, queue: str, entries: list[Entry]) -> None:
    """Put messages of one queue, or restore messages of another store, in one durable step."""
    if moved := [entry for entry in entries if isinstance(entry, Moved)]:
        backend.restore(queue, moved)
    else:
        backend.run(Put(queue, entries))


def _entries(disk: Disk, path: str, now: int) -> Iterator[Entry]:
    """The entries of a frame; visible_at and expires_at become the delay and the retention of a put."""
    with disk.open(path) as file:
        staged = decode_staged(file.read(0, file.size()))
    visible_at, expires_at = staged.visible_at, staged.expires_at
    for at, entry in enumerate(staged.entries):
        if staged.restored is not None:
            past = {name: column[at] for name, column in staged.restored._asdict().items()}
            past["history"] = past["history"] or ()
            times = {"visible_at": visible_at, "expires_at": expires_at}
            past |= {name: column[at] for name, column in times.items() if column}
            past |= {"created_at": entry.created_at, "group": entry.group}
            yield Moved(entry.payload, entry.priority, entry.headers, **past)
            continue
        delay = max((visible_at[at] or 0) - now, 0) / 1000 if visible_at else 0
        if expires_at and expires_at[at] is not None:
            entry = replace(entry, retention=max((expires_at[at] or 0) - now, 1) / 1000)
        yield replace(entry, delay=delay) if delay else entry
