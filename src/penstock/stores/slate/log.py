"""The publish log of a slate store: appended messages, their expiry, and the router's position in it."""

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.contract.message import Entry
from penstock.engine.storage import Body
from penstock.stores.slate import entries, extensions
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import Database
from penstock.stores.slate.bodies import Bodies
from penstock.stores.slate.format import EXPIRY, MAX_INLINE, VERSION, Metadata, key_u64, parse_key
from penstock.stores.slate.writing import Changes, Ids, Writer
from penstock.system.clock import at_least_one

_ALL = ""  # the position under this name is that of all queues that are not held
_LATER = 300_000  # milliseconds by which the expiry of a message is postponed that a stream needs
_FIRST, _LAST = bytes((VERSION, EXPIRY)), bytes((VERSION, EXPIRY + 1))


class Published(NamedTuple):
    """A published message, as the router offers it to queues."""

    metadata: Metadata
    size: int  # of the payload


class Log:
    """The log of an open store."""

    def __init__(
        self, key: str, database: Database, writer: Writer, bodies: Bodies, ids: Ids, position: int, last: int
    ) -> None:
        """`last`: the number of the log's last entry."""
        self.lock = threading.RLock()
        self.position = position  # lower entries were offered to every queue that is not held
        self.on_expiry: Callable[[int], None] = lambda time: None  # called with the time of the next expiry
        self.needed: Callable[[list[int]], set[int]] = lambda seqs: set()  # messages that streams hold or keep
        self._prefix = records.log_prefix(key)
        self._database = database
        self._writer = writer
        self._bodies = bodies
        self._ids = ids
        self.changed = False  # whether there are rows to write, apart from the position
        self._new: list[tuple[Metadata, Body, int]] = []
        self._unwritten: dict[int, Published] = {}
        self._gone: list[tuple[int, int]] = []  # expired messages: time, number
        self._postponed: list[tuple[int, int, int]] = []  # time, number, new time
        self._next_expiry: int | None = None
        self.gone: int | None = None  # the highest number that has left the log; None: no queue was ever followed
        self._gone_changed = False
        self.written_position = -1  # so that the first commit writes the position, even without a router
        # Ids begin with a new block, far above the last entry, until a message is put.
        self.opened_at = ids.next
        self._last_found = last
        writer.log = self

    def behind(self, position: int) -> int:
        """The count of numbers from a position to the last entry."""
        if self._ids.next > self.opened_at:
            return max(0, self._ids.next - position)
        return max(0, self._last_found + 1 - position)

    @property
    def end(self) -> int:
        """A number above every entry so far, and at most that of the next entry."""
        return self._ids.next

    def append(self, entry: Entry, now: int) -> Published:
        """Add a message; under the lock."""
        seq = self._ids.reserve(1)
        body: Body = (
            entry.payload,
            entry.headers or {},
            now if entry.created_at is None else entry.created_at,
            now,
        )
        visible_at = now + at_least_one(entry.delay) if entry.delay else now
        expires_at = None
        if entry.retention is not None:
            expires_at = now + at_least_one(entry.retention) if entry.retention else 0
        metadata = entries.metadata_of_published(seq, entry.priority, body, visible_at, expires_at)
        published = Published(metadata, len(entry.payload))
        self._bodies.add([seq], [entries.body_of(metadata, entry.payload)])
        self.changed = True
        self._new.append((metadata, body, expires_at or 0))
        self._unwritten[seq] = published
        if expires_at:
            self._expect(expires_at)
        self._writer.wrote()
        return published

    def entries(self, start: int) -> Iterator[Published]:
        """The published messages from a number on, written or not; under the lock."""
        end = self.stored_end()
        unwritten = list(self._unwritten.values())
        yield from (published for _, published in self.stored(start, end) if published is not None)
        yield from [published for published in unwritten if published.metadata.id >= start]

    def stored_end(self) -> int:
        """The number below which every published message is written; under the lock."""
        self._forget_written()
        return next(iter(self._unwritten), self.end)

    def stored(self, start: int, end: int) -> Iterator[tuple[int, Published | None]]:
        """The written entries from `start` to before `end`; None for a message that was put into a queue."""
        for metadata in self.scan(start - 1, end - 1):
            published = entries.is_published(metadata)
            yield metadata.id, Published(metadata, self.size_of(metadata)) if published else None

    def scan(self, after: int, until: int) -> Iterator[Metadata]:
        """The written entries with numbers above `after`, up to and including `until`."""
        if until > after:
            start, end = self._prefix + key_u64(after + 1), self._prefix + key_u64(until + 1)
            for _, value in self._database.scan(start, end):
                yield records.decode_metadata(value)

    def size_of(self, metadata: Metadata) -> int:
        """The payload size of a published message."""
        size = entries.size_of(metadata)
        if size is not None:
            return size
        payload = self._database.get(records.payload_key(metadata.id))  # another program's entry has no size
        return 0 if payload is None else len(records.decode_payload(payload))

    def _forget_written(self) -> None:
        written = [seq for seq in self._unwritten if not self._bodies.is_unwritten(seq)]
        for seq in written:
            del self._unwritten[seq]

    def advance(self, position: int) -> None:
        """Move the router's position; under the lock."""
        self.position = position
        self._writer.wrote()

    def watch(self) -> None:
        """Record from now on which number was the highest to leave the log, for followers."""
        with self.lock:
            if self.gone is None:
                self.gone = self._ids.next - 1
                self.changed = self._gone_changed = True
                self._writer.wrote()

    # Retention

    def expire(self, now: int) -> bool:
        """Remove expired messages, and postpone those in batches of streams; whether there were any."""
        with self.lock:
            if self._next_expiry is not None and now < self._next_expiry:
                return False
            going, self._next_expiry = [], None
            for key, _ in self._database.scan(_FIRST, _LAST):
                _, _, seq, time, _ = parse_key(key)
                if time > now:
                    self._expect(time)
                    break
                going.append((time, seq))
            for _, (_, _, _, _), expires_at in self._new:  # not in the database yet
                if expires_at:
                    self._expect(expires_at)
            needed = self.needed([seq for _, seq in going]) if going else ()
            self._gone += [(time, seq) for time, seq in going if seq not in needed]
            self._postponed += [(time, seq, now + _LATER) for time, seq in going if seq in needed]
            if needed:
                self._expect(now + _LATER)
            if going:
                self.changed = True
                self._writer.wrote()
            return bool(going)

    def _expect(self, time: int) -> None:
        if self._next_expiry is None or time < self._next_expiry:
            self._next_expiry = time
            self.on_expiry(time)

    # Writing

    def collect_up_to(self, position: int | None, changes: Changes) -> None:
        """Add the rows that have changed since the last call, after those of all queues, which are at `position`.

        None: the position of some queue is unknown, so that none is written.
        """
        with self.lock:  # not while rows are encoded: other threads publish meanwhile
            new, gone, postponed = self._new, self._gone, self._postponed
            self._new, self._gone, self._postponed, self.changed = [], [], [], False
            self._collect_marks(position, [seq for _, seq in gone], changes)
            if len(self._unwritten) > 2 * len(new):
                self._forget_written()
        for metadata, (payload, _, _, at), expires_at in new:
            seq = metadata.id
            if len(payload) > MAX_INLINE:
                changes.objects[seq] = payload
                value = records.encode_uri(f"objects/{seq}")
            else:
                value = records.encode_payload(payload)
            changes.rows.append((records.payload_key(seq), value))
            changes.rows.append((self._prefix + key_u64(seq), records.encode_metadata(metadata)))
            if expires_at:
                changes.rows.append((extensions.expiry_key(expires_at, seq), b""))
            changes.written.append(seq)
            changes.at = max(changes.at, at)
        for time, seq in gone:
            changes.rows += records.body_deletions(self._prefix, seq)
            changes.rows.append((extensions.expiry_key(time, seq), None))
            changes.gone.append(seq)
            changes.large.append(seq)  # if the payload was inline, there is no object to delete
        for before, seq, time in postponed:
            changes.rows += [(extensions.expiry_key(before, seq), None), (extensions.expiry_key(time, seq), b"")]

    def _collect_marks(self, position: int | None, gone: list[int], changes: Changes) -> None:
        """Add the common position of all queues, and the highest number that has left the log."""
        if position is not None and position != self.written_position:
            self.written_position = position
            row = extensions.encode_position(position, False)
            changes.rows.append((records.queue_key(records.POSITION, _ALL), row))
        if self.gone is not None and max(gone, default=0) > self.gone:
            self.gone, self._gone_changed = max(gone), True
        if self._gone_changed and self.gone is not None:
            marks = extensions.encode_marks(extensions.Marks(0, 0, self.gone))
            changes.rows.append((records.queue_key(records.FOLLOWED, _ALL), marks))
            self._gone_changed = False
