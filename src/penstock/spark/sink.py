"""df.write.format("penstock"): tasks stage messages in parallel, and one commit makes all of them visible."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.contract import names
from penstock.contract.kinds import check_exists
from penstock.contract.settings import Settings
from penstock.contract.urls import is_remote, is_shared, is_slate
from penstock.errors import InvalidArgument
from penstock.sharing.backend import check_reachable, open_shared
from penstock.spark.errors import in_one_line
from penstock.spark.options import parse_writing
from penstock.spark.plans import driver
from penstock.spark.staging import Stager
from penstock.spark.tables import TABLES
from penstock.stores.journal import staging
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.loads import Load, has_run, make_folder
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.journal.staging import Part, Piece
from penstock.stores.owner_operations import TakeIn
from penstock.system.clock import SystemClock
from penstock.system.files import ReadingDisk, SystemDisk

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_SETTABLE: dict[str, tuple[type[DataType], ...]] = {
    "payload": (BinaryType, StringType),
    "queue": (StringType,),
    "headers": (MapType,),
    "priority": _INTEGERS,
    "created_at": (TimestampType,),
    "visible_at": (TimestampType,),
    "expires_at": (TimestampType,),
}
_RESTORED: dict[str, tuple[type[DataType], ...]] = {
    **_SETTABLE,
    "received_at": (TimestampType,),
    "attempts": _INTEGERS,
    "state": (StringType,),
    "claimed_at": (TimestampType,),
    "settled_at": (TimestampType,),
    "consumer": (StringType,),
    "reason": (StringType,),
    "history": (ArrayType,),
}


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    pieces: list[Piece]


@dataclass(frozen=True)
class Target:
    """Where messages go."""

    store: str  # a folder, or the URL of a server
    queue: str | None  # None: the column says it
    run: str | None
    create: Mapping[str, Settings]  # queues to be made
    restore: bool  # messages come with what became of them elsewhere


def check_columns(schema: StructType, target: Target) -> None:
    """Refuse columns that cannot be put, before anything is."""
    settable = _RESTORED if target.restore else _SETTABLE
    for column in schema:
        if column.name not in settable:
            known = column.name in TABLES["messages"].fieldNames()
            why = "is the queue's to set" if known else "is not one of a message"
            raise InvalidArgument(
                f"column {column.name!r} {why}: drop it. What can be written are {', '.join(_SETTABLE)}"
            )
        if not isinstance(column.dataType, settable[column.name]):
            kinds = " or ".join(kind().simpleString() for kind in settable[column.name] if kind is not MapType)
            wanted = kinds or "map<string,string>"
            raise InvalidArgument(
                f"column {column.name!r} is {column.dataType.simpleString()}, not {wanted}: cast it"
            )
        if isinstance(column.dataType, MapType) and column.dataType.simpleString() != "map<string,string>":
            raise InvalidArgument(
                f"column {column.name!r} is {column.dataType.simpleString()}, not map<string,string>"
            )
    given = schema.fieldNames()
    if "payload" not in given:
        raise InvalidArgument(f"there is no column 'payload' among {', '.join(given)}: name one of them so")
    if target.queue is None and "queue" not in given:
        raise InvalidArgument('into which queue? Give .option("queue", NAME), or a column queue')


class JournalWriter(DataSourceArrowWriter):
    """Writes into the journals of a folder."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema, target)
        view = StoreSnapshot(target.store, ReadingDisk(), SystemClock().now())
        self._target = target
        self._queues = {**target.create, **view.settings()}
        if target.queue is not None and names.checked(target.queue) not in self._queues:
            view.settings(target.queue)  # says that there is none
        self._load = staging.new_name(driver())
        disk = SystemDisk()
        self._repeated = has_run(disk, Catalog(target.store, disk), target.run)
        if not self._repeated:
            check_reachable(target.store)  # or say who has it, before the work begins
            make_folder(disk, target.store, self._load)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        partition, attempt = task()
        if self._repeated:
            return Staged([])
        disk = SystemDisk()
        folder = staging.folder_of(self._target.store, self._load)
        part = Part(disk, folder, self._load, f"part-{partition:05}-{attempt}")
        target = self._target
        stager = Stager(part, self._queues, target.queue, partition, target.restore, SystemClock().now())
        with in_one_line():
            try:
                for batch in iterator:
                    stager.add(batch)
                return Staged(stager.finish())
            except BaseException:
                part.discard()
                raise

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make everything visible that the tasks have staged."""
        pieces = [piece for each in messages if isinstance(each, Staged) for piece in each.pieces]
        if self._repeated:
            return
        with in_one_line():
            backend = open_shared(self._target.store)
            try:
                backend.run(TakeIn.of(Load(self._load, pieces, dict(self._target.create), self._target.run)))
            finally:
                backend.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing."""
        staging.remove_folder(SystemDisk(), staging.folder_of(self._target.store, self._load))


def task() -> tuple[int, int]:
    """Which partition this task writes, and which attempt at any it is."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())


def writer_for(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """What writes into the store that the options name."""
    store, queue, run = parse_writing(given)
    if overwrite:
        raise InvalidArgument('a queue is never overwritten: write with .mode("append")')
    check_exists(store)
    made = json.loads(given.get("_create", "{}"))  # by the job that converts stores, as is the next
    create = {name: Settings(**settings) for name, settings in made.items()}
    target = Target(store, queue, run, create, given.get("_restore") == "true")
    if is_remote(store):
        from penstock.spark.remote_sink import RemoteWriter

        return RemoteWriter(target, schema)
    if is_shared(store):
        from penstock.spark.shared_sink import SharedWriter

        return SharedWriter(target, schema)
    if is_slate(store):
        from penstock.spark.slate.sink import SlateWriter

        return SlateWriter(target, schema)
    return JournalWriter(target, schema)
