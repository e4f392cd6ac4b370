"""A text queue at work: every operation in a turn of its own, and what it writes into both files."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias
from zlib import crc32

from penstock.contract.message import STATES, Attempt, Message, Moved, Plain
from penstock.contract.message import Entry as Draft
from penstock.contract.operations import Held
from penstock.contract.settings import FIVE_MINUTES, Settings
from penstock.engine.backend import check_start
from penstock.engine.loads import Restored, restore
from penstock.engine.unowned import UnownedQueue, fitting
from penstock.errors import DiskFull, LeaseExpired, NotSupported, PenstockError, QueueNotFound, StoreUnavailable
from penstock.rules.ledger import Receipt
from penstock.rules.records import Put, Record, Restore
from penstock.rules.state import ACKED, FAILED_ATTEMPT, RELEASED
from penstock.stores.text.files import is_appended
from penstock.stores.text.format import COMMENT, FAILED, PROCESSED, QUEUED, Entry, dropped, parse, without
from penstock.stores.text.ledger import held_under, noted
from penstock.stores.text.mutex import Note
from penstock.stores.text.turns import TurningQueue, in_turn
from penstock.stores.text.variables import facts, free, held, replace_head, unborn, unborn_plain
from penstock.stores.text.variables import removed as removed_entry
from penstock.stores.text.view import View, message_of

_log = logging.getLogger("penstock")
_CONTROLS = {"done": PROCESSED, "failed": FAILED}
_CHUNK = 256  # messages that are listed in one turn
_Settling: TypeAlias = Callable[[list[Receipt]], tuple[Record | None, list[Receipt]]]


class TextFileQueue(TurningQueue, UnownedQueue):
    """One queue, and all that can be asked of it."""

    # Putting

    @in_turn
    def check(self, view: View, now: int, draft: Draft) -> None:
        """Raise what a put would raise."""
        view.ledger.check([draft], now)

    @in_turn
    def put(self, view: View, now: int, drafts: Sequence[Draft]) -> list[str]:
        """Take in all entries or none; their ids."""
        if len(drafts) != 1 or view.settings.retention or drafts[0] != Draft(drafts[0].payload):
            return self._put(view, now, drafts)
        # One message that has nothing but a payload: the most usual case.
        view.ledger.put(drafts, now)
        new_id = os.urandom(8).hex()
        entries, [crc] = unborn_plain([drafts[0].payload], [new_id], now)
        entries = _with_ends(entries, view.line_end)
        [offset] = self.files.append(entries, [new_id], now)
        view.table.add(offset, len(entries[0]), crc, now, QUEUED, new_id)
        return [new_id]

    def _put(self, view: View, now: int, drafts: Sequence[Draft]) -> list[str]:
        ids, new = _numbered(view, drafts, now)
        record = view.ledger.put(new, now).record
        fresh = [each for each in ids if each is not None]
        if not fresh:
            return _answers(ids, drafts, view)
        if isinstance(new, Plain) and not any(record.expires_at):
            entries, crcs = unborn_plain(new.payloads, fresh, now)
        else:
            chosen = [draft for draft, each in zip(drafts, ids, strict=True) if each is not None]
            columns = zip(chosen, fresh, record.visible_at, record.expires_at, strict=True)
            entries = [unborn(draft, each, now, visible, expires) for draft, each, visible, expires in columns]
            crcs = [_text_crc(entry) for entry in entries]
        entries = _with_ends(entries, view.line_end)
        offsets = self.files.append(entries, fresh, now)
        for entry, crc, each, offset in zip(entries, crcs, fresh, offsets, strict=True):
            view.table.add(offset, len(entry), crc, now, QUEUED, each)
        for draft, new_id in zip(drafts, ids, strict=True):
            if draft.key is not None and new_id is not None:
                view.keys[draft.key] = (new_id, now + FIVE_MINUTES)
        return _answers(ids, drafts, view)

    @in_turn
    def restore(self, view: View, now: int, moved: Sequence[Moved]) -> None:
        """Take in messages as they were in another store, all or none."""
        ledger, first = view.ledger, view.ledger.state.next_seq
        for each in moved:
            ledger.check_values(len(each.payload), each.priority)
        if waiting := sum(each.waits for each in moved):
            ledger.check_room(waiting)
        received = [now if each.received_at is None else each.received_at for each in moved]
        visible = [
            at if each.visible_at is None else each.visible_at for at, each in zip(received, moved, strict=True)
        ]
        expires = [each.expires_at or 0 for each in moved]
        ledger.state.replay(Put(now, first, [each.priority for each in moved], visible, expires, {}))
        ledger.state.replay(_past(moved, first, now))
        ids = [os.urandom(8).hex() for _ in moved]
        columns = zip(moved, ids, received, visible, expires, strict=True)
        entries = [unborn(*values, values[0].attempts) for values in columns]
        crcs = [_text_crc(entry) for entry in entries]
        entries = _with_ends(entries, view.line_end)
        controls = "".join(_CONTROLS.get(each.state, QUEUED) for each in moved)
        notes = {}
        for at, each in enumerate(moved):
            note = noted(ledger.state, first + at, Note(0, crcs[at], controls[at], "", ids[at]))
            if not each.waits or note.attempts or note.reason is not None or note.history:
                notes[at] = note
        offsets = self.files.append(entries, ids, now, controls, notes)
        for at, entry in enumerate(entries):
            view.table.add(offsets[at], len(entry), crcs[at], received[at], controls[at], ids[at])
            view.changed.pop(first + at, None)
            if at in notes:
                view.hold(first + at, notes[at])

    # Taking

    def claim(self, n: int, lease: float, wait: float, consumer: str, most: int | None = None) -> list[Message]:
        """Lease up to n messages, and if `most` is given not many more bytes than that."""

        def take(view: View, now: int) -> list[Message]:
            seqs = view.ledger.state.peek(n)
            if not seqs:
                return []
            if most is not None and sum(view.table.lengths[seq] for seq in seqs) > most:
                # One by one, as all of them may be more than fits into memory.
                payloads = (message_of(view, seq, self.files.read([seq])[0]).payload for seq in seqs)
                seqs = seqs[: fitting(map(len, payloads), most)]
            entries = self.files.read(seqs)
            record = view.ledger.claim(len(seqs), lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                return []
            secret = f"{record.nonce:016x}"
            messages, mirrors = [], []
            given: dict[int, str] = {}
            for seq, entry in zip(record.seqs, entries, strict=True):
                view.changed[seq] = None
                message = message_of(view, seq, entry)
                message.receipt = given[seq] = f"{message.id}.{secret}"
                messages.append(message)
                mirrors += held(entry, message.attempts, record.lease_until, secret, consumer)
            self._record(view, now, receipts=given, mirrors=mirrors, mirrored=set(record.seqs))
            return messages

        return self._served(take, wait)

    def pop(self, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""

        def take(view: View, now: int) -> list[Message]:
            seqs = view.ledger.state.peek(1)
            if not seqs:
                return []
            [message] = [message_of(view, seqs[0], entry) for entry in self.files.read(seqs)]
            view.ledger.pop(consumer, now)
            message.attempts += 1
            message.state, message.consumer = "done", consumer
            message.claimed_at = message.settled_at = now
            message.reason = None
            self._record(view, now, done=set(seqs))
            return [message]

        return next(iter(self._served(take, wait)), None)

    def _give_back(self, messages: list[Message]) -> None:
        receipts = [message.receipt for message in messages if message.receipt is not None]
        if receipts:
            with suppress(PenstockError):
                self.release(receipts)

    # Settling

    @in_turn
    def ack(self, view: View, now: int, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self._settle(view, now, receipts, ACKED, lambda given: view.ledger.ack(given, now))

    @in_turn
    def fail(self, view: View, now: int, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self._settle(
            view, now, receipts, FAILED_ATTEMPT, lambda given: view.ledger.fail(given, delay, reason, now)
        )

    @in_turn
    def release(self, view: View, now: int, receipts: Sequence[str]) -> None:
        """Give back."""
        self._settle(view, now, receipts, RELEASED, lambda given: view.ledger.release(given, now))

    def _settle(self, view: View, now: int, receipts: Sequence[str], how: int, settle: _Settling) -> None:
        given, lost = self._given(view, receipts)
        lost = [receipt for receipt in lost if view.settled.get(receipt, (0, 0))[0] != how]
        record, refused = settle(list(given.values()))
        if record is not None:
            settled = [receipt for receipt, each in given.items() if each not in refused]
            done = {seq for seq, _ in given.values()} if how == ACKED else set()
            self._record(view, now, done=done, settled=[[receipt, how] for receipt in settled])
            view.settled |= dict.fromkeys(settled, (how, now))
        lost += [receipt for receipt, each in given.items() if each in refused]
        if lost:
            raise LeaseExpired(self.name, [each for each in dict.fromkeys(receipts) if each in lost])

    @in_turn
    def extend(self, view: View, now: int, receipts: Sequence[str], lease: float) -> Held:
        """Hold from now on; until when, and which receipts were lost."""
        given, lost = self._given(view, receipts)
        record, refused = view.ledger.extend(list(given.values()), lease, now)
        if record is not None:
            view.changed |= dict.fromkeys(record.seqs)
            self._record(view, now)
        lost += [receipt for receipt, each in given.items() if each in refused]
        return Held(view.ledger.lease_end(lease, now), [each for each in receipts if each in lost])

    def _given(self, view: View, receipts: Sequence[str]) -> tuple[dict[str, Receipt], list[str]]:
        """Receipts that hold their message, each with its number and secret; and the others."""
        given: dict[str, Receipt] = {}
        lost = []
        for receipt in receipts:
            seq = view.receipts.get(receipt)
            nonce = None if seq is None else held_under(view.ledger.state, seq)
            if seq is None or nonce is None or f"{nonce:016x}" != receipt[-16:]:
                lost.append(receipt)
            else:
                given[receipt] = (seq, nonce)
        return given, lost

    # What else changes

    @in_turn
    def remove(self, view: View, now: int, ids: Sequence[str]) -> int:
        """Take messages out in any state; how many."""
        return self._changed(view, now, view.ledger.remove(_seqs(view, ids), now))

    @in_turn
    def redrive(self, view: View, now: int, ids: Sequence[str] | None) -> int:
        """Start over with failed messages; how many."""
        return self._changed(view, now, view.ledger.redrive(None if ids is None else _seqs(view, ids), now))

    @in_turn
    def purge(self, view: View, now: int) -> int:
        """Take out everything but what is in flight; how many."""
        return self._changed(view, now, view.ledger.purge(now))

    def _changed(self, view: View, now: int, record: Any) -> int:
        if record is None:
            return 0
        self._record(view, now)
        return len(record.seqs)

    @in_turn
    def update(self, view: View, now: int, changes: Mapping[str, Any]) -> Settings:
        """Change settings: the file is written anew with another comment at its top. All settings then."""
        settings = view.settings.changed(changes)
        check_start(settings)
        if settings == view.settings:
            return settings
        if self.files.names > 1:
            raise NotSupported(
                f"{self.path!r} has several names, which another file would part: edit the comment at its top"
            )
        self._record(view, now)
        data = kept = self.files.read_all()
        if settings.keep_done is None:  # whatever is marked as done would be listed from now on
            kept = self._packed(view, now, data)
        if not self.files.replace_file(replace_head(kept, settings, view.line_end), len(data)):
            raise StoreUnavailable(
                f"another program has {self.path!r} open to append, and would go on in the old file: try again "
                "when it has closed it"
            )
        with suppress(DiskFull):  # time does the same, a little later
            view = self.files.current()
            view.ledger.state.keep_done_anew(self._advance(view))
            self._record(view, now)
        return settings

    @in_turn
    def pack(self, view: View, now: int) -> int:
        """Drop what is done from the file, and what was taken out; how many bytes that frees."""
        if self.files.names > 1:
            _log.warning("%s is not packed: it has several names, which another file would part", self.path)
            return 0
        if is_appended(self.path):
            return 0
        self._record(view, now)
        data = self.files.read_all()
        kept = self._packed(view, now, data)
        if len(kept) < len(data) and not self.files.replace_file(kept, len(data)):
            return 0
        return len(data) - len(kept)

    def _packed(self, view: View, now: int, data: bytes) -> bytes:
        """The file without entries that are over, whose keys are noted before they go."""
        listed = {view.table.offsets[seq] for seq in view.ledger.state.listed("done", 0, len(view.table.ids))}
        over = dropped(parse(data), lambda entry: _is_over(entry, listed))
        said = {facts(each).id for each in over}
        if keys := [[key, each, until] for key, (each, until) in view.keys.items() if each in said]:
            self.files.record({"at": now, "keys": keys}, [], [])
        return without(data, over)

    # Looking

    @property
    def settings(self) -> Settings:
        """What the queue does."""
        return self.run(lambda view, now: view.settings)

    @in_turn
    def counts(self, view: View, now: int) -> dict[str, int]:
        """How many messages are in each state."""
        return view.ledger.state.counts()

    def probe(self) -> None:
        """Raise what keeps the queue from being written; a full disk does not, as messages can be settled."""
        with suppress(DiskFull):
            self.run(lambda view, now: self.files.probe())

    @in_turn
    def attempts(self, view: View, now: int, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return [each for seq in _seqs(view, [id]) for each in view.ledger.state.attempts(seq)]

    def peek(self, n: int, skip: int = 0) -> Iterator[Message]:
        """What claim would give, after some that are skipped."""
        ids = self.run(lambda view, now: [view.table.ids[seq] for seq in view.ledger.state.peek(n + skip)])

        def page(view: View, now: int) -> list[Message]:
            return self._seen(view, _seqs(view, chosen), "available")

        for start in range(skip, len(ids), _CHUNK):
            chosen = ids[start : start + _CHUNK]
            yield from self.run(page)

    def messages(
        self, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        last, number = after, 0

        def page(view: View, now: int) -> list[Message]:
            nonlocal number
            number = view.table.by_id.get(last, number)  # another by now, if the file was edited
            end = view.table.by_id.get(until, len(view.table.ids))
            seqs = [seq for seq in view.ledger.state.listed(state, number + 1, _CHUNK) if seq <= end]
            number = seqs[-1] if seqs else number
            return self._seen(view, seqs, None)

        while found := self.run(page):
            last = found[-1].id
            yield from found

    def _seen(self, view: View, seqs: Sequence[int], state: str | None) -> list[Message]:
        there = [seq for seq in seqs if view.ledger.state.has(seq)]
        entries = zip(there, self.files.read(there), strict=True)
        return [each for each in (message_of(view, *pair) for pair in entries) if state in (None, each.state)]

    # What is written

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
        for seq in view.changed:
            before = view.notes.get(seq)
            note = noted(view.ledger.state, seq, self._fresh(view, seq))
            if note.state == "gone":
                is_done = (done is not None and seq in done) or view.table.controls[seq] == ord(PROCESSED)
                note.byte = PROCESSED if is_done else COMMENT
                if not is_done:
                    removed[view.table.ids[seq]] = None
                    if not view.is_persons(seq):
                        mirrors += removed_entry(*self.files.read([seq]))
            else:
                note.byte = _CONTROLS.get(note.state, QUEUED)
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
        view.changed.clear()
        view.ledger.state.gone.clear()

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

    # The end

    def delete(self, link: str | None = None) -> None:
        """Remove the queue and its messages, or only the link that leads to it."""
        self.run(lambda view, now: self.files.remove(link))
        self._send_away(lambda: QueueNotFound(f"queue {self.name!r} was deleted"))


def _with_ends(entries: list[bytes], line_end: bytes) -> list[bytes]:
    """Entries with the line ends that the rest of the file has."""
    return entries if line_end == b"\n" else [entry.replace(b"\n", line_end) for entry in entries]


def _past(moved: Sequence[Moved], first: int, now: int) -> Restore:
    """What became of messages elsewhere, that are put here from that number on."""
    columns = Restored(
        [],
        [STATES.index(each.state) + 1 for each in moved],
        [each.attempts for each in moved],
        [each.claimed_at or 0 for each in moved],
        [each.settled_at or 0 for each in moved],
        [each.consumer for each in moved],
        [each.reason for each in moved],
        [each.history for each in moved],
    )
    record = restore(columns)  # which counts from 0
    history = {first + at: packed for at, packed in record.history.items()}
    return record._replace(at=now, first=first, history=history)


def _seqs(view: View, ids: Sequence[str]) -> list[int]:
    return [seq for each in ids if (seq := view.table.by_id.get(each)) is not None]


def _is_over(entry: Entry, listed: set[int]) -> bool:
    """Whether packing drops the entry: it is done and listed no more, or we have taken it out, and no person."""
    if entry.control == PROCESSED:
        return entry.offset not in listed
    return entry.control == COMMENT and facts(entry).removed


def _numbered(view: View, drafts: Sequence[Draft], now: int) -> tuple[list[str | None], Sequence[Draft]]:
    """A new id for each draft that is not there under its key, and those drafts, without keys."""
    if isinstance(drafts, Plain) or not any(draft.key is not None for draft in drafts):
        secrets = os.urandom(8 * len(drafts)).hex()
        return [secrets[at : at + 16] for at in range(0, len(secrets), 16)], drafts
    for draft in drafts:
        view.ledger.check_values(len(draft.payload), draft.priority)
    ids: list[str | None] = []
    new, keys = [], set()
    for draft in drafts:
        known = draft.key is not None and (draft.key in keys or view.keys.get(draft.key, ("", 0))[1] > now)
        if known:
            ids.append(None)
            continue
        ids.append(os.urandom(8).hex())
        new.append(replace(draft, key=None))
        if draft.key is not None:
            keys.add(draft.key)
    return ids, new


def _answers(ids: Sequence[str | None], drafts: Sequence[Draft], view: View) -> list[str]:
    """An id for each draft; of those that were there already, the first one's."""
    return [
        view.keys[draft.key or ""][0] if each is None else each for draft, each in zip(drafts, ids, strict=True)
    ]


def _text_crc(entry: bytes) -> int:
    """The checksum of the text of an entry that was just written."""
    end = entry.index(b"\n\\")
    return crc32(entry[1:end].replace(b"\n ", b"\n"))
