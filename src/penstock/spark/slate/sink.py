"""df.write.format("penstock") into a slate store: tasks stage frames beside it, and its owner takes all of them.

The commit asks whoever has the store open, or opens it. Until then nothing is to be seen; from when the owner has
written that the load is there, all of it will be, whatever happens (slate/loads.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.contract.operations import Lookup, Queues
from penstock.contract.settings import Settings
from penstock.errors import QueueFull, QueueNotFound, StreamMismatch
from penstock.sharing.backend import SharedBackend, open_shared
from penstock.spark.errors import in_one_line
from penstock.spark.plans import driver
from penstock.spark.sending import Sender
from penstock.spark.sink import Target, check_columns, task
from penstock.stores.owner_operations import SlateOwner
from penstock.stores.slate.loads import Frame, Load, is_done, new_name
from penstock.stores.slate.place import Place
from penstock.stores.slate.recovery import PRIORITIES
from penstock.stores.slate.snapshot import place_at
from penstock.wire.frames import decode_columns

_COMMITTING = "committing"  # from here on only the owner may remove what is staged


@dataclass
class Frames(WriterCommitMessage):
    """What one task has staged, in order, and in which load."""

    load: str
    frames: list[Frame]


class Stager:
    """Takes the frames of one task."""

    def __init__(self, place: Place, load: str) -> None:
        self._place = place
        self._load = load
        self.frames: list[Frame] = []

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Keep a frame."""
        name = f"{part}-{number}"
        self._place.stage(self._load, name, frame)
        columns, payloads = decode_columns(frame)
        done = is_done(columns.get("state"))
        self.frames.append(Frame(queue, name, len(payloads), sum(map(len, payloads)), done))


class SlateWriter(DataSourceArrowWriter):
    """Writes into the queues of a slate store."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema, target)
        self._target = target
        with closing(open_shared(target.store)) as store:
            self._queues = queues_of(store, target)
            self._repeated = has_run(store, target.run)
        self._load = new_name(driver())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Frames:
        """Stage the rows of one task."""
        return Frames(
            self._load, [] if self._repeated else stage(self._target, self._queues, self._load, iterator)
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have everything taken in that the tasks have staged."""
        if self._repeated:
            return
        frames = [frame for each in messages if isinstance(each, Frames) for frame in each.frames]
        load = Load(self._load, frames, dict(self._target.create), self._target.run)
        take_in(self._target.store, load)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing, unless it counts already."""
        discard(self._target.store, self._load)


def queues_of(store: SharedBackend, target: Target) -> dict[str, Settings]:
    """The queues that rows may be for; QueueNotFound if the one that is named is not there."""
    there = {info.name: info.settings for info in store.run(Queues())}
    if target.queue is not None and target.queue not in {**target.create, **there}:
        store.run(Lookup(target.queue))  # says that there is none
    return {name: _limited(settings) for name, settings in {**target.create, **there}.items()}


def stage(
    target: Target, queues: Mapping[str, Settings], load: str, batches: Iterator[pa.RecordBatch]
) -> list[Frame]:
    """Stage the rows of one task."""
    partition, attempt = task()
    stager = Stager(place_at(target.store), load)
    with in_one_line():
        sender = Sender(stager, "", f"{partition:05}-{attempt}", queues, target.queue, partition, target.restore)
        for batch in batches:
            sender.add(batch)
        sender.finish()
    return stager.frames


def take_in(store: str, load: Load) -> None:
    """Have the owner take in what was staged."""
    with in_one_line(), closing(open_shared(store)) as backend:
        if load.frames:
            place_at(store).stage(load.name, _COMMITTING, b"")
        try:
            SlateOwner(backend.run).take_in(load)
        except (QueueFull, QueueNotFound, StreamMismatch):  # refused: nothing of it was taken in
            place_at(store).remove_load(load.name)
            raise


def discard(store: str, load: str) -> None:
    """Remove what was staged, unless it counts already."""
    place = place_at(store)
    try:
        place.staged(load, _COMMITTING)
    except FileNotFoundError:
        place.remove_load(load)


def has_run(store: SharedBackend, run: str | None) -> bool:
    """Whether a run has taken effect."""
    return run is not None and SlateOwner(store.run).run(run) is not None


def _limited(settings: Settings) -> Settings:
    """With the priorities that such a store can keep."""
    lowest, highest = settings.priorities or PRIORITIES
    return replace(settings, priorities=(max(lowest, PRIORITIES[0]), min(highest, PRIORITIES[1])))
