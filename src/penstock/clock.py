"""The only door to time. Wall time is integer milliseconds since the epoch, durations are seconds."""

import threading
import time
from typing import Protocol

_DAY = 86_400


class Clock(Protocol):
    """What a store needs of time; pass one to `penstock.open(..., clock=)` to control it in tests."""

    def now(self) -> int:
        """Wall time, in milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, whatever happens to wall time."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the seconds have passed; whether it is set."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """Wall time, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed point."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, at most as long as the platform can count (centuries on 64 bits)."""
        try:
            return event.wait(min(seconds, threading.TIMEOUT_MAX))
        except RuntimeError as error:  # a second Ctrl-C while the first unwinds breaks the event's own lock
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise


class SimulatedClock:
    """A clock that stands still until told to move, for tests that must not wait.

    >>> clock = SimulatedClock()
    >>> store = penstock.open("memory:", clock=clock)
    >>> clock.advance(30)            # thirty seconds pass: leases end, delays are over
    """

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._elapsed = 0  # in milliseconds, as sums of fractions would drift apart from wall time
        self._lock = threading.Lock()  # of both
        self._looked = threading.local()  # what had elapsed when a thread last looked

    def now(self) -> int:
        """Wall time, in milliseconds since the epoch."""
        with self._lock:
            self._looked.at = self._elapsed
            return self._now

    def monotonic(self) -> float:
        """The seconds that advance() let pass."""
        self._looked.at = elapsed = self._elapsed
        return elapsed / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += milliseconds(seconds)
            self._elapsed += milliseconds(seconds)

    def jump(self, seconds: float) -> None:
        """Set wall time forwards or backwards, as an administrator or NTP would; no time passes."""
        with self._lock:
            self._now += milliseconds(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or another thread has advanced the clock far enough.

        The seconds count from when this thread last looked at the clock: whoever has decided how long to wait
        cannot miss what passes before it does, and is not left waiting by a clock that moves no more.
        """
        deadline: int = getattr(self._looked, "at", self._elapsed) + milliseconds(seconds)
        while self._elapsed < deadline and not event.wait(0.0005):
            pass
        self._looked.at = self._elapsed
        return event.is_set()


class SteadyClock:
    """A store's view of a clock: wall time that never runs backwards."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest = 0
        self._lock = threading.Lock()
        self.monotonic = clock.monotonic
        self.wait = clock.wait

    def now(self) -> int:
        """The clock's time, or the latest time seen so far if the clock is behind it."""
        with self._lock:
            self._latest = max(self._latest, self._clock.now())
            return self._latest

    def forked(self) -> None:
        """In a child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()

    def at_least(self, time: int) -> None:
        """It cannot be earlier than that."""
        with self._lock:
            self._latest = max(self._latest, time)


class ElapsedClock:
    """A clock's monotonic time in the place of its wall time: for who waits for so long, not for a time of day."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.wait = clock.wait

    def now(self) -> int:
        """Milliseconds since some fixed point."""
        return int(self.monotonic() * 1000)


def pause(clock: Clock, seconds: float) -> float:
    """How long to sleep before looking at a clock again, for who waits for so many of its seconds."""
    return min(seconds, _DAY) if isinstance(clock, SystemClock) else 0.001


def rest(seconds: float) -> None:
    """Let others go on meanwhile: for who waits for another process, which no clock of a store can hurry."""
    time.sleep(seconds)


def milliseconds(seconds: float) -> int:
    """A duration as the integer that is added to times."""
    return round(seconds * 1000)


def at_least_one(seconds: float) -> int:
    """A duration that someone asked for is never rounded down to none."""
    return max(1, milliseconds(seconds))
