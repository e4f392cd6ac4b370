"""The messages that a worker holds: their outcomes, and when their leases are extended. No I/O, no time, no locks.

A lease is extended when a third of it has passed: two thirds are left for retries. Times are those of the
worker's monotonic clock, counted from the answer, so that a clock that differs from the store's does no harm.
"""

from collections.abc import Collection, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.contract.message import Message

AnyMessage = TypeVar("AnyMessage", bound=Message)


class Outcome(NamedTuple):
    """How a message is to be settled."""

    kind: str  # "ack", "fail", "release"
    delay: float | None = None  # of a fail; None: by the queue's backoff
    reason: str | None = None

    @property
    def is_by_backoff(self) -> bool:
        """Whether it is a fail that names no delay."""
        return self.kind == "fail" and self.delay is None

    def settle(self, queue: Any, receipts: Iterable[str]) -> Any:
        """Settle messages with this outcome; an awaitable, if the queue is one for coroutines."""
        if self.kind == "fail":
            return queue.fail(*receipts, delay=self.delay, reason=self.reason)
        return (queue.ack if self.kind == "ack" else queue.release)(*receipts)


ACK, RELEASE = Outcome("ack"), Outcome("release")


class Held(Generic[AnyMessage]):
    """A claimed message."""

    __slots__ = ("began", "extend_at", "message", "outcome", "receipt", "settled", "work")

    def __init__(self, message: AnyMessage, began: float, extend_at: float) -> None:
        self.message = message
        self.receipt = message.receipt or ""  # a claimed message always has one
        self.began = began
        self.extend_at = extend_at
        self.outcome: Outcome | None = None  # once the handler has ended
        self.settled: Outcome | None = None  # if the handler has settled the message itself
        self.work: Any = None  # the handler's, for tracing.settling()


class Holding(Generic[AnyMessage]):
    """The messages that a worker holds, by receipt, from the claim until they are settled or lost."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.held: dict[str, Held[AnyMessage]] = {}

    def take(self, messages: Iterable[AnyMessage], now: float) -> list[Held[AnyMessage]]:
        """Hold messages that were just claimed."""
        taken = [Held(message, now, now + self._granted(message) / 3) for message in messages]
        self.held.update((each.receipt, each) for each in taken)
        return taken

    def _granted(self, message: Message) -> float:
        if message.lease_until is None or message.claimed_at is None:
            return self.lease
        return min(self.lease, (message.lease_until - message.claimed_at) / 1000)

    def end(self, held: Held[AnyMessage], outcome: Outcome) -> bool:
        """The handler has ended; whether the worker has to settle the message."""
        if self.held.get(held.receipt) is not held or held.outcome is not None:
            return False
        held.outcome = outcome
        return True

    def settled_by_handler(self, receipts: Iterable[str], outcome: Outcome) -> None:
        """A handler has settled messages itself: its outcome is final."""
        for receipt in receipts:
            if (held := self.held.pop(receipt, None)) is not None:
                held.settled = outcome

    def extended(self, receipts: Iterable[str], lease: float, now: float) -> None:
        """Leases were extended to so many seconds from now."""
        for receipt in receipts:
            if (held := self.held.get(receipt)) is not None:
                held.extend_at = now + lease - min(lease, self.lease) * 2 / 3

    def extended_but(
        self, lost: Collection[str], due: Iterable[Held[AnyMessage]], now: float
    ) -> list[Held[AnyMessage]]:
        """Due leases were extended except the lost ones; the messages among those that were still worked on."""
        self.extended([each.receipt for each in due if each.receipt not in lost], self.lease, now)
        return self.lose(lost)

    def due(self, now: float) -> list[Held[AnyMessage]]:
        """Messages whose leases are to be extended now; each is due again a moment later, in case that fails."""
        found = [each for each in self.held.values() if each.extend_at <= now]
        for each in found:
            each.extend_at = now + min(1.0, self.lease / 10)
        return found

    def pause(self, now: float) -> float:
        """Seconds until a lease may be due."""
        soonest = min((each.extend_at for each in self.held.values()), default=now + self.lease)
        return max(0.0, min(soonest - now, self.lease / 3))

    def lose(self, receipts: Iterable[str]) -> list[Held[AnyMessage]]:
        """Leases were lost: the messages that were still worked on. For others, settling raises LeaseExpired."""
        lost = [self.held[each] for each in receipts if each in self.held and self.held[each].outcome is None]
        for each in lost:
            del self.held[each.receipt]
        return lost

    def give_up(self) -> list[Held[AnyMessage]]:
        """Let go of all messages that are still worked on, and return them."""
        return self.lose(list(self.held))


def alike(held: Iterable[Held[AnyMessage]]) -> Iterable[tuple[Outcome, list[Held[AnyMessage]]]]:
    """Messages by outcome: each group is settled in one call."""
    groups: dict[Outcome, list[Held[AnyMessage]]] = {}
    for each in held:
        if each.outcome is not None:
            groups.setdefault(each.outcome, []).append(each)
    return groups.items()
