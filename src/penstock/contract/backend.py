"""What carries out operations: the narrow interface behind the contract, one implementation per kind of store."""

import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Messages, Peek

if TYPE_CHECKING:
    from asyncio import Future

Result = TypeVar("Result")


class Backend(Protocol):
    """Keeps queues. An operation that changes something returns once the change is on stable storage."""

    def run(self, operation: Operation[Result]) -> Result:
        """Carry out an operation, whose arguments are checked; the rules of its queue are not."""

    def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""


class AsyncBackend(Protocol):
    """Keeps queues, for coroutines.

    A consumer that is cancelled while it waits leaves the line, and what was just claimed for it is given back.
    """

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        """Carry out an operation."""

    def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        """Carry out one that lists messages."""

    async def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""


class Histogram:
    """Counts values by bounds; a value that is a bound is below it. Safe for threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        at = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """How many values are below each bound, the last being all there are; and their sum."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum


class Served(AsyncBackend, Protocol):
    """What a server needs of a store, beyond its operations."""

    descriptors: int  # that a request takes which waits
    commit_seconds: Histogram  # that commits took
    commit_records: Histogram  # that commits made durable

    def tend(self) -> "Future[None]":
        """Let time have passed in queues where nobody comes by."""

    async def figures(self) -> Any:
        """How every queue is."""

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store, if it was not closed."""

    def is_open(self) -> bool:
        """Whether operations are carried out."""

    async def check(self) -> None:
        """Raise what is wrong with the store."""

    def longest_commit(self) -> float:
        """Seconds for which a commit has been running, the longest of them."""

    def max_payload(self, queue: str) -> int:
        """The largest payload that the queue takes, as far as that is at hand."""

    async def detach(self) -> None:
        """Finish what was begun, and leave the store as it is."""
