"""A queue at work: its ledger, a lock around it, the line of waiting consumers, and the shelf for the bodies.

Operations return at once, with their result and a number: nobody may be told the result before commit() of that
number. A thread calls commit() and waits; a server has one thread commit for all the requests that came meanwhile.

Whoever makes messages available, be it a put or the end of a lease, hands them to those who stand in line, in
turn, before anyone else can take them. Nobody is woken in vain and nobody overtakes.
"""

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from penstock.clock import Clock
from penstock.errors import PenstockError, StoreClosed
from penstock.index.history import Attempt
from penstock.ledger import Ledger, Receipt
from penstock.live.alarm import Alarm
from penstock.live.figures import EVENTS, Figures
from penstock.live.receipts import parse_ids, parse_receipts
from penstock.live.shelf import Shelf
from penstock.live.taken import NOTHING, Taken, as_seen, claimed, fill
from penstock.message import Entry, Message
from penstock.records import (
    Ack,
    Claim,
    Put,
    Record,
    Redrive,
    Remove,
    Restore,
    StreamClaim,
    StreamRecord,
    StreamSettle,
)
from penstock.settings import Settings
from penstock.threads import Lock

_CHUNK = 256  # messages that are listed under one hold of the lock
_READ = 4 << 20  # bytes of them that are read at once
Result = TypeVar("Result")
Take: TypeAlias = Callable[[int], Taken]
_Settling: TypeAlias = Callable[[list[Receipt], int], tuple[Record | None, list[Receipt]]]


class Waiter:
    """A consumer in line. `served` is called once it has been given something, or an error, under the lock."""

    __slots__ = ("error", "served", "take", "taken", "written")

    def __init__(self, take: Take, served: Callable[[], object]) -> None:
        self.take = take
        self.served = served
        self.taken = NOTHING
        self.written = 0
        self.error: Exception | None = None


