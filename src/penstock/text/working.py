"""A text queue at work: its rules, applied in turns that processes share, and the line of waiting consumers."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TypeAlias, TypeVar
from zlib import crc32

from penstock.clock import SteadyClock
from penstock.errors import LeaseExpired, PenstockError, QueueNotFound, StoreClosed
from penstock.files import Disk
from penstock.index.history import Attempt
from penstock.ledger import Receipt
from penstock.live.taken import as_seen
from penstock.message import Entry as Draft
from penstock.message import Message, Plain
from penstock.records import Record
from penstock.settings import FIVE_MINUTES, Settings
from penstock.state import ACKED, FAILED_ATTEMPT, RELEASED
from penstock.text.format import COMMENT, FAILED, PROCESSED, QUEUED, Entry, parse
from penstock.text.mutex import Note
from penstock.text.pair import Sync
from penstock.text.queue import without
from penstock.text.sharing import Edited, SharedFile
from penstock.text.variables import body, facts, free, held, unborn, unborn_plain
from penstock.text.view import View
from penstock.threads import Threads

_CHUNK = 256  # messages that are listed in one turn
_TRIES = 5  # to find the file as it was a moment ago
Result = TypeVar("Result")
Take: TypeAlias = Callable[[View, int], list[Message]]
_Settling: TypeAlias = Callable[[list[Receipt], int], tuple[Record | None, list[Receipt]]]
_BYTES = {"done": PROCESSED, "failed": FAILED}


class Waiter:
    """A consumer in line."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.served = Event()
        self.messages: list[Message] = []
        self.error: BaseException | None = None


