"""A store of this process for coroutines: nobody waits in a thread of his own.

Operations run at once in the event loop, as they only touch memory. Their commits, and the reading of bodies, run
in threads: while one commit of a queue runs, everything that comes gathers for the next one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.aio.gathering import Asker, Committed, Gathering
from penstock.aio.timer import Timer
from penstock.errors import LeaseExpired, PenstockError
from penstock.histogram import Histogram
from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.live.figures import Figures
from penstock.live.keeper import Committing, LiveKeeper
from penstock.live.queue import LiveQueue
from penstock.live.taken import Taken
from penstock.live.turns import Take, Waiter
from penstock.message import Entry, Message
from penstock.names import DEFAULT
from penstock.settings import MAX_PAYLOAD, Settings

if TYPE_CHECKING:
    from penstock.streams import Streams
    from penstock.uploads import Uploads

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


class LocalKeeper:
    """A keeper whose methods are coroutines, over one whose queues live in this process."""

    def __init__(self, keeper: LiveKeeper) -> None:
        self._keeper = keeper
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

    async def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        await self._in_thread(self._keeper.create, queue, settings)

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        await self._in_thread(self._keeper.delete, queue)

    async def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return await self._in_thread(self._keeper.queues)

    async def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return self._keeper.settings(queue)

    def max_payload(self, queue: str) -> int:
        """The largest payload that the queue takes; of no queue, that of any."""
        try:
            return self._keeper.settings(queue or DEFAULT).max_payload
        except PenstockError:
            return MAX_PAYLOAD

    async def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return self._keeper.counts(queue)

    async def lag(self, queue: str) -> int | None:
        """How far a queue is behind the log."""
        return self._keeper.lag(queue)

    async def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches; in a thread if that may take long."""
        begun = self._keeper.begin_publishing(entry)
        if begun is None:
            return await self._in_thread(self._keeper.publish, entry)
        published, to_commit, written = begun
        await self._committed(to_commit, written)
        return published

    async def figures(self) -> list[Figures]:
        """How every queue is."""
        return await self._in_thread(self._keeper.figures)

    def is_open(self) -> bool:
        """Whether operations are carried out."""
        return self._keeper.is_open()

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store, if it was not closed."""
        return self._keeper.failure

    async def check(self) -> None:
        """Raise what is wrong with the store; is_open() has said all there is."""

    def longest_commit(self) -> float:
        """Seconds for which a commit has been running, the longest of them."""
        return time.monotonic() - min([*self._committing.values()], default=time.monotonic())

    def tend(self) -> "asyncio.Future[None]":
        """Let time have passed in queues where nobody comes by."""
        return asyncio.get_running_loop().run_in_executor(self._threads, self._keeper.tend)

    async def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        live = self._keeper.find(queue)
        if len(entries) == 1 and entries[0] == Entry(entries[0].payload):
            made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._gathering.put(live, entries[0].payload, made)
            return [await made]
        ids, written = live.put(entries)
        await self._committed(live, written)
        return ids

    def put_plainly(self, queue: str, payload: bytes, asker: Asker) -> None:
        """Take in a message that has nothing but a payload; who asks is told its id."""
        self._gathering.put(self._keeper.find(queue), payload, asker)

    async def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages, and if `most` is given no more bytes than that beyond the first."""
        live = self._keeper.find(queue)
        return await self._take(live, live.claiming(n, lease, consumer, most), wait)

    async def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        live = self._keeper.find(queue)
        return next(iter(await self._take(live, live.popping(consumer), wait, self._keeper.far)), None)

    async def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        live = self._keeper.find(queue)
        await self._settled(live, *live.ack(receipts))

    async def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        live = self._keeper.find(queue)
        await self._settled(live, *live.fail(receipts, delay, reason))

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        live = self._keeper.find(queue)
        await self._settled(live, *live.release(receipts))

    async def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on."""
        live = self._keeper.find(queue)
        held, written = live.extend(receipts, lease)
        await self._committed(live, written)
        return held

    async def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        live = self._keeper.find(queue)
        count, written = live.remove(ids)
        await self._committed(live, written)
        return count

    async def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        live = self._keeper.find(queue)
        count, written = live.redrive(ids)
        await self._committed(live, written)
        return count

    async def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        live = self._keeper.find(queue)
        count, written = live.purge()
        await self._committed(live, written)
        return count

    async def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self._keeper.attempts(queue, id)

    async def peek(self, queue: str, n: int, skip: int = 0) -> AsyncIterator[Message]:
        """What claim would give, after some that are skipped."""
        messages = self._keeper.find(queue).peek(n, skip)
        while page := await self._in_thread(lambda: some(messages)):
            for message in page:
                yield message

    async def messages(
        self, queue: str, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> AsyncIterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        messages = self._keeper.find(queue).messages(state, after, until, bodies)
        while page := await self._in_thread(lambda: some(messages)):
            for message in page:
                yield message

    async def all_attempts(self, queue: str, after: str, until: str) -> AsyncIterator[tuple[str, list[Attempt]]]:
        """The attempts at each message, also where there are none."""
        attempts = self._keeper.find(queue).all_attempts(after, until)
        while page := await self._in_thread(lambda: list(islice(attempts, _PAGE))):
            for each in page:
                yield each

    async def parts(self, queue: str, n: int) -> list[str]:
        """Ids that end parts of about the same size."""
        return self._keeper.find(queue).parts(n)

    async def with_uploads(self, call: Callable[["Uploads"], Result]) -> Result:
        """Do something with the loads that clients send, in a thread of theirs."""
        uploads = self._keeper.uploads()
        return await asyncio.get_running_loop().run_in_executor(self._loaders, call, uploads)

    async def with_streams(self, call: Callable[["Streams"], Result]) -> Result:
        """Do something with the streams that read queues, in a thread."""
        streams = self._keeper.streams()
        return await asyncio.get_running_loop().run_in_executor(self._loaders, call, streams)

    def end_waiting(self) -> None:
        """From now on nobody waits for messages: who does gets what is there."""
        self._hurried = True
        for woken in self._in_line:
            _wake(woken)

    async def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""
        await self._in_thread(self._keeper.close)
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
        timer = Timer(loop, self._keeper.clock, wait, partial(_wake, woken))
        try:
            self._in_line.add(woken)
            live.stand_in_line(waiter)
            await woken
        except BaseException:
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
