"""A queue's rules: operation + time -> record + new state. No clock, no disk.

Every operation makes a decision, writes it into a record, and applies the record. A store that keeps the records
and replays them later gets the same state again.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from penstock.contract import refusals
from penstock.contract.message import Entry, Plain, groups_of
from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY, MAX_COUNT, Settings
from penstock.errors import InvalidPriority, PayloadTooLarge
from penstock.rules import effects
from penstock.rules.recent import ACKED, FAILED_ATTEMPT, RELEASED
from penstock.rules.records import (
    BY_BACKOFF,
    Ack,
    Claim,
    Extend,
    Fail,
    Pop,
    Put,
    Redrive,
    Release,
    Remove,
    Taken,
    Update,
)
from penstock.rules.rows import FAILED, IN_FLIGHT, MANY
from penstock.rules.state import State
from penstock.system.clock import at_least_one

Receipt: TypeAlias = tuple[int, int]  # the message's number and the claim's secret


class Admission(NamedTuple):
    """The result of a put: a number per entry, and the new entries, numbered from record.first on."""

    seqs: Sequence[int]
    new: Sequence[Entry]
    record: Put


class Ledger:
    """The rules of one queue. Operations return the record to store, or None if nothing changed.

    state: the messages, and how records change them
    streams: the rules of its streams
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        first: int = 1,
        priorities: tuple[int, int] = (LOWEST_PRIORITY, HIGHEST_PRIORITY),
    ) -> None:
        """`priorities` is the range that the store can keep; the settings may narrow it."""
        self.name = name
        self.state = State(name, settings, first)
        self.streams = self.state.streams
        self._priorities = priorities
        self._expected = 0  # messages of loads that are about to arrive, and count for max_size

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self.state.settings

    def check(self, entries: Sequence[Entry], now: int) -> None:
        """Raise what put() would raise, and change nothing."""
        self.state.advance(now)
        self._number(entries)

    def put(self, entries: Sequence[Entry], now: int) -> Admission:
        """Add all entries or none."""
        self.state.advance(now)
        if len(entries) == 1 and entries[0].key is None:  # the usual case
            entry, settings, seq = entries[0], self.state.settings, self.state.rows.next_seq
            self.check_values(len(entry.payload), entry.priority)
            if settings.max_size:
                self.check_room(1)
            delay = settings.delay if entry.delay is None else entry.delay
            visible_at = now + at_least_one(delay) if delay else now
            kept = settings.retention if entry.retention is None else entry.retention
            expires_at = now + at_least_one(kept) if kept else 0
            group = () if entry.group is None else (entry.group,)
            record = Put(now, seq, (entry.priority,), (visible_at,), (expires_at,), {}, group)
            effects.put_one(self.state, record)
            return Admission((seq,), entries, record)
        if isinstance(entries, Plain):
            return self._put_plain(entries, now)
        seqs, new, keys = self._number(entries)
        priority = [entry.priority for entry in new]
        visible = [self.visible_at(entry.delay, now) for entry in new]
        usual = self.settings.retention
        kept_for = (usual if entry.retention is None else entry.retention for entry in new)
        expires = [now + at_least_one(seconds) if seconds else 0 for seconds in kept_for]
        record = Put(now, self.state.next_seq, priority, visible, expires, keys, groups_of(new))
        effects.put(self.state, record)
        return Admission(seqs, new, record)

    def _put_plain(self, entries: Plain, now: int) -> Admission:
        """Many payloads at once, by columns."""
        self.check_values(len(max(entries.payloads, key=len)), 0)
        count, kept = len(entries), self.settings.retention
        self.check_room(count)
        first = self.state.next_seq
        expires_at = now + at_least_one(kept) if kept else 0
        times = self.visible_at(None, now), expires_at
        priority, visible_at, expiry = (array("q", [value]) * count for value in (0, *times))
        record = Put(now, first, priority, visible_at, expiry, {})
        effects.put(self.state, record)
        return Admission(range(first, first + count), entries, record)

    def admit(
        self,
        seq: int,
        priority: int,
        visible_at: int,
        expires_at: int,
        size: int,
        now: int,
        group: str | None = None,
    ) -> Put:
        """Add a message that has a number already; messages with higher numbers may exist."""
        self.state.advance(now)
        self.check_values(size, priority)
        self.check_room(1)
        record = Put(now, seq, (priority,), (visible_at,), (expires_at,), {}, () if group is None else (group,))
        effects.put_one(self.state, record)
        return record

    def admit_many(
        self,
        seqs: Sequence[int],
        priority: Sequence[int],
        visible_at: Sequence[int],
        expires_at: Sequence[int],
        sizes: Sequence[int],
        crcs: Sequence[int],
        now: int,
    ) -> None:
        """Add messages that have ascending numbers already, above all others; all or none."""
        self.state.advance(now)
        for each in min(priority), max(priority):
            self.check_values(max(sizes), each)
        self.check_room(len(seqs))
        effects.admit(self.state, seqs, priority, visible_at, expires_at, sizes, crcs, now)

    def take_over(
        self,
        entries: Sequence[Entry],
        visible_at: Sequence[int],
        expires_at: Sequence[int],
        taken: Taken | None,
        now: int,
    ) -> Put:
        """Add messages of another queue, all or none; `taken`: if their removal there is yet to be recorded."""
        self.state.advance(now)
        for entry in entries:
            self.check_values(len(entry.payload), entry.priority)
        self.check_room(len(entries))
        priority = [entry.priority for entry in entries]
        record = Put(now, self.state.next_seq, priority, visible_at, expires_at, {}, groups_of(entries), taken)
        effects.put(self.state, record)
        return record

    def expect(self, count: int, longest: int, lowest: int, highest: int, waiting: int, now: int) -> None:
        """Check a load and keep room for its `waiting` messages."""
        self.state.advance(now)
        for priority in (lowest, highest):
            self.check_values(longest, priority)
        self.expect_room(waiting, now)

    def expect_room(self, waiting: int, now: int) -> None:
        """Keep room for a load whose values were checked before; QueueFull."""
        self.state.advance(now)
        if waiting:
            self.check_room(waiting)
        self._expected += waiting

    def expect_no_more(self, waiting: int) -> None:
        """Stop keeping room for a load: its messages have arrived, or it was aborted."""
        self._expected -= waiting

    def visible_at(self, delay: float | None, now: int) -> int:
        """From when on a message is available that was put with this delay."""
        delay = self.state.settings.waiting(delay)
        return now + at_least_one(delay) if delay else now

    def claim(self, n: int, lease: float | None, consumer: str, nonce: int, now: int) -> Claim | None:
        """Give up to n messages to a consumer."""
        self.state.advance(now)
        seqs = self.state.ready.take(n, self.state.available())
        if not seqs:
            return None
        record = Claim(now, seqs, self.lease_end(lease, now), consumer, nonce)
        effects.claim(self.state, record)
        return record

    def pop(self, consumer: str, now: int) -> Pop | None:
        """Give the next message to a consumer for good."""
        self.state.advance(now)
        seqs = self.state.ready.take(1, self.state.available())
        if not seqs:
            return None
        record = Pop(now, seqs, consumer)
        effects.pop(self.state, record)
        return record

    def ack(self, receipts: Iterable[Receipt], now: int) -> tuple[Ack | None, list[Receipt]]:
        """Settle for good; also returns the receipts that were lost."""
        held, lost = self._held(receipts, ACKED, now)
        if not held:
            return None, lost
        record = Ack(now, held)
        effects.ack(self.state, record)
        return record, lost

    def fail(
        self, receipts: Iterable[Receipt], delay: float | None, reason: str | None, now: int
    ) -> tuple[Fail | None, list[Receipt]]:
        """End the attempt; also returns the receipts that were lost. Without a delay the backoff decides."""
        held, lost = self._held(receipts, FAILED_ATTEMPT, now)
        if not held:
            return None, lost
        visible_at = now + at_least_one(delay) if delay else now
        if delay is None and self.settings.backoff is not None:
            visible_at = BY_BACKOFF
        record = Fail(now, held, visible_at, reason)
        effects.fail(self.state, record)
        return record, lost

    def release(self, receipts: Iterable[Receipt], now: int) -> tuple[Release | None, list[Receipt]]:
        """Give back; also returns the receipts that were lost."""
        held, lost = self._held(receipts, RELEASED, now)
        if not held:
            return None, lost
        record = Release(now, held)
        effects.release(self.state, record)
        return record, lost

    def extend(
        self, receipts: Iterable[Receipt], lease: float | None, now: int
    ) -> tuple[Extend | None, list[Receipt]]:
        """Hold for `lease` seconds from now; also returns the receipts that were lost."""
        held, lost = self._held(receipts, None, now)
        if not held:
            return None, lost
        record = Extend(now, held, self.lease_end(lease, now))
        effects.extend(self.state, record)
        return record, lost

    def remove(self, seqs: Iterable[int], now: int) -> Remove | None:
        """Remove messages in any state, except those that a stream holds."""
        self.state.advance(now)
        there = [seq for seq in dict.fromkeys(seqs) if self.state.rows.find(seq)]
        if self.streams:
            there = [seq for seq in there if not self.streams.holds(seq)]
        record = Remove(now, there)
        effects.remove(self.state, record)
        return record if record.seqs else None

    def revoke(self, seqs: Iterable[int], now: int) -> Release | None:
        """Give messages in flight back without their receipts, except those that a stream holds."""
        self.state.advance(now)
        held = [seq for seq in dict.fromkeys(seqs) if self._lease(seq) is not None]
        if not held:
            return None
        record = Release(now, held)
        effects.release(self.state, record)
        return record

    def redrive(self, seqs: Iterable[int] | None, now: int) -> Redrive | None:
        """Make failed messages available with attempts 0; None means all of them."""
        self.state.advance(now)
        failed = (
            self.state.rows.with_state(FAILED) if seqs is None else filter(self._has_failed, dict.fromkeys(seqs))
        )
        record = Redrive(now, list(failed))
        effects.redrive(self.state, record)
        return record if record.seqs else None

    def purge(self, now: int) -> Remove | None:
        """Remove all messages but those in flight."""
        self.state.advance(now)
        held = set(self.state.rows.with_state(IN_FLIGHT))
        record = Remove(now, [seq for seq in self.state.rows.with_state(None) if seq not in held])
        effects.remove(self.state, record)
        return record if record.seqs else None

    def update(self, settings: Settings, now: int) -> Update | None:
        """Change the settings."""
        self.state.advance(now)
        if settings == self.settings:
            return None
        record = Update(now, settings)
        effects.update(self.state, record)
        return record

    def _number(self, entries: Sequence[Entry]) -> tuple[Sequence[int], Sequence[Entry], dict[str, int]]:
        """A number for each entry, the new entries, and their keys."""
        for entry in entries:
            self.check_values(len(entry.payload), entry.priority)
        first = self.state.rows.next_seq
        seqs: Sequence[int] = range(first, first + len(entries))
        new = entries
        keys: dict[str, int] = {}
        if any(entry.key is not None for entry in entries):
            seqs, new, keys = self._number_keyed(entries, first)
        if new and self.settings.max_size:
            self.check_room(len(new))
        return seqs, new, keys

    def check_values(self, size: int, priority: int) -> None:
        """Refuse a payload size or priority outside of the queue's limits."""
        settings = self.state.settings
        if size > settings.max_payload:
            raise PayloadTooLarge(
                f"a payload of {size} bytes; queue {self.name!r} takes at most "
                f"{settings.max_payload}: store it elsewhere and put its address"
            )
        lowest, highest = self._priorities
        if settings.priorities is not None:
            lowest, highest = max(lowest, settings.priorities[0]), min(highest, settings.priorities[1])
        if not lowest <= priority <= highest:
            raise InvalidPriority(f"priority {priority}; queue {self.name!r} takes {lowest} to {highest}")

    def room(self) -> int:
        """How many more messages max_size allows."""
        most = self.state.settings.max_size
        return max(0, most - self.state.waiting() - self._expected) if most else MAX_COUNT

    def check_room(self, more: int) -> None:
        """Refuse more messages than max_size allows; QueueFull."""
        most = self.state.settings.max_size
        size = self.state.waiting() + self._expected
        if most and more and size + more > most:
            raise refusals.full(self.name, size, most, more)

    def _number_keyed(self, entries: Sequence[Entry], first: int) -> tuple[list[int], list[Entry], dict[str, int]]:
        seqs: list[int] = []
        new: list[Entry] = []
        keys: dict[str, int] = {}
        for entry in entries:
            seq = None
            if entry.key is not None:
                seq = self.state.keys.get(entry.key)
                if seq is None:
                    seq = keys.get(entry.key)
            if seq is None:
                seq = first + len(new)
                new.append(entry)
                if entry.key is not None:
                    keys[entry.key] = seq
            seqs.append(seq)
        return seqs, new, keys

    def lease_end(self, lease: float | None, now: int) -> int:
        """When a lease of so many seconds ends; None: of the queue's own."""
        settings = self.state.settings
        return now + at_least_one(min(settings.lease if lease is None else lease, settings.max_lease))

    def _held(self, receipts: Iterable[Receipt], outcome: int | None, now: int) -> tuple[list[int], list[Receipt]]:
        """The messages that the receipts hold, and the lost receipts: no message, and no repeat of `outcome`."""
        self.state.advance(now)
        receipts = list(receipts)
        if len(receipts) >= MANY and self._all_held(receipts):
            return [seq for seq, _ in receipts], []
        held: dict[int, None] = {}  # a receipt may be named twice
        lost = []
        for receipt in receipts:
            seq, nonce = receipt
            if self._lease(seq) == nonce:
                held[seq] = None
            elif outcome is None or self.state.receipts.outcome(seq, nonce) != outcome:
                lost.append(receipt)
        return list(held), lost

    def _all_held(self, receipts: list[Receipt]) -> bool:
        """Whether these are receipts of one claim of many neighbouring messages, all still held."""
        runs = self.state.rows.runs([seq for seq, _ in receipts])
        if runs is None:
            return False
        nonce = receipts[0][1]
        if any(given != nonce for _, given in receipts):
            return False
        for page, start, end in runs:
            in_flight = page.state[start:end].count(IN_FLIGHT)
            claims = page.for_claims(end - 1)
            held = claims.nonce[start:end].count(nonce)
            if not in_flight == held == end - start or 0 in claims.ends_at[start:end]:
                return False
        return True

    def _lease(self, seq: int) -> int | None:
        """The secret of the lease that a message is in flight under; None: no consumer holds it."""
        found = self.state.rows.find(seq)
        if found is None:
            return None
        page, at = found
        claims = page.for_claims(at)
        # A claim without an end is a stream's, and its receipt was given to no consumer.
        return claims.nonce[at] if page.state[at] == IN_FLIGHT and claims.ends_at[at] else None

    def _has_failed(self, seq: int) -> bool:
        found = self.state.rows.find(seq)
        return found is not None and found[0].state[found[1]] == FAILED
