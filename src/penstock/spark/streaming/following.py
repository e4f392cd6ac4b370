"""readStream with mode "follow", or of the table log: new messages in order, without consuming them.

An offset of a queue is {"after": 1200, "from": 0, "gaps": 1, "queue": "jobs"}. after: the id of the last message
read. from: the batch's own start, which Spark does not know when it repeats the first batch. gaps: the id below
which messages were missing when the stream began. queue: missing in older checkpoints. An offset of a log is
{"sequence": 1200}: all entries before this one were read.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

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
from penstock.contract.streams import HEARTBEAT, Ahead, Lost, boot, reader_name
from penstock.contract.tables import Follower, LogFollower
from penstock.errors import PenstockError, StreamMismatch
from penstock.spark.options import LogOptions, StreamOptions
from penstock.spark.processes import driver, in_one_line
from penstock.spark.streaming.consuming import opened_from
from penstock.spark.tables import PartsReader, partitions

_LOOK = 5.0  # seconds between two looks at the end of the queue, which costs a read of its last file
_ALL = 2**40  # messages
_ANY_SIZE = 2**63 - 1
_PAGE = 1_000  # messages per request
_SEQUENCE = "sequence"


class FollowingReader(PartsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages in the order in which they enter a queue."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._open: Follower | None = None
        self._named: Named | None = None
        self._began: dict[str, Any] = {}
        self._stop_at: int | None = None  # the last message of an availableNow run
        self._until = self._end = 0  # the last message of the latest batch, and of the queue
        self._look_at = 0.0  # when to look for that again

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_named": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """No id yet: the offset of the first batch contains the start."""
        return {"after": None, "queue": self._options.queue}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the run at the last message of this moment."""
        with in_one_line():
            self._stop_at = self._entering().start("latest")[0]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch after `start`, within the limits; `start` if there are no new messages."""
        with in_one_line():
            self._check_queue(start)
            first = start["after"] is None
            began = self._resolved() if first else start
            after, gaps = began["after"], began["gaps"]
            entering = self._entering()
            entering.has_read(after)
            if self._named is not None:
                self._named.has_read(after)
            everything = isinstance(limit, ReadAllAvailable)
            ahead = entering.ahead(
                after, gaps, *((_ALL, _ANY_SIZE) if everything else (self._options.rows, self._options.size))
            )
            self._check(ahead.lost)
            until = ahead.until if self._stop_at is None else max(after, min(ahead.until, self._stop_at))
            self._until = until
            if until == after and not first:
                return start
            return {"after": until, "from": after, "gaps": gaps, "queue": self._options.queue}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch, new or replayed."""
        with in_one_line():
            self._check_queue(end)
            after, until = end["from"] if start["after"] is None else start["after"], end["after"]
            if after == until:
                return []
            ahead = self._entering().ahead(after, end["gaps"], 0, 1, until)
            self._check(ahead.lost)
            return partitions(self._entering().parts(after, until, ahead), self._options.partitions)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """For the progress of the query: the last message of the queue, and how far the batch is behind."""
        with in_one_line():
            if time.monotonic() >= self._look_at:
                self._end, _ = self._entering().start("latest")
                self._look_at = time.monotonic() + _LOOK
            end = max(self._end, self._until)
            return {"after": end, "queue": self._options.queue, "behind": end - self._until}

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark does not report every commit, so latestOffset() tells the store what was read."""

    def stop(self) -> None:
        for held in (self._open, self._named):
            if held is not None:
                held.close()
        self._open = self._named = None

    def _entering(self) -> Follower:
        if self._open is None:
            options = self._options
            tables = kind_of(options.store).tables(options.store)
            self._open = tables.follower(options.store, options.queue, self._arrow(), driver())
            if self._open is None:
                self._open = Asked(options)
            elif options.stream is not None:
                self._named = Named(options)
        return self._open

    def _resolved(self) -> dict[str, Any]:
        """Where the query begins, decided once from the option startingOffset."""
        if not self._began:
            after, gaps = self._entering().start(self._options.starting)
            self._began = {"after": after, "gaps": gaps}
        return self._began

    def _check_queue(self, offset: dict[str, Any]) -> None:
        """StreamMismatch if the checkpoint is of another queue."""
        queue = self._options.queue
        if offset.get("queue", queue) != queue:
            raise StreamMismatch(
                f"the checkpoint is of queue {offset['queue']!r}: follow that one, or give a new "
                f"checkpointLocation to follow queue {queue!r}"
            )

    def _check(self, lost: Lost | None) -> None:
        """PenstockError if messages are lost, unless failOnDataLoss is false."""
        if lost is None or not self._options.fail_on_data_loss:
            return
        many, how = ("some", "removed") if lost.messages is None else (lost.messages, "packed away")
        raise PenstockError(
            f"{many} messages of queue {self._options.queue!r} were settled and {how} before they were read, "
            f"from {lost.first} to {lost.last}: go on without them with "
            'option("failOnDataLoss", "false"), and name the stream, so that the store waits for it'
        )


class Named:
    """Tells the store the position of a named follower."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._store = penstock.open(options.store)
        self._last: int | None = None

    def has_read(self, position: int) -> None:
        """Messages up to this id were read."""
        if position != self._last:
            queue, stream = self._options.queue, self._options.stream or ""
            Streams(self._store.run).follow(queue, stream, reader_name(), position)
            self._last = position

    def close(self) -> None:
        self._store.close()


