"""Consumers of one process: served at once, or in line until other processes or time bring messages."""

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.contract.message import Message
from penstock.system.clock import Clock

if TYPE_CHECKING:
    from penstock.stores.folder.queue import FolderQueue


class Waiter:
    """A consumer in line; `ids` are what it was given to fetch."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.ids: list[str] = []
        self.error: Exception | None = None
        self.woken = threading.Event()


class Line:
    """The line of one queue."""

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, waiter: Waiter, first: bool = False) -> None:
        """Stand in line, or again at its head."""
        waiter.ids = []
        waiter.woken.clear()
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)

    def is_first(self, waiter: Waiter) -> bool:
        """Whether it is its turn next."""
        return bool(self._waiters) and self._waiters[0] is waiter

    def leave(self, waiter: Waiter) -> None:
        """Go away."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._wake_first()

    def serve(self, pick: Callable[[int], list[str]]) -> None:
        """Give what can be picked to those who came first."""
        while self._waiters and (ids := pick(self._waiters[0].n)):
            waiter = self._waiters.popleft()
            waiter.ids = ids
            waiter.woken.set()
            self._wake_first()

    def send_away(self, error: Callable[[], Exception]) -> None:
        """Nobody will be served any more."""
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.error = error()
            waiter.woken.set()

    def _wake_first(self) -> None:
        """Who is first looks for news; it has to know."""
        if self._waiters:
            self._waiters[0].woken.set()


_LOOK = 0.1  # seconds after which who waits looks for what other processes have done
_LATER = 1.0  # the same for those who are not first in line
Fetch = Callable[[list[str]], list[Message]]


class Waiting:
    """For the consumers of one process."""

    def __init__(self, clock: Clock, look: Callable[[], None]) -> None:
        self._clock = clock
        self._look = look  # which queues there are

    def take(self, queue: "FolderQueue", n: int, wait: float, fetch: Fetch) -> list[Message]:
        """What `fetch` gets of what this consumer may have; empty if there is nothing in time."""
        queue.look_again()
        while ids := queue.pick(n):
            if taken := fetch(ids):
                return taken
            # Others were quicker with all of them, or they are still being written: on to the next.
        if wait <= 0:
            return []
        return self._wait_in_line(queue, Waiter(n), self._clock.monotonic() + wait, fetch)

    def _wait_in_line(self, queue: "FolderQueue", waiter: Waiter, end: float, fetch: Fetch) -> list[Message]:
        queue.stand_in_line(waiter)
        try:
            while True:
                if waiter.ids:
                    ids, waiter.ids = waiter.ids, []
                    if taken := fetch(ids):
                        return taken
                    queue.stand_in_line(waiter, first=True)
                    continue
                if waiter.error is not None:
                    raise waiter.error
                left = end - self._clock.monotonic()
                if left <= 0:
                    ids = queue.leave_line(waiter)  # it may be served in this last moment
                    return fetch(ids) if ids else []
                self._wait_for_news(queue, waiter, left)
        finally:
            queue.give_back(queue.leave_line(waiter))

    def _wait_for_news(self, queue: "FolderQueue", waiter: Waiter, left: float) -> None:
        """The first in line looks for what other processes and time bring; the others wait for their turn."""
        first = queue.line.is_first(waiter)
        pause = min(left, _LOOK if first else _LATER)
        if first:
            pause = min(pause, max(0.001, (queue.next_due() - self._clock.now()) / 1000))
        self._clock.wait(waiter.woken, pause)
        if not waiter.ids:
            waiter.woken.clear()
        if first and not waiter.ids and waiter.error is None:
            self._look()
            queue.look_again()
            queue.refresh(eager=True)
            queue.advance()
