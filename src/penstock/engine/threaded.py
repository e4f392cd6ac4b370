"""The backend for coroutines of text and folder stores: each operation runs in a thread, as it waits for files.

A consumer waits in the event loop and polls, so that a thousand long polls take no thousand threads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.contract.backend import Histogram
from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Claim, Lookup, Messages, Peek, Pop, Queues, Release
from penstock.contract.settings import MAX_PAYLOAD
from penstock.engine.coroutines import COMMIT_RECORDS, COMMIT_SECONDS, some
from penstock.engine.queue import Figures
from penstock.errors import PenstockError
from penstock.system.clock import pause

if TYPE_CHECKING:
    from penstock.engine.unowned import Unowned

_THREADS = 32
_TAKERS = 8  # claims side by side: the size of their messages is not known before
_ASK_AGAIN = 0.05  # seconds between two polls of a waiting consumer
Result = TypeVar("Result")


class _Line:
    """The waiting consumers of one queue: the first polls, the others wait for their turn."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # fair: first come, first served
        self.waiting = 0
        self.news = asyncio.Event()  # set by a change in this process: poll at once


class ThreadedBackend:
    """A backend for coroutines over a store that no process owns."""

    descriptors = 1  # of a request that waits

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
        """How many consumers wait."""
        return sum(line.waiting for line in self._lines.values())

    # Monitoring: other processes change the store as well, so this one knows little but the counts

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
            with suppress(PenstockError):  # the next caller is told
                self._backend.run(Queues())

        return asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def figures(self) -> list[Figures]:
        infos = await self._run(self._backend.run, Queues())
        lines = {name: line.waiting for name, line in self._lines.items()}
        return [Figures(each.name, True, each.counts, 0, lines.get(each.name, 0), {}, 0, 0, 0) for each in infos]

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
        except RuntimeError:  # the threads have ended: the store has the better error
            self._backend.run(Queues())
            raise

    async def _change(self, operation: Operation[Result]) -> Result:
        """Carry out an operation; waiting consumers poll at once if it may have changed something."""
        try:
            return await self._run(self._backend.run, operation)
        finally:
            if operation.http.method != "GET":
                queue = getattr(operation, "queue", None)
                for name, line in self._lines.items():
                    if queue in (None, name):
                        line.news.set()

    async def _take(self, operation: Claim | Pop) -> Any:
        """Messages for a consumer, at once or after its turn in line."""
        queue, wait, line = operation.queue, operation.wait, self._lines.get(operation.queue)
        now = operation.changed(wait=0)
        if line is None:
            taken = await self._taken(now)
            if taken or wait <= 0:
                return taken
            line = self._lines.setdefault(queue, _Line())
        elif wait <= 0:
            return _nothing(now) if line.waiting else await self._taken(now)  # no overtaking
        line.waiting += 1
        try:
            return await self._wait(line, now, self._clock.monotonic() + wait)
        finally:
            line.waiting -= 1
            if not line.waiting and self._lines.get(queue) is line:
                del self._lines[queue]

    async def _wait(self, line: _Line, operation: Claim | Pop, deadline: float) -> Any:
        turn = asyncio.ensure_future(line.turn.acquire())
        try:
            while not turn.done():
                left = deadline - self._clock.monotonic()
                await asyncio.wait([turn], timeout=pause(self._clock, min(max(left, 0), _ASK_AGAIN)))
                if left <= 0 and not turn.done():
                    return _nothing(operation)
            while True:
                line.news.clear()
                left = deadline - self._clock.monotonic()
                if (taken := await self._taken(operation)) or left <= 0:
                    return taken
                await self._news(line, deadline)
        finally:
            if turn.done() and not turn.cancelled():
                line.turn.release()
            else:
                turn.cancel()

    async def _news(self, line: _Line, deadline: float) -> None:
        """Sleep until a change in this process, or until the next poll."""
        left = max(deadline - self._clock.monotonic(), 0)
        with suppress(TimeoutError):
            await asyncio.wait_for(line.news.wait(), pause(self._clock, min(left, _ASK_AGAIN)))

    async def _taken(self, operation: Claim | Pop) -> Any:
        """Messages that are available now; those of a consumer that is cancelled meanwhile are released."""
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
            with suppress(PenstockError):  # the lease is over, the queue gone
                self._backend.run(Release(queue, receipts))

        if receipts:
            self._threads.submit(release)

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        messages: Iterator[Message] = await self._run(self._begun, operation)
        while page := await self._run(some, messages):
            for message in page:
                yield message

    def _begun(self, operation: Peek | Messages) -> Iterator[Message]:
        self._backend.run(Lookup(operation.queue))  # an error now, not at the first message
        return self._backend.run(operation)


def _nothing(operation: Claim | Pop) -> list[Message] | None:
    return [] if isinstance(operation, Claim) else None
