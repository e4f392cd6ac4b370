"""A live queue: every operation on it, one at a time, under its lock.

decide() returns at once, with the operation's result and a record number. The caller may see the result after
commit() of that number. A thread commits and waits; a server has one thread commit for all requests of a moment.

Messages that become available, by a put or by the end of a lease, go to the waiting consumers in their order,
before any other operation can take them. No consumer is woken in vain, and none overtakes.

To add an operation: a method here that decides it, and its line in STEPS (or LOOKS, if it changes nothing).
"""

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from penstock.contract import operations
from penstock.contract.backend import Reading
from penstock.contract.message import Attempt, Entry, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import AttemptPage, Figures, Held, attempt_page
from penstock.contract.settings import Settings
from penstock.engine.storage import Storage
from penstock.engine.views import NOTHING, Taken, as_seen, claimed, fill, parse_ids, parse_receipts
from penstock.errors import LeaseExpired, PenstockError, StoreClosed
from penstock.rules import records
from penstock.rules.ledger import Ledger, Receipt
from penstock.rules.moves import visible_after_move
from penstock.rules.rows import FAILED
from penstock.system.clock import Alarm, Clock
from penstock.system.threads import Lock

Result = TypeVar("Result")
_Settling: TypeAlias = Callable[[list[Receipt]], tuple[records.Record | None, list[Receipt]]]
Headers: TypeAlias = Callable[[Mapping[str, str], str | None], dict[str, str]]  # from headers and the reason
_CHUNK = 256  # messages that are listed under one hold of the lock
_READ = 4 << 20  # bytes of them that are read at once

# What happens to messages, by the record that says so.
EVENTS: dict[type, str] = {
    records.Claim: "claimed",
    records.Pop: "popped",
    records.Ack: "acked",
    records.Fail: "failed",
    records.Release: "released",
    records.Extend: "extended",
    records.Remove: "removed",
    records.Redrive: "redriven",
}


class Waiter:
    """A waiting consumer. `served` is called under the lock once it has messages or an error."""

    __slots__ = ("error", "operation", "served", "taken", "written")

    def __init__(self, operation: Operation[Any], served: Callable[[], object]) -> None:
        self.operation = operation  # one that takes messages
        self.served = served
        self.taken = NOTHING
        self.written = 0
        self.error: Exception | None = None


