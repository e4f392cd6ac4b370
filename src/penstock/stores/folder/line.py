"""Consumers that wait, in the order of their arrival. Whoever uses it holds the queue's lock."""

import threading
from collections import deque
from collections.abc import Callable


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