class WorkingQueue:
    """One queue, safe for threads and processes."""

    def __init__(
        self,
        name: str,
        path: str,
        disk: Disk,
        clock: SteadyClock,
        threads: Threads,
        sync: Sync,
        waiting: Callable[["WorkingQueue"], None],
    ) -> None:
        self.name = name
        self.path = path
        self._waiting = waiting  # told when someone stands in line
        self.files = SharedFile(name, path, disk, clock, threads, sync)
        self._clock = clock
        self._line: dict[Waiter, None] = {}
        self._stopped: Callable[[], PenstockError] | None = None

    def run(self, operation: Callable[[View, int], Result]) -> Result:
        """An operation in a turn of its own; an error of the disk ends the work, as nobody knows what it left."""
        for _ in range(_TRIES):
            if self._stopped is not None:
                raise self._stopped()
            try:
                with self.files.turn() as view:
                    view, now = self._serve_first(view)
                    try:
                        result = operation(view, now)
                    except PenstockError:  # some receipts were lost, say: the others may have given messages back
                        self._serve_if_known(view, now)
                        raise
                    self._serve_if_known(view, now)
                    return result
            except Edited:
                continue
            except OSError as error:
                raise self._break(error) from error
        raise StoreClosed(f"the file {self.path!r} changes all the time: edit it while nobody uses it")

    def _serve_first(self, view: View) -> tuple[View, int]:
        """Let time pass, and serve those who came before; what is known then, and when that was."""
        while True:
            now = self._advance(view)
            self._serve(view, now)
            if self.files.known is view:
                return view, now
            view = self.files.current()  # the disk was too full for one in line, who was told

    def _advance(self, view: View) -> int:
        now = self._clock.now()
        view.ledger.advance(now)
        view.forget(now)
        return now

    def _break(self, error: OSError) -> StoreClosed:
        path = self.path

        def broken() -> StoreClosed:
            return StoreClosed(
                f"the disk failed while {path!r} was used ({error}), so that nobody knows what it holds: close "
                "the store and open it again"
            )

        self.stop(broken)
        return broken()

    # Putting

    def check(self, draft: Draft) -> None:
        """Raise what a put would raise."""
        self.run(lambda view, now: view.ledger.check([draft], now))

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        """Take in all entries or none; their ids."""
        return self.run(lambda view, now: self._put(view, drafts, now))

    def _put(self, view: View, drafts: Sequence[Draft], now: int) -> list[str]:
        ids, new = _numbered(view, drafts, now)
        record = view.ledger.put(new, now).record
        fresh = [each for each in ids if each is not None]
        if not fresh:
            return _answers(ids, drafts, view)
        if isinstance(new, Plain) and not any(record.expires_at):
            entries = unborn_plain(new.payloads, fresh, now)
        elif (
            len(new) == 1
            and new[0] == Draft(new[0].payload)
            and drafts[0].key is None
            and not record.expires_at[0]
        ):
            entries = unborn_plain([new[0].payload], fresh, now)
        else:
            chosen = [draft for draft, each in zip(drafts, ids, strict=True) if each is not None]
            columns = zip(chosen, fresh, record.visible_at, record.expires_at, strict=True)
            entries = [unborn(draft, each, now, visible, expires) for draft, each, visible, expires in columns]
        for entry, each, offset in zip(entries, fresh, self.files.append(entries, fresh, now), strict=True):
            view.table.add(offset, len(entry), _crc(entry), now, QUEUED, each)
        for draft, new_id in zip(drafts, ids, strict=True):
            if draft.key is not None and new_id is not None:
                view.keys[draft.key] = (new_id, now + FIVE_MINUTES)
        return _answers(ids, drafts, view)

    # Taking

    def claiming(self, n: int, lease: float, consumer: str) -> Take:
        """How to lease up to n messages."""

        def take(view: View, now: int) -> list[Message]:
            seqs = view.ledger.peek(n)
            if not seqs:
                return []
            entries = self.files.read(seqs)
            record = view.ledger.claim(n, lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                return []
            secret = f"{record.nonce:016x}"
            messages, mirrors = [], []
            given: dict[int, str] = {}
            for seq, entry in zip(record.seqs, entries, strict=True):
                view.ledger.changed[seq] = None
                message = _message(view, seq, entry)
                message.receipt = given[seq] = f"{message.id}.{secret}"
                messages.append(message)
                mirrors += held(entry, message.attempts, record.lease_until, secret, consumer)
            self._record(view, now, receipts=given, mirrors=mirrors, mirrored=set(record.seqs))
            return messages

        return take

    def popping(self, consumer: str) -> Take:
        """How to claim and acknowledge one message."""

        def take(view: View, now: int) -> list[Message]:
            seqs = view.ledger.peek(1)
            if not seqs:
                return []
            [message] = [
                _message(view, seq, entry) for seq, entry in zip(seqs, self.files.read(seqs), strict=True)
            ]
            view.ledger.pop(consumer, now)
            message.attempts += 1
            message.state, message.consumer = "done", consumer
            message.claimed_at = message.settled_at = now
            message.reason = None
            self._record(view, now, done=set(seqs))
            return [message]

        return take

    def take(self, take: Take, wait: float) -> list[Message]:
        """What a consumer gets, at once or after its turn in line."""
        waiter = Waiter(take)

        def begin(view: View, now: int) -> list[Message]:
            messages = take(view, now)
            if not messages and wait > 0:
                self._line[waiter] = None
            return messages

        messages = self.run(begin)
        if messages or wait <= 0:
            return messages
        try:
            self._waiting(self)
            if not self._clock.wait(waiter.served, wait) and waiter in self._line:
                self.run(lambda view, now: None)  # it may be served in this last moment
        except BaseException:
            self._line.pop(waiter, None)
            self._give_back(waiter.messages)
            raise
        self._line.pop(waiter, None)
        if waiter.error is not None:
            raise waiter.error
        return waiter.messages

    @property
    def in_line(self) -> int:
        """How many consumers wait."""
        return len(self._line)

    def serve(self) -> None:
        """Give those who wait what has become available."""
        try:
            self.run(lambda view, now: None)
        except QueueNotFound as error:
            gone = error
            self._send_away(lambda: gone)
        except PenstockError:
            return  # those in line were told

    def is_due(self) -> bool:
        """Whether there may be something for those who wait: others have changed the files, or it is time."""
        with self.files.lock:
            view = self.files.known
            if view is None or view.ledger.available():
                return True
            due = view.ledger.next_time()
            return (due is not None and due <= self._clock.now()) or self.files.changed_outside()

    def _serve(self, view: View, now: int) -> None:
        while self._line and self.files.known is view and view.ledger.available():
            waiter = next(iter(self._line))
            try:
                waiter.messages = waiter.take(view, now)
            except PenstockError as error:  # the consumer's to know
                waiter.error = error
            self._line.pop(waiter, None)
            waiter.served.set()

    def _serve_if_known(self, view: View, now: int) -> None:
        """The same after an operation, unless that has put other files in the place of those that we know."""
        if self.files.known is view:
            self._serve(view, now)

    def _give_back(self, messages: list[Message]) -> None:
        receipts = [message.receipt for message in messages if message.receipt is not None]
        if receipts:
            with suppress(PenstockError):
                self.release(receipts)

    # Settling

    def ack(self, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self.run(lambda view, now: self._settle(view, now, receipts, ACKED, view.ledger.ack))

    def fail(self, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""

        def fail(view: View, now: int) -> None:
            def end(given: list[Receipt], now: int) -> tuple[Record | None, list[Receipt]]:
                return view.ledger.fail(given, delay, reason, now)

            self._settle(view, now, receipts, FAILED_ATTEMPT, end)

        self.run(fail)

    def release(self, receipts: Sequence[str]) -> None:
        """Give back."""
        self.run(lambda view, now: self._settle(view, now, receipts, RELEASED, view.ledger.release))

    def _settle(self, view: View, now: int, receipts: Sequence[str], how: int, settle: _Settling) -> None:
        given, lost = self._given(view, receipts)
        lost = [receipt for receipt in lost if view.settled.get(receipt, (0, 0))[0] != how]
        record, refused = settle(list(given.values()), now)
        if record is not None:
            settled = [receipt for receipt, each in given.items() if each not in refused]
            done = {seq for seq, _ in given.values()} if how == ACKED else set()
            self._record(view, now, done=done, settled=[[receipt, how] for receipt in settled])
            view.settled |= dict.fromkeys(settled, (how, now))
        lost += [receipt for receipt, each in given.items() if each in refused]
        if lost:
            raise LeaseExpired(self.name, [each for each in dict.fromkeys(receipts) if each in lost])

    def extend(self, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on; until when, and which receipts were lost."""

        def extend(view: View, now: int) -> tuple[int, list[str]]:
            given, lost = self._given(view, receipts)
            record, refused = view.ledger.extend(list(given.values()), lease, now)
            if record is not None:
                view.ledger.changed |= dict.fromkeys(record.seqs)
                self._record(view, now)
            lost += [receipt for receipt, each in given.items() if each in refused]
            return view.ledger.lease_end(lease, now), [each for each in receipts if each in lost]

        return self.run(extend)

    def _given(self, view: View, receipts: Sequence[str]) -> tuple[dict[str, Receipt], list[str]]:
        """Receipts that hold their message, each with its number and secret; and the others."""
        given: dict[str, Receipt] = {}
        lost = []
        for receipt in receipts:
            seq = view.receipts.get(receipt)
            nonce = None if seq is None else view.ledger.holds(seq)
            if seq is None or nonce is None or f"{nonce:016x}" != receipt[-16:]:
                lost.append(receipt)
            else:
                given[receipt] = (seq, nonce)
        return given, lost

    # What else changes

    def remove(self, ids: Sequence[str]) -> int:
        """Take messages out in any state; how many."""
        return self._change(lambda view, now: view.ledger.remove(_seqs(view, ids), now))

    def redrive(self, ids: Sequence[str] | None) -> int:
        """Start over with failed messages; how many."""
        return self._change(lambda view, now: view.ledger.redrive(None if ids is None else _seqs(view, ids), now))

    def purge(self) -> int:
        """Take out everything but what is in flight; how many."""
        return self._change(lambda view, now: view.ledger.purge(now))

    def _change(self, change: Callable[[View, int], Record | None]) -> int:
        def run(view: View, now: int) -> int:
            record = change(view, now)
            if record is None:
                return 0
            self._record(view, now)
            return len(record.seqs)  # type: ignore[union-attr]

        return self.run(run)

    def pack(self) -> int:
        """Drop what is done from the file, and what was taken out; how many bytes that frees."""

        def run(view: View, now: int) -> int:
            self._record(view, now)
            data = self.files.read_all()
            listed = {view.table.offsets[seq] for seq in view.ledger.listed("done", 0, len(view.table.ids))}
            kept = without(data, [each for each in parse(data).entries if _is_over(each, listed)])
            if len(kept) < len(data):
                keys = [[key, each, until] for key, (each, until) in view.keys.items()]
                if keys:  # what stood in the file is noted before it goes
                    self.files.record({"at": now, "keys": keys}, [], [])
                self.files.replace_file(kept)
            return len(data) - len(kept)

        return self.run(run)

    # Looking

    @property
    def settings(self) -> Settings:
        """What the queue was created with."""
        return self.run(lambda view, now: view.settings)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return self.run(lambda view, now: view.ledger.counts())

    def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self.run(
            lambda view, now: [each for seq in _seqs(view, [id]) for each in view.ledger.attempts(seq)]
        )

    def peek(self, n: int) -> Iterator[Message]:
        """What claim would give."""
        ids = self.run(lambda view, now: [view.table.ids[seq] for seq in view.ledger.peek(n)])
        for start in range(0, len(ids), _CHUNK):
            chosen = ids[start : start + _CHUNK]
            yield from self.run(partial(self._peeked, chosen))

    def _peeked(self, ids: Sequence[str], view: View, now: int) -> list[Message]:
        return self._seen(view, _seqs(view, ids), "available")

    def messages(self, state: str | None, after: str = "", until: str = "") -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        last, number = after, 0

        def page(view: View, now: int) -> list[Message]:
            nonlocal number
            number = view.table.by_id.get(last, number)  # another by now, if the file was edited
            end = view.table.by_id.get(until, len(view.table.ids))
            seqs = [seq for seq in view.ledger.listed(state, number + 1, _CHUNK) if seq <= end]
            number = seqs[-1] if seqs else number
            return self._seen(view, seqs, None)

        while found := self.run(page):
            last = found[-1].id
            yield from found

    def _seen(self, view: View, seqs: Sequence[int], state: str | None) -> list[Message]:
        there = [seq for seq in seqs if view.ledger.has(seq)]
        entries = zip(there, self.files.read(there), strict=True)
        return [each for each in (_message(view, *pair) for pair in entries) if state in (None, each.state)]

    # Writing down

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

    # The end

    def delete(self) -> None:
        """Remove the queue and its messages."""
        self.run(lambda view, now: self.files.remove())
        self._send_away(lambda: QueueNotFound(f"queue {self.name!r} was deleted"))

    def stop(self, error: Callable[[], PenstockError]) -> None:
        """From now on every call, those in line included, gets this error."""
        self._stopped = error
        self._send_away(error)

    def _send_away(self, error: Callable[[], PenstockError]) -> None:
        for waiter in list(self._line):
            if self._line.pop(waiter, 0) is None:
                waiter.error = error()
                waiter.served.set()


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


def _message(view: View, seq: int, entry: Entry) -> Message:
    message = as_seen(seq, view.ledger)
    message.id = view.table.ids[seq]
    message.received_at = view.table.received[seq]
    message.payload, message.headers, message.created_at = body(entry, message.received_at)
    message.claimed_at = message.claimed_at or None
    return message


def _crc(entry: bytes) -> int:
    """The checksum of the text of an entry that was just written."""
    end = entry.index(b"\n\\")
    return crc32(entry[1:end].replace(b"\n ", b"\n"))


def _seqs(view: View, ids: Sequence[str]) -> list[int]:
    return [seq for each in ids if (seq := view.table.by_id.get(each)) is not None]


def _is_over(entry: Entry, listed: set[int]) -> bool:
    """Whether packing drops the entry: it is done and listed no more, or was put by us and taken out."""
    if entry.control == PROCESSED:
        return entry.offset not in listed
    return entry.control == COMMENT and facts(entry).id is not None
