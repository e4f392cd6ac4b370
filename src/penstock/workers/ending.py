"""When work has ended: how it is settled, counted and reported, and what the log says if it was in vain.

Shared by the worker with threads and the one with coroutines.
"""

import logging
from collections.abc import Container, Iterable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from penstock.contract.message import Message
from penstock.errors import LeaseExpired
from penstock.workers.holding import AnyMessage, Held, Outcome
from penstock.workers.options import Options, Result, Worked

Answer_co = TypeVar("Answer_co", covariant=True)
Ended: TypeAlias = Sequence[tuple[Held[AnyMessage], str]]  # with what became of each
_log = logging.getLogger("penstock")


class Settles(Protocol[Answer_co]):
    """A queue: one that answers at once, or one whose answers are awaited."""

    def ack(self, *messages: str) -> Answer_co:
        """Settle for good."""

    def fail(self, *messages: str, delay: float = 0.0, reason: str | None = None) -> Answer_co:
        """End the attempts."""

    def release(self, *messages: str) -> Answer_co:
        """Give back."""


def settle(queue: Settles[Answer_co], outcome: Outcome, receipts: Iterable[str]) -> Answer_co:
    """Settle messages as their work has ended."""
    if outcome.kind == "ack":
        return queue.ack(*receipts)
    if outcome.kind == "fail":
        return queue.fail(*receipts, delay=outcome.delay, reason=outcome.reason)
    return queue.release(*receipts)


def settled(held: Iterable[Held[AnyMessage]], outcome: Outcome, lost: Container[str]) -> Ended[AnyMessage]:
    """What became of messages that were settled, but for those that were lost."""
    return [(each, "lost" if each.receipt in lost else outcome.kind) for each in held]


class Account(Generic[AnyMessage]):
    """What a worker has done, and whom it tells."""

    def __init__(self, options: Options) -> None:
        self.worked = Worked()
        self._options = options

    def count(self, ended: Ended[AnyMessage]) -> None:
        """Work has ended."""
        for _, kind in ended:
            self.worked.count(kind)

    def report(self, ended: Ended[AnyMessage], reason: str | None, now: float) -> None:
        """Tell of it; `reason` is that of what failed."""
        for each, kind in ended:
            self._options.tell(Result(each.message, kind, reason if kind == "fail" else None, now - each.began))


def log_in_vain(message: Message, outcome: Outcome) -> None:
    """Work has ended that no longer counts."""
    _log.warning(
        "the work on message %s of queue %r ended (%s), but the message is no longer held here: the result is "
        "dropped", message.id, message.queue, outcome.reason or outcome.kind,
    )  # fmt: skip


def log_unsettled(count: int) -> None:
    """The store did not answer."""
    _log.warning("%d message(s) could not be settled: their leases will end", count)


def log_too_late(error: LeaseExpired) -> None:
    """Leases were over when the work was settled."""
    _log.warning("leases were lost before the work was settled, its result is dropped: %s", str(error))


def log_not_extended(error: Exception) -> None:
    """Leases go on as they are; it is tried again."""
    _log.warning("leases were not extended yet: %s", str(error))


def log_lost(message: Message) -> None:
    """A lease was over when it was to be extended."""
    _log.warning(
        "the lease of message %s of queue %r was lost while it was worked on: another consumer may have it, and "
        "the result of this work will be dropped", message.id, message.queue,
    )  # fmt: skip
