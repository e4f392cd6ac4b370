"""Group commit: one thread leads and writes for all, the others wait until their records are written.

A thread that needs its records on stable storage leads if no other does, and otherwise waits. The leader of the
next commit is the first thread whose records were not in the last; the others wake one another in turn, because
all at once they would fight for the interpreter. In a crowd a leader goes on for a few commits more, because
handing over takes as long as half a commit.

A Ctrl-C may come at any line of this. The leader, and the threads that each thread has to wake, are noted before
the first is woken, so that an interrupted thread can finish its duties.
"""

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from penstock.errors import StoreClosed
from penstock.system.threads import Lock, Threads

_NEVER = 2**63  # records: the number of a thread that wants to lead in any case
_MORE = 7  # further commits of a leader in a crowd
_CROWD = 2  # waiting threads


class _Committer:
    """A thread that commits: it leads, or it waits at its gate."""

    __slots__ = ("gate", "wakes", "written")

    def __init__(self, written: int) -> None:
        self.written = written
        self.gate: Lock | None = None
        self.wakes: tuple[_Committer, ...] = ()  # once it has passed its gate, or has led


class Commits:
    """Commits of one journal or database; `flush` writes all records and returns how many are durable."""

    def __init__(
        self,
        threads: Threads,
        flush: Callable[[], int],
        failed: Callable[[BaseException], None],
        passing: tuple[type[BaseException], ...] = (),
    ) -> None:
        """`passing`: errors of `flush` after which no record is lost, so that the next commit may succeed."""
        self.durable = 0
        self.failure: Callable[[], StoreClosed] | None = None  # the error of every commit from now on
        self._flush = flush
        self._failed = failed
        self._passing: tuple[type[BaseException], ...] = (StoreClosed, *passing)
        self._threads = threads
        self._mutex = threads.lock()
        self._leader: _Committer | None = None
        self._waiting: deque[_Committer] = deque()

    def commit(self, written: int) -> bool:
        """Return once so many records are on stable storage; whether this thread wrote them."""
        if written <= self.durable:
            return False
        led = self._lead(_Committer(written), self._flush_for_all)
        if written > self.durable:
            self.check()
        return led

    def lead(self, work: Callable[[], None]) -> None:
        """Do something as the only thread that touches the latest file; also after a failure."""
        self._lead(_Committer(_NEVER), lambda _: work())

    def flush(self) -> None:
        """Write all records; for the leader."""
        self.durable = self._flush()

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self.failure is not None:
            raise self.failure()

    def refuse(self, failure: Callable[[], StoreClosed]) -> None:
        """The records cannot be trusted: commit nothing any more."""
        if self.failure is None:
            self.failure = failure

    def stop(self, error: BaseException) -> StoreClosed:
        """The latest records may be lost: commit nothing any more. Returns the error for callers."""
        if self.failure is None:
            self.failure = lambda: stopped(error)
            self._failed(error)
        return stopped(error)

    def _flush_for_all(self, me: _Committer) -> None:
        if self.failure is not None:
            raise self.failure()
        self.durable = self._flush()
        for _ in range(_MORE):
            if not self._waiting:
                return
            with self._mutex:
                ready, others = self._sorted()
                self._waiting, me.wakes = others, me.wakes + ready[:1]
            _wake(me)
            if len(others) < _CROWD:
                return
            self.flush()

    def _lead(self, me: _Committer, work: Callable[[_Committer], None]) -> bool:
        """Do something as the leader; False if the records were durable before its turn came."""
        at_work = False
        try:
            with self._mutex:
                if me.written <= self.durable:
                    return False
                if self._leader is None:
                    self._leader = me
                else:
                    me.gate = self._threads.lock()
                    me.gate.acquire()
                    self._waiting.append(me)
            if me.gate is not None:
                me.gate.acquire()
                if self._leader is not me:
                    _wake(me)
                    return False
            at_work = True
            work(me)
            at_work = False
            with self._mutex:
                alone = not self._waiting
                if alone:
                    self._leader = None
            if not alone:
                self._hand_over(me)
        except BaseException as error:
            told = self.stop(error) if at_work and not isinstance(error, self._passing) else None
            self._leave(me)
            if told is not None and isinstance(error, OSError):
                raise told from error
            raise
        return True

    def _hand_over(self, me: _Committer) -> None:
        """Wake threads whose records are durable, and make the first other thread the leader."""
        with self._mutex:
            ready, others = self._sorted()
            leader = others.popleft() if others else None
            wakes = (leader, *ready[:1]) if leader is not None else ready[:1]
            self._waiting, self._leader, me.wakes = others, leader, me.wakes + wakes
        _wake(me)

    def _leave(self, me: _Committer) -> None:
        """An interrupted thread leaves, and wakes the threads that wait for it."""
        with self._mutex:
            if me in self._waiting:
                self._waiting.remove(me)
                me.wakes = ()  # it has no one to wake yet
            leads = self._leader is me
        if leads:
            self._hand_over(me)
        else:
            _wake(me)

    def _sorted(self) -> tuple[tuple[_Committer, ...], deque[_Committer]]:
        """Threads whose records are durable, each to wake the next, and threads that go on waiting."""
        enough = self.durable if self.failure is None else _NEVER - 1
        ready = tuple([each for each in self._waiting if each.written <= enough])
        for each, following in pairwise(ready):
            each.wakes = (following,)
        return ready, deque([each for each in self._waiting if each.written > enough])


def _wake(me: _Committer) -> None:
    """Wake the threads that this one has to wake."""
    for each in me.wakes:
        if each.gate is not None:
            with suppress(RuntimeError):  # it was woken already, before an interruption
                each.gate.release()
    me.wakes = ()


def stopped(error: BaseException) -> StoreClosed:
    """The error of a store that an interrupted or failed write has stopped."""
    if not isinstance(error, OSError):
        return StoreClosed(
            f"the store was stopped, because writing was interrupted ({str(error) or type(error).__name__}) and "
            "what was written last may be lost: open the store again; that checks every byte"
        )
    what = f"{error.strerror} on {os.fspath(error.filename)!r}" if error.filename else str(error)
    return StoreClosed(
        f"the store was stopped, because writing failed ({what}) and what was written last may be lost: find out "
        "what is wrong with the disk, then open the store again; that checks every byte"
    )
