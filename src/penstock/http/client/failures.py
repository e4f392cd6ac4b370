"""What can go wrong between a client and its server, and what is tried again.

A request that certainly was not carried out is always tried again: nobody was reached, or not all of it was sent.
One that may have been carried out is only tried again if that does no harm. What takes too long is not: the server
is there, and asking twice makes it no faster.
"""

from __future__ import annotations

import os
import random

from penstock.errors import PenstockError, StoreUnreachable
from penstock.system.clock import Clock

TRIES = 9
PATIENCE = 10.0  # seconds from the start of a call in which it is tried again
_FIRST, _LONGEST = 0.1, 2.0  # seconds between two tries


class Failure(Exception):
    """No answer, or none that counts."""

    done = True  # as far as the client can know
    passing = True  # may be over the next time

    def error(self, url: str, name: str, repeatable: bool, maybe_done: bool) -> PenstockError:
        """What the caller is told when nothing more is tried."""
        if not maybe_done:
            return StoreUnreachable(
                f"the server at {url} cannot be reached: {self}. Nothing was done: check the address, start the "
                "server with `penstock serve` if it does not run, and try again"
            )
        harmless = "trying again does no harm" if repeatable else "look before you try again"
        return StoreUnreachable(
            f"the server at {url} did not answer: {self}. The {name} may have happened: {harmless}"
        )


class NotSent(Failure):
    """The server never had the whole request."""

    done = False


class Denied(NotSent):
    """The socket belongs to another user."""

    passing = False


class Lost(Failure):
    """The request was sent, but no whole answer came."""


class TimedOut(Failure):
    """No answer came in time."""

    passing = False

    def __init__(self) -> None:
        super().__init__("it takes too long")


class Garbage(Failure):
    """What came is no answer of Penstock's."""

    passing = False


class Refused(Failure):
    """The server cannot do it now (503)."""

    def __init__(self, answer: PenstockError, retry_after: float, done: bool) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.retry_after = retry_after
        self.done = done

    def error(self, url: str, name: str, repeatable: bool, maybe_done: bool) -> PenstockError:
        return self.answer


def not_sent(error: Exception, local: bool) -> NotSent:
    """Why there is no connection; `local`: to a process of this machine."""
    return (Denied if local and isinstance(error, PermissionError) else NotSent)(reason(error))


def lost(begun: bool) -> Lost:
    """The server has closed the connection."""
    return Lost(f"the connection was closed {'in the middle of' if begun else 'before'} the answer")


def reason(error: Exception) -> str:
    """What the system says."""
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # asyncio has its own words for it
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Patience:
    """How often one call is tried."""

    def __init__(
        self,
        url: str,
        name: str,
        repeatable: bool,
        clock: Clock,
        tries: int = TRIES,
        longest: float = PATIENCE,
    ) -> None:
        self._url = url
        self._name = name
        self._repeatable = repeatable
        self._left = tries
        self._seconds = longest
        self._clock = clock
        self._started = clock.monotonic()
        self._longest = _FIRST
        self._maybe_done = False

    def pause(self, failure: Failure) -> float:
        """The seconds to wait before the next try; raises if there is to be none."""
        self._left -= 1
        self._maybe_done |= failure.done
        pause = self._longest * random.uniform(0.5, 1)  # noqa: S311 - it is no secret
        self._longest = min(2 * self._longest, _LONGEST)
        if isinstance(failure, Refused):
            pause = max(pause, failure.retry_after)
        elapsed = self._clock.monotonic() - self._started
        if (
            not failure.passing
            or (failure.done and not self._repeatable)
            or not self._left
            or elapsed + pause > self._seconds
        ):
            raise failure.error(self._url, self._name, self._repeatable, self._maybe_done) from failure
        return pause


class Turns:
    """A long wait as several shorter ones, so that nobody on the way takes a connection for dead."""

    longest = 30.0

    def __init__(self, wait: float, clock: Clock) -> None:
        self._clock = clock
        self._end = clock.monotonic() + wait

    def next(self) -> float:
        """The seconds to wait in one request."""
        return min(max(self._end - self._clock.monotonic(), 0.0), self.longest)

    def over(self) -> bool:
        """Whether all of the wait has passed."""
        return self._end - self._clock.monotonic() < 0.001
