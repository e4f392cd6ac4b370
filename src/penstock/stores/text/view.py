"""A process's view of a text queue: its ledger, offsets, leases and keys, made from the two files. Pure.

Lines that a shell has appended are added to a view that is already there, if they are nothing but new messages
and comments. For all else, such as a line that continues the last message, the files are read whole.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from zlib import crc32

from penstock.contract.message import Message
from penstock.contract.settings import FIVE_MINUTES, Settings
from penstock.engine.views import as_seen
from penstock.rules.ledger import Ledger
from penstock.rules.rows import AVAILABLE, DELAYED, DONE, FAILED, GONE
from penstock.stores.text.files import KnownBytes
from penstock.stores.text.format import COMMENT, PROCESSED, QUEUED, Document, Entry, Problem, parse
from penstock.stores.text.format import FAILED as CRITICAL
from penstock.stores.text.identity import Identity, Twins, by_content, in_place
from penstock.stores.text.ledger import Row, append_row, load_state, packed
from penstock.stores.text.mutex import Leaving, Memory, Note, Seal
from penstock.stores.text.variables import Facts, body, facts, is_head, read_head, restoring_writes

FAR = 253_402_300_799_000  # the end of the year 9999: delays a message that another program has marked in \mutex=


class Table:
    """Offsets, lengths, checksums and ids of a file's messages, numbered from 1 in the order of the file."""

    def __init__(self) -> None:
        self.offsets = array("q", [-1])
        self.lengths = array("q", [0])
        self.crcs = array("Q", [0])
        self.received = array("q", [0])
        self.controls = bytearray(b"#")
        self.ids = [""]
        self.by_id: dict[str, int] = {}

    def add(self, offset: int, length: int, crc: int, received_at: int, control: str, id: str) -> None:  # noqa: A002
        """Append a message."""
        self.by_id[id] = len(self.ids)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.crcs.append(crc)
        self.received.append(received_at)
        self.controls.append(ord(control))
        self.ids.append(id)

    def at(self, offset: int) -> int | None:
        """The number of the message at an offset."""
        seq = bisect_left(self.offsets, offset)
        return seq if seq < len(self.offsets) and self.offsets[seq] == offset else None


