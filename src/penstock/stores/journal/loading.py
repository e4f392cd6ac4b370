"""From the bytes of a journal to the state of its queue.

Whole groups are replayed; what follows the last of them in a file is looked at closely. Only the end of the
latest file can be torn, by a crash in the middle of a commit: it was never acknowledged, and is cut off. Anything
else that cannot be read is damage. Entries that are not ours (of a journal that Kestrel wrote, or went on writing)
are left to adoption.py.
"""

import operator
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import StoreCorrupt
from penstock.rules.records import Put
from penstock.rules.state import State
from penstock.stores.journal import groups
from penstock.stores.journal.checksum import crc32
from penstock.stores.journal.fields import LAST, check_count
from penstock.stores.journal.files import FILL, Segment, may_end_filling
from penstock.stores.journal.format import Add, AddX, AddXid, Broken, Continue, Dialect, Entry, decode
from penstock.stores.journal.groups import Group
from penstock.stores.journal.records import (
    PUT_ONE,
    PUT_ONE_FIELDS,
    Image,
    KeptImage,
    LoadName,
    PageImage,
    RestImage,
    StreamsImage,
    decode_all,
)
from penstock.system.files import File

_CHUNK = 8 << 20
_BATCH = 1 << 13
_ITEM = struct.Struct("<QQQqq")
_SAVE_XID = 4
_PACKED = 0  # the number of groups in a packed file
BEGINNINGS = (0, ord(FILL), _SAVE_XID)  # the first byte of a file whose first group a crash has torn


@dataclass
class Rest:
    """What follows the last whole group of a file."""

    offset: int
    data: bytes
    entries: list[Entry] = field(default_factory=list)  # a stranger's; their data says where the data is
    broken: int | None = None  # where in the file the first entry starts that cannot be read
    torn: bool = False  # it is the beginning of one of our groups, or what a crash left of one
    group_after: int | None = None  # where in the file a whole group follows


class Window:
    """A part of a file in memory."""

    def __init__(self, file: File, size: int) -> None:
        self.data, self.base = memoryview(b""), 0
        self._file, self._size = file, size

    def group(self, offset: int) -> Group | None:
        """The whole group at this offset of the file, if there is one."""
        head = groups.head(self.data, offset - self.base)
        if head is None or offset - self.base + head.length > len(self.data):
            self._read(offset, _CHUNK if head is None else max(_CHUNK, head.length))
            head = groups.head(self.data, 0)
            if head is not None and len(self.data) < head.length <= self._size - offset:
                self._read(offset, head.length)
        return None if head is None else groups.read(self.data, offset - self.base, head)

    def _read(self, offset: int, size: int) -> None:
        self.data, self.base = memoryview(self._file.read(offset, min(size, self._size - offset))), offset


def read_groups(file: File, size: int, offset: int) -> Iterator[tuple[int, Group]]:
    """The whole groups from offset on, each with where it starts."""
    window = Window(file, size)
    while offset < size and (group := window.group(offset)) is not None:
        yield offset, group
        offset += group.length


def is_ours(segment: Segment) -> bool:
    """Whether a file begins with a group."""
    return groups.head(segment.file.read(0, groups.HEAD_SIZE), 0) is not None


class Item(NamedTuple):
    """Where a stranger's item is."""

    segment: int
    offset: int
    size: int
    added: int  # 0: not known
    expiry: int

    def pack(self) -> bytes:
        """As bytes, in the place of the item's own."""
        return _ITEM.pack(*self)


def unpack_item(data: bytes) -> Item | int:
    """What stands in the place of an item's data: a stranger's item, or the number of a message of ours."""
    return Item(*_ITEM.unpack(data)) if len(data) == _ITEM.size else int.from_bytes(data, "little")


def _refer(entry: Entry, segment: int, end: int) -> Entry:
    """The entry with a reference in the place of its data, which may be large."""
    match entry:
        case Add(expiry, data):
            return Add(expiry, Item(segment, end - len(data), len(data), 0, expiry * 1000).pack())
        case AddX(added, expiry, data) | AddXid(_, added, expiry, data) | Continue(_, added, expiry, data):
            return entry._replace(data=Item(segment, end - len(data), len(data), added, expiry).pack())
        case _:
            return entry


