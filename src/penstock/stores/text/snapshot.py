r"""A snapshot of a text queue for Spark: nothing is written, and plain messages are found without a parser.

A plain message has nothing but a payload, and was never claimed. It ends in these lines, which always have the
same length, and are compared by columns of NumPy:

    -PAYLOAD
    \id=9f86d081884c7d65
    \received=2026-11-16T07:30:55.123Z
    \attempts=0
    \lease=

A plain message needs no ledger either: it is available, and has no note.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.contract.message import Message
from penstock.rules.rows import FAILED
from penstock.stores.text import mutex
from penstock.stores.text.files import MutexLock
from penstock.stores.text.format import CONTROLS, QUEUED, Document, parse_one, scan
from penstock.stores.text.mutex import HEAD, Memory
from penstock.stores.text.variables import TAIL, facts
from penstock.stores.text.view import load, message_of
from penstock.system.clock import FOLLOWED
from penstock.system.files import Disk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]


_ID, _DIGIT = b"\0", b"\1"  # stand for a hexadecimal and for a decimal digit
_TIME = b"\1\1\1\1-\1\1-\1\1T\1\1:\1\1:\1\1.\1\1\1Z"
_END = np.frombuffer(b"\n\\id=" + _ID * 16 + b"\n\\received=" + _TIME + TAIL, np.uint8)
_IDS, _DIGITS = np.flatnonzero(_END == 0), np.flatnonzero(_END == 1)
_FIXED = np.flatnonzero(_END > 1)
_ROWS = 1 << 16  # messages that are compared together, which limits the memory


class Plain(NamedTuple):
    """The plain messages in the order of the file, and the start and end of all other entries."""

    starts: "Numbers"  # of their payloads
    stops: "Numbers"
    ids: "Bytes"  # 16 characters each
    received_at: "Numbers"
    others: list[tuple[int, int]]

    def part(self, start: int, stop: int) -> "Plain":
        """Some of the messages."""
        some = slice(start, stop)
        return Plain(self.starts[some], self.stops[some], self.ids[some], self.received_at[some], [])


def find(data: bytes, noted: Collection[int]) -> Plain:
    """Find the plain messages; `noted` are offsets of messages with a note."""
    found = scan(data)
    offsets = np.frombuffer(found.offsets, np.int64)
    controls = np.frombuffer(found.controls, np.uint8)
    ends = np.append(offsets[1:], len(data)) if len(offsets) else offsets
    likely = (controls == ord(QUEUED)) & (ends - offsets > len(_END)) & ~np.isin(offsets, list(noted))
    likely &= _is_text(data, offsets, ends)
    chosen = np.flatnonzero(likely)
    parts = [_compared(data, ends[chosen[at : at + _ROWS]]) for at in range(0, len(chosen), _ROWS)]
    fits, ids, received = (np.concatenate(each) for each in zip(_NONE, *parts, strict=True))
    plain = chosen[fits]
    likely[:] = True
    likely[plain] = False
    others = list(zip(offsets[likely].tolist(), ends[likely].tolist(), strict=True))
    return Plain(offsets[plain] + 1, ends[plain] - len(_END), ids, received, others)


def payloads(data: bytes, plain: Plain) -> list[bytes]:
    """The payloads; a newline in one is followed by a space in the file."""
    slices = map(slice, plain.starts.tolist(), plain.stops.tolist())
    return [each.replace(b"\n ", b"\n") if b"\n" in each else each for each in map(data.__getitem__, slices)]


def _is_text(data: bytes, offsets: "Numbers", ends: "Numbers") -> "NDArray[np.bool_]":
    """For each entry, whether the lines above its fixed end are a payload, without variables or blank lines."""
    column = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(column[:-1] == 10)
    odd = newlines[column[newlines + 1] != 32]  # a line that does not continue the one above
    return np.equal(np.searchsorted(odd, ends - len(_END)), np.searchsorted(odd, offsets))


def _compared(data: bytes, ends: "Numbers") -> tuple["NDArray[np.bool_]", "Bytes", "Numbers"]:
    """Which entries end as plain messages do; the ids and times of those."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), len(_END))
    rows = windows[ends - len(_END)]
    digits = rows[:, _DIGITS].astype(np.int64) - ord("0")
    fits = (rows[:, _FIXED] == _END[_FIXED]).all(1) & ((digits >= 0) & (digits < 10)).all(1)
    ids = rows[:, _IDS]
    fits &= (((ids >= ord("0")) & (ids <= ord("9"))) | ((ids >= ord("a")) & (ids <= ord("f")))).all(1)
    year, month, day, hour, minute, second, milli = (
        digits[:, start:stop] @ 10 ** np.arange(stop - start - 1, -1, -1)
        for start, stop in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14), (14, 17))
    )
    # Other times, which people have edited, are left to the parser.
    fits &= (year >= 1970) & (month >= 1) & (month <= 12) & (hour < 24) & (minute < 60) & (second < 60)
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64) + day - 1
    fits &= (day >= 1) & (days < (months + 1).astype("M8[D]").astype(np.int64))
    time = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milli
    return fits, ids[fits], time[fits]


