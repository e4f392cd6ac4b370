"""Failures of requests, and the rules of retrying them.

A request that the server cannot have carried out is always retried: no connection, or not all of it was sent.
A request that may have been carried out is retried only if repeating it does no harm. A timeout is never retried:
the server is there, and asking twice makes it no faster.
"""

from __future__ import annotations

import os
import random

from penstock.errors import PenstockError, StoreUnreachable
from penstock.system.clock import Clock

TRIES = 9
PATIENCE = 10.0  # seconds from the first failure in which a request is retried
_FIRST, _LONGEST = 0.1, 2.0  # seconds between two tries


class Failure(Exception):
    """A request without a usable answer."""

    done = True  # the server may have carried it out
    passing = True  # a retry may succeed

    def error(self, url: str, name: str, repeatable: bool, maybe_done: bool) -> PenstockError:
        """The error for the caller, once nothing is retried any more."""
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
    """The server never received the whole request."""

    done = False


class Denied(NotSent):
    """The socket belongs to another user."""

    passing = False


class Lost(Failure):
    """The request was sent, but the connection ended before the answer did."""


class TimedOut(Failure):
    """No answer came in time."""

    passing = False

    def __init__(self) -> None:
        super().__init__("it takes too long")


class Garbage(Failure):
    """The answer is not one of Penstock's."""

    passing = False


class Refused(Failure):
    """The server answered 503."""

    def __init__(self, answer: PenstockError, retry_after: float, done: bool) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.retry_after = retry_after
        self.done = done

    def error(self, url: str, name: str, repeatable: bool, maybe_done: bool) -> PenstockError:
        return self.answer


def not_sent(error: Exception, local: bool) -> NotSent:
    """The failure of a connect; `local`: to a Unix socket."""
    return (Denied if local and isinstance(error, PermissionError) else NotSent)(reason(error))


def lost(begun: bool) -> Lost:
    """The failure of a connection that the server has closed; `begun`: a part of the answer had come."""
    return Lost(f"the connection was closed {'in the middle of' if begun else 'before'} the answer")


def reason(error: Exception) -> str:
    """The system's words for an error."""
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # asyncio words it differently
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Patience:
    """The retries of one request: how many are left, how long to pause, when to give up."""

    def __init__(
        self,
        url: str,
        name: str,
        repeatable: bool,
        clock: Clock,
        tries: int = TRIES,
        seconds: float = PATIENCE,
    ) -> None:
        self._url = url
        self._name = name
        self._repeatable = repeatable
        self._left = tries
        self._seconds = seconds
        self._clock = clock
        self._started = clock.monotonic()
        self._pause = _FIRST
        self._maybe_done = False  # by any of the tries

    def pause(self, failure: Failure) -> float:
        """The seconds to wait before the next try; raises the caller's error if there is none."""
        self._left -= 1
        self._maybe_done |= failure.done
        pause = self._pause * random.uniform(0.5, 1)  # noqa: S311 - it is no secret
        self._pause = min(2 * self._pause, _LONGEST)
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
