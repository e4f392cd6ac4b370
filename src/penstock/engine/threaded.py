"""A backend for coroutines over a text or folder store: each operation runs in a thread.

A waiting consumer polls from the event loop, so that a thousand long polls need no thousand threads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.contract.backend import Histogram, Reading
from penstock.contract.loads import LoadInfo
from penstock.contract.message import STATES, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import (
    Ack,
    AllFigures,
    Claim,
    Figures,
    Lookup,
    Messages,
    Peek,
    Pop,
    Queues,
    Release,
)
from penstock.contract.settings import MAX_PAYLOAD
from penstock.contract.streams import FollowerInfo
from penstock.engine.coroutines import COMMIT_RECORDS, COMMIT_SECONDS, some
from penstock.errors import PenstockError
from penstock.system.clock import pause

if TYPE_CHECKING:
    from penstock.engine.unowned import Unowned

_THREADS = 32
_TAKERS = 8  # concurrent claims, because the size of their messages is not known before
_ASK_AGAIN = 0.05  # seconds between two polls of a waiting consumer
Result = TypeVar("Result")


class _Line:
    """The waiting consumers of one queue: the first one polls for messages, the others wait for its place."""

    def __init__(self) -> None:
        self.first = asyncio.Lock()  # held by the first consumer; fair: first come, first served
        self.waiting = 0
        self.news = asyncio.Event()  # an operation in this process may have changed the queue: poll at once


class ThreadedBackend:
    """A backend for coroutines over a store that no process owns."""

    descriptors = 1  # file descriptors of a waiting request

    def __init__(self, backend: "Unowned") -> None:
        self._backend = backend
        self._clock: Any = backend.clock
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-operation")
        self._taking = asyncio.Semaphore(_TAKERS)
        self._lines: dict[str, _Line] = {}
        self._closing = False
        self.commit_seconds, self.commit_records = Histogram(COMMIT_SECONDS), Histogram(COMMIT_RECORDS)
        self.only = backend.only

    @property
    def in_line(self) -> int:
        """The number of waiting consumers."""
        return sum(line.waiting for line in self._lines.values())

    # Monitoring: a process that shares a store knows its counts and little more

    @property
    def failure(self) -> BaseException | None:
        failure: BaseException | None = self._backend.failure
        return failure

    def is_open(self) -> bool:
        return not self._closing and self.failure is None

    async def check(self) -> None:
        await self._run(self._backend.check)

    def longest_commit(self) -> float:
        return 0.0

    def tend(self) -> "asyncio.Future[None]":

        def look() -> None:
            with suppress(PenstockError):  # the next operation raises it
                self._backend.run(Queues())

        return asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def figures(self) -> list[Figures]:
        figures = await self._run(self._backend.run, AllFigures())
        lines = {name: line.waiting for name, line in self._lines.items()}
        return [each._replace(in_line=lines.get(each.queue, 0)) for each in figures]

    async def readings(self) -> list[Reading]:
        queues = await self._run(self._backend.run, Queues())
        lines = {name: line.waiting for name, line in self._lines.items()}
        counts = [tuple(each.counts[state] for state in STATES) for each in queues]
        return [
            Reading(each.name, True, its, None, lines.get(each.name, 0), each.settings.max_size)
            for each, its in zip(queues, counts, strict=True)
        ]

    async def waits(self, queues: Sequence[str]) -> dict[str, float]:
        return await self._run(self._backend.waits, queues)

    async def under_way(self) -> tuple[list[FollowerInfo], list[LoadInfo]]:
        return [], []

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        if operation.http.polls:
            return self._take(operation)  # type: ignore[arg-type]
        return self._change(operation)

    def max_payload(self, queue: str) -> int:
        return MAX_PAYLOAD

    async def close(self) -> None:
        self._closing = True
        await self._run(self._backend.close)
        for line in self._lines.values():
            line.news.set()
        await self.detach()

    async def detach(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    async def _run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except RuntimeError:  # the threads have ended: the store's own error is better
            self._backend.run(Queues())
            raise

    async def _change(self, operation: Operation[Result]) -> Result:
        """Run an operation; if it may have changed a queue, its waiting consumers poll at once."""
        try:
            return await self._run(self._backend.run, operation)
        finally:
            if operation.http.method != "GET":
                queue = getattr(operation, "queue", None)
                for name, line in self._lines.items():
                    if queue in (None, name):
                        line.news.set()

    async def _take(self, operation: Claim | Pop) -> Any:
        """Run a claim or pop, waiting in line for messages."""
        queue, wait, line = operation.queue, operation.wait, self._lines.get(operation.queue)
        now = operation.changed(wait=0)
        if line is None:
            taken = await self._taken(now)
            if taken or wait <= 0:
                return taken
            line = self._lines.setdefault(queue, _Line())
        elif isinstance(now, Claim) and now.ack:
            await self._change(Ack(queue, now.ack))
        if isinstance(now, Claim) and now.ack:
            now = now.changed(ack=())
        if wait <= 0:
            return _nothing(now) if line.waiting else await self._taken(now)  # waiting consumers come first
        line.waiting += 1
        try:
            return await self._wait(line, now, self._clock.monotonic() + wait)
        finally:
            line.waiting -= 1
            if not line.waiting and self._lines.get(queue) is line:
                del self._lines[queue]

    async def _wait(self, line: _Line, operation: Claim | Pop, deadline: float) -> Any:
        is_first = asyncio.ensure_future(line.first.acquire())
        try:
            while not is_first.done():
                left = deadline - self._clock.monotonic()
                await asyncio.wait([is_first], timeout=pause(self._clock, min(max(left, 0), _ASK_AGAIN)))
                if left <= 0 and not is_first.done():
                    return _nothing(operation)
            while True:
                line.news.clear()
                left = deadline - self._clock.monotonic()
                if (taken := await self._taken(operation)) or left <= 0:
                    return taken
                await self._news(line, deadline)
        finally:
            if is_first.done() and not is_first.cancelled():
                line.first.release()
            else:
                is_first.cancel()

    async def _news(self, line: _Line, deadline: float) -> None:
        """Sleep until an operation of this process may have changed the queue, or until the next poll."""
        left = max(deadline - self._clock.monotonic(), 0)
        with suppress(TimeoutError):
            await asyncio.wait_for(line.news.wait(), pause(self._clock, min(left, _ASK_AGAIN)))

    async def _taken(self, operation: Claim | Pop) -> Any:
        """Claim or pop available messages; claimed messages of a consumer that is cancelled are released."""
        task = asyncio.ensure_future(self._run_taking(operation))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(self._give_back, operation.queue))
            raise

    async def _run_taking(self, operation: Claim | Pop) -> Any:
        async with self._taking:
            return await self._run(self._backend.run, operation)

    def _give_back(self, queue: str, task: "asyncio.Task[Any]") -> None:
        if task.cancelled() or task.exception() is not None or not isinstance(task.result(), list):
            return
        receipts = [message.receipt for message in task.result()]

        def release() -> None:
            with suppress(PenstockError):  # the lease is over, or the queue was deleted
                self._backend.run(Release(queue, receipts))

        if receipts:
            self._threads.submit(release)

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        messages: Iterator[Message] = await self._run(self._begun, operation)
        while page := await self._run(some, messages):
            for message in page:
                yield message

    def _begun(self, operation: Peek | Messages) -> Iterator[Message]:
        self._backend.run(Lookup(operation.queue))  # QueueNotFound now, not at the first message
        return self._backend.run(operation)


def _nothing(operation: Claim | Pop) -> list[Message] | None:
    return [] if isinstance(operation, Claim) else None
