"""Locked operations on a text queue: one at a time among all processes; waiting consumers, and their poller."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from threading import Event
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from penstock.contract.message import Message
from penstock.errors import DiskFull, PenstockError, QueueNotFound, StoreClosed
from penstock.rules.rows import FAILED
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


class Moves(Protocol):
    """Moves between queues, as one queue needs them (moves.py)."""

    def finish(self, queue: Any) -> object:
        """Finish the moves of a queue that a crash has interrupted."""

    def bury(self, queue: Any) -> object:
        """Move failed messages of a queue to its dead-letter queue."""

    def pull(self, queue: str) -> object:
        """Have other queues move their dead letters to this one."""


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
        moves: Moves,
    ) -> None:
        self.name = name
        self.path = path
        self._waiting = waiting  # called when a consumer starts to wait
        self._failed = failed  # called after an error that leaves the state of the disk unknown; what to raise
        self.storage = TextStorage(name, path, disk, clock, threads, sync)
        self._clock = clock
        self._moves = moves
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None

    def run(self, operation: Callable[[View, int], Result]) -> Result:
        """Run an operation under the lock; again if the file was edited, or the mutex file could be shortened.

        A move that was interrupted is finished first. Dead letters move before the operation and after it.
        """
        is_settled = False  # whether dead letters have moved
        for _ in range(_TRIES):
            if self._stopped is not None:
                raise self._stopped()
            first: Callable[[Any], object] | None = None
            died, error = False, None
            try:
                with self.locked() as view:
                    is_alone = not self.storage.is_nested  # else this thread may hold locks of other queues
                    if is_alone and view.is_moving:
                        first = self._moves.finish
                    else:
                        view, now = self._serve_first(view)
                        if is_alone and not is_settled and _dead(view):
                            first, is_settled = self._moves.bury, True
                        else:
                            dead = _dead(view)
                            try:
                                result = operation(view, now)
                            except PenstockError as raised:
                                # LeaseExpired, for example, after other receipts have released messages.
                                error = raised
                            self._serve(view, now)
                            died = is_alone and _dead(view) > dead
                if first is not None:
                    first(self)
                    continue
                if died:
                    with suppress(PenstockError, Edited):  # the next operation raises it, or tries again
                        self._moves.bury(self)
                if error is not None:
                    raise error
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
            now = self.advance(view)
            self._serve(view, now)
            if self.storage.known is view:
                return view, now
            view = self.storage.current()  # serving a consumer has failed, and the view was dropped

    def advance(self, view: View) -> int:
        """Apply the effects of time; the time."""
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
        except OSError as error:
            raise self.refusal(error) from error

    def refusal(self, error: OSError) -> PenstockError:
        """What to raise after an error of the disk."""
        if isinstance(error, FileNotFoundError):
            return self.storage.gone()  # the folder was just moved away
        if is_refused(error) and not self.storage.has_effect:
            return unavailable(error.filename or self.path, error)
        return self._failed(self.path, error)

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

    def take_dead_letters(self) -> None:
        """Move the dead letters of other queues here."""
        self._moves.pull(self.name)

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
        return self._may_have(lambda view: view.ledger.state.available())

    def may_have_dead(self) -> bool:
        """Whether messages have failed that belong into the dead-letter queue, or may have since the last look."""
        return self._may_have(_dead)

    def _may_have(self, count: Callable[[View], int]) -> bool:
        """Whether a count is above 0, or may be: the files have changed, or a delay or lease is over."""
        with self.storage.lock:
            view = self.storage.known
            if view is None or count(view):
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


def _dead(view: View) -> int:
    """How many messages have failed, of a queue with a dead-letter queue."""
    return 0 if view.settings.dead_letter is None else view.ledger.state.by_state[FAILED]


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
                queue.take_dead_letters()
                if queue.is_due():
                    queue.serve()
