"""Wakes whoever waits for a time: a delay or a lease that ends while consumers stand in line."""

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from penstock.system.clock import Clock

_LOOK_AGAIN = 1_000  # milliseconds after which a wall clock that was set is noticed
_SLACK = 64
_log = logging.getLogger("penstock")


class Alarm:
    """One thread, alive only while there is something to wait for, that calls back at wall-clock times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[Callable[[], None], int] = {}  # when each is to be called; the heap may have older ones
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Event()
        self._running = False

    def set(self, call: Callable[[], None], time: int) -> None:
        """Call back once that time has come, instead of at the time that was set before."""
        with self._lock:
            self._times[call] = time
            heapq.heappush(self._heap, (time, next(self._order), call))
            if len(self._heap) > 2 * len(self._times) + _SLACK:
                self._sweep()
            self._changed.set()
            if not self._running:
                self._start()

    def cancel(self, call: Callable[[], None]) -> None:
        """Do not call back."""
        with self._lock:
            if self._times.pop(call, None) is not None:
                self._sweep()
                self._changed.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="penstock-alarm", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: those who wait look for themselves when their wait ends
            return
        self._running = True

    def _sweep(self) -> None:
        self._heap = [(time, next(self._order), call) for call, time in self._times.items()]
        heapq.heapify(self._heap)

    def _run(self) -> None:
        stalled = 0  # milliseconds to wait while the clock stands still, because it was set back
        while True:
            with self._lock:
                self._changed.clear()
                now = self._clock.now()
                due = self._due(now)
                if not due and not self._times:
                    self._running = False
                    return
                pause = min(max(self._heap[0][0] - now, stalled), _LOOK_AGAIN) if self._heap else 0
            for call in due:
                try:
                    call()
                except Exception:
                    _log.exception("an alarm failed")
            if not due:
                changed = self._clock.wait(self._changed, pause / 1000)
                stalled = 0 if changed or self._clock.now() > now else max(2 * pause, 1)

    def _due(self, now: int) -> list[Callable[[], None]]:
        due = []
        while self._heap and (self._heap[0][0] <= now or self._times.get(self._heap[0][2]) != self._heap[0][0]):
            time, _, call = heapq.heappop(self._heap)
            if self._times.get(call) == time:
                del self._times[call]
                due.append(call)
        return due
