"""The worker: a claimer, handlers, a settler and an extender of leases, and how they stop.

    claimer -> handlers -> ended -> settler
                  |                    |
                  +--- what is held ---+--- extender

It never holds more messages than it has handlers. Messages whose work ended during the last call to the store are
settled together. While all handlers have work, the claimer acknowledges what is done in the same step in which it
claims the next messages; while it waits for messages, the settler does. `threads` and `coroutines` start the
parts, call handlers, and implement waiting.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from penstock.contract import tracing
from penstock.contract.settings import Settings
from penstock.errors import LeaseExpired, PenstockError
from penstock.workers.holding import ACK, RELEASE, AnyMessage, Held, Holding, Outcome, alike
from penstock.workers.options import (
    GLANCE,
    PASSING,
    PATIENCE,
    POLL,
    Options,
    Pauses,
    Release,
    Result,
    Worked,
    exponential,
)

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

Part = TypeVar("Part")  # a thread, or a task
Ended: TypeAlias = "Sequence[tuple[Held[AnyMessage], str]]"  # messages with their outcomes
_log = logging.getLogger("penstock")


class Bell(Protocol):
    """Wakes the parts that wait for a change. It is rung, and waited for, with the worker's lock held."""

    def ring(self) -> None:
        """Wake them."""

    def wait(self, seconds: float | None) -> Awaitable[None]:
        """Wait until it rings, so many seconds at most; the lock is free meanwhile."""


class _GivenUp(Exception):
    """The store did not answer, and the call is not repeated."""


