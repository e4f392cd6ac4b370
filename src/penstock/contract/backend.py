"""Backends run operations: the narrow interface behind Store and Queue, implemented by each kind of store."""

import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Messages, Peek

if TYPE_CHECKING:
    from asyncio import Future

    from penstock.contract.loads import LoadInfo
    from penstock.contract.streams import FollowerInfo

Result = TypeVar("Result")
FLOWS = ("in", "out", "failures", "leases_expired", "given_up")


class Reading(NamedTuple):
    """A queue's counts and counters at one moment, as cheap as they can be had."""

    queue: str
    up: bool  # False: an error has stopped the queue
    counts: tuple[int, ...]  # messages by state, as STATES has them
    flows: tuple[int, ...] | None  # counters of what has happened, as FLOWS has them; None: the store has none
    in_line: int  # waiting consumers
    max_size: int = 0  # its setting, where that is known; 0: no limit


class Backend(Protocol):
    """Keeps queues. An operation that changes something returns once the change is on stable storage."""

    def run(self, operation: Operation[Result]) -> Result:
        """Run an operation. Its arguments are checked; the backend checks the rules of the queue."""

    def close(self) -> None:
        """Release files and threads; waiting consumers get StoreClosed."""


class AsyncBackend(Protocol):
    """Keeps queues, for coroutines.

    A consumer that is cancelled while it waits stops waiting; messages just claimed for it are released.
    """

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        """Run an operation that does not list messages."""

    def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        """Run an operation that lists messages."""

    async def close(self) -> None:
        """Release files and threads; waiting consumers get StoreClosed."""


class Histogram:
    """Counts values in buckets with inclusive upper bounds. Safe for threads."""

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
        """Cumulative counts per bucket, the last being the total; and the sum of all values."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum


class Served(AsyncBackend, Protocol):
    """A backend that a server can serve: operations, health and metrics."""

    descriptors: int  # file descriptors that a waiting request takes
    commit_seconds: Histogram  # durations of commits
    commit_records: Histogram  # records per commit

    def tend(self) -> "Future[None]":
        """Let idle queues catch up with time: leases end, messages expire."""

    async def figures(self) -> Any:
        """Metrics of every queue."""

    async def readings(self) -> Iterable[Reading]:
        """A reading of every queue, made while the caller iterates where that costs only memory."""

    async def waits(self, queues: Sequence[str]) -> dict[str, float]:
        """Seconds of the longest wait of an available message, by queue; deleted queues are left out."""

    async def under_way(self) -> "tuple[list[FollowerInfo], list[LoadInfo]]":
        """Followers of the store, and open loads, as far as this process knows them."""

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the store; None while it runs and after a close."""

    def is_open(self) -> bool:
        """Whether the backend still runs operations."""

    async def check(self) -> None:
        """Raise the store's error, if it has one."""

    def longest_commit(self) -> float:
        """Seconds that the longest running commit has taken so far."""

    def max_payload(self, queue: str) -> int:
        """The queue's max_payload, or the general limit if the settings are not in memory."""

    async def detach(self) -> None:
        """Finish running operations and leave the store open."""
