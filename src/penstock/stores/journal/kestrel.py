"""Kestrel's own view of a journal, and the adoption of entries that another program wrote.

`replay` reads a folder by Kestrel's document alone, as any reader of the format does. Adoption replays the entries
that another program wrote on top of our messages, which are open transactions for Kestrel. The result is written
as a packed file, which replaces all files before it.
"""

import os
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.contract.names import checked
from penstock.rules import records
from penstock.rules.rows import Page
from penstock.rules.state import State
from penstock.stores.journal import packing
from penstock.stores.journal.catalog import journal_of
from penstock.stores.journal.files import JournalFiles, Segment, mode_of, replay_order
from penstock.stores.journal.format import (
    Add,
    AddX,
    AddXid,
    Broken,
    ConfirmRemove,
    Continue,
    Dialect,
    Entry,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    check_dialect,
    decode,
    encode,
)
from penstock.stores.journal.groups import last_xid, xid_of
from penstock.stores.journal.reading import Item, unpack_item, unsettled
from penstock.system.files import Disk, SystemDisk

_REMOVES = re.compile(rb"\x01+")


@dataclass
class Replay:
    """The state after the last entry, before open transactions are put back."""

    queue: deque[bytes] = field(default_factory=deque)  # payloads, head first
    open: dict[int, bytes] = field(default_factory=dict)  # payloads by xid
    last_xid: int = 0
    broken: tuple[str, int] | None = None  # the file and the offset of the first entry that cannot be read
    _own_xids: deque[int | None] = field(default_factory=deque)  # xids that ADD_XID gave to the queued items

    def apply(self, entry: Entry) -> None:
        match entry:
            case Add(data=data) | AddX(data=data):
                self._add(data)
            case AddXid(xid=xid, data=data):
                self._add(data, xid)
            case Remove():
                self._take()
            case RemoveTentative():
                self._open_next()
            case RemoveTentativeXid(xid):
                self.last_xid = xid
                if (item := self._take()) is not None:
                    self.open[xid] = item[0]
            case SaveXid(xid) | StateDump(xid, _):
                self.last_xid = xid
            case Unremove(xid):
                if xid in self.open:
                    self.queue.appendleft(self.open.pop(xid))
                    self._own_xids.appendleft(None)
            case ConfirmRemove(xid):
                self.open.pop(xid, None)
            case Continue(xid=xid, data=data):
                self.open.pop(xid, None)
                self._add(data)

    def _add(self, data: bytes, xid: int | None = None) -> None:
        self.queue.append(data)
        self._own_xids.append(xid)

    def _take(self) -> tuple[bytes, int | None] | None:
        return (self.queue.popleft(), self._own_xids.popleft()) if self.queue else None

    def _open_next(self) -> None:
        item = self._take()
        if item is None:
            return
        data, xid = item
        if xid is None:
            xid = self.last_xid = next_xid(self.last_xid, self.open)
        self.open[xid] = data


def next_xid(last: int, taken: dict[int, bytes]) -> int:
    """The next xid, with wrap-around at 32 bits, that is neither 0 nor taken."""
    while True:
        last = last + 1 if last < 2**31 - 1 else -(2**31)
        if last != 0 and last not in taken:
            return last


def replay(
    folder: str | os.PathLike[str], queue: str = "", dialect: Dialect = "doc", disk: Disk | None = None
) -> Replay:
    """Replay the journal of a queue by the document alone, without changing it.

    >>> replay("data", "jobs").queue
    """
    check_dialect(dialect)
    disk = disk or SystemDisk()
    state = Replay()
    journal = journal_of(os.fspath(folder), checked(queue), disk)
    for name in replay_order(disk.listfiles(folder), journal):
        with disk.open(Path(folder) / name) as file:
            data = memoryview(file.read(0, file.size()))
        offset = 0
        try:
            while offset < len(data):
                if not state.queue and (filling := _REMOVES.match(data, offset)):
                    offset = filling.end()  # a filling: REMOVE does nothing to an empty queue
                    continue
                entry, offset = decode(data, offset, dialect)
                state.apply(entry)
        except Broken as broken:
            state.broken = state.broken or (name, broken.offset)
    return state


def replay_entries(state: State, entries: Sequence[Entry], now: int) -> dict[int, Item]:
    """Apply the entries of another program to a state; the items of the new messages, by number."""
    model = Replay(last_xid=last_xid(state.next_seq))
    ours = unsettled(state)
    model.open = {xid_of(seq): seq.to_bytes(8, "little") for seq in ours}
    for entry in entries:
        model.apply(entry)
    left = [unpack_item(model.open[xid]) for xid in sorted(model.open)]
    left += [unpack_item(data) for data in model.queue]
    state.advance(now)  # not earlier: Kestrel still has expired messages
    state.gone.clear()
    removed = [seq for seq in sorted(ours - {each for each in left if isinstance(each, int)}) if state.has(seq)]
    if removed:
        state.replay(records.Remove(now, removed))
    items = [each for each in left if isinstance(each, Item)]
    if not items:
        return {}
    first, count = state.next_seq, len(items)
    visible_at = [each.added if 0 < each.added <= now else now for each in items]
    # For Kestrel any expiry but 0 is a time, even one before 1970.
    expires_at = [max(1, each.expiry) if each.expiry else 0 for each in items]
    state.replay(records.Put(now, first, [0] * count, visible_at, expires_at, {}))
    state.rows.place(first, [0] * count, [each.size for each in items], [0] * count)
    return dict(enumerate(items, first))


def rewrite(
    files: JournalFiles,
    segments: Sequence[Segment],
    state: State,
    items: dict[int, Item],
    next_group: int,
    now: int,
    dialect: Dialect,
) -> Segment:
    """Replace all files of a journal by a packed one, with the crash-safe steps of packing."""
    disk = files.disk
    stamps = [files.stamp(each.name) for each in segments if each.name != files.name]
    stamp = max([now, *[each + 1 for each in stamps]])
    for segment in segments:
        if segment.name == files.name:
            disk.rename(files.path(files.name), files.path(files.rotated(stamp)))
            files.sync()
            segment.name = files.rotated(stamp)
    ours = packing.from_segments(segments)
    numbered = {segment.number: segment for segment in segments}

    def fetch(first: int, page: Page, rows: Sequence[int]) -> list[bytes]:
        keys = page.keys()
        return [
            _body(items[first + keys[row]], numbered, now)
            if first + keys[row] in items
            else ours(first, page, [row])[0]
            for row in rows
        ]

    temporary = files.path(files.temporary(stamp))
    file = disk.open(temporary, create=True, mode=mode_of(segments))
    packing.write_pack(file, state.snapshot(), fetch, next_group, now, dialect)
    file.sync()
    packed = files.rotated(stamp) + ".pack"
    disk.rename(temporary, files.path(packed))
    files.sync()
    files.finish_pack(packed, [each.name for each in segments])
    file.path = files.path(files.rotated(stamp))
    return Segment(segments[0].number, files.rotated(stamp), file, file.size())


def _body(item: Item, segments: dict[int, Segment], now: int) -> bytes:
    """Another program's item as a body of ours."""
    payload = segments[item.segment].file.read(item.offset, item.size)
    return encode(AddX(item.added or now, item.expiry, payload)) + encode(RemoveTentative())
