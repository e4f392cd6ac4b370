"""The rules of a text queue: the usual ones, over a state that others change too, and that is read from files."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.contract.message import STATES, Attempt
from penstock.rules.contents import NEVER, Frozen
from penstock.rules.index.history import pack
from penstock.rules.index.recent import RecentReceipts
from penstock.rules.index.rows import AVAILABLE, DELAYED, DONE, FAILED, GONE, IN_FLIGHT, PAGE, Page
from penstock.rules.ledger import Ledger
from penstock.rules.records import Put
from penstock.stores.text.mutex import Note

_NAMES = ("gone", *STATES)


class Row(NamedTuple):
    """A message as a file has it, before anything is noted about it."""

    state: int
    priority: int
    visible_at: int
    expires_at: int  # 0 = never
    attempts: int
    received_at: int


class TextLedger(Ledger):
    """A ledger that is told what others have noted, and knows what is still to be noted."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.changed: dict[int, None] = {}  # messages that have another state than is noted

    def load(self, rows: Sequence[Row], notes: dict[int, Note], history: dict[int, bytes]) -> None:
        """Take over all messages, by number from 1 on."""
        for first in range(0, len(rows) + 1, PAGE):
            page = Page()
            for seq in range(first, min(first + PAGE, len(rows) + 1)):
                self._add(page, rows[seq - 1] if seq else Row(GONE, 0, 0, 0, 0, 0), notes.get(seq), seq - first)
            if page.live:
                self.thaw_page(first, page)
        self.thaw(Frozen(len(rows) + 1, [], RecentReceipts(), [], history))

    def _add(self, page: Page, row: Row, note: Note | None, at: int) -> None:
        state = row.state if note is None else _NAMES.index(note.state)
        page.state.append(state)
        page.live += state != GONE
        page.priority.append(row.priority)
        page.visible_at.append(note.visible_at if note is not None and note.visible_at else row.visible_at)
        page.expires_at.append(row.expires_at)
        page.attempts.append(row.attempts if note is None else note.attempts)
        for column in (page.place, page.size, page.crc):
            column.append(0)
        if note is not None:
            _fill(page, at, note)
        elif state in (DONE, FAILED):
            page.for_claims(at).ends_at[at] = row.received_at

    def append(self, row: Row) -> None:
        """Take in a message that was appended to the file; it gets the next number."""
        at = row.received_at
        self._put_one(Put(at, self.next_seq, (row.priority,), (row.visible_at,), (row.expires_at,), {}))

    def assign(self, notes: Iterable[tuple[int, Note]]) -> None:
        """Let messages be as another process has noted."""
        notes = list(notes)
        leaving = [seq for seq, note in notes if self._rows.is_available(seq) and note.state != "available"]
        taken = self._ready.take(len(leaving), self._counts[AVAILABLE])
        for seq in set(taken) - set(leaving):
            page, at = self._rows[seq]
            self._ready.come_back(seq, page.priority[at])
        for seq, note in notes:
            self._assign(seq, note)
        if set(leaving) - set(taken):  # not those that stood first in line, as when one is removed
            self._ready._rebuild()
        for seq, _ in notes:
            self.changed.pop(seq, None)
        noted = {seq for seq, _ in notes}
        self.gone = [seq for seq in self.gone if seq not in noted]
        self._tidy()

    def _assign(self, seq: int, note: Note) -> None:
        found = self._rows.find(seq)
        if found is None:
            return
        page, at = found
        state, before = _NAMES.index(note.state), page.state[at]
        if state == GONE:
            self._drop(seq, page, at)
            return
        page.attempts[at] = note.attempts
        page.visible_at[at] = note.visible_at or page.visible_at[at]
        _fill(page, at, note)
        self._history.drop((seq,))
        self._history.load(packed({seq: note}))
        self._counts[before] -= 1
        self._counts[state] += 1
        page.state[at] = state
        due = self._due(page, at)
        if due not in (NEVER, page.expires_at[at]):
            self._deadlines.add(due, seq)
        if state == AVAILABLE != before:
            self._ready.come_back(seq, page.priority[at])

    def unsettled(self) -> int:
        """How many messages there are that a consumer holds or may get."""
        return self._counts[DELAYED] + self._counts[AVAILABLE] + self._counts[IN_FLIGHT]

    def note(self, seq: int, note: Note) -> Note:
        """Write down how a message is."""
        found = self._rows.find(seq)
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
        note.history = [list(each) for each in self._history.of(seq)]
        return note

    def holds(self, seq: int) -> int | None:
        """The secret under which the message is held; None if it is not."""
        found = self._rows.find(seq)
        if found is None or found[0].state[found[1]] != IN_FLIGHT:
            return None
        return found[0].for_claims(found[1]).nonce[found[1]]

    def _enter(self, seq: int, page: Page, at: int, state: int) -> None:
        super()._enter(seq, page, at, state)
        self.changed[seq] = None

    def _drop(self, seq: int, page: Page, at: int) -> None:
        super()._drop(seq, page, at)
        self.changed[seq] = None

    def _drop_runs(self, seqs: list[int], runs: list[tuple[Page, int, int]]) -> None:
        super()._drop_runs(seqs, runs)
        self.changed |= dict.fromkeys(seqs)


def packed(notes: dict[int, Note]) -> dict[int, bytes]:
    """The attempts that have ended, as the ledger keeps them."""
    return {
        seq: b"".join(pack(Attempt(*each)) for each in note.history) for seq, note in notes.items() if note.history
    }


def _fill(page: Page, at: int, note: Note) -> None:
    claims = page.for_claims(at)
    claims.claimed_at[at], claims.ends_at[at] = note.claimed_at, note.ends_at
    claims.nonce[at] = int(note.receipt[-16:], 16) if note.receipt else 0
    claims.consumer[at], claims.reason[at] = note.consumer, note.reason
