"""Published messages: the log they are appended to, and how they come from there into queues.

`publish` appends to the log. The router looks at each entry once for every queue with a filter, in the order of
the log, and delivers it to those that match; how far it is with a queue is written with what it delivered there,
so that a message enters a queue exactly once, also across a crash. A queue that is full, or begins earlier in the
log, is held: it has a position of its own and catches up when it can, and holds up nobody else.
"""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.clock import Clock, at_least_one
from penstock.errors import InvalidPriority, PayloadTooLarge, QueueFull
from penstock.live.queue import LiveQueue
from penstock.live.shelf import Body
from penstock.message import Entry
from penstock.records import Put
from penstock.slate import entries, own
from penstock.slate import format as records
from penstock.slate.binding import Database
from penstock.slate.bodies import Bodies
from penstock.slate.format import MAX_INLINE, Metadata
from penstock.slate.ids import Ids
from penstock.slate.primitives import key_u64
from penstock.slate.shelf import SlateShelf
from penstock.slate.writing import Changes, Writer
from penstock.threads import Lock

if TYPE_CHECKING:
    from penstock.filters import Filter
    from penstock.ledger import Ledger

_ALL = ""  # the position under this name is that of all queues that are not held


class Published:
    """A message of the log that queues may want."""

    __slots__ = ("large", "metadata", "size")

    def __init__(self, metadata: Metadata, size: int, large: bool) -> None:
        self.metadata = metadata
        self.size = size
        self.large = large


class Log:
    """The log at work: what was published and is still to be written."""

    def __init__(self, key: str, writer: Writer, bodies: Bodies, ids: Ids) -> None:
        self.lock: Lock = threading.RLock()
        self.prefix = records.log_prefix(key)
        self.position = 0  # every queue that is not held has what is before it
        self._writer = writer
        self._bodies = bodies
        self._ids = ids
        self._new: list[tuple[Metadata, Body, int]] = []
        self._gone: list[tuple[int, int]] = []  # what has expired: when, which

    def append(self, entry: Entry, now: int) -> Published:
        """Add a message."""
        self._writer.changed(self)  # before it takes a number: see Writer._flush
        seq = self._ids.reserve(1)
        headers = entry.headers or {}
        body: Body = (entry.payload, headers, now if entry.created_at is None else entry.created_at, now)
        visible_at = now + at_least_one(entry.delay) if entry.delay else now
        expires_at = None
        if entry.retention is not None:
            expires_at = now + at_least_one(entry.retention) if entry.retention else 0
        metadata = entries.metadata_of_published(seq, entry.priority, body, visible_at, expires_at)
        self._bodies.add([seq], [entries.body_of(metadata, entry.payload)])
        self._new.append((metadata, body, expires_at or 0))
        self._writer.wrote(self)
        return Published(metadata, len(entry.payload), len(entry.payload) > MAX_INLINE)

    def remove(self, expired: list[tuple[int, int]]) -> None:
        """Messages whose time is over: when it was, and which."""
        with self.lock:
            self._gone += expired
            self._writer.changed(self)

    def collect(self, changes: Changes) -> None:
        """Add what has changed since the last time."""
        for metadata, (payload, _, _, at), expires_at in self._new:
            seq = metadata.id
            if len(payload) > MAX_INLINE:
                changes.objects[seq] = payload
                value = records.encode_uri(f"objects/{seq}")
            else:
                value = records.encode_payload(payload)
            changes.rows.append((records.payload_key(seq), value))
            changes.rows.append((self.prefix + key_u64(seq), records.encode_metadata(metadata)))
            if expires_at:
                changes.rows.append((own.expiry_key(expires_at, seq), b""))
            changes.written.append(seq)
            changes.at = max(changes.at, at)
        for time, seq in self._gone:
            keys = (records.payload_key(seq), self.prefix + key_u64(seq), records.attempts_key(seq))
            changes.rows += [(key, None) for key in (*keys, own.expiry_key(time, seq))]
            changes.gone.append(seq)
            changes.large.append(seq)  # or not: then there is no object of that name
        position = own.encode_position(self.position, False)
        changes.rows.append((records.queue_key(records.POSITION, _ALL), position))
        self._new, self._gone = [], []


