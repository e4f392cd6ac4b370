"""A text queue as it is at one moment, for who only reads: nothing is written, and most of it is never parsed."""

from typing import NamedTuple

from penstock.contract.message import Message
from penstock.stores.text import mutex
from penstock.stores.text.format import CONTROLS, Document, parse_one
from penstock.stores.text.mutex import HEAD, Memory
from penstock.stores.text.mutex_lock import MutexLock
from penstock.stores.text.plain import Plain, find
from penstock.stores.text.variables import facts
from penstock.stores.text.view import load, message_of
from penstock.system.clock import FOLLOWED
from penstock.system.files import Disk


class Files(NamedTuple):
    """What both files of a queue say."""

    data: bytes
    memory: Memory
    changed: int  # milliseconds since the epoch


class Moment(NamedTuple):
    """All messages of a queue: the plain ones, and the others one by one."""

    data: bytes
    plain: Plain
    others: list[Message]


def read(path: str, disk: Disk) -> Files | None:
    """Read both files while nobody changes them; FileNotFoundError if there is no queue.

    None: something is to be finished or compared first, as after a crash or when a person has edited the file.
    """
    lock = MutexLock(path, disk)
    with disk.open(path, follow=True) as file:
        lock.acquire()
        try:
            head, there = lock.file.read(0, lock.size), file.status()
            data = file.read(0, there.size)
            if disk.status(path).inode != there.inode:
                return None  # an editor has just put another in its place
        finally:
            lock.close()
    memory = mutex.read(head[HEAD:], HEAD)
    usual = mutex.read_seal(head) == mutex.seal_of(there) and memory.end == len(head)
    return Files(data, memory, there.changed // 1_000_000) if usual and not memory.pending | memory.born else None


def moment(queue: str, files: Files, now: int) -> Moment | None:
    """The messages as they are now; None if they cannot be told apart that simply."""
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
        return None  # someone has copied a message with its id
    now = max(now, view.at)
    if len(plain.ids) and plain.received_at.max() > now:
        return None
    view.ledger.advance(now)
    by_offset = {entry.offset: entry for entry in entries}
    seqs = view.ledger.listed(None, 1, len(view.table.ids))
    return Moment(data, plain, [message_of(view, seq, by_offset[view.table.offsets[seq]]) for seq in seqs])
