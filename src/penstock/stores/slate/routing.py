"""Published messages: the log they are appended to, and how they come from there into queues.

`publish` appends to the log. The router looks at each entry once for every queue with a filter, in the order of
the log, and delivers it to those that match; how far it is with a queue is written with what it delivered there,
so that a message enters a queue exactly once, also across a crash. A queue that is full, or begins earlier in the
log, is held: it has a position of its own and catches up when it can, some entries at a time, and holds up nobody
else.

Routing in bulk: others read the log and find out which queue wants what (log_tables.py), the owner
delivers. How far the queues are, is what the store says and nobody else. Whatever is handed over twice, or was
delivered by the router in the meantime, is left out; what was left out before is looked up in the log. Matches are

    u32 big-endian   length of the head
    head             JSON: the part of the log, from `start` to before `end`, and each queue with how many it wants
    columns          i64 little-endian, queue after queue, in the order of the log: sequence, priority, visible at,
                     received at, expires at (0 = never, -1 = as the queue says), size
"""

import json
import logging
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
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


# An entry of the log that a queue wants: sequence, priority, visible_at, received_at, expires_at (0 = never; below
# 0 as the queue says), size. There are millions of them, which is why they have no names.
Wanted: TypeAlias = tuple[int, int, int, int, int, int]


class Matches(NamedTuple):
    """A part of the log, from `start` to before `end`, and what each queue wants of it, in its order."""

    start: int
    end: int
    queues: dict[str, list[Wanted]]


