"""Clocks and alarms, the only access to time. Times are milliseconds since the epoch, durations are seconds."""

import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

_DAY = 86_400
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000  # milliseconds
FOLLOWED = _HOUR  # how far ahead of the clock a time in a file of another process may be
_LASTING = 10 * _SECOND  # after which a clock that leapt ahead is believed
_SLACK = 10  # lag that does not mean a clock was set back: two clocks are not read at the same moment
_DRIFT = 5  # difference from which on two clocks are compared, well below _SLACK
_TRIES = 16
_LOOK_AGAIN = _SECOND  # the longest sleep of an alarm, so that it notices a wall clock that was set
_STALE = 64  # entries of an alarm that are never worth a sweep
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # BOOTTIME goes on while the machine sleeps
_log = logging.getLogger("penstock")


class Clock(Protocol):
    """The clock of a store; tests pass their own to `penstock.open(..., clock=)`."""

    def now(self) -> int:
        """Wall time, in milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, whatever happens to wall time."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the seconds have passed; whether it is set."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(partial(time.clock_gettime, _BOOT))  # no Python frame: every operation reads it

    def wait(self, event: threading.Event, seconds: float) -> bool:
        try:
            return event.wait(min(seconds, threading.TIMEOUT_MAX))
        except RuntimeError as error:  # a second Ctrl-C while the first unwinds breaks the event's own lock
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise


class SimulatedClock:
    """A clock that moves only by advance() and jump(), for tests that must not wait.

    Examples:
        >>> clock = penstock.SimulatedClock()
        >>> store = penstock.open("memory:", clock=clock)
        >>> clock.advance(30)            # thirty seconds pass: leases end, delays are over
    """

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._elapsed = 0  # in milliseconds, as sums of fractions would drift apart from wall time
        self._lock = threading.Lock()  # of both
        self._looked = threading.local()  # elapsed time when each thread last read the clock

    def now(self) -> int:
        with self._lock:
            self._looked.at = self._elapsed
            return self._now

    def monotonic(self) -> float:
        self._looked.at = elapsed = self._elapsed
        return elapsed / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += milliseconds(seconds)
            self._elapsed += milliseconds(seconds)

    def jump(self, seconds: float) -> None:
        """Set wall time forwards or backwards, as an administrator or NTP would; no time passes.

        A store believes a jump of more than an hour ahead once it has seen it for ten seconds.
        """
        with self._lock:
            self._now += milliseconds(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or another thread has advanced the clock far enough.

        The seconds count from when this thread last looked at the clock: a caller that has decided how long to
        wait cannot miss what passes before it does, and is not left waiting by a clock that moves no more.
        """
        deadline: int = getattr(self._looked, "at", self._elapsed) + milliseconds(seconds)
        while self._elapsed < deadline and not event.wait(0.0005):
            pass
        self._looked.at = self._elapsed
        return event.is_set()


