r"""The mutex file of a text queue, `NAME.tq.mutex`: a log of states, leases and keys. Pure bytes.

    penstock mutex 1 INODE SIZE CHANGED\n        the seal: the queue's file as Penstock last left it, fixed width
    . CRC32 JSON\n                               a change, in the order of time
    > CRC32 JSON\n                               a change whose bytes in the queue's file may still be missing

The holder of the lock appends a line, syncs it, changes the bytes in the queue's file, syncs those, and turns `>`
into `.`. So only the last line can have `>`, and the next process completes it. A line whose checksum is wrong is
the torn end. The seal is never synced: if it does not match the queue's file, every message is compared with its
note, and every byte that differs was changed by a person. After an error of the disk, `doubtful` is in the place
of the seal: see files.py.

JSON of a line, each part only if it is not empty:

    at        the time
    notes     states of messages by offset; each replaces an earlier note of the same message
    born      ids of messages that were appended together; the next process uncomments them, or gives them the
              control characters of their notes, if they come from another store in another state
    settled   [receipt, how] of settled receipts, which can be repeated for five minutes
    keys      [key, id, until] of messages that left the file
    seen      [offset, time]: people's messages before that offset were received at that time
    texts     [crc, n]: n messages of people have the same text by now, as their notes would say
    leaving   {"to": PATH, "ids": [[offset, id], ...]}: these messages are about to move to the queue in that file,
              relative to this one's folder, where they have those ids; {}: they have left, or stay
    taken     PATH: the messages born in this line come from the queue in that file; "": they have left it
    all       true in the first line of a rewritten file: earlier lines are forgotten

Of `leaving` and `taken` the last one counts. While a queue has either, its move was interrupted, and both queues
are locked to finish it before anything else is done with them: messages that the other file has leave this one.

A program ignores parts that it does not know. Without the mutex file, a queue still has the states and leases that
are in its own variables.
"""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from penstock.system.files import Status

_MAGIC = b"penstock mutex 1"
HEAD = len(_MAGIC) + 3 * 21 + 1
PENDING, DONE = b">", b"."
UNSEALED = bytes(HEAD - 1) + b"\n"
DOUBTFUL = b"doubtful: a write or sync has failed".ljust(HEAD - 1) + b"\n"
_PREFIX = 11  # mark, space, eight digits, space
_OPTIONAL = ("id", "attempts", "visible_at", "claimed_at", "ends_at", "receipt", "consumer", "reason", "history")


class Seal(NamedTuple):
    """The identity of a queue's file, and of its content."""

    inode: int
    size: int
    changed: int  # nanoseconds since the epoch


@dataclass(slots=True)
class Note:
    """The state of one message that is not just available: how to find it in the file, and its past."""

    offset: int
    crc: int
    byte: str  # its control character
    state: str  # one of STATES, or "gone"
    id: str | None = None  # None: a message of a person
    twin: tuple[int, int] = (0, 1)  # a message of a person is number k of n with the same text
    attempts: int = 0
    visible_at: int = 0
    claimed_at: int = 0
    ends_at: int = 0  # in_flight: end of the lease; done and failed: when it was settled
    receipt: str | None = None
    consumer: str | None = None
    reason: str | None = None
    history: list[list[Any]] = field(default_factory=list)


class Leaving(NamedTuple):
    """Messages that are about to move to another queue."""

    to: str  # path of the other queue's file, relative to the folder of this one
    ids: dict[int, str]  # in the other queue, by offset in this one


class Memory(NamedTuple):
    """The content of a mutex file: all its lines together."""

    at: int
    notes: dict[int, Note]  # by offset
    settled: list[tuple[str, int, int]]  # receipt, how, when
    keys: list[tuple[str, str, int]]  # key, id, time of expiry
    seen: list[tuple[int, int]]
    pending: frozenset[int]  # offsets of notes whose bytes may be missing in the queue's file
    born: frozenset[str]  # ids of messages that may still be commented out
    end: int  # offset of the last line's end
    lines: int
    last: int  # offset of the last line
    leaving: Leaving | None = None
    taken: str = ""  # path of the queue that messages come from


