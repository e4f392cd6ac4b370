"""A worker's options, results, outcomes of handlers, backoff and stop signals."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

from penstock.contract.arguments import MAX_REASON, checked_consumer, checked_lease
from penstock.contract.message import Message
from penstock.contract.settings import Settings, seconds, whole
from penstock.errors import DiskFull, StoreUnreachable
from penstock.workers.holding import RELEASE, Outcome

MAX_CONCURRENCY = 10_000
GLANCE = 0.2  # seconds between two polls of an empty queue, or of the caller's stop event
PATIENCE = 10.0  # seconds for the last calls to the store when the worker ends
POLL = 1.0  # seconds of a claim's long poll: a stop is noticed at the latest after it
PASSING = (StoreUnreachable, DiskFull)  # errors after which the call is repeated
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0

Backoff: TypeAlias = float | tuple[float, float, float] | Callable[[Message], float]
_USUAL = Settings(backoff=(1, 2, 300))  # of workers on a queue without a backoff
_log = logging.getLogger("penstock")


class Fail(Exception):
    """Raised by a handler to fail its message for a reason that needs no traceback in the log."""


class Release(Exception):
    """Raised by a handler to give its message back unworked."""


@dataclass(frozen=True, slots=True)
class Result:
    """How the work on a message ended: the argument of a worker's `report`.

    Attributes:
        message: the message
        outcome: "ack", "fail", "release", or "lost": another consumer may have the message
        reason: why it failed
        seconds: from the claim to the end
    """

    message: Message
    outcome: str
    reason: str | None
    seconds: float


@dataclass(slots=True)
class Worked:
    """How many messages a worker has settled, and how: the result of work().

    Attributes:
        acked: messages that are done
        failed: attempts that failed: their messages may have been tried again since
        released: messages that were given back
        lost: leases that ended before the work: the queue does not know its outcome
        signal: the signal that stopped the worker
    """

    acked: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    signal: int | None = None

    def count(self, outcome: str) -> None:
        """Count a message by its outcome."""
        name = _COUNTED[outcome]
        setattr(self, name, getattr(self, name) + 1)


_COUNTED = {"ack": "acked", "fail": "failed", "release": "released", "lost": "lost"}


def exponential(message: Message) -> float:
    """Seconds until a failed message is tried again: 1, 2, 4, ... with each attempt, five minutes at most."""
    return _USUAL.backoff_of(message.attempts)


def usual_delay(message: Message, settings: Settings) -> float:
    """Seconds until a failed message is tried again: by the queue's backoff, or exponential() if it has none."""
    return exponential(message) if settings.backoff is None else settings.backoff_of(message.attempts)


@dataclass(frozen=True)
class Options:
    """A worker's checked options."""

    concurrency: int
    lease: float | None
    backoff: Callable[[Message], float] | None
    grace: float
    until_empty: bool
    consumer: str
    on_drop: Callable[[Any], object] | None
    report: Callable[[Result], object] | None

    @classmethod
    def checked(
        cls,
        concurrency: int,
        lease: float | None,
        backoff: Backoff | None,
        grace: float,
        until_empty: bool,
        consumer: str | None,
        on_drop: Callable[[Any], object] | None,
        report: Callable[[Result], object] | None,
    ) -> "Options":
        """The options; TypeError, InvalidArgument."""
        return cls(
            whole("concurrency", concurrency, 1, MAX_CONCURRENCY),
            checked_lease(lease),
            _checked_backoff(backoff),
            seconds("grace", grace),
            until_empty,
            checked_consumer(consumer),
            on_drop,
            report,
        )

    def longest_lease(self, settings: Settings) -> float:
        """The lease to ask for."""
        return settings.granted(self.lease)

    def delay(self, message: Message) -> float | None:
        """Seconds until a failed message is available again; None: the worker has no backoff of its own."""
        if self.backoff is None:
            return None
        try:
            return seconds("backoff", self.backoff(message))
        except Exception as error:  # an error of the caller's function must not stop the work
            _log.warning("backoff of message %s: %s; the usual one is taken", message.id, reason_of(error))
            return exponential(message)

    def outcome(self, message: Message, error: Exception) -> Outcome:
        """How to settle a message whose handler has raised."""
        if isinstance(error, Release):
            return RELEASE
        if isinstance(error, Fail):
            return Outcome("fail", self.delay(message), str(error))
        _log.warning("the handler failed on message %s of queue %r", message.id, message.queue, exc_info=error)
        return Outcome("fail", self.delay(message), reason_of(error))

    def tell(self, result: Result) -> None:
        """Report how the work on a message ended."""
        if self.report is not None:
            _shielded(self.report, result, "report")

    def dropped(self, message: Message) -> None:
        """Tell that the work on a message no longer counts."""
        if self.on_drop is not None:
            _shielded(self.on_drop, message, "on_drop")


def _checked_backoff(backoff: Backoff | None) -> Callable[[Message], float] | None:
    """A worker's own backoff, by the formula of queues."""
    if backoff is None or callable(backoff):
        return backoff
    if not isinstance(backoff, tuple | list):
        always = seconds("backoff", backoff)
        backoff = always, 1, always
    own = Settings(backoff=backoff)
    return lambda message: own.backoff_of(message.attempts)


def _shielded(call: Callable[[Any], object], argument: object, name: str) -> None:
    try:
        call(argument)
    except Exception as error:
        _log.warning("%s of a worker failed: %s", name, reason_of(error), exc_info=error)


def reason_of(error: BaseException) -> str:
    """An exception as the reason of a fail."""
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}"[:MAX_REASON] if text else name


class Pauses:
    """Pauses before a call to the store is repeated: exponential, with jitter."""

    def __init__(self) -> None:
        self._next = _FIRST_PAUSE

    def next(self, error: Exception) -> float:
        """Seconds until the next try; the first time the error is logged."""
        import random  # here, so that import penstock stays quick

        if self._next == _FIRST_PAUSE:
            _log.warning("the worker tries again until it succeeds: %s", str(error))
        pause = self._next * random.uniform(0.5, 1)  # noqa: S311 - jitter
        self._next = min(2 * self._next, _LONGEST_PAUSE)
        return pause


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` for SIGINT and SIGTERM; restores the handlers afterwards.

    Only the main thread gets signals; in other threads this does nothing. `stop` may interrupt that thread
    anywhere, so it must not take a lock. A Ctrl-C that is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(number: int, frame: FrameType | None) -> None:
        stop(number)

    before = {each: signal.getsignal(each) for each in _STOPPING}
    try:
        for each in _STOPPING:
            if before[each] is not signal.SIG_IGN:
                signal.signal(each, told)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
