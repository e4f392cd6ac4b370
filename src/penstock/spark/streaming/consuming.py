"""readStream with mode "consume": exactly-once reading of a queue, in batches that the store records.

The store claims and durably records a batch before Spark learns of it. Spark calls `latestOffset(start)` only once
it has committed everything up to `start`, restarts included. That call settles the committed batches, and returns
the recorded batch after them, or a new one. So Spark finds the same messages in a batch that it repeats.

Spark runs read() in tasks, and all other methods of the reader in one process of the source.
"""

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import penstock
from penstock.contract.arrow import messages_as_batch
from penstock.contract.kinds import kind_of
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import HEARTBEAT, BatchPlan, boot, reader_name
from penstock.contract.tables import BatchFiles
from penstock.engine.arrow_columns import parts_of, rows_of, sources_of
from penstock.errors import NotSupported, PenstockError, StreamInUse, StreamMismatch
from penstock.spark.options import StreamOptions
from penstock.spark.processes import driver, in_one_line
from penstock.spark.streaming.settling import BatchName, batch_of, offset_of, receipt_ends
from penstock.spark.tables import PartsReader, partitions
from penstock.system import processes
from penstock.system.clock import rest

_PATIENCE = 0.5  # seconds to wait for the end of the stream's previous reader process, which Spark kills
_PAUSE = 0.1  # seconds between two attempts to begin
_MOST = 100_000_000  # messages of a batch, whatever the option says
_PAGE = 1_000  # messages per request


