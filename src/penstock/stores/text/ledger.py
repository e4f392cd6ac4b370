"""A text queue's ledger and the notes of its mutex file: loads the one from the other, and makes notes."""

from collections.abc import Iterable, Sequence
from sys import intern
from typing import NamedTuple

from penstock.contract.message import STATES, Attempt
from penstock.rules.effects import put_one
from penstock.rules.order import SLACK
from penstock.rules.recent import RecentReceipts, pack
from penstock.rules.records import Put
from penstock.rules.rows import AVAILABLE, DONE, FAILED, GONE, IN_FLIGHT, PAGE, Page
from penstock.rules.state import State, StateSnapshot
from penstock.stores.text.mutex import Note

_NAMES = ("gone", *STATES)


class Row(NamedTuple):
    """A message by the queue's file alone, without its note."""

    state: int
    priority: int
    visible_at: int
    expires_at: int  # 0 = never
    attempts: int
    received_at: int
    group: str | None = None


def load_state(state: State, rows: Sequence[Row], notes: dict[int, Note], history: dict[int, bytes]) -> None:
    """Load all messages, numbered from 1."""
    for first in range(0, len(rows) + 1, PAGE):
        page = Page()
        for seq in range(first, min(first + PAGE, len(rows) + 1)):
            _add(page, rows[seq - 1] if seq else Row(GONE, 0, 0, 0, 0, 0), notes.get(seq), seq - first)
        if page.live:
            state.load_page(first, page)
    state.load(StateSnapshot(len(rows) + 1, [], RecentReceipts(), [], history))


def append_row(state: State, row: Row) -> None:
    """Add a message that was appended to the file; it gets the next number."""
    at = row.received_at
    groups = () if row.group is None else (row.group,)
    put_one(state, Put(at, state.next_seq, (row.priority,), (row.visible_at,), (row.expires_at,), {}, groups))


def assign_notes(state: State, notes: Iterable[tuple[int, Note]]) -> None:
    """Change messages to the states that another process has noted."""
    notes = list(notes)
    for seq, note in notes:
        found = state.rows.find(seq)
        if found is None:
            continue
        page, at = found
        stands_in_order = page.state[at] == AVAILABLE and state.groups.may_be_claimed(page.group(at), seq)
        _assign(state, seq, note)
        if stands_in_order and not state.rows.is_available(seq):
            state.ready.withdraw(seq)
    if state.ready.stale > state.available() + SLACK:  # a process that only looks takes none of them out
        state.ready.rebuild()
    noted = {seq for seq, _ in notes}
    if state.changed is not None:
        for seq in noted:
            state.changed.pop(seq, None)
    state.gone = [seq for seq in state.gone if seq not in noted]
    state.tidy()


def noted(state: State, seq: int, note: Note) -> Note:
    """The note, filled in with the message's state."""
    found = state.rows.find(seq)
    if found is None:
        note.state = "gone"
        return note
    page, at = found
    note.state, note.attempts = _NAMES[page.state[at]], page.attempts[at]
    note.visible_at = page.visible_at[at]
    if page.claims is not None:
        claims = page.for_claims(at)
        note.reason, note.consumer = claims.reason[at], claims.consumer[at]
        note.claimed_at, note.ends_at = claims.claimed_at[at], claims.ends_at[at]
    note.history = [list(each) for each in state.history.of(seq)]
    return note


def held_under(state: State, seq: int) -> int | None:
    """The secret of a message's lease; None if it is not in flight."""
    found = state.rows.find(seq)
    if found is None or found[0].state[found[1]] != IN_FLIGHT:
        return None
    return found[0].for_claims(found[1]).nonce[found[1]]


def _add(page: Page, row: Row, note: Note | None, at: int) -> None:
    state = row.state if note is None else _NAMES.index(note.state)
    page.state.append(state)
    page.live += state != GONE
    page.priority.append(row.priority)
    page.visible_at.append(note.visible_at if note is not None and note.visible_at else row.visible_at)
    page.expires_at.append(row.expires_at)
    page.attempts.append(row.attempts if note is None else note.attempts)
    if row.group is not None:
        page.put_into([intern(row.group)], at)
    for column in (page.place, page.size, page.crc):
        column.append(0)
    if note is not None:
        _fill(page, at, note)
    elif state in (DONE, FAILED):
        page.for_claims(at).ends_at[at] = row.received_at


def _assign(state: State, seq: int, note: Note) -> None:
    page, at = state.rows[seq]
    now, before = _NAMES.index(note.state), page.state[at]
    if now == GONE:
        state.drop(seq, page, at)
        return
    page.attempts[at] = note.attempts
    page.visible_at[at] = note.visible_at or page.visible_at[at]
    _fill(page, at, note)
    state.history.drop((seq,))
    state.history.load(packed({seq: note}))
    state.enter(seq, page, at, now)
    if now == AVAILABLE != before and page.group(at) is None:  # else its group decides
        state.ready.come_back(seq, page.priority[at])


def packed(notes: dict[int, Note]) -> dict[int, bytes]:
    """The ended attempts of messages, as the ledger stores them."""
    return {
        seq: b"".join(pack(Attempt(*each)) for each in note.history) for seq, note in notes.items() if note.history
    }


def _fill(page: Page, at: int, note: Note) -> None:
    claims = page.for_claims(at)
    claims.claimed_at[at], claims.ends_at[at] = note.claimed_at, note.ends_at
    claims.nonce[at] = int(note.receipt[-16:], 16) if note.receipt else 0
    claims.consumer[at], claims.reason[at] = note.consumer, note.reason
