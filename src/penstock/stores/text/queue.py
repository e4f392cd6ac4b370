"""Operations on a text queue: each runs under the queue's lock, and changes its two files."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias
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
from penstock.rules.moves import visible_after_move
from penstock.rules.recent import ACKED, FAILED_ATTEMPT, RELEASED
from penstock.rules.records import Put, Record, Restore
from penstock.stores.text.files import is_appended
from penstock.stores.text.format import (
    COMMENT,
    FAILED,
    PROCESSED,
    QUEUED,
    Document,
    Entry,
    dropped,
    parse,
    parse_one,
    without,
)
from penstock.stores.text.ledger import held_under, noted
from penstock.stores.text.locking import LockedQueue, under_lock
from penstock.stores.text.mutex import Leaving, Note
from penstock.stores.text.storage import leaving_as_json
from penstock.stores.text.variables import (
    facts,
    lease_writes,
    new_entry,
    plain_entries,
    release_writes,
    removal_writes,
    replace_head,
)
from penstock.stores.text.view import View, message_of

_log = logging.getLogger("penstock")
_CONTROLS = {"done": PROCESSED, "failed": FAILED}
_CHUNK = 256  # messages that are listed under one lock
Headers: TypeAlias = Callable[[Mapping[str, str], str | None], dict[str, str]]  # from headers and reason
_Settling: TypeAlias = Callable[[list[Receipt]], tuple[Record | None, list[Receipt]]]


class Leaver(NamedTuple):
    """A message that moves to another queue."""

    draft: Draft
    visible_at: int
    expires_at: int


class _Settled(NamedTuple):
    """Receipts that were settled, and how; the numbers of messages that are done now; the lost receipts."""

    how: int
    given: list[str]
    done: set[int]
    lost: list[str]

    @property
    def receipts(self) -> list[list[object]]:
        """The settled receipts as the files have them."""
        return [[receipt, self.how] for receipt in self.given]


_NO_ACKS = _Settled(ACKED, [], set(), [])


class TextFileQueue(LockedQueue, UnownedQueue):
    """One queue with all of its operations."""

    # Putting

    @under_lock
    def check(self, view: View, now: int, draft: Draft) -> None:
        """Raise the errors of a put."""
        view.ledger.check([draft], now)

    @under_lock
    def put(self, view: View, now: int, drafts: Sequence[Draft]) -> list[str]:
        """Put all drafts or none; their ids."""
        has_times = view.settings.retention or view.settings.delay
        if len(drafts) != 1 or has_times or drafts[0] != Draft(drafts[0].payload):
            return self._put(view, now, drafts)
        # A single message with nothing but a payload, which is the most frequent put.
        view.ledger.put(drafts, now)
        new_id = os.urandom(8).hex()
        entries, [crc] = plain_entries([drafts[0].payload], [new_id], now)
        entries = _with_ends(entries, view.line_end)
        [offset] = self.storage.append(entries, [new_id], now)
        view.table.add(offset, len(entries[0]), crc, now, QUEUED, new_id)
        return [new_id]

    def _put(self, view: View, now: int, drafts: Sequence[Draft]) -> list[str]:
        ids, new = _numbered(view, drafts, now)
        record = view.ledger.put(new, now).record
        fresh = [each for each in ids if each is not None]
        if not fresh:
            return _answers(ids, drafts, view)
        if isinstance(new, Plain) and not any(record.expires_at) and not view.settings.delay:
            entries, crcs = plain_entries(new.payloads, fresh, now)
        else:
            chosen = [draft for draft, each in zip(drafts, ids, strict=True) if each is not None]
            columns = zip(chosen, fresh, record.visible_at, record.expires_at, strict=True)
            entries = [new_entry(draft, each, now, visible, expires) for draft, each, visible, expires in columns]
            crcs = [_text_crc(entry) for entry in entries]
        entries = _with_ends(entries, view.line_end)
        offsets = self.storage.append(entries, fresh, now)
        for entry, crc, each, offset in zip(entries, crcs, fresh, offsets, strict=True):
            view.table.add(offset, len(entry), crc, now, QUEUED, each)
        for draft, new_id in zip(drafts, ids, strict=True):
            if draft.key is not None and new_id is not None:
                view.keys[draft.key] = (new_id, now + FIVE_MINUTES)
        return _answers(ids, drafts, view)

    @under_lock
    def restore(self, view: View, now: int, moved: Sequence[Moved]) -> None:
        """Add messages of another store with their states, all or none."""
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
        groups = [each.group for each in moved]
        priorities = [each.priority for each in moved]
        ledger.state.replay(Put(now, first, priorities, visible, expires, {}, groups if any(groups) else ()))
        ledger.state.replay(_past(moved, first, now))
        ids = [os.urandom(8).hex() for _ in moved]
        columns = zip(moved, ids, received, visible, expires, strict=True)
        entries = [new_entry(*values, values[0].attempts) for values in columns]
        crcs = [_text_crc(entry) for entry in entries]
        entries = _with_ends(entries, view.line_end)
        controls = "".join(_CONTROLS.get(each.state, QUEUED) for each in moved)
        notes = {}
        for at, each in enumerate(moved):
            note = noted(ledger.state, first + at, Note(0, crcs[at], controls[at], "", ids[at]))
            if not each.waits or note.attempts or note.reason is not None or note.history:
                notes[at] = note
        offsets = self.storage.append(entries, ids, now, controls, notes)
        for at, entry in enumerate(entries):
            view.table.add(offsets[at], len(entry), crcs[at], received[at], controls[at], ids[at])
            view.changed.pop(first + at, None)
            if at in notes:
                view.keep_note(first + at, notes[at])

    # Claiming

    def claim(
        self,
        n: int,
        lease: float | None,
        wait: float,
        consumer: str,
        most: int | None = None,
        ack: Sequence[str] = (),
    ) -> list[Message]:
        """Lease up to n messages; `most` limits the bytes of their payloads, except for the first message.

        Receipts in `ack` are acknowledged in the same step, before; if some are lost, nothing is claimed.
        """
        if ack and wait > 0:
            return self.claim(n, lease, 0, consumer, most, ack) or self.claim(n, lease, wait, consumer, most)

        def take(view: View, now: int) -> list[Message]:
            acks = self._acks(view, now, ack) if ack else _NO_ACKS
            seqs = [] if acks.lost else view.ledger.state.peek(n)
            if not seqs:
                self._record_settled(view, now, acks)
                return []
            if most is not None and sum(view.table.lengths[seq] for seq in seqs) > most:
                # Read one by one, as all of them may not fit into memory.
                payloads = (message_of(view, seq, self.storage.read([seq])[0]).payload for seq in seqs)
                seqs = seqs[: fitting(map(len, payloads), most)]
            entries = self.storage.read(seqs)
            record = view.ledger.claim(len(seqs), lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                self._record_settled(view, now, acks)
                return []
            secret = f"{record.nonce:016x}"
            messages, writes = [], []
            given: dict[int, str] = {}
            for seq, entry in zip(record.seqs, entries, strict=True):
                view.changed[seq] = None
                message = message_of(view, seq, entry)
                message.receipt = given[seq] = f"{message.id}.{secret}"
                messages.append(message)
                writes += lease_writes(entry, message.attempts, record.lease_until, secret, consumer)
            self._record(view, now, acks.done, acks.receipts, given, writes, with_writes=set(record.seqs))
            view.settled |= dict.fromkeys(acks.given, (ACKED, now))
            return messages

        return self._served(take, wait)

    def pop(self, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""

        def take(view: View, now: int) -> list[Message]:
            seqs = view.ledger.state.peek(1)
            if not seqs:
                return []
            [message] = [message_of(view, seqs[0], entry) for entry in self.storage.read(seqs)]
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

    @under_lock
    def ack(self, view: View, now: int, receipts: Sequence[str]) -> None:
        self._settle(view, now, receipts, ACKED, lambda given: view.ledger.ack(given, now))

    @under_lock
    def fail(self, view: View, now: int, receipts: Sequence[str], delay: float | None, reason: str | None) -> None:
        self._settle(
            view, now, receipts, FAILED_ATTEMPT, lambda given: view.ledger.fail(given, delay, reason, now)
        )

    @under_lock
    def release(self, view: View, now: int, receipts: Sequence[str]) -> None:
        self._settle(view, now, receipts, RELEASED, lambda given: view.ledger.release(given, now))

    def _settle(self, view: View, now: int, receipts: Sequence[str], how: int, settle: _Settling) -> None:
        self._record_settled(view, now, self._settled(view, receipts, how, settle))

    def _acks(self, view: View, now: int, receipts: Sequence[str]) -> "_Settled":
        """Acknowledge, and record nothing yet."""
        return self._settled(view, receipts, ACKED, lambda given: view.ledger.ack(given, now))

    def _settled(self, view: View, receipts: Sequence[str], how: int, settle: _Settling) -> "_Settled":
        """Settle messages, and record nothing yet."""
        given, lost = self._given(view, receipts)
        lost = [receipt for receipt in lost if view.settled.get(receipt, (0, 0))[0] != how]
        record, refused = settle(list(given.values()))
        lost += [receipt for receipt, each in given.items() if each in refused]
        lost = [each for each in dict.fromkeys(receipts) if each in lost]
        if record is None:
            return _Settled(how, [], set(), lost)
        done = {seq for seq, _ in given.values()} if how == ACKED else set()
        return _Settled(how, [each for each, receipt in given.items() if receipt not in refused], done, lost)

    def _record_settled(self, view: View, now: int, settled: "_Settled") -> None:
        """Write down what was settled; LeaseExpired if receipts were lost."""
        if settled.given:
            self._record(view, now, done=settled.done, settled=settled.receipts)
            view.settled |= dict.fromkeys(settled.given, (settled.how, now))
        if settled.lost:
            raise LeaseExpired(self.name, settled.lost)

    @under_lock
    def extend(self, view: View, now: int, receipts: Sequence[str], lease: float | None) -> Held:
        """Restart leases from now; their end, and the receipts that were lost."""
        given, lost = self._given(view, receipts)
        record, refused = view.ledger.extend(list(given.values()), lease, now)
        if record is not None:
            view.changed |= dict.fromkeys(record.seqs)
            self._record(view, now)
        lost += [receipt for receipt, each in given.items() if each in refused]
        return Held(view.ledger.lease_end(lease, now), [each for each in receipts if each in lost])

    def _given(self, view: View, receipts: Sequence[str]) -> tuple[dict[str, Receipt], list[str]]:
        """Valid receipts with their message's number and secret; and the lost ones."""
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

    @under_lock
    def revoke(self, view: View, now: int, ids: Sequence[str]) -> int:
        """Release messages in flight without their receipts; how many."""
        record = view.ledger.revoke(_seqs(view, ids), now)
        if record is None:
            return 0
        notes = [view.notes[seq] for seq in record.seqs]
        receipts = [note.receipt for note in notes if note.receipt is not None]
        self._record_settled(view, now, _Settled(RELEASED, receipts, set(), []))
        return len(record.seqs)

    # Removing, redriving, settings

    @under_lock
    def remove(self, view: View, now: int, ids: Sequence[str]) -> int:
        """Remove messages in any state; how many, as of redrive() and purge()."""
        return self._changed(view, now, view.ledger.remove(_seqs(view, ids), now))

    @under_lock
    def redrive(self, view: View, now: int, ids: Sequence[str] | None) -> int:
        return self._changed(view, now, view.ledger.redrive(None if ids is None else _seqs(view, ids), now))

    @under_lock
    def purge(self, view: View, now: int) -> int:
        return self._changed(view, now, view.ledger.purge(now))

    def _changed(self, view: View, now: int, record: Any) -> int:
        if record is None:
            return 0
        self._record(view, now)
        return len(record.seqs)

    @under_lock
    def update(self, view: View, now: int, changes: Mapping[str, Any]) -> Settings:
        """Replace the file by one with other settings in the comment at its top; all settings then."""
        settings = view.settings.changed(changes)
        check_start(settings)
        if settings == view.settings:
            return settings
        if self.storage.names > 1:
            raise NotSupported(
                f"{self.path!r} has several names, which another file would part: edit the comment at its top"
            )
        self._record(view, now)
        data = kept = self.storage.read_all()
        if settings.keep_done is None:  # every message that is marked as done would be listed from now on
            kept = self._packed(view, now, data)[0]
        if not self.storage.replace_file(replace_head(kept, settings, view.line_end), len(data)):
            raise StoreUnavailable(
                f"another program has {self.path!r} open to append, and would go on in the old file: try again "
                "when it has closed it"
            )
        with suppress(DiskFull):  # advance() does the same later
            view = self.storage.current()
            view.ledger.state.keep_done_anew(self.advance(view))
            self._record(view, now)
        return settings

    @under_lock
    def pack(self, view: View, now: int) -> int:
        """Replace the file by one without done and removed messages; how many bytes that frees."""
        if self.storage.names > 1:
            _log.warning("%s is not packed: it has several names, which another file would part", self.path)
            return 0
        if is_appended(self.path):
            return 0
        self._record(view, now)
        data = self.storage.read_all()
        kept, moved = self._packed(view, now, data)
        if len(kept) < len(data) and not self.storage.replace_file(kept, len(data), moved):
            return 0
        return len(data) - len(kept)

    def _packed(self, view: View, now: int, data: bytes) -> tuple[bytes, dict[int, int]]:
        """The file without done and removed messages, whose keys are recorded first; new offsets of the others."""
        document = parse(data)
        over = packable(document, view)
        said = {facts(each).id for each in over}
        if keys := [[key, each, until] for key, (each, until) in view.keys.items() if each in said]:
            self.storage.record({"at": now, "keys": keys}, [], [])
        return without(data, over), _moved(document, over)

    @under_lock
    def headers(self, view: View, now: int, ids: Sequence[str], name: str) -> list[tuple[str, str | None]]:
        """Messages that exist, by id, and a header of each."""
        found = self._seen(view, _seqs(view, ids), None)
        return [(message.id, message.headers.get(name)) for message in found]

    # Moves to another queue (moves.py), whose caller has locked both

    def leavers(self, view: View, seqs: Sequence[int], now: int, headers: Headers) -> list[Leaver]:
        """Messages as another queue takes them."""
        leavers = []
        for seq, entry in zip(seqs, self.storage.read(seqs), strict=True):
            message, (page, at) = message_of(view, seq, entry), view.ledger.state.rows.locate(seq)
            made = headers(message.headers, message.reason) or None
            draft = Draft(
                message.payload, message.priority, made, created_at=message.created_at, group=message.group
            )
            visible_at = visible_after_move(page.state[at], page.visible_at[at], now)
            leavers.append(Leaver(draft, visible_at, page.expires_at[at]))
        return leavers

    def announce(self, view: View, now: int, leaving: Leaving) -> None:
        """Durably note which messages are about to move, by their numbers."""
        self._record(view, now)
        view.leaving = leaving
        notes = []
        for seq in leaving.ids:
            note = noted(view.ledger.state, seq, self._fresh(view, seq))
            note.byte = _CONTROLS.get(note.state, QUEUED)
            notes.append((seq, note))
        self.storage.record({"at": now, "leaving": leaving_as_json(leaving, view)}, notes, [])

    def entries(self, view: View, now: int, leavers: Sequence[Leaver], ids: Sequence[str]) -> list[bytes]:
        """The entries of messages that come from another queue."""
        made = [
            new_entry(each.draft, name, now, each.visible_at, each.expires_at)
            for each, name in zip(leavers, ids, strict=True)
        ]
        return _with_ends(made, view.line_end)

    def take_over(
        self,
        view: View,
        now: int,
        leavers: Sequence[Leaver],
        ids: Sequence[str],
        entries: Sequence[bytes],
        source: str,
    ) -> None:
        """Durably put messages that come from the queue in another file."""
        drafts, visible, expires = zip(*leavers, strict=True)
        view.ledger.take_over(drafts, visible, expires, None, now)
        crcs = [crc32(parse_one(entry, 0).content) for entry in entries]
        offsets = self.storage.append(entries, ids, now, taken=source)
        for entry, crc, each, offset in zip(entries, crcs, ids, offsets, strict=True):
            view.table.add(offset, len(entry), crc, now, QUEUED, each)

    def give_up(self, view: View, now: int, seqs: Sequence[int]) -> None:
        """Durably remove messages that another queue has; no move is open then."""
        view.ledger.remove(seqs, now)
        self._record(view, now, content={"leaving": {}})

    def forget_taken(self, view: View, now: int) -> None:
        """Durably note that the messages which came from another queue have left it."""
        self.storage.record({"at": now, "taken": ""}, [], [])

    # Listing

    @property
    def settings(self) -> Settings:
        return self.run(lambda view, now: view.settings)

    @under_lock
    def counts(self, view: View, now: int) -> dict[str, int]:
        return view.ledger.state.counts()

    def probe(self) -> None:
        """Raise if the files cannot be written; a full disk is no error, as messages can still be settled."""
        with suppress(DiskFull):
            self.run(lambda view, now: self.storage.probe())

    @under_lock
    def attempts(self, view: View, now: int, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        return [each for seq in _seqs(view, [id]) for each in view.ledger.state.attempts(seq)]

    @under_lock
    def message(self, view: View, now: int, id: str) -> Message | None:  # noqa: A002 - the contract's word
        return next(iter(self._seen(view, _seqs(view, [id]), None)), None)

    def peek(self, n: int, skip: int = 0) -> Iterator[Message]:
        """The next n messages in the order of claims, after `skip` others."""
        ids = self.run(lambda view, now: [view.table.ids[seq] for seq in view.ledger.state.peek(n + skip)])

        def page(view: View, now: int) -> list[Message]:
            return self._seen(view, _seqs(view, chosen), "available")

        for start in range(skip, len(ids), _CHUNK):
            chosen = ids[start : start + _CHUNK]
            yield from self.run(page)

    def messages(
        self, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """Messages in a state, in the order of the file, between two ids."""
        last, number = after, 0

        def page(view: View, now: int) -> list[Message]:
            nonlocal number
            number = view.table.by_id.get(last, number)  # an edit of the file may have changed it
            end = view.table.by_id.get(until, len(view.table.ids))
            seqs = [seq for seq in view.ledger.state.listed(state, number + 1, _CHUNK) if seq <= end]
            number = seqs[-1] if seqs else number
            return self._seen(view, seqs, None)

        while found := self.run(page):
            last = found[-1].id
            yield from found

    def _seen(self, view: View, seqs: Sequence[int], state: str | None) -> list[Message]:
        there = [seq for seq in seqs if view.ledger.state.has(seq)]
        entries = zip(there, self.storage.read(there), strict=True)
        return [each for each in (message_of(view, *pair) for pair in entries) if state in (None, each.state)]

    # Writing

    def _record(
        self,
        view: View,
        now: int,
        done: set[int] | None = None,
        settled: Sequence[list[object]] = (),
        receipts: dict[int, str] | None = None,
        writes: Sequence[tuple[int, bytes]] = (),
        with_writes: set[int] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> None:
        """Write all changes of this operation and of time: notes, control characters and variables.

        `receipts` are new leases by message number. The caller has the variable writes of messages `with_writes`.
        `content` are other parts of the line.
        """
        notes, writes = [], list(writes)
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
                        writes += removal_writes(*self.storage.read([seq]))
            else:
                note.byte = _CONTROLS.get(note.state, QUEUED)
            if note.state == "in_flight":
                note.receipt = (receipts or {}).get(seq) or (before.receipt if before else None)
            notes.append((seq, note))
            if note.byte == QUEUED and seq not in (with_writes or ()):
                writes += self._variable_writes(view, seq, note)
        if not notes and not settled and not content:
            return
        said = {"at": now, **(content or {})}
        if settled:
            said["settled"] = list(settled)
        if removed and (keys := [[key, *each] for key, each in view.keys.items() if each[0] in removed]):
            said["keys"] = keys  # a removed message is a comment, whose key is not read
        self.storage.record(said, notes, writes)
        view.changed.clear()
        view.ledger.state.gone.clear()

    def _fresh(self, view: View, seq: int) -> Note:
        table, persons = view.table, view.is_persons(seq)
        offset = table.offsets[seq]
        twin = view.twins.of(offset, table.crcs[seq]) if persons else (0, 1)
        return Note(offset, table.crcs[seq], QUEUED, "", None if persons else table.ids[seq], twin)

    def _variable_writes(self, view: View, seq: int, note: Note) -> list[tuple[int, bytes]]:
        [entry] = self.storage.read([seq])
        if note.state == "in_flight" and note.receipt is not None:
            return lease_writes(entry, note.attempts, note.ends_at, note.receipt[-16:], note.consumer or "")
        return release_writes(entry, note.attempts)

    # The end

    def delete(self, link: str | None = None) -> None:
        """Remove the files, or only the symbolic link to them."""
        self.run(lambda view, now: self.storage.remove(link))
        self._refuse_waiting(lambda: QueueNotFound(f"queue {self.name!r} was deleted"))


def _with_ends(entries: list[bytes], line_end: bytes) -> list[bytes]:
    """Entries with the line ends that the rest of the file has."""
    return entries if line_end == b"\n" else [entry.replace(b"\n", line_end) for entry in entries]


def _past(moved: Sequence[Moved], first: int, now: int) -> Restore:
    """The record of the states that messages had in another store; they are numbered from `first` on."""
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


def packable(document: Document, view: View) -> list[Entry]:
    """The entries that packing drops: done and no longer listed, or removed by Penstock and not by a person."""
    listed = {view.table.offsets[seq] for seq in view.ledger.state.listed("done", 0, len(view.table.ids))}

    def is_over(entry: Entry) -> bool:
        if entry.control == PROCESSED:
            return entry.offset not in listed
        return entry.control == COMMENT and facts(entry).removed

    return dropped(document, is_over)


def _moved(document: Document, over: Sequence[Entry]) -> dict[int, int]:
    """The new offsets of the entries that packing keeps."""
    gone, freed, moved = {each.offset for each in over}, 0, {}
    for entry in document.entries:
        if entry.offset in gone:
            freed += entry.length
        else:
            moved[entry.offset] = entry.offset - freed
    return moved


def _numbered(view: View, drafts: Sequence[Draft], now: int) -> tuple[list[str | None], Sequence[Draft]]:
    """New ids, None for drafts whose key is known; and the drafts with new ids, without their keys."""
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
    """The id of each draft; for a known key, the id of its first message."""
    return [
        view.keys[draft.key or ""][0] if each is None else each for draft, each in zip(drafts, ids, strict=True)
    ]


def _text_crc(entry: bytes) -> int:
    """The checksum of the text of a new entry."""
    end = entry.index(b"\n\\")
    return crc32(entry[1:end].replace(b"\n ", b"\n"))
