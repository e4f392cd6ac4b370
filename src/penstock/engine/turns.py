"""Operations on a queue in their turn: a lock, the time, the line of waiting consumers, and what to write.

Whoever makes messages available, be it a put or the end of a lease, hands them to those who stand in line, in
turn, before anyone else can take them. Nobody is woken in vain and nobody overtakes.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TypeAlias, TypeVar

from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.engine.alarm import Alarm
from penstock.engine.storage import Storage
from penstock.engine.taken import NOTHING, Taken
from penstock.errors import PenstockError, StoreClosed
from penstock.rules.ledger import Ledger
from penstock.rules.records import (
    Ack,
    Claim,
    Put,
    Record,
    Restore,
    StreamClaim,
    StreamRecord,
    StreamSettle,
    Update,
)
from penstock.system.clock import Clock
from penstock.system.threads import Lock

Result = TypeVar("Result")
Take: TypeAlias = Callable[[int], Taken]


class Waiter:
    """A consumer in line. `served` is called once it has been given something, or an error, under the lock."""

    __slots__ = ("error", "served", "take", "taken", "written")

    def __init__(self, take: Take, served: Callable[[], object]) -> None:
        self.take = take
        self.served = served
        self.taken = NOTHING
        self.written = 0
        self.error: Exception | None = None


class Turns:
    """A queue that can be asked one thing at a time, by any thread."""

    def __init__(self, ledger: Ledger, storage: Storage, clock: Clock, alarm: Alarm, lock: Lock) -> None:
        self.name = ledger.name
        self.lock = lock
        self.commit = storage.commit  # returns once what was written up to a number is on stable storage
        self._ledger = ledger
        self._storage = storage
        self._clock = clock
        self._alarm = alarm
        self._armed: int | None = None
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None
        self._written: dict[type, int] = defaultdict(int)  # messages, by what was recorded of them
        self._before = self._counted()

    @property
    def settings(self) -> Settings:
        """What the queue does."""
        return self._ledger.settings

    @property
    def next_seq(self) -> int:
        """A number above that of every message that was ever here."""
        return self._ledger.next_seq

    @property
    def durable(self) -> int:
        """What was written up to this number is on stable storage."""
        return self._storage.durable

    @property
    def in_line(self) -> int:
        """How many consumers wait."""
        return len(self._line)

    def stand_in_line(self, waiter: Waiter) -> None:
        """Wait for one's turn."""
        self.run(lambda now: self._line.setdefault(waiter))

    def leave_line(self, waiter: Waiter) -> None:
        """Wait no longer; it may be served in this last moment."""
        with self.lock:
            if waiter in self._line:
                self.run(lambda now: None)  # serves what became available
                self._line.pop(waiter, None)

    def step_out(self, waiter: Waiter) -> None:
        """Wait no longer, and take nothing more."""
        with self.lock:
            self._line.pop(waiter, None)

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, those in line included, gets this error."""
        with self.lock:
            self._stopped = error
            for waiter in self._line:
                waiter.error = error()
                waiter.served()
            self._line.clear()
            self._alarm.cancel(self._ring)

    def tend(self) -> None:
        """Let time have passed where nobody comes by; and what it took may be worth packing."""
        due = self._ledger.next_time()
        if due is None or self._stopped is not None or due > self._clock.now():
            return
        with suppress(PenstockError):  # stopped meanwhile
            self.run(lambda now: None)
            # Of a journal, which otherwise looks after commits only.
            look = getattr(self._storage, "on_commit", None)
            if look is not None:
                look()

    def run(self, operation: Callable[[int], Result]) -> tuple[Result, int]:
        """An operation under the lock, and what must be committed before its result may be told.

        A rule's refusal has changed nothing. Anything else that breaks in here, a Ctrl-C included, may have left
        the state half changed, so the queue stops.
        """
        with self.lock:
            try:
                now = self._begin()
                result = operation(now)
                if self._line:
                    self._serve(now)
                if self._ledger.gone:
                    self._drop_gone()
                return result, self._storage.written
            except PenstockError:
                if self._stopped is None:
                    self._drop_gone()  # what time has taken meanwhile
                raise
            except BaseException as error:
                self._break(error)
                raise

    def _drop_gone(self) -> None:
        self._storage.drop(self._ledger.gone)
        self._ledger.gone.clear()

    def _begin(self) -> int:
        """The time, and everything it brought about; those in line come first."""
        if self._stopped is not None:
            raise self._stopped()
        now = self._clock.now()
        self._ledger.advance(now)
        if self._line:
            self._serve(now)
            if self._stopped is not None:  # by what went wrong in serving
                raise self._stopped()
        return now

    def _break(self, error: BaseException) -> None:
        name, cause = self.name, type(error).__name__

        def broken() -> StoreClosed:
            return StoreClosed(
                f"queue {name!r} was stopped by an error in the middle of a change ({cause}), so that its state "
                "cannot be trusted: close the store and open it again"
            )

        self._storage.refuse(broken)
        self.stop(broken)

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        """Keep what an operation has changed."""
        try:
            self._storage.write(record, entries)
            if isinstance(record, StreamRecord):
                self._count(record)
            elif not isinstance(record, Put | Restore | Update):
                self._written[type(record)] += len(record.seqs)
        except PenstockError as error:  # no refusal: the ledger has changed already
            self._break(error)
            raise

    def _count(self, record: StreamRecord) -> None:
        """What streams claim and settle counts as what others do."""
        if isinstance(record, StreamClaim):
            self._written[Claim] += len(record.seqs)
        elif isinstance(record, StreamSettle):
            settled = self._ledger.kept(record.stream, record.batch)
            self._written[Ack] += settled.live() if settled is not None else 0

    def _counted(self) -> tuple[int, int, int, int]:
        """What the ledger counts, its replay included."""
        ledger = self._ledger
        return ledger.arrived, ledger.leases_expired, ledger.expired, ledger.given_up

    def _serve(self, now: int) -> None:
        """Give what is available to those in line, in turn."""
        while self._line and self._ledger.available():
            waiter = next(iter(self._line))
            try:
                waiter.taken = waiter.take(now)
            except Exception as error:  # the consumer's to know, not of whoever happens to serve it
                self._line.pop(waiter)
                waiter.error = error
                waiter.served()
                if isinstance(error, PenstockError):  # a refusal, or it has stopped the queue already
                    continue
                self._break(error)
                return
            del self._line[waiter]
            waiter.written = self._storage.written
            waiter.served()
        if not self._line:
            return
        due = self._ledger.next_time()
        if due is not None and (self._armed is None or due < self._armed):
            self._armed = due
            self._alarm.set(self._ring, due)

    def _ring(self) -> None:
        """What a time brings about, for those in line; _run does it all."""
        with self.lock:
            self._armed = None
            if self._stopped is None:
                self.run(lambda now: None)

    def fitting(self, seqs: Sequence[int], most: int) -> int:
        """How many of these messages have no more bytes than that together, but one at least."""
        fitting = bisect_right(list(accumulate(self._storage.sizes(seqs))), most)
        return fitting or min(1, len(seqs))
