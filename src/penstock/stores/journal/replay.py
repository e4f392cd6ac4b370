"""A journal read by Kestrel's document alone: what any reader of the format sees in a folder."""

import os
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from penstock.contract.names import checked
from penstock.errors import InvalidArgument
from penstock.stores.journal.catalog import journal_of
from penstock.stores.journal.format import (
    DIALECTS,
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
    decode,
)
from penstock.stores.journal.segments import replay_order
from penstock.system.files import Disk, SystemDisk

_REMOVES = re.compile(rb"\x01+")


@dataclass
class Replay:
    """The state after the last entry, before open transactions are put back."""

    queue: deque[bytes] = field(default_factory=deque)  # payloads, head first
    open: dict[int, bytes] = field(default_factory=dict)  # payloads by xid
    last_xid: int = 0
    broken: tuple[str, int] | None = None  # the file and the offset of the first entry that cannot be read
    _own_xids: deque[int | None] = field(default_factory=deque)  # of the queued items: the xid that ADD_XID gave

    def apply(self, entry: Entry) -> None:
        """Do what an entry says."""
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
    """The xid after the last one, around the 32 bits, that is neither 0 nor taken."""
    while True:
        last = last + 1 if last < 2**31 - 1 else -(2**31)
        if last != 0 and last not in taken:
            return last


def replay(
    folder: str | os.PathLike[str], queue: str = "", dialect: Dialect = "doc", disk: Disk | None = None
) -> Replay:
    """What the journal of a queue says by the document alone. Changes nothing.

    >>> replay("data", "jobs").queue
    """
    if dialect not in DIALECTS:
        raise InvalidArgument(f"dialect={dialect!r} is none of {', '.join(DIALECTS)}")
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
                    offset = filling.end()  # removing from an empty queue does nothing, a million times
                    continue
                entry, offset = decode(data, offset, dialect)
                state.apply(entry)
        except Broken as broken:
            state.broken = state.broken or (name, broken.offset)
    return state
