r"""The mutex file of a text queue, `NAME.tq.mutex`: what the queue itself has no room for. Pure bytes.

    penstock mutex 1 INODE SIZE CHANGED\n        the seal: the queue's file as Penstock last left it, fixed width
    . CRC32 JSON\n                               a change, in the order of time
    > CRC32 JSON\n                               the same, of which bytes in the queue's file may still be missing

The holder of the lock appends a line, syncs it, changes the bytes in the queue's file, syncs those, and turns `>`
into `.`. So only the last line can have `>`, and the process that finds that finishes it. A line whose checksum is
wrong is the torn end. The seal is never synced: if it does not fit, the queue's file is compared with what is
known, by message, and every byte that differs was changed by a person. In its place stands `doubtful` after an
error of the disk: see files.py.

JSON of a line, each part only if there is something to say:

    at        the time
    notes     messages by offset, each as it is from now on; an earlier note of the same message means nothing
    born      ids of messages that were appended together; those still commented out are to be uncommented, or to
              get the control characters of their notes, if they come from another store as something else
    settled   [receipt, how] of receipts that were settled; repeating that does nothing for five minutes
    keys      [key, id, until] of messages that left the file
    seen      [offset, time]: messages of people before that offset were there at that time
    all       true if earlier lines are forgotten: the first line of a file that was written anew

A program that knows none of the words skips them; one that removes the file loses leases, and nothing else that
the queue's own variables say.
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


class Seal(NamedTuple):
    """What tells a queue's file from others, and from itself after a change."""

    inode: int
    size: int
    changed: int  # nanoseconds since the epoch


@dataclass(slots=True)
class Note:
    """A message that has a state of its own: where it is, what it reads like, and what became of it."""

    offset: int
    crc: int
    byte: str  # its control character
    state: str  # one of STATES, or "gone"
    id: str | None = None  # of a message that Penstock has put
    twin: tuple[int, int] = (0, 1)  # of a person's: it is number k of n with this text
    attempts: int = 0
    visible_at: int = 0
    claimed_at: int = 0
    ends_at: int = 0  # in_flight: end of the lease; done and failed: when it was settled
    receipt: str | None = None
    consumer: str | None = None
    reason: str | None = None
    history: list[list[Any]] = field(default_factory=list)


class Memory(NamedTuple):
    """What the lines of a mutex file say altogether."""

    at: int
    notes: dict[int, Note]  # by offset
    settled: list[tuple[str, int, int]]  # receipt, how, when
    keys: list[tuple[str, str, int]]  # key, id, until when
    seen: list[tuple[int, int]]
    pending: frozenset[int]  # offsets of notes whose bytes may be missing
    born: frozenset[str]  # ids of messages that may still be commented out
    end: int  # where the last line ends
    lines: int
    last: int  # where the last line starts


EMPTY = Memory(0, {}, [], [], [], frozenset(), frozenset(), HEAD, 0, HEAD)


def seal_of(status: Status) -> Seal:
    """The seal for a file as it is."""
    return Seal(status.inode, status.size, status.changed)


def write_seal(seal: Seal) -> bytes:
    """The first line."""
    return b"%s %020d %020d %020d\n" % (_MAGIC, *seal)


def read_seal(head: bytes) -> Seal | None:
    """What the first line says; None if it is none."""
    parts = head[:HEAD].split()
    if len(head) < HEAD or parts[:3] != _MAGIC.split() or len(parts) != 6:
        return None
    try:
        return Seal(*map(int, parts[3:]))
    except ValueError:
        return None


def line(content: dict[str, Any], pending: bool) -> bytes:
    """A line."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    return b"%s %08x %s\n" % (PENDING if pending else DONE, crc32(text), text)


def note_as_json(note: Note) -> dict[str, Any]:
    """A note, without what is not worth saying."""
    said: dict[str, Any] = {"offset": note.offset, "crc": note.crc, "byte": note.byte, "state": note.state}
    for name in (
        "id",
        "attempts",
        "visible_at",
        "claimed_at",
        "ends_at",
        "receipt",
        "consumer",
        "reason",
        "history",
    ):
        if value := getattr(note, name):
            said[name] = value
    if note.reason == "":
        said["reason"] = ""
    if note.id is None and note.twin != (0, 1):
        said["twin"] = note.twin
    return said


def read(data: bytes, start: int, before: Memory = EMPTY) -> Memory:
    """What the lines say from an offset on, after those before it."""
    notes, settled, keys = dict(before.notes), list(before.settled), list(before.keys)
    at, seen, lines, last = before.at, list(before.seen), before.lines, before.last
    pending: frozenset[int] = frozenset()
    born: frozenset[str] = frozenset()
    end, offset = start, 0
    while (stop := data.find(b"\n", offset)) >= 0 and (content := _content(data[offset:stop])) is not None:
        if content.get("all"):
            notes, settled, keys, seen = {}, [], [], []
        at = max(at, content.get("at", 0))
        fresh = [_note(each) for each in content.get("notes", ())]
        notes |= {note.offset: note for note in fresh}
        settled += [(receipt, how, content["at"] if not when else when[0])
                    for receipt, how, *when in content.get("settled", ())]  # fmt: skip
        keys += [(key, each, until) for key, each, until in content.get("keys", ())]
        seen += [(place, time) for place, time in content.get("seen", ())]
        is_pending = data[offset : offset + 1] == PENDING
        pending = frozenset(note.offset for note in fresh) if is_pending else frozenset()
        born = frozenset(content.get("born", ())) if is_pending else frozenset()
        lines, last = lines + 1, start + offset
        offset = stop + 1
        end = start + offset
    return Memory(at, notes, settled, keys, seen, pending, born, end, lines, last)


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
