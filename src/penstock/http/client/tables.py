"""Spark tables of a server's store: tasks list parts of queues page by page, and send the rows of loads as frames.

The server goes on working, so a read is no snapshot. A part is a range of ids that ends where the queue ended when
the read was planned, and ids only grow: no message is listed twice, and none that was put later.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.arrow import column_of
from penstock.contract.loads import Sent, SinkCommit
from penstock.contract.message import STATES
from penstock.contract.operations import PAGE, AllAttempts, Lookup, Messages, Parts, Queues, Show
from penstock.contract.settings import QueueInfo
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import BatchPlan, StreamInfo
from penstock.contract.tables import BatchFiles, Opener, Read, Staged, Tables, Target, grouped
from penstock.engine.arrow_columns import attempt_row, queue_row, rows_as_batch
from penstock.engine.arrow_rows import send
from penstock.errors import NotSupported, QueueNotFound
from penstock.http.client.backend import RemoteBackend, RemoteLoads, open_remote
from penstock.http.client.calls import columns_of

Range = tuple[str, str, str]  # queue, the id before the first one, the last id
_PART = 50_000  # messages of a task, about
_SMALL_PART = 5_000  # messages of a task at least, even if that leaves processors idle


class RemoteTables(Tables):
    """The tables of servers' stores."""

    def parts(self, read: Read, schema: pa.Schema, owner: int) -> list["RangesPart"]:
        with closing(open_remote(read.store, None, None)) as backend:
            infos = _infos(backend, read.queue)
            if read.table == "queues":
                return [RangesPart(read, ())]
            states = read.states if read.table == "messages" else STATES
            counted = [(info, sum(info.counts.get(state, 0) for state in states)) for info in infos]
            size = max(_SMALL_PART, min(_PART, sum(count for _, count in counted) // (os.cpu_count() or 1)))
            return [RangesPart(read, tuple(each)) for each in grouped(_ranges(backend, counted, size), size)]

    def loader(self, target: Target, owner: int, opened: Opener) -> "RemoteLoader":
        return RemoteLoader(target)

    def streams(self, store: str, opened: Opener) -> list[StreamInfo]:
        with closing(RemoteBackend(store)) as backend, suppress(NotSupported):  # a text or folder store
            return Streams(backend.run).all()
        return []

    def batch_files(
        self, plan: BatchPlan, rows: Sequence[pa.RecordBatch], queue: str, receipt: tuple[str, str]
    ) -> BatchFiles | None:
        if not plan.files:
            return None
        from penstock.stores.journal.tables import JournalTables  # late: few servers are on this machine

        return JournalTables().batch_files(plan, rows, queue, receipt)

    def brought(self, store: str, run: str, opened: Opener) -> list[list[Any]] | None:
        with closing(RemoteLoads(store)) as loads:
            brought = loads.run(run)
        return None if brought is None else [[each.queue, each.messages, each.bytes] for each in brought]


def _infos(backend: RemoteBackend, queue: str | None) -> list[QueueInfo]:
    return backend.run(Queues()) if queue is None else [backend.run(Show(queue))]


def _ranges(
    backend: RemoteBackend, counted: Sequence[tuple[QueueInfo, int]], size: int
) -> Iterator[tuple[Range, int]]:
    """Parts of queues, each with its approximate number of messages."""
    for info, count in counted:
        if not count:
            continue
        n, after = -(-count // size), ""
        with suppress(QueueNotFound):  # deleted since it was counted
            for until in backend.run(Parts(info.name, n)):
                yield (info.name, after, until), count // n
                after = until


@dataclass(frozen=True)
class RangesPart:
    """Ranges of ids for one task to read."""

    asked: Read
    ranges: tuple[Range, ...]

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows as they are when the task runs."""
        with closing(RemoteBackend(self.asked.store)) as backend:
            if self.asked.table == "queues":
                infos = _infos(backend, self.asked.queue)
                yield rows_as_batch((queue_row(info.name, info.settings, info.counts) for info in infos), schema)
            for each in self.ranges:
                with suppress(QueueNotFound):  # deleted since the read was planned
                    rows = _messages if self.asked.table == "messages" else _attempts
                    yield from rows(backend, each, self.asked.states, schema)


def _messages(
    backend: RemoteBackend, part: Range, states: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    queue, after, until = part
    fields = list(dict.fromkeys(["id", "state", *schema.names]))
    some = len(states) < len(STATES)
    state = states[0] if len(states) == 1 else None
    while True:
        columns, payloads = backend.ask(columns_of(Messages(queue, PAGE, fields, state, after, until)))
        if not payloads:
            return
        ids = columns["id"]
        after = ids[-1] if isinstance(ids, list) else ids
        columns["queue"], columns["payload"] = queue, payloads
        arrays = [_array(columns.get(field.name), field.type, len(payloads)) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if some:  # one state too: a message may change while it is listed
            found = _array(columns["state"], pa.string(), len(payloads))
            batch = batch.filter(pc.is_in(found, value_set=pa.array(states)))
        yield batch


def _array(column: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A column of a frame, which is a list with a value for each message, or one value for all of them."""
    return column_of(column if isinstance(column, list) else [column] * count, kind)


def _attempts(
    backend: RemoteBackend, part: Range, states: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    queue, after, until = part
    goes_on: str | None = after
    while goes_on is not None:
        page, goes_on = backend.run(AllAttempts(queue, goes_on, until))
        yield rows_as_batch((attempt_row(queue, id_, attempt) for id_, attempt in page), schema)


class RemoteLoader:
    """Loads messages into a server's queues: tasks send batches, which the server stages until the commit."""

    def __init__(self, target: Target) -> None:
        self._target = target
        with closing(RemoteLoads(target.store)) as loads:
            loads.backend.connect()
            self._queues = {**target.create, **{info.name: info.settings for info in loads.backend.run(Queues())}}
            if target.queue is not None and target.queue not in self._queues:
                loads.backend.run(Lookup(target.queue))  # raises QueueNotFound
            self.repeated = target.run is not None and loads.run(target.run) is not None
            self._load = "" if self.repeated else loads.begin(target.create)

    def stage(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> Staged:
        with closing(RemoteLoads(self._target.store)) as loads:
            sent = send(loads, self._load, self._target, self._queues, batches, partition, attempt)
        return Staged(self._load, [sent] if sent.batches else [])

    def commit(self, staged: Sequence[Staged], batch: Callable[[], SinkCommit] | None = None) -> None:
        sent = [Sent(*piece) for each in staged for piece in each.pieces]
        load = next((each.load for each in staged if each.pieces), self._load)
        with closing(RemoteLoads(self._target.store)) as loads:
            try:
                if batch is None or sent:
                    loads.commit(load, sent, self._target.run, None if batch is None else batch())
            finally:
                self._abort(loads, staged, load if batch is None or sent else "")

    def abort(self, staged: Sequence[Staged]) -> None:
        with closing(RemoteLoads(self._target.store)) as loads:
            self._abort(loads, staged, "")

    def _abort(self, loads: RemoteLoads, staged: Sequence[Staged], committed: str) -> None:
        """Abort all loads but the committed one. The load of this loader may have no tasks."""
        for load in {self._load, *(each.load for each in staged)} - {committed}:
            loads.abort(load)