class LiveQueue:
    """One queue, safe for threads."""

    def __init__(self, ledger: Ledger, storage: Storage, clock: Clock, alarm: Alarm, lock: Lock) -> None:
        self.name = ledger.name
        self.lock = lock
        self.commit = storage.commit  # returns once everything written up to a number is on stable storage
        self._ledger = ledger
        self._state = ledger.state
        self._storage = storage
        self._clock = clock
        self._alarm = alarm
        self._armed: int | None = None
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None
        self._written: dict[type, int] = defaultdict(int)  # messages, by the record that was written of them
        self._moved_in = self._moved_out = 0  # messages that are counted as put and as removed, too
        self._before = self._counted()
        self._waited: tuple[object, int | None] = None, None  # as what the longest wait was searched for

    @property
    def settings(self) -> Settings:
        """The queue's current settings."""
        return self._ledger.settings

    @property
    def next_seq(self) -> int:
        """A number above that of every message that was ever here."""
        return self._state.next_seq

    @property
    def durable(self) -> int:
        """Everything written up to this number is on stable storage."""
        return self._storage.durable

    @property
    def in_line(self) -> int:
        """How many consumers are waiting."""
        return len(self._line)

    # One step at a time

    def decide(self, operation: Operation[Any]) -> tuple[Any, int]:
        """Carry out an operation of STEPS; its result, and the number to commit before the caller sees the result.

        An operation that takes messages results in Taken: nothing, or messages to be handed out. A result that is
        an exception is raised after the commit.
        """
        return self.run(STEPS[type(operation)], self, operation)

    def run(self, step: Callable[..., Result], *arguments: Any) -> tuple[Result, int]:
        """Call a step under the lock, with the time as its last argument; its result, and the number to commit.

        A rule's refusal has changed nothing. Anything else that breaks in here, a Ctrl-C included, may have left
        the state half changed, so the queue stops.
        """
        with self.lock:
            try:
                if self._stopped is not None:
                    raise self._stopped()
                now = self._clock.now()
                self._state.advance(now)
                if self._line:  # waiting consumers come first
                    self._serve(now)
                    if self._stopped is not None:  # by an error in serving
                        raise self._stopped()
                result = step(*arguments, now)
                if self._line:
                    self._serve(now)
                if self._state.gone:
                    self._drop_gone()
                return result, self._storage.written
            except PenstockError:
                if self._stopped is None:
                    self._drop_gone()  # messages that have expired meanwhile
                raise
            except BaseException as error:
                self._break(error)
                raise

    def write(self, record: records.Record, entries: Sequence[Entry] = ()) -> None:
        """Write the record of a change that the ledger has made."""
        try:
            self._storage.write(record, entries)
            kind = type(record)
            if kind in EVENTS:
                self._written[kind] += len(record.seqs)  # type: ignore[union-attr]
            elif kind is not records.Put:
                self._count(record)
        except PenstockError as error:  # no refusal: the ledger has changed already
            self._break(error)
            raise

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, and every waiting consumer, gets this error."""
        with self.lock:
            self._stopped = error
            for waiter in self._line:
                waiter.error = error()
                waiter.served()
            self._line.clear()
            self._alarm.cancel(self._ring)

    def tend(self) -> None:
        """End leases, delays and retentions that are over in an idle queue; then its journal may be packed."""
        due = self._state.next_time()
        if due is None or self._stopped is not None or due > self._clock.now():
            return
        with suppress(PenstockError):  # stopped meanwhile
            self.run(_nothing)
            # A journal otherwise checks its size after commits only.
            look = getattr(self._storage, "on_commit", None)
            if look is not None:
                look()

    def _drop_gone(self) -> None:
        self._storage.drop(self._state.gone)
        self._state.gone.clear()

    def _break(self, error: BaseException) -> None:
        name, cause = self.name, type(error).__name__

        def broken() -> StoreClosed:
            return StoreClosed(
                f"queue {name!r} was stopped by an error in the middle of a change ({cause}), so that its state "
                "cannot be trusted: close the store and open it again"
            )

        self._storage.refuse(broken)
        self.stop(broken)

    def _count(self, record: records.Record) -> None:
        """Count a stream's claims and settlements as a consumer's."""
        if isinstance(record, records.StreamClaim):
            self._written[records.Claim] += len(record.seqs)
        elif isinstance(record, records.StreamSettle):
            settled = self._ledger.streams.kept(record.stream, record.batch)
            self._written[records.Ack] += settled.live() if settled is not None else 0

    def _counted(self) -> tuple[int, int, int, int]:
        """The ledger's counters, its replay included."""
        state = self._state
        return state.arrived, state.leases_expired, state.expired, state.given_up

    # Waiting consumers

    def stand_in_line(self, waiter: Waiter) -> None:
        """Add a consumer to the line."""
        self.run(lambda now: self._line.setdefault(waiter))

    def leave_line(self, waiter: Waiter) -> None:
        """End a consumer's wait; messages that are available by now are still its own."""
        with self.lock:
            if waiter in self._line:
                self.run(_nothing)  # serves messages that became available
                self._line.pop(waiter, None)

    def step_out(self, waiter: Waiter) -> None:
        """End a consumer's wait without messages."""
        with self.lock:
            self._line.pop(waiter, None)

    def abandon(self, waiter: Waiter) -> None:
        """End an interrupted consumer's wait, release its claims. A popped message is gone, as after a crash."""
        self.step_out(waiter)
        self.give_back(waiter.taken.receipts)

    def _serve(self, now: int) -> None:
        """Give available messages to waiting consumers, first come, first served."""
        while self._line and self._state.available():
            waiter = next(iter(self._line))
            try:
                waiter.taken = STEPS[type(waiter.operation)](self, waiter.operation, now)
            except Exception as error:  # an error of the consumer's operation, not of the caller's
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
        due = self._state.next_time()
        if due is not None and (self._armed is None or due < self._armed):
            self._armed = due
            self._alarm.set(self._ring, due)

    def _ring(self) -> None:
        """A delay or a lease ends while consumers wait."""
        with self.lock:
            self._armed = None
            if self._stopped is None:
                self.run(_nothing)

    # Operations that put

    def check(self, entry: Entry) -> None:
        """Raise what a put would raise."""

        def check(now: int) -> None:
            self._ledger.check([entry], now)
            self._storage.make_room([entry])

        self.run(check)

    def _put(self, operation: operations.Put, now: int) -> list[str]:
        self._storage.make_room(operation.entries)
        seqs, new, record = self._ledger.put(operation.entries, now)
        if new:
            self.write(record, new)
        return list(map(str, seqs))

    # Operations that take

    def _claim(self, operation: operations.Claim, now: int) -> Taken | PenstockError:
        if not operation.ack:
            return self._claimed(operation, now)
        lost = self._lost(operation.ack, lambda held: self._ledger.ack(held, now))
        if lost:
            return LeaseExpired(self.name, lost)
        try:
            return self._claimed(operation, now)
        except PenstockError as refusal:  # raised after the commit of the acks
            if self._stopped is not None:
                raise
            return refusal

    def _claimed(self, operation: operations.Claim, now: int) -> Taken:
        available = self._state.available()
        if not available:
            return NOTHING
        count = min(operation.n, available)
        if operation.most is not None and count > 1:
            count = self.fitting(self._state.peek(count), operation.most)
        self._storage.make_room(claims=count)
        nonce = int.from_bytes(os.urandom(8))
        record = self._ledger.claim(count, operation.lease, operation.consumer or "", nonce, now)
        if record is None:
            return NOTHING
        self.write(record)
        return claimed(record, self._ledger, self._storage)

    def _pop(self, operation: operations.Pop, now: int) -> Taken:
        seqs = self._state.peek(1)
        if not seqs:
            return NOTHING
        self._storage.make_room(claims=1)
        message = as_seen(seqs[0], self._ledger)
        # Read before the pop is recorded, so that a message that cannot be read is not lost.
        fill([message], self._storage.read(self._storage.find(seqs)))
        consumer = operation.consumer or ""
        record = self._ledger.pop(consumer, now)
        if record is not None:
            self.write(record)
        message.attempts += 1
        message.state, message.consumer = "done", consumer
        message.claimed_at = message.settled_at = now
        message.reason = None
        return Taken(1, (), lambda bodies: [message], [])

    # Messages that move to another queue (moves.py), whose lock the caller holds

    def failed(self) -> int:
        """How many messages had failed at the last look."""
        return self._state.by_state[FAILED]

    def next_time(self) -> int | None:
        """The next time at which something may change by itself."""
        return self._state.next_time()

    def is_due(self) -> bool:
        """Whether time may have changed something since the last look."""
        due = self._state.next_time()
        return due is not None and due <= self._clock.now()

    def seqs_in(self, state: int) -> list[int]:
        """The messages in a state, by number."""
        return self.run(lambda now: list(self._state.rows.with_state(state)))[0]

    def state_of(self, seq: int) -> int | None:
        """The state of a message; None: it does not exist."""
        found = self._state.rows.find(seq)
        return None if found is None else found[0].state[found[1]]

    def room(self) -> int:
        """How many more messages max_size allows."""
        return self.run(lambda now: self._ledger.room())[0]

    def check_room(self, more: int) -> None:
        """Refuse more messages than max_size allows; QueueFull."""
        self.run(lambda now: self._ledger.check_room(more))

    def headers(self, seqs: Sequence[int], name: str) -> list[str | None]:
        """A header of each message."""
        return [body[1].get(name) for body in self._storage.read(self._storage.find(seqs))]

    def take_over(self, source: "LiveQueue", seqs: Sequence[int], headers: Headers) -> int:
        """Put messages of another queue; the number to commit."""
        rows, bodies = source._state.rows, source._storage.read(source._storage.find(seqs))

        def take(now: int) -> None:
            entries, visible, expires = [], [], []
            for seq, (payload, given, created_at, _) in zip(seqs, bodies, strict=True):
                page, at = rows.locate(seq)
                reason = None if page.claims is None else page.for_claims(at).reason[at]
                made, group = headers(given, reason) or None, page.group(at)
                entries.append(Entry(payload, page.priority[at], made, created_at=created_at, group=group))
                visible.append(visible_after_move(page.state[at], page.visible_at[at], now))
                expires.append(page.expires_at[at])
            self._storage.make_room(entries)
            taken = records.Taken(source.name, list(seqs))
            self.write(self._ledger.take_over(entries, visible, expires, taken, now), entries)
            self._moved_in += len(entries)

        return self.run(take)[1]

    def give_up(self, seqs: Sequence[int]) -> int:
        """Remove messages that another queue has taken; the number to commit."""

        def leave(now: int) -> None:
            self._moved_out += self._changed(self._ledger.remove(seqs, now))

        return self.run(leave)[1]

    def taken(self) -> list[records.Taken]:
        """What puts have taken from other queues, and may still be there."""
        return list(self._state.taken)

    def forget_taken(self, queue: str, seqs: Sequence[int]) -> None:
        """Messages have left the queue that they were taken from, for good."""
        with self.lock:
            self._state.taken = [each for each in self._state.taken if each != (queue, list(seqs))]

    def fitting(self, seqs: Sequence[int], most: int) -> int:
        """How many of these messages fit into so many bytes; at least one."""
        fitting = bisect_right(list(accumulate(self._storage.sizes(seqs))), most)
        return fitting or min(1, len(seqs))

    def at_hand(self, taken: Taken) -> Taken | None:
        """Taken messages with their bodies in memory; None if hand_out() has to wait for the disk."""
        places = self._storage.at_hand(taken.places)
        return None if places is None else taken._replace(places=places)

    def hand_out(self, taken: Taken) -> list[Message]:
        """The messages that a consumer took, with their bodies, after the commit; released if unreadable."""
        try:
            return taken.build(self._storage.read(taken.places))
        except BaseException:
            self.give_back(taken.receipts)
            raise

    def give_back(self, receipts: list[str]) -> None:
        """Release messages that never reached their consumer."""
        if receipts:
            with suppress(PenstockError):  # the lease may be over, the queue stopped
                self.commit(self.decide(operations.Release(self.name, receipts))[1])

    # Operations that settle

    def _ack(self, operation: operations.Ack, now: int) -> LeaseExpired | None:
        return self._settled(operation, lambda held: self._ledger.ack(held, now))

    def _fail(self, operation: operations.Fail, now: int) -> LeaseExpired | None:
        delay, reason = operation.delay, operation.reason
        return self._settled(operation, lambda held: self._ledger.fail(held, delay, reason, now))

    def _release(self, operation: operations.Release, now: int) -> LeaseExpired | None:
        return self._settled(operation, lambda held: self._ledger.release(held, now))

    def _extend(self, operation: operations.Extend, now: int) -> Held:
        def extend(held: list[Receipt]) -> tuple[records.Record | None, list[Receipt]]:
            self._storage.make_room(claims=len(held))
            return self._ledger.extend(held, operation.lease, now)

        lost = self._lost(operation.receipts, extend)
        return Held(self._ledger.lease_end(operation.lease, now), lost)

    def _settled(
        self, operation: operations.Ack | operations.Fail | operations.Release, settle: _Settling
    ) -> LeaseExpired | None:
        lost = self._lost(operation.receipts, settle)
        return LeaseExpired(self.name, lost) if lost else None

    def _lost(self, receipts: Sequence[str], settle: _Settling) -> list[str]:
        """Settle messages; the receipts whose leases were lost."""
        parsed = parse_receipts(receipts)
        record, lost = settle([receipt for receipt in parsed if receipt is not None])
        if record is not None:
            self.write(record)
        if not lost and None not in parsed:
            return []
        missing = {None, *lost}
        named = dict(zip(receipts, parsed, strict=True))
        return [text for text, receipt in named.items() if receipt in missing]

    # Operations on messages in any state

    def _remove(self, operation: operations.Remove, now: int) -> int:
        return self._changed(self._ledger.remove(parse_ids(operation.ids), now))

    def _revoke(self, operation: operations.Revoke, now: int) -> int:
        return self._changed(self._ledger.revoke(parse_ids(operation.ids), now))

    def _redrive(self, operation: operations.Redrive, now: int) -> int:
        ids = operation.ids
        return self._changed(self._ledger.redrive(None if ids is None else parse_ids(ids), now))

    def _purge(self, operation: operations.Purge, now: int) -> int:
        return self._changed(self._ledger.purge(now))

    def update(self, changes: Mapping[str, Any], check: Callable[[Settings], None]) -> tuple[Settings, int]:
        """Change settings, if the store can keep them; all of them as they are then."""

        def update(now: int) -> Settings:
            settings = self.settings.changed(changes)
            check(settings)
            self._storage.make_room(settings=settings)
            record = self._ledger.update(settings, now)
            if record is not None:
                self.write(record)
            return self.settings

        return self.run(update)

    def _changed(self, record: records.Remove | records.Release | records.Redrive | None) -> int:
        if record is None:
            return 0
        self.write(record)
        return len(record.seqs)

    # Looks, which change nothing

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return self.run(lambda now: self._state.counts())[0]

    def reading(self) -> Reading:
        """Counts and counters as they are, without the lock: those of idle queues wait for tend()."""
        state, written = self._state, self._written
        before = self._before
        flows = (
            state.arrived - before[0] - self._moved_in,
            written.get(records.Ack, 0) + written.get(records.Pop, 0),
            written.get(records.Fail, 0),
            state.leases_expired - before[1],
            state.given_up - before[3],
        )
        return Reading(
            self.name,
            self._stopped is None,
            tuple(state.by_state[1:]),
            flows,
            len(self._line),
            self.settings.max_size,
        )

    def waiting_seconds(self) -> float:
        """For how long the available message has waited that has waited longest."""

        def look(now: int) -> float:
            since = self._waiting_since()
            return 0 if since is None else max(now - since, 0) / 1000

        return self.run(look)[0]

    def _waiting_since(self) -> int | None:
        """The state's, searched for again only if something has changed since the last time."""
        state = self._state
        asked = state.next_seq, sum(self._written.values()), state.leases_expired, tuple(state.by_state)
        if self._waited[0] != asked:
            self._waited = asked, state.waiting_since()
        return self._waited[1]

    def figures(self) -> Figures:
        """The queue's figures since the store was opened."""

        def look(now: int) -> Figures:
            since = self._waiting_since()
            put, *by_time = [now - then for now, then in zip(self._counted(), self._before, strict=True)]
            written = {name: self._written.get(kind, 0) for kind, name in EVENTS.items()}
            events = {"put": put - self._moved_in, **written, "removed": written["removed"] - self._moved_out}
            events |= {"moved_in": self._moved_in, "moved_out": self._moved_out}
            waiting = 0 if since is None else max(now - since, 0) / 1000
            return Figures(self.name, True, self._state.counts(), waiting, len(self._line), events, *by_time)

        try:
            return self.run(look)[0]
        except PenstockError:
            return Figures(self.name, False, {}, 0, 0, {}, 0, 0, 0)

    def _look_at_attempts(self, operation: operations.Attempts) -> list[Attempt]:
        seqs = parse_ids([operation.id])
        return self.run(lambda now: self._state.attempts(seqs[0]))[0] if seqs else []

    def _look_for_parts(self, operation: operations.Parts) -> list[str]:
        return list(map(str, self.run(lambda now: self._state.parts(operation.n))[0]))

    def _peek(self, operation: operations.Peek) -> Iterator[Message]:
        n, skip = operation.n, operation.skip
        seqs = self.run(lambda now: self._state.peek(n + skip)[skip:])[0]
        for start in range(0, len(seqs), _CHUNK):
            yield from self._messages(seqs[start : start + _CHUNK], "available")

    def _list_messages(self, operation: operations.Messages) -> Iterator[Message]:
        state, bodies = operation.state, operation.bodies
        for seqs in self._chunks(state, operation.after, operation.until):
            yield from self._messages(seqs, state, bodies)

    def _look_at_message(self, operation: operations.OneMessage) -> Message | None:
        return next(self._messages(parse_ids([operation.id]), None), None)

    def _list_attempts(self, operation: operations.AllAttempts) -> AttemptPage:
        def look(seqs: Sequence[int]) -> list[tuple[str, list[Attempt]]]:
            return self.run(lambda now: [(str(seq), self._state.attempts(seq)) for seq in seqs])[0]

        chunks = self._chunks(None, operation.after, operation.until)
        return attempt_page(each for seqs in chunks for each in look(seqs))

    def _chunks(self, state: str | None, after: str, until: str) -> Iterator[list[int]]:
        """The numbers of messages in that state, in chunks."""
        first = next((seq + 1 for seq in parse_ids([after])), 0)
        last = next(iter(parse_ids([until])), None)
        while seqs := self._list(state, first, last):
            yield seqs
            first = seqs[-1] + 1

    def _list(self, state: str | None, first: int, last: int | None) -> list[int]:
        seqs = self.run(lambda now: self._state.listed(state, first, _CHUNK))[0]
        return seqs if last is None else [seq for seq in seqs if seq <= last]

    def _messages(self, seqs: Sequence[int], state: str | None, bodies: bool = True) -> Iterator[Message]:
        """The messages that still exist and are in that state, read a few megabytes at a time.

        Without bodies they have neither payload nor headers nor times of their creation.
        """

        def look(now: int) -> tuple[list[Message], Any, Sequence[int]]:
            there = [seq for seq in seqs if self._state.has(seq)]
            if not bodies:
                return [as_seen(seq, self._ledger) for seq in there], None, []
            fitting = self.fitting(there, _READ)
            now_read = there[:fitting]
            return [as_seen(seq, self._ledger) for seq in now_read], self._storage.find(now_read), there[fitting:]

        while seqs:
            messages, places, seqs = self.run(look)[0]
            filled = fill(messages, self._storage.read(places)) if bodies else messages
            yield from [message for message in filled if state in (None, message.state)]


