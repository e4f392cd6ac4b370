"""Commits that threads share: one thread leads and writes for all, the others wait until theirs is written.

Whoever needs something on stable storage leads if no one does, and otherwise waits. The leader of the next commit
is the first of those whose records were not in the last; the others wake one another in turn, because all at once
they would fight for the interpreter. In a crowd a leader goes on for a few commits more, because handing over
takes as long as half a commit.
"""

import os
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from penstock.errors import StoreClosed
from penstock.threads import Lock, Threads

_NEVER = 2**63  # records; for who only wants to lead
_MORE = 7  # commits that a leader goes on for in a crowd
_CROWD = 2


class _Waiter:
    """A thread that waits for a commit."""

    __slots__ = ("gate", "leads", "next", "written")

    def __init__(self, written: int, gate: Lock) -> None:
        self.written = written
        self.gate = gate
        self.leads = False
        self.next: _Waiter | None = None  # whom to wake


class Commits:
    """The commits of one journal; `flush` writes what there is and says how many records are durable then."""

    def __init__(
        self, threads: Threads, flush: Callable[[], int], failed: Callable[[BaseException], None]
    ) -> None:
        self.durable = 0
        self.failure: BaseException | None = None
        self._flush = flush
        self._failed = failed
        self._threads = threads
        self._mutex = threads.lock()
        self._leading = False
        self._waiters: deque[_Waiter] = deque()

    def commit(self, written: int) -> bool:
        """Return once so many records are on stable storage; whether this thread wrote them."""
        if written <= self.durable or not self._wait_to_lead(written):
            return False
        self._lead(self._flush_for_all)
        return True

    def lead(self, work: Callable[[], None]) -> None:
        """Do something as the only one that touches the latest file."""
        self._wait_to_lead(_NEVER)
        self._lead(work)

    def flush(self) -> None:
        """Write what there is; for who leads."""
        self.durable = self._flush()

    def _flush_for_all(self) -> None:
        self.flush()
        for _ in range(_MORE):
            if not self._waiters:
                return
            with self._mutex:
                ready = self._take_ready()
                crowd = len(self._waiters) >= _CROWD
            _wake(ready)
            if not crowd:
                return
            self.flush()

    def stop(self, error: BaseException) -> StoreClosed:
        """What was written last may be lost: nothing is committed any more. What to tell whoever asked."""
        if self.failure is None:
            self.failure = error
            self._failed(error)
        return stopped(error)

    def _wait_to_lead(self, written: int) -> bool:
        """Wait until this thread leads, or until so many records are on stable storage; whether it leads."""
        with self._mutex:
            if written <= self.durable:
                return False
            self._check()
            if not self._leading:
                self._leading = True
                return True
            waiter = _Waiter(written, self._threads.lock())
            waiter.gate.acquire()
            self._waiters.append(waiter)
        return self._wait(waiter)

    def _wait(self, waiter: _Waiter) -> bool:
        try:
            waiter.gate.acquire()
        except BaseException:  # Ctrl-C: whoever relies on this one must not wait for ever
            with self._mutex:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if waiter.leads:
                self._hand_over()
            elif waiter.next is not None:
                waiter.next.gate.release()
            raise
        if waiter.leads:
            return True
        if waiter.next is not None:
            waiter.next.gate.release()
        if waiter.written > self.durable:
            self._check()
        return False

    def _lead(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            told = self.stop(error)
            self._hand_over()
            if isinstance(error, OSError):
                raise told from error
            raise
        self._hand_over()

    def _hand_over(self) -> None:
        """Let those go on who waited for what is durable now, and the first of the others lead."""
        leader = None
        with self._mutex:
            ready = self._take_ready()
            if self._waiters:
                leader = self._waiters.popleft()
                leader.leads = True
            else:
                self._leading = False
        if leader is not None:
            leader.gate.release()
        _wake(ready)

    def _take_ready(self) -> list[_Waiter]:
        """Those who need wait no longer."""
        waiting = self._waiters
        if self.failure is not None:
            ready, self._waiters = list(waiting), deque()
        else:
            ready = [waiter for waiter in waiting if waiter.written <= self.durable]
            if ready:
                self._waiters = deque(each for each in waiting if each.written > self.durable)
        return ready

    def _check(self) -> None:
        if self.failure is not None:
            raise stopped(self.failure)


def _wake(waiters: list[_Waiter]) -> None:
    """Wake the first; each wakes the next."""
    for waiter, following in pairwise(waiters):
        waiter.next = following
    if waiters:
        waiters[0].gate.release()


def stopped(error: BaseException) -> StoreClosed:
    """What everyone is told after an error that may have lost bytes."""
    what: object = error
    if isinstance(error, OSError) and error.filename:
        what = f"{error.strerror} on {os.fspath(error.filename)!r}"
    return StoreClosed(
        f"the store was stopped, because writing failed ({what}) and what was written last may be lost: find out "
        "what is wrong with the disk, then open the store again; that checks every byte"
    )
