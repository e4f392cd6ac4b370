"""A backend made of live queues: names to queues, and publishing to those whose filter matches."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.contract.message import PUBLISH_HEADER, Attempt, Entry, Message, checked_headers
from penstock.contract.operations import AttemptPage, Held, attempt_page
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.streams import not_supported
from penstock.engine.alarm import Alarm
from penstock.engine.figures import Figures
from penstock.engine.methods import Methods
from penstock.engine.queue import LiveQueue
from penstock.engine.storage import Storage
from penstock.engine.taken import Taken
from penstock.engine.turns import Take, Waiter
from penstock.errors import LeaseExpired, NotSupported, QueueExists, QueueNotFound, StoreClosed
from penstock.rules.ledger import Ledger
from penstock.system.clock import Clock, SteadyClock
from penstock.system.threads import Lock, SystemThreads, Threads

if TYPE_CHECKING:
    from penstock.engine.coroutines import LocalBackend
    from penstock.filters import Filter

Result = TypeVar("Result")


class Committing(Protocol):
    """What is committed: a queue, or a whole store."""

    @property
    def durable(self) -> int:
        """How many changes are on stable storage."""

    def commit(self, written: int) -> object:
        """Return once so many are."""


class Engine(Methods):
    """Keeps queues whose rules run in this process, each with a storage of its own. A kind of store says which."""

    far = False  # whether bodies may lie where reading takes long

    def __init__(self, clock: Clock, threads: Threads | None = None) -> None:
        self.clock = clock
        self._clock = SteadyClock(clock)
        self._alarm = Alarm(self._clock)
        self._threads = threads or SystemThreads()
        self._lock = self._threads.lock()
        self._queues: dict[str, LiveQueue] = {}
        self._filters: dict[str, Filter] = {}
        self._first = 1  # above every id of a deleted queue: an old id never means a new message
        self._refusal: Callable[[], StoreClosed] | None = None  # what everyone is told once the store is closed
        self._failure: BaseException | None = None

    async def for_loop(self) -> "LocalBackend":
        """The same store for coroutines: operations run in the loop, commits in threads."""
        from penstock.engine.coroutines import LocalBackend  # here, as most programs have no event loop

        return LocalBackend(self)

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        self._check_settings(settings)
        with self._lock:
            self._check_open()
            if queue in self._queues:
                raise QueueExists(f"queue {queue!r} exists already: open it with store.queue({queue!r})")
            self._creating(queue, settings, self._first)
            self._add(self._new_ledger(queue, settings))

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        """Change settings; all of them as they are then."""
        with self._lock:
            live = self.find(queue)
            settings, written = live.update(changes, self._check_settings)
            if settings.filter is None:
                self._filters.pop(queue, None)
            else:
                self._add_filter(queue, settings.filter)
        return _committed(live, settings, written)

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        with self._lock:
            deleted = self.find(queue)
            deleted.stop(lambda: _not_found(queue))
            self._first = max(self._first, deleted.next_seq)
            self._deleting(queue, self._first)
            del self._queues[queue]
            self._filters.pop(queue, None)

    def _check_settings(self, settings: Settings) -> None:
        """Refuse what this kind of store cannot do."""
        check_start(settings)

    def _new_ledger(self, queue: str, settings: Settings) -> Ledger:
        return Ledger(queue, settings, self._first)

    def _new_queue(self, ledger: Ledger, storage: Storage, lock: Lock) -> LiveQueue:
        return LiveQueue(ledger, storage, self._clock, self._alarm, lock)

    def _new_storage(self, ledger: Ledger, lock: Lock) -> Storage:
        """Where a queue's records and bodies go."""
        raise NotImplementedError

    def _creating(self, queue: str, settings: Settings, first: int) -> None:
        """A queue is about to exist: keep that."""

    def _deleting(self, queue: str, first: int) -> None:
        """A queue is about to be gone, and no new one may use a number below `first`: keep that."""

    def _add(self, ledger: Ledger) -> None:
        queue, lock = ledger.name, self._threads.rlock()
        storage = self._new_storage(ledger, lock)
        self._queues[queue] = self._new_queue(ledger, storage, lock)
        if ledger.settings.filter is not None:
            self._add_filter(queue, ledger.settings.filter)

    def _add_filter(self, queue: str, text: str) -> None:
        from penstock import filters  # here, because most processes need none

        self._filters[queue] = filters.parse(text)

    def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        with self._lock:
            self._check_open()
            queues = sorted(self._queues.items())
            return [QueueInfo(name, queue.settings, queue.counts(), self.lag(name)) for name, queue in queues]

    def lag(self, queue: str) -> int | None:
        """How far a queue is behind the log; None, as there is none."""
        return None

    def figures(self) -> list[Figures]:
        """How every queue is, by name; also of a store that was stopped."""
        with self._lock:
            queues = sorted(self._queues.items())
        return [queue.figures() for _, queue in queues]

    def tend(self) -> None:
        """Let time have passed in queues where nobody comes by."""
        for queue in list(self._queues.values()):
            queue.tend()

    def is_open(self) -> bool:
        """Whether operations are carried out: the store was neither closed, nor has it failed."""
        return self._refusal is None

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store, if it was not closed."""
        return self._failure

    def publish(self, entry: Entry) -> str:
        """Put a copy into every queue whose filter matches, or into none if one of them refuses it."""
        published = os.urandom(16).hex()
        copy = replace(entry, headers=checked_headers({**(entry.headers or {}), PUBLISH_HEADER: published}))
        with self._lock, ExitStack() as locks:
            self._check_open()
            matching = self._matching(entry)
            for queue in matching:
                locks.enter_context(queue.lock)
            for queue in matching:
                queue.check(copy)
            written = [(queue, queue.put([copy])[1]) for queue in matching]
        for queue, records in written:
            queue.commit(records)
        return published

    def begin_publishing(self, entry: Entry) -> tuple[str, Committing, int] | None:
        """Publish for who commits it later, and never waits; None if that takes a thread: then publish()."""
        return None

    def show(self, queue: str) -> QueueInfo:
        """A queue with its settings and counts."""
        live = self.find(queue)
        return QueueInfo(queue, live.settings, live.counts(), self.lag(queue))

    def settings(self, queue: str) -> Settings:
        """What the queue does."""
        return self.find(queue).settings

    def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return self.find(queue).counts()

    def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        live = self.find(queue)
        ids, written = live.put(entries)
        live.commit(written)
        return ids

    def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages, and if `most` is given no more bytes than that beyond the first."""
        live = self.find(queue)
        return self._take(live, live.claiming(n, lease, consumer, most), wait)

    def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        live = self.find(queue)
        return next(iter(self._take(live, live.popping(consumer), wait)), None)

    def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        live = self.find(queue)
        _settled(live, *live.ack(receipts))

    def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        live = self.find(queue)
        _settled(live, *live.fail(receipts, delay, reason))

    def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        live = self.find(queue)
        _settled(live, *live.release(receipts))

    def extend(self, queue: str, receipts: Sequence[str], lease: float) -> Held:
        """Hold from now on."""
        live = self.find(queue)
        return Held(*_committed(live, *live.extend(receipts, lease)))

    def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        live = self.find(queue)
        return _committed(live, *live.remove(ids))

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        live = self.find(queue)
        return _committed(live, *live.redrive(ids))

    def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        live = self.find(queue)
        return _committed(live, *live.purge())

    def peek(self, queue: str, n: int, skip: int = 0) -> Iterator[Message]:
        """What claim would give, after some that are skipped."""
        return self.find(queue).peek(n, skip)

    def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self.find(queue).attempts(id)

    def messages(
        self, queue: str, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        return self.find(queue).messages(state, after, until, bodies)

    def all_attempts(self, queue: str, after: str, until: str) -> AttemptPage:
        """A page of the attempts at all messages."""
        return attempt_page(self.find(queue).all_attempts(after, until))

    def parts(self, queue: str, n: int) -> list[str]:
        """Ids that end parts of about the same size."""
        return self.find(queue).parts(n)

    def uploads(self) -> Any:
        """Loads that clients send to this store."""
        raise NotSupported("a store in memory takes no loads: put the messages instead")

    def streams(self) -> Any:
        """The streams that read queues of this store."""
        raise not_supported("a store in memory")

    def close(self) -> None:
        """End every queue's work."""
        with self._lock:
            self._refusal = _closed
            for queue in self._queues.values():
                queue.stop(_closed)

    def find(self, queue: str) -> LiveQueue:
        """The queue at work; QueueNotFound."""
        if self._refusal is not None:
            raise self._refusal()
        try:
            return self._queues[queue]
        except KeyError:
            raise _not_found(queue) from None

    def _take(self, live: LiveQueue, take: Take, wait: float) -> list[Message]:
        """What a consumer gets, at once or after its turn in line."""
        taken, written = live.take(take)
        if not taken.size:
            if wait <= 0:
                return []
            taken, written = self._wait_in_line(live, take, wait)
            if not taken.size:
                return []
        try:
            live.commit(written)
        except BaseException:
            live.give_back(taken.receipts)
            raise
        return live.hand_out(taken)

    def _wait_in_line(self, live: LiveQueue, take: Take, wait: float) -> tuple[Taken, int]:
        served = threading.Event()
        waiter = Waiter(take, served.set)
        try:
            live.stand_in_line(waiter)
            if not self._clock.wait(served, wait):
                live.leave_line(waiter)
        except BaseException:
            live.abandon(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.taken, waiter.written

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    def _matching(self, entry: Entry) -> list[LiveQueue]:
        if not self._filters:
            return []
        from penstock.filters import Subject

        subject = Subject.of(entry, self._clock.now())
        return [self._queues[name] for name, wanted in self._filters.items() if wanted.matches(subject)]


def check_start(settings: Settings) -> None:
    """Refuse what only a store with a log can do."""
    if settings.start != "now":
        raise NotSupported(
            f"start={settings.start!r}: this store keeps no log of published messages to start from; leave "
            "start='now', or use a slate store"
        )


def _committed(live: LiveQueue, result: Result, written: int) -> Result:
    live.commit(written)
    return result


def _settled(live: LiveQueue, lost: list[str], written: int) -> None:
    live.commit(written)
    if lost:
        raise LeaseExpired(live.name, lost)


def _not_found(queue: str) -> QueueNotFound:
    return QueueNotFound(f"there is no queue {queue!r}: create it with store.create({queue!r})")


def _closed() -> StoreClosed:
    return StoreClosed("the store was closed: open it again with penstock.open()")