class SteadyClock:
    """A store's time: the clock's, but it never runs backwards, never stands still, and ignores glitches.

    The clock is compared with the time that has elapsed:
    - Behind it (it was set back, or the store has recorded a later time): the store's time goes on as time passes.
    - Ahead by more than a minute (of tests' clocks, an hour): not believed until that has lasted for ten seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.monotonic = clock.monotonic
        self.wait = clock.wait
        self._leap = _MINUTE if isinstance(clock, SystemClock) else _HOUR  # the longest that is believed at once
        self._latest, elapsed = self._read()
        self._offset = self._latest - elapsed  # of the store's time from elapsed time
        self._doubted: tuple[int, int] | None = None  # (offset, since) of a clock that leapt ahead
        self._warned: set[str] = set()

    def now(self) -> int:
        """The store's time."""
        with self._lock:
            wall = self._clock.now()
            ahead = wall - self._offset - self.monotonic() * 1000
            if -_DRIFT <= ahead <= _DRIFT and wall >= self._latest and self._doubted is None:
                self._latest = wall
            else:
                self._compare()
            return self._latest

    def forked(self) -> None:
        """In a child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()

    def at_least(self, time: int, source: str) -> None:
        """Move on to a time that the store itself has recorded."""
        with self._lock:
            ahead = time - self._compare()
            if ahead > _MINUTE:
                self._warn(source, "%s: the latest time recorded is %s s ahead of the clock, and the store's time "
                           "goes on from there: look at the machine's clock", ahead)  # fmt: skip
            self._move_to(time)

    def follow(self, time: int, source: str) -> bool:
        """Move on to a time in a file of other machines or people; False if it is over an hour ahead."""
        if time <= self._latest:
            return True
        with self._lock:
            ahead = time - self._compare()
            if ahead <= FOLLOWED:
                self._move_to(time)
                return True
            self._warn(source, "%s says a time that is %s s ahead of the clock, which is not followed: look at "
                       "the clocks of the machines that use it", ahead)  # fmt: skip
            return False

    def horizon(self) -> int:
        """The latest time that is followed."""
        with self._lock:
            return self._compare() + FOLLOWED

    def _compare(self) -> int:
        """Update the store's time; returns the clock's time, as far as it is believed."""
        wall, elapsed = self._read()
        expected = self._offset + elapsed
        believed = wall
        if wall - expected <= self._leap:
            self._doubted = None
        elif not self._has_lasted(wall - elapsed, elapsed, wall - expected):
            believed = expected
        now = believed if expected - believed <= _SLACK else expected
        self._latest = max(self._latest, now)
        self._offset = self._latest - elapsed
        return believed

    def _has_lasted(self, offset: int, elapsed: int, ahead: int) -> bool:
        """Whether a clock that leapt ahead has stayed there."""
        if self._doubted is None or abs(offset - self._doubted[0]) > self._leap:
            self._doubted = offset, elapsed
            _log.warning("the clock is %s s ahead of the time that has passed: not believed unless that lasts for "
                         "%d s", f"{ahead // _SECOND:,}", _LASTING // _SECOND)  # fmt: skip
        if elapsed - self._doubted[1] < _LASTING:
            return False
        self._doubted = None
        _log.warning("the clock was set ahead by %s s, and the store's time with it", f"{ahead // _SECOND:,}")
        return True

    def _read(self) -> tuple[int, int]:
        """Wall time and elapsed time, of the same moment unless this thread is interrupted again and again."""
        for _ in range(_TRIES):
            before, wall, elapsed = self.monotonic(), self._clock.now(), self.monotonic()
            if elapsed - before < 0.001:
                break
        return wall, milliseconds(elapsed)

    def _move_to(self, time: int) -> None:
        ahead = time - self._latest
        if ahead > 0:
            self._latest += ahead
            self._offset += ahead

    def _warn(self, source: str, text: str, ahead: int) -> None:
        """Warn once per folder: a wrong clock has dated more than one file."""
        folder = os.path.dirname(source)
        if folder not in self._warned:
            self._warned.add(folder)
            _log.warning(text, source, f"{ahead // _SECOND:,}")


class ElapsedClock:
    """A clock whose now() is monotonic time: for durations, not for times of day."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.wait = clock.wait

    def now(self) -> int:
        """Milliseconds since a fixed point."""
        return int(self.monotonic() * 1000)


class Alarm:
    """Calls back at wall-clock times. Its thread runs only while callbacks are set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[Callable[[], None], int] = {}  # when to call each; the heap may have stale times
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Event()
        self._running = False

    def set(self, call: Callable[[], None], time: int) -> None:
        """Call back at that time, which replaces an earlier one."""
        with self._lock:
            self._times[call] = time
            heapq.heappush(self._heap, (time, next(self._order), call))
            if len(self._heap) > 2 * len(self._times) + _STALE:
                self._sweep()
            self._changed.set()
            if not self._running:
                self._start()

    def cancel(self, call: Callable[[], None]) -> None:
        """Cancel a callback."""
        with self._lock:
            if self._times.pop(call, None) is not None:
                self._sweep()
                self._changed.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="penstock-alarm", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread available: consumers check when their wait ends
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


def pause(clock: Clock, seconds: float) -> float:
    """How long to sleep before reading a clock again, to wait for so many of its seconds."""
    return min(seconds, _DAY) if isinstance(clock, SystemClock) else 0.001


def rest(seconds: float) -> None:
    """Sleep in real time, to wait for another process."""
    time.sleep(seconds)


def milliseconds(seconds: float) -> int:
    """A duration in milliseconds."""
    return round(seconds * 1000)


def at_least_one(seconds: float) -> int:
    """A duration in milliseconds, never rounded down to 0."""
    return max(1, round(seconds * 1000))