class Subscriber:
    """A queue with a filter."""

    def __init__(
        self, live: LiveQueue, ledger: "Ledger", storage: SlateStorage, wanted: "Filter", since: int
    ) -> None:
        self.live = live
        self.ledger = ledger
        self.storage = storage
        self.wanted = wanted
        self.catching_up = threading.Lock()  # before that of the log
        self._since = since  # what was received before is not wanted

    def has_room(self) -> bool:
        """Whether another message would be let in, as far as a look tells."""
        try:
            self.ledger.check_room(1)
        except QueueFull:
            return False
        return True

    def deliver(self, published: Published, now: int) -> None:
        """Let the message in; QueueFull. What this queue would never take, or has had, is left out."""
        metadata, ledger = published.metadata, self.ledger
        expires_at = entries.expires_at_of(metadata)
        if expires_at is None:
            kept = ledger.settings.retention
            expires_at = metadata.received_at + at_least_one(kept) if kept else 0
        if metadata.id < self.storage.position:
            return
        times = metadata.visible_at, metadata.received_at, expires_at
        if self._let_in(metadata.id, entries.priority_of(metadata), *times, published.size, now):
            self.storage.move(metadata.id + 1, held=self.storage.held)

    def deliver_all(self, wanted: Sequence[Wanted]) -> int:
        """Let in what fits of messages that this queue wants, in order; where it is full it is held. How many."""

        def deliver(now: int) -> int:
            let_in, kept = 0, self.ledger.settings.retention
            for seq, priority, visible_at, received_at, expires_at, size in wanted:
                if expires_at < 0:
                    expires_at = received_at + at_least_one(kept) if kept else 0
                try:
                    let_in += self._let_in(seq, priority, visible_at, received_at, expires_at, size, now)
                except QueueFull:
                    self.storage.move(seq, held=True)
                    return let_in
            if let_in:
                self.storage.move(wanted[-1][0] + 1, held=False)
            return let_in

        return self.live.run(deliver)[0]

    def _let_in(
        self, seq: int, priority: int, visible_at: int, received_at: int, expires_at: int, size: int, now: int
    ) -> bool:
        """Whether the message is wanted after all; QueueFull."""
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
    """Delivers what is published."""

    def __init__(self, log: Log, clock: Clock, deferred: bool = False) -> None:
        self._log = log
        self._clock = clock
        self.deferred = deferred  # what is published waits in the log until others route it
        self._subscribers: dict[str, Subscriber] = {}
        self._dispatcher: Dispatcher[Subscriber] | None = None
        self._stuck = False  # a queue could not be looked after, and is when the store is opened again

    def subscribe(self, queue: str, subscriber: Subscriber) -> None:
        """From now on a queue gets what it wants."""
        with self._log.lock:
            self._subscribers[queue] = subscriber
            self._dispatcher = None

    def unsubscribe(self, queue: str) -> None:
        """A queue is gone."""
        with self._log.lock:
            if self._subscribers.pop(queue, None) is not None:
                self._dispatcher = None

    def publish(self, entry: Entry) -> int:
        """Append a message to the log and deliver it where that can be done at once; its id."""
        with self._log.lock:
            published = self._log.append(entry, self._clock.now())
            if not self.deferred:
                self._offer(published)
            return published.metadata.id

    def catch_up(self, queue: str) -> bool:
        """Offer a queue that is held some of what it has missed, as far as it has room; whether there is more.

        Only the last of it is offered while nothing can be published: from there on the queue is held no more.
        """
        subscriber = self._subscribers.get(queue)
        if subscriber is None or not subscriber.has_room():
            return False
        with subscriber.catching_up:
            for _ in range(2):  # what is stored, and what was published meanwhile
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
        """Deliver some of what a queue has missed and is stored; up to where."""
        for count, (seq, published) in enumerate(self._log.stored(start, end)):
            if count == STEP:
                end = seq
                break
            wanted = published is not None and subscriber.wanted.matches(subject_of(published))
            if published is not None and wanted and not _delivered(subscriber, published):
                return seq
        subscriber.live.run(lambda now: subscriber.storage.move(end, held=True))
        return end

    def _deliver_from(self, subscriber: Subscriber, position: int) -> None:
        """Deliver what a queue has missed from a number of the log on, until it is full."""
        for published in self._log.entries(position):
            if subscriber.wanted.matches(subject_of(published)) and not _delivered(subscriber, published):
                return
        end = self._log.end
        subscriber.live.run(lambda now: subscriber.storage.move(end, held=False))

    def recover(self) -> None:
        """After opening: deliver what a crash has left undelivered."""
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
        """Meanwhile nothing is published, and the queue has, or is held at, what was published before."""
        with self._log.lock:
            subscriber = self._subscribers.get(queue)
            if subscriber is not None and not subscriber.storage.held:
                self._deliver_from(subscriber, self._position(subscriber))
            yield

    def lag(self, queue: str) -> int | None:
        """The numbers of the log that a queue was not offered yet; None if it takes nothing from the log."""
        subscriber = self._subscribers.get(queue)
        if subscriber is None:
            return None
        position = subscriber.storage.position
        if not subscriber.storage.held:
            if not self.deferred:
                return 0  # whatever is published is offered at once
            position = self._position(subscriber)
        return self._log.behind(position)

    def _position(self, subscriber: Subscriber) -> int:
        return max(subscriber.storage.position, self._log.position)

    def route(self, matches: Matches) -> dict[str, int]:
        """Deliver what queues want of a part of the log and were not offered before; how many each got."""
        routed: dict[str, int] = {}
        with self._log.lock:
            if self._log.position >= matches.end:
                return routed
            if self._log.position < matches.start:
                self._offer_until(matches.start)
            for queue, wanted in matches.queues.items():
                subscriber = self._subscribers.get(queue)
                if subscriber is not None and not subscriber.storage.held and wanted:
                    first = self._position(subscriber)
                    routed[queue] = subscriber.deliver_all([each for each in wanted if each[0] >= first])
            self._log.advance(matches.end)
            return routed

    def _offer_until(self, end: int) -> None:
        """Route here what was left out."""
        for published in self._log.entries(self._log.position):
            if published.metadata.id >= end:
                break
            self._offer(published)
        self._log.advance(end)

    def _offer(self, published: Published) -> None:
        """Give a message to the queues that want it and are not held; one that is full is held from now on."""
        for subscriber in self._matching(published):
            if not subscriber.storage.held:
                try:
                    _delivered(subscriber, published)
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


