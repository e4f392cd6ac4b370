"""Looks for those who wait in line whether other processes, or time, have brought something."""

import threading
from collections.abc import Iterable

from penstock.stores.text.turns import TurningQueue
from penstock.system.threads import Threads

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