class Subscriber:
    """A queue with a filter."""

    def __init__(self, live: LiveQueue, ledger: "Ledger", shelf: SlateShelf, wanted: "Filter") -> None:
        self.live = live
        self.ledger = ledger
        self.shelf = shelf
        self.wanted = wanted

    @property
    def held(self) -> bool:
        """Whether the queue is behind the others."""
        return self.shelf.held

    def has_room(self) -> bool:
        """Whether another message would be let in, as far as a look tells."""
        try:
            self.ledger.check_room(1)
        except QueueFull:
            return False
        return True

    def matches(self, published: Published) -> bool:
        """Whether the message belongs into this queue."""
        from penstock.filters import Subject

        metadata = published.metadata
        return self.wanted.matches(
            Subject(
                headers=entries.headers_of(metadata),
                priority=entries.priority_of(metadata),
                size=published.size,
                created_at=metadata.created_at,
                received_at=metadata.received_at,
                visible_at=metadata.visible_at,
            )
        )

    def deliver(self, published: Published, now: int) -> None:
        """Let the message in; QueueFull. One that this queue would never take is left out."""
        metadata, ledger = published.metadata, self.ledger
        priority = entries.priority_of(metadata)
        expires_at = entries.expires_at_of(metadata)
        if expires_at is None:
            kept = ledger.settings.retention
            expires_at = metadata.received_at + at_least_one(kept) if kept else 0
        if 0 < expires_at <= now:
            return
        try:
            ledger.check_values(published.size, priority)
        except (PayloadTooLarge, InvalidPriority):
            return
        ledger.check_room(1)
        record = Put(now, metadata.id, (priority,), (metadata.visible_at,), (expires_at,), {})
        ledger.replay(record)
        self.shelf.deliver(record, (published.size,), (published.large,), metadata.id + 1)


class Router:
    """Delivers what is published."""

    def __init__(self, log: Log, database: Database, clock: Clock) -> None:
        self._log = log
        self._database = database
        self._clock = clock
        self.subscribers: dict[str, Subscriber] = {}

    def publish(self, entry: Entry) -> Published:
        """Append a message to the log and deliver it where that can be done at once."""
        with self._log.lock:
            published = self._log.append(entry, self._clock.now())
            for subscriber in list(self.subscribers.values()):
                self._offer(subscriber, published)
            self._log.position = published.metadata.id + 1
            return published

    def _offer(self, subscriber: Subscriber, published: Published) -> None:
        """Give a queue the message, if it wants it and is not behind; if it is full it is behind from now on."""
        if subscriber.held or not subscriber.matches(published):
            return

        def deliver(now: int) -> None:
            try:
                subscriber.deliver(published, now)
            except QueueFull:
                subscriber.shelf.move(published.metadata.id, held=True)

        subscriber.live.run(deliver)

    def catch_up(self, queue: str) -> None:
        """Deliver what a queue that is behind has missed, as far as it has room."""
        subscriber = self.subscribers.get(queue)
        if subscriber is None or not subscriber.has_room():
            return
        with self._log.lock:
            if subscriber.held and subscriber.shelf.position is not None:
                self._replay(subscriber, subscriber.shelf.position[0])

    def recover(self) -> None:
        """After opening: deliver what a crash has left undelivered."""
        with self._log.lock:
            for subscriber in self.subscribers.values():
                own_position, held = subscriber.shelf.position or (0, False)
                self._replay(subscriber, own_position if held else max(own_position, self._log.position))

    def _replay(self, subscriber: Subscriber, position: int) -> None:
        end = self._log._ids.next
        full = False

        def deliver(published: Published) -> Callable[[int], None]:
            return lambda now: subscriber.deliver(published, now)

        for published in self.entries(position, end):
            if not subscriber.matches(published):
                continue
            try:
                subscriber.live.run(deliver(published))
            except QueueFull:
                subscriber.live.run(lambda now, at=published.metadata.id: subscriber.shelf.move(at, held=True))  # type: ignore[misc]
                full = True
                break
        if not full and subscriber.held:
            subscriber.live.run(lambda now: subscriber.shelf.move(end, held=False))

    def entries(self, start: int, end: int) -> Iterator[Published]:
        """The published messages of the log that are written, from one number on and before another."""
        if start >= end:
            return
        prefix = self._log.prefix
        for key, value in self._database.scan(prefix + key_u64(start), prefix + key_u64(end)):
            metadata = records.decode_metadata(value)
            if not entries.is_published(metadata):
                continue
            payload = self._database.get(records.payload_key(int.from_bytes(key[-8:])))
            if payload is None:
                continue  # its time is over
            content = records.decode_payload(payload)
            large = isinstance(content, str)
            yield Published(metadata, 0 if large else len(content), large)
