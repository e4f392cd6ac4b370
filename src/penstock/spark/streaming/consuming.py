"""readStream with mode "consume": batches that are claimed, and on stable storage, before Spark hears of them.

What is called is called in a process that Spark has for the source, but for read(). `latestOffset(start)` is only
asked once Spark has committed all up to `start`, restarts included: then that is settled, and what comes next is
the batch that the stream holds, or a new one. Whatever Spark repeats after a crash, it finds the same messages.
"""

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import HEARTBEAT, boot, reader_name
from penstock.contract.urls import is_remote
from penstock.errors import PenstockError, StreamInUse
from penstock.spark.errors import in_one_line
from penstock.spark.plans import driver
from penstock.spark.streaming import batches
from penstock.spark.streaming.batches import BatchPart
from penstock.spark.streaming.offsets import batch_of, offset_of
from penstock.spark.streaming.options import StreamOptions
from penstock.system import processes
from penstock.system.clock import rest

_PATIENCE = 15.0  # seconds in which the process that read the stream before may end
_PAUSE = 0.1
_MOST = 100_000_000  # messages of a batch, whatever is asked for


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, part: BatchPart) -> None:
        super().__init__(part.number)
        self.part = part


class _Session:
    """A stream that this process reads, until close()."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._store = penstock.open(options.store)
        self.streams = Streams(self._store.run)
        self.reader = reader_name()
        self._closing = threading.Event()
        try:
            self._begin()
        except BaseException:
            self._store.close()
            raise
        if is_remote(options.store):  # who is elsewhere cannot see whether this process lives
            threading.Thread(target=self._say_so, name="penstock-heartbeat", daemon=True).start()

    def begin(self) -> None:
        """Say that this process reads the stream."""
        self.streams.begin(self._options.queue, self._options.stream or "", self.reader)

    def _begin(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.begin()
                return
            except StreamInUse:  # a query that was stopped just now leaves its process behind for a moment
                if time.monotonic() > deadline:
                    raise
            rest(_PAUSE)

    def _say_so(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            with suppress(PenstockError):  # the next batch will tell
                self.begin()

    def close(self) -> None:
        """Let go of the store."""
        self._closing.set()
        self._store.close()


class ConsumingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue batch by batch, and settles what Spark has committed."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._open: _Session | None = None
        self._plans: list[str] = []  # folders of batches that may still be read
        self._run: str | None = None  # of a run that ends, the name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_plans": []}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first batch."""
        return offset_of(self._options, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the option says."""
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now, each message once."""
        self._run = secrets.token_hex(8)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Settle what Spark has committed, and offer what comes next."""
        with in_one_line():
            session, options = self._session(), self._options
            while self._plans:
                batches.drop(self._plans.pop())
            known = batch_of(start)
            rows = _MOST if isinstance(limit, ReadAllAvailable) else min(options.rows, _MOST)
            after = known.batch if known else 0
            batch = session.streams.next(
                options.queue, options.stream or "", session.reader, after, rows, options.size, self._run
            )
            if batch is None or (known is not None and batch == known.batch):
                return start
            return offset_of(options, batch)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch, which may have been read before."""
        with in_one_line():
            batch = batch_of(end)
            if batch is None or batch == batch_of(start):
                return []
            session, options = self._session(), self._options
            pins = f"{processes.name_of(driver())}@{boot()}"
            plan = session.streams.read(options.queue, options.stream or "", batch.batch, pins)
            here = batch._replace(store=options.store, queue=options.queue)
            parts, folder = batches.parts_of(plan, here, self._arrow())
            if folder is not None:
                self._plans.append(folder)
            return [Part(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part."""
        with in_one_line():
            if isinstance(partition, Part):
                yield from batches.read_part(partition.part, self._arrow())

    def commit(self, end: dict[str, Any]) -> None:
        """Not every commit is told: latestOffset() settles."""

    def stop(self) -> None:
        """Let go of the store."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _session(self) -> _Session:
        if self._open is None:
            self._open = _Session(self._options)
        return self._open

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")
