"""df.write.format("penstock") into a store that any number of processes may open, as text and folder stores.

Tasks put their rows aside as frames (wire/frames.py), in a folder beside the store's own; the commit opens the
store and puts the messages of each queue in one durable step. A run is remembered once all queues have theirs.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import penstock
from penstock import names
from penstock.clock import SystemClock
from penstock.errors import NotSupported, QueueExists
from penstock.files import SystemDisk, replace_file
from penstock.journal.staging import new_name
from penstock.message import Entry
from penstock.opening import shared_folder
from penstock.settings import Settings
from penstock.spark.errors import in_one_line
from penstock.spark.plans import driver
from penstock.spark.sending import Sender
from penstock.spark.sink import Target, check_columns, task
from penstock.wire.frames import decode_staged

_FOLDER = ".penstock"


@dataclass
class Frames(WriterCommitMessage):
    """What one task has put aside: the queue and the file of each frame, in order."""

    files: list[tuple[str, str]]


class FrameFolder:
    """Where the frames of one task go."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.files: list[tuple[str, str]] = []

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Keep a frame."""
        path = os.path.join(self._folder, f"{part}-{number}")
        with open(path, "xb") as file:
            file.write(frame)
        self.files.append((queue, path))


class SharedWriter(DataSourceArrowWriter):
    """Writes into the queues of a store that it opens when all is there."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema, target)
        if target.restore:
            raise NotSupported("a text or folder store takes new messages only")
        self._target = target
        with penstock.open(target.store) as store:
            there = {info.name: info.settings for info in store.queues()}
            self._queues: dict[str, Settings] = {**target.create, **there}
            if target.queue is not None:
                store.queue(target.queue)  # or say that there is none
        self._home = os.path.join(shared_folder(target.store), _FOLDER)
        self._folder = os.path.join(self._home, "staged", new_name(driver()))
        self._repeated = target.run is not None and os.path.exists(self._run())
        if not self._repeated:
            os.makedirs(self._folder)

    def _run(self) -> str:
        return os.path.join(self._home, "loads", names.file_name(self._target.run or ""))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Frames:
        """Put the rows of one task aside."""
        partition, attempt = task()
        frames = FrameFolder(self._folder)
        if self._repeated:
            return Frames([])
        with in_one_line():
            sender = Sender(frames, "", f"{partition:05}-{attempt}", self._queues, self._target.queue, partition)
            for batch in iterator:
                sender.add(batch)
            sender.finish()
        return Frames(frames.files)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put everything that the tasks have put aside."""
        if self._repeated:
            return
        files: dict[str, list[str]] = {}
        for each in messages:
            for queue, path in each.files if isinstance(each, Frames) else ():
                files.setdefault(queue, []).append(path)
        with in_one_line(), penstock.open(self._target.store) as store:
            now = SystemClock().now()
            for queue, settings in self._target.create.items():
                with suppress(QueueExists):
                    store.create(queue, **settings)
            for queue, paths in files.items():
                store._keeper.put(queue, [entry for path in paths for entry in _entries(path, now)])
            if self._target.run is not None:
                os.makedirs(os.path.dirname(self._run()), exist_ok=True)
                replace_file(SystemDisk(), self._run(), b"")
        self.abort(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing aside."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)


def _entries(path: str, now: int) -> Iterator[Entry]:
    """The entries of a frame; times become what put() is asked for."""
    with open(path, "rb") as file:
        staged = decode_staged(file.read())
    visible_at, expires_at = staged.visible_at, staged.expires_at
    for at, entry in enumerate(staged.entries):
        delay = max((visible_at[at] or 0) - now, 0) / 1000 if visible_at else 0
        if expires_at and expires_at[at] is not None:
            entry = replace(entry, retention=max((expires_at[at] or 0) - now, 1) / 1000)
        yield replace(entry, delay=delay) if delay else entry
