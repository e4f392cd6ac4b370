"""The worker for coroutines: the twin of `penstock.work`, with tasks where that has threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.contract.aio import Message, Queue
from penstock.contract.arguments import receipts_of
from penstock.errors import LeaseExpired
from penstock.workers import ending
from penstock.workers.ending import Account, settled
from penstock.workers.holding import ACK, RELEASE, Held, Holding, Outcome, alike
from penstock.workers.options import GLANCE, PASSING, PATIENCE, POLL, Backoff, Options, Pauses, Result, Worked
from penstock.workers.signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.contract import message
    from penstock.workers.ending import Ended

Answer = TypeVar("Answer")


async def work(
    queue: Queue,
    handler: Callable[[Message], Awaitable[object] | object],
    concurrency: int = 8,
    *,
    lease: float = 30.0,
    backoff: Backoff | None = None,
    grace: float = 8.0,
    stop: asyncio.Event | None = None,
    until_empty: bool = False,
    consumer: str | None = None,
    on_drop: Callable[[Message], object] | None = None,
    report: Callable[[Result], object] | None = None,
) -> Worked:
    """Call `handler(message)` for each message of a queue, so many at a time, until stopped; what was done.

    As `penstock.work`. A handler that is a coroutine function runs in the event loop, and is cancelled when its
    message is no longer held; any other function runs in a thread, and says by returning or raising what becomes
    of its message. If the worker itself is cancelled it releases what it holds first.
    """
    options = Options.checked(concurrency, lease, backoff, grace, until_empty, consumer, on_drop, report)
    return await _Worker(queue, handler, options, stop or asyncio.Event()).run()


class _Claims(Queue):
    """The queue as handlers see it: what they settle by themselves is noted."""

    def __init__(self, queue: Queue, worker: _Worker) -> None:
        super().__init__(queue._store, queue.name)
        self._noted = worker.holding

    async def ack(self, *messages: message.Message | str) -> None:
        await super().ack(*messages)
        self._noted.settled_by_handler(receipts_of(messages, self.name), ACK)

    async def fail(self, *messages: message.Message | str, delay: float = 0.0, reason: str | None = None) -> None:
        await super().fail(*messages, delay=delay, reason=reason)
        self._noted.settled_by_handler(receipts_of(messages, self.name), Outcome("fail", delay, reason))

    async def release(self, *messages: message.Message | str) -> None:
        await super().release(*messages)
        self._noted.settled_by_handler(receipts_of(messages, self.name), RELEASE)

    async def extend(self, *messages: message.Message | str, lease: float = 30.0) -> None:
        await super().extend(*messages, lease=lease)
        self._noted.extended(receipts_of(messages, self.name), lease, time.monotonic())


class _Worker:
    """One call of work()."""

    def __init__(
        self, queue: Queue, handler: Callable[[Message], Any], options: Options, stop: asyncio.Event
    ) -> None:
        self.holding: Holding[Message] = Holding(options.lease)
        self._queue = queue
        self._claims = _Claims(queue, self)
        self._handler = handler
        self._in_loop = _is_coroutine_function(handler)
        self._options = options
        self._stop = stop
        self._free = options.concurrency
        self._changed = asyncio.Event()  # something that tasks wait for may have happened
        self._leaving = asyncio.Event()  # nothing more is tried again
        self._hurry = asyncio.Event()  # what is held is released now: a second signal, or an error
        self._ended: asyncio.Queue[Held[Message] | None] = asyncio.Queue()
        self._at_work: dict[asyncio.Task[None], Held[Message]] = {}
        self._account: Account[Message] = Account(options)
        self._error: BaseException | None = None

    # Who watches

    async def run(self) -> Worked:
        """Work until stopped."""
        loop = asyncio.get_running_loop()
        with stop_signals(lambda number: _call_soon(loop, self._told, number)):
            claimer = asyncio.create_task(self._claim_all())
            settler = asyncio.create_task(self._settle_all())
            extender = asyncio.create_task(self._extend_all())
            try:
                await self._watch(claimer)
            finally:
                # In a task of its own: a second cancellation must not keep it from releasing.
                letting_go = asyncio.create_task(self._let_go(claimer, settler, extender))
                while not letting_go.done():
                    try:
                        await asyncio.shield(letting_go)
                    except asyncio.CancelledError:
                        continue
        if self._error is not None:
            raise self._error
        return self._account.worked

    def _told(self, number: int) -> None:
        self._account.worked.signal = number
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _watch(self, claimer: asyncio.Task[None]) -> None:
        """Return when there is nothing left to wait for."""
        await _first(claimer, self._stop.wait(), self._hurry.wait())
        await _first(self._idle(claimer), self._hurry.wait(), timeout=self._options.grace)

    async def _idle(self, claimer: asyncio.Task[None]) -> None:
        await asyncio.wait([claimer])
        while self._free < self._options.concurrency:
            self._changed.clear()
            await self._changed.wait()

    async def _let_go(self, claimer: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
        """Release what handlers still work on. What they finish from now on does not count."""
        settler, extender = others
        self._stop.set()
        await asyncio.wait([claimer], timeout=2 * POLL)  # else it would claim what is released
        self._leaving.set()
        self._changed.set()
        dropped = self.holding.give_up()
        await self._drop(dropped)
        for each in dropped:
            each.outcome = RELEASE
        if dropped:
            await self._settle(RELEASE, dropped)
        await asyncio.wait([claimer], timeout=PATIENCE)  # it may bring messages yet, to be released
        self._ended.put_nowait(None)
        await asyncio.wait([settler], timeout=PATIENCE)
        for task in (claimer, settler, extender):
            task.cancel()
        await asyncio.wait([claimer, settler, extender])

    async def _drop(self, dropped: list[Held[Message]]) -> None:
        """Tell handlers that their work no longer counts; coroutines end before anyone else gets the message."""
        tasks = [task for task, held in self._at_work.items() if held in dropped]
        for held in dropped:
            self._options.dropped(held.message)
        for task in tasks if self._in_loop else ():
            task.cancel()
        if tasks and self._in_loop:
            await asyncio.wait(tasks, timeout=POLL)

    def _fail(self, error: BaseException) -> None:
        """End the worker with an error."""
        self._error = self._error or error
        self._stop.set()
        self._hurry.set()

    async def _try(self, call: Callable[[], Awaitable[Answer]], giving_up: asyncio.Event) -> Answer | None:
        """Ask the store until it answers; None if that is no longer wanted."""
        pauses = Pauses()
        while True:
            try:
                return await call()
            except PASSING as error:
                if giving_up.is_set():
                    return None
                await _first(giving_up.wait(), timeout=pauses.next(error))

    # The claimer

    async def _claim_all(self) -> None:
        try:
            settings = await self._try(self._queue.settings, self._stop)
            if settings is not None:
                self.holding.lease = min(self._options.lease, settings.max_lease)
                self._changed.set()
            while not self._stop.is_set() and await self._claim():
                while not self._free and not self._stop.is_set():
                    self._changed.clear()
                    await _first(self._changed.wait(), self._stop.wait())
        except Exception as error:
            self._fail(error)

    async def _claim(self) -> bool:
        """Claim as many messages as can be worked on; False if the queue is empty and that is the end."""
        options = self._options
        wait = 0 if options.until_empty else POLL
        lease, room = self.holding.lease, self._free
        messages = await self._try(lambda: self._claims.claim(room, lease, wait, options.consumer), self._stop)
        if not messages:
            return not options.until_empty or await self._wait_while_empty()
        for held in self.holding.take(messages, time.monotonic()):
            self._free -= 1
            if self._stop.is_set():
                held.outcome = RELEASE
                self._ended.put_nowait(held)
            else:
                task = asyncio.create_task(self._work(held))
                self._at_work[task] = held
                task.add_done_callback(self._at_work.pop)
        return True

    async def _wait_while_empty(self) -> bool:
        """Nothing is available: wait a moment for what may yet come; False if that is nothing."""
        if self._free < self._options.concurrency:  # what is worked on may fail and come back
            self._changed.clear()
            await _first(self._changed.wait(), self._stop.wait(), timeout=GLANCE)
            return True
        if await self._try(self._queue.count, self._stop) == 0:
            return False
        await _first(self._stop.wait(), timeout=GLANCE / 4)
        return True

    # The work

    async def _work(self, held: Held[Message]) -> None:
        outcome, error = await self._outcome_of(held)
        if self.holding.end(held, outcome):
            self._ended.put_nowait(held)
        else:
            self._free += 1
            self._changed.set()
            if held.settled is not None:
                self._tell([(held, held.settled.kind)], held.settled.reason)
            else:
                ending.log_in_vain(held.message, outcome)
        if error is not None:
            self._fail(error)

    async def _outcome_of(self, held: Held[Message]) -> tuple[Outcome, BaseException | None]:
        """How the work on a message ends, and what ends the worker with it."""
        try:
            if self._in_loop:
                await self._handler(held.message)
            else:
                await _in_thread(self._handler, held.message)
        except Exception as error:
            return self._options.outcome(held.message, error), None
        except asyncio.CancelledError:  # by _drop(), or by the handler itself
            return RELEASE, None
        except BaseException as error:  # such as SystemExit
            return RELEASE, error
        return ACK, None

    # Settling

    async def _settle_all(self) -> None:
        last = False
        while not last:
            batch = [await self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get_nowait())
            last = None in batch
            for outcome, held in alike(each for each in batch if each is not None):
                await self._settle(outcome, held)
                self._free += len(held)
                self._changed.set()

    async def _settle(self, outcome: Outcome, held: list[Held[Message]]) -> None:
        receipts = [each.receipt for each in held]
        lost: set[str] = set()
        try:
            if await self._try(lambda: self._call(outcome, receipts), self._leaving) is None:
                lost = set(receipts)
                ending.log_unsettled(len(lost))
        except LeaseExpired as error:
            lost = set(error.receipts)
            ending.log_too_late(error)
        except Exception as error:
            lost = set(receipts)
            self._fail(error)
        for receipt in receipts:
            self.holding.held.pop(receipt, None)
        self._tell(settled(held, outcome, lost), outcome.reason)

    async def _call(self, outcome: Outcome, receipts: list[str]) -> bool:
        await ending.settle(self._queue, outcome, receipts)
        return True

    def _tell(self, ended: Ended[Message], reason: str | None) -> None:
        self._account.count(ended)
        self._account.report(ended, reason, time.monotonic())

    # Extending

    async def _extend_all(self) -> None:
        while not self._leaving.is_set():
            if due := self.holding.due(time.monotonic()):
                await self._extend(due)
            await asyncio.sleep(min(self.holding.pause(time.monotonic()), POLL))

    async def _extend(self, due: list[Held[Message]]) -> None:
        lost: list[str] = []
        try:
            await self._queue.extend(*[each.message for each in due], lease=self.holding.lease)
        except LeaseExpired as error:
            lost = error.receipts
        except PASSING as error:
            ending.log_not_extended(error)
            return
        except Exception as error:
            self._fail(error)
            return
        dropped = self.holding.extended_but(lost, due, time.monotonic())
        for each in dropped:
            ending.log_lost(each.message)
        self._tell([(each, "lost") for each in dropped], None)
        await self._drop(dropped)


async def _first(*waiting: Awaitable[object], timeout: float | None = None) -> None:
    """Return when one of them is done, or the time is over; what was only waited for is cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, each in zip(tasks, waiting, strict=True):
            if task is not each:
                task.cancel()


async def _in_thread(call: Callable[[Message], Any], argument: Message) -> None:
    """Call in a thread of its own, which nobody has to wait for when the process ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    context = contextvars.copy_context()

    def finish(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        raised: BaseException | None = None
        try:
            context.run(call, argument)
        except StopIteration as error:  # no future takes that
            raised = RuntimeError(f"the handler raised {error!r}")
        except BaseException as error:
            raised = error
        _call_soon(loop, finish, raised)

    threading.Thread(target=run, name="penstock-work", daemon=True).start()
    await done


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:  # the loop has ended, and nobody waits any more
        return


def _is_coroutine_function(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
