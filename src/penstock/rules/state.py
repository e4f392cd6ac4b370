"""The state of a queue's messages, and how time changes it. How records change it is in effects.py.

The ledger decides and the state applies. The same records in the same order always give the same state: the
effects of time (a delay or a lease ends, a message expires) follow from the records.

A message is identified by its sequence number; its payload and headers are in the storage. Times are milliseconds
since the epoch, durations seconds. `now` must never decrease.

The rows hold everything about the messages. Counts, the order of claiming and deadlines are derived from them, and
are rebuilt when a page is loaded.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from penstock.contract.message import STATES, Attempt
from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.effects import EFFECTS
from penstock.rules.groups import Groups
from penstock.rules.order import NEVER, SEQ_BITS, SLACK, Deadlines, Ready
from penstock.rules.recent import History, RecentKeys, RecentReceipts
from penstock.rules.records import (
    BY_BACKOFF,
    Claim,
    Pop,
    Put,
    Record,
    Redrive,
    Remove,
    Restore,
    StreamRecord,
    Taken,
    Update,
)
from penstock.rules.rows import AVAILABLE, DELAYED, DONE, FAILED, GONE, IN_FLIGHT, PAGE, Page, Rows, is_constant
from penstock.rules.streams import Streams, StreamsSnapshot
from penstock.system.clock import at_least_one

LEASE_EXPIRED = "lease expired"
_LOOKED_AT = 1_000  # messages that waiting_since() examines


class StateSnapshot(NamedTuple):
    """A copy of the state at one moment; load_page and load restore it."""

    next_seq: int
    pages: list[tuple[int, Page]]  # with the sequence number of each page's first position
    receipts: RecentReceipts
    keys: list[tuple[int, str, int]]
    history: dict[int, bytes]
    streams: StreamsSnapshot = StreamsSnapshot()
    settings: Settings | None = None  # None: those of its creation
    taken: Sequence[Taken] = ()


class Witness:
    """Counts messages that expire, or leave `done` after keep_done."""

    expired = done = bytes = 0

    def see(self, size: int, expired: bool) -> None:
        """Count a message of that size: it expired, or was done for longer than keep_done."""
        self.expired += expired
        self.done += not expired
        self.bytes += size


class State:
    """The state of one queue."""

    def __init__(self, name: str, settings: Settings, first: int = 1) -> None:
        self.name = name
        self.settings = settings
        self.base = settings  # the settings before any recorded update
        self.updated = False  # whether updates were recorded
        self.rows = Rows(first)
        self.by_state = [0] * 6  # counts of messages
        self.ready = Ready(self.rows.is_available)
        self.groups = Groups(self.rows, self.ready)
        self.deadlines = Deadlines()
        self.keys = RecentKeys()
        self.receipts = RecentReceipts()
        self.history = History()
        self.streams = Streams(self)
        self.taken: list[Taken] = []  # by puts, of messages that may still be in the other queue
        self.gone: list[int] = []  # messages that no longer exist; the storage takes and clears the list
        self.changed: dict[int, None] | None = None  # messages whose state changed; None: not tracked
        self.witness: Witness | None = None
        self.advanced = 0  # the time of the last advance()
        self.expiring = 0  # messages with an expires_at
        # Counters for metrics.
        self.arrived = self.leases_expired = self.expired = self.given_up = 0

    def use(self, settings: Settings) -> None:
        """Replace the settings, without changing messages."""
        self.settings = settings
        self.updated = True

    @property
    def next_seq(self) -> int:
        """The number that the next new message gets."""
        return self.rows.next_seq

    def next_time(self) -> int | None:
        """The next time at which advance() may change something."""
        return self.deadlines.next()

    def available(self) -> int:
        """How many messages can be claimed."""
        return self.by_state[AVAILABLE] - self.groups.available + self.groups.open

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return dict(zip(STATES, self.by_state[1:], strict=True))

    def waiting_since(self) -> int | None:
        """The earliest visible_at of available messages, estimated from the first thousand by number.

        Some of those may have come back just now, but hardly all of them.
        """
        first = islice(self.rows.with_state(AVAILABLE), _LOOKED_AT)
        return min((page.visible_at[at] for page, at in map(self.rows.locate, first)), default=None)

    def peek(self, n: int) -> list[int]:
        """The messages that a claim would give next."""
        return self.ready.peek(n, self.available())

    def listed(self, state: str | None, first: int, n: int) -> list[int]:
        """Up to n messages in that state (None: in any) by ascending number, from number `first` on."""
        return list(islice(self.rows.with_state(None if state is None else STATES.index(state) + 1, first), n))

    def attempts(self, seq: int) -> list[Attempt]:
        """The attempts at a message, including one that runs or succeeded."""
        found = self.rows.find(seq)
        if found is None:
            return []
        page, at = found
        attempts = self.history.of(seq)
        if page.state[at] in (IN_FLIGHT, DONE):
            claims = page.for_claims(at)
            done = page.state[at] == DONE
            ended = (claims.ends_at[at], "acked") if done else (None, None)
            attempts.append(Attempt(page.attempts[at], claims.consumer[at], claims.claimed_at[at], *ended))
        return attempts

    def ended_attempts(self, seq: int) -> bytes:
        """The attempts at a message that have ended, packed."""
        return self.history.packed(seq)

    def parts(self, n: int) -> list[int]:
        total, seen = self.size(), 0
        ends: list[int] = []
        for first, page in self.pages():
            seen += page.live
            if seen * n >= (len(ends) + 1) * total and seen < total:
                ends.append(first + PAGE - 1)
        return [*ends, self.next_seq - 1] if total else []

    def waiting(self) -> int:
        """Counts of delayed, available and in-flight messages together (max_size)."""
        return self.by_state[DELAYED] + self.by_state[AVAILABLE] + self.by_state[IN_FLIGHT]

    def unsettled(self) -> int:
        """How many messages are not done."""
        return sum(self.by_state) - self.by_state[DONE]

    def size(self) -> int:
        """How many messages exist, in any state."""
        return sum(self.by_state)

    @property
    def stored(self) -> int:
        """Bytes of the bodies of all messages, and of batches that a stream may read again."""
        return self.rows.stored + self.streams.stored()

    def has(self, seq: int) -> bool:
        """Whether the message exists."""
        return self.rows.find(seq) is not None

    def due(self, page: Page, at: int) -> int:
        """The time at which the message changes by itself; NEVER if it does not."""
        state = page.state[at]
        due = NEVER
        if state == IN_FLIGHT:
            due = page.for_claims(at).ends_at[at]
            if not due:  # held by a stream: no lease end, no expiry
                return NEVER
        elif state == DELAYED:
            due = page.visible_at[at]
        elif state == DONE and self.settings.keep_done is not None:
            due = page.for_claims(at).ends_at[at] + at_least_one(self.settings.keep_done)
        expires_at = page.expires_at[at]
        return expires_at if 0 < expires_at < due else due

    # For storages: skipped numbers, places of bodies

    def skip_to(self, seq: int) -> None:
        """Leave out the numbers before seq."""
        self.rows.skip_to(max(seq, self.next_seq))

    def expire(self, seq: int, at: int) -> None:
        """Set or correct the time at which a message expires; 0 = never."""
        page, position = self.rows[seq]
        self.expiring += (at != 0) - (page.expires_at[position] != 0)
        page.expires_at[position] = at
        for time in {at, self.due(page, position)}:
            if 0 < time < NEVER:
                self.deadlines.add(time, seq)

    def move(
        self,
        first: int,
        positions: Sequence[int],
        places: Sequence[int],
        sizes: Sequence[int],
        crcs: Sequence[int],
        kept: tuple[str, int] | None = None,
    ) -> None:
        """Record new places of bodies, for messages that still exist; positions count from `first`.

        `kept` names the stream and batch whose settled messages were moved; None: messages of the queue.
        """
        if kept is None:
            found = [self.rows, *self.streams.kept_of_page(first // PAGE)]  # some may have been settled since
        else:
            rows = self.streams.kept(*kept)
            found = [] if rows is None else [rows]  # none: the stream has settled another batch since
        for rows in found:
            rows.move(first, positions, places, sizes, crcs)

    # Copies

    def pages(self) -> list[tuple[int, Page]]:
        """The pages (no copies), with the sequence number of each page's first position."""
        return [(first, page) for first, page in self.rows.pages() if page.live]

    def page(self, number: int) -> Page | None:
        """The page of that number, if it has messages."""
        page = self.rows.page(number)
        return page if page is not None and page.live else None

    def snapshot(self) -> StateSnapshot:
        """A copy of the whole state. It is quick: many columns, few objects."""
        pages = [(first, page.copy()) for first, page in self.pages()]
        copies = self.receipts.copy(), self.keys.dump(), self.history.dump(), self.streams.snapshot()
        return StateSnapshot(
            self.next_seq, pages, *copies, self.settings if self.updated else None, list(self.taken)
        )

    def load_page(self, first: int, page: Page) -> None:
        """Restore a page of a snapshot. Pages come in order, before any record."""
        lanes: dict[int, list[int]] = {}
        keys = page.keys()
        plain = page.positions is None and page.claims is None and page.groups is None
        plain = plain and page.expires_at[0] == 0 and is_constant(page.expires_at)
        plain = plain and page.state.count(AVAILABLE) == len(page.state)
        if plain and is_constant(page.priority):
            self.by_state[AVAILABLE] += len(page.state)
            self.ready.arrive(range(first, first + len(page.state)), page.priority[0])
            self.rows.adopt(first, page)
            return
        for at, state in enumerate(page.state):
            if not state:
                continue
            seq = first + keys[at]
            self.by_state[state] += 1
            group = page.group(at)
            if group is not None and state in (DELAYED, AVAILABLE, IN_FLIGHT):
                is_open = self.groups.join(group, seq, state)
            else:
                is_open = state == AVAILABLE
            if is_open:
                lanes.setdefault(page.priority[at], []).append(seq)
            if expires_at := page.expires_at[at]:
                self.deadlines.add(expires_at, seq)
                self.expiring += 1
            due = self.due(page, at)
            if due not in (NEVER, expires_at):
                self.deadlines.add(due, seq)
        for priority, arrived in lanes.items():
            self.ready.arrive(arrived, priority)
        self.rows.adopt(first, page)
        self.groups.loaded()

    def load(self, snapshot: StateSnapshot) -> None:
        """Restore a snapshot except its pages and streams."""
        self.rows.skip_to(max(snapshot.next_seq, self.next_seq))
        self.receipts = snapshot.receipts
        for end, key, seq in snapshot.keys:
            self.keys.load(end, key, seq)
        self.history.load(snapshot.history)

    # Records and time

    def replay(self, record: Record) -> None:
        """Apply a stored record; StoreCorrupt if it contradicts the records before it."""
        self.advance(record.at)
        if not self._follows(record):
            raise StoreCorrupt(
                f"the history of queue {self.name!r} contradicts itself: {type(record).__name__} at {record.at} "
                "does not follow from what was recorded before; records are missing, repeated or out of order"
            )
        if isinstance(record, Remove):
            self.streams.lose(record.seqs)
        self.apply(record)

    def apply(self, record: Record) -> None:
        """Apply a record."""
        if isinstance(record, StreamRecord):
            self.streams.apply(record)
        else:
            EFFECTS[type(record)](self, record)

    def _follows(self, record: Record) -> bool:
        """Whether a record can come next. Messages that it claims leave the order of claiming."""
        if isinstance(record, StreamRecord):
            return self.streams.follows(record)
        if isinstance(record, Update):
            return True
        if isinstance(record, Put):
            return record.first >= self.next_seq  # a store may have left numbers out
        if isinstance(record, Claim | Pop):
            return self.ready.take(len(record.seqs), self.available()) == record.seqs
        if isinstance(record, Restore):
            return record.first + len(record.states) == self.next_seq
        rows = [self.rows.find(seq) for seq in record.seqs]
        if isinstance(record, Remove):
            return None not in rows
        needed = FAILED if isinstance(record, Redrive) else IN_FLIGHT
        return all(row is not None and row[0].state[row[1]] == needed for row in rows)

    def advance(self, now: int) -> None:
        """Apply the effects of time up to now, in order: delays and leases end, messages expire."""
        due = self.deadlines.heap
        is_due = bool(due) and due[0] >> SEQ_BITS <= now
        if now == self.advanced and not is_due:
            return
        self.advanced = now
        if self.keys.ends:
            self.keys.forget(now)
        if self.receipts.minutes:
            self.receipts.forget(now)
        if is_due:
            while (event := self.deadlines.pop(now)) is not None:
                self._happen(*event)
            self.tidy()

    def _happen(self, time: int, seq: int) -> None:
        """Apply a deadline: the message expires, or its delay, lease or keep_done ends."""
        found = self.rows.find(seq)
        if found is None or self.due(*found) != time:
            return  # settled, extended or removed since
        page, at = found
        state = page.state[at]
        if page.expires_at[at] == time or state == DONE:
            self.expired += state != DONE
            if self.witness is not None:
                self.witness.see(page.size[at], page.expires_at[at] == time)
            self.drop(seq, page, at)
        elif state == DELAYED:
            self.come_back(seq, page, at, time, time)
        else:
            self.leases_expired += 1
            self.end_attempt(seq, page, at, time, BY_BACKOFF, LEASE_EXPIRED)

    # Changes of single messages

    def keep_done_anew(self, now: int) -> None:
        """Apply a changed keep_done: drop done messages that are older, set deadlines for the others."""
        for seq in list(self.rows.with_state(DONE)):
            page, at = self.rows[seq]
            due = self.due(page, at)
            if self.settings.keep_done == 0 or due <= now:
                self.drop(seq, page, at)
            elif due not in (NEVER, page.expires_at[at]):
                self.deadlines.add(due, seq)
        self.tidy()

    def finish(self, seq: int, page: Page, at: int, now: int) -> None:
        """The message is done, and stays listed for keep_done."""
        if self.settings.keep_done == 0:
            self.drop(seq, page, at)
            return
        claims = page.for_claims(at)
        claims.ends_at[at] = now
        claims.reason[at] = None
        self.enter(seq, page, at, DONE)

    def end_attempt(self, seq: int, page: Page, at: int, now: int, visible_at: int, reason: str | None) -> None:
        """The attempt failed: the message comes back, by the backoff or at a time; or it has failed for good."""
        claims = page.for_claims(at)
        claims.reason[at] = reason
        self.remember(seq, page, at, now, "failed", reason)
        if self.settings.max_attempts and page.attempts[at] >= self.settings.max_attempts:
            claims.ends_at[at] = now
            self.given_up += 1
            self.enter(seq, page, at, FAILED)
        else:
            if visible_at == BY_BACKOFF:
                delay = self.settings.backoff_of(page.attempts[at])
                visible_at = now + at_least_one(delay) if delay else now
            self.come_back(seq, page, at, now, visible_at)

    def remember(self, seq: int, page: Page, at: int, now: int, outcome: str, reason: str | None) -> None:
        """Add an ended attempt to the history."""
        claims = page.for_claims(at)
        ended = Attempt(page.attempts[at], claims.consumer[at], claims.claimed_at[at], now, outcome, reason)
        self.history.add(seq, ended)

    def come_back(self, seq: int, page: Page, at: int, now: int, visible_at: int) -> None:
        """The message waits again from visible_at on, at its old place."""
        page.visible_at[at] = visible_at
        if page.claims is not None:
            page.for_claims(at).consumer[at] = None  # frees the name: consumers may have thousands of them
        self.enter(seq, page, at, DELAYED if visible_at > now else AVAILABLE)
        if visible_at <= now and page.group(at) is None:  # else its group decides
            self.ready.come_back(seq, page.priority[at])

    def enter(self, seq: int, page: Page, at: int, state: int) -> None:
        """Change the state of a message, with counts and deadline."""
        before = page.state[at]
        self.by_state[before] -= 1
        self.by_state[state] += 1
        page.state[at] = state
        if page.groups is not None and (group := page.group(at)) is not None:
            self.groups.change(group, seq, before, state)
        due = self.due(page, at)
        if due not in (NEVER, page.expires_at[at]):
            self.deadlines.add(due, seq)
        if self.changed is not None:
            self.changed[seq] = None

    def drop(self, seq: int, page: Page, at: int) -> None:
        before, group = page.state[at], page.group(at)
        self.by_state[before] -= 1
        self.expiring -= page.expires_at[at] != 0
        self.rows.drop(seq, page, at)
        if group is not None:
            if before == IN_FLIGHT:
                self.groups.settle(group, seq)
            else:
                self.groups.change(group, seq, before, GONE)
        self.history.drop((seq,))
        self.gone.append(seq)
        if self.changed is not None:
            self.changed[seq] = None

    def drop_runs(self, seqs: list[int], runs: list[tuple[Page, int, int]]) -> None:
        """Drop many neighbouring messages in flight, by slices."""
        seq = seqs[0]
        for page, start, end in runs:
            self.expiring -= end - start - page.expires_at[start:end].count(0)
            groups = page.groups
            self.rows.drop_run(seq, page, start, end)
            for number, group in enumerate(groups[start:end] if groups is not None else (), seq):
                if group is not None:
                    self.groups.settle(group, number)
            seq += end - start
        self.by_state[IN_FLIGHT] -= len(seqs)
        self.history.drop(seqs)
        self.gone += seqs
        if self.changed is not None:
            self.changed |= dict.fromkeys(seqs)

    def tidy(self) -> None:
        """Remove stale entries from deadlines and the order of claiming, once they are the majority."""
        timed = self.by_state[DELAYED] + self.by_state[IN_FLIGHT] + self.by_state[DONE] + self.expiring
        if len(self.deadlines.heap) > 2 * timed + SLACK:
            self.deadlines.sweep(self._is_due)
        if self.ready.entries > 2 * self.available() + SLACK:
            self.ready.rebuild()

    def _is_due(self, time: int, seq: int) -> bool:
        found = self.rows.find(seq)
        return found is not None and (self.due(*found) == time or found[0].expires_at[found[1]] == time)
