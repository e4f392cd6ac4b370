"""Any store for coroutines: each operation runs in a thread.

For stores whose operations wait for files, as those of text files and folders do. Who waits for a message waits
in the loop and asks again and again, so that a thousand long polls take no thousand threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.aio.local import COMMIT_RECORDS, COMMIT_SECONDS, some
from penstock.clock import SystemClock, pause
from penstock.errors import NotSupported, PenstockError
from penstock.histogram import Histogram
from penstock.index.history import Attempt
from penstock.keeper import Keeper, QueueInfo
from penstock.live.figures import Figures
from penstock.message import Entry, Message
from penstock.names import DEFAULT
from penstock.settings import MAX_PAYLOAD, Settings

if TYPE_CHECKING:
    from penstock.streams import Streams
    from penstock.uploads import Uploads

_THREADS = 32
_TAKERS = 8  # consumers that are given messages side by side: nobody knows before how large those are
_PAGE = 256
_ASK_AGAIN = 0.05  # seconds between two looks of one who waits, if nothing is heard meanwhile
Result = TypeVar("Result")


class _Line:
    """Those who wait for messages of one queue: the first looks, the others wait for their turn."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # fair: first come, first served
        self.waiting = 0
        self.news = asyncio.Event()  # something has changed in this process: look at once


