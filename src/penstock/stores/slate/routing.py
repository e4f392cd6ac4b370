"""The router: delivers published messages from the log to the queues whose filters match.

`publish` appends to the log. The router offers each entry once to every queue with a filter, in the order of the
log, and delivers it to those that match. A queue's position in the log is written together with the messages that
it got, so that a message enters a queue exactly once, also across a crash. A queue that is full, or that starts
earlier in the log, is held: it has its own position and catches up when it has room, some entries at a time. Other
queues do not wait for it.

Routing in bulk: Spark tasks read the log and match filters (log_tables.py), and the owner of the store delivers
the matches. Only the store knows the queues' positions. Matches that are sent twice, or that the router has
delivered in the meantime, are skipped; earlier entries that were not routed yet are read from the log. The bytes
of matches are

    u32 big-endian   length of the head
    head             JSON: the range of the log, from `start` to before `end`, and each queue with its match count
    columns          i64 little-endian, queue after queue, in the order of the log: sequence, priority, visible at,
                     received at, expires at (0 = never, -1 = by the queue's retention), size
"""

import json
import logging
import struct
import sys
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock.contract.message import Entry
from penstock.contract.operation import Operation
from penstock.contract.operations import Put
from penstock.engine.queue import LiveQueue
from penstock.errors import (
    InvalidArgument,
    InvalidPriority,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    StoreUnreachable,
)
from penstock.stores.slate import entries
from penstock.stores.slate.extensions import LARGE, PUBLISHED
from penstock.stores.slate.format import MAX_INLINE
from penstock.stores.slate.log import Log, Published
from penstock.stores.slate.storage import SlateStorage
from penstock.system.clock import Clock, at_least_one
from penstock.system.threads import Threads

if TYPE_CHECKING:
    from penstock.filters import Filter
    from penstock.filters.dispatch import Dispatcher
    from penstock.filters.expressions import Subject
    from penstock.rules.ledger import Ledger


STEP = 1_000  # entries that a queue is offered at a time while it catches up


# A match: sequence, priority, visible_at, received_at, expires_at (0 = never; below 0 by the queue's retention),
# size. A plain tuple, as there are millions.
Wanted: TypeAlias = tuple[int, int, int, int, int, int]


Column: TypeAlias = "array[int]"


class Matches(NamedTuple):
    """A range of the log, from `start` to before `end`, and the columns of each queue's matches, in order."""

    start: int
    end: int
    queues: Mapping[str, Sequence[Column]]


