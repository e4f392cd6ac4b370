"""What records change in the state of a queue: one function for each type of record, except those of streams."""

from array import array
from collections.abc import Callable, Sequence
from sys import intern
from typing import TYPE_CHECKING, Any

from penstock.rules.order import NEVER
from penstock.rules.recent import ACKED, FAILED_ATTEMPT, RELEASED
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
    Update,
)
from penstock.rules.rows import AVAILABLE, DELAYED, DONE, FAILED, GONE, IN_FLIGHT, MANY, Page

if TYPE_CHECKING:
    from penstock.rules.state import State


def put(state: "State", record: Put) -> None:
    """Add new messages."""
    count = len(record.priority)
    if record.taken is not None:
        state.taken.append(record.taken)
    if count == 1:
        put_one(state, record)
        return
    if not count:
        return
    state.arrived += count
    delayed = max(record.visible_at) > record.at
    states = (
        bytes(DELAYED if at > record.at else AVAILABLE for at in record.visible_at)
        if delayed
        else bytes([AVAILABLE]) * count
    )
    seqs = range(record.first, record.first + count)
    if record.first > state.next_seq:
        state.rows.skip_to(record.first)
    groups = [name if name is None else intern(name) for name in record.groups]  # one text for all its messages
    state.rows.append(states, record.priority, record.visible_at, record.expires_at, groups)
    if groups:
        _arrive_in_groups(state, seqs, states, record.priority, groups)
    else:
        _arrive(state, seqs, states, record.priority)
    _add_deadlines(state, seqs, record.visible_at, record.expires_at, record.at)
    for key, seq in record.keys.items():
        state.keys.add(key, seq, record.at)


def _arrive_in_groups(
    state: "State", seqs: range, states: bytes, priorities: Sequence[int], groups: Sequence[str | None]
) -> None:
    state.by_state[AVAILABLE] += states.count(AVAILABLE)
    state.by_state[DELAYED] += states.count(DELAYED)
    lanes: dict[int, list[int]] = {}
    for seq, priority, entered, group in zip(seqs, priorities, states, groups, strict=True):
        if entered == AVAILABLE if group is None else state.groups.join(group, seq, entered):
            lanes.setdefault(priority, []).append(seq)
    for priority, arrived in lanes.items():
        state.ready.arrive(arrived, priority)


def admit(
    state: "State",
    seqs: Sequence[int],
    priority: Sequence[int],
    visible_at: Sequence[int],
    expires_at: Sequence[int],
    sizes: Sequence[int],
    crcs: Sequence[int],
    now: int,
) -> None:
    """Add messages that have ascending numbers already, above all others."""
    states = bytes(DELAYED if at > now else AVAILABLE for at in visible_at)
    state.arrived += len(seqs)
    state.rows.append_spread(seqs, states, priority, visible_at, expires_at, sizes, crcs)
    _arrive(state, seqs, states, priority)
    _add_deadlines(state, seqs, visible_at, expires_at, now)


def _arrive(state: "State", seqs: Sequence[int], states: bytes, priorities: Sequence[int]) -> None:
    """Count new messages without groups, and line up those that are available."""
    state.by_state[AVAILABLE] += states.count(AVAILABLE)
    state.by_state[DELAYED] += states.count(DELAYED)
    if DELAYED not in states and min(priorities) == max(priorities):
        state.ready.arrive(seqs, priorities[0])
        return
    lanes: dict[int, list[int]] = {}
    for seq, priority, entered in zip(seqs, priorities, states, strict=True):
        if entered == AVAILABLE:
            lanes.setdefault(priority, []).append(seq)
    for priority, arrived in lanes.items():
        state.ready.arrive(arrived, priority)


def _add_deadlines(
    state: "State", seqs: Sequence[int], visible_at: Sequence[int], expires_at: Sequence[int], now: int
) -> None:
    if max(visible_at) <= now and not any(expires_at):
        return
    for seq, visible, expires in zip(seqs, visible_at, expires_at, strict=True):
        if expires:  # stays in the heap for the whole life of the message
            state.deadlines.add(expires, seq)
            state.expiring += 1
        if now < visible < (expires or NEVER):
            state.deadlines.add(visible, seq)


def put_one(state: "State", record: Put) -> None:
    """Add one message."""
    now, seq, (priority,), (visible_at,), (expires_at,), keys, groups, _ = record
    late = seq < state.rows.next_seq  # a skipped number: some storages number messages themselves
    if seq > state.rows.next_seq:
        state.rows.skip_to(seq)
    entered = DELAYED if visible_at > now else AVAILABLE
    state.arrived += 1
    group = intern(groups[0]) if groups and groups[0] is not None else None
    if late:
        state.rows.insert(seq, entered, priority, visible_at, expires_at, group)
    elif group is not None:
        state.rows.append(bytes([entered]), [priority], [visible_at], [expires_at], [group])
    else:
        state.rows.append_one(entered, priority, visible_at, expires_at)
    state.by_state[entered] += 1
    is_open = entered == AVAILABLE
    if group is not None:
        if late:
            state.groups.change(group, seq, GONE, entered)
            is_open = False
        else:
            is_open = state.groups.join(group, seq, entered)
    if is_open:
        if late:
            state.ready.come_back(seq, priority)
        else:
            state.ready.arrive((seq,), priority)
    elif entered == DELAYED and visible_at < (expires_at or NEVER):
        state.deadlines.add(visible_at, seq)
    if expires_at:  # stays in the heap for the whole life of the message
        state.deadlines.add(expires_at, seq)
        state.expiring += 1
    for key in keys:
        state.keys.add(key, seq, now)


