"""How a text queue writes down what has changed: notes in the mutex file, bytes and variables in its own."""

from collections.abc import Sequence

from penstock.stores.text.format import COMMENT, FAILED, PROCESSED, QUEUED
from penstock.stores.text.mutex import Note
from penstock.stores.text.turns import TurningQueue
from penstock.stores.text.variables import free, held
from penstock.stores.text.variables import removed as said_removed
from penstock.stores.text.view import View

_BYTES = {"done": PROCESSED, "failed": FAILED}


class RecordingQueue(TurningQueue):
    """A queue that keeps what its rules decide."""

    def _record(
        self,
        view: View,
        now: int,
        done: set[int] | None = None,
        settled: Sequence[list[object]] = (),
        receipts: dict[int, str] | None = None,
        mirrors: Sequence[tuple[int, bytes]] = (),
        mirrored: set[int] | None = None,
    ) -> None:
        """Keep whatever has changed, be it by this operation or by time."""
        notes, mirrors = [], list(mirrors)
        removed: dict[str, None] = {}
        for seq in view.ledger.changed:
            before = view.notes.get(seq)
            note = view.ledger.note(seq, self._fresh(view, seq))
            if note.state == "gone":
                is_done = (done is not None and seq in done) or view.table.controls[seq] == ord(PROCESSED)
                note.byte = PROCESSED if is_done else COMMENT
                if not is_done:
                    removed[view.table.ids[seq]] = None
                    if not view.is_persons(seq):
                        mirrors += said_removed(*self.files.read([seq]))
            else:
                note.byte = _BYTES.get(note.state, QUEUED)
            if note.state == "in_flight":
                note.receipt = (receipts or {}).get(seq) or (before.receipt if before else None)
            notes.append((seq, note))
            if note.byte == QUEUED and seq not in (mirrored or ()):
                mirrors += self._mirror(view, seq, note)
        if not notes and not settled:
            return
        content: dict[str, object] = {"at": now}
        if settled:
            content["settled"] = list(settled)
        if removed and (keys := [[key, *each] for key, each in view.keys.items() if each[0] in removed]):
            content["keys"] = keys  # a comment is not asked for its key
        self.files.record(content, notes, mirrors)
        view.ledger.changed.clear()
        view.ledger.gone.clear()

    def _fresh(self, view: View, seq: int) -> Note:
        table, persons = view.table, view.is_persons(seq)
        offset = table.offsets[seq]
        twin = view.twins.get(offset, (0, 1)) if persons else (0, 1)
        return Note(offset, table.crcs[seq], QUEUED, "", None if persons else table.ids[seq], twin)

    def _mirror(self, view: View, seq: int, note: Note) -> list[tuple[int, bytes]]:
        [entry] = self.files.read([seq])
        if note.state == "in_flight" and note.receipt is not None:
            return held(entry, note.attempts, note.ends_at, note.receipt[-16:], note.consumer or "")
        return free(entry, note.attempts)
