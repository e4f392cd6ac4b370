"""A queue at work: its ledger, a lock around it, the line of waiting consumers, and the shelf for the bodies.

Whoever makes messages available, be it a put or the end of a lease, hands them to those who stand in line, in
turn, before anyone else can take them. Nobody is woken in vain and nobody overtakes.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.clock import Clock
from penstock.errors import LeaseExpired, PenstockError
from penstock.index.rows import AVAILABLE, DELAYED, DONE, FAILED, IN_FLIGHT, STATES
from penstock.ledger import Ledger, Receipt
from penstock.live.alarm import Alarm
from penstock.live.shelf import Shelf
from penstock.message import Entry, Message
from penstock.records import Extend, Put, Record
from penstock.settings import Settings

_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_CHUNK = 256  # messages that are listed under one hold of the lock


class _Waiter:
    """A consumer in line."""

    __slots__ = ("error", "messages", "served", "take", "written")

    def __init__(self, take: Callable[[int], list[Message]]) -> None:
        self.take = take
        self.served = threading.Event()
        self.messages: list[Message] = []
        self.written = 0
        self.error: PenstockError | None = None


class LiveQueue:
    """One queue, safe for threads."""

    def __init__(self, ledger: Ledger, shelf: Shelf, clock: Clock, alarm: Alarm) -> None:
        self.name = ledger.name
        self.lock = threading.RLock()
        self._ledger = ledger
        self._shelf = shelf
        self._clock = clock
        self._alarm = alarm
        self._armed: int | None = None
        self._line: dict[_Waiter, None] = {}
        self._ended: Callable[[], PenstockError] | None = None

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
        with self.lock:
            self._ledger.check([entry], self._begin())

    def put(self, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        ids, written = self.admit(entries)
        self.commit(written)
        return ids

    def admit(self, entries: Sequence[Entry]) -> tuple[list[str], int]:
        """Take in all entries or none; the caller must commit before anyone is told."""
        with self.lock:
            now = self._begin()
            admission = self._ledger.put(entries, now)
            self._shelf.write(admission.record, admission.new)
            return [str(seq) for seq in admission.seqs], self._end(now)

    def commit(self, written: int) -> None:
        """Return once what admit() wrote is on stable storage."""
        self._shelf.commit(written)

    def claim(self, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages."""

        def take(now: int) -> list[Message]:
            record = self._ledger.claim(n, lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                return []
            self._shelf.write(record)
            return [self._message(seq) for seq in record.seqs]

        return self._take_or_wait(take, wait)

    def pop(self, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""

        def take(now: int) -> list[Message]:
            popped = [self._message(seq) for seq in self._ledger.peek(1)]
            record = self._ledger.pop(consumer, now)
            if record is not None:
                self._shelf.write(record)
            for message in popped:
                message.attempts += 1
                message.state, message.consumer = "done", consumer
                message.claimed_at = message.settled_at = now
                message.reason = None
            return popped

        return next(iter(self._take_or_wait(take, wait)), None)

    def ack(self, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self._settle(receipts, self._ledger.ack)

    def fail(self, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self._settle(receipts, lambda held, now: self._ledger.fail(held, delay, reason, now))

    def release(self, receipts: Sequence[str]) -> None:
        """Give back."""
        self._settle(receipts, self._ledger.release)

    def extend(self, receipts: Sequence[str], lease: float) -> int:
        """Hold from now on; until when."""
        record = self._settle(receipts, lambda held, now: self._ledger.extend(held, lease, now))
        return record.lease_until if isinstance(record, Extend) else 0

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
        with self.lock:
            self._end(self._begin())
            return self._ledger.counts()

    def peek(self, n: int) -> list[Message]:
        """What claim would give."""
        with self.lock:
            self._end(self._begin())
            return [self._message(seq) for seq in self._ledger.peek(n)]

    def messages(self, state: str | None) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put."""
        first = 0
        while True:
            with self.lock:
                self._end(self._begin())
                seqs = self._ledger.find(state, first, _CHUNK)
                chunk = [self._message(seq) for seq in seqs]
            yield from chunk
            if len(seqs) < _CHUNK:
                return
            first = seqs[-1] + 1

    def end(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, those in line included, gets this error."""
        with self.lock:
            self._ended = error
            for waiter in self._line:
                waiter.error = error()
                waiter.served.set()
            self._line.clear()

    def _begin(self) -> int:
        """The time, and everything it brought about; those in line come first."""
        if self._ended is not None:
            raise self._ended()
        now = self._clock.now()
        self._ledger.advance(now)
        self._serve(now)
        return now

    def _end(self, now: int) -> int:
        """After a change, under the lock: serve those in line; what must be committed before answering."""
        self._serve(now)
        if self._ledger.gone:
            self._shelf.drop(self._ledger.gone)
            self._ledger.gone.clear()
        return self._shelf.written

    def _serve(self, now: int) -> None:
        while self._line and self._ledger.available():
            waiter = next(iter(self._line))
            del self._line[waiter]
            waiter.messages = waiter.take(now)
            waiter.written = self._shelf.written
            waiter.served.set()
        due = self._ledger.next_time() if self._line else None
        if due is not None and (self._armed is None or due < self._armed):
            self._armed = due
            self._alarm.at(due, self._ring)

    def _ring(self) -> None:
        with self.lock:
            self._armed = None
            if self._ended is None:
                self._end(self._begin())

    def _take_or_wait(self, take: Callable[[int], list[Message]], wait: float) -> list[Message]:
        with self.lock:
            now = self._begin()
            waiter = _Waiter(take)
            waiter.messages = take(now)
            if not waiter.messages and wait > 0:
                self._line[waiter] = None
            waiter.written = self._end(now)
        if not waiter.messages and wait > 0:
            self._stand_in_line(waiter, wait)
        if waiter.messages:
            self._shelf.commit(waiter.written)
        return waiter.messages

    def _stand_in_line(self, waiter: _Waiter, wait: float) -> None:
        try:
            self._clock.wait(waiter.served, wait)
        except BaseException:  # an interrupted consumer must not take a message with it
            with self.lock:
                self._line.pop(waiter, None)
                if waiter.messages and self._ended is None:
                    self.release([message.receipt for message in waiter.messages if message.receipt])
            raise
        with self.lock:
            if waiter in self._line:
                self._end(self._begin())  # what became available in the last moment
                self._line.pop(waiter, None)
        if waiter.error is not None:
            raise waiter.error

    def _settle(
        self,
        receipts: Sequence[str],
        operation: Callable[[list[Receipt], int], tuple[Record | None, list[Receipt]]],
    ) -> Record | None:
        parsed = {receipt: _receipt(receipt) for receipt in receipts}
        with self.lock:
            now = self._begin()
            record, lost = operation([receipt for receipt in parsed.values() if receipt is not None], now)
            if record is not None:
                self._shelf.write(record)
            written = self._end(now)
        self._shelf.commit(written)
        if lost or None in parsed.values():
            missing = {None, *lost}
            raise LeaseExpired(self.name, [text for text, receipt in parsed.items() if receipt in missing])
        return record

    def _change(self, operation: Callable[[int], Record | None]) -> int:
        with self.lock:
            now = self._begin()
            record = operation(now)
            if record is not None:
                self._shelf.write(record)
            written = self._end(now)
        self._shelf.commit(written)
        return 0 if record is None or isinstance(record, Put) else len(record.seqs)

    def _message(self, seq: int) -> Message:
        page, at = self._ledger.locate(seq)
        payload, headers, created_at, received_at = self._shelf.read(seq)
        state = page.state[at]
        message = Message(
            str(seq),
            self.name,
            payload,
            dict(headers),
            page.priority[at],
            created_at,
            received_at,
            page.visible_at[at],
            page.expires_at[at] or None,
            page.attempts[at],
            STATES[state - 1],
        )
        claims = page.claims
        if claims is not None:
            message.reason = claims.reason[at]
            if state == IN_FLIGHT:
                message.receipt = f"{seq}.{claims.nonce[at]:016x}"
                message.lease_until = claims.ends_at[at]
            elif state in (DONE, FAILED):
                message.settled_at = claims.ends_at[at]
            if state not in (DELAYED, AVAILABLE):
                message.claimed_at = claims.claimed_at[at]
                message.consumer = claims.consumer[at]
        return message


def _receipt(text: str) -> Receipt | None:
    seq, _, nonce = text.partition(".")
    try:
        return int(seq), int(nonce, 16)
    except ValueError:
        return None


def _seqs(ids: Iterable[str]) -> list[int]:
    """What the ids name; text that was never an id names nothing."""
    return [int(text) for text in ids if _ID.fullmatch(text)]
