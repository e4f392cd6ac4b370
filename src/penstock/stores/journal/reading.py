"""Replay: from the bytes of a journal to the state of its queue, as recovery does it, but without changes.

Whole groups are replayed. The bytes after the last whole group of a file are torn, damaged or another program's.
Only the end of the latest file can be torn, by a crash in the middle of a commit: it was never acknowledged, and
recovery cuts it off. Other bytes that cannot be read are damage. Entries of Kestrel are adopted, see kestrel.py.
"""

import operator
import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from zlib_ng.zlib_ng import crc32

from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.rules.records import Ack, Pop, Put, Remove
from penstock.rules.state import State
from penstock.stores.journal import groups
from penstock.stores.journal.catalog import Entry as QueueEntry
from penstock.stores.journal.fields import LAST, check_count
from penstock.stores.journal.files import FILL, ROTATED, Segment, may_end_filling, replay_order
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
    SettingsImage,
    StreamsImage,
    TakenImage,
    decode_all,
)
from penstock.system.files import Disk, File

if TYPE_CHECKING:
    from penstock.stores.journal.index import SavedIndex

_TRIES = 10  # to see all files of a journal at one moment, while another process renames them
_CHUNK = 8 << 20
_BATCH = 1 << 13
_ITEM = struct.Struct("<QQQqq")
_SAVE_XID = 4
_PACKED = 0  # the number of every group in a packed file
BEGINNINGS = (0, ord(FILL), _SAVE_XID)  # possible first bytes of a file whose first group a crash has torn


@dataclass
class Rest:
    """The bytes after the last whole group of a file."""

    offset: int
    data: bytes
    entries: list[Entry] = field(default_factory=list)  # another program's, with an Item in place of the data
    broken: int | None = None  # the offset in the file of the first entry that cannot be read
    torn: bool = False  # they are what a crash left of a group
    group_after: int | None = None  # the offset in the file of a whole group that follows

    def is_damage(self, last: bool, clean: int | None) -> bool:
        """Whether no crash explains them: only the last file may be torn, and only if the store was not closed."""
        return self.group_after is not None or (self.torn and not (last and clean is None))


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
    """The whole groups from offset on, each with its offset."""
    window = Window(file, size)
    while offset < size and (group := window.group(offset)) is not None:
        yield offset, group
        offset += group.length


def is_ours(segment: Segment) -> bool:
    """Whether a file begins with a group."""
    return groups.head(segment.file.read(0, groups.HEAD_SIZE), 0) is not None


class Item(NamedTuple):
    """The place of an item that another program wrote."""

    segment: int
    offset: int
    size: int
    added: int  # 0: not known
    expiry: int

    def pack(self) -> bytes:
        """Bytes that stand in for the item's data."""
        return _ITEM.pack(*self)


def unpack_item(data: bytes) -> Item | int:
    """The item of another program, or the number of a message of ours, that stands in for an item's data."""
    return Item(*_ITEM.unpack(data)) if len(data) == _ITEM.size else int.from_bytes(data, "little")


def _refer(entry: Entry, segment: int, end: int) -> Entry:
    """The entry with an Item in place of its data, which may be large."""
    match entry:
        case Add(expiry, data):
            return Add(expiry, Item(segment, end - len(data), len(data), 0, expiry * 1000).pack())
        case AddX(added, expiry, data) | AddXid(_, added, expiry, data) | Continue(_, added, expiry, data):
            return entry._replace(data=Item(segment, end - len(data), len(data), added, expiry).pack())
        case _:
            return entry


def look_at_rest(segment: Segment, offset: int, ours: bool, dialect: Dialect) -> Rest | None:
    """The bytes after the last whole group, judged; None: there are none. `ours`: Penstock wrote the journal."""
    data = segment.file.read(offset, segment.size - offset)
    filled = len(data) - len(data.lstrip(FILL))
    if not data or (ours and filled == len(data)):
        return None
    rest = Rest(offset, data)
    damaged = groups.head(data, 0)
    if ours or damaged is not None:
        # A group inside of this one may be part of a payload, if the checksum of this head is right.
        inside = damaged is not None and groups.is_sound(data, 0)
        rest.group_after = _find_group(data, offset, damaged.length if damaged is not None and inside else 1)
    # Another program writes after the end of the file, never into the filling, and does not begin with SAVE_XID. A
    # crash leaves zeros of a write. A torn group of ours never looks like another program's, see LatestFile.
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
    """The offset in the file of the first whole group from `start` on, in data that begins at `offset`."""
    at = groups.next_head(data, start)
    while at is not None:
        head = groups.head(data, at)
        if head is not None and groups.read(memoryview(data), at, head) is not None:
            return offset + at
        at = groups.next_head(data, at + 1)
    return None


