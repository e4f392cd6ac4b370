"""df.writeStream.format("penstock"): every batch of a query lands once, however often Spark writes it.

Tasks stage rows as those of a batch write do, without knowing the batch's number. The commit knows it, and names
it to the owner of the store, which remembers the last one of each sink. Spark makes a new writer for each of the
two, so tasks tell the commit where they have staged.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.contract import names
from penstock.contract.kinds import check_exists
from penstock.contract.loads import MAX_SINK, Sent, SinkCommit
from penstock.contract.operations import Lookup, Queues
from penstock.contract.streams import not_supported
from penstock.contract.urls import is_remote, is_shared, is_slate
from penstock.errors import InvalidArgument
from penstock.http.client.backend import RemoteLoads
from penstock.sharing.backend import open_shared
from penstock.spark.errors import in_one_line
from penstock.spark.options import parse_writing
from penstock.spark.plans import driver
from penstock.spark.sending import Sender
from penstock.spark.sink import Target, check_columns, task
from penstock.spark.slate import sink as slate
from penstock.spark.staging import Stager
from penstock.spark.streaming.checkpoints import query_id
from penstock.stores.journal import staging
from penstock.stores.journal.loads import Load, make_folder
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.journal.staging import Part, Piece
from penstock.stores.owner_operations import TakeIn
from penstock.stores.slate.loads import Load as SlateLoad
from penstock.stores.slate.loads import new_name
from penstock.system.clock import SystemClock
from penstock.system.files import ReadingDisk, SystemDisk

_OWN = ("checkpointlocation", "queryname", "sinkid")  # and what Spark passes on of its own


class _Sink(NamedTuple):
    """What is remembered of a query's batches, and under which name."""

    id: str | None  # None: the query's own id
    checkpoint: str | None

    def landing(self, batch: int) -> SinkCommit:
        """A batch of the query."""
        if self.checkpoint is None:
            raise InvalidArgument(
                'where is the checkpoint? Give .option("checkpointLocation", ...) to the query itself: what it '
                "says of the query tells a batch that is written again from a new one"
            )
        query = query_id(self.checkpoint)
        return SinkCommit(self.id or query, query, batch)


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task has staged in the folder of the store."""

    load: str
    pieces: list[Piece]


@dataclass
class SentRows(WriterCommitMessage):
    """What one task has sent to a server."""

    load: str
    part: str
    batches: int


class JournalStreamWriter(DataSourceStreamArrowWriter):
    """Writes into the journals of a folder."""

    def __init__(self, target: Target, sink: _Sink, schema: StructType) -> None:
        check_columns(schema, target)
        view = StoreSnapshot(target.store, ReadingDisk(), SystemClock().now())
        self._target = target
        self._sink = sink
        self._queues = view.settings()
        if target.queue is not None and names.checked(target.queue) not in self._queues:
            view.settings(target.queue)  # says that there is none
        self._load = staging.new_name(driver())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        partition, attempt = task()
        disk, target = SystemDisk(), self._target
        folder = staging.folder_of(target.store, self._load)
        part = Part(disk, folder, self._load, f"part-{partition:05}-{attempt}")
        stager = Stager(part, self._queues, target.queue, partition, False, SystemClock().now())
        with in_one_line():
            try:
                for batch in iterator:
                    if len(batch) and not os.path.isdir(folder):
                        with suppress(FileExistsError):
                            make_folder(disk, target.store, self._load)
                    stager.add(batch)
                return StagedRows(self._load, stager.finish())
            except BaseException:
                part.discard()
                raise

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let what the tasks have staged land, if it has not before."""
        staged = [each for each in messages if isinstance(each, StagedRows) and each.pieces]
        if not staged:
            return
        with in_one_line(), closing(open_shared(self._target.store)) as backend:
            pieces = [piece for each in staged for piece in each.pieces]
            backend.run(TakeIn.of(Load(staged[0].load, pieces, sink=self._sink.landing(batchId))))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave nothing of what does not count; what has landed stays."""
        for load in {each.load for each in messages if isinstance(each, StagedRows)}:
            folder = staging.folder_of(self._target.store, load)
            if not os.path.exists(os.path.join(folder, staging.MANIFEST)):
                staging.remove_folder(SystemDisk(), folder)


class RemoteStreamWriter(DataSourceStreamArrowWriter):
    """Writes into the queues of a server."""

    def __init__(self, target: Target, sink: _Sink, schema: StructType) -> None:
        check_columns(schema, target)
        self._target = target
        self._sink = sink
        with closing(RemoteLoads(target.store)) as loads:
            loads.backend.connect()
            self._queues = {info.name: info.settings for info in loads.backend.run(Queues())}
            if target.queue is not None and target.queue not in self._queues:
                loads.backend.run(Lookup(target.queue))  # says that there is none
            self._load = loads.begin({})

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        """Send the rows of one task."""
        partition, attempt = task()
        target, part = self._target, f"{partition:05}-{attempt}"
        with in_one_line(), closing(RemoteLoads(target.store)) as loads:
            sender = Sender(loads, self._load, part, self._queues, target.queue, partition, False)
            for batch in iterator:
                sender.add(batch)
            return SentRows(self._load, *sender.finish())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let what the tasks have sent land, if it has not before."""
        sent = [each for each in messages if isinstance(each, SentRows) and each.batches]
        with in_one_line(), closing(RemoteLoads(self._target.store)) as loads:
            if sent:
                parts = [Sent(each.part, each.batches) for each in sent]
                loads.commit(sent[0].load, parts, None, self._sink.landing(batchId))
            self._abort_others(loads, messages, {each.load for each in sent})

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave nothing of what does not count; what has landed stays."""
        with in_one_line(), closing(RemoteLoads(self._target.store)) as loads:
            self._abort_others(loads, messages, set())

    def _abort_others(
        self, loads: RemoteLoads, messages: list[WriterCommitMessage | None], landed: set[str]
    ) -> None:
        """Also the load that this writer has begun for tasks that it never had."""
        begun = {self._load, *(each.load for each in messages if isinstance(each, SentRows))}
        for load in begun - landed:
            loads.abort(load)


class SlateStreamWriter(DataSourceStreamArrowWriter):
    """Writes into the queues of a slate store."""

    def __init__(self, target: Target, sink: _Sink, schema: StructType) -> None:
        check_columns(schema, target)
        self._target = target
        self._sink = sink
        with closing(open_shared(target.store)) as store:
            self._queues = slate.queues_of(store, target)
        self._load = new_name(driver())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> slate.Frames:
        """Stage the rows of one task."""
        return slate.Frames(self._load, slate.stage(self._target, self._queues, self._load, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let what the tasks have staged land, if it has not before."""
        staged = [each for each in messages if isinstance(each, slate.Frames) and each.frames]
        if staged:
            frames = [frame for each in staged for frame in each.frames]
            load = SlateLoad(staged[0].load, frames, {}, None, self._sink.landing(batchId))
            slate.take_in(self._target.store, load)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave nothing of what does not count; what has landed stays."""
        for load in {each.load for each in messages if isinstance(each, slate.Frames)}:
            slate.discard(self._target.store, load)


def stream_writer_for(given: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """What writes into the store that the options name."""
    options = {name.lower(): value for name, value in given.items()}
    sink = _Sink(options.get("sinkid"), options.get("checkpointlocation"))
    if sink.id is not None and not 1 <= len(sink.id) <= MAX_SINK:
        raise InvalidArgument(f"option sinkId has {len(sink.id)} characters; give 1 to {MAX_SINK}")
    store, queue, run = parse_writing({name: value for name, value in options.items() if name not in _OWN})
    if run is not None:
        raise InvalidArgument("option id is for df.write; a stream's batches are told apart by query and number")
    if is_shared(store):
        raise not_supported(f"store {store!r}")
    check_exists(store)
    target = Target(store, queue, None, {}, False)
    if is_remote(store):
        return RemoteStreamWriter(target, sink, schema)
    if is_slate(store):
        return SlateStreamWriter(target, sink, schema)
    return JournalStreamWriter(target, sink, schema)