def look_at_rest(segment: Segment, offset: int, ours: bool, dialect: Dialect) -> Rest | None:
    """What follows the last whole group; None: nothing. `ours` says that the journal certainly is, so far."""
    data = segment.file.read(offset, segment.size - offset)
    filled = len(data) - len(data.lstrip(FILL))
    if not data or (ours and filled == len(data)):
        return None
    rest = Rest(offset, data)
    damaged = groups.head(data, 0)
    if ours or damaged is not None:
        # What looks like a group inside of this one may be part of a message, if its length is to be believed.
        inside = damaged is not None and groups.is_sound(data, 0)
        rest.group_after = _find_group(data, offset, damaged.length if damaged is not None and inside else 1)
    # Another program writes after the end of the file, never into the filling, and does not begin with SAVE_XID;
    # zeros are what a crash leaves of a write. Nothing of a torn group of ours is like that, see appending.py.
    into_filling = filled and not may_end_filling(offset + filled)
    torn = groups.MAGIC in data or into_filling or data[filled] in (0, _SAVE_XID)
    if damaged is not None or (ours and torn):
        rest.torn = True
        return rest
    position = filled if ours else 0
    try:
        while position < len(data):
            entry, end = decode(data, position, dialect)
            rest.entries.append(_refer(entry, segment.number, offset + end))
            position = end
    except Broken as broken:
        rest.broken = offset + broken.offset
    rest.torn = ours and not rest.entries
    return rest


def _find_group(data: bytes, offset: int, start: int) -> int | None:
    """Where in the file a whole group is, at or after `start` in this part of it."""
    at = groups.next_head(data, start)
    while at is not None:
        head = groups.head(data, at)
        if head is not None and groups.read(memoryview(data), at, head) is not None:
            return offset + at
        at = groups.next_head(data, at + 1)
    return None


class Loader:
    """Replays groups into a state."""

    def __init__(self, state: State, starts: list[int]) -> None:
        self.state = state
        self.at = 0
        self.next_group = starts[-1]
        self.count = 0  # groups that were replayed
        self.here = 0  # where the group is that comes next, or that could not be taken
        self.starts = starts  # numbers that the first group may have, if it is not packed; then the one it has
        self.begun = False
        self.loads: set[str] = set()  # names of those whose messages have arrived
        self._puts = _Puts()

    def resume(self, next_group: int, at: int) -> None:
        """The state is that after all groups before this one."""
        self.next_group, self.at, self.begun = next_group, at, True

    def replay(self, segment: Segment, offset: int) -> int:
        """Replay the groups of a segment from offset on; where the last whole one ends."""
        try:
            return self._replay(segment, offset)
        except IMPOSSIBLE as error:
            raise impossible(f"{segment.file.path!r} at offset {self.here}", error) from error

    def _replay(self, segment: Segment, offset: int) -> int:
        window = Window(segment.file, segment.size)
        while offset < segment.size and (group := window.group(offset)) is not None:
            self.here = offset
            self._check_number(segment, offset, group.number)
            self._replay_group(group, segment.base + offset)
            check_count(group.at, LAST)
            self.at = max(self.at, group.at)
            offset += group.length
            # Nearly all of a journal that was written one by one, and much quicker than one by one.
            count, length, at = self._puts.collect(window, offset, self.next_group, segment.base, self.state)
            self.next_group += count
            self.count += 1 + count
            offset += length
            self.at = max(self.at, at)
        return offset

    def finish(self) -> None:
        """Apply what was collected; there is nothing more to come."""
        try:
            self._puts.apply(self.state)
            self.state.check_streams()
        except IMPOSSIBLE as error:
            raise impossible(f"the journal of queue {self.state.name!r}", error) from error
        if self.begun and self.next_group == _PACKED:
            raise StoreCorrupt(
                f"the packed file of queue {self.state.name!r} has lost its end. Put it back from a copy; "
                "`penstock doctor` shows what there is"
            )

    def _check_number(self, segment: Segment, start: int, number: int) -> None:
        first, self.begun = not self.begun, True
        possible = self.starts
        if first:
            self.starts = [number]
        if number == _PACKED and (first or self.next_group == _PACKED):
            self.next_group = _PACKED  # until the last of them says which number comes next
        elif number == self.next_group or (first and number in possible):
            self.next_group = number + 1
        else:
            raise StoreCorrupt(
                f"{segment.file.path!r} goes on at offset {start} with group {number}, but {self.next_group} "
                "comes next: a file of this journal, or a part of one, is missing or is from another time. Put "
                "the right file back; `penstock doctor` shows what there is"
            )

    def _replay_group(self, group: Group, base: int) -> None:
        self._puts.apply(self.state)
        for item in decode_all(group.records, self.state.size() + group.length):
            if isinstance(item, Image):
                if isinstance(item, PageImage | KeptImage):
                    _check_places(item.page.place, item.page.size, group.length)
                    item.page.place = array("Q", [base + offset for offset in item.page.place])
                self.next_group = thaw(self.state, item) or self.next_group
            elif isinstance(item, LoadName):
                self.loads.add(item.name)
            else:
                record, bodies = item
                check_count(record.at, LAST)
                if isinstance(record, Put) and bodies is not None:
                    check_count(record.first + len(bodies.size), LAST)
                    _check_places(bodies.offset, bodies.size, group.length)
                self.state.replay(record)
                if isinstance(record, Put) and bodies is not None:
                    self.state.place(
                        record.first, [base + offset for offset in bodies.offset], bodies.size, bodies.crc
                    )
        self.state.gone.clear()