class Asked:
    """Follows through a server or a store's owner, which keeps unread messages while heartbeats arrive."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._store = penstock.open(options.store)
        self._streams = Streams(self._store.run)
        self._follower = token_hex(8)
        self._position: int | None = None  # last one told to the store, of a named follower
        self._after: int | None = None  # the store keeps messages after this id
        self._lock = threading.Lock()  # a heartbeat must not repeat an older position
        self._closing = threading.Event()
        threading.Thread(target=self._heartbeat, name="penstock-heartbeat", daemon=True).start()

    def start(self, starting: str | int) -> tuple[int, int]:
        return self._streams.start(self._options.queue, self._follower, starting)

    def has_read(self, position: int) -> None:
        with self._lock:
            if position != self._position:
                self._tell(position)
                self._position = position

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead:
        with self._lock:
            self._after = after
            return self._streams.ahead(self._options.queue, self._follower, after, gaps, rows, size, until)

    def parts(self, after: int, until: int, ahead: Ahead) -> "list[AskedPart]":
        parts = []
        for last, messages in ahead.parts:
            parts.append(AskedPart(self._options, self._follower, after, last, messages, boot()))
            after = last
        return parts

    def close(self) -> None:
        self._closing.set()
        with suppress(PenstockError):
            self._streams.leave(self._options.queue, self._follower)
        self._store.close()

    def _tell(self, position: int) -> None:
        if self._options.stream is not None:  # the store remembers positions of named followers only
            self._streams.follow(self._options.queue, self._options.stream, reader_name(), position)

    def _heartbeat(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            with self._lock, suppress(PenstockError):  # the next batch raises it again
                if self._position is not None:
                    self._tell(self._position)
                if self._after is not None:
                    self._streams.ahead(self._options.queue, self._follower, self._after, 0, 0, 1)


@dataclass(frozen=True)
class AskedPart:
    """A part of a batch, requested page by page."""

    options: StreamOptions
    follower: str
    after: int
    until: int
    messages: int  # counted when the batch was planned
    machine: str  # the owner's

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages of the part; PenstockError if some were removed meanwhile."""
        options, after, count = self.options, self.after, 0
        with closing(opened_from(self.machine, options.store)) as store:
            while after < self.until:
                page = Streams(store.run).entered(options.queue, self.follower, after, self.until, _PAGE)
                if not page:
                    break
                yield messages_as_batch(page, schema)
                after, count = int(page[-1].id), count + len(page)
        if count < self.messages and options.fail_on_data_loss:
            raise PenstockError(
                f"{self.messages - count} messages of queue {options.queue!r} have gone while they were read, "
                f"between {self.after + 1} and {self.until}: go on without them with "
                'option("failOnDataLoss", "false")'
            )


class LogReader(PartsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log of a slate store as a stream."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._open: LogFollower | None = None
        self._until: int | None = None  # where an availableNow run ends
        self._end = self._read = 0  # the end of the log, and of the latest batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The option startingOffset."""
        with in_one_line():
            starting = self._options.starting
            return {_SEQUENCE: self._log().end() if starting is None else starting}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the run at the end of the log of this moment."""
        with in_one_line():
            self._until = self._log().end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch, within the limit."""
        with in_one_line():
            before = int(start[_SEQUENCE])
            end = self._log().end() if self._until is None else self._until
            self._end = max(before, end)
            if isinstance(limit, ReadMaxRows):
                end = min(end, self._log().reach(before, end, limit.max_rows))
            self._read = max(before, end)
            return {_SEQUENCE: self._read}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch, new or replayed."""
        first, last = int(start[_SEQUENCE]), int(end[_SEQUENCE])
        with in_one_line():
            return partitions(self._log().parts(first, last), self._options.read.split) if first < last else []

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """For the progress of the query: the end of the log."""
        return {_SEQUENCE: self._end, "behind": self._end - self._read}

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the log keeps no entries for its followers."""

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _log(self) -> LogFollower:
        if self._open is None:
            store, route = self._options.read.store, self._options.route
            self._open = kind_of(store).tables(store).log(store, self._arrow(), route, driver())
        return self._open
