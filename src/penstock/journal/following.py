"""What enters a queue, in order, read from its files as they grow: also what has been settled since.

Files are pinned as soon as they are seen, and until they have been read, so that packing takes nothing from one
who follows. What was packed away before is lost to it; numbers that are missing in a packed file say how much.
Groups are numbered without gaps, so that files are read in their order and none is left out.
"""

import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.errors import QueueNotFound, StoreCorrupt
from penstock.files import Disk, File, ReadingDisk, Status
from penstock.index.rows import AVAILABLE, DELAYED, Page
from penstock.journal.bodies import XID_ITEM_HEAD, added_at
from penstock.journal.catalog import Catalog, Entry
from penstock.journal.files import PLACE_BITS
from penstock.journal.loading import Window
from penstock.journal.pins import Pins
from penstock.journal.records import Bodies, PageImage, RestImage, decode_all
from penstock.journal.segments import replay_order
from penstock.journal.viewing import StoreView
from penstock.records import Put
from penstock.streams import Lost

_TRIES = 50
_PAUSE = 0.01
_PACKED = 0  # the number of groups in a packed file


@dataclass
class _Source:
    """A file of the journal."""

    number: int  # that its places have
    name: str
    pinned: str
    file: File
    first_group: int
    offset: int = 0  # up to where it was read
    last: int = 0  # the highest number in it, as far as it was read


@dataclass
class Entries:
    """Messages that have entered, by ascending number."""

    seq: "array[int]" = field(default_factory=lambda: array("Q"))
    state: bytearray = field(default_factory=bytearray)
    priority: "array[int]" = field(default_factory=lambda: array("q"))
    visible_at: "array[int]" = field(default_factory=lambda: array("q"))
    expires_at: "array[int]" = field(default_factory=lambda: array("q"))
    place: "array[int]" = field(default_factory=lambda: array("Q"))
    size: "array[int]" = field(default_factory=lambda: array("I"))
    crc: "array[int]" = field(default_factory=lambda: array("I"))

    def between(self, after: int, until: int) -> tuple[int, int]:
        """Where those are from after one on until another: from, and before."""
        return bisect_right(self.seq, after), bisect_right(self.seq, until)

    def pages(self, after: int, until: int) -> list[tuple[int, Page]]:
        """Those from after one on until another, as rows: one page for each stretch without gaps."""
        start, end = self.between(after, until)
        pages = []
        while start < end:
            stop = start + self._run(start, end)
            page = Page()
            page.state = self.state[start:stop]
            page.attempts = array("I", bytes(4 * (stop - start)))
            for name in ("priority", "visible_at", "expires_at", "place", "size", "crc"):
                setattr(page, name, getattr(self, name)[start:stop])
            page.live = stop - start
            pages.append((self.seq[start], page))
            start = stop
        return pages

    def _run(self, start: int, end: int) -> int:
        """How many from there on are numbered one after the other."""
        first, count = self.seq[start], end - start
        if self.seq[end - 1] - first == count - 1:
            return count
        low, high = 1, count  # numbers only grow, so the first gap is found by halving
        while low < high:
            middle = (low + high + 1) // 2
            if self.seq[start + middle - 1] - first == middle - 1:
                low = middle
            else:
                high = middle - 1
        return low

    def forget(self, until: int) -> None:
        """They were read."""
        count = bisect_right(self.seq, until)
        if count:
            del self.state[:count]
            for name in ("seq", "priority", "visible_at", "expires_at", "place", "size", "crc"):
                del getattr(self, name)[:count]


