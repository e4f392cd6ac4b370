"""Wakes whoever waits for a time: a delay or a lease that ends while consumers stand in line."""

import heapq
import itertools
import threading
from collections.abc import Callable

from penstock.clock import Clock

_LOOK_AGAIN = 1.0  # seconds after which a wall clock that was set is noticed


class Alarm:
    """One thread, alive only while there is something to wait for, that calls back at wall-clock times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Event()
        self._running = False

    def at(self, time: int, call: Callable[[], None]) -> None:
        """Call back once that time has come."""
        with self._lock:
            heapq.heappush(self._calls, (time, next(self._order), call))
            self._changed.set()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="penstock-alarm", daemon=True).start()

    def clear(self) -> None:
        """Forget every call."""
        with self._lock:
            self._calls.clear()
            self._changed.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.clear()
                now = self._clock.now()
                due = []
                while self._calls and self._calls[0][0] <= now:
                    due.append(heapq.heappop(self._calls)[2])
                if not due and not self._calls:
                    self._running = False
                    return
                wait = 0 if due else (self._calls[0][0] - now) / 1000
            for call in due:
                call()
            if wait:
                self._clock.wait(self._changed, min(wait, _LOOK_AGAIN))