def claim(state: "State", record: Claim) -> None:
    """Give messages to a consumer."""
    now, seqs, lease_until, consumer, nonce = record
    runs = state.rows.runs(seqs) if len(seqs) >= MANY else None
    if runs is None:
        for seq in seqs:
            page, at = state.rows[seq]
            page.state[at] = IN_FLIGHT
            page.attempts[at] += 1
            claims = page.for_claims(at)
            claims.claimed_at[at] = now
            claims.ends_at[at] = lease_until
            claims.nonce[at] = nonce
            claims.consumer[at] = consumer
            if page.groups is not None and (group := page.group(at)) is not None:
                state.groups.take(group)
    else:  # neighbours: slices instead of single rows
        for page, start, end in runs:
            count = end - start
            page.state[start:end] = bytes([IN_FLIGHT]) * count
            page.attempts[start:end] = array("I", [attempts + 1 for attempts in page.attempts[start:end]])
            claims = page.for_claims(end - 1)
            claims.claimed_at[start:end] = array("q", [now]) * count
            claims.ends_at[start:end] = array("q", [lease_until]) * count
            claims.nonce[start:end] = array("Q", [nonce]) * count
            claims.consumer[start:end] = [consumer] * count
            if page.groups is not None:
                for group in filter(None, page.groups[start:end]):
                    state.groups.take(group)
    if lease_until:  # 0: held by a stream, without an end
        if len(seqs) == 1:
            state.deadlines.add(lease_until, seqs[0])
        else:
            state.deadlines.add_many(lease_until, seqs)
    state.by_state[AVAILABLE] -= len(seqs)
    state.by_state[IN_FLIGHT] += len(seqs)
    state.tidy()


def pop(state: "State", record: Pop) -> None:
    """Give messages to a consumer and finish them at once."""
    for seq in record.seqs:
        page, at = state.rows[seq]
        page.attempts[at] += 1
        if state.settings.keep_done != 0:
            claims = page.for_claims(at)
            claims.claimed_at[at] = record.at
            claims.consumer[at] = record.consumer
        state.finish(seq, page, at, record.at)
    state.tidy()


def ack(state: "State", record: Ack) -> None:
    """Messages are done."""
    seqs = record.seqs
    runs = state.rows.runs(seqs) if len(seqs) >= MANY and state.settings.keep_done == 0 else None
    if runs is not None:
        nonces: list[int] = []
        for page, start, end in runs:
            nonces.extend(page.for_claims(end - 1).nonce[start:end])
        state.drop_runs(seqs, runs)
        state.receipts.add(seqs, nonces, ACKED, record.at)
        state.tidy()
        return
    _settle(state, record, ACKED, lambda seq, page, at: state.finish(seq, page, at, record.at))


def fail(state: "State", record: Fail) -> None:
    """Attempts failed."""

    def end_attempt(seq: int, page: Page, at: int) -> None:
        state.end_attempt(seq, page, at, record.at, record.visible_at, record.reason)

    _settle(state, record, FAILED_ATTEMPT, end_attempt)


def release(state: "State", record: Release) -> None:
    """Messages are given back."""

    def give_back(seq: int, page: Page, at: int) -> None:
        state.remember(seq, page, at, record.at, "released", None)
        state.come_back(seq, page, at, record.at, record.at)

    _settle(state, record, RELEASED, give_back)


def _settle(
    state: "State", record: Ack | Fail | Release, outcome: int, change: Callable[[int, Page, int], None]
) -> None:
    nonces = []
    for seq in record.seqs:
        page, at = state.rows[seq]
        nonces.append(page.for_claims(at).nonce[at])
        change(seq, page, at)
    state.receipts.add(record.seqs, nonces, outcome, record.at)
    state.tidy()


def extend(state: "State", record: Extend) -> None:
    """Leases end later."""
    for seq in record.seqs:
        page, at = state.rows[seq]
        page.for_claims(at).ends_at[at] = record.lease_until
        state.deadlines.add(record.lease_until, seq)
    state.tidy()


def remove(state: "State", record: Remove) -> None:
    """Take messages out."""
    for seq in record.seqs:
        state.drop(seq, *state.rows[seq])
    state.tidy()


def redrive(state: "State", record: Redrive) -> None:
    """Failed messages start over."""
    for seq in record.seqs:
        page, at = state.rows[seq]
        page.attempts[at] = 0
        page.for_claims(at).reason[at] = None
        state.come_back(seq, page, at, record.at, record.at)
    state.tidy()


def update(state: "State", record: Update) -> None:
    """Change the settings; a changed keep_done applies to done messages."""
    before = state.settings.keep_done
    state.use(record.settings)
    if record.settings.keep_done != before:
        state.keep_done_anew(record.at)


def restore(state: "State", record: Restore) -> None:
    """Give messages that were just put the state and attempts that they had in another store."""
    _, first, states, attempts, claimed_at, settled_at, consumers, reasons, history = record
    state.history.load(history)
    for number, entered in enumerate(states):
        seq = first + number
        page, at = state.rows[seq]
        page.attempts[at] = attempts[number]
        if claimed_at[number] or reasons[number] is not None:
            claims = page.for_claims(at)
            claims.claimed_at[at], claims.ends_at[at] = claimed_at[number], settled_at[number]
            claims.consumer[at], claims.reason[at] = consumers[number], reasons[number]
        if entered == DONE and state.settings.keep_done == 0:
            state.drop(seq, page, at)
        elif entered in (DONE, FAILED):
            state.enter(seq, page, at, entered)
    state.tidy()


EFFECTS: dict[type[Record], Callable[["State", Any], None]] = {
    Put: put,
    Claim: claim,
    Pop: pop,
    Ack: ack,
    Fail: fail,
    Release: release,
    Extend: extend,
    Remove: remove,
    Redrive: redrive,
    Update: update,
    Restore: restore,
}
