"""A store of this process for coroutines: nobody waits in a thread of his own.

Operations run at once in the event loop, as they only touch memory. Their commits, and the reading of bodies, run
in threads: while one commit of a queue runs, everything that comes gathers for the next one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple, TypeVar

from penstock.contract.message import Attempt, Entry, Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import AttemptPage, Held, Messages, Peek
from penstock.contract.settings import MAX_PAYLOAD, QueueInfo, Settings
from penstock.engine.backend import Committing, Engine
from penstock.engine.figures import Figures
from penstock.engine.gathering import Asker, Committed, Gathering
from penstock.engine.queue import LiveQueue
from penstock.engine.taken import Taken
from penstock.engine.timer import Timer
from penstock.engine.turns import Take, Waiter
from penstock.errors import LeaseExpired, PenstockError
from penstock.system.histogram import Histogram

_THREADS = 32  # commits of different queues side by side
_LOADERS = 4  # what loads do side by side: each has much in memory
_READERS, _LARGE = 4, 1 << 20  # consumers that are given so many bytes, side by side
_PAGE = 256
_PAGE_BYTES = 4 << 20
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
COMMIT_RECORDS = tuple(1 << power for power in range(13))
Result = TypeVar("Result")


class _Pending(NamedTuple):
    """Someone who waits for a commit, and what to do after it, still in the thread."""

    written: int
    then: Callable[[], Any] | None
    future: "asyncio.Future[Any]"


class LocalBackend:
    """A backend whose methods are coroutines, over one whose queues live in this process."""

    descriptors = 1  # of a request that waits

    def __init__(self, backend: Engine) -> None:
        self._backend = backend
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-commit")
        self._loaders = ThreadPoolExecutor(_LOADERS, "penstock-load")
        self._pending: dict[Committing, list[_Pending]] = {}  # of queues of which a commit runs
        self._committing: dict[Committing, float] = {}  # since when
        self.latest_commit = inf  # seconds that it took
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.commit_records = Histogram(COMMIT_RECORDS)  # that one commit made durable
        self._gathering = Gathering(self._commit_puts)
        self._in_line: set[asyncio.Future[None]] = set()
        self._hurried = False
        self._reading = asyncio.Semaphore(_READERS)

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        """Carry out an operation."""
        method: Callable[..., Awaitable[Result]] | None = getattr(self, operation.runs, None)
        if operation.part or method is None:
            # Loads and streams in threads of theirs, as there may be much to do; nobody else waits for those.
            threads = self._loaders if operation.part in ("uploads", "streams") else self._threads
            return asyncio.get_running_loop().run_in_executor(threads, partial(self._backend.run, operation))
        running: Awaitable[Result] = operation.call(self)
        return running

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        """List messages, page by page."""
        messages = self._backend.run(operation)
        while page := await self._in_thread(some, messages):
            for message in page:
                yield message

    async def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        await self._in_thread(self._backend.create, queue, settings)

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        await self._in_thread(self._backend.delete, queue)

    async def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return await self._in_thread(self._backend.queues)

    async def show(self, queue: str) -> QueueInfo:
        """A queue with its settings and counts."""
        return self._backend.show(queue)

    async def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return self._backend.settings(queue)

    def max_payload(self, queue: str) -> int:
        """The largest payload that the queue takes; of no queue, that of any."""
        try:
            return self._backend.settings(queue or DEFAULT).max_payload
        except PenstockError:
            return MAX_PAYLOAD

    async def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return self._backend.counts(queue)

    async def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches; in a thread if that may take long."""
        begun = self._backend.begin_publishing(entry)
        if begun is None:
            return await self._in_thread(self._backend.publish, entry)
        published, to_commit, written = begun
        await self._committed(to_commit, written)
        return published

    async def figures(self) -> list[Figures]:
        """How every queue is."""
        return await self._in_thread(self._backend.figures)

    def is_open(self) -> bool:
        """Whether operations are carried out."""
        return self._backend.is_open()

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store, if it was not closed."""
        return self._backend.failure

    async def check(self) -> None:
        """Raise what is wrong with the store; is_open() has said all there is."""

    def longest_commit(self) -> float:
        """Seconds for which a commit has been running, the longest of them."""
        return time.monotonic() - min([*self._committing.values()], default=time.monotonic())

    def tend(self) -> "asyncio.Future[None]":
        """Let time have passed in queues where nobody comes by."""
        return asyncio.get_running_loop().run_in_executor(self._threads, self._backend.tend)

    async def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        live = self._backend.find(queue)
        if len(entries) == 1 and entries[0] == Entry(entries[0].payload):
            made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._gathering.put(live, entries[0].payload, made)
            return [await made]
        ids, written = live.put(entries)
        await self._committed(live, written)
        return ids

    def put_plainly(self, queue: str, payload: bytes, asker: Asker) -> None:
        """Take in a message that has nothing but a payload; who asks is told its id."""
        self._gathering.put(self._backend.find(queue), payload, asker)

    async def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages, and if `most` is given no more bytes than that beyond the first."""
        live = self._backend.find(queue)
        return await self._take(live, live.claiming(n, lease, consumer, most), wait)

    async def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        live = self._backend.find(queue)
        return next(iter(await self._take(live, live.popping(consumer), wait, self._backend.far)), None)

    async def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        live = self._backend.find(queue)
        await self._settled(live, *live.ack(receipts))

    async def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        live = self._backend.find(queue)
        await self._settled(live, *live.fail(receipts, delay, reason))

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        live = self._backend.find(queue)
        await self._settled(live, *live.release(receipts))

    async def extend(self, queue: str, receipts: Sequence[str], lease: float) -> Held:
        """Hold from now on."""
        live = self._backend.find(queue)
        held, written = live.extend(receipts, lease)
        await self._committed(live, written)
        return Held(*held)

    async def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        live = self._backend.find(queue)
        count, written = live.remove(ids)
        await self._committed(live, written)
        return count

    async def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        live = self._backend.find(queue)
        count, written = live.redrive(ids)
        await self._committed(live, written)
        return count

    async def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        live = self._backend.find(queue)
        count, written = live.purge()
        await self._committed(live, written)
        return count

    async def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self._backend.attempts(queue, id)

    async def all_attempts(self, queue: str, after: str, until: str) -> AttemptPage:
        """A page of the attempts at all messages."""
        return await self._in_thread(self._backend.all_attempts, queue, after, until)

    async def parts(self, queue: str, n: int) -> list[str]:
        """Ids that end parts of about the same size."""
        return self._backend.find(queue).parts(n)

    def end_waiting(self) -> None:
        """From now on nobody waits for messages: who does gets what is there."""
        self._hurried = True
        for woken in self._in_line:
            _wake(woken)

    async def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""
        await self._in_thread(self._backend.close)
        await self.detach()

    async def detach(self) -> None:
        """Finish what was begun, and leave the store as it is."""
        for threads in (self._loaders, self._threads):
            await asyncio.get_running_loop().run_in_executor(None, threads.shutdown)

    async def _in_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def _committed(self, live: Committing, written: int) -> None:
        if written > live.durable:
            await self._after_commit(live, written)

    async def _settled(self, live: LiveQueue, lost: list[str], written: int) -> None:
        await self._committed(live, written)
        if lost:
            raise LeaseExpired(live.name, lost)

    async def _take(self, live: LiveQueue, take: Take, wait: float, far: bool = False) -> list[Message]:
        """What a consumer gets, at once or after its turn in line; `far`: taking may take long."""
        taken, written = await self._in_thread(live.take, take) if far else live.take(take)
        if not taken.size:
            if wait <= 0 or self._hurried:
                return []
            taken, written = await self._wait_in_line(live, take, wait)
            if not taken.size:
                return []
        try:
            if taken.bytes > _LARGE:  # few have so much in memory at a time
                await self._committed(live, written)
                async with self._reading:
                    return await self._in_thread(live.hand_out, taken)
            at_hand = live.at_hand(taken)
            if at_hand is not None:  # no need for a thread
                await self._committed(live, written)
                return live.hand_out(at_hand)
            handed: list[Message] = await self._after_commit(live, written, partial(live.hand_out, taken))
        except asyncio.CancelledError:
            self._threads.submit(live.give_back, taken.receipts)
            raise
        return handed

    async def _wait_in_line(self, live: LiveQueue, take: Take, wait: float) -> tuple[Taken, int]:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiter = Waiter(take, lambda: _call(loop, _wake, woken))
        timer = Timer(loop, self._backend.clock, wait, partial(_wake, woken))
        try:
            self._in_line.add(woken)
            live.stand_in_line(waiter)
            await woken
        except BaseException:
            live.step_out(waiter)  # at once: what is put after the consumer was told to go is for others
            self._threads.submit(live.abandon, waiter)
            raise
        finally:
            self._in_line.discard(woken)
            timer.cancel()
        live.leave_line(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter.taken, waiter.written

    def _commit_puts(self, live: LiveQueue, written: int, others: bool, then: Committed) -> None:
        """Call back once so much is on stable storage, with what went wrong; `others`: more queues have some."""
        self._after_commit(live, written).add_done_callback(lambda done: then(done.exception()))

    def _after_commit(
        self, live: Committing, written: int, then: Callable[[], Any] | None = None
    ) -> "asyncio.Future[Any]":
        """Done once so much is on stable storage, with what `then` gives."""
        loop = asyncio.get_running_loop()
        pending = _Pending(written, then, loop.create_future())
        gathering = self._pending.get(live)
        if gathering is None:
            self._pending[live] = []
            self._threads.submit(self._commit, loop, live, [pending])
        else:
            gathering.append(pending)
        return pending.future

    def _commit(self, loop: asyncio.AbstractEventLoop, live: Committing, batch: list[_Pending]) -> None:
        """In a thread: commit for all, and read for those who have something to read."""
        results: list[Any]
        try:
            self._commit_now(live, max([pending.written for pending in batch]))
        except BaseException as error:
            results = [error] * len(batch)
        else:
            results = [None if pending.then is None else _outcome(pending.then) for pending in batch]
        _call(loop, self._finish, loop, live, batch, results)

    def _commit_now(self, live: Committing, written: int) -> None:
        """Return once so much is on stable storage."""
        before, began = live.durable, time.monotonic()
        self._committing[live] = began
        try:
            live.commit(written)
        finally:
            del self._committing[live]
        if live.durable > before:
            self.latest_commit = time.monotonic() - began
            self.commit_seconds.observe(self.latest_commit)
            self.commit_records.observe(live.durable - before)

    def _finish(
        self, loop: asyncio.AbstractEventLoop, live: Committing, batch: list[_Pending], results: list[Any]
    ) -> None:
        """Back in the loop: the next commit begins before the answers of this one go out."""
        durable = live.durable
        gathered = []
        for pending in self._pending[live]:
            if pending.then is None and pending.written <= durable:  # came in time to be written with the others
                batch.append(pending)
                results.append(None)
            else:
                gathered.append(pending)
        if gathered:
            self._pending[live] = []
            self._threads.submit(self._commit, loop, live, gathered)
        else:
            del self._pending[live]
        for pending, result in zip(batch, results, strict=True):
            if pending.future.done():  # cancelled
                continue
            if isinstance(result, BaseException):
                pending.future.set_exception(result)
            else:
                pending.future.set_result(result)


def some(messages: Iterator[Message]) -> list[Message]:
    """The next messages, as many as may be in memory at once."""
    page: list[Message] = []
    size = 0
    for message in islice(messages, _PAGE):
        page.append(message)
        size += len(message.payload)
        if size > _PAGE_BYTES:
            break
    return page


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        return error


def _call(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left to be told
        loop.call_soon_threadsafe(call, *arguments)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
