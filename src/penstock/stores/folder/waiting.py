"""Waiting consumers of a folder queue in one process: their line, and which messages each may fetch."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from penstock.contract.message import Message
from penstock.contract.settings import Settings
from penstock.stores.folder.shared import Shared
from penstock.stores.folder.view import QueueView

_LOOK = 0.1  # seconds between two looks of the first consumer in line at the folders
_LATER = 1.0  # seconds between two looks of the others at whether they are first
Fetch = Callable[[list[str]], list[Message]]


class Waiter:
    """A consumer in line for n messages; `ids` are those that it may fetch."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.ids: list[str] = []
        self.error: Exception | None = None
        self.woken = threading.Event()


class Line:
    """The waiting consumers of one queue, first come, first served."""

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, waiter: Waiter, first: bool = False) -> None:
        """Add a consumer at the end, or at the head if its messages were taken by another process."""
        waiter.ids = []
        waiter.woken.clear()
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)

    def is_first(self, waiter: Waiter) -> bool:
        """Whether the consumer is at the head."""
        return bool(self._waiters) and self._waiters[0] is waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a consumer."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._wake_first()

    def serve(self, pick: Callable[[int], list[str]]) -> None:
        """Give picked messages to consumers, in the order of their arrival."""
        while self._waiters and (ids := pick(self._waiters[0].n)):
            waiter = self._waiters.popleft()
            waiter.ids = ids
            waiter.woken.set()
            self._wake_first()

    def refuse_all(self, error: Callable[[], Exception]) -> None:
        """Give every consumer an error."""
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.error = error()
            waiter.woken.set()

    def _wake_first(self) -> None:
        """Wake the new first consumer, which has to look at the folders."""
        if self._waiters:
            self._waiters[0].woken.set()


class WaitingQueue(QueueView):
    """A queue with its line of consumers, which the queue's lock guards too."""

    def __init__(
        self, shared: Shared, name: str, file: str, settings: Settings, look: Callable[[], object]
    ) -> None:
        super().__init__(shared, name, file, settings)
        self.line = Line()
        self._look = look  # reads the catalog: the queue may have been deleted
        self._picked: dict[str, int] = {}  # messages about to be fetched, and when: their leases start then
        self._refusal: Callable[[], Exception] | None = None

    def _take(self, n: int, wait: float, fetch: Fetch) -> list[Message]:
        """Fetch up to n messages, waiting for the first one; empty if none comes in time."""
        self.retry_postponed()
        while ids := self._pick_now(n):
            if taken := fetch(ids):
                return taken
            # Other processes took all of them first, or they are still being written: on to the next.
        if wait <= 0:
            return []
        return self._wait_in_line(Waiter(n), self._clock.monotonic() + wait, fetch)

    def _wait_in_line(self, waiter: Waiter, end: float, fetch: Fetch) -> list[Message]:
        self._stand_in_line(waiter)
        try:
            while True:
                if waiter.ids:
                    ids, waiter.ids = waiter.ids, []
                    if taken := fetch(ids):
                        return taken
                    self._stand_in_line(waiter, first=True)
                    continue
                if waiter.error is not None:
                    raise waiter.error
                left = end - self._clock.monotonic()
                if left <= 0:
                    ids = self._leave_line(waiter)  # it may have been served just now
                    return fetch(ids) if ids else []
                self._wait_for_news(waiter, left)
        finally:
            self._give_back(self._leave_line(waiter))

    def _wait_for_news(self, waiter: Waiter, left: float) -> None:
        """Sleep until woken. The first consumer in line then looks at the folders and at the clock."""
        first = self.line.is_first(waiter)
        pause = min(left, _LOOK if first else _LATER)
        if first:
            with self.lock:
                due = self._rows.next_due()
            pause = min(pause, max(0.001, (due - self._clock.now()) / 1000))
        self._clock.wait(waiter.woken, pause)
        if not waiter.ids:
            waiter.woken.clear()
        if first and not waiter.ids and waiter.error is None:
            self._look()
            self.retry_postponed()
            self._look_now()

    def serve(self) -> None:
        with self.lock:
            if self.line:
                self.line.serve(self._pick)

    def _pick(self, n: int) -> list[str]:
        if not self._shared.peers:
            ids = self._rows.pick(n)
        else:
            window = self._shared.window(max(self._fetched, self._fetched_before))
            ids = self._rows.pick_any(n, window, self._shared.dice)
        self._fetched += len(ids)
        for uid in ids:
            self._picked[uid] = self._clock.now()
        return ids

    def _pick_now(self, n: int) -> list[str]:
        """Pick messages for a new consumer; none if others are in line."""
        self.refresh(eager=self._may_look() and any(map(self._is_stale, self._watches.values())))
        self.advance()
        with self.lock:
            self.serve()
            ids = [] if self.line else self._pick(n)
        if not ids:
            self._look_now()
            with self.lock:
                ids = [] if self.line else self._pick(n)
        return ids

    def _may_look(self) -> bool:
        """Whether peers justify a listing now: as long as listings take a tenth of the time at most."""
        if not self._shared.peers:
            return False
        since = self._clock.monotonic() - self._refreshed
        return since >= 10 * self._refresh_took

    def retry_postponed(self) -> None:
        """Make files available again that were still being written when a consumer tried to fetch them."""
        with self.lock:
            self._rows.retry_postponed()

    def _give_back(self, ids: Iterable[str]) -> None:
        """Make picked messages available again."""
        with self.lock:
            for uid in ids:
                self._picked.pop(uid, None)
                self._rows.give_back(uid)
            self.serve()

    def stop(self, error: Callable[[], Exception]) -> None:
        """Give waiting and later consumers this error."""
        with self.lock:
            self._refusal = error
            self.line.refuse_all(error)

    def _stand_in_line(self, waiter: Waiter, first: bool = False) -> None:
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            self.line.join(waiter, first)
            self.serve()

    def _leave_line(self, waiter: Waiter) -> list[str]:
        """Remove a consumer from the line; the messages that it was given in the last moment."""
        with self.lock:
            self.line.leave(waiter)
            ids, waiter.ids = waiter.ids, []
            return ids
