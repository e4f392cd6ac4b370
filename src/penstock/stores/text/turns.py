"""A text queue's turns: one operation at a time among all processes, and the line of waiting consumers."""

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

_TRIES = 5  # to find the file as it was a moment ago
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Take: TypeAlias = Callable[[View, int], list[Message]]


def in_turn(
    operation: Callable[Concatenate[Any, View, int, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """A queue's method as an operation in a turn of its own, in which it is given the view and the time."""

    @wraps(operation)
    def run(queue: "TurningQueue", /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return queue.run(lambda view, now: operation(queue, view, now, *arguments, **options))

    return run


class Waiter:
    """A consumer in line."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.served = Event()
        self.messages: list[Message] = []
        self.error: BaseException | None = None


class TurningQueue:
    """One queue, safe for threads and processes."""

    def __init__(
        self,
        name: str,
        path: str,
        disk: Disk,
        clock: SteadyClock,
        threads: Threads,
        sync: Sync,
        waiting: Callable[["TurningQueue"], None],
        failed: Callable[[str, OSError], PenstockError],
    ) -> None:
        self.name = name
        self.path = path
        self._waiting = waiting  # told when someone stands in line
        self._failed = failed  # told of an error after which nobody knows what the disk has; what to raise
        self.files = TextStorage(name, path, disk, clock, threads, sync)
        self._clock = clock
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None

    def run(self, operation: Callable[[View, int], Result]) -> Result:
        """An operation in a turn of its own; an error of the disk is told, and what it left is written again."""
        for _ in range(_TRIES):
            if self._stopped is not None:
                raise self._stopped()
            try:
                with self.turn() as view:
                    view, now = self._serve_first(view)
                    try:
                        result = operation(view, now)
                    except PenstockError:  # some receipts were lost, say: the others may have given messages back
                        self._serve_if_known(view, now)
                        raise
                    self._serve_if_known(view, now)
                    return result
            except Edited:
                continue
            except DiskFull:
                with self.turn():
                    if not self.files.shorten():
                        raise
        raise StoreClosed(f"the file {self.path!r} changes all the time: edit it while nobody uses it")

    def _serve_first(self, view: View) -> tuple[View, int]:
        """Let time pass, and serve the consumers in line; the view and the time after that."""
        while True:
            now = self._advance(view)
            self._serve(view, now)
            if self.files.known is view:
                return view, now
            view = self.files.current()  # the disk was too full for a consumer in line, which was told

    def _advance(self, view: View) -> int:
        now = self._clock.now()
        view.ledger.state.advance(now)
        view.forget(now)
        return now

    @contextmanager
    def turn(self) -> Iterator[View]:
        """Have the files for oneself; an error of the disk is told in words, or stops the store."""
        try:
            with self.files.turn() as view:
                yield view
        except FileNotFoundError:
            raise self.files.gone() from None  # the folder was moved away in this moment
        except OSError as error:
            if is_refused(error) and not self.files.counts:
                raise unavailable(error.filename or self.path, error) from error
            raise self._failed(self.path, error) from error

    # The line

    def _served(self, take: Take, wait: float) -> list[Message]:
        """What a consumer gets, at once or after its turn in line; given back if it is interrupted."""
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
                self.run(lambda view, now: None)  # it may be served in this last moment
        except BaseException:
            self._line.pop(waiter, None)
            self._give_back(waiter.messages)
            raise
        self._line.pop(waiter, None)
        if waiter.error is not None:
            raise waiter.error
        return waiter.messages

    def _give_back(self, messages: list[Message]) -> None:
        """Release what was claimed for a consumer that is gone."""
        raise NotImplementedError

    @property
    def in_line(self) -> int:
        """How many consumers wait."""
        return len(self._line)

    def serve(self) -> None:
        """Give waiting consumers what has become available."""
        try:
            self.run(lambda view, now: None)
        except QueueNotFound as error:
            gone = error
            self._send_away(lambda: gone)
        except PenstockError:
            return  # those in line were told

    def is_due(self) -> bool:
        """Whether there may be something for waiting consumers: the files have changed, or it is time."""
        with self.files.lock:
            view = self.files.known
            if view is None or view.ledger.state.available():
                return True
            due = view.ledger.state.next_time()
            try:
                return (due is not None and due <= self._clock.now()) or self.files.changed_outside()
            except OSError:
                return True  # the next turn tells

    def _serve(self, view: View, now: int) -> None:
        while self._line and self.files.known is view and view.ledger.state.available():
            waiter = next(iter(self._line))
            try:
                waiter.messages = waiter.take(view, now)
            except PenstockError as error:  # the consumer's to know
                waiter.error = error
            self._line.pop(waiter, None)
            waiter.served.set()

    def _serve_if_known(self, view: View, now: int) -> None:
        """Serve after an operation, unless that has put other files in the place of the known ones."""
        if self.files.known is view:
            self._serve(view, now)

    # The end

    def forked(self) -> None:
        """In a child: who stood in line are threads of the parent."""
        self._line = {}
        self.files.forked()

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, those in line included, gets this error."""
        self._stopped = error
        self._send_away(error)

    def _send_away(self, error: Callable[[], PenstockError]) -> None:
        for waiter in list(self._line):
            if self._line.pop(waiter, 0) is None:
                waiter.error = error()
                waiter.served.set()


_PAUSE = 0.03  # seconds of real time, whatever clock the store has


class Poller:
    """One thread, alive only while someone waits."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._watched: set[TurningQueue] = set()
        self._running = False
        self._stopping = threading.Event()

    def watch(self, queue: TurningQueue) -> None:
        """Look after a queue until nobody stands in its line."""
        with self._lock:
            self._watched.add(queue)
            if not self._running and not self._stopping.is_set():
                self._threads.start("penstock-poller", self._run)
                self._running = True

    def forked(self) -> None:
        """In a child: the thread is the parent's."""
        self._lock = threading.Lock()
        self._watched, self._running = set(), False

    def stop(self) -> None:
        """Look no more."""
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
                watched: Iterable[TurningQueue] = list(self._watched)
            for queue in watched:
                if queue.is_due():
                    queue.serve()
