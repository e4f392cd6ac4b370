"""What a store must be able to do: the narrow interface behind the contract, one implementation per kind of store.

Arguments arrive checked (names legal, entries complete, durations sane); a keeper enforces the queue's own rules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.index.history import Attempt
from penstock.message import Entry, Message
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.streams import Streams


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as `store.queues()` lists it.

    lag: of a queue with a filter, in a store with a log: how far it is behind the end of that log
    """

    name: str
    settings: Settings
    counts: dict[str, int]
    lag: int | None = None


class Keeper(Protocol):
    """Keeps queues. Every method that changes something returns once the change is on stable storage."""

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue; QueueExists."""

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages, and wake its waiting consumers; QueueNotFound."""

    def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""

    def settings(self, queue: str) -> Settings:
        """What the queue was created with; QueueNotFound, as from every method that takes a queue."""

    def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""

    def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches, or into none if one of them refuses; an id of its own."""

    def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none; their ids."""

    def claim(self, queue: str, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages, waiting up to `wait` seconds for the first; who waits is served in turn."""

    def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message in one step."""

    def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good; LeaseExpired names what was lost after the rest was settled, as in fail and release."""

    def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts: available again after the delay, or failed after the last attempt."""

    def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back, available at once."""

    def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold until `lease` seconds from now; when that is, and which receipts were lost."""

    def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state; how many were there."""

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Make failed messages (None: all of them) available with attempts 0; how many."""

    def purge(self, queue: str) -> int:
        """Take out everything but what is in flight; how many."""

    def peek(self, queue: str, n: int) -> Iterator[Message]:
        """The next n messages that claim would give."""

    def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message, oldest first; none if the message is not there."""

    def messages(self, queue: str, state: str | None) -> Iterator[Message]:
        """The messages in that state (None: in any), in the order in which they were put."""

    def streams(self) -> "Streams":
        """The streams that read queues of this store; NotSupported where there are none."""

    def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""