class Loader:
    """Replays the groups of a journal into a state."""

    def __init__(self, state: State, starts: list[int]) -> None:
        self.state = state
        self.at = 0
        self.next_group = starts[-1]
        self.count = 0  # groups that were replayed
        self.here = 0  # the offset of the group that is replayed, for error messages
        self.starts = starts  # numbers that the first group may have; after it is read, its number
        self.begun = False
        self.loads: set[str] = set()  # names of loads whose messages have arrived
        self._puts = _Puts()

    def resume(self, next_group: int, at: int) -> None:
        """Go on after a saved index."""
        self.next_group, self.at, self.begun = next_group, at, True

    def replay(self, segment: Segment, offset: int) -> int:
        """Replay the groups of a segment from offset on; the end of the last whole one."""
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
            # Groups with one message each are most of a journal; in bulk they are replayed much faster.
            count, length, at = self._puts.collect(window, offset, self.next_group, segment.base, self.state)
            self.next_group += count
            self.count += 1 + count
            offset += length
            self.at = max(self.at, at)
        return offset

    def finish(self) -> None:
        """Apply the collected puts, and check that the journal is complete."""
        try:
            self._puts.apply(self.state)
            self.state.streams.check()
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
            self.next_group = _PACKED  # until the last packed group has the number of the next
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
                self.next_group = load_image(self.state, item) or self.next_group
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
                    self.state.rows.place(
                        record.first, [base + offset for offset in bodies.offset], bodies.size, bodies.crc
                    )
        self.state.gone.clear()


# Errors that impossible records cause though their checksum is right.
IMPOSSIBLE = (LookupError, ValueError, TypeError, ArithmeticError, struct.error, MemoryError)


def impossible(where: str, error: Exception) -> StoreCorrupt:
    """The error for such records: another program, or a memory fault, made them."""
    return StoreCorrupt(
        f"{where} has impossible content, though its checksum is right ({error!r}). Nothing was changed. Put the "
        "file back from a copy; `penstock doctor` shows what can be saved"
    )


def _check_places(offsets: Sequence[int], sizes: Sequence[int], length: int) -> None:
    """Refuse bodies outside of their group: to read one could take any number of bytes."""
    if max(map(operator.add, offsets, sizes), default=0) > length:
        raise ValueError("a message outside of its group")


def load_image(state: State, image: Image) -> int | None:
    """Load an image of a packed file or a saved index; the last image has the number of the next group."""
    match image:
        case SettingsImage(settings):
            state.use(settings)
        case TakenImage(taken):
            state.taken.append(taken)
        case PageImage(first, page):
            state.load_page(first, page)
        case StreamsImage(snapshot):
            state.streams.load(snapshot)
        case KeptImage(stream, first, page):
            state.streams.load_kept(stream, first, page)
        case RestImage(snapshot, next_group):
            state.load(snapshot)
            return next_group
    return None


_ONE = groups.TAIL.size + PUT_ONE_FIELDS.size + groups.END.size  # the tail of a group with one message


