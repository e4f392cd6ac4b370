"""Locked operations on a text queue: one at a time among all processes; waiting consumers, and their poller."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Event
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from penstock.contract.message import Message
from penstock.errors import DiskFull, PenstockError, QueueNotFound, StoreClosed
from penstock.stores.text.files import Sync
from penstock.stores.text.storage import Edited, TextStorage
from penstock.stores.text.view import View
from penstock.system.clock import SteadyClock
from penstock.system.files import Disk, is_refused, unavailable
from penstock.system.threads import Threads

_TRIES = 5  # of an operation whose file is edited meanwhile
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Take: TypeAlias = Callable[[View, int], list[Message]]


def under_lock(
    operation: Callable[Concatenate[Any, View, int, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Make a method run under the queue's lock, with the view and the time as its first arguments."""

    @wraps(operation)
    def run(queue: "LockedQueue", /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return queue.run(lambda view, now: operation(queue, view, now, *arguments, **options))

    return run


class Waiter:
    """A waiting consumer; `take` fetches its messages."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.served = Event()
        self.messages: list[Message] = []
        self.error: BaseException | None = None


class LockedQueue:
    """One queue, whose operations exclude each other in all threads and processes."""

    def __init__(
        self,
        name: str,
        path: str,
        disk: Disk,
        clock: SteadyClock,
        threads: Threads,
        sync: Sync,
        waiting: Callable[["LockedQueue"], None],
        failed: Callable[[str, OSError], PenstockError],
    ) -> None:
        self.name = name
        self.path = path
        self._waiting = waiting  # called when a consumer starts to wait
        self._failed = failed  # called after an error that leaves the state of the disk unknown; what to raise
        self.storage = TextStorage(name, path, disk, clock, threads, sync)
        self._clock = clock
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None

    def run(self, operation: Callable[[View, int], Result]) -> Result:
        """Run an operation under the lock; again if the file was edited, or the mutex file could be shortened."""
        for _ in range(_TRIES):
            if self._stopped is not None:
                raise self._stopped()
            try:
                with self.locked() as view:
                    view, now = self._serve_first(view)
                    try:
                        result = operation(view, now)
                    except PenstockError:  # LeaseExpired, for example, after other receipts have released messages
                        self._serve(view, now)
                        raise
                    self._serve(view, now)
                    return result
            except Edited:
                continue
            except DiskFull:
                with self.locked():
                    if not self.storage.shorten():
                        raise
        raise StoreClosed(f"the file {self.path!r} changes all the time: edit it while no process uses it")

    def _serve_first(self, view: View) -> tuple[View, int]:
        """Advance to now, and serve waiting consumers; the view and the time after that."""
        while True:
            now = self._advance(view)
            self._serve(view, now)
            if self.storage.known is view:
                return view, now
            view = self.storage.current()  # serving a consumer has failed, and the view was dropped

    def _advance(self, view: View) -> int:
        now = self._clock.now()
        view.ledger.state.advance(now)
        view.forget(now)
        return now

    @contextmanager
    def locked(self) -> Iterator[View]:
        """Hold the lock; an error of the disk becomes StoreUnavailable, or stops the store."""
        try:
            with self.storage.locked() as view:
                yield view
        except FileNotFoundError:
            raise self.storage.gone() from None  # the folder was just moved away
        except OSError as error:
            if is_refused(error) and not self.storage.has_effect:
                raise unavailable(error.filename or self.path, error) from error
            raise self._failed(self.path, error) from error

    # Waiting consumers, first come, first served

    def _served(self, take: Take, wait: float) -> list[Message]:
        """Take messages, waiting for the first one; an interrupted consumer gives its messages back."""
        waiter = Waiter(take)

        def begin(view: View, now: int) -> list[Message]:
            messages = take(view, now)
            if not messages and wait > 0:
                self._line[waiter] = None
            return messages

        messages = self.run(begin)
        if messages or wait <= 0:
            return messages
        try:
            self._waiting(self)
            if not self._clock.wait(waiter.served, wait) and waiter in self._line:
                self.run(lambda view, now: None)  # serves it, if messages are available now
        except BaseException:
            self._line.pop(waiter, None)
            self._give_back(waiter.messages)
            raise
        self._line.pop(waiter, None)
        if waiter.error is not None:
            raise waiter.error
        return waiter.messages

    def _give_back(self, messages: list[Message]) -> None:
        """Release messages that were claimed for an interrupted consumer."""
        raise NotImplementedError

    @property
    def in_line(self) -> int:
        """The number of waiting consumers."""
        return len(self._line)

    def serve(self) -> None:
        """Give available messages to waiting consumers."""
        try:
            self.run(lambda view, now: None)
        except QueueNotFound as error:
            gone = error
            self._refuse_waiting(lambda: gone)
        except PenstockError:
            return  # the waiting consumers have the error

    def is_due(self) -> bool:
        """Whether messages may have become available: the files have changed, or a delay or lease is over."""
        with self.storage.lock:
            view = self.storage.known
            if view is None or view.ledger.state.available():
                return True
            due = view.ledger.state.next_time()
            try:
                return (due is not None and due <= self._clock.now()) or self.storage.changed_outside()
            except OSError:
                return True  # the next operation raises it

    def _serve(self, view: View, now: int) -> None:
        while self._line and self.storage.known is view and view.ledger.state.available():
            waiter = next(iter(self._line))
            try:
                waiter.messages = waiter.take(view, now)
            except PenstockError as error:  # raised in the consumer's thread
                waiter.error = error
            self._line.pop(waiter, None)
            waiter.served.set()

    # The end

    def forked(self) -> None:
        """In a forked child: the waiting consumers are threads of the parent."""
        self._line = {}
        self.storage.forked()

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """Give waiting consumers and all later operations this error."""
        self._stopped = error
        self._refuse_waiting(error)

    def _refuse_waiting(self, error: Callable[[], PenstockError]) -> None:
        for waiter in list(self._line):
            if self._line.pop(waiter, 0) is None:
                waiter.error = error()
                waiter.served.set()


_PAUSE = 0.03  # seconds of real time, whatever clock the store has


class Poller:
    """A thread that serves waiting consumers of queues whose files change; it ends when none waits."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._watched: set[LockedQueue] = set()
        self._running = False
        self._stopping = threading.Event()

    def watch(self, queue: LockedQueue) -> None:
        """Poll a queue until no consumer waits for it."""
        with self._lock:
            self._watched.add(queue)
            if not self._running and not self._stopping.is_set():
                self._threads.start("penstock-poller", self._run)
                self._running = True

    def forked(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock = threading.Lock()
        self._watched, self._running = set(), False

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def _run(self) -> None:
        idle = 0
        while not self._stopping.wait(_PAUSE):
            with self._lock:
                self._watched = {queue for queue in self._watched if queue.in_line}
                idle = 0 if self._watched else idle + 1
                if idle > 100:
                    self._running = False
                    return
                watched: Iterable[LockedQueue] = list(self._watched)
            for queue in watched:
                if queue.is_due():
                    queue.serve()
