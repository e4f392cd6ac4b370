"""Group commit of a slate store: one write batch and one flush for all threads that commit.

A committing thread leads, or waits for the leader (engine/commits.py). The leader collects the changed records of
every changed queue, writes them in one batch, flushes, and syncs. Rows are absolute values: rows that were not
written in time are written again, together with later ones.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from penstock.contract.message import Entry, Plain
from penstock.engine.commits import Commits
from penstock.errors import DiskFull, InvalidArgument, NotSupported, StoreUnreachable
from penstock.stores.slate.binding import Database, Fenced, Row
from penstock.stores.slate.bodies import Bodies, numbered_rows
from penstock.stores.slate.extensions import CLOCK_KEY, LOG_END_KEY, encode_clock, encode_log_end
from penstock.stores.slate.format import (
    ALL_ATTEMPTS,
    MAX_ARRAY,
    MAX_ID,
    SEQ_BLOCK_KEY,
    SeqBlock,
    Undecodable,
    attempts_key,
    decode_attempts,
    decode_seq_block,
    encode_attempts,
    encode_seq_block,
)
from penstock.stores.slate.place import Place
from penstock.system.threads import Lock, Threads

if TYPE_CHECKING:
    from penstock.stores.slate.log import Log

_BLOCK = 4_096


class Ids:
    """Gives unique ids. A block of ids is written before, or together with, the first message that uses it."""

    def __init__(self, stored: bytes | None, highest: int) -> None:
        """`highest`: the highest used id; another program may have used ids outside of its block."""
        block = SeqBlock(1, 0) if stored is None else decode_seq_block(stored)
        self._lock = threading.Lock()
        self.next = self._end = max(block.base + block.size, highest + 1)  # above every given id
        self.row: Row | None = None  # the record of a block that is not written yet

    def reserve(self, count: int) -> int:
        """Reserve `count` ids; the first of them; NotSupported if there are no more."""
        with self._lock:
            first = self.next
            if first + count > MAX_ID + 1:
                raise NotSupported(
                    f"this store has no number left for another message: the last was {first - 1}, and the "
                    f"highest is {MAX_ID}. Stored messages can be consumed; put new messages into another store"
                )
            self.next += count
            if self.next > self._end:
                block = SeqBlock(first, min(max(_BLOCK, count), MAX_ID + 1 - first))
                self._end = block.base + block.size
                self.row = (SEQ_BLOCK_KEY, encode_seq_block(block))
            return first

    def take_row(self) -> Row:
        """The record of the block that is not written yet."""
        with self._lock:
            row, self.row = self.row, None
            assert row is not None  # noqa: S101 - one thread writes
            return row


_log = logging.getLogger("penstock")
_KEPT_FREE = 64 << 20  # bytes of disk that new messages leave free: for settling stored messages, and for SlateDB
_MOST = 256 << 20  # bytes of one operation, which memory holds a few times
_CHECK_EVERY, _CHECK_SECONDS, _BESIDE = 8 << 20, 0.2, 1_000
_ROWS = 10_000  # rows that even a slow processor prepares and writes in a second
_PAYLOAD = attrgetter("payload")
_TIDY_AFTER = 200  # files of the log, about one for each commit, until closing collects
_COLLECT_AFTER = 2_000  # until a commit collects


class Changes:
    """The contents of one write batch."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.objects: dict[int, bytes] = {}  # payloads that are too large for a record
        self.written: list[int] = []  # messages whose bodies are in the rows
        self.gone: list[int] = []  # messages whose bodies are deleted
        self.large: list[int] = []  # those of them whose payload is an object
        self.claims: list[tuple[int, str]] = []  # of published messages: number, consumer
        self.at = 0  # the latest time of a change
        self.moved: list[tuple[int, Row]] = []  # queues that are not held: log position, position record


class Source(Protocol):
    """A queue or a load that has rows to write."""

    lock: Lock

    def collect(self, changes: Changes) -> None:
        """Under the lock: add the rows that have changed since the last call."""