_NONE = (np.zeros(0, np.bool_), np.zeros((0, len(_IDS)), np.uint8), np.zeros(0, np.int64))


class Files(NamedTuple):
    """The content of both files of a queue."""

    data: bytes
    memory: Memory
    changed: int  # mtime of the queue's file, in milliseconds since the epoch


class Snapshot(NamedTuple):
    """All messages of a queue: plain ones as columns, the others one by one."""

    data: bytes
    plain: Plain
    others: list[Message]
    offsets: list[int]  # of the others in the file


def read(path: str, disk: Disk) -> Files | None:
    """Read both files under the lock; FileNotFoundError if there is no queue.

    None if they need recovery or a comparison first, as after a crash, also of a move, or an edit by a person.
    """
    lock = MutexLock(path, disk)
    with disk.open(path, follow=True) as file:
        lock.acquire()
        try:
            head, there = lock.file.read(0, lock.size), file.status()
            data = file.read(0, there.size)
            if disk.status(path).inode != there.inode:
                return None  # an editor has just replaced the file
        finally:
            lock.close()
    memory = mutex.read(head[HEAD:], HEAD)
    usual = mutex.read_seal(head) == mutex.seal_of(there) and memory.end == len(head)
    unfinished = memory.pending or memory.born or memory.leaving or memory.taken
    return Files(data, memory, there.changed // 1_000_000) if usual and not unfinished else None


def snapshot(queue: str, files: Files, now: int) -> Snapshot | None:
    """The messages at a time; None if an id is there twice, a time is in the future, or dead letters must move."""
    data, memory, changed = files
    plain = find(data, memory.notes)
    entries = [parse_one(data[start:stop], start) for start, stop in plain.others]
    entries = [entry for entry in entries if entry.control in CONTROLS]
    horizon, now = now + FOLLOWED, max(now, memory.at)
    view = load(queue, Document(entries, []), len(data), memory, True, changed, now, horizon).view
    if view.ahead or memory.at > horizon:
        return None
    ids = set(plain.ids.view("S16").ravel().tolist())
    if len(ids) < len(plain.ids) or not ids.isdisjoint((facts(entry).id or "").encode() for entry in entries):
        return None  # a person has copied a message with its id
    now = max(now, view.at)
    if len(plain.ids) and plain.received_at.max() > now:
        return None
    view.ledger.state.advance(now)
    if view.settings.dead_letter is not None and view.ledger.state.by_state[FAILED]:
        return None
    by_offset = {entry.offset: entry for entry in entries}
    seqs = view.ledger.state.listed(None, 1, len(view.table.ids))
    offsets = [view.table.offsets[seq] for seq in seqs]
    others = [message_of(view, seq, by_offset[offset]) for seq, offset in zip(seqs, offsets, strict=True)]
    return Snapshot(data, plain, others, offsets)
