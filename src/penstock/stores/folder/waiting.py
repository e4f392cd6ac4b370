"""Consumers of one process: served at once, or in line until other processes or time bring messages."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from penstock.contract.message import Message
from penstock.contract.settings import Settings
from penstock.stores.folder.shared import Shared
from penstock.stores.folder.view import QueueView

_LOOK = 0.1  # seconds after which the first in line looks for what other processes have done
_LATER = 1.0  # seconds after which the others look whether they are first
Fetch = Callable[[list[str]], list[Message]]


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
        """Give what can be picked to consumers in the order of their arrival."""
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
        """Tell the first consumer that it is first, as it has to look for news."""
        if self._waiters:
            self._waiters[0].woken.set()


class ServedQueue(QueueView):
    """A queue with its line of consumers, and what they may fetch. The queue's lock guards the line, too."""

    def __init__(
        self, shared: Shared, name: str, file: str, settings: Settings, look: Callable[[], object]
    ) -> None:
        super().__init__(shared, name, file, settings)
        self.line = Line()
        self._look = look  # which queues there are
        self._picked: dict[str, int] = {}  # when messages were picked that are about to be fetched: that counts
        self._refusal: Callable[[], Exception] | None = None

    def _take(self, n: int, wait: float, fetch: Fetch) -> list[Message]:
        """What `fetch` gets of what this consumer may have; empty if there is nothing in time."""
        self.look_again()
        while ids := self._pick_now(n):
            if taken := fetch(ids):
                return taken
            # Others were quicker with all of them, or they are still being written: on to the next.
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
                    ids = self._leave_line(waiter)  # it may be served in this last moment
                    return fetch(ids) if ids else []
                self._wait_for_news(waiter, left)
        finally:
            self._give_back(self._leave_line(waiter))

    def _wait_for_news(self, waiter: Waiter, left: float) -> None:
        """The first in line looks for what other processes and time bring; the others wait for their turn."""
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
            self.look_again()
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
        """What a consumer that has just come may fetch: nothing that others wait for."""
        self.refresh(eager=self._may_look() and any(map(self._doubts, self._watches.values())))
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
        """Whether to look at once what peers have left: as long as that takes a tenth of the time at most."""
        if not self._shared.peers:
            return False  # then most tries are in vain, and the next is cheaper than a look
        since = self._clock.monotonic() - self._refreshed
        return since >= 10 * self._refresh_took

    def look_again(self) -> None:
        """Files that were being written when somebody tried to fetch them may be whole by now."""
        with self.lock:
            self._rows.look_again()

    def _give_back(self, ids: Iterable[str]) -> None:
        """What was picked is not fetched after all."""
        with self.lock:
            for uid in ids:
                self._picked.pop(uid, None)
                self._rows.give_back(uid)
            self.serve()

    def stop(self, error: Callable[[], Exception]) -> None:
        """Send away who waits."""
        with self.lock:
            self._refusal = error
            self.line.send_away(error)

    def _stand_in_line(self, waiter: Waiter, first: bool = False) -> None:
        """Wait for one's turn."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            self.line.join(waiter, first)
            self.serve()

    def _leave_line(self, waiter: Waiter) -> list[str]:
        """Wait no more; what it was given to fetch in the last moment."""
        with self.lock:
            self.line.leave(waiter)
            ids, waiter.ids = waiter.ids, []
            return ids
