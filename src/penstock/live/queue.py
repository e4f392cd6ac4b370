"""A queue at work: its ledger, a lock around it, the line of waiting consumers, and the shelf for the bodies.

Whoever makes messages available, be it a put or the end of a lease, hands them to those who stand in line, in
turn, before anyone else can take them. Nobody is woken in vain and nobody overtakes.
"""

import os
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from penstock.clock import Clock
from penstock.errors import LeaseExpired, PenstockError, StoreClosed
from penstock.index.history import Attempt
from penstock.index.rows import DONE, FAILED, IN_FLIGHT, STATES
from penstock.ledger import Ledger, Receipt
from penstock.live.alarm import Alarm
from penstock.live.shelf import Body, Shelf
from penstock.message import Entry, Message
from penstock.records import Claim, Record, Redrive, Remove
from penstock.settings import Settings
from penstock.threads import Lock

_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_RECEIPT = re.compile(r"(0|[1-9][0-9]{0,18})\.[0-9a-f]{16}", re.ASCII)
_SECRET = re.compile(r"\.[0-9a-f]{16}", re.ASCII)
_CHUNK = 256  # messages that are listed under one hold of the lock
Result = TypeVar("Result")
_Settling: TypeAlias = Callable[[list[Receipt], int], tuple[Record | None, list[Receipt]]]


class _Taken(NamedTuple):
    """Messages of which only the bodies are still to be read: where those are, and how to put both together."""

    size: int
    places: Any
    build: Callable[[Sequence[Body]], list[Message]]
    receipts: list[str]


_NOTHING = _Taken(0, (), lambda bodies: [], [])


class _Waiter:
    """A consumer in line."""

    __slots__ = ("error", "served", "take", "taken", "written")

    def __init__(self, take: Callable[[int], "_Taken"]) -> None:
        self.take = take
        self.served = threading.Event()
        self.taken = _NOTHING
        self.written = 0
        self.error: Exception | None = None