class _Puts:
    """Collects messages that were put one by one, and replays them as one put: cheaper, with the same result."""

    def __init__(self) -> None:
        self._seen = 0  # the latest time in the groups
        self._clear()

    def _clear(self) -> None:
        self._first, self._at = 0, 0
        self._priority, self._visible_at, self._expires_at = array("q"), array("q"), array("q")
        self._place, self._size, self._crc = array("Q"), array("I"), array("I")

    def collect(self, window: Window, offset: int, number: int, base: int, state: State) -> tuple[int, int, int]:
        """Collect groups from offset on that are in memory and have one put; how many, bytes, the latest time.

        The same checks as in groups.py, in one loop, because a journal can have millions of such groups.
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
        """Replay the collected messages."""
        if self._priority:
            state.replay(Put(self._at, self._first, self._priority, self._visible_at, self._expires_at, {}))
            state.rows.place(self._first, self._place, self._size, self._crc)
            state.gone.clear()
            self._clear()


@dataclass
class FoundJournal:
    """A journal that is to be read."""

    name: str  # of the queue
    file: str
    known: QueueEntry | None
    segments: list[Segment]
    clean: int | None  # the number of the next group when the store was closed; None: it was not
    dialect: Dialect
    forgotten: str = ""  # the path of its missing entry, if Penstock wrote it


@dataclass(frozen=True)
class Damage:
    """Damage at which reading ended."""

    position: int  # of the file among the segments
    offset: int
    why: str


@dataclass
class Reading:
    """A journal's state, as far as it can be read."""

    ledger: Ledger
    loader: Loader
    indexed: bool = False  # whether a saved index was used
    end: int = 0  # of the last whole group in the last file
    damage: Damage | None = None
    torn: tuple[Segment, Rest] | None = None
    foreign: list[Entry] = field(default_factory=list)
    unreadable: list[tuple[Segment, int]] = field(default_factory=list)  # offset of another program's broken entry


def open_segments(folder: str, journal: str, disk: Disk) -> list[Segment]:
    """Open the files of a journal as they are at one moment, in the order in which they are read."""
    segments: list[Segment] = []
    for _ in range(_TRIES):
        names = _files_of(folder, journal, disk)
        with suppress(FileNotFoundError):  # renamed or packed away meanwhile
            segments = open_all(names, lambda name: disk.open(os.path.join(folder, name)))
            if _files_of(folder, journal, disk) == names:
                break
            close_segments(segments)
    return segments


def _files_of(folder: str, journal: str, disk: Disk) -> list[str]:
    """The files of a journal in order; the latest even if it is no file, so that opening it raises."""
    latest = {journal} & set(disk.listdir(folder))
    return replay_order({*disk.listfiles(folder), *latest}, journal)


def open_all(names: Sequence[str], open_file: Callable[[str], File]) -> list[Segment]:
    """Open files of a journal, all or none."""
    segments: list[Segment] = []
    try:
        for number, name in enumerate(names, ROTATED):
            file = open_file(name)
            segments.append(Segment(number, name.removesuffix(".pack"), file, file.size()))
    except BaseException:
        close_segments(segments)
        raise
    return segments


def close_segments(segments: Sequence[Segment]) -> None:
    """Close the files."""
    for segment in segments:
        segment.file.close()


def read(
    journal: FoundJournal, index: "SavedIndex | None" = None, make: Callable[[str, Settings], Ledger] = Ledger
) -> Reading:
    """Read a journal into a ledger, from its beginning or from a valid index on."""
    known = journal.known
    ledger = make(journal.name, known.base if known else Settings())
    reading = Reading(ledger, Loader(ledger.state, known.starts if known else [1]))
    first, offset = 0, 0
    if index is not None:
        reading.indexed = True
        try:
            index.number(journal.segments)
            reading.loader.resume(index.load(ledger.state), index.at)
        except StoreCorrupt as error:
            reading.damage = Damage(0, 0, str(error))
            return reading
        first, offset = len(index.files) - 1, index.files[-1]["size"]
    for position, segment in enumerate(journal.segments[first:], first):
        reading.damage = _read_segment(journal, reading, position, segment, offset)
        if reading.damage is not None:
            break
        offset = 0
    try:
        reading.loader.finish()
    except StoreCorrupt as error:
        reading.damage = reading.damage or Damage(len(journal.segments), 0, str(error))
    if journal.forgotten and reading.loader.begun:
        reading.damage = Damage(0, 0, f"{journal.forgotten} is missing: it has the queue's name and settings")
    reading.damage = reading.damage or _missing_end(journal, reading)
    if known is not None and reading.damage is None:
        ledger.state.skip_to(known.first)
    return reading