def opened_from(machine: str, url: str) -> penstock.Store:
    """Open a store in a task; NotSupported if the store's owner is a process of another machine."""
    if kind_of(url).fenced and machine != boot():
        raise NotSupported(
            f"the process that has {url!r} open is on another machine and cannot be asked from here: "
            "run `penstock serve` there, and give Spark its http://host:port"
        )
    return penstock.open(url)


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch, read from files if this machine sees them, else from the store's owner by ids."""

    batch: BatchName
    after: str
    until: str
    machine: str  # the owner's
    files: Any  # a Part, or None

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages of the part, the same ones either way."""
        if self.files is not None and self.files.exists():
            yield from self.files.read(schema)
            return
        batch, (before, end) = self.batch, receipt_ends(self.batch)
        with closing(opened_from(self.machine, batch.store)) as store:
            streams, after = Streams(store.run), self.after
            while int(after) < int(self.until):
                page = streams.messages(batch.queue, batch.stream, batch.batch, after, self.until, _PAGE)
                if not page:
                    return
                found = messages_as_batch(page, schema)
                if "receipt" in schema.names:
                    receipts = pa.array([f"{before}{message.id}{end}" for message in page], pa.string())
                    found = found.set_column(schema.names.index("receipt"), schema.field("receipt"), receipts)
                yield found
                after = page[-1].id


def parts_of_batch(
    plan: BatchPlan, batch: BatchName, schema: pa.Schema, split: int | None = None
) -> tuple[list[BatchPart], BatchFiles | None]:
    """The parts of a batch, and its files if this machine sees them."""
    if not plan.pages:
        return [], None
    wanted = dict.fromkeys(["seq", *sources_of([*schema.names, "payload"])])
    rows = rows_of(plan.pages, 0, wanted)
    order = np.argsort(rows["seq"].to_numpy(), kind="stable")
    if not (order[1:] > order[:-1]).all():
        rows = rows.take(pa.array(order))
    slices = parts_of(rows, bodies=True, split=split)
    tables = kind_of(batch.store).tables(batch.store)
    files = tables.batch_files(plan, slices, batch.queue, receipt_ends(batch))
    parts = []
    for number, part in enumerate(slices):
        after, until = str(part["seq"][0].as_py() - 1), str(part["seq"][-1].as_py())
        parts.append(BatchPart(batch, after, until, boot(), None if files is None else files.parts[number]))
    return parts, files


class _Session:
    """This process as the one reader of a stream, until close()."""

    def __init__(self, options: StreamOptions, known: BatchName | None) -> None:
        self._options = options
        self.store = penstock.open(options.store)
        self.streams = Streams(self.store.run)
        self.reader = reader_name()
        self._closing = threading.Event()
        try:
            if known is not None:
                self._check(known)
            self._begin()
        except BaseException:
            self.store.close()
            raise
        if kind_of(options.store).remote:
            threading.Thread(target=self._heartbeat, name="penstock-heartbeat", daemon=True).start()

    def _check(self, known: BatchName) -> None:
        """Refuse the checkpoint of another stream before this one is made."""
        options = self._options
        checkpoint = f"the checkpoint is of stream {known.stream!r} of queue {known.queue!r} in {known.store!r}"
        if (known.queue, known.stream) == (options.queue, options.stream):
            if not known.batch or any(
                (each.queue, each.stream) == (options.queue, options.stream) for each in self.streams.all()
            ):
                return
            checkpoint += f", at batch {known.batch}, and {options.store!r} has no such stream"
        raise StreamMismatch(
            f"{checkpoint}: give the query that stream, or a new checkpointLocation to read stream "
            f"{options.stream!r} of queue {options.queue!r}"
        )

    def _register(self) -> None:
        self.streams.begin(self._options.queue, self._options.stream or "", self.reader)

    def _begin(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._register()
                return
            except StreamInUse:  # the process of a query that was just stopped lives for another moment
                if time.monotonic() > deadline:
                    raise
            rest(_PAUSE)

    def _heartbeat(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            with suppress(PenstockError):  # the next batch raises it again
                self._register()

    def close(self) -> None:
        self._closing.set()
        self.store.close()


class ConsumingReader(PartsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue batch by batch, and settles the batches that Spark has committed."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._open: _Session | None = None
        self._files: list[BatchFiles] = []  # of batches that tasks may still read
        self._latest = 0  # the number of the latest batch
        self._run: str | None = None  # the name of an availableNow run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_files": []}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return offset_of(self._options, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Name the run: the store gives it the messages of this moment, each once."""
        self._run = secrets.token_hex(8)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Settle the batches up to `start`; the next batch, recorded or new, or `start` if there is none."""
        with in_one_line():
            known = batch_of(start)
            session, options = self._session(known), self._options
            while self._files:
                self._files.pop().drop()
            rows = _MOST if isinstance(limit, ReadAllAvailable) else min(options.rows, _MOST)
            after = known.batch if known else 0
            batch = session.streams.next(
                options.queue, options.stream or "", session.reader, after, rows, options.size, self._run
            )
            if batch is None or (known is not None and batch == known.batch):
                return start
            self._latest = batch
            return offset_of(options, batch)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch, new or replayed."""
        with in_one_line():
            batch = batch_of(end)
            if batch is None or batch == batch_of(start):
                return []
            session, options = self._session(batch), self._options
            pins = f"{processes.name_of(driver())}@{boot()}"
            plan = session.streams.read(options.queue, options.stream or "", batch.batch, pins)
            here = batch._replace(store=options.store, queue=options.queue)
            parts, files = parts_of_batch(plan, here, self._arrow(), options.partitions)
            if files is not None:
                self._files.append(files)
            return partitions(parts, options.partitions)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """For the progress of the query: the latest batch, and the messages that wait behind it."""
        with in_one_line():
            session = self._session(None)
            waiting = session.store.queue(self._options.queue).counts()["available"]
            return {**offset_of(self._options, self._latest), "behind": waiting}

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark does not report every commit, so latestOffset() settles."""

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _session(self, known: BatchName | None) -> _Session:
        """This process as the stream's reader; StreamMismatch if the checkpoint is of another stream."""
        if known is not None:
            self._latest = max(self._latest, known.batch)
        if self._open is None:
            self._open = _Session(self._options, known)
        return self._open