class Subscriber:
    """A queue with a filter, which gets published messages."""

    def __init__(
        self, live: LiveQueue, ledger: "Ledger", storage: SlateStorage, wanted: "Filter", since: int
    ) -> None:
        self.live = live
        self.ledger = ledger
        self.storage = storage
        self.wanted = wanted
        self.catching_up = threading.Lock()  # taken before the log's lock
        self._since = since  # messages received earlier are not wanted

    def has_room(self) -> bool:
        """Whether the queue seems to have room for a message; the answer may be outdated."""
        try:
            self.ledger.check_room(1)
        except QueueFull:
            return False
        return True

    def deliver(self, wanted: Sequence[Wanted]) -> tuple[int, bool]:
        """Deliver matches in order, skipping those that the queue refuses or already had, until it is full.

        Returns the number of delivered messages, and False if the queue was full: then it is held there.
        """

        def deliver(now: int) -> tuple[int, bool]:
            let_in, kept, storage = 0, self.ledger.settings.retention, self.storage
            for seq, priority, visible_at, received_at, expires_at, size in wanted:
                if seq < storage.position:
                    continue
                if expires_at < 0:
                    expires_at = received_at + at_least_one(kept) if kept else 0
                try:
                    let_in += self._let_in(seq, priority, visible_at, received_at, expires_at, size, now)
                except QueueFull:
                    storage.move(seq, held=True)
                    return let_in, False
            if let_in:
                storage.move(wanted[-1][0] + 1, held=storage.held)
            return let_in, True

        return self.live.run(deliver)[0]

    def deliver_many(self, wanted: Sequence[Column], first: int) -> int:
        """Deliver matches from the number `first` on, like deliver(); the number of delivered messages."""
        start = bisect_left(wanted[0], first)
        columns = [column[start:] for column in wanted]
        if not columns[0]:
            return 0

        def deliver(now: int) -> bool:
            seqs, priority, visible_at, received_at, expires_at, sizes = columns
            storage, kept = self.storage, self.ledger.settings.retention
            if seqs[0] < max(storage.position, self.ledger.state.next_seq) or min(received_at) < self._since:
                return False
            if min(expires_at) < 0:
                usual = at_least_one(kept) if kept else None
                expires_at = array("q", [
                    at if at >= 0 else 0 if usual is None else received + usual
                    for at, received in zip(expires_at, received_at, strict=True)
                ])  # fmt: skip
            if any(0 < at <= now for at in expires_at):
                return False
            flags = [PUBLISHED | (LARGE if size > MAX_INLINE else 0) for size in sizes]
            try:
                self.ledger.admit_many(seqs, priority, visible_at, expires_at, sizes, flags, now)
            except (PayloadTooLarge, InvalidPriority, QueueFull):
                return False
            storage.deliver_many(seqs, sizes, now)
            storage.move(seqs[-1] + 1, held=storage.held)
            return True

        if self.live.run(deliver)[0]:
            return len(columns[0])
        return self.deliver(list(zip(*columns, strict=True)))[0]

    def _let_in(
        self, seq: int, priority: int, visible_at: int, received_at: int, expires_at: int, size: int, now: int
    ) -> bool:
        """Admit a message; False if the queue refuses it or has it; QueueFull."""
        if received_at < self._since or 0 < expires_at <= now:
            return False
        if seq < self.ledger.state.next_seq and self.ledger.state.has(seq):  # another program has let it in
            return False
        try:
            record = self.ledger.admit(seq, priority, visible_at, expires_at, size, now)
        except (PayloadTooLarge, InvalidPriority):
            return False
        self.storage.deliver(record, size, size > MAX_INLINE)
        return True