def _nothing(now: int) -> None:
    """A step that changes nothing: run() itself ends leases and delays, and serves consumers."""


# Operations that are decided in one step under the lock, and committed before the caller sees the result.
STEPS: dict[type[Operation[Any]], Callable[[LiveQueue, Any, int], Any]] = {
    operations.Put: LiveQueue._put,
    operations.Claim: LiveQueue._claim,
    operations.Pop: LiveQueue._pop,
    operations.Ack: LiveQueue._ack,
    operations.Fail: LiveQueue._fail,
    operations.Release: LiveQueue._release,
    operations.Extend: LiveQueue._extend,
    operations.Remove: LiveQueue._remove,
    operations.Revoke: LiveQueue._revoke,
    operations.Redrive: LiveQueue._redrive,
    operations.Purge: LiveQueue._purge,
}
# Operations that change nothing: no commit.
LOOKS: dict[type[Operation[Any]], Callable[[LiveQueue, Any], Any]] = {
    operations.Lookup: lambda live, operation: live.settings,
    operations.Counts: lambda live, operation: live.counts(),
    operations.Attempts: LiveQueue._look_at_attempts,
    operations.Parts: LiveQueue._look_for_parts,
    operations.Peek: LiveQueue._peek,
    operations.Messages: LiveQueue._list_messages,
    operations.OneMessage: LiveQueue._look_at_message,
    operations.AllAttempts: LiveQueue._list_attempts,
}