class Follower:
    """Follows one queue from after a number on. `owner` is the process that the pins are for."""

    def __init__(self, folder: str, queue: str, owner: int, disk: Disk | None = None) -> None:
        self.folder = folder
        self._queue = queue
        self._disk = disk or ReadingDisk()
        self.pins = Pins(folder, owner, disk)
        self._numbers = 0
        self._sources: list[_Source] = []  # not yet read to their ends
        self._held: set[int] = set()  # inodes of those
        self._read_before: dict[int, tuple[int, int]] = {}  # and of others that were: when changed, how long
        self._expected: int | None = None  # the number of the next group
        self._at: _Source | None = None
        self.entries = Entries()
        self.last = 0  # the highest number that was seen
        self.begin = 0  # the number after which entries are there
        self.lost: list[tuple[int, int]] = []  # numbers of messages that are gone, from and to

    # What there is

    def earliest(self) -> tuple[int, int]:
        """The number before the first message that is still stored, and that below which some are not."""
        self._refresh()
        entry = self._entry()
        first, below = (entry.first if entry is not None else 1), 0
        for source in self._sources:
            for _, numbers, _, frontier in self._groups(source, 0):
                below = max(below, frontier)
                if numbers:
                    return numbers.start - 1, max(below, self._frontier_of(source))
        return first - 1, max(below, first)

    def entered_before(self, moment: int) -> tuple[int, int]:
        """The number of the last message that entered before a time, and that below which some are not stored."""
        last, below = self.earliest()
        for source in self._sources:
            for at, numbers, places, _ in self._groups(source, 0):
                if not numbers:
                    continue
                if at is not None:
                    if at >= moment:
                        return last, below
                    last = numbers.stop - 1
                    continue
                for seq, place in places:
                    if added_at(source.file.read(place, XID_ITEM_HEAD)) >= moment:
                        return last, below
                    last = seq
        return last, below

    def latest(self) -> int:
        """The number of the last message that has entered."""
        self._refresh()
        for source in reversed(self._sources):
            last = 0
            for _, numbers, _, frontier in self._groups(source, 0):
                last = max(last, numbers.stop - 1, frontier - 1)
            if last:
                return last
        entry = self._entry()
        return 0 if entry is None else entry.first - 1

    def start(self, after: int) -> None:
        """Follow from after this number on."""
        self.last = self.begin = after
        self._refresh()

    def look(self) -> None:
        """Hold the files that are there, before they are packed."""
        self._refresh()

    def fill(self, count: int, until: int = 0) -> None:
        """See to it that there are so many entries, and those up to a number, if so many have entered."""
        while len(self.entries.seq) < count or self.last < until:
            if not self._read_on():
                self._refresh()
                if not self._read_on():
                    return

    def forget(self, until: int) -> None:
        """All up to this number was read, and what it was in is needed no more."""
        self.begin = max(self.begin, until)
        self.entries.forget(until)
        self.lost = [each for each in self.lost if each[1] > until]
        for source in [each for each in self._sources if each is not self._at and 0 < each.last <= until]:
            if source.offset >= source.file.size():
                self._drop(source)

    def names(self) -> dict[int, tuple[str, str]]:
        """Where the files are that entries are in: by the number that places have, the pin and the name."""
        return {each.number: (os.path.basename(each.pinned), each.name) for each in self._sources}

    def files(self) -> dict[int, File]:
        """The files that entries are in, by the number that places have."""
        return {each.number: each.file for each in self._sources}

    def lost_between(self, first: int, last: int) -> Lost | None:
        """What is gone of the messages with these numbers."""
        clipped = [(max(start, first), min(end, last)) for start, end in self.lost]
        missing = [(start, end) for start, end in clipped if start <= end]
        if not missing:
            return None
        return Lost(missing[0][0], missing[-1][1], sum(end - start + 1 for start, end in missing))

    def held_back(self) -> int:
        """Bytes of files that were packed away, and are there for this one alone."""
        found = [each.file.status() for each in self._sources]
        return sum(each.size for each in found if each.names == 1)

    def close(self) -> None:
        """Let go of everything."""
        for source in self._sources:
            source.file.close()
        self._sources = []
        self.pins.drop()

    # Reading

    def _read_on(self) -> bool:
        """Read the groups that are there, or begin with the next file; whether that was anything."""
        source = self._at
        if source is None or source.offset >= source.file.size() or not self._read(source):
            following = self._next()
            if following is None:
                return False
            self._at = following
        return True

    def _read(self, source: _Source) -> bool:
        """Read some groups; False if no whole one is there."""
        window = Window(source.file, source.file.size())
        read, limit = 0, len(self.entries.seq) + 100_000
        while len(self.entries.seq) < limit and (group := window.group(source.offset)) is not None:
            if group.number != _PACKED and self._expected not in (None, group.number):
                raise StoreCorrupt(f"{source.name!r} goes on with group {group.number}, not {self._expected}")
            base = (source.number << PLACE_BITS) + source.offset
            self._expected = None if group.number == _PACKED else group.number + 1
            for item in decode_all(group.records):
                if isinstance(item, PageImage):
                    self._take_page(source, item, base)
                elif isinstance(item, RestImage):
                    self._miss(self.last + 1, item.frozen.next_seq - 1)
                    self._expected = item.next_group
                elif isinstance(item[0], Put) and isinstance(item[1], Bodies):
                    self._take_put(source, item[0], item[1], base)
            source.offset += group.length
            read += 1
        if read:
            source.file.sync()  # else a crash could take what was read, and give its numbers to other messages
        return read > 0

    def _take_put(self, source: _Source, put: Put, bodies: Bodies, base: int) -> None:
        skipped = max(0, self.last + 1 - put.first)
        count = len(put.priority)
        source.last = max(source.last, put.first + count - 1)
        if skipped >= count:
            return
        entries, kept = self.entries, slice(skipped, None)
        entries.seq.extend(range(put.first + skipped, put.first + count))
        if max(put.visible_at) <= put.at:
            entries.state += bytes([AVAILABLE]) * (count - skipped)
        else:
            entries.state += bytes(DELAYED if each > put.at else AVAILABLE for each in put.visible_at[kept])
        entries.priority.extend(put.priority[kept])
        entries.visible_at.extend(put.visible_at[kept])
        entries.expires_at.extend(put.expires_at[kept])
        entries.place.extend([base + each for each in bodies.offset[kept]])
        entries.size.extend(bodies.size[kept])
        entries.crc.extend(bodies.crc[kept])
        self.last = put.first + count - 1

    def _take_page(self, source: _Source, image: PageImage, base: int) -> None:
        entries, page = self.entries, image.page
        for row, key in enumerate(page.keys()[: len(page.state)]):
            seq = image.first + key
            source.last = max(source.last, seq)
            if seq <= self.last or not page.state[row]:
                continue
            self._miss(self.last + 1, seq - 1)
            entries.seq.append(seq)
            entries.state.append(AVAILABLE)
            entries.priority.append(page.priority[row])
            entries.visible_at.append(page.visible_at[row])
            entries.expires_at.append(page.expires_at[row])
            entries.place.append(base + page.place[row])
            entries.size.append(page.size[row])
            entries.crc.append(page.crc[row])
            self.last = seq

    def _miss(self, first: int, last: int) -> None:
        """These numbers are not there any more."""
        if first <= last:
            self.lost.append((first, last))
            self.last = max(self.last, last)

    def _next(self) -> _Source | None:
        """The file to go on with."""
        done = self._at
        waiting = [each for each in self._sources if each is not done and not each.offset]
        for source in waiting:
            if source.first_group == self._expected:
                return source
        packed = [each for each in waiting if each.first_group == _PACKED]
        if packed and self._expected != _PACKED:
            return packed[-1]  # what was between was packed away before it was seen
        entry = self._entry()
        for source in waiting:
            begins = entry is not None and source.first_group in entry.starts
            if self._expected is None or begins:  # if it goes on with another number, it was emptied meanwhile
                self._miss(self.last + 1, entry.first - 1 if entry is not None else 0)
                return source
        return None

    def _groups(
        self, source: _Source, offset: int
    ) -> Iterator[tuple[int | None, range, list[tuple[int, int]], int]]:
        """When messages entered (None: each has its own time), their numbers, places, and where a pack ends."""
        window = Window(source.file, source.file.size())
        while (group := window.group(offset)) is not None:
            for item in decode_all(group.records):
                if isinstance(item, PageImage):
                    rows = [row for row, state in enumerate(item.page.state) if state]
                    keys = item.page.keys()
                    places = [(item.first + keys[row], offset + item.page.place[row]) for row in rows]
                    if places:
                        yield None, range(places[0][0], places[-1][0] + 1), places, 0
                elif isinstance(item, RestImage):
                    yield None, range(0), [], item.frozen.next_seq
                elif isinstance(item[0], Put):
                    yield item[0].at, range(item[0].first, item[0].first + len(item[0].priority)), [], 0
            offset += group.length

    def _frontier_of(self, source: _Source) -> int:
        if source.first_group != _PACKED:
            return 0
        return max((frontier for _, _, _, frontier in self._groups(source, 0)), default=0)

    # Files

    def _entry(self) -> Entry | None:
        return Catalog(self.folder, self._disk).entry(self._journal())

    def _journal(self) -> str:
        found = StoreView(self.folder, self._disk, 0).journal(self._queue)
        if found is None:
            raise QueueNotFound(f"there is no queue {self._queue!r} in the store {self.folder!r}")
        return found

    def _refresh(self) -> None:
        """Pin the files that are new."""
        journal = self._journal()
        for _ in range(_TRIES):
            names = [name for name in self._disk.listdir(self.folder) if name.startswith(journal)]
            with suppress(FileNotFoundError):  # renamed or packed away just now
                for name in replay_order(names, journal):
                    self._add(name)
                return
            time.sleep(_PAUSE)

    def _add(self, name: str) -> None:
        path = os.path.join(self.folder, name)
        if self._knows(self._disk.status(path)):
            return
        pinned = self.pins.pin(path)
        file = self._disk.open(pinned)
        found = file.status()
        group = Window(file, file.size()).group(0) if not self._knows(found) else None
        if group is None:  # it has nothing yet
            file.close()
            self.pins.unpin(pinned)
            return
        self._held.add(found.inode)
        self._numbers += 1
        self._sources.append(_Source(self._numbers, name.removesuffix(".pack"), pinned, file, group.number))

    def _knows(self, found: Status) -> bool:
        """Whether a file is there already, or was read: its inode may be another file's by now."""
        return found.inode in self._held or self._read_before.get(found.inode) == (found.changed, found.size)

    def _drop(self, source: _Source) -> None:
        found = source.file.status()
        self._held.discard(found.inode)
        self._read_before[found.inode] = found.changed, found.size
        self._sources.remove(source)
        source.file.close()
        self.pins.unpin(source.pinned)