class Router:
    """Delivers published messages to the subscribed queues."""

    def __init__(self, log: Log, clock: Clock, deferred: bool = False) -> None:
        self._log = log
        self._clock = clock
        self.deferred = deferred  # published messages wait in the log until `penstock route` delivers them
        self._subscribers: dict[str, Subscriber] = {}
        self._dispatcher: Dispatcher[Subscriber] | None = None
        self._stuck = (
            False  # a queue was stopped: the position stays, so that it is offered again at the next opening
        )

    def subscribe(self, queue: str, subscriber: Subscriber) -> None:
        """Deliver matching messages to a queue from now on."""
        with self._log.lock:
            self._subscribers[queue] = subscriber
            self._dispatcher = None

    def unsubscribe(self, queue: str) -> None:
        with self._log.lock:
            if self._subscribers.pop(queue, None) is not None:
                self._dispatcher = None

    def publish(self, entry: Entry) -> int:
        """Append a message to the log, and deliver it to queues that are not held; its id."""
        with self._log.lock:
            published = self._log.append(entry, self._clock.now())
            if not self.deferred:
                self._offer(published)
            return published.metadata.id

    def catch_up(self, queue: str) -> bool:
        """Offer a held queue some of the entries that it has missed, while it has room; whether there are more.

        The last of them are offered under the log's lock, so that nothing is published meanwhile. After that the
        queue is no longer held.
        """
        subscriber = self._subscribers.get(queue)
        if subscriber is None or not subscriber.has_room():
            return False
        with subscriber.catching_up:
            for _ in range(2):  # written entries first, then those that were published meanwhile
                with self._log.lock:
                    if not subscriber.storage.held:
                        return False
                    start, stored = subscriber.storage.position, self._log.stored_end()
                    if stored - start <= STEP:
                        self._deliver_from(subscriber, start)
                        return False
                reached = self._deliver_stored(subscriber, start, stored)
                if reached < stored:
                    return subscriber.has_room()
        return True

    def _deliver_stored(self, subscriber: Subscriber, start: int, end: int) -> int:
        """Offer a held queue up to STEP written entries; the number up to which they were offered."""
        for count, (seq, published) in enumerate(self._log.stored(start, end)):
            if count == STEP:
                end = seq
                break
            wanted = published is not None and subscriber.wanted.matches(subject_of(published))
            if published is not None and wanted and not subscriber.deliver([wanted_of(published)])[1]:
                return seq
        subscriber.live.run(lambda now: subscriber.storage.move(end, held=True))
        return end

    def _deliver_from(self, subscriber: Subscriber, position: int) -> None:
        """Offer a queue all entries from a position on, until it is full."""
        for published in self._log.entries(position):
            if (
                subscriber.wanted.matches(subject_of(published))
                and not subscriber.deliver([wanted_of(published)])[1]
            ):
                return
        end = self._log.end
        subscriber.live.run(lambda now: subscriber.storage.move(end, held=False))

    def recover(self) -> None:
        """After opening: deliver messages whose delivery a crash has prevented."""
        if not self.deferred:
            with self._log.lock:
                for published in self._log.entries(self._log.position):
                    self._offer(published)

    def behind(self) -> list[str]:
        """The queues that are held."""
        return [queue for queue, subscriber in list(self._subscribers.items()) if subscriber.storage.held]

    # Routing in bulk

    @contextmanager
    def in_order(self, queue: str) -> Iterator[None]:
        """A context in which nothing is published, and the queue was offered everything or is held."""
        with self._log.lock:
            subscriber = self._subscribers.get(queue)
            if subscriber is not None and not subscriber.storage.held:
                self._deliver_from(subscriber, self._position(subscriber))
            yield

    def lag(self, queue: str) -> int | None:
        """The count of log numbers that a queue was not offered yet; None if it has no filter."""
        subscriber = self._subscribers.get(queue)
        if subscriber is None:
            return None
        position = subscriber.storage.position
        if not subscriber.storage.held:
            if not self.deferred:
                return 0  # published messages are offered at once
            position = self._position(subscriber)
        return self._log.behind(position)

    def _position(self, subscriber: Subscriber) -> int:
        return max(subscriber.storage.position, self._log.position)

    def route(self, matches: Matches) -> dict[str, int]:
        """Deliver matches that the queues were not offered before; the number of messages that each got."""
        routed: dict[str, int] = {}
        with self._log.lock:
            if self._log.position >= matches.end:
                return routed
            if self._log.position < matches.start:
                self._offer_until(matches.start)
            for queue, wanted in matches.queues.items():
                subscriber = self._subscribers.get(queue)
                if subscriber is not None and not subscriber.storage.held and len(wanted[0]):
                    routed[queue] = subscriber.deliver_many(wanted, self._position(subscriber))
            self._log.advance(matches.end)
            return routed

    def _offer_until(self, end: int) -> None:
        """Route entries up to a number that no matches cover."""
        for published in self._log.entries(self._log.position):
            if published.metadata.id >= end:
                break
            self._offer(published)
        self._log.advance(end)

    def _offer(self, published: Published) -> None:
        """Deliver a message to the matching queues that are not held; a full queue becomes held."""
        for subscriber in self._matching(published):
            if not subscriber.storage.held:
                try:
                    subscriber.deliver([wanted_of(published)])
                except PenstockError:  # the queue was stopped
                    self._stuck = True
                    raise
        if not self._stuck:
            self._log.position = published.metadata.id + 1

    def _matching(self, published: Published) -> "list[Subscriber]":
        if not self._subscribers:
            return []
        if self._dispatcher is None:
            from penstock.filters.dispatch import Dispatcher

            self._dispatcher = Dispatcher([(each.wanted, each) for each in self._subscribers.values()])
        return self._dispatcher.matching(subject_of(published))


def wanted_of(published: Published) -> Wanted:
    """A published message as a match."""
    metadata, expires_at = published.metadata, entries.expires_at_of(published.metadata)
    times = metadata.visible_at, metadata.received_at, -1 if expires_at is None else expires_at
    return metadata.id, entries.priority_of(metadata), *times, published.size


def since_of(start: str | int) -> int:
    """The time from which on a queue wants messages, by its setting `start`; InvalidArgument."""
    if start in ("now", "beginning"):
        return 0
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise InvalidArgument(f"start={start!r}: give 'now', 'beginning', or milliseconds since the epoch")


