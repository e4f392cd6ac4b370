"""Queues that are far behind the log catch up in the background, a step of each in turn, and hold up nobody."""

import logging
import threading
from collections.abc import Callable

from penstock.errors import PenstockError, StoreUnreachable
from penstock.system.threads import Threads

_log = logging.getLogger("penstock")


class CatchingUp:
    """A thread that is there while a queue has something to catch up with, and room for it."""

    def __init__(
        self,
        threads: Threads,
        step: Callable[[str], bool],
        commit: Callable[[], None],
        later: Callable[[str], None],
    ) -> None:
        """step: offers a queue some of what it has missed, and says whether there is more
        commit: makes what it was given durable
        later: called with a queue for which that cannot be done now
        """
        self._threads = threads
        self._step = step
        self._commit = commit
        self._later = later
        self._changed = threading.Condition()
        self._waiting: dict[str, None] = {}
        self._at_work: str | None = None
        self._running = False
        self._stopped = False

    def begin(self, queue: str) -> None:
        """Let a queue catch up."""
        with self._changed:
            if self._stopped:
                return
            self._waiting[queue] = None
            if self._running:
                return
            self._running = True
        try:
            self._threads.start("penstock-router", self._run)
        except RuntimeError:  # no thread to be had: who makes room in the queue begins again
            with self._changed:
                self._running = False

    def go_on(self, queue: str) -> bool:
        """If a queue is being looked after, see to it that it is once more; whether it is."""
        with self._changed:
            if not self._running or (queue != self._at_work and queue not in self._waiting):
                return False
            self._waiting[queue] = None
            return True

    def stop(self) -> None:
        """Let no queue catch up any more; returns once none does."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._running)

    def _run(self) -> None:
        while (queue := self._next()) is not None:
            try:
                more = self._step(queue)
                self._commit()
                if more:
                    self.begin(queue)
            except StoreUnreachable:
                self._later(queue)
            except PenstockError:  # the store was stopped, or the queue is gone
                continue
            except Exception:
                _log.exception("queue %r cannot catch up with what was published", queue)

    def _next(self) -> str | None:
        with self._changed:
            self._at_work = None
            if self._stopped or not self._waiting:
                self._running = False
                self._changed.notify_all()
                return None
            self._at_work = next(iter(self._waiting))
            del self._waiting[self._at_work]
            return self._at_work
