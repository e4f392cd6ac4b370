"""The engine's backend for coroutines: no consumer waits in a thread of its own.

Operations are decided at once in the event loop, as they only touch memory. Their commits, and the reading of
bodies, run in threads: while one commit of a queue runs, later operations gather for the next one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.contract.backend import Histogram, Reading
from penstock.contract.loads import LoadInfo
from penstock.contract.message import Entry, Message, Plain
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import (
    Attempts,
    Claim,
    Counts,
    Fail,
    Figures,
    Lookup,
    Messages,
    Parts,
    Peek,
    Pop,
    Publish,
    Put,
    Redrive,
    Show,
)
from penstock.contract.settings import MAX_PAYLOAD
from penstock.contract.stream_operations import AllStreams
from penstock.contract.streams import FollowerInfo
from penstock.engine.backend import Committing, Engine
from penstock.engine.queue import STEPS, LiveQueue, Waiter
from penstock.engine.views import Taken
from penstock.errors import LeaseExpired, PenstockError
from penstock.system.clock import pause

_THREADS = 32  # commits of different queues side by side
_LOADERS = 4  # operations of loads side by side: each has much in memory
_READERS, _LARGE = 4, 1 << 20  # reads of so many bytes side by side
_PAGE = 256
_PAGE_BYTES = 4 << 20
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
COMMIT_RECORDS = tuple(1 << power for power in range(13))
_AT_ONCE = (Show, Lookup, Counts, Attempts, Parts)  # operations that change nothing and only touch memory
Result = TypeVar("Result")
Committed: TypeAlias = Callable[[BaseException | None], None]  # called with the commit's error, or None


class _Pending(NamedTuple):
    """A caller that waits for a commit; `then` runs after the commit in the same thread."""

    written: int
    then: Callable[[], Any] | None
    asker: "Asker"


_written = attrgetter("written")


class Asker(Protocol):
    """A caller that waits for a result: a future, or an object with these methods of one."""

    def done(self) -> bool:
        """Whether the caller was cancelled, or has gone."""

    def set_result(self, result: Any, /) -> None:
        """The result, which is on stable storage."""

    def set_exception(self, error: BaseException, /) -> None:
        """The operation was refused, or may not be on stable storage."""


class _Then:
    """Calls back with the error of a commit, or None."""

    __slots__ = ("_call",)

    def __init__(self, call: Committed) -> None:
        self._call = call

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self._call(None)

    def set_exception(self, error: BaseException, /) -> None:
        self._call(error)


class _PlainPut(NamedTuple):
    """A message without headers and options, and the caller that waits for its id."""

    payload: bytes
    asker: Asker


class Gathering:
    """Plain puts of the same two turns of the event loop: one operation, answered one by one.

    A batch of messages costs a fraction of as many operations. If the batch is refused, each put is made alone.
    """

    def __init__(self, commit: Callable[[LiveQueue, int, bool, Committed], None]) -> None:
        """`commit` calls back once a queue's records are durable; its flag: puts of other queues are waiting."""
        self._commit = commit
        self._waiting: dict[LiveQueue, list[_PlainPut]] = {}

    def put(self, live: LiveQueue, payload: bytes, asker: Asker) -> None:
        """Put a message; the asker gets the id once it is on stable storage."""
        waiting = self._waiting.get(live)
        if waiting is None:
            self._waiting[live] = [_PlainPut(payload, asker)]
            loop = asyncio.get_running_loop()
            # In the turn after the next, together with puts that come a little later.
            loop.call_soon(loop.call_soon, self._make, live)
        else:
            waiting.append(_PlainPut(payload, asker))

    def _make(self, live: LiveQueue) -> None:
        puts = [put for put in self._waiting.pop(live) if not put.asker.done()]  # without cancelled callers
        if puts:
            self._make_together(live, puts)

    def _make_together(self, live: LiveQueue, puts: list[_PlainPut]) -> None:
        try:
            entries = [Entry(puts[0].payload)] if len(puts) == 1 else Plain([put.payload for put in puts])
            self._answer(live, puts, *live.decide(Put(live.name, entries)))
        except PenstockError as error:
            if len(puts) == 1:
                puts[0].asker.set_exception(error)
                return
            for put in puts:
                self._make_together(live, [put])
        except BaseException as error:
            for put in puts:
                put.asker.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _answer(self, live: LiveQueue, puts: list[_PlainPut], ids: list[str], written: int) -> None:
        def answer(error: BaseException | None) -> None:
            for put, each in zip(puts, ids, strict=True):
                if put.asker.done():
                    continue
                if error is None:
                    put.asker.set_result(each)
                else:
                    put.asker.set_exception(error)

        if written > live.durable:
            self._commit(live, written, bool(self._waiting), answer)
        else:
            answer(None)


