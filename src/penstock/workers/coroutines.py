"""`penstock.aio.work`: the worker for coroutines, with tasks where `penstock.work` has threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from penstock.contract.aio import Message, Queue
from penstock.contract.arguments import receipts_of
from penstock.workers.holding import ACK, RELEASE, Held, Outcome
from penstock.workers.options import POLL, Backoff, Options, Result, Worked, stop_signals
from penstock.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.contract import message


async def work(
    queue: Queue,
    handler: Callable[[Message], Awaitable[object] | object],
    concurrency: int = 8,
    *,
    lease: float | None = None,
    backoff: Backoff | None = None,
    grace: float = 8.0,
    stop: asyncio.Event | None = None,
    until_empty: bool = False,
    consumer: str | None = None,
    on_drop: Callable[[Message], object] | None = None,
    report: Callable[[Result], object] | None = None,
) -> Worked:
    """Call `handler(message)` for each message of a queue until stopped; returns what was done.

    The arguments are those of `penstock.work`. A handler that is a coroutine function runs in the event loop, and
    is cancelled when its message is no longer held. Any other function runs in a thread, and says by returning or
    raising what becomes of its message. If the worker itself is cancelled it releases what it holds first.
    """
    options = Options.checked(concurrency, lease, backoff, grace, until_empty, consumer, on_drop, report)
    return await _Tasks(queue, handler, options, stop or asyncio.Event()).run()


class _Claims(Queue):
    """The queue as handlers see it: what they settle by themselves is noted."""

    def __init__(self, queue: Queue, worker: _Tasks) -> None:
        super().__init__(queue._store, queue.name)
        self._worker = worker

    async def ack(self, *messages: message.Message | str) -> None:
        await super().ack(*messages)
        self._worker.settled_by_handler(receipts_of(messages, self.name), ACK)

    async def fail(
        self, *messages: message.Message | str, delay: float | None = None, reason: str | None = None
    ) -> None:
        await super().fail(*messages, delay=delay, reason=reason)
        self._worker.settled_by_handler(receipts_of(messages, self.name), Outcome("fail", delay, reason))

    async def release(self, *messages: message.Message | str) -> None:
        await super().release(*messages)
        self._worker.settled_by_handler(receipts_of(messages, self.name), RELEASE)

    async def extend(self, *messages: message.Message | str, lease: float | None = None) -> None:
        await super().extend(*messages, lease=lease)
        self._worker.extended_by_handler(receipts_of(messages, self.name), lease)


class _Bell:
    """Wakes tasks."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        while self._waiting:
            each = self._waiting.pop()
            if not each.done():
                each.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        rung = asyncio.get_running_loop().create_future()
        self._waiting.add(rung)
        try:
            await (rung if seconds is None else asyncio.wait([rung], timeout=seconds))
        finally:
            self._waiting.discard(rung)


class _Tasks(Worker[Message, "asyncio.Task[None]"]):
    """One call of work()."""

    def __init__(
        self, queue: Queue, handler: Callable[[Message], Any], options: Options, stop: asyncio.Event
    ) -> None:
        super().__init__(queue, options, stop, nullcontext(), _Bell)
        self.claims = _Claims(queue, self)
        self._handler = handler
        self._in_loop = _is_coroutine_function(handler)
        self._asked = stop
        self._news = _Bell()
        self._at_work: dict[asyncio.Task[None], Held[Message]] = {}

    async def run(self) -> Worked:
        """Work until stopped."""
        loop = asyncio.get_running_loop()
        with stop_signals(lambda number: _call_soon(loop, self.told, number)):
            parts = (self.claim_all, self.settle_all, self.extend_all, self._hear)
            claimer, settler, *others = [asyncio.create_task(part()) for part in parts]
            try:
                await self.watch()
            finally:
                # A task of its own: a second cancellation must not prevent the release.
                finishing = asyncio.create_task(self._finish(claimer, settler, *others))
                while not finishing.done():
                    try:
                        await asyncio.shield(finishing)
                    except asyncio.CancelledError:
                        continue
        return self.result()

    async def _finish(self, *parts: asyncio.Task[None]) -> None:
        await self.finish(*parts[:2])
        for part in parts:
            part.cancel()
        await asyncio.wait(parts)

    async def _hear(self) -> None:
        """Wake the watch when the caller sets its stop event."""
        await self._asked.wait()
        self.wake()

    async def _handle(self, held: Held[Message]) -> None:
        try:
            with self.working(held):
                if self._in_loop:
                    await self._handler(held.message)
                else:
                    await _in_thread(self._handler, held.message)
        except asyncio.CancelledError:  # by drop(), or by the handler itself
            self.end(held, RELEASE)
        except BaseException as error:
            self.end(held, *self.raised(held, error))
        else:
            self.end(held)

    async def ask(self, call: Callable[[], Any]) -> Any:
        return await call()

    def settings(self) -> Any:
        return self.queue.settings()

    def begin(self, held: Held[Message]) -> None:
        task = asyncio.create_task(self._handle(held))
        self._at_work[task] = held
        task.add_done_callback(self._at_work.pop)

    async def give_way(self) -> None:
        await asyncio.sleep(0)

    async def drop(self, dropped: Sequence[Held[Message]]) -> None:
        tasks = [task for task, held in self._at_work.items() if held in dropped]
        for held in dropped:
            self.options.dropped(held.message)
        if tasks and self._in_loop:  # coroutines end before another consumer gets the message
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=POLL)

    def wake(self) -> None:
        self._news.ring()

    async def look(self, seconds: float | None) -> None:
        await self._news.wait(seconds)

    async def join(self, part: asyncio.Task[None], seconds: float) -> None:
        await asyncio.wait([part], timeout=seconds)


async def _in_thread(call: Callable[[Message], Any], argument: Message) -> None:
    """Call in a daemon thread: the end of the process does not wait for it."""
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
        except StopIteration as error:  # a future refuses StopIteration
            raised = RuntimeError(f"the handler raised {error!r}")
        except BaseException as error:
            raised = error
        _call_soon(loop, finish, raised)

    threading.Thread(target=run, name="penstock-work", daemon=True).start()
    await done


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:  # the loop has ended
        return


def _is_coroutine_function(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