# What comes of records that are whole by their checksum and say what cannot be.
IMPOSSIBLE = (LookupError, ValueError, TypeError, ArithmeticError, struct.error, MemoryError)


def impossible(where: str, error: Exception) -> StoreCorrupt:
    """The error for such records: another program, or a fault in memory, made them."""
    return StoreCorrupt(
        f"{where} says what cannot be, though its checksum is right ({error!r}). Nothing was changed. Put the "
        "file back from a copy; `penstock doctor` shows what can be saved"
    )


def _check_places(offsets: Sequence[int], sizes: Sequence[int], length: int) -> None:
    """Bodies lie in their group; else reading one could ask for any number of bytes."""
    if max(map(operator.add, offsets, sizes), default=0) > length:
        raise ValueError("a message outside of its group")


def thaw(state: State, image: Image) -> int | None:
    """Take over a part of a state that was packed, or is in a snapshot; the last says which group comes next."""
    match image:
        case PageImage(first, page):
            state.thaw_page(first, page)
        case StreamsImage(frozen):
            state.thaw_streams(frozen)
        case KeptImage(stream, first, page):
            state.thaw_kept(stream, first, page)
        case RestImage(frozen, next_group):
            state.thaw(frozen)
            return next_group
    return None


_ONE = groups.TAIL.size + PUT_ONE_FIELDS.size + groups.END.size  # the tail of a group with one message


class _Puts:
    """Messages that were put one by one, collected to be put all at once: the result is the same, and cheaper."""

    def __init__(self) -> None:
        self._seen = 0  # the latest time that its groups know
        self._clear()

    def _clear(self) -> None:
        self._first, self._at = 0, 0
        self._priority, self._visible_at, self._expires_at = array("q"), array("q"), array("q")
        self._place, self._size, self._crc = array("Q"), array("I"), array("I")

    def collect(self, window: Window, offset: int, number: int, base: int, state: State) -> tuple[int, int, int]:
        """Take the groups from offset on, as long as each is in memory and one put; how many, how long,
        until when.

        The same checks as in groups.py, in one loop, because a journal can have millions of them.
        """
        data, start, first = window.data, offset - window.base, number
        base += window.base
        head, put, end_of = groups.HEAD.unpack_from, PUT_ONE_FIELDS.unpack_from, groups.END.unpack_from
        limit = len(data)
        while limit - start >= groups.HEAD_SIZE:
            save_xid, _, _, _, seen, _, magic, kind, length, tail, own, _, _ = head(data, start)
            end = start + length
            if own != number or magic != groups.MAGIC or kind != b"h" or save_xid != _SAVE_XID or not number:
                break
            if length - tail != _ONE or end > limit or tail < groups.HEAD_SIZE or seen > LAST:
                break
            record, at, seq, priority, visible_at, expires_at, body, size, crc = put(
                data, start + tail + groups.TAIL.size
            )
            if body + size > tail or seq > LAST or not 0 <= at <= LAST:
                break
            if record != PUT_ONE or end_of(data, end - 5) != (crc32(data[start : end - 5]), 1):
                break
            if seq != self._first + len(self._priority) or len(self._priority) >= _BATCH:
                self.apply(state)
                self._first = seq
            self._at, self._seen = at, seen
            self._priority.append(priority)
            self._visible_at.append(visible_at)
            self._expires_at.append(expires_at)
            self._place.append(base + start + body)
            self._size.append(size)
            self._crc.append(crc)
            number += 1
            start = end
        return number - first, start - (offset - window.base), self._seen

    def apply(self, state: State) -> None:
        """Put what was collected."""
        if self._priority:
            state.replay(Put(self._at, self._first, self._priority, self._visible_at, self._expires_at, {}))
            state.place(self._first, self._place, self._size, self._crc)
            state.gone.clear()
            self._clear()