EMPTY = Memory(0, {}, [], [], [], frozenset(), frozenset(), HEAD, 0, HEAD)


def seal_of(status: Status) -> Seal:
    """The seal of a file with that status."""
    return Seal(status.inode, status.size, status.changed)


def write_seal(seal: Seal) -> bytes:
    """The first line."""
    return b"%s %020d %020d %020d\n" % (_MAGIC, *seal)


def read_seal(head: bytes) -> Seal | None:
    """Parse the first line; None if it is not a seal."""
    parts = head[:HEAD].split()
    if len(head) < HEAD or parts[:3] != _MAGIC.split() or len(parts) != 6:
        return None
    try:
        return Seal(*map(int, parts[3:]))
    except ValueError:
        return None


def line(content: dict[str, Any], pending: bool) -> bytes:
    """Encode a line."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    return b"%s %08x %s\n" % (PENDING if pending else DONE, crc32(text), text)


def note_as_json(note: Note) -> dict[str, Any]:
    """A note without its default values."""
    said: dict[str, Any] = {"offset": note.offset, "crc": note.crc, "byte": note.byte, "state": note.state}
    for name in _OPTIONAL:
        value = getattr(note, name)
        if value or (name == "reason" and value is not None):
            said[name] = value
    if note.id is None and note.twin != (0, 1):
        said["twin"] = note.twin
    return said


def read(data: bytes, start: int, before: Memory = EMPTY) -> Memory:
    """Read lines from an offset on, and add them to the content before it."""
    notes, settled, keys = dict(before.notes), list(before.settled), list(before.keys)
    at, seen, lines, last = before.at, list(before.seen), before.lines, before.last
    pending: frozenset[int] = frozenset()
    born: frozenset[str] = frozenset()
    leaving, taken = before.leaving, before.taken
    end, offset = start, 0
    while (stop := data.find(b"\n", offset)) >= 0 and (content := _content(data[offset:stop])) is not None:
        if content.get("all"):
            notes, settled, keys, seen, leaving, taken = {}, [], [], [], None, ""
        at = max(at, content.get("at", 0))
        fresh = [_note(each) for each in content.get("notes", ())]
        notes |= {note.offset: note for note in fresh}
        settled += [(receipt, how, content["at"] if not when else when[0])
                    for receipt, how, *when in content.get("settled", ())]  # fmt: skip
        keys += [(key, each, until) for key, each, until in content.get("keys", ())]
        seen += [(place, time) for place, time in content.get("seen", ())]
        counts = dict(content.get("texts", ()))
        for note in notes.values() if counts else ():
            if note.id is None and note.crc in counts:
                note.twin = (note.twin[0], counts[note.crc])
        is_pending = data[offset : offset + 1] == PENDING
        pending = frozenset(note.offset for note in fresh) if is_pending else frozenset()
        born = frozenset(content.get("born", ())) if is_pending else frozenset()
        if (said := content.get("leaving")) is not None:
            leaving = Leaving(said["to"], dict(said["ids"])) if said else None
        taken = content.get("taken", taken)
        lines, last = lines + 1, start + offset
        offset = stop + 1
        end = start + offset
    return Memory(at, notes, settled, keys, seen, pending, born, end, lines, last, leaving, taken)


def _content(text: bytes) -> dict[str, Any] | None:
    try:
        crc = int(text[2 : _PREFIX - 1], 16)
    except ValueError:
        return None
    if text[:1] not in (PENDING, DONE) or crc32(text[_PREFIX:]) != crc:
        return None
    content: dict[str, Any] = json.loads(text[_PREFIX:])
    return content


def _note(said: dict[str, Any]) -> Note:
    twin = said.pop("twin", (0, 1))
    return Note(**said, twin=tuple(twin))