class Writer:
    """Writes the changes of all queues of a store."""

    def __init__(
        self,
        database: Database,
        place: Place,
        bodies: Bodies,
        ids: Ids,
        threads: Threads,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._database = database
        self._place = place
        self._bodies = bodies
        self._ids = ids
        self._failed = failed
        self.commits = Commits(threads, self._flush, failed, passing=(StoreUnreachable, Fenced))
        self.written = 0
        self.refused = False  # whether a queue was stopped, whose changes are not written
        self.log: Log | None = None
        self._mutex = threading.Lock()
        self._changed: dict[Source, None] = {}
        self._deadline = threading.local()
        self._left = Changes()  # changes that are not written yet
        self._flushed = True
        self._at = 0
        self._unchecked, self._checked = 0, 0.0  # bytes accepted since the last check of free space, and its time
        self._collected = place.files

    @property
    def durable(self) -> int:
        return self.commits.durable

    def wrote(self, source: Source | None = None) -> None:
        """Note a change that its caller will commit: of a source, under its lock, or of the log."""
        with self._mutex:
            if source is not None:
                self._changed[source] = None
            self.written += 1

    def changed(self, source: Source) -> None:
        """Note a change of a source, to be written with the next commit."""
        with self._mutex:
            self._changed[source] = None

    def check_space(self, entries: Sequence[Entry]) -> None:
        """Refuse new messages before settling stored ones would run out of space; DiskFull."""
        size = _BESIDE * len(entries)
        for payload in entries.payloads if isinstance(entries, Plain) else map(_PAYLOAD, entries):
            size += len(payload)
        if size > _MOST:
            raise InvalidArgument(f"{size} bytes are too many for one operation: put fewer messages at a time")
        self._unchecked += size
        now = time.monotonic()
        if self._unchecked < _CHECK_EVERY and now < self._checked + _CHECK_SECONDS:
            return
        free = self._place.free()
        if free is not None and free < _KEPT_FREE + 2 * self._unchecked:
            raise DiskFull(
                f"no space left for new messages in {self._place.what} ({free} bytes are free), and nothing was "
                "changed: settle messages, or free some space on that disk"
            )
        self._unchecked, self._checked = 0, now

    def commit(self, written: int) -> None:
        self._deadline.at = time.monotonic() + self._database.timeout
        self.commits.commit(written)

    def lead(self, work: Callable[[], None]) -> None:
        """Run `work` as the leader, while no other thread writes."""
        self._deadline.at = time.monotonic() + self._database.timeout
        self.commits.lead(work)

    def write_now(self, rows: list[Row]) -> None:
        """By the leader: make these rows durable at once."""
        self._database.write(rows)
        self._database.flush()
        self._place.make_durable()

    def finish(self) -> None:
        """Write pending changes that no thread waits for."""
        with self._mutex:
            pending = bool(self._changed)
        if (pending or self._left.rows or not self._flushed) and self.commits.failure is None:
            self.lead(self.commits.flush)

    def tidy(self) -> None:
        """Collect if the log is long, so that the next opening replays little of it."""
        if self._place.files >= self._collected + _TIDY_AFTER and self.commits.failure is None:
            with suppress(StoreUnreachable):
                self.lead(self.collect)

    # By the leader

    def collect(self) -> None:
        """Remove unreferenced files."""
        self._place.collect(self._database)
        self._collected = self._place.files

    def _flush(self) -> int:
        end = (
            self._ids.next
        )  # queues note changes before they reserve numbers: those below `end` are collected now
        # Order: the position, then the queues, which have the messages before it, then the log, which has all.
        position: int | None = 0
        if self.log is not None:
            with self.log.lock:
                position = self.log.position
        with self._mutex:
            target, sources = self.written, list(self._changed)
            self._changed.clear()
        changes = self._left
        before = len(changes.rows)
        for source in sources:
            with source.lock:
                source.collect(changes)
        if self.refused:  # its deliveries may be missing: the next opening repeats them from the written position
            position = None
        if changes.moved:  # a queue at or below the common position needs no record of its own
            changes.rows += [row for reached, row in changes.moved if position is None or reached > position]
            changes.moved = []
        if self.log is not None and (self.log.changed or position != self.log.written_position):
            self.log.collect_up_to(position, changes)
        if self._ids.row is not None:  # after all messages were collected, so that it covers their ids
            changes.rows.append(self._ids.take_row())
        if changes.at > self._at:
            self._at = changes.at
            changes.rows.append((CLOCK_KEY, encode_clock(self._at)))
        if len(changes.rows) > before:
            changes.rows.append((LOG_END_KEY, encode_log_end(end)))
        try:
            self._write_left()
        except Fenced as error:
            reason = str(error)
            self.commits.refuse(lambda: Fenced(reason))
            self._failed(error)
            raise
        return target

    def _attempts(self, claims: list[tuple[int, str]]) -> list[Row]:
        """The attempts records of published messages, with these claims added: several queues may have them."""
        consumers: dict[int, list[str]] = {seq: [] for seq, _ in claims}
        for seq, value in numbered_rows(self._database, ALL_ATTEMPTS, sorted(consumers)):
            try:
                consumers[seq] = decode_attempts(value)
            except Undecodable:  # another program's list stays: the document leaves open what a ConsumerID is
                del consumers[seq]
        for seq, consumer in claims:
            if seq in consumers:
                consumers[seq].append(consumer)
        return [(attempts_key(seq), encode_attempts(names[-MAX_ARRAY:])) for seq, names in consumers.items()]

    def _write_left(self) -> None:
        """Write and flush by the leader's deadline. After an error the changes stay for the next commit."""
        left = self._left
        if left.claims:
            left.rows += self._attempts(left.claims)
            left.claims = []
        deadline = self._deadline.at + len(left.rows) / _ROWS
        for seq, payload in left.objects.items():
            self._place.put_object(str(seq), payload)
        if left.gone:
            self._bodies.forget(left.gone)
        if left.rows:
            self._flushed = False
            self._database.write(left.rows, max(0.0, deadline - time.monotonic()))
            left.rows, left.objects = [], {}
        if not self._flushed:
            self._database.flush(max(0.0, deadline - time.monotonic()))
            self._place.make_durable()
            self._flushed = True
        self._bodies.wrote(left.written)
        for seq in left.large:
            self._place.delete_object(str(seq))
        self._left = Changes()
        if self._place.files >= self._collected + _COLLECT_AFTER:
            try:
                self.collect()
            except StoreUnreachable as error:  # the changes are written; collecting can wait
                self._collected = self._place.files
                _log.warning("unreferenced files could not be removed, and stay for now: %s", error)
