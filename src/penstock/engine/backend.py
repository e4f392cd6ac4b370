"""The engine: a backend of live queues, with operations for threads and publishing by filters."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.contract.backend import Reading
from penstock.contract.loads import LoadInfo
from penstock.contract.message import PUBLISH_HEADER, Entry, checked_headers
from penstock.contract.operation import Operation
from penstock.contract.operations import Claim, Figures, Put, Redrive
from penstock.contract.refusals import exists_already, not_found
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.streams import FollowerInfo, not_supported
from penstock.engine.moves import Moves
from penstock.engine.queue import LOOKS, STEPS, LiveQueue, Waiter
from penstock.engine.storage import Storage
from penstock.engine.views import Taken, parse_ids
from penstock.errors import NotSupported, PenstockError, StoreClosed
from penstock.rules.ledger import Ledger
from penstock.system.clock import Alarm, Clock, SteadyClock
from penstock.system.threads import Lock, SystemThreads, Threads

if TYPE_CHECKING:
    from penstock.engine.coroutines import LocalBackend
    from penstock.filters import Filter

Result = TypeVar("Result")


class Committing(Protocol):
    """A unit of commits: a queue, or a whole store."""

    @property
    def durable(self) -> int:
        """How many changes are on stable storage."""

    def commit(self, written: int) -> object:
        """Return once so many changes are on stable storage."""


class Engine:
    """Queues whose rules run in this process, each with a storage that the kind of store makes.

    An operation on one queue is decided by that queue (queue.py) and committed here; every other operation is a
    method of the engine, or of its loads or streams.
    """

    far = False  # whether bodies may lie in object storage, where a read takes long

    def __init__(self, clock: Clock, threads: Threads | None = None) -> None:
        self.clock = clock
        self._clock = SteadyClock(clock)
        self._alarm = Alarm(self._clock)
        self._threads = self.threads = threads or SystemThreads()
        self.alarm = self._alarm
        self._lock = self._threads.lock()
        self.moves = Moves(self)
        self._queues: dict[str, LiveQueue] = {}
        self._filters: dict[str, Filter] = {}
        self._first = 1  # above every id of a deleted queue: an old id never means a new message
        self._refusal: Callable[[], StoreClosed] | None = None  # the error of every call once the store is closed
        self._failure: BaseException | None = None

    def run(self, operation: Operation[Result], beside: bool = False) -> Result:
        """Run an operation; `beside`: what its queue has to do with dead letters is done."""
        if self.moves.sources and not beside:
            return self._run_beside_moves(operation)
        kind = type(operation)
        if kind not in STEPS:
            look = LOOKS.get(kind)
            if look is None:
                return operation.call(self)  # type: ignore[no-any-return]
            return look(self.find(operation.queue), operation)  # type: ignore[no-any-return]
        live = self.find(operation.queue)
        result, written = live.decide(operation)
        if type(result) is Taken:
            return self._take(live, operation, result, written)
        live.commit(written)
        if isinstance(result, PenstockError):
            raise result
        return result  # type: ignore[no-any-return]

    def _run_beside_moves(self, operation: Operation[Result]) -> Result:
        """Run an operation in a store with dead letters: those of its queue move before, and after a fail."""
        queue = getattr(operation, "queue", None)
        if queue is None:
            self.moves.settle_all()
            return self.run(operation, True)
        self.moves.settle(queue)
        sent = 0
        if isinstance(operation, Redrive) and self.moves.is_target(queue):
            ids = operation.ids
            sent = self.moves.redrive(queue, None if ids is None else parse_ids(ids))
        try:
            result = self.run(operation, True)
        finally:
            self.moves.settle(queue)
        return result + sent if sent else result  # type: ignore[return-value, operator]

    async def for_loop(self) -> "LocalBackend":
        """The backend for coroutines: operations run in the loop, commits in threads."""
        from penstock.engine.coroutines import LocalBackend  # here, as most programs have no event loop

        return LocalBackend(self)

    def create(self, queue: str, settings: Settings, of_load: bool = False) -> None:
        """Make a queue; `of_load`: for a load that counts already, so that nothing about it can be refused."""
        self._check_settings(settings)
        with self._lock:
            self._check_open()
            if queue in self._queues:
                raise exists_already(queue)
            if not of_load:
                self.moves.check(queue, settings)
            self._creating(queue, settings, self._first)
            self._add(self._new_ledger(queue, settings))
            if settings.dead_letter is not None:
                self.moves.note()

    def check_new(self, queues: Mapping[str, Settings]) -> None:
        """Refuse those of these queues that do not exist and that a load cannot make."""
        new = {name: settings for name, settings in queues.items() if name not in self._queues}
        for settings in new.values():
            self._check_settings(settings)
        self.moves.check_new(new)

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        """Change settings; the resulting settings."""
        with self._lock:
            live = self.find(queue)
            before, wanted = live.settings.dead_letter, live.settings.changed(changes)
            if wanted.dead_letter != before:  # else it may be gone
                self.moves.check(queue, wanted)
            settings, written = self._update(live, changes)
            if settings.dead_letter != before:
                self.moves.note()
            self.moves.forget_refusals()
        live.commit(written)
        return settings

    def _update(self, live: LiveQueue, changes: Mapping[str, Any]) -> tuple[Settings, int]:
        """Change settings; the resulting settings, and the number to commit."""
        before = live.settings.filter
        settings, written = live.update(changes, self._check_settings)
        if settings.filter != before:
            self._filters.pop(live.name, None)
            if settings.filter is not None:
                self._add_filter(live.name, settings.filter)
        return settings, written

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        with self._lock:
            deleted = self.find(queue)
            deleted.stop(lambda: not_found(queue))
            self._first = max(self._first, deleted.next_seq)
            self._deleting(queue, self._first)
            del self._queues[queue]
            self._filters.pop(queue, None)
            if deleted.settings.dead_letter is not None:
                self.moves.note()

    def _check_settings(self, settings: Settings) -> None:
        """Refuse settings that this kind of store does not support."""
        check_start(settings)

    def _new_ledger(self, queue: str, settings: Settings) -> Ledger:
        return Ledger(queue, settings, self._first)

    def _new_queue(self, ledger: Ledger, storage: Storage, lock: Lock) -> LiveQueue:
        return LiveQueue(ledger, storage, self._clock, self._alarm, lock)

    def _new_storage(self, ledger: Ledger, lock: Lock) -> Storage:
        """Where a queue's records and bodies go."""
        raise NotImplementedError

    def _creating(self, queue: str, settings: Settings, first: int) -> None:
        """Record a queue that is about to be created."""

    def _deleting(self, queue: str, first: int) -> None:
        """Record a queue that is about to be deleted; no new queue may use a number below `first`."""

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
        """How far a queue is behind the log; None: this kind of store has no log."""
        return None

    def figures(self) -> list[Figures]:
        """Figures of every queue, by name; also of a store that was stopped."""
        with self._lock:
            queues = sorted(self._queues.items())
        return [queue.figures() for _, queue in queues]

    def readings(self) -> Iterator[Reading]:
        """A reading of every queue; also of a store that was stopped."""
        return (queue.reading() for queue in list(self._queues.values()))

    def waits(self, queues: Iterable[str]) -> dict[str, float]:
        """The longest wait of an available message, by queue."""
        found = {}
        for name in queues:
            with suppress(PenstockError):  # it was deleted, or stopped
                found[name] = self.find(name).waiting_seconds()
        return found

    def tend(self) -> None:
        """End leases, delays and retentions that are over in idle queues."""
        for queue in list(self._queues.values()):
            queue.tend()
        self.moves.settle_all()

    def is_open(self) -> bool:
        """Whether operations are carried out: the store was neither closed, nor has it failed."""
        return self._refusal is None

    @property
    def failure(self) -> BaseException | None:
        """The error that has stopped the store, if one has."""
        return self._failure

    def publish(self, entry: Entry) -> str:
        """Put a copy into every queue whose filter matches, or into none if one of them refuses it."""
        published, copy = published_copy(entry)
        with self._lock, ExitStack() as locks:
            self._check_open()
            matching = self._matching(entry)
            for queue in matching:
                locks.enter_context(queue.lock)
            for queue in matching:
                queue.check(copy)
            written = [(queue, queue.decide(Put(queue.name, [copy]))[1]) for queue in matching]
        for queue, records in written:
            queue.commit(records)
        return published

    def move(self, queue: str, target: str, ids: Sequence[str] | None) -> int:
        """Move messages to another queue; how many."""
        return self.moves.move(queue, target, None if ids is None else parse_ids(ids))

    def exclusively(self, live: LiveQueue, work: Callable[[], int]) -> int:
        """Do something while no other thread changes a queue."""
        with live.lock:
            return work()

    def write_move(self, target: LiveQueue, put: Callable[[], int], remove: Callable[[], int]) -> int:
        """Write a put and a removal from another queue, once the put is durable; the number to commit there."""
        target.commit(put())
        return remove()

    def get(self, queue: str) -> LiveQueue | None:
        """The live queue of that name; None if there is none."""
        return self._queues.get(queue)

    def live(self) -> dict[str, LiveQueue]:
        """The live queues, by name."""
        return dict(self._queues)

    def begin_publishing(self, entry: Entry) -> tuple[str, Committing, int] | None:
        """Publish without committing: the id, what to commit, and its number. None: call publish() in a thread."""
        return None

    def show(self, queue: str) -> QueueInfo:
        """A queue with its settings and counts."""
        live = self.find(queue)
        return QueueInfo(queue, live.settings, live.counts(), self.lag(queue))

    def uploads(self) -> Any:
        """Loads that clients send to this store."""
        raise NotSupported("a store in memory takes no loads: put the messages instead")

    def streams(self) -> Any:
        """The streams that read queues of this store."""
        raise not_supported("a store in memory")

    def under_way(self) -> tuple[list[FollowerInfo], list[LoadInfo]]:
        """The followers of the store, and its open loads."""
        try:
            return self.streams().followers(), self.uploads().under_way()
        except NotSupported:
            return [], []

    def close(self) -> None:
        with self._lock:
            self._refusal = closed
            self.moves.close()
            for queue in self._queues.values():
                queue.stop(closed)

    def find(self, queue: str) -> LiveQueue:
        """The live queue; QueueNotFound."""
        if self._refusal is not None:
            raise self._refusal()
        try:
            return self._queues[queue]
        except KeyError:
            raise not_found(queue) from None

    def _take(self, live: LiveQueue, operation: Operation[Result], taken: Taken, written: int) -> Result:
        """The messages for a consumer, after a wait in line if none are available."""
        messages: Any = []
        if not taken.size:
            if isinstance(operation, Claim) and operation.ack:
                live.commit(written)
                operation = operation.changed(ack=())  # type: ignore[assignment]
            if operation.wait > 0:
                taken, written = self._wait_in_line(live, operation)
        if taken.size:
            try:
                live.commit(written)
            except BaseException:
                live.give_back(taken.receipts)
                raise
            messages = live.hand_out(taken)
        return operation.picked(messages)  # type: ignore[no-any-return]

    def _wait_in_line(self, live: LiveQueue, operation: Operation[Any]) -> tuple[Taken, int]:
        served = threading.Event()
        waiter = Waiter(operation, served.set)
        try:
            live.stand_in_line(waiter)
            if not self._clock.wait(served, operation.wait):
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


def published_copy(entry: Entry) -> tuple[str, Entry]:
    """The id of a published message, and the copy for each queue, with the id in its headers."""
    published = os.urandom(16).hex()
    return published, replace(entry, headers=checked_headers({**(entry.headers or {}), PUBLISH_HEADER: published}))


def check_start(settings: Settings) -> None:
    """Refuse a `start` that needs a log of published messages."""
    if settings.start != "now":
        raise NotSupported(
            f"start={settings.start!r}: this store keeps no log of published messages to start from; leave "
            "start='now', or use a slate store"
        )


def closed() -> StoreClosed:
    """The error of a store that was closed."""
    return StoreClosed("the store was closed: open it again with penstock.open()")