def _read_segment(
    journal: FoundJournal, reading: Reading, position: int, segment: Segment, offset: int
) -> Damage | None:
    loader, name = reading.loader, os.path.basename(segment.file.path)
    loader.here = offset
    try:
        if not reading.foreign:
            offset = loader.replay(segment, offset)
        ours = (journal.known is not None or loader.begun) and not reading.foreign
        rest = look_at_rest(segment, offset, ours, journal.dialect)
        while rest is not None and ours and (end := loader.replay(segment, offset)) > offset:
            offset = end  # another process has just written it
            rest = look_at_rest(segment, offset, ours, journal.dialect)
    except StoreCorrupt as error:
        return Damage(position, loader.here, str(error))
    except OSError as error:
        return Damage(position, offset, f"{name} cannot be read: {error.strerror}")
    reading.end = offset
    if rest is None:
        return None
    last = position == len(journal.segments) - 1
    if rest.is_damage(last, journal.clean):
        number = "a packed group" if loader.begun and not loader.next_group else f"group {loader.next_group}"
        return Damage(
            position, rest.offset, f"{name} is damaged at offset {rest.offset}, where {number} should be"
        )
    if rest.torn:
        reading.torn = segment, rest
    elif rest.broken is not None:
        reading.unreadable.append((segment, rest.broken))
    if not rest.torn:
        reading.foreign += rest.entries
    return None


def _missing_end(journal: FoundJournal, reading: Reading) -> Damage | None:
    reached, there = reading.loader.next_group, len(journal.segments)
    known = journal.known
    if known is not None and not reading.foreign and lacks_latest(known, reached, journal.segments, journal.clean):
        return Damage(
            there, 0, f"it ends with group {reached - 1}, but its latest file began with group {known.latest}"
        )
    if journal.clean is not None and reached < journal.clean and not reading.foreign:
        return Damage(
            there, 0, f"it ends with group {reached - 1}, but the store was closed after group {journal.clean - 1}"
        )
    return None


def lacks_latest(known: QueueEntry, next_group: int, segments: Sequence[Segment], clean: int | None) -> bool:
    """Whether the latest file, or groups before it, are missing."""
    if next_group != known.latest or clean is not None:  # a closed store knows its last group
        return next_group < known.latest
    # The file exists; or a crash came after it was rotated, before its first group.
    return not any("." not in segment.name or not segment.size for segment in segments)


def covers(index: "SavedIndex", damage: Damage) -> bool:
    """Whether an index covers the damaged bytes, so that opening does not read them."""
    last = len(index.files) - 1
    return damage.position < last or (damage.position == last and damage.offset < index.files[last]["size"])


def left_of(segments: Sequence[Segment], reading: Reading, damage: Damage) -> tuple[int, int]:
    """How many unsettled messages are in whole groups before damage, and after it."""
    there: set[int] = set()
    gone: set[int] = set()
    offset = damage.offset
    for segment in segments[damage.position :]:
        for group in _whole_groups(segment, offset):
            with suppress(*IMPOSSIBLE):
                for item in decode_all(group.records, sum(each.size for each in segments)):
                    if isinstance(item, PageImage):
                        rows = zip(item.page.keys(), item.page.state, strict=False)
                        there.update(item.first + key for key, state in rows if state)
                    elif not isinstance(item, Image | LoadName):
                        record = item[0]
                        if isinstance(record, Put):
                            there.update(range(record.first, record.first + len(record.priority)))
                        elif isinstance(record, Ack | Pop | Remove):
                            gone.update(record.seqs)
        offset = 0
    before = unsettled(reading.ledger.state)
    return len(before - gone), len(there - gone - before)


def unsettled(state: State) -> set[int]:
    """The numbers of all messages that are not done."""
    return {seq for name in STATES if name != "done" for seq in state.listed(name, 0, state.size())}


def _whole_groups(segment: Segment, offset: int) -> Iterator[groups.Group]:
    """All whole groups from offset on, also after bytes that are no group."""
    while offset < segment.size:
        for start, group in read_groups(segment.file, segment.size, offset):
            yield group
            offset = start + group.length
        data = segment.file.read(offset, segment.size - offset)
        after = groups.next_head(data, 1)
        if after is None:
            return
        offset += after