class LiveQueue:
    """One queue, safe for threads."""

    def __init__(self, ledger: Ledger, shelf: Shelf, clock: Clock, alarm: Alarm, lock: Lock) -> None:
        self.name = ledger.name
        self.lock = lock
        self.commit = shelf.commit  # returns once what was written up to a number is on stable storage
        self._ledger = ledger
        self._shelf = shelf
        self._clock = clock
        self._alarm = alarm
        self._armed: int | None = None
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None
        self._written: dict[type, int] = defaultdict(int)  # messages, by what was recorded of them
        self._before = self._counted()

    @property
    def settings(self) -> Settings:
        """What the queue was created with."""
        return self._ledger.settings

    @property
    def next_seq(self) -> int:
        """A number above that of every message that was ever here."""
        return self._ledger.next_seq

    @property
    def durable(self) -> int:
        """What was written up to this number is on stable storage."""
        return self._shelf.durable

    @property
    def in_line(self) -> int:
        """How many consumers wait."""
        return len(self._line)

    def check(self, entry: Entry) -> None:
        """Raise what a put would raise."""

        def check(now: int) -> None:
            self._ledger.check([entry], now)
            self._shelf.make_room([entry])

        self._run(check)

    def put(self, entries: Sequence[Entry]) -> tuple[list[str], int]:
        """Take in all entries or none; their ids."""

        def put(now: int) -> list[str]:
            self._shelf.make_room(entries)
            admission = self._ledger.put(entries, now)
            if admission.new:
                self._write(admission.record, admission.new)
            return list(map(str, admission.seqs))

        return self._run(put)

    def claiming(self, n: int, lease: float, consumer: str, most: int | None = None) -> Take:
        """How to lease up to n messages, and if `most` is given no more bytes than that beyond the first."""

        def take(now: int) -> Taken:
            available = self._ledger.available()
            if not available:
                return NOTHING
            count = min(n, available)
            if most is not None and count > 1:
                count = self._fitting(self._ledger.peek(count), most)
            self._shelf.make_room(claims=count)
            record = self._ledger.claim(count, lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                return NOTHING
            self._write(record)
            return claimed(record, self._ledger, self._shelf)

        return take

    def _fitting(self, seqs: Sequence[int], most: int) -> int:
        """How many of these messages have no more bytes than that together, but one at least."""
        fitting = bisect_right(list(accumulate(self._shelf.sizes(seqs))), most)
        return fitting or min(1, len(seqs))

    def popping(self, consumer: str) -> Take:
        """How to claim and acknowledge one message."""

        def take(now: int) -> Taken:
            seqs = self._ledger.peek(1)
            if not seqs:
                return NOTHING
            self._shelf.make_room(claims=1)
            message = as_seen(seqs[0], self._ledger)
            # Read before it is done, so that a message that cannot be read is not lost as well.
            fill([message], self._shelf.read(self._shelf.find(seqs)))
            record = self._ledger.pop(consumer, now)
            if record is not None:
                self._write(record)
            message.attempts += 1
            message.state, message.consumer = "done", consumer
            message.claimed_at = message.settled_at = now
            message.reason = None
            return Taken(1, (), lambda bodies: [message], [])

        return take

    def take(self, take: Take) -> tuple[Taken, int]:
        """What can be had at once."""
        return self._run(take)

    def at_hand(self, taken: Taken) -> Taken | None:
        """The same for hand_out(), which then need not wait for the disk; None if it must."""
        places = self._shelf.at_hand(taken.places)
        return None if places is None else taken._replace(places=places)

    def hand_out(self, taken: Taken) -> list[Message]:
        """What a consumer took and may now be told, with the bodies; what cannot be read is given back."""
        try:
            return taken.build(self._shelf.read(taken.places))
        except BaseException:
            self.give_back(taken.receipts)
            raise

    def give_back(self, receipts: list[str]) -> None:
        """Release what its claimer never got."""
        if receipts:
            with suppress(PenstockError):  # the lease may be over, the queue stopped
                self.commit(self.release(receipts)[1])

    def stand_in_line(self, waiter: Waiter) -> None:
        """Wait for one's turn."""
        self._run(lambda now: self._line.setdefault(waiter))

    def leave_line(self, waiter: Waiter) -> None:
        """Wait no longer; it may be served in this last moment."""
        with self.lock:
            if waiter in self._line:
                self._run(lambda now: None)  # serves what became available
                self._line.pop(waiter, None)

    def abandon(self, waiter: Waiter) -> None:
        """An interrupted consumer takes no claimed message with it. What it popped is gone, as after a crash."""
        with self.lock:
            self._line.pop(waiter, None)
        self.give_back(waiter.taken.receipts)

    def ack(self, receipts: Sequence[str]) -> tuple[list[str], int]:
        """Settle for good; which receipts were lost, as of all that settle."""
        return self._settle(receipts, self._ledger.ack)

    def fail(self, receipts: Sequence[str], delay: float, reason: str | None) -> tuple[list[str], int]:
        """End the attempts."""
        return self._settle(receipts, lambda held, now: self._ledger.fail(held, delay, reason, now))

    def release(self, receipts: Sequence[str]) -> tuple[list[str], int]:
        """Give back."""
        return self._settle(receipts, self._ledger.release)

    def extend(self, receipts: Sequence[str], lease: float) -> tuple[tuple[int, list[str]], int]:
        """Hold from now on; until when, and which receipts were lost."""
        until = 0

        def extend(held: list[Receipt], now: int) -> tuple[Record | None, list[Receipt]]:
            nonlocal until
            self._shelf.make_room(claims=len(held))
            until = self._ledger.lease_end(lease, now)
            return self._ledger.extend(held, lease, now)

        lost, written = self._settle(receipts, extend)
        return (until, lost), written

    def remove(self, ids: Iterable[str]) -> tuple[int, int]:
        """Take messages out in any state; how many."""
        return self._change(lambda now: self._ledger.remove(parse_ids(ids), now))

    def redrive(self, ids: Iterable[str] | None) -> tuple[int, int]:
        """Start over with failed messages; how many."""
        return self._change(lambda now: self._ledger.redrive(None if ids is None else parse_ids(ids), now))

    def purge(self) -> tuple[int, int]:
        """Take out everything but what is in flight; how many."""
        return self._change(self._ledger.purge)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return self._run(lambda now: self._ledger.counts())[0]

    def figures(self) -> Figures:
        """How the queue is, and what has happened here since it was opened."""

        def look(now: int) -> Figures:
            since = self._ledger.waiting_since()
            put, *by_time = [now - then for now, then in zip(self._counted(), self._before, strict=True)]
            events = {"put": put, **{name: self._written.get(kind, 0) for kind, name in EVENTS.items()}}
            waiting = 0 if since is None else max(now - since, 0) / 1000
            return Figures(self.name, True, self._ledger.counts(), waiting, len(self._line), events, *by_time)

        try:
            return self._run(look)[0]
        except PenstockError:
            return Figures(self.name, False, {}, 0, 0, {}, 0, 0, 0)

    def _counted(self) -> tuple[int, int, int, int]:
        """What the ledger counts, its replay included."""
        ledger = self._ledger
        return ledger.arrived, ledger.leases_expired, ledger.expired, ledger.given_up

    def tend(self) -> None:
        """Let time have passed where nobody comes by; and what it took may be worth packing."""
        due = self._ledger.next_time()
        if due is None or self._stopped is not None or due > self._clock.now():
            return
        with suppress(PenstockError):  # stopped meanwhile
            self._run(lambda now: None)
            look = getattr(
                self._shelf, "on_commit", None
            )  # of a journal, which otherwise looks after commits only
            if look is not None:
                look()

    def peek(self, n: int, skip: int = 0) -> Iterator[Message]:
        """What claim would give, after some that are skipped."""
        seqs = self._run(lambda now: self._ledger.peek(n + skip)[skip:])[0]
        for start in range(0, len(seqs), _CHUNK):
            yield from self._messages(seqs[start : start + _CHUNK], "available")

    def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        seqs = parse_ids([id])
        return self._run(lambda now: self._ledger.attempts(seqs[0]))[0] if seqs else []

    def messages(
        self, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another.

        Without bodies they have neither payload nor headers, and are not said to be created or received.
        """
        for seqs in self._chunks(state, after, until):
            yield from self._messages(seqs, state, bodies)

    def all_attempts(self, after: str = "", until: str = "") -> Iterator[tuple[str, list[Attempt]]]:
        """The attempts at each message, also where there are none, from after one on until another."""

        def look(seqs: Sequence[int]) -> list[tuple[str, list[Attempt]]]:
            return self._run(lambda now: [(str(seq), self._ledger.attempts(seq)) for seq in seqs])[0]

        for seqs in self._chunks(None, after, until):
            yield from look(seqs)

    def parts(self, n: int) -> list[str]:
        """Ids that end parts of about the same size, n at most, for who reads them side by side."""
        return list(map(str, self._run(lambda now: self._ledger.parts(n))[0]))

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, those in line included, gets this error."""
        with self.lock:
            self._stopped = error
            for waiter in self._line:
                waiter.error = error()
                waiter.served()
            self._line.clear()
            self._alarm.cancel(self._ring)

    def run(self, operation: Callable[[int], Result]) -> tuple[Result, int]:
        """An operation of the store's own, as any other: it is given the time."""
        return self._run(operation)

    def write(self, record: Record) -> None:
        """Keep what such an operation has changed."""
        self._write(record)

    def fitting(self, seqs: Sequence[int], most: int) -> int:
        """How many of these messages have no more bytes than that together, but one at least."""
        return self._fitting(seqs, most)

    def _run(self, operation: Callable[[int], Result]) -> tuple[Result, int]:
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
                return result, self._shelf.written
            except PenstockError:
                if self._stopped is None:
                    self._drop_gone()  # what time has taken meanwhile
                raise
            except BaseException as error:
                self._break(error)
                raise

    def _drop_gone(self) -> None:
        self._shelf.drop(self._ledger.gone)
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

        self._shelf.refuse(broken)
        self.stop(broken)

    def _write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        try:
            self._shelf.write(record, entries)
            if isinstance(record, StreamRecord):
                self._count(record)
            elif not isinstance(record, Put | Restore):
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
            waiter.written = self._shelf.written
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
                self._run(lambda now: None)

    def _settle(self, receipts: Sequence[str], operation: _Settling) -> tuple[list[str], int]:
        """The receipts that were lost, and what to commit."""
        parsed = parse_receipts(receipts)

        def settle(now: int) -> list[Receipt]:
            record, lost = operation([receipt for receipt in parsed if receipt is not None], now)
            if record is not None:
                self._write(record)
            return lost

        lost, written = self._run(settle)
        if not lost and None not in parsed:
            return [], written
        missing = {None, *lost}
        named = dict(zip(receipts, parsed, strict=True))
        return [text for text, receipt in named.items() if receipt in missing], written

    def _change(self, operation: Callable[[int], Remove | Redrive | None]) -> tuple[int, int]:
        def change(now: int) -> int:
            record = operation(now)
            if record is None:
                return 0
            self._write(record)
            return len(record.seqs)

        return self._run(change)

    def _chunks(self, state: str | None, after: str, until: str) -> Iterator[list[int]]:
        """The messages in that state, some at a time."""
        first = next((seq + 1 for seq in parse_ids([after])), 0)
        last = next(iter(parse_ids([until])), None)
        while seqs := self._list(state, first, last):
            yield seqs
            first = seqs[-1] + 1

    def _list(self, state: str | None, first: int, last: int | None) -> list[int]:
        seqs = self._run(lambda now: self._ledger.listed(state, first, _CHUNK))[0]
        return seqs if last is None else [seq for seq in seqs if seq <= last]

    def _messages(self, seqs: Sequence[int], state: str | None, bodies: bool = True) -> Iterator[Message]:
        """Those of the messages that are still there and in that state, read a few megabytes at a time."""

        def look(now: int) -> tuple[list[Message], Any, Sequence[int]]:
            there = [seq for seq in seqs if self._ledger.has(seq)]
            if not bodies:
                return [as_seen(seq, self._ledger) for seq in there], None, []
            fitting = self._fitting(there, _READ)
            now_read = there[:fitting]
            return [as_seen(seq, self._ledger) for seq in now_read], self._shelf.find(now_read), there[fitting:]

        while seqs:
            messages, places, seqs = self._run(look)[0]
            filled = fill(messages, self._shelf.read(places)) if bodies else messages
            yield from [message for message in filled if state in (None, message.state)]