class LocalBackend:
    """A backend for coroutines over an engine of this process."""

    descriptors = 1  # of a request that waits

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-commit")
        self._loaders = ThreadPoolExecutor(_LOADERS, "penstock-load")
        self._pending: dict[Committing, list[_Pending]] = {}  # coroutines that wait for the next commit of a queue
        self._committing: dict[Committing, float] = {}  # when each running commit began
        self.latest_commit = inf  # seconds of the latest commit
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.commit_records = Histogram(COMMIT_RECORDS)  # that one commit made durable
        self._gathering = Gathering(self._commit_puts)
        self._in_line: set[asyncio.Future[None]] = set()
        self._hurried = False
        self._reads: set[asyncio.Task[list[Message]]] = set()
        self._reading = asyncio.Semaphore(_READERS)

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        moves, queue = self.engine.moves, getattr(operation, "queue", None)
        if moves.sources and queue is not None:
            if isinstance(operation, Fail | Redrive):  # syncs two queues, one after the other
                return self._in_thread(self.engine.run, operation)
            if moves.is_due(queue):
                return self._after_moves(operation, queue)
        return self._run(operation)

    async def _after_moves(self, operation: Operation[Result], queue: str) -> Result:
        await self._in_thread(self.engine.moves.settle, queue)
        return await self._run(operation)

    def _run(self, operation: Operation[Result]) -> Awaitable[Result]:
        if type(operation) in STEPS:
            if isinstance(operation, Put):
                return self._put(operation)  # type: ignore[return-value]
            return self._take(operation) if operation.http.polls else self._decide(operation)
        if isinstance(operation, _AT_ONCE):
            return self._look(operation)  # type: ignore[arg-type]
        if isinstance(operation, Publish):
            return self._publish(operation)  # type: ignore[return-value]
        # Loads and streams take long, so they have threads of their own; listing streams, as metrics do, is quick.
        is_long = operation.part in ("uploads", "streams") and not isinstance(operation, AllStreams)
        threads = self._loaders if is_long else self._threads
        return asyncio.get_running_loop().run_in_executor(threads, partial(self.engine.run, operation))

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        messages = self.engine.run(operation)
        while page := await self._in_thread(some, messages):
            for message in page:
                yield message

    def max_payload(self, queue: str) -> int:
        try:
            return self.engine.find(queue or DEFAULT).settings.max_payload
        except PenstockError:
            return MAX_PAYLOAD

    async def figures(self) -> list[Figures]:
        return await self._in_thread(self.engine.figures)

    async def readings(self) -> Iterable[Reading]:
        return self.engine.readings()

    async def waits(self, queues: Sequence[str]) -> dict[str, float]:
        return await self._in_thread(self.engine.waits, queues)

    async def under_way(self) -> tuple[list[FollowerInfo], list[LoadInfo]]:
        return await self._in_thread(self.engine.under_way)

    def is_open(self) -> bool:
        return self.engine.is_open()

    @property
    def failure(self) -> BaseException | None:
        return self.engine.failure

    async def check(self) -> None:
        """Nothing to add to is_open()."""

    def longest_commit(self) -> float:
        return time.monotonic() - min([*self._committing.values()], default=time.monotonic())

    def tend(self) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(self._threads, self.engine.tend)

    def put_plainly(self, queue: str, payload: bytes, asker: Asker) -> None:
        """Put a message without headers and options; the asker gets its id."""
        self._gathering.put(self.engine.find(queue), payload, asker)

    def begin(self, operation: Operation[Any], asker: Asker) -> bool:
        """Carry out an operation of STEPS that is no put without the cost of a coroutine: 10 of 60 microseconds.

        The asker gets the result. False: nothing was done, and a coroutine has to do it, as it may take long or
        wait for messages.
        """
        engine = self.engine
        if engine.moves.sources or engine.far:
            return False
        live, takes = engine.find(operation.queue), isinstance(operation, Claim)
        if isinstance(operation, Claim) and (operation.ack or not live.may_give()):
            return False
        result, written = live.decide(operation)
        if takes:
            if not result.size and operation.wait > 0:
                return False
            at_hand = live.at_hand(result) if result.bytes <= _LARGE else None
            if at_hand is None:  # the bodies have to be read from the disk
                self._read(live, result, written, asker)
                return True
            result = at_hand
        then = partial(self._end, live, result, asker)
        if written > live.durable:
            self._gather(live, _Pending(written, None, _Then(then)))
        else:  # not from here, or pipelined requests would nest until the stack overflows
            asyncio.get_running_loop().call_soon(then, None)
        return True

    def _read(self, live: LiveQueue, taken: Taken, written: int, asker: Asker) -> None:
        """Hand out messages whose bodies have to be read from the disk."""

        def tell(done: "asyncio.Task[list[Message]]") -> None:
            self._reads.discard(done)
            if done.cancelled():
                return  # the loop ends
            if (error := done.exception()) is not None:
                asker.set_exception(error)
            elif asker.done():
                self._threads.submit(live.give_back, taken.receipts)
            else:
                asker.set_result(done.result())

        reading = asyncio.get_running_loop().create_task(self._handed(live, taken, written))
        self._reads.add(reading)  # the loop itself keeps no task
        reading.add_done_callback(tell)

    def _end(self, live: LiveQueue, result: Any, asker: Asker, error: BaseException | None) -> None:
        """Tell the result of an operation after its commit."""
        if type(result) is Taken and error is None:
            if asker.done():  # the consumer has gone
                self._threads.submit(live.give_back, result.receipts)
                return
            try:
                result = live.hand_out(result)
            except Exception as unreadable:
                error = unreadable
        elif isinstance(result, LeaseExpired):
            error = error or result
        if error is None:
            asker.set_result(result)
        else:
            asker.set_exception(error)

    def end_waiting(self) -> None:
        """From now on no consumer waits; waiting consumers get the available messages, or none."""
        self._hurried = True
        for woken in self._in_line:
            _wake(woken)

    async def close(self) -> None:
        await self._in_thread(self.engine.close)
        await self.detach()

    async def detach(self) -> None:
        for threads in (self._loaders, self._threads):
            await asyncio.get_running_loop().run_in_executor(None, threads.shutdown)

    async def _in_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def _look(self, operation: Operation[Result]) -> Result:
        return self.engine.run(operation)

    async def _publish(self, operation: Publish) -> str:
        """Publish; in a thread unless the engine can do it without waiting."""
        begun = self.engine.begin_publishing(operation.entry)
        if begun is None:
            return await self._in_thread(self.engine.publish, operation.entry)
        published, to_commit, written = begun
        await self._committed(to_commit, written)
        return published

    async def _put(self, operation: Put) -> list[str]:
        entries = operation.entries
        if len(entries) > 1 or not entries or entries[0] != Entry(entries[0].payload):
            return await self._decide(operation)
        made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gathering.put(self.engine.find(operation.queue), entries[0].payload, made)
        return [await made]

    async def _decide(self, operation: Operation[Result]) -> Result:
        """Carry out an operation of STEPS that takes no messages."""
        live = self.engine.find(operation.queue)
        result, written = live.decide(operation)
        await self._committed(live, written)
        if isinstance(result, LeaseExpired):
            raise result
        return result  # type: ignore[no-any-return]

    async def _committed(self, live: Committing, written: int) -> None:
        if written > live.durable:
            await self._after_commit(live, written)

    async def _take(self, operation: Operation[Result]) -> Result:
        """Messages for a consumer, at once or after its turn in line."""
        live = self.engine.find(operation.queue)
        far = self.engine.far and isinstance(operation, Pop)  # a pop reads the body before it decides
        taken, written = await self._in_thread(live.decide, operation) if far else live.decide(operation)
        if isinstance(taken, PenstockError):
            await self._committed(live, written)
            raise taken
        if not taken.size:
            if isinstance(operation, Claim) and operation.ack:
                await self._committed(live, written)
                operation = operation.changed(ack=())  # type: ignore[assignment]
            if operation.wait > 0 and not self._hurried:
                taken, written = await self._wait_in_line(live, operation)
        return operation.picked(await self._handed(live, taken, written))  # type: ignore[no-any-return]

    async def _handed(self, live: LiveQueue, taken: Taken, written: int) -> list[Message]:
        """The messages that a consumer took, after the commit."""
        messages: list[Message] = []
        try:
            if taken.bytes > _LARGE:  # few have so much in memory at a time
                await self._committed(live, written)
                async with self._reading:
                    messages = await self._in_thread(live.hand_out, taken)
            elif taken.size and (at_hand := live.at_hand(taken)) is not None:  # no need for a thread
                if written > live.durable:
                    await self._after_commit(live, written)
                messages = live.hand_out(at_hand)
            elif taken.size:
                messages = await self._after_commit(live, written, partial(live.hand_out, taken))
        except asyncio.CancelledError:
            self._threads.submit(live.give_back, taken.receipts)
            raise
        return messages

    async def _wait_in_line(self, live: LiveQueue, operation: Operation[Any]) -> tuple[Taken, int]:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiter = Waiter(operation, lambda: _call(loop, _wake, woken))
        timer = _Timer(loop, self.engine.clock, operation.wait, partial(_wake, woken))
        try:
            self._in_line.add(woken)
            live.stand_in_line(waiter)
            await woken
        except BaseException:
            live.step_out(waiter)  # at once: messages put after the cancellation are for other consumers
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
        """Call back with the error, or None, after the commit; `others`: puts of other queues are waiting."""
        self._gather(live, _Pending(written, None, _Then(then)))

    def _after_commit(
        self, live: Committing, written: int, then: Callable[[], Any] | None = None
    ) -> "asyncio.Future[Any]":
        """A future of the commit; its result is that of `then`, called in the commit's thread."""
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._gather(live, _Pending(written, then, made))
        return made

    def _gather(self, live: Committing, pending: _Pending) -> None:
        """Let the next commit of a queue answer a caller, too.

        If none is running, it begins in the next turn of the loop, with all that this turn decides: a commit for
        the first alone would hold up the others.
        """
        gathering = self._pending.get(live)
        if gathering is None:
            self._pending[live] = [pending]
            loop = asyncio.get_running_loop()
            loop.call_soon(self._begin_commit, loop, live)
        else:
            gathering.append(pending)

    def _begin_commit(self, loop: asyncio.AbstractEventLoop, live: Committing) -> None:
        gathered, self._pending[live] = self._pending[live], []
        self._threads.submit(self._commit, loop, live, gathered)

    def _commit(self, loop: asyncio.AbstractEventLoop, live: Committing, batch: list[_Pending]) -> None:
        """In a thread: one commit for the whole batch, then each `then`."""
        results: list[Any]
        try:
            self._commit_now(live, max(map(_written, batch)))
        except BaseException as error:
            results = [error] * len(batch)
        else:
            results = [None if pending.then is None else _outcome(pending.then) for pending in batch]
        _call(loop, self._finish, loop, live, batch, results)

    def _commit_now(self, live: Committing, written: int) -> None:
        """Commit in this thread, and measure it."""
        before, began = live.durable, time.monotonic()
        self._committing[live] = began
        try:
            live.commit(written)
        finally:
            del self._committing[live]
        records = live.durable - before
        if records > 0:
            self.latest_commit = time.monotonic() - began
            self.commit_seconds.observe(self.latest_commit)
            self.commit_records.observe(records)

    def _finish(
        self, loop: asyncio.AbstractEventLoop, live: Committing, batch: list[_Pending], results: list[Any]
    ) -> None:
        """In the loop, after a commit: start the next one, then complete the futures of this one."""
        gathered, waiting = [], self._pending[live]
        durable = live.durable if waiting else 0
        for pending in waiting:
            if pending.then is None and pending.written <= durable:  # was written with this commit
                batch.append(pending)
                results.append(None)
            else:
                gathered.append(pending)
        if gathered:
            self._pending[live] = gathered
            self._begin_commit(loop, live)
        else:
            del self._pending[live]
        for pending, result in zip(batch, results, strict=True):
            if pending.asker.done():  # cancelled
                continue
            if isinstance(result, BaseException):
                pending.asker.set_exception(result)
            else:
                pending.asker.set_result(result)


class _Timer:
    """Calls back after so many seconds of the store's clock, which tests simulate."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Any, seconds: float, call: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._call = call
        self._deadline = clock.monotonic() + seconds
        self._handle = loop.call_later(pause(clock, seconds), self._look)

    def _look(self) -> None:
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            self._call()
        else:
            self._handle = self._loop.call_later(pause(self._clock, left), self._look)

    def cancel(self) -> None:
        """Cancel the call."""
        self._handle.cancel()


def some(messages: Iterator[Message]) -> list[Message]:
    """The next page of messages: limited in number and bytes."""
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
    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(call, *arguments)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