def _delivered(subscriber: Subscriber, published: Published) -> bool:
    """Whether the queue has the message now; if it is full it is held there."""

    def deliver(now: int) -> bool:
        try:
            subscriber.deliver(published, now)
        except QueueFull:
            subscriber.storage.move(published.metadata.id, held=True)
            return False
        return True

    return subscriber.live.run(deliver)[0]


def since_of(start: str | int) -> int:
    """From when on published messages are wanted, in milliseconds since the epoch."""
    if start in ("now", "beginning"):
        return 0
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise InvalidArgument(f"start={start!r}: give 'now', 'beginning', or milliseconds since the epoch")


def subject_of(published: Published) -> "Subject":
    """What filters look at."""
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
    """A thread that is there while a queue has something to catch up with, and room for it."""

    def __init__(
        self,
        threads: Threads,
        step: Callable[[str], bool],
        commit: Callable[[], None],
        later: Callable[[str], None],
    ) -> None:
        """step: offers a queue some of what it has missed, and says whether there is more
        commit: makes what it was given durable
        later: called with a queue for which that cannot be done now
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
        """Let a queue catch up."""
        with self._changed:
            if self._stopped:
                return
            self._waiting[queue] = None
            if self._running:
                return
            self._running = True
        try:
            self._threads.start("penstock-router", self._run)
        except RuntimeError:  # no thread to be had: who makes room in the queue begins again
            with self._changed:
                self._running = False

    def go_on(self, queue: str) -> bool:
        """If a queue is being looked after, see to it that it is once more; whether it is."""
        with self._changed:
            if not self._running or (queue != self._at_work and queue not in self._waiting):
                return False
            self._waiting[queue] = None
            return True

    def stop(self) -> None:
        """Let no queue catch up any more; returns once none does."""
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
            except PenstockError:  # the store was stopped, or the queue is gone
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


def encode_matches(matches: Matches) -> bytes:
    """Matches as bytes."""
    rows = [row for wanted in matches.queues.values() for row in wanted]
    columns = [array("q", column) for column in zip(*rows, strict=True)] if rows else []
    queues = [(name, len(wanted)) for name, wanted in matches.queues.items()]
    return encode_columns(matches.start, matches.end, queues, columns)


def encode_columns(
    start: int, end: int, queues: Sequence[tuple[str, int]], columns: Sequence["array[int]"]
) -> bytes:
    """Matches as bytes; each column has the rows of one queue after those of another."""
    head = json.dumps({"start": start, "end": end, "queues": queues}).encode()
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return b"".join([_LENGTH.pack(len(head)), head, *(column.tobytes() for column in columns)])


def decode_matches(data: bytes) -> Matches:
    """Matches of bytes; InvalidArgument."""
    try:
        (size,) = _LENGTH.unpack_from(data)
        head = json.loads(data[4 : 4 + size])
        content = array("q", data[4 + size :])
        if sys.byteorder == "big":
            content.byteswap()
        total = sum(count for _, count in head["queues"])
        if len(content) != len(COLUMNS) * total:
            raise ValueError("it ends too early, or goes on too long")
        columns = [content[at * total : (at + 1) * total] for at in range(len(COLUMNS))]
        rows: list[Wanted] = list(zip(*columns, strict=True))
        queues, at = {}, 0
        for name, count in head["queues"]:
            queues[str(name)] = rows[at : at + count]
            at += count
        return Matches(int(head["start"]), int(head["end"]), queues)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise InvalidArgument(f"these are no matches: {error}") from error


class RoutedQueue(LiveQueue):
    """A queue of a store whose messages are routed in bulk: what was published waits, and nothing overtakes it."""

    router: Router

    def decide(self, operation: Operation[Any]) -> tuple[Any, int]:
        if not isinstance(operation, Put):
            return super().decide(operation)
        with self.router.in_order(self.name):
            return super().decide(operation)