def subject_of(published: Published) -> "Subject":
    """A published message as filters see it."""
    from penstock.filters import Subject

    metadata = published.metadata
    return Subject(
        headers=entries.headers_of(metadata),
        priority=entries.priority_of(metadata),
        size=published.size,
        created_at=metadata.created_at,
        received_at=metadata.received_at,
        visible_at=metadata.visible_at,
    )


_log = logging.getLogger("penstock")


class CatchingUp:
    """The thread in which held queues catch up; it runs only while there is work."""

    def __init__(
        self,
        threads: Threads,
        step: Callable[[str], bool],
        commit: Callable[[], None],
        later: Callable[[str], None],
    ) -> None:
        """step: offers a queue some missed entries; whether there are more
        commit: makes delivered messages durable
        later: called with a queue for which that fails now
        """
        self._threads = threads
        self._step = step
        self._commit = commit
        self._later = later
        self._changed = threading.Condition()
        self._waiting: dict[str, None] = {}
        self._at_work: str | None = None
        self._running = False
        self._stopped = False

    def begin(self, queue: str) -> None:
        """Add a queue; starts the thread if it does not run."""
        with self._changed:
            if self._stopped:
                return
            self._waiting[queue] = None
            if self._running:
                return
            self._running = True
        try:
            self._threads.start("penstock-router", self._run)
        except RuntimeError:  # no thread available: the next consumer that makes room begins again
            with self._changed:
                self._running = False

    def go_on(self, queue: str) -> bool:
        """Add a queue again if it is waiting or being served; whether it is."""
        with self._changed:
            if not self._running or (queue != self._at_work and queue not in self._waiting):
                return False
            self._waiting[queue] = None
            return True

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._running)

    def _run(self) -> None:
        while (queue := self._next()) is not None:
            try:
                more = self._step(queue)
                self._commit()
                if more:
                    self.begin(queue)
            except StoreUnreachable:
                self._later(queue)
            except PenstockError:  # the store was stopped, or the queue deleted
                continue
            except Exception:
                _log.exception("queue %r cannot catch up with what was published", queue)

    def _next(self) -> str | None:
        with self._changed:
            self._at_work = None
            if self._stopped or not self._waiting:
                self._running = False
                self._changed.notify_all()
                return None
            self._at_work = next(iter(self._waiting))
            del self._waiting[self._at_work]
            return self._at_work


# Matches as bytes

COLUMNS = ("sequence", "priority", "visible_at", "received_at", "expires_at", "size")
_LENGTH = struct.Struct(">I")


_EMPTY = [array("q")] * len(COLUMNS)


def encode_matches(matches: Matches) -> bytes:
    """The bytes of matches, as described above."""
    queues = [(name, len(wanted[0])) for name, wanted in matches.queues.items()]
    head = json.dumps({"start": matches.start, "end": matches.end, "queues": queues}).encode()
    content = array("q")
    for columns in zip(*matches.queues.values(), strict=True):
        for column in columns:
            content += column
    if sys.byteorder == "big":
        content.byteswap()
    return b"".join([_LENGTH.pack(len(head)), head, content])


def decode_matches(data: bytes) -> Matches:
    """Matches from their bytes; InvalidArgument."""
    try:
        (size,) = _LENGTH.unpack_from(data)
        head = json.loads(data[4 : 4 + size])
        content = array("q", data[4 + size :])
        if sys.byteorder == "big":
            content.byteswap()
        total = sum(count for _, count in head["queues"])
        if len(content) != len(COLUMNS) * total:
            raise ValueError("too few or too many bytes")
        queues: dict[str, Sequence[Column]] = {}
        at = 0
        for name, count in head["queues"]:
            starts = range(at, at + len(COLUMNS) * total, total)
            queues[str(name)] = [content[start : start + count] for start in starts] if total else _EMPTY
            at += count
        return Matches(int(head["start"]), int(head["end"]), queues)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise InvalidArgument(f"these are no matches: {error}") from error


class RoutedQueue(LiveQueue):
    """A queue of a store with deferred routing: a put first routes the messages published before it."""

    router: Router

    def decide(self, operation: Operation[Any]) -> tuple[Any, int]:
        if not isinstance(operation, Put):
            return super().decide(operation)
        with self.router.in_order(self.name):
            return super().decide(operation)