class LiveQueue:
    """One queue, safe for threads."""

    def __init__(self, ledger: Ledger, shelf: Shelf, clock: Clock, alarm: Alarm, lock: Lock) -> None:
        self.name = ledger.name
        self.lock = lock
        self._ledger = ledger
        self._shelf = shelf
        self._clock = clock
        self._alarm = alarm
        self._armed: int | None = None
        self._line: dict[_Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None

    @property
    def settings(self) -> Settings:
        """What the queue was created with."""
        return self._ledger.settings

    @property
    def next_seq(self) -> int:
        """A number above that of every message that was ever here."""
        return self._ledger.next_seq

    def check(self, entry: Entry) -> None:
        """Raise what a put would raise."""

        def check(now: int) -> None:
            self._ledger.check([entry], now)
            self._shelf.make_room([entry])

        self._run(check)

    def put(self, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        ids, written = self.admit(entries)
        self.commit(written)
        return ids

    def admit(self, entries: Sequence[Entry]) -> tuple[list[str], int]:
        """Take in all entries or none; the caller must commit before anyone is told."""

        def admit(now: int) -> list[str]:
            self._shelf.make_room(entries)
            admission = self._ledger.put(entries, now)
            if admission.new:
                self._write(admission.record, admission.new)
            return list(map(str, admission.seqs))

        return self._run(admit)

    def commit(self, written: int) -> None:
        """Return once what admit() wrote is on stable storage."""
        self._shelf.commit(written)

    def claim(self, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages."""

        def take(now: int) -> _Taken:
            available = self._ledger.available()
            if not available:
                return _NOTHING
            self._shelf.make_room(claims=min(n, available))
            record = self._ledger.claim(n, lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                return _NOTHING
            self._write(record)
            return self._claimed(record)

        return self._take_or_wait(take, wait)

    def pop(self, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""

        def take(now: int) -> _Taken:
            seqs = self._ledger.peek(1)
            if not seqs:
                return _NOTHING
            self._shelf.make_room(claims=1)
            message = self._message(seqs[0])
            # Read before it is done, so that a message that cannot be read is not lost as well.
            _fill([message], self._shelf.read(self._shelf.find(seqs)))
            record = self._ledger.pop(consumer, now)
            if record is not None:
                self._write(record)
            message.attempts += 1
            message.state, message.consumer = "done", consumer
            message.claimed_at = message.settled_at = now
            message.reason = None
            return _Taken(1, (), lambda bodies: [message], [])

        return next(iter(self._take_or_wait(take, wait)), None)

    def ack(self, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self._settle_all(receipts, self._ledger.ack)

    def fail(self, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self._settle_all(receipts, lambda held, now: self._ledger.fail(held, delay, reason, now))

    def release(self, receipts: Sequence[str]) -> None:
        """Give back."""
        self._settle_all(receipts, self._ledger.release)

    def extend(self, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on; until when, and which receipts were lost."""
        until = 0

        def extend(held: list[Receipt], now: int) -> tuple[Record | None, list[Receipt]]:
            nonlocal until
            self._shelf.make_room(claims=len(held))
            until = self._ledger.lease_end(lease, now)
            return self._ledger.extend(held, lease, now)

        lost, written = self._settle(receipts, extend)
        self._shelf.commit(written)
        return until, lost

    def remove(self, ids: Iterable[str]) -> int:
        """Take messages out in any state."""
        return self._change(lambda now: self._ledger.remove(_seqs(ids), now))

    def redrive(self, ids: Iterable[str] | None) -> int:
        """Start over with failed messages."""
        return self._change(lambda now: self._ledger.redrive(None if ids is None else _seqs(ids), now))

    def purge(self) -> int:
        """Take out everything but what is in flight."""
        return self._change(self._ledger.purge)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return self._run(lambda now: self._ledger.counts())[0]

    def peek(self, n: int) -> Iterator[Message]:
        """What claim would give."""
        seqs = self._run(lambda now: self._ledger.peek(n))[0]
        for start in range(0, len(seqs), _CHUNK):
            yield from self._messages(seqs[start : start + _CHUNK], "available")

    def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        seqs = _seqs([id])
        return self._run(lambda now: self._ledger.attempts(seqs[0]))[0] if seqs else []

    def messages(self, state: str | None) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put."""
        first = 0
        while seqs := self._list(state, first):
            yield from self._messages(seqs, state)
            first = seqs[-1] + 1

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, those in line included, gets this error."""
        with self.lock:
            self._stopped = error
            for waiter in self._line:
                waiter.error = error()
                waiter.served.set()
            self._line.clear()
            self._alarm.cancel(self._ring)

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
        self.stop(
            lambda: StoreClosed(
                f"queue {name!r} was stopped by an error in the middle of a change ({cause}), so that its state "
                "cannot be trusted: close the store and open it again"
            )
        )

    def _write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        try:
            self._shelf.write(record, entries)
        except PenstockError as error:  # no refusal: the ledger has changed already
            self._break(error)
            raise

    def _serve(self, now: int) -> None:
        """Give what is available to those in line, in turn."""
        while self._line and self._ledger.available():
            waiter = next(iter(self._line))
            try:
                waiter.taken = waiter.take(now)
            except Exception as error:  # the consumer's to know, not of whoever happens to serve it
                self._line.pop(waiter)
                waiter.error = error
                waiter.served.set()
                if isinstance(error, PenstockError):  # a refusal, or it has stopped the queue already
                    continue
                self._break(error)
                return
            del self._line[waiter]
            waiter.written = self._shelf.written
            waiter.served.set()
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

    def _take_or_wait(self, take: Callable[[int], _Taken], wait: float) -> list[Message]:
        taken, written = self._run(take)
        if not taken.size and wait > 0:
            return self._stand_in_line(_Waiter(take), wait)
        return self._given(taken, written)

    def _given(self, taken: _Taken, written: int) -> list[Message]:
        """What a consumer took, once that is stored, with the bodies."""
        if not taken.size:
            return []
        self._shelf.commit(written)
        try:
            return taken.build(self._shelf.read(taken.places))
        except BaseException:
            self._give_back(taken.receipts)
            raise

    def _stand_in_line(self, waiter: _Waiter, wait: float) -> list[Message]:
        try:
            self._run(lambda now: self._line.setdefault(waiter))
            self._clock.wait(waiter.served, wait)
            if not waiter.served.is_set():
                self._leave_line(waiter)
        except BaseException:
            self._abandon(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error
        return self._given(waiter.taken, waiter.written)

    def _leave_line(self, waiter: _Waiter) -> None:
        with self.lock:
            if waiter in self._line:
                self._run(lambda now: None)  # serves what became available in the last moment
                self._line.pop(waiter, None)

    def _abandon(self, waiter: _Waiter) -> None:
        """An interrupted consumer takes no claimed message with it. What it popped is gone, as after a crash."""
        with self.lock:
            self._line.pop(waiter, None)
        self._give_back(waiter.taken.receipts)

    def _give_back(self, receipts: list[str]) -> None:
        if receipts:
            with suppress(PenstockError):  # the lease may be over, the queue stopped
                self.release(receipts)

    def _settle_all(self, receipts: Sequence[str], operation: _Settling) -> None:
        lost, written = self._settle(receipts, operation)
        self._shelf.commit(written)
        if lost:
            raise LeaseExpired(self.name, lost)

    def _settle(self, receipts: Sequence[str], operation: _Settling) -> tuple[list[str], int]:
        """The receipts that were lost, and what to commit."""
        parsed = _parse(receipts)

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

    def _change(self, operation: Callable[[int], Remove | Redrive | None]) -> int:
        def change(now: int) -> int:
            record = operation(now)
            if record is None:
                return 0
            self._write(record)
            return len(record.seqs)

        count, written = self._run(change)
        self._shelf.commit(written)
        return count

    def _list(self, state: str | None, first: int) -> list[int]:
        return self._run(lambda now: self._ledger.listed(state, first, _CHUNK))[0]

    def _messages(self, seqs: Iterable[int], state: str | None) -> list[Message]:
        """Those of the messages that are still there and in that state."""

        def look(now: int) -> tuple[list[Message], Any]:
            there = [seq for seq in seqs if self._ledger.has(seq)]
            return [self._message(seq) for seq in there], self._shelf.find(there)

        messages, places = self._run(look)[0]
        filled = _fill(messages, self._shelf.read(places))
        return [message for message in filled if state in (None, message.state)]

    def _claimed(self, record: Claim) -> _Taken:
        """Messages as their claimer sees them."""
        now, seqs, lease_until, consumer, nonce = record
        count, name, secret = len(seqs), self.name, f".{nonce:016x}"
        places, runs = self._shelf.find(seqs), self._ledger.runs(seqs)
        if runs is None:
            claimed = [self._message(seq) for seq in seqs]
            for message in claimed:
                message.receipt = message.id + secret
            receipts = [message.id + secret for message in claimed]
            return _Taken(count, places, lambda bodies: _fill(claimed, bodies), receipts)
        priority, visible_at, expires_at, attempts = array("q"), array("q"), array("q"), array("I")
        reason: list[str | None] = []
        for page, start, end in runs:  # the same by slices
            priority += page.priority[start:end]
            visible_at += page.visible_at[start:end]
            expires_at += page.expires_at[start:end]
            attempts += page.attempts[start:end]
            reason += page.for_claims(end - 1).reason[start:end]
        ids = list(map(str, seqs))
        receipts = [each + secret for each in ids]

        def build(bodies: Sequence[Body]) -> list[Message]:
            columns = zip(ids, receipts, bodies, priority, visible_at, expires_at, attempts, reason, strict=True)
            return [
                Message(
                    each, name, body[0], dict(body[1]), rank, body[2], body[3], visible, expires or None, attempt,
                    "in_flight", receipt, now, lease_until, consumer, None, why,
                )
                for each, receipt, body, rank, visible, expires, attempt, why in columns
            ]  # fmt: skip

        return _Taken(count, places, build, receipts)

    def _message(self, seq: int) -> Message:
        """A message as anyone may see it but for its body: only who claims it is given the receipt."""
        page, at = self._ledger.locate(seq)
        state = page.state[at]
        message = Message(
            str(seq),
            self.name,
            b"",
            {},
            page.priority[at],
            0,
            0,
            page.visible_at[at],
            page.expires_at[at] or None,
            page.attempts[at],
            STATES[state - 1],
        )
        if page.claims is not None:
            claims = page.for_claims(at)
            message.reason = claims.reason[at]
            if state in (IN_FLIGHT, DONE, FAILED):
                message.claimed_at = claims.claimed_at[at]
                message.consumer = claims.consumer[at]
                if state == IN_FLIGHT:
                    message.lease_until = claims.ends_at[at]
                else:
                    message.settled_at = claims.ends_at[at]
        return message


def _fill(messages: list[Message], bodies: Sequence[Body]) -> list[Message]:
    """Give messages their bodies."""
    for message, body in zip(messages, bodies, strict=True):
        message.payload, headers, message.created_at, message.received_at = body
        message.headers = dict(headers)
    return messages


def _parse(receipts: Sequence[str]) -> Sequence[Receipt | None]:
    """What receipts say; None of those that never were one."""
    secret = receipts[0][-17:] if len(receipts) > 1 else ""
    if _SECRET.fullmatch(secret) and {receipt[-17:] for receipt in receipts} == {secret}:
        seqs = [receipt[:-17] for receipt in receipts]  # of one claim, most likely
        if "".join(seqs).isascii() and all(map(str.isdigit, seqs)) and max(map(len, seqs)) < 20:
            nonce = int(secret[1:], 16)
            return [(int(seq), nonce) for seq in seqs]
    return list(map(_receipt, receipts))


def _receipt(text: str) -> Receipt | None:
    if _RECEIPT.fullmatch(text) is None:
        return None
    return int(text[:-17]), int(text[-16:], 16)


def _seqs(ids: Iterable[str]) -> list[int]:
    """What the ids name; text that was never an id names nothing."""
    return [int(text) for text in ids if _ID.fullmatch(text)]
