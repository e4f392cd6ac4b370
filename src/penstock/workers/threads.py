"""`penstock.work`: the worker with threads, one for each handler and one for each of the worker's parts.

The caller's thread is the watch: it gets signals, and decides when claiming stops and when messages are released.
"""

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from penstock.contract.arguments import receipts_of
from penstock.contract.message import Message
from penstock.contract.settings import Settings
from penstock.contract.store import Queue
from penstock.system import blocking
from penstock.workers.holding import ACK, RELEASE, Held, Outcome
from penstock.workers.options import GLANCE, PATIENCE, Backoff, Options, Result, Worked, stop_signals
from penstock.workers.worker import Worker

_NAP = 1.0  # seconds of a wait: a signal right before it is noticed after it


def work(
    queue: Queue,
    handler: Callable[[Message], object],
    concurrency: int = 8,
    *,
    lease: float | None = None,
    backoff: Backoff | None = None,
    grace: float = 8.0,
    stop: threading.Event | None = None,
    until_empty: bool = False,
    consumer: str | None = None,
    on_drop: Callable[[Message], object] | None = None,
    report: Callable[[Result], object] | None = None,
) -> Worked:
    """Call `handler(message)` for each message of a queue until stopped; returns what was done.

    A handler that returns has its message acknowledged; one that raises has it failed, with the exception as the
    reason. A handler may also ack(), fail() or release() by itself: that is respected. Leases are extended for as
    long as handlers run.

    SIGTERM or Ctrl-C stops claiming and waits for what runs, `grace` seconds at most; what still runs then is
    released. A second one releases at once. Signals are heard only if this is called in the main thread.

    While the store cannot be reached the worker tries again and again. Any other error of the store is raised once
    everything held was released. The same holds for what is no Exception, such as SystemExit in a handler.

    Args:
        queue: the queue whose messages are worked off
        handler: the work on one message
        concurrency: how many handlers run at a time, each in a thread
        lease: seconds until another consumer gets a message if this process dies; default: the queue's `lease`
        backoff: seconds until a failed message is tried again, or (first seconds, factor, most seconds) as a queue
            has them, or a function from the message to seconds; default: the queue's `backoff`, or
            `penstock.working.exponential`, which is (1, 2, 300), if the queue has none
        grace: seconds that handlers get to finish when the worker stops; `docker stop` kills after 10
        stop: an event that stops the worker as SIGTERM does; signals set it, too, so that handlers can look at it
        until_empty: return once no message waits, available or delayed, and none is held here
        consumer: the worker's name, for people; default: host and process id
        on_drop: called with a message that a handler still works on, but whose lease was lost, or that was
            released: what the handler returns no longer counts
        report: called with a `penstock.working.Result` when the work on a message has ended
    """
    options = Options.checked(concurrency, lease, backoff, grace, until_empty, consumer, on_drop, report)
    return _Threads(queue, handler, options, stop).run()


class _Claims(Queue):
    """The queue as handlers see it: what they settle by themselves is noted."""

    def __init__(self, queue: Queue, worker: "_Threads") -> None:
        super().__init__(queue._store, queue.name)
        self._worker = worker

    def ack(self, *messages: Message | str) -> None:
        super().ack(*messages)
        self._worker.settled_by_handler(receipts_of(messages, self.name), ACK)

    def fail(self, *messages: Message | str, delay: float | None = None, reason: str | None = None) -> None:
        super().fail(*messages, delay=delay, reason=reason)
        self._worker.settled_by_handler(receipts_of(messages, self.name), Outcome("fail", delay, reason))

    def release(self, *messages: Message | str) -> None:
        super().release(*messages)
        self._worker.settled_by_handler(receipts_of(messages, self.name), RELEASE)

    def extend(self, *messages: Message | str, lease: float | None = None) -> None:
        super().extend(*messages, lease=lease)
        self._worker.extended_by_handler(receipts_of(messages, self.name), lease)


class _Bell:
    """Wakes threads."""

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self.ring = self._condition.notify_all

    async def wait(self, seconds: float | None) -> None:
        """Wait until it rings."""
        self._condition.wait(seconds)


class _Threads(Worker[Message, threading.Thread]):
    """One call of work()."""

    def __init__(
        self, queue: Queue, handler: Callable[[Message], object], options: Options, stop: threading.Event | None
    ) -> None:
        lock = threading.Lock()
        super().__init__(queue, options, stop, lock, partial(_Bell, lock))
        self.claims = _Claims(queue, self)
        self._handler = handler
        self._longest_look = _NAP if stop is None else GLANCE
        self._todo: SimpleQueue[Held[Message] | None] = SimpleQueue()
        self._news: SimpleQueue[None] = SimpleQueue()  # a signal handler may put: it takes no lock

    def run(self) -> Worked:
        """Work until stopped."""
        with stop_signals(self.told):  # before anything is claimed
            claimer = self._start("claim", self.claim_all)
            settler = self._start("settle", self.settle_all)
            extender = self._start("extend", self.extend_all)
            numbers = range(1, self.options.concurrency + 1)
            handlers = [self._start(f"{number}", self._handle) for number in numbers]
            try:
                blocking.run(self.watch())
            finally:
                blocking.run(self.finish(claimer, settler))
                extender.join(PATIENCE)
                for _ in handlers:
                    self._todo.put(None)
                for thread in handlers if self.is_idle() else ():  # not for a handler that does not end
                    thread.join()
        return self.result()

    def _start(self, name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
        def run() -> None:
            try:
                blocking.run(part())
            except BaseException as error:
                self.fail(error)

        # Not system.threads: handlers are no part of a store.
        thread = threading.Thread(target=run, name=f"penstock-work-{name}", daemon=True)
        thread.start()
        return thread

    async def _handle(self) -> None:
        while (held := self._todo.get()) is not None:
            try:
                with self.working(held):
                    self._handler(held.message)
            except BaseException as error:
                self.end(held, *self.raised(held, error))
            else:
                self.end(held)

    async def ask(self, call: Callable[[], Any]) -> Any:
        return call()

    def settings(self) -> Settings:
        return self.queue.settings  # type: ignore[no-any-return]

    def begin(self, held: Held[Message]) -> None:
        self._todo.put(held)

    async def give_way(self) -> None:
        time.sleep(0)

    async def drop(self, dropped: Sequence[Held[Message]]) -> None:
        for each in dropped:
            self.options.dropped(each.message)

    def wake(self) -> None:
        self._news.put(None)

    async def look(self, seconds: float | None) -> None:
        longest = self._longest_look if seconds is None else min(seconds, self._longest_look)
        with suppress(Empty):
            self._news.get(timeout=longest)

    async def join(self, part: threading.Thread, seconds: float) -> None:
        part.join(seconds)