@dataclass
class View:
    """A queue at the end of the last operation."""

    settings: Settings
    ledger: Ledger
    table: Table
    problems: list[Problem]
    changed: dict[int, None] = field(default_factory=dict)  # messages whose note is out of date
    notes: dict[int, Note] = field(default_factory=dict)  # the last note of each message
    receipts: dict[str, int] = field(default_factory=dict)  # messages in flight by receipt
    settled: dict[str, tuple[int, int]] = field(default_factory=dict)  # settled receipts: how and when
    keys: dict[str, tuple[str, int]] = field(default_factory=dict)  # message id and time of expiry by key
    seen: list[tuple[int, int]] = field(default_factory=list)  # [offset, time], as in the mutex file
    new_seen: list[tuple[int, int]] = field(default_factory=list)  # those that are not written yet
    twins: Twins = field(default_factory=Twins)
    at: int = 0  # the latest time in the files
    ahead: int = 0  # the latest time of a message that is too far in the future to be followed
    end: int = 0  # of the queue's file
    content: KnownBytes = field(default_factory=KnownBytes)  # of the queue's file
    ended: bool = False  # whether a newline is known to be before the end
    line_end: bytes = b"\n"
    mutex_end: int = 0
    seal: Seal | None = None  # of the queue's file
    forgotten: int = 0  # when expired receipts and keys were last dropped
    leaving: Leaving | None = None  # by message number, as `taken` of a move that was interrupted
    taken: str = ""

    def __post_init__(self) -> None:
        self.ledger.state.changed = self.changed

    def keep_note(self, seq: int, note: Note) -> None:
        """Take over a note that was written, and its receipt."""
        before = self.notes.get(seq)
        if before is not None and before.receipt is not None:
            self.receipts.pop(before.receipt, None)
        if note.state == "gone":
            self.notes.pop(seq, None)
            return
        self.notes[seq] = note
        if note.state == "in_flight" and note.receipt is not None:
            self.receipts[note.receipt] = seq

    @property
    def is_moving(self) -> bool:
        """Whether a move was interrupted."""
        return self.leaving is not None or bool(self.taken)

    def noted(self) -> int:
        """About how many bytes a rewritten mutex file would have."""
        return 300 * len(self.notes) + 60 * len(self.settled) + 120 * len(self.keys)

    def forget(self, now: int) -> None:
        """Drop receipts and keys after their five minutes."""
        if now - self.forgotten < 1_000:
            return
        self.forgotten = now
        for receipt in [each for each, (_, at) in self.settled.items() if at + FIVE_MINUTES < now]:
            del self.settled[receipt]
        for key in [each for each, (_, until) in self.keys.items() if until <= now]:
            del self.keys[key]

    def is_persons(self, seq: int) -> bool:
        """Whether a person wrote the message."""
        return "-" in self.table.ids[seq]

    def is_kept(self, id: str) -> bool:  # noqa: A002
        """Whether the queue's file has the message, and with it its key; that of a comment is not read."""
        seq = self.table.by_id.get(id)
        return seq is not None and self.table.controls[seq] != ord(COMMENT)

    def first_seen(self, offset: int) -> int | None:
        """When a person's message was first seen; its entry has no time."""
        for seen in (self.seen, self.new_seen):
            at = bisect_right(seen, offset, key=lambda each: each[0])
            if at < len(seen):
                return seen[at][1]
        return None

    def see(self, seen: Sequence[tuple[int, int]]) -> None:
        """Take over what another process has noted of when messages were first seen."""
        self.seen += seen
        self.new_seen = [each for each in self.new_seen if not self.seen or each[0] > self.seen[-1][0]]

    def see_new(self, entries: Sequence[Entry], modified: int) -> None:
        """Note when people's messages were first seen that have come since the last time."""
        known = max([end for end, _ in (*self.seen[-1:], *self.new_seen[-1:])], default=0)
        persons = (
            entry
            for entry in reversed(entries)
            if entry.control != COMMENT
            and (entry.variable("received") is None or facts(entry).received_at is None)
        )
        last = next(persons, None)
        if last is not None and last.offset >= known:
            self.new_seen.append((self.end, modified))

    def counted(self, note: Note) -> Note:
        """The note with the number of messages that read alike by now."""
        return note if note.id is not None else replace(note, twin=self.twins.of(note.offset, note.crc))

    def add_problems(self, document: Document, lines: int) -> list[Problem]:
        """Add the problems of appended entries, which have so many lines above them; the new ones."""
        new = [problem._replace(line=problem.line + lines) for problem in document.problems]
        new += _odd(document.entries, map(facts, document.entries))
        self.problems += new
        return new

    def is_plain(self, document: Document) -> bool:
        """Whether appended lines are new messages and comments that change nothing above them."""
        first = document.entries[0].offset if document.entries else None
        if any(first is None or problem.offset < first for problem in document.problems):
            return False  # they continue the last message
        for entry in document.entries:
            said = facts(entry)
            if entry.control not in (QUEUED, COMMENT) or is_head(entry) or said.id or said.lease:
                return False
        return len(self.table.ids) > 1  # else the file may get its line ends from them

    def noted_twins(self, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Texts of appended entries that messages with a note have too, and how many will read alike."""
        added = Counter(crc32(entry.content) for entry in entries)
        known = {note.crc for note in self.notes.values() if note.id is None}
        return [(crc, self.twins.counts[crc] + count) for crc, count in added.items() if crc in known]

    def arrive(self, entries: Sequence[Entry], now: int, horizon: int) -> int:
        """Add entries that another process or a person has appended; the latest time of their puts."""
        latest = 0
        for entry in entries:
            said = facts(entry)
            if entry.control == COMMENT:
                if said.id is None:
                    self.twins.add(entry.offset, crc32(entry.content))
                continue
            received_at = said.received_at or self.first_seen(entry.offset) or now
            # As if it were new: its note, if it has one, is applied after this.
            row = _row(replace(entry, control=QUEUED), said, received_at, self.settings, now, horizon)
            self.add(entry, said, row)
            latest = max(latest, row.received_at)
        return latest

    def add(self, entry: Entry, said: Facts, row: Row) -> None:
        """Add an appended message."""
        crc = crc32(entry.content)
        name = said.id if said.id and said.id not in self.table.by_id else person_id(entry.offset, crc)
        if name != said.id:
            self.twins.add(entry.offset, crc)
        self.table.add(entry.offset, entry.length, crc, row.received_at, entry.control, name)
        append_row(self.ledger.state, row)
        if said.key is not None:
            self.keys[said.key] = (name, row.received_at + FIVE_MINUTES)


class Loaded(NamedTuple):
    """A view, bytes to write into the queue's file, and whether the mutex file must be rewritten."""

    view: View
    repairs: list[tuple[int, str]]
    rewrite: bool


def person_id(offset: int, crc: int) -> str:
    """The id of a message without an id in the file."""
    return f"{offset}-{crc:08x}"


def load(
    name: str,
    document: Document,
    size: int,
    memory: Memory,
    intact: bool,
    modified: int,
    now: int,
    horizon: int,
    damaged: bool = False,
    grown: int | None = None,
    moved: Mapping[int, int] | None = None,
) -> Loaded:
    """Make a view from the entries of the queue's file and the content of the mutex file.

    `intact`: only Penstock has changed the file since the last seal. `horizon`: the latest time that is followed.
    `damaged`: the mutex file has a damaged line, and the lines from there on are lost. `grown`: by how many bytes
    the file has grown since the last seal. `moved`: the new offsets of entries that packing has kept.
    """
    entries = document.entries
    settings, _, odd = read_head(entries)
    said = [facts(entry) for entry in entries]
    counts = Counter(each.id for each in said if each.id is not None)
    known = [
        Identity(entry.offset, crc32(entry.content), each.id if each.id and counts[each.id] == 1 else None)
        for entry, each in zip(entries, said, strict=True)
    ]
    controls = [entry.control for entry in entries]
    repairs: list[tuple[int, str]] = []
    for at, each in enumerate(said):
        if each.id in memory.born and controls[at] == COMMENT:
            controls[at] = QUEUED
            repairs.append((entries[at].offset, QUEUED))
    # The times of puts, because time never runs backwards for a store.
    times = [
        each.received_at
        for control, each in zip(controls, said, strict=True)
        if control != COMMENT and each.id is not None and each.received_at is not None
    ]
    latest = max((time for time in times if time <= horizon), default=0)
    now = max(now, latest)
    if moved is not None:
        there = [replace(note, offset=moved.get(note.offset, -1)) for note in memory.notes.values()]
        notes = in_place(there, known)
    else:
        there = list(memory.notes.values())
        notes = in_place(there, known) if intact else by_content(there, known, grown)
    rewrite = False
    for at, note in list(notes.items()):
        if controls[at] == note.byte:
            continue
        if note.offset in memory.pending:
            repairs.append((entries[at].offset, note.byte))
            controls[at] = note.byte
        else:
            rewrite = True
            del notes[at]
            if (edited := _edited(note, controls[at], now)) is not None:
                notes[at] = edited
    for entry, control, each in zip(entries, controls, said, strict=True):
        if each.removed and control == QUEUED:
            repairs += restoring_writes(entry)
    problems = [*document.problems, *(Problem(0, *each) for each in odd), *_odd(entries, said)]
    view = View(settings, Ledger(name, settings), Table(), problems, at=max(memory.at, latest), end=size)
    view.twins = Twins(known)
    view.seen = sorted(
        (min(end, size), time) for end, time in memory.seen
    )  # bytes after the end will be new messages
    if memory.leaving is not None:
        view.leaving = Leaving(memory.leaving.to, {})
    view.taken = memory.taken
    settled = {receipt for receipt, _, _ in memory.settled}
    view.see_new(entries, min(modified, now))
    rows: list[Row] = []
    for at, entry in enumerate(entries):
        if controls[at] == COMMENT:
            continue
        each, found = said[at], notes.get(at)
        received_at = each.received_at if each.received_at is not None else view.first_seen(entry.offset) or 0
        if received_at > horizon:
            view.ahead = max(view.ahead, received_at)
        id_ = known[at].id or person_id(entry.offset, known[at].crc)
        if each.key is not None and received_at + FIVE_MINUTES > now:
            view.keys[each.key] = (id_, received_at + FIVE_MINUTES)
        row = _row(replace(entry, control=controls[at]), each, received_at, settings, now, horizon)
        if (damaged or not memory.lines) and row.state in (AVAILABLE, DELAYED):
            # The mutex file or a line of it is lost: the message's own variables may have a lease.
            held = _said_lease(entry, each, known[at].crc, id_, found)
            if held is not None and held.ends_at > now and held.receipt not in settled:
                found, rewrite = held, True
        if found is not None:
            found = _marked(found, each, now)
        if (found.state if found else row.state) in ("gone", GONE):
            continue
        rows.append(row)
        view.table.add(entry.offset, entry.length, known[at].crc, received_at, controls[at], id_)
        if found is not None:
            if memory.leaving is not None and view.leaving is not None and found.offset in memory.leaving.ids:
                view.leaving.ids[len(rows)] = memory.leaving.ids[found.offset]
            twin = view.twins.of(entry.offset, known[at].crc) if known[at].id is None else (0, 1)
            found = replace(found, offset=entry.offset, twin=twin)
            view.keep_note(len(rows), found)
    load_state(view.ledger.state, rows, view.notes, packed(view.notes))
    view.settled = {receipt: (how, when) for receipt, how, when in memory.settled}
    view.keys |= {key: (each, until) for key, each, until in memory.keys if until > now}
    view.mutex_end = memory.end
    return Loaded(view, repairs, rewrite)


def message_of(view: View, seq: int, entry: Entry) -> Message:
    """The message for callers, from its state and its entry in the file."""
    message = as_seen(seq, view.ledger)
    message.id = view.table.ids[seq]
    message.received_at = view.table.received[seq]
    message.payload, message.headers, message.created_at = body(entry, message.received_at)
    message.claimed_at = message.claimed_at or None
    return message


def _odd(entries: Iterable[Entry], said: Iterable[Facts]) -> list[Problem]:
    """Values in messages that cannot be parsed; their lines are counted when they are shown."""
    return [
        Problem(0, *each)
        for entry, about in zip(entries, said, strict=True)
        if entry.control != COMMENT
        for each in about.odd
    ]


def _row(entry: Entry, said: Facts, received_at: int, settings: Settings, now: int, horizon: int) -> Row:
    # A message that a clock far ahead has stamped is available at once.
    visible_at = said.visible_at if said.visible_at is not None else received_at if received_at <= horizon else now
    if said.mark:
        visible_at = FAR
    if entry.control == QUEUED:
        state = DELAYED if visible_at > now else AVAILABLE
    elif entry.control == PROCESSED:
        state = DONE if settings.keep_done is None else GONE  # the file has no time of its ack
    else:
        state = FAILED
    return Row(state, said.priority, visible_at, said.expires_at or 0, said.attempts, received_at, said.group)


def _said_lease(entry: Entry, said: Facts, crc: int, id: str, noted: Note | None) -> Note | None:  # noqa: A002
    """A note with the lease in a message's own variables, based on its last note; None if it has no lease."""
    if said.lease is None:
        return None
    until, secret = said.lease
    note = noted or Note(entry.offset, crc, QUEUED, "in_flight", said.id)
    receipt = f"{id}.{secret}"
    if note.state == "in_flight" and note.receipt == receipt:
        until = max(until, note.ends_at)
    attempts = max(said.attempts, note.attempts)
    return replace(note, state="in_flight", attempts=attempts, ends_at=until, receipt=receipt)


def _marked(note: Note, said: Facts, now: int) -> Note:
    """Delay a waiting message that another program has marked in `\\mutex=`, until the mark is gone."""
    if note.state not in ("available", "delayed"):
        return note
    # A mark of Penstock's may be left from a lease before a crash.
    ours = [str(each[1] or "") for each in note.history] + [note.consumer or ""]
    if said.mark and not any(consumer.startswith(said.mark) for consumer in ours):
        return replace(note, state="delayed", visible_at=FAR)
    return replace(note, state="available", visible_at=now) if note.visible_at == FAR else note


def _edited(note: Note, control: str, now: int) -> Note | None:
    """The new note of a message whose control character a person has changed; None: it is a comment now."""
    if control == COMMENT:
        return None
    if control == QUEUED:
        return Note(note.offset, note.crc, control, "available", note.id, history=note.history, visible_at=now)
    state = "done" if control == PROCESSED else "failed"
    return replace(note, byte=control, state=state, ends_at=now, receipt=None)


_STATES = {COMMENT: "comment", PROCESSED: "done", CRITICAL: "failed"}


class Shown(NamedTuple):
    """A piece of the file: an entry, or a line outside of entries."""

    state: str  # a message's; or "comment", "skipped", "blank"
    raw: bytes
    id: str | None = None
    entry: Entry | None = None

    def as_json(self) -> dict[str, Any]:
        """The piece for --json."""
        if self.entry is None:
            return {"state": self.state, "text": self.raw.decode(errors="replace")}
        return {
            "state": self.state,
            "id": self.id,
            "control": self.entry.control,
            "offset": self.entry.offset,
            "length": self.entry.length,
            "text": self.entry.content.decode(errors="replace"),
            "variables": [each.raw.decode(errors="replace") for each in self.entry.variables],
        }


def shown(data: bytes, view: View) -> list[Shown]:
    """All pieces of the file, in its order."""
    pieces: list[Shown] = []
    at = 0
    states = {
        message: state
        for state in view.ledger.state.counts()
        for message in view.ledger.state.listed(state, 0, 1 << 62)
    }
    for entry in parse(data).entries:
        pieces += _between(data[at : entry.offset])
        at = entry.offset + entry.length
        seq = view.table.at(entry.offset)
        state = _STATES.get(entry.control) or states.get(seq or 0, "expired")
        name = view.table.ids[seq] if seq is not None and entry.control != COMMENT else None
        pieces.append(Shown(state, data[entry.offset : at], name, entry))
    return pieces + _between(data[at:])


def _between(data: bytes) -> list[Shown]:
    return [Shown("skipped" if line.strip(b"\n") else "blank", line) for line in data.splitlines(keepends=True)]
