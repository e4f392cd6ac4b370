"""The state of a queue: its contents, and how records and time change them.

The ledger decides and this applies. Applying the same records in the same order always gives the same state: what
time alone brings about (a delay or a lease that ends, a message that expires) follows from the records.

A message is known here by its sequence number; its payload and headers are the store's business. Times are
milliseconds since the epoch, durations seconds. `now` must never decrease.
"""

from array import array
from collections.abc import Callable
from typing import Any

from penstock.contract.message import Attempt
from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.contents import NEVER, Contents
from penstock.rules.index.rows import AVAILABLE, DELAYED, DONE, FAILED, IN_FLIGHT, Page
from penstock.rules.records import (
    Ack,
    Claim,
    Extend,
    Fail,
    Pop,
    Put,
    Record,
    Redrive,
    Release,
    Remove,
    Restore,
    StreamRecord,
    Update,
)

LEASE_EXPIRED = "lease expired"
ACKED, FAILED_ATTEMPT, RELEASED = 1, 2, 3  # how a receipt was settled


class State(Contents):
    """The state of one queue."""

    def __init__(self, name: str, settings: Settings, first: int = 1) -> None:
        super().__init__(name, settings, first)
        self.gone: list[int] = []  # messages that ceased to exist; the store takes them from here
        self._advanced = 0  # up to when everything has happened
        self.arrived = self.leases_expired = self.expired = self.given_up = (
            0  # messages to which that has happened
        )

    def replay(self, record: Record) -> None:
        """Apply a record that this ledger, or an earlier life of it, returned."""
        self.advance(record.at)
        if not self._follows(record):
            raise StoreCorrupt(
                f"the history of queue {self.name!r} contradicts itself: {type(record).__name__} at {record.at} "
                "does not follow from what was recorded before; records are missing, repeated or out of order"
            )
        self._apply(record)

    def _apply(self, record: Record) -> None:
        _APPLY[type(record)](self, record)

    def _follows(self, record: Record) -> bool:
        """Whether a record can come next; takes out of line what it claims."""
        if isinstance(record, StreamRecord):
            return False  # see stream_state.py
        if isinstance(record, Update):
            return True
        if isinstance(record, Put):
            return record.first >= self.next_seq  # a store may have left numbers out
        if isinstance(record, Claim | Pop):
            return self._ready.take(len(record.seqs), self._counts[AVAILABLE]) == record.seqs
        if isinstance(record, Restore):
            return record.first + len(record.states) == self.next_seq
        rows = [self._rows.find(seq) for seq in record.seqs]
        if isinstance(record, Remove):
            return None not in rows
        needed = FAILED if isinstance(record, Redrive) else IN_FLIGHT
        return all(row is not None and row[0].state[row[1]] == needed for row in rows)

    def advance(self, now: int) -> None:
        """Let happen, in the order of time, what the time up to now brings about."""
        due_at = self._deadlines.next()
        if now == self._advanced and (due_at is None or due_at > now):
            return
        self._advanced = now
        self._keys.forget(now)
        self._receipts.forget(now)
        happened = False
        while (due := self._deadlines.pop(now)) is not None:
            happened = True
            self._happen(*due)
        if happened:
            self._tidy()

    def _happen(self, time: int, seq: int) -> None:
        """What a time does to a message: it expires, or its delay, its lease or its keeping ends."""
        found = self._rows.find(seq)
        if found is None or self._due(*found) != time:
            return  # settled, extended or removed since
        page, at = found
        state = page.state[at]
        if page.expires_at[at] == time or state == DONE:
            self.expired += state != DONE
            self._drop(seq, page, at)
        elif state == DELAYED:
            self._come_back(seq, page, at, time, time)
        else:
            self.leases_expired += 1
            self._end_attempt(seq, page, at, time, time, LEASE_EXPIRED)

    @property
    def advanced(self) -> int:
        """Up to when everything has happened."""
        return self._advanced

    # What each record changes

    def _put(self, record: Put) -> None:
        count = len(record.priority)
        if count == 1:
            self._put_one(record)
            return
        if not count:
            return
        self.arrived += count
        delayed = max(record.visible_at) > record.at
        states = (
            bytes(DELAYED if at > record.at else AVAILABLE for at in record.visible_at)
            if delayed
            else bytes([AVAILABLE]) * count
        )
        seqs = range(record.first, record.first + count)
        if record.first > self.next_seq:
            self._rows.skip_to(record.first)
        self._rows.append(states, record.priority, record.visible_at, record.expires_at)
        self._counts[AVAILABLE] += states.count(AVAILABLE)
        self._counts[DELAYED] += states.count(DELAYED)
        if not delayed and min(record.priority) == max(record.priority):
            self._ready.arrive(seqs, record.priority[0])
        else:
            lanes: dict[int, list[int]] = {}
            for seq, priority, state in zip(seqs, record.priority, states, strict=True):
                if state == AVAILABLE:
                    lanes.setdefault(priority, []).append(seq)
            for priority, arrived in lanes.items():
                self._ready.arrive(arrived, priority)
        if delayed or any(record.expires_at):
            for seq, visible_at, expires_at in zip(seqs, record.visible_at, record.expires_at, strict=True):
                if expires_at:  # stays in the heap for the whole life of the message
                    self._deadlines.add(expires_at, seq)
                    self._expiring += 1
                if record.at < visible_at < (expires_at or NEVER):
                    self._deadlines.add(visible_at, seq)
        for key, seq in record.keys.items():
            self._keys.add(key, seq, record.at)

    def _put_one(self, record: Put) -> None:
        """The same for a single message."""
        now, seq, (priority,), (visible_at,), (expires_at,), keys = record
        late = seq < self.next_seq  # a number that was left out: only a store that gives numbers itself has such
        if seq > self.next_seq:
            self._rows.skip_to(seq)
        state = DELAYED if visible_at > now else AVAILABLE
        self.arrived += 1
        if late:
            self._rows.insert(seq, state, priority, visible_at, expires_at)
        else:
            self._rows.append_one(state, priority, visible_at, expires_at)
        self._counts[state] += 1
        if state == AVAILABLE:
            if late:
                self._ready.come_back(seq, priority)
            else:
                self._ready.arrive((seq,), priority)
        elif visible_at < (expires_at or NEVER):
            self._deadlines.add(visible_at, seq)
        if expires_at:  # stays in the heap for the whole life of the message
            self._deadlines.add(expires_at, seq)
            self._expiring += 1
        for key in keys:
            self._keys.add(key, seq, now)

    def _claim(self, record: Claim) -> None:
        now, seqs, lease_until, consumer, nonce = record
        runs = self._rows.runs(seqs)
        if runs is None:
            for seq in seqs:
                page, at = self._rows[seq]
                page.state[at] = IN_FLIGHT
                page.attempts[at] += 1
                claims = page.for_claims(at)
                claims.claimed_at[at] = now
                claims.ends_at[at] = lease_until
                claims.nonce[at] = nonce
                claims.consumer[at] = consumer
        else:  # the same by slices
            for page, start, end in runs:
                count = end - start
                page.state[start:end] = bytes([IN_FLIGHT]) * count
                page.attempts[start:end] = array("I", [attempts + 1 for attempts in page.attempts[start:end]])
                claims = page.for_claims(end - 1)
                claims.claimed_at[start:end] = array("q", [now]) * count
                claims.ends_at[start:end] = array("q", [lease_until]) * count
                claims.nonce[start:end] = array("Q", [nonce]) * count
                claims.consumer[start:end] = [consumer] * count
        if lease_until:  # else a stream holds them
            self._deadlines.add_many(lease_until, seqs)
        self._counts[AVAILABLE] -= len(record.seqs)
        self._counts[IN_FLIGHT] += len(record.seqs)
        self._tidy()

    def _pop(self, record: Pop) -> None:
        for seq in record.seqs:
            page, at = self._rows[seq]
            page.attempts[at] += 1
            if self.settings.keep_done != 0:
                claims = page.for_claims(at)
                claims.claimed_at[at] = record.at
                claims.consumer[at] = record.consumer
            self._finish(seq, page, at, record.at)
        self._tidy()

    def _ack(self, record: Ack) -> None:
        runs = self._rows.runs(record.seqs) if self.settings.keep_done == 0 else None
        if runs is not None:
            nonces: list[int] = []
            for page, start, end in runs:
                nonces.extend(page.for_claims(end - 1).nonce[start:end])
            self._drop_runs(record.seqs, runs)
            self._receipts.add(record.seqs, nonces, ACKED, record.at)
            self._tidy()
            return
        self._settle(record, ACKED, lambda seq, page, at: self._finish(seq, page, at, record.at))

    def _fail(self, record: Fail) -> None:
        def end_attempt(seq: int, page: Page, at: int) -> None:
            self._end_attempt(seq, page, at, record.at, record.visible_at, record.reason)

        self._settle(record, FAILED_ATTEMPT, end_attempt)

    def _release(self, record: Release) -> None:
        def give_back(seq: int, page: Page, at: int) -> None:
            self._remember(seq, page, at, record.at, "released", None)
            self._come_back(seq, page, at, record.at, record.at)

        self._settle(record, RELEASED, give_back)

    def _settle(
        self, record: Ack | Fail | Release, outcome: int, change: Callable[[int, Page, int], None]
    ) -> None:
        nonces = []
        for seq in record.seqs:
            page, at = self._rows[seq]
            nonces.append(page.for_claims(at).nonce[at])
            change(seq, page, at)
        self._receipts.add(record.seqs, nonces, outcome, record.at)
        self._tidy()

    def _extend(self, record: Extend) -> None:
        for seq in record.seqs:
            page, at = self._rows[seq]
            page.for_claims(at).ends_at[at] = record.lease_until
            self._deadlines.add(record.lease_until, seq)
        self._tidy()

    def _remove(self, record: Remove) -> None:
        for seq in record.seqs:
            self._drop(seq, *self._rows[seq])
        self._tidy()

    def _redrive(self, record: Redrive) -> None:
        for seq in record.seqs:
            page, at = self._rows[seq]
            page.attempts[at] = 0
            page.for_claims(at).reason[at] = None
            self._come_back(seq, page, at, record.at, record.at)
        self._tidy()

    def _update(self, record: Update) -> None:
        before = self.settings.keep_done
        self.use(record.settings)
        if record.settings.keep_done != before:
            self._keep_done_anew(record.at)

    def _keep_done_anew(self, now: int) -> None:
        """Done messages stay as long as the settings now say; what has been there for longer goes at once."""
        for seq in list(self._rows.with_state(DONE)):
            page, at = self._rows[seq]
            due = self._due(page, at)
            if self.settings.keep_done == 0 or due <= now:
                self._drop(seq, page, at)
            elif due not in (NEVER, page.expires_at[at]):
                self._deadlines.add(due, seq)
        self._tidy()

    def _restore(self, record: Restore) -> None:
        _, first, states, attempts, claimed_at, settled_at, consumers, reasons, history = record
        self._history.load(history)
        for number, state in enumerate(states):
            seq = first + number
            page, at = self._rows[seq]
            page.attempts[at] = attempts[number]
            if claimed_at[number] or reasons[number] is not None:
                claims = page.for_claims(at)
                claims.claimed_at[at], claims.ends_at[at] = claimed_at[number], settled_at[number]
                claims.consumer[at], claims.reason[at] = consumers[number], reasons[number]
            if state == DONE and self.settings.keep_done == 0:
                self._drop(seq, page, at)
            elif state in (DONE, FAILED):
                self._enter(seq, page, at, state)
        self._tidy()

    def _finish(self, seq: int, page: Page, at: int, now: int) -> None:
        """The message is done; it stays listed as long as the queue keeps such."""
        if self.settings.keep_done == 0:
            self._drop(seq, page, at)
            return
        claims = page.for_claims(at)
        claims.ends_at[at] = now
        claims.reason[at] = None
        self._enter(seq, page, at, DONE)

    def _end_attempt(self, seq: int, page: Page, at: int, now: int, visible_at: int, reason: str | None) -> None:
        """The attempt failed: once more, or never again."""
        claims = page.for_claims(at)
        claims.reason[at] = reason
        self._remember(seq, page, at, now, "failed", reason)
        if self.settings.max_attempts and page.attempts[at] >= self.settings.max_attempts:
            claims.ends_at[at] = now
            self.given_up += 1
            self._enter(seq, page, at, FAILED)
        else:
            self._come_back(seq, page, at, now, visible_at)

    def _remember(self, seq: int, page: Page, at: int, now: int, outcome: str, reason: str | None) -> None:
        """Keep how an attempt ended."""
        claims = page.for_claims(at)
        ended = Attempt(page.attempts[at], claims.consumer[at], claims.claimed_at[at], now, outcome, reason)
        self._history.add(seq, ended)

    def _come_back(self, seq: int, page: Page, at: int, now: int, visible_at: int) -> None:
        """The message waits at its old place among its equals, from visible_at on."""
        page.visible_at[at] = visible_at
        if page.claims is not None:
            page.for_claims(at).consumer[at] = None  # thousands of claims may have as many names
        self._enter(seq, page, at, DELAYED if visible_at > now else AVAILABLE)
        if visible_at <= now:
            self._ready.come_back(seq, page.priority[at])

    def _enter(self, seq: int, page: Page, at: int, state: int) -> None:
        self._counts[page.state[at]] -= 1
        self._counts[state] += 1
        page.state[at] = state
        due = self._due(page, at)
        if due not in (NEVER, page.expires_at[at]):
            self._deadlines.add(due, seq)

    def _drop(self, seq: int, page: Page, at: int) -> None:
        self._counts[page.state[at]] -= 1
        self._expiring -= page.expires_at[at] != 0
        self._rows.drop(seq, page, at)
        self._history.drop((seq,))
        self.gone.append(seq)

    def _drop_runs(self, seqs: list[int], runs: list[tuple[Page, int, int]]) -> None:
        """What _drop does to many messages in flight that lie together, by slices."""
        seq = seqs[0]
        for page, start, end in runs:
            self._expiring -= end - start - page.expires_at[start:end].count(0)
            self._rows.drop_run(seq, page, start, end)
            seq += end - start
        self._counts[IN_FLIGHT] -= len(seqs)
        self._history.drop(seqs)
        self.gone += seqs

    def _tidy(self) -> None:
        timed = self._counts[DELAYED] + self._counts[IN_FLIGHT] + self._counts[DONE] + self._expiring
        self._deadlines.tidy(timed, self._is_due)
        self._ready.tidy(self._counts[AVAILABLE])

    def _is_due(self, time: int, seq: int) -> bool:
        found = self._rows.find(seq)
        return found is not None and (self._due(*found) == time or found[0].expires_at[found[1]] == time)


_APPLY: dict[type[Record], Callable[[State, Any], None]] = {
    Put: State._put,
    Claim: State._claim,
    Pop: State._pop,
    Ack: State._ack,
    Fail: State._fail,
    Release: State._release,
    Extend: State._extend,
    Remove: State._remove,
    Redrive: State._redrive,
    Update: State._update,
    Restore: State._restore,
}