class Worker(Generic[AnyMessage, Part]):
    """One call of work()."""

    def __init__(
        self,
        queue: Any,
        options: Options,
        stop: threading.Event | asyncio.Event | None,
        lock: AbstractContextManager[Any],
        bell: Callable[[], Bell],
    ) -> None:
        self.queue = queue
        self.claims: Any = queue  # the queue as handlers see it
        self.options = options
        self.lock = lock  # of everything below
        self.worked = Worked()
        self._settings = Settings()  # the queue's, once they are known
        self.holding: Holding[AnyMessage] = Holding(options.longest_lease(self._settings))
        self._done: list[Held[AnyMessage]] = []  # to be acknowledged
        self._ended: list[Held[AnyMessage]] = []  # to be settled in another way
        self._free = options.concurrency  # idle handlers
        self._stop = stop  # the caller's event
        self._stopping = False  # nothing more is claimed
        self._hurry = False  # release all messages now: after a second signal, or an error
        self._leaving = False  # no call is repeated
        self._claiming = True  # the claimer is running
        self._acking = False  # the claimer acknowledges what is done; else the settler does
        self._closing = False  # no further work will end
        self._error: BaseException | None = None
        self._room, self._work, self._due, self._over = bell(), bell(), bell(), bell()

    # What threads and tasks differ in

    @abstractmethod
    async def ask(self, call: Callable[[], Any]) -> Any:
        """The result of a call to the store."""

    @abstractmethod
    def settings(self) -> Any:
        """The queue's settings, to be passed to ask()."""

    @abstractmethod
    def begin(self, held: Held[AnyMessage]) -> None:
        """Give a message to a handler, which calls end() with the outcome."""

    @abstractmethod
    async def give_way(self) -> None:
        """Let handlers that are about to end do so."""

    @abstractmethod
    async def drop(self, dropped: Sequence[Held[AnyMessage]]) -> None:
        """Tell handlers that their work no longer counts."""

    @abstractmethod
    def wake(self) -> None:
        """Wake the watch. A signal handler may call this: it takes no lock."""

    @abstractmethod
    async def look(self, seconds: float | None) -> None:
        """Wait until the watch is woken, so many seconds at most."""

    @abstractmethod
    async def join(self, part: Part, seconds: float) -> None:
        """Wait for the end of a part, so many seconds at most."""

    # The watch

    async def watch(self) -> None:
        """Return when all work is done, or the grace period is over."""
        deadline: float | None = None
        while not self._hurry:
            now = time.monotonic()
            if deadline is None and self.is_stopping():
                deadline = now + self.options.grace
                self.stop_claiming()
            if (not self._claiming and self.is_idle()) or (deadline is not None and now >= deadline):
                return
            await self.look(None if deadline is None else deadline - now)

    async def finish(self, claimer: Part, settler: Part) -> None:
        """Release messages that handlers still work on; their results no longer count."""
        self.stop_claiming()
        await self.join(claimer, 2 * POLL)  # else it would claim the released messages
        with self.lock:
            self._leaving = True
            dropped = self.holding.give_up()
            for each in dropped:
                each.outcome = RELEASE
            self._due.ring()
            self._over.ring()
        await self.drop(dropped)
        if dropped:
            await self._settle(RELEASE, dropped, busy=True)
        await self.join(claimer, PATIENCE)  # its last claim may bring messages, to be released
        with self.lock:
            self._closing = True
            self._work.ring()
        await self.join(settler, PATIENCE)

    def result(self) -> Worked:
        """The result of work(); raises the error that has ended the worker."""
        if self._error is not None:
            raise self._error
        return self.worked

    def told(self, number: int) -> None:
        """Handle a signal: the first stops the worker, the second releases its messages at once."""
        self.worked.signal = number
        self._hurry |= self.is_stopping()
        self._stopping = True  # the watch does the rest, with the lock
        self.wake()

    def is_stopping(self) -> bool:
        """Whether claiming has to stop."""
        return self._stopping or (self._stop is not None and self._stop.is_set())

    def is_idle(self) -> bool:
        """Whether no handler is at work."""
        with self.lock:
            return self._free == self.options.concurrency

    def stop_claiming(self) -> None:
        """Claim nothing more."""
        if self._stop is not None:
            self._stop.set()  # so that handlers see it
        with self.lock:
            self._stopping = True
            self._room.ring()
            self._over.ring()

    def fail(self, error: BaseException) -> None:
        """End the worker with an error."""
        with self.lock:
            self._error = self._error or error
            self._stopping = True  # before the release, else the released messages would be claimed again
        self._hurry = True
        self.wake()

    async def _try(self, call: Callable[[], Any], giving_up: Callable[[], bool]) -> Any:
        """Call the store until it answers; _GivenUp once giving_up() is true."""
        pauses = Pauses()
        while True:
            try:
                return await self.ask(call)
            except PASSING as error:
                if not giving_up():
                    await self._rest(pauses.next(error), giving_up)
                if giving_up():
                    raise _GivenUp from error

    async def _rest(self, seconds: float, giving_up: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        with self.lock:
            while not giving_up() and (left := end - time.monotonic()) > 0:
                await self._over.wait(left)

    # The claimer

    async def claim_all(self) -> None:
        """Claim messages until the worker stops."""
        try:
            settings = await self._try(self.settings, self.is_stopping)
            with self.lock:
                self._use(settings)
                self._due.ring()  # the extender's sleep depends on it
            while await self._room_for_more():
                if (acks := self._acks()) and await self._ack_and_claim(acks):
                    continue
                if (room := self._idle_handlers()) and not await self._claim(room):
                    break
        except _GivenUp:
            pass  # the worker stops
        except Exception as error:
            self.fail(error)
        finally:
            with self.lock:
                self._claiming = False
                self._leave_acks()
            self.wake()

    async def _room_for_more(self) -> bool:
        """Wait for idle handlers, or for acks that make room; False if the worker stops."""
        with self.lock:
            while not self._free and not (self._acking and self._done) and not self.is_stopping():
                await self._room.wait(None)
            acking = self._acking
        if acking:
            await self.give_way()
        return not self.is_stopping()

    def _idle_handlers(self) -> int:
        with self.lock:
            self._leave_acks()
            return self._free

    def _acks(self) -> list[Held[AnyMessage]]:
        """Messages to be acknowledged by the claimer."""
        with self.lock:
            if not self._acking:
                return []
            acks, self._done = self._done, []
            return acks

    def _leave_acks(self) -> None:
        """From now on the settler acknowledges."""
        self._acking = False
        if self._done:
            self._work.ring()

    async def _ack_and_claim(self, acks: list[Held[AnyMessage]]) -> bool:
        """Acknowledge messages and claim others in one step; False if a claim that waits comes next.

        It is tried once: after an error the settler acknowledges, for which a full disk has room.
        """
        receipts, lost = [each.receipt for each in acks], set[str]()
        with self.lock:
            room, lease = self._free + len(acks), self.holding.lease
        messages: list[AnyMessage] = []
        try:
            messages = await self.ask(
                lambda: self.claims.claim(room, lease, 0, self.options.consumer, ack=receipts)
            )
        except LeaseExpired as error:
            lost = self._warn_of_lost(error)
        except Exception:
            with self.lock:
                self._done = acks + self._done
                self._leave_acks()
            return False
        with self.lock:
            self._let_go(receipts)
        self._begin_all(messages)
        self._tell([(each, "lost" if each.receipt in lost else ACK.kind) for each in acks], None)
        return bool(messages)

    async def _claim(self, room: int) -> bool:
        """Claim messages for idle handlers; False if the queue is empty and the worker is to end then."""
        options, lease = self.options, self.holding.lease
        wait = 0 if options.until_empty else POLL
        messages = await self._try(
            lambda: self.claims.claim(room, lease, wait, options.consumer), self.is_stopping
        )
        if not messages:
            return not options.until_empty or await self._wait_while_empty()
        self._begin_all(messages)
        return True

    def _begin_all(self, messages: list[AnyMessage]) -> None:
        """Give claimed messages to handlers."""
        with self.lock:
            taken = self.holding.take(messages, time.monotonic())
            self._free -= len(taken)
            # With work for all handlers there will be something to acknowledge and to claim; but spans tell both
            # apart.
            self._acking = not self._free and not tracing.is_on()
            stopping = self.is_stopping()
            if stopping:
                for each in taken:
                    each.outcome = RELEASE
                self._ended += taken
                self._work.ring()
        for each in () if stopping else taken:
            self.begin(each)

    async def _wait_while_empty(self) -> bool:
        """No message is available: wait a moment; False if none is delayed or worked on either."""
        with self.lock:
            if self._free < self.options.concurrency:  # a message that is worked on may come back
                await self._room.wait(GLANCE)
                return True
        if await self._try(self.queue.count, self.is_stopping) == 0:
            return False
        await self._rest(GLANCE / 4, self.is_stopping)
        return True

    # Handlers

    @contextmanager
    def working(self, held: Held[AnyMessage]) -> Iterator[None]:
        """What a handler does in here is the work on that message, for tracing."""
        with tracing.processing(held.message, no_errors=Release) as held.work:
            yield

    def raised(self, held: Held[AnyMessage], error: BaseException) -> tuple[Outcome, BaseException | None]:
        """The outcome of a handler that has raised, and the error that ends the worker, if it does."""
        if isinstance(error, Exception):
            return self.options.outcome(held.message, error), None
        return RELEASE, error  # such as SystemExit

    def end(self, held: Held[AnyMessage], outcome: Outcome = ACK, error: BaseException | None = None) -> None:
        """A handler has ended; with an error the worker ends as well."""
        if error is not None:
            self.fail(error)
        with self.lock:
            counts = self.holding.end(held, outcome)
            if counts:
                (self._done if outcome == ACK else self._ended).append(held)
                (self._room if self._acking and outcome == ACK else self._work).ring()
            else:
                self._free += 1
                self._room.ring()
        if not counts:
            if held.settled is not None:
                self._tell([(held, held.settled.kind)], held.settled.reason)
            else:
                _log.warning(
                    "the work on message %s of queue %r ended (%s), but the message is no longer held here: the "
                    "result is dropped", held.message.id, held.message.queue, outcome.reason or outcome.kind,
                )  # fmt: skip
        self._wake_if_last()

    def settled_by_handler(self, receipts: list[str], outcome: Outcome) -> None:
        """A handler has settled messages."""
        with self.lock:
            self.holding.settled_by_handler(receipts, outcome)

    def extended_by_handler(self, receipts: list[str], lease: float | None) -> None:
        """A handler has extended leases."""
        with self.lock:
            lease = self.options.longest_lease(self._settings) if lease is None else lease
            self.holding.extended(receipts, lease, time.monotonic())
            self._due.ring()

    def _wake_if_last(self) -> None:
        """Wake the watch if this may have been the last work of a worker that claims no more."""
        if self._stopping or not self._claiming:
            self.wake()

    # The settler

    async def settle_all(self) -> None:
        """Settle messages whose work has ended, until finish() closes the worker."""
        while True:
            with self.lock:
                while not (batch := self._to_settle()) and not self._closing:
                    await self._work.wait(None)
            if not batch:
                return
            await self._set_delays(batch)
            for outcome, held in alike(batch):
                await self._settle(outcome, held)
            self._wake_if_last()

    async def _set_delays(self, batch: list[Held[AnyMessage]]) -> None:
        """Fails without a delay go by the queue's backoff as it is now; if it has none, by the usual one."""
        fails = [each for each in batch if each.outcome is not None and each.outcome.is_by_backoff]
        if not fails:
            return
        try:
            settings = await self._try(self.settings, lambda: self._leaving)
        except (_GivenUp, PenstockError):  # settling meets it, too
            settings = self._settings
        with self.lock:
            self._use(settings)
        for each in fails if settings.backoff is None else ():
            each.outcome = each.outcome and each.outcome._replace(delay=exponential(each.message))

    def _to_settle(self) -> list[Held[AnyMessage]]:
        """Messages to be settled now: all whose work has ended, but for the acks that the claimer takes along."""
        batch, self._ended = self._ended, []
        if not self._acking or self._closing:
            batch, self._done = self._done + batch, []
        return batch

    async def _settle(self, outcome: Outcome, held: list[Held[AnyMessage]], busy: bool = False) -> None:
        """Settle messages with the same outcome; their handlers are idle then, unless they are still busy."""
        receipts = [each.receipt for each in held]
        lost: set[str] = set()
        try:
            with tracing.settling(each.work for each in held):
                await self._try(lambda: outcome.settle(self.queue, receipts), lambda: self._leaving)
        except _GivenUp:
            lost = set(receipts)
            _log.warning("%d message(s) could not be settled: their leases will end", len(lost))
        except LeaseExpired as error:
            lost = self._warn_of_lost(error)
        except Exception as error:
            lost = set(receipts)
            self.fail(error)
        with self.lock:
            self._let_go(receipts, busy)
        self._tell([(each, "lost" if each.receipt in lost else outcome.kind) for each in held], outcome.reason)

    def _warn_of_lost(self, error: LeaseExpired) -> set[str]:
        _log.warning("leases were lost before the work was settled, its result is dropped: %s", str(error))
        return set(error.receipts)

    def _let_go(self, receipts: list[str], busy: bool = False) -> None:
        """Messages were settled: their handlers are idle now, unless they are still busy."""
        for receipt in receipts:
            self.holding.held.pop(receipt, None)
        self._free += 0 if busy else len(receipts)
        self._room.ring()

    def _tell(self, ended: Ended[AnyMessage], reason: str | None) -> None:
        """Count and report work that has ended; `reason` is that of a fail."""
        now = time.monotonic()
        with self.lock:
            for _, kind in ended:
                self.worked.count(kind)
        for each, kind in ended:
            self.options.tell(Result(each.message, kind, reason if kind == "fail" else None, now - each.began))

    # The extender

    async def extend_all(self) -> None:
        """Extend leases until the worker leaves."""
        while True:
            with self.lock:
                due = self.holding.due(time.monotonic())
            if due:
                await self._extend(due)
            with self.lock:
                if self._leaving:
                    return
                await self._due.wait(self.holding.pause(time.monotonic()))

    async def _longest_lease(self) -> float:
        """The lease to ask for, within the queue's current max_lease."""
        settings = await self.ask(self.settings)
        with self.lock:
            self._use(settings)
            return self.holding.lease

    def _use(self, settings: Settings) -> None:
        self._settings, self.holding.lease = settings, self.options.longest_lease(settings)

    async def _extend(self, due: list[Held[AnyMessage]]) -> None:
        lost: list[str] = []
        messages = [each.message for each in due]
        try:
            lease = await self._longest_lease()
            await self.ask(lambda: self.queue.extend(*messages, lease=lease))
        except LeaseExpired as error:
            lost = error.receipts
        except PASSING as error:
            _log.warning("leases were not extended yet: %s", str(error))
            return
        except Exception as error:
            self.fail(error)
            return
        with self.lock:
            dropped = self.holding.extended_but(lost, due, time.monotonic())
        for each in dropped:
            _log.warning(
                "the lease of message %s of queue %r was lost while it was worked on: another consumer may have "
                "it, and the result of this work will be dropped", each.message.id, each.message.queue,
            )  # fmt: skip
        self._tell([(each, "lost") for each in dropped], None)
        await self.drop(dropped)
