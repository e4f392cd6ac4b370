"""df.write.format("penstock") into a store that any number of processes may open, as text and folder stores.

Tasks put their rows aside as frames (wire/frames.py), durably, in a folder beside the store's own; the commit
opens the store and puts the messages of each queue in one durable step, after which the run remembers that queue.
So a driver that is killed leaves each queue with all of its messages or with none. What it had put aside is
removed by the next that writes to the store.
"""

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import penstock
from penstock.contract import names
from penstock.contract.message import Entry, Moved
from penstock.contract.operations import Put
from penstock.contract.settings import Settings
from penstock.contract.urls import is_file, shared_folder
from penstock.errors import QueueExists
from penstock.spark.errors import in_one_line
from penstock.spark.plans import driver
from penstock.spark.sending import Sender
from penstock.spark.sink import Target, check_columns, task
from penstock.stores.folder.shared import SystemNeighbours, process_name
from penstock.stores.journal.staging import remove_folder
from penstock.system.clock import SystemClock
from penstock.system.files import Disk, SystemDisk, make_folder, replace_file
from penstock.wire.frames import decode_staged

_FOLDER = ".penstock"
_DAY = 86_400.0  # seconds of silence after which a driver of another host is taken for dead
_COMPLETE = ""  # no queue's name


@dataclass
class Frames(WriterCommitMessage):
    """What one task has put aside: the queue and the file of each frame, in order."""

    files: list[tuple[str, str]]


class FrameFolder:
    """Where the frames of one task go."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self.files: list[tuple[str, str]] = []

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Keep a frame."""
        path = os.path.join(self._folder, f"{part}-{number}")
        with self._disk.open(path, exclusive=True) as file:
            file.write(0, frame)
            file.sync()  # a task may run on another machine, which may stop before the commit
        self.files.append((queue, path))

    def finish(self) -> None:
        """Make the names of all frames durable."""
        self._disk.sync_folder(self._folder)


class Run:
    """What is remembered of a run that may be repeated: the queues that have their messages.

    The file is a JSON object: messages and bytes of each queue. A list of queues is what was written before.
    """

    def __init__(self, disk: Disk, store: str, run: str | None) -> None:
        self._disk = disk
        home = os.path.join(shared_folder(store), _FOLDER)
        self._path = None if run is None else os.path.join(home, "loads", names.file_name(run))
        self.queues: dict[str, list[int | None]] = {}
        if self._path is not None and disk.exists(self._path):
            with disk.open(self._path) as file:
                found = json.loads(file.read(0, file.size()) or json.dumps([_COMPLETE]))
            self.queues = found if isinstance(found, dict) else {name: [None, None] for name in found}

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do."""
        return _COMPLETE in self.queues

    def brought(self) -> list[list[Any]]:
        """The messages and bytes that came into each queue; None where an older version has not noted them."""
        return [[queue, *numbers] for queue, numbers in sorted(self.queues.items()) if queue != _COMPLETE]

    def remember(self, queue: str = _COMPLETE, messages: int = 0, size: int = 0) -> None:
        """Durably note that a queue has its messages, or that all have."""
        self.queues[queue] = [messages, size]
        if self._path is not None:
            make_folder(self._disk, os.path.dirname(self._path))
            replace_file(self._disk, self._path, json.dumps(self.queues).encode())


class SharedWriter(DataSourceArrowWriter):
    """Writes into the queues of a store that it opens when all is there."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema, target)
        self._target = target
        with penstock.open(target.store) as store:
            there = {info.name: info.settings for info in store.queues()}
            if is_file(target.store):
                there[names.DEFAULT] = store.queue().settings  # as its only queue is called, too
            self._queues: dict[str, Settings] = {**target.create, **there}
            if target.queue is not None:
                store.queue(target.queue)  # or say that there is none
        disk = SystemDisk()
        self._home = os.path.join(shared_folder(target.store), _FOLDER)
        staged = os.path.join(self._home, "staged")
        remove_left(disk, staged)
        self._folder = os.path.join(staged, f"{process_name(driver())}.{secrets.token_hex(8)}")
        self._repeated = Run(disk, target.store, target.run).is_complete
        if not self._repeated:
            make_folder(disk, self._folder)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Frames:
        """Put the rows of one task aside."""
        partition, attempt = task()
        if self._repeated:
            return Frames([])
        frames = FrameFolder(SystemDisk(), self._folder)
        with in_one_line():
            part, target = f"{partition:05}-{attempt}", self._target
            sender = Sender(frames, "", part, self._queues, target.queue, partition, target.restore)
            for batch in iterator:
                sender.add(batch)
            sender.finish()
            frames.finish()
        return Frames(frames.files)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put everything that the tasks have put aside, queue by queue."""
        if self._repeated:
            return
        disk = SystemDisk()
        files: dict[str, list[str]] = {}
        for each in messages:
            for queue, path in each.files if isinstance(each, Frames) else ():
                files.setdefault(queue, []).append(path)
        with in_one_line(), penstock.open(self._target.store) as store:
            run, now = Run(disk, self._target.store, self._target.run), SystemClock().now()
            for queue, settings in self._target.create.items():
                with suppress(QueueExists):
                    store.create(queue, **settings)
            for queue, paths in files.items():
                if queue not in run.queues:
                    entries = [entry for path in paths for entry in _entries(disk, path, now)]
                    _take_in(store, queue, entries)
                    run.remember(queue, len(entries), sum(len(entry.payload) for entry in entries))
            run.remember()
        self.abort(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing aside."""
        remove_folder(SystemDisk(), self._folder)


def remove_left(disk: Disk, staged: str) -> None:
    """Remove what drivers have put aside that are gone."""
    neighbours = SystemNeighbours()
    for name in disk.listdir(staged) if disk.exists(staged) else []:
        folder = os.path.join(staged, name)
        with suppress(FileNotFoundError):  # another was quicker
            silent = neighbours.idle(disk.status(folder).changed)
            if neighbours.is_gone(name, silent if silent > _DAY else 0):
                remove_folder(disk, folder)


def _take_in(store: penstock.Store, queue: str, entries: list[Entry]) -> None:
    """Put messages of one queue in one durable step, or let them come as they were in another store."""
    backend: Any = store.backend
    moved = [entry for entry in entries if isinstance(entry, Moved)]
    if not moved:
        backend.run(Put(queue, entries))
    else:
        backend.restore(queue, moved)


def _entries(disk: Disk, path: str, now: int) -> Iterator[Entry]:
    """The entries of a frame; times become what put() is asked for."""
    with disk.open(path) as file:
        staged = decode_staged(file.read(0, file.size()))
    visible_at, expires_at = staged.visible_at, staged.expires_at
    for at, entry in enumerate(staged.entries):
        if staged.restored is not None:
            past = {name: column[at] for name, column in staged.restored._asdict().items()}
            past["history"] = past["history"] or ()
            times = {"visible_at": visible_at, "expires_at": expires_at}
            past |= {name: column[at] for name, column in times.items() if column}
            yield Moved(entry.payload, entry.priority, entry.headers, created_at=entry.created_at, **past)
            continue
        delay = max((visible_at[at] or 0) - now, 0) / 1000 if visible_at else 0
        if expires_at and expires_at[at] is not None:
            entry = replace(entry, retention=max((expires_at[at] or 0) - now, 1) / 1000)
        yield replace(entry, delay=delay) if delay else entry