class ThreadedKeeper:
    """A keeper whose methods are coroutines, over any other."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._clock: Any = getattr(keeper, "clock", None) or SystemClock()
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-operation")
        self._taking = asyncio.Semaphore(_TAKERS)
        self._lines: dict[str, _Line] = {}
        self._closing = False
        self.commit_seconds, self.commit_records = Histogram(COMMIT_SECONDS), Histogram(COMMIT_RECORDS)
        self.only = getattr(keeper, "only", DEFAULT)

    @property
    def in_line(self) -> int:
        """How many consumers wait."""
        return sum(line.waiting for line in self._lines.values())

    # For who watches: of a store that other processes share, this one knows what is there and little more

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store, if its keeper says so; others fail operation by operation."""
        failure: BaseException | None = getattr(self._keeper, "failure", None)
        return failure

    def is_open(self) -> bool:
        """Whether it takes and gives messages."""
        return not self._closing and self.failure is None

    async def check(self) -> None:
        """Raise what is wrong with the store."""
        await self._run(self._keeper.queues)

    def longest_commit(self) -> float:
        """Seconds for which a commit has been running: there are none apart from the operations."""
        return 0.0

    def tend(self) -> "asyncio.Future[None]":
        """Let time have passed in queues where nobody comes by."""

        def look() -> None:
            with suppress(PenstockError):  # whoever comes by is told
                self._keeper.queues()

        return asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def figures(self) -> list[Figures]:
        """How every queue is."""
        infos = await self._run(self._keeper.queues)
        lines = {name: line.waiting for name, line in self._lines.items()}
        return [Figures(each.name, True, each.counts, 0, lines.get(each.name, 0), {}, 0, 0, 0) for each in infos]

    async def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        await self._run(self._keeper.create, queue, settings)

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        await self._change(queue, self._keeper.delete, queue)

    async def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return await self._run(self._keeper.queues)

    async def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return await self._run(self._keeper.settings, queue)

    def max_payload(self, queue: str) -> int:
        """The largest payload that is read for a queue: any, as the queue's own limit is not at hand."""
        return MAX_PAYLOAD

    async def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return await self._run(self._keeper.counts, queue)

    async def lag(self, queue: str) -> int | None:
        """How far a queue is behind the log; such stores have none."""
        return None

    async def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches."""
        published = await self._run(self._keeper.publish, entry)
        for line in self._lines.values():
            line.news.set()
        return published

    async def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        return await self._change(queue, self._keeper.put, queue, entries)

    async def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages, and if `most` is given not many more bytes than that."""

        def take() -> list[Message]:
            count = n
            if most is not None and n > 1:
                sizes = accumulate(len(message.payload) for message in self._keeper.peek(queue, n))
                count = max(1, sum(1 for size in sizes if size <= most))
            return self._keeper.claim(queue, count, lease, 0.0, consumer)

        return await self._take(queue, take, wait)

    async def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""

        def take() -> list[Message]:
            popped = self._keeper.pop(queue, 0.0, consumer)
            return [] if popped is None else [popped]

        return next(iter(await self._take(queue, take, wait)), None)

    async def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        await self._change(queue, self._keeper.ack, queue, receipts)

    async def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        await self._change(queue, self._keeper.fail, queue, receipts, delay, reason)

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        await self._change(queue, self._keeper.release, queue, receipts)

    async def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on."""
        return await self._run(self._keeper.extend, queue, receipts, lease)

    async def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        return await self._run(self._keeper.remove, queue, ids)

    async def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        return await self._change(queue, self._keeper.redrive, queue, ids)

    async def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        return await self._run(self._keeper.purge, queue)

    async def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return await self._run(self._keeper.attempts, queue, id)

    async def peek(self, queue: str, n: int, skip: int = 0) -> AsyncIterator[Message]:
        """What claim would give, after some that are skipped."""
        await self._run(self._keeper.settings, queue)
        messages = islice(self._keeper.peek(queue, n + skip), skip, None)
        async for message in self._paged(messages):
            yield message

    async def messages(
        self, queue: str, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> AsyncIterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        await self._run(self._keeper.settings, queue)
        async for message in self._paged(self._between(queue, state, after, until)):
            yield message

    def _between(self, queue: str, state: str | None, after: str, until: str) -> Iterator[Message]:
        """The messages between two, each of which may have gone or changed its state: all states are listed."""
        ranged = getattr(self._keeper, "messages_between", None)
        if ranged is not None:
            yield from ranged(queue, state, after, until)
            return
        found = not after
        for message in self._keeper.messages(queue, None if after or until else state):
            if found and state in (None, message.state):
                yield message
            found = found or message.id == after
            if message.id == until:
                return
        if not found:  # it has gone meanwhile: rather twice than never
            yield from self._keeper.messages(queue, state)

    async def all_attempts(self, queue: str, after: str, until: str) -> AsyncIterator[tuple[str, list[Attempt]]]:
        """The attempts at each message, also where there are none."""
        async for message in self.messages(queue, None, after, until):
            yield message.id, await self.attempts(queue, message.id)

    async def parts(self, queue: str, n: int) -> list[str]:
        """Ids that end parts of about the same size."""

        def parts() -> list[str]:
            ids = [message.id for message in self._keeper.messages(queue, None)]
            size = max(1, -(-len(ids) // n))
            return [*ids[size - 1 : -1 : size], ids[-1]] if ids else []

        return await self._run(parts)

    async def with_uploads(self, call: Callable[["Uploads"], Result]) -> Result:
        """Refuse: who shares such a store stages nothing in it."""
        raise NotSupported("text and folder stores take no loads: put the messages instead")

    async def with_streams(self, call: Callable[["Streams"], Result]) -> Result:
        """Refuse: there are none in such stores."""
        return call(self._keeper.streams())

    async def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""
        self._closing = True
        await self._run(self._keeper.close)
        for line in self._lines.values():
            line.news.set()
        await self.detach()

    async def detach(self) -> None:
        """Finish what was begun, and leave the store as it is."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    async def _run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except RuntimeError:  # the threads have ended; what the store says about that is better
            self._keeper.queues()
            raise

    async def _change(self, queue: str, call: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return await self._run(call, *arguments)
        finally:
            if (line := self._lines.get(queue)) is not None:
                line.news.set()

    async def _take(self, queue: str, take: Callable[[], list[Message]], wait: float) -> list[Message]:
        """What a consumer gets, at once or after its turn in line."""
        line = self._lines.get(queue)
        if line is None:
            messages = await self._taken(queue, take)
            if messages or wait <= 0:
                return messages
            line = self._lines.setdefault(queue, _Line())
        elif wait <= 0:
            return [] if line.waiting else await self._taken(queue, take)  # nobody overtakes those who wait
        line.waiting += 1
        try:
            return await self._wait(queue, line, take, self._clock.monotonic() + wait)
        finally:
            line.waiting -= 1
            if not line.waiting and self._lines.get(queue) is line:
                del self._lines[queue]

    async def _wait(
        self, queue: str, line: _Line, take: Callable[[], list[Message]], deadline: float
    ) -> list[Message]:
        turn = asyncio.ensure_future(line.turn.acquire())
        try:
            while not turn.done():
                left = deadline - self._clock.monotonic()
                await asyncio.wait([turn], timeout=pause(self._clock, min(max(left, 0), _ASK_AGAIN)))
                if left <= 0 and not turn.done():
                    return []
            while True:
                line.news.clear()
                left = deadline - self._clock.monotonic()
                if (messages := await self._taken(queue, take)) or left <= 0:
                    return messages
                await self._news(line, deadline)
        finally:
            if turn.done() and not turn.cancelled():
                line.turn.release()
            else:
                turn.cancel()

    async def _news(self, line: _Line, deadline: float) -> None:
        """Sleep until something has changed here, or it is time to look whether it has elsewhere."""
        left = max(deadline - self._clock.monotonic(), 0)
        with suppress(TimeoutError):
            await asyncio.wait_for(line.news.wait(), pause(self._clock, min(left, _ASK_AGAIN)))

    async def _taken(self, queue: str, take: Callable[[], list[Message]]) -> list[Message]:
        """What can be had at once; who is cancelled meanwhile does not take it along."""
        task = asyncio.ensure_future(self._run_taking(take))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(self._give_back, queue))
            raise

    async def _run_taking(self, take: Callable[[], list[Message]]) -> list[Message]:
        async with self._taking:
            return await self._run(take)

    def _give_back(self, queue: str, task: "asyncio.Task[list[Message]]") -> None:
        if task.cancelled() or task.exception() is not None:
            return
        receipts = [message.receipt for message in task.result() if message.receipt is not None]

        def release() -> None:
            with suppress(PenstockError):  # the lease is over, the queue gone
                self._keeper.release(queue, receipts)

        if receipts:
            self._threads.submit(release)

    async def _paged(self, messages: Iterator[Message]) -> AsyncIterator[Message]:
        while page := await self._run(lambda: some(messages)):
            for message in page:
                yield message


__all__ = ["ThreadedKeeper"]
