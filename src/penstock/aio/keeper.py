"""What a store must be able to do for coroutines: `penstock.keeper.Keeper`, method by method, without blocking."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.message import Entry, Message
from penstock.settings import Settings


class AsyncKeeper(Protocol):
    """Keeps queues. Every method that changes something returns once the change is on stable storage.

    Whoever is cancelled while waiting in claim leaves the line, and what was just claimed for it is given back.
    """

    async def create(self, queue: str, settings: Settings) -> None:
        """Make a queue; QueueExists."""

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages, and wake its waiting consumers; QueueNotFound."""

    async def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""

    async def settings(self, queue: str) -> Settings:
        """What the queue was created with; QueueNotFound, as from every method that takes a queue."""

    async def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""

    async def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches, or into none if one of them refuses; an id of its own."""

    async def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none; their ids."""

    async def claim(self, queue: str, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages, waiting up to `wait` seconds for the first; who waits is served in turn."""

    async def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message in one step."""

    async def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good; LeaseExpired names what was lost after the rest was settled, as in fail and release."""

    async def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts: available again after the delay, or failed after the last attempt."""

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back, available at once."""

    async def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold until `lease` seconds from now; when that is, and which receipts were lost."""

    async def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state; how many were there."""

    async def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Make failed messages (None: all of them) available with attempts 0; how many."""

    async def purge(self, queue: str) -> int:
        """Take out everything but what is in flight; how many."""

    def peek(self, queue: str, n: int) -> AsyncIterator[Message]:
        """The next n messages that claim would give."""

    async def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message, oldest first; none if the message is not there."""

    def messages(self, queue: str, state: str | None) -> AsyncIterator[Message]:
        """The messages in that state (None: in any), in the order in which they were put."""

    async def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""
