"""The worker with threads: one that claims, some that work, one that settles, one that extends leases.

    claimer -> todo -> workers -> ended -> settler
                          |                   |
                          +---- what is held -+---- extender

The caller's thread watches over them: it hears signals, and decides when to stop claiming and when to let go. A
worker never holds more messages than it has threads; what ended while the last call ran is settled together.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from penstock.contract.arguments import receipts_of
from penstock.contract.message import Message
from penstock.contract.store import Queue
from penstock.errors import LeaseExpired
from penstock.workers import ending
from penstock.workers.ending import Account, Ended, settled
from penstock.workers.holding import ACK, RELEASE, Held, Holding, Outcome, alike
from penstock.workers.options import GLANCE, PASSING, PATIENCE, POLL, Backoff, Options, Pauses, Result, Worked
from penstock.workers.signals import stop_signals

_NAP = 1.0  # seconds: a signal that comes right before Python waits is seen when it wakes
Answer = TypeVar("Answer")


def work(
    queue: Queue,
    handler: Callable[[Message], object],
    concurrency: int = 8,
    *,
    lease: float = 30.0,
    backoff: Backoff | None = None,
    grace: float = 8.0,
    stop: threading.Event | None = None,
    until_empty: bool = False,
    consumer: str | None = None,
    on_drop: Callable[[Message], object] | None = None,
    report: Callable[[Result], object] | None = None,
) -> Worked:
    """Call `handler(message)` for each message of a queue, in so many threads, until stopped; what was done.

    A handler that returns has its message acknowledged; one that raises has it failed, with the exception as the
    reason. A handler may also ack(), fail() or release() by itself: that is respected. Leases are extended for as
    long as handlers run.

    SIGTERM or Ctrl-C stops claiming and waits for what runs, `grace` seconds at most; what still runs then is
    released. A second one releases at once. Signals are heard only if this is called in the main thread.

    lease: seconds until another consumer gets a message if this process dies
    backoff: seconds until a failed message is tried again, or a function from the message to that; usually
        1, 2, 4, ... with each attempt, up to five minutes
    grace: seconds that handlers get to finish when the worker stops; `docker stop` kills after 10
    stop: an event that stops the worker as SIGTERM does; signals set it, too, so that handlers can look at it
    until_empty: return once no message waits, available or delayed, and none is held here
    on_drop: called with a message that a handler still works on, but whose lease was lost, or that was released:
        what the handler returns no longer counts
    report: called with a `penstock.working.Result` when the work on a message has ended

    While the store cannot be reached it is asked again and again. Any other error of it is raised, after
    everything held was released; as is what is no Exception, such as SystemExit in a handler.
    """
    options = Options.checked(concurrency, lease, backoff, grace, until_empty, consumer, on_drop, report)
    return _Worker(queue, handler, options, stop).run()


class _Claims(Queue):
    """The queue as handlers see it: what they settle by themselves is noted."""

    def __init__(self, queue: Queue, worker: "_Worker") -> None:
        super().__init__(queue._store, queue.name)
        self._worker = worker

    def ack(self, *messages: Message | str) -> None:
        super().ack(*messages)
        self._worker.settled_by_handler(receipts_of(messages, self.name), ACK)

    def fail(self, *messages: Message | str, delay: float = 0.0, reason: str | None = None) -> None:
        super().fail(*messages, delay=delay, reason=reason)
        self._worker.settled_by_handler(receipts_of(messages, self.name), Outcome("fail", delay, reason))

    def release(self, *messages: Message | str) -> None:
        super().release(*messages)
        self._worker.settled_by_handler(receipts_of(messages, self.name), RELEASE)

    def extend(self, *messages: Message | str, lease: float = 30.0) -> None:
        super().extend(*messages, lease=lease)
        self._worker.extended_by_handler(receipts_of(messages, self.name), lease)


class _Worker:
    """One call of work()."""

    def __init__(
        self, queue: Queue, handler: Callable[[Message], object], options: Options, stop: threading.Event | None
    ) -> None:
        self._queue = queue
        self._claims = _Claims(queue, self)
        self._handler = handler
        self._options = options
        self._stop = stop
        self._lock = threading.Lock()  # of what is held and of the next four
        self._room = threading.Condition(self._lock)
        self._free = options.concurrency  # threads that wait for work
        self._claiming = True  # the claimer has not ended
        self._account: Account[Message] = Account(options)
        self._holding: Holding[Message] = Holding(options.lease)
        self._todo: SimpleQueue[Held[Message] | None] = SimpleQueue()
        self._ended: SimpleQueue[Held[Message] | None] = SimpleQueue()
        self._news: SimpleQueue[str] = SimpleQueue()  # for who watches; a signal handler may put into it
        self._stopping = threading.Event()  # nothing more is claimed
        self._leaving = threading.Event()  # nothing more is tried again
        self._due = threading.Event()  # leases are to be looked at
        self._error: BaseException | None = None

    # Who watches

    def run(self) -> Worked:
        """Work until stopped."""
        with stop_signals(self._told):  # before anything is claimed
            claimer = self._start("claim", self._claim_all)
            settler = self._start("settle", self._settle_all)
            extender = self._start("extend", self._extend_all)
            workers = [self._start(f"{number}", self._work) for number in range(1, self._options.concurrency + 1)]
            try:
                self._watch()
            finally:
                self._stop_claiming()
                claimer.join(2 * POLL)  # else it would claim what is released
                self._let_go()
                claimer.join(PATIENCE)  # it may bring messages yet, to be released
                self._ended.put(None)
                settler.join(PATIENCE)
                extender.join(PATIENCE)
                for _ in workers:
                    self._todo.put(None)
                for thread in workers if self._is_idle() else ():  # else a handler does not end: nobody waits
                    thread.join()
        if self._error is not None:
            raise self._error
        return self._account.worked

    def _start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        # Not through the store's door to threads: handlers are no part of a store.
        thread = threading.Thread(target=run, name=f"penstock-work-{name}", daemon=True)
        thread.start()
        return thread

    def _told(self, number: int) -> None:
        self._account.worked.signal = number
        self._news.put("stop")

    def _watch(self) -> None:
        """Return when there is nothing left to wait for."""
        deadline: float | None = None
        while True:
            news = "time"
            with suppress(Empty):
                news = self._news.get(timeout=self._patience(deadline))
            if news != "error" and deadline is None and self._stop is not None and self._stop.is_set():
                news = "stop"
            over = deadline is not None and time.monotonic() >= deadline
            if news == "error" or over or (news == "stop" and deadline is not None):
                return
            if news == "stop":
                deadline = time.monotonic() + self._options.grace
                self._stop_claiming()
            if not self._claiming and self._is_idle():
                return

    def _is_idle(self) -> bool:
        with self._lock:
            return self._free == self._options.concurrency

    def _patience(self, deadline: float | None) -> float:
        longest = _NAP if self._stop is None else GLANCE
        return longest if deadline is None else min(max(0.0, deadline - time.monotonic()), longest)

    def _stop_claiming(self) -> None:
        self._stopping.set()
        if self._stop is not None:
            self._stop.set()  # so that handlers see it
        with self._lock:
            self._room.notify_all()

    def _is_stopping(self) -> bool:
        return self._stopping.is_set() or (self._stop is not None and self._stop.is_set())

    def _let_go(self) -> None:
        """Release what handlers still work on. What they finish from now on does not count."""
        self._leaving.set()
        self._due.set()
        with self._lock:
            dropped = self._holding.give_up()
        for each in dropped:
            each.outcome = RELEASE
            self._options.dropped(each.message)
        if dropped:
            self._settle(RELEASE, dropped, busy=True)

    def _fail(self, error: BaseException) -> None:
        """End the worker with an error."""
        with self._lock:
            if self._error is None:
                self._error = error
        self._news.put("error")

    def _look_up(self, news: str) -> None:
        """Wake who watches, if that is worth it: only a worker that stops ends with the last of its work."""
        if self._stopping.is_set():
            self._news.put(news)

    def _try(self, call: Callable[[], Answer], giving_up: threading.Event) -> Answer | None:
        """Ask the store until it answers; None if that is no longer wanted."""
        pauses = Pauses()
        while True:
            try:
                return call()
            except PASSING as error:
                if giving_up.wait(0 if giving_up.is_set() else pauses.next(error)):
                    return None

    # The claimer

    def _claim_all(self) -> None:
        try:
            settings = self._try(lambda: self._queue.settings, self._stopping)
            if settings is not None:
                self._holding.lease = min(self._options.lease, settings.max_lease)
                self._due.set()  # who extends must not sleep longer than that allows
            while (room := self._room_for_more()) and self._claim(room):
                pass
        except BaseException as error:
            self._fail(error)
        finally:
            self._claiming = False
            self._news.put("claimed")

    def _room_for_more(self) -> int:
        """How many messages can be worked on; 0: no more are wanted. Waits until it is one or the other."""
        with self._lock:
            while not self._free and not self._is_stopping():
                self._room.wait()
            return 0 if self._is_stopping() else self._free

    def _claim(self, room: int) -> bool:
        """Claim messages for those who wait for work; False if the queue is empty and that is the end."""
        options = self._options
        wait = 0 if options.until_empty else POLL
        messages = self._try(
            lambda: self._claims.claim(room, self._holding.lease, wait, options.consumer), self._stopping
        )
        if not messages:
            return not options.until_empty or self._wait_while_empty()
        with self._lock:
            taken = self._holding.take(messages, time.monotonic())
            self._free -= len(taken)
            stopping = self._is_stopping()
            for each in taken:
                each.outcome = RELEASE if stopping else None
        for each in taken:
            (self._ended if stopping else self._todo).put(each)
        return True

    def _wait_while_empty(self) -> bool:
        """Nothing is available: wait a moment for what may yet come; False if that is nothing."""
        with self._lock:
            if self._free < self._options.concurrency:  # what is worked on may fail and come back
                self._room.wait(GLANCE)
                return True
        if self._try(self._queue.count, self._stopping) == 0:
            return False
        self._stopping.wait(GLANCE / 4)
        return True

    # The workers

    def _work(self) -> None:
        while (held := self._todo.get()) is not None:
            outcome, error = self._outcome_of(held)
            with self._lock:
                counts = self._holding.end(held, outcome)
                if not counts:
                    self._free += 1
                    self._room.notify()
            if counts:
                self._ended.put(held)
            elif held.settled is not None:
                self._tell([(held, held.settled.kind)], held.settled.reason)
            else:
                ending.log_in_vain(held.message, outcome)
            if error is not None:
                self._fail(error)
            self._look_up("worked")

    def _outcome_of(self, held: Held[Message]) -> tuple[Outcome, BaseException | None]:
        """How the work on a message ends, and what ends the worker with it."""
        message = held.message
        try:
            self._handler(message)
        except Exception as error:
            return self._options.outcome(message, error), None
        except BaseException as error:  # such as SystemExit
            return RELEASE, error
        return ACK, None

    def settled_by_handler(self, receipts: list[str], outcome: Outcome) -> None:
        """A handler has settled messages."""
        with self._lock:
            self._holding.settled_by_handler(receipts, outcome)

    def extended_by_handler(self, receipts: list[str], lease: float) -> None:
        """A handler has extended leases."""
        with self._lock:
            self._holding.extended(receipts, lease, time.monotonic())
        self._due.set()

    # The settler

    def _settle_all(self) -> None:
        last = False
        while not last:
            batch = [self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get())
            last = None in batch
            for outcome, held in alike(each for each in batch if each is not None):
                self._settle(outcome, held)
            self._look_up("settled")

    def _settle(self, outcome: Outcome, held: list[Held[Message]], busy: bool = False) -> None:
        """Settle what ended alike; its threads are free again, unless they are still busy."""
        receipts = [each.receipt for each in held]
        lost: set[str] = set()
        try:
            if self._try(lambda: self._call(outcome, receipts), self._leaving) is None:
                lost = set(receipts)
                ending.log_unsettled(len(lost))
        except LeaseExpired as error:
            lost = set(error.receipts)
            ending.log_too_late(error)
        except BaseException as error:
            lost = set(receipts)
            self._fail(error)
        with self._lock:
            for receipt in receipts:
                self._holding.held.pop(receipt, None)
            self._free += 0 if busy else len(held)
            self._room.notify()
        self._tell(settled(held, outcome, lost), outcome.reason)

    def _call(self, outcome: Outcome, receipts: list[str]) -> bool:
        ending.settle(self._queue, outcome, receipts)
        return True

    def _tell(self, ended: Ended[Message], reason: str | None) -> None:
        now = time.monotonic()
        with self._lock:
            self._account.count(ended)
        self._account.report(ended, reason, now)

    # The extender

    def _extend_all(self) -> None:
        while not self._leaving.is_set():
            with self._lock:
                due = self._holding.due(time.monotonic())
            if due:
                self._extend(due)
            with self._lock:
                pause = self._holding.pause(time.monotonic())
            self._due.wait(pause)
            self._due.clear()

    def _extend(self, due: list[Held[Message]]) -> None:
        lost: list[str] = []
        try:
            self._queue.extend(*[each.message for each in due], lease=self._holding.lease)
        except LeaseExpired as error:
            lost = error.receipts
        except PASSING as error:
            ending.log_not_extended(error)
            return
        except BaseException as error:
            self._fail(error)
            return
        with self._lock:
            dropped = self._holding.extended_but(lost, due, time.monotonic())
        for each in dropped:
            ending.log_lost(each.message)
            self._options.dropped(each.message)
        self._tell([(each, "lost") for each in dropped], None)
