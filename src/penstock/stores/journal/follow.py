"""Streams and followers of a journal store.

A follower reads the messages that enter a queue, in order, from the journal's files as they grow, settled messages
included. Files are pinned when they are first seen, and until they are read, so that packing takes nothing from a
follower. Messages that were packed away before are lost to it: the numbers missing in a packed file are counted.
Groups are numbered without gaps, so that files are read in order and none is left out.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.contract.message import STATES, Message
from penstock.contract.streams import Ahead, BatchPlan, Lost, boot
from penstock.engine.queue import LiveQueue
from penstock.engine.streams import PAGE, Known, LiveStreams, fitting, parts_of
from penstock.engine.views import fill
from penstock.errors import PenstockError, QueueNotFound, StoreCorrupt
from penstock.rules.records import Put
from penstock.rules.rows import AVAILABLE, DELAYED, Page, Rows
from penstock.stores.journal import bodies
from penstock.stores.journal.bodies import XID_ITEM_HEAD, Extent, added_at
from penstock.stores.journal.catalog import Catalog, Entry
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.files import PLACE_BITS, Segment, offset_of, replay_order
from penstock.stores.journal.pins import Pins
from penstock.stores.journal.reading import Window
from penstock.stores.journal.records import PageImage, RestImage, decode_all
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.journal.storage import JournalStorage
from penstock.stores.journal.upkeep import Upkeep
from penstock.system.clock import Clock, rest
from penstock.system.files import Disk, File, ReadingDisk, Status
from penstock.system.processes import is_gone

_TRIES = 100
_PAUSE = 0.01  # seconds between two tries to see files that are just being renamed
_PACKED = 0  # the number of groups in a packed file
_READ_AHEAD = 4 << 20  # bytes of an extent, about
_COLUMNS = ("priority", "visible_at", "expires_at", "place", "size", "crc")


@dataclass
class Entries:
    """Messages that have entered, as columns in the order of their numbers."""

    seq: "array[int]" = field(default_factory=lambda: array("Q"))
    state: bytearray = field(default_factory=bytearray)
    priority: "array[int]" = field(default_factory=lambda: array("q"))
    visible_at: "array[int]" = field(default_factory=lambda: array("q"))
    expires_at: "array[int]" = field(default_factory=lambda: array("q"))
    place: "array[int]" = field(default_factory=lambda: array("Q"))
    size: "array[int]" = field(default_factory=lambda: array("I"))
    crc: "array[int]" = field(default_factory=lambda: array("I"))
    groups: list[str | None] = field(default_factory=list)  # may be shorter than the other columns

    def between(self, after: int, until: int) -> tuple[int, int]:
        """The rows of the messages after one number up to another: first, and past the last."""
        return bisect_right(self.seq, after), bisect_right(self.seq, until)

    def pages(self, after: int, until: int) -> list[tuple[int, Page]]:
        """The messages after one number up to another, as pages: one for each run without gaps."""
        start, end = self.between(after, until)
        pages = []
        while start < end:
            stop = start + self._run(start, end)
            page = Page()
            page.state = self.state[start:stop]
            page.attempts = array("I", bytes(4 * (stop - start)))
            for name in _COLUMNS:
                setattr(page, name, getattr(self, name)[start:stop])
            if any(groups := self.groups[start:stop]):
                page.groups = groups
            page.live = stop - start
            pages.append((self.seq[start], page))
            start = stop
        return pages

    def group(self, at: int) -> str | None:
        """The group of a row."""
        return self.groups[at] if at < len(self.groups) else None

    def put_into(self, groups: Sequence[str | None]) -> None:
        """Set the groups of the last rows."""
        self.groups += [None] * (len(self.seq) - len(groups) - len(self.groups))
        self.groups += groups

    def _run(self, start: int, end: int) -> int:
        """How many rows from `start` on are numbered without gaps."""
        first, count = self.seq[start], end - start
        if self.seq[end - 1] - first == count - 1:
            return count
        low, high = 1, count  # numbers ascend, so that bisection finds the first gap
        while low < high:
            middle = (low + high + 1) // 2
            if self.seq[start + middle - 1] - first == middle - 1:
                low = middle
            else:
                high = middle - 1
        return low

    def forget(self, until: int) -> None:
        """Drop the messages up to a number."""
        count = bisect_right(self.seq, until)
        if count:
            del self.state[:count], self.groups[:count]
            for name in ("seq", *_COLUMNS):
                del getattr(self, name)[:count]


@dataclass
class _Source:
    """A file of the journal, pinned and open."""

    number: int  # in the places of its bodies
    name: str
    pinned: str
    file: File
    first_group: int
    begins: int  # the number of the first message, if the journal begins with this file; else 0
    offset: int = 0  # where reading goes on
    last: int = 0  # the highest message number that was read
    before: int | None = None  # of a packed file: the number of the group after it, once that is known

    @property
    def is_packed(self) -> bool:
        """Whether packing has made it."""
        return self.first_group == _PACKED


class Follower:
    """Reads one queue's messages as they enter. The pins belong to the process `owner`."""

    def __init__(self, folder: str, queue: str, owner: int, disk: Disk | None = None) -> None:
        self.folder = folder
        self._queue = queue
        self._disk = disk or ReadingDisk()
        self.pins = Pins(folder, owner, disk)
        self._numbers = 0
        self._sources: list[_Source] = []  # files that are not yet read to their ends
        self._held: dict[int, _Source] = {}  # the same files by inode
        self._read_before: dict[int, tuple[_Source, int, int]] = {}  # files that were read: change time and size
        self._expected: int | None = None  # the number of the next group
        self._at: _Source | None = None
        self.entries = Entries()
        self.last = 0  # the highest message number that was seen
        self.begin = 0  # entries have higher numbers than this
        self.lost: list[tuple[int, int]] = []  # first and last numbers of messages that are gone

    # Positions in the journal

    def earliest(self) -> tuple[int, int]:
        """The number before the first stored message, and the number below which messages are missing."""
        self.look()
        entry = self._entry()
        first, below = (entry.first if entry is not None else 1), 0
        for source in self._sources:
            for _, numbers, _, frontier in self._groups(source, 0):
                below = max(below, frontier)
                if numbers:
                    return numbers.start - 1, max(below, self._frontier_of(source))
        return first - 1, max(below, first)

    def entered_before(self, moment: int) -> tuple[int, int]:
        """The number of the last message before a time, and the number below which messages are missing."""
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
        self.look()
        for source in reversed(self._sources):
            last = 0
            for _, numbers, _, frontier in self._groups(source, 0):
                last = max(last, numbers.stop - 1, frontier - 1)
            if last:
                return last
        entry = self._entry()
        return 0 if entry is None else entry.first - 1

    def start(self, starting: str | int) -> tuple[int, int]:
        """See Streams.start."""
        if isinstance(starting, int):
            after, gaps = self.entered_before(starting)
        else:
            after, gaps = self.earliest()
            after = self.latest() if starting == "latest" else after
        return after, max(gaps, after + 1)

    # Messages that have entered

    def follow(self, after: int) -> None:
        """Follow from after this number on."""
        self.last = self.begin = after
        self.look()

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int) -> Ahead:
        """See Streams.ahead."""
        self.forget(after)
        entries = self.entries
        if until:
            self.fill(0, until)
        elif rows:
            self.fill(rows)
            count = fitting(entries.size, rows, size)
            until = entries.seq[count - 1] if count else self.last
        until = max(after, until)
        start, end = entries.between(after, until)
        parts = parts_of(entries.seq[start:end], entries.size[start:end])
        return Ahead(until, parts, self.lost_between(max(after + 1, gaps), until))

    def messages(self, after: int, until: int, limit: int) -> list[Message]:
        """At most `limit` messages as they entered, after one number up to another."""
        self.fill(0, until)
        entries = self.entries
        start, end = entries.between(after, until)
        end = min(end, start + limit)
        end = start + fitting(entries.size[start:end], limit, PAGE)
        messages = [
            Message(
                str(entries.seq[at]), self._queue, b"", {}, entries.priority[at], 0, 0,
                entries.visible_at[at], entries.expires_at[at] or None, 0, STATES[entries.state[at] - 1],
                group=entries.group(at),
            )
            for at in range(start, end)
        ]  # fmt: skip
        return fill(messages, bodies.read(list(self._extents(start, end)), self._queue, lambda: False))

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        """The extents of the bodies of these rows."""
        entries = self.entries
        files = {each.number: each.file for each in self._sources}
        while start < end:
            first, stop = entries.place[start], start + 1
            number, before = first >> PLACE_BITS, first + _READ_AHEAD
            while stop < end and entries.place[stop] >> PLACE_BITS == number and entries.place[stop] < before:
                stop += 1
            starts = [place - first for place in entries.place[start:stop]]
            sizes, crcs = entries.size[start:stop].tolist(), entries.crc[start:stop].tolist()
            yield Extent(files[number], offset_of(first), starts, sizes, crcs)
            start = stop

    def fill(self, count: int, until: int = 0) -> None:
        """Read on until there are `count` entries and all up to a number, or no more have entered."""
        while len(self.entries.seq) < count or self.last < until:
            if not self._read_on():
                self.look()
                if not self._read_on():
                    return

    def forget(self, until: int) -> None:
        """Drop the messages up to a number, and the files that have no others."""
        self.begin = max(self.begin, until)
        self.entries.forget(until)
        self.lost = [each for each in self.lost if each[1] > until]
        for source in [each for each in self._sources if each is not self._at and 0 < each.last <= until]:
            if source.offset >= source.file.size():
                self._drop(source)
        self._drop_needless()

    def names(self) -> dict[int, tuple[str, str]]:
        """Pin and name of each file, by the number in places."""
        return {each.number: (os.path.basename(each.pinned), each.name) for each in self._sources}

    def lost_between(self, first: int, last: int) -> Lost | None:
        """The lost messages with numbers from first to last."""
        clipped = [(max(start, first), min(end, last)) for start, end in self.lost]
        missing = [(start, end) for start, end in clipped if start <= end]
        if not missing:
            return None
        return Lost(missing[0][0], missing[-1][1], sum(end - start + 1 for start, end in missing))

    def held_back(self) -> int:
        """Bytes of removed files that only this follower's pins keep."""
        found = [each.file.status() for each in self._sources]
        return sum(each.size for each in found if each.names == 1)

    def close(self) -> None:
        """Close the files and drop the pins."""
        for source in self._sources:
            source.file.close()
        self._sources = []
        self.pins.drop()

    # Reading

    def _read_on(self) -> bool:
        """Read more groups of this file, or begin with the next file; False if there is neither."""
        source = self._at
        if source is None or source.offset >= source.file.size() or not self._read(source):
            following = self._next()
            if following is None:
                return False
            self._at = following
        return True

    def _read(self, source: _Source) -> bool:
        """Read some groups; False if there is no whole one."""
        window = Window(source.file, source.file.size())
        read, limit = 0, len(self.entries.seq) + 100_000
        while len(self.entries.seq) < limit and (group := window.group(source.offset)) is not None:
            if group.number != _PACKED and self._expected not in (None, group.number):
                raise StoreCorrupt(f"{source.name!r} goes on with group {group.number}, not {self._expected}")
            base = (source.number << PLACE_BITS) + source.offset
            if group.number != _PACKED:
                self._expected = group.number + 1
            for item in decode_all(group.records):
                if isinstance(item, PageImage):
                    self._take_page(source, item, base)
                elif isinstance(item, RestImage):
                    self._miss(self.last + 1, item.snapshot.next_seq - 1)
                    self._expected = max(self._expected or 0, item.next_group)
                elif isinstance(item[0], Put) and isinstance(item[1], Bodies):
                    self._take_put(source, item[0], item[1], base)
            source.offset += group.length
            read += 1
        if read:
            source.file.sync()  # else a crash could lose what was read, and other messages get these numbers
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
        if put.groups:
            entries.put_into(put.groups[kept])
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
            for name in _COLUMNS:
                getattr(entries, name).append(getattr(page, name)[row])
            entries.place[-1] += base
            if (group := page.group(row)) is not None:
                entries.put_into([group])
            self.last = seq

    def _miss(self, first: int, last: int) -> None:
        """Count these numbers as lost."""
        if first <= last:
            self.lost.append((first, last))
            self.last = max(self.last, last)

    def _next(self) -> _Source | None:
        """The file to read next: the one with the expected group, else a packed or later one in its place."""
        waiting = [each for each in self._sources if each is not self._at and not each.offset]
        if self._expected is None:
            found = waiting[0] if waiting else None
        else:
            for source in waiting:
                if source.first_group == self._expected:
                    return source
            found = next((each for each in waiting if each.is_packed or self._begins_later(each)), None)
        if found is not None and not found.is_packed:
            self._miss(self.last + 1, found.begins - 1)
            self._expected = found.first_group
        return found

    def _begins_later(self, source: _Source) -> bool:
        """Whether the journal was emptied meanwhile and begins anew with this file."""
        return bool(source.begins) and source.first_group > (self._expected or 0)

    def _groups(
        self, source: _Source, offset: int
    ) -> Iterator[tuple[int | None, range, list[tuple[int, int]], int]]:
        """Per record: when messages entered (None: see the bodies), numbers, places, next number after a pack."""
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
                    yield None, range(0), [], item.snapshot.next_seq
                elif isinstance(item[0], Put):
                    yield item[0].at, range(item[0].first, item[0].first + len(item[0].priority)), [], 0
            offset += group.length

    def _frontier_of(self, source: _Source) -> int:
        if not source.is_packed:
            return 0
        return max((frontier for _, _, _, frontier in self._groups(source, 0)), default=0)

    # Files

    def _entry(self) -> Entry | None:
        return Catalog(self.folder, self._disk).entry(self._journal())

    def _journal(self) -> str:
        found = StoreSnapshot(self.folder, self._disk, 0).journal(self._queue)
        if found is None:
            raise QueueNotFound(f"there is no queue {self._queue!r} in the store {self.folder!r}")
        return found

    def look(self) -> None:
        """Pin new files, before they are packed, and drop those that were read."""
        journal = self._journal()
        for _ in range(_TRIES):
            names = replay_order(self._disk.listfiles(self.folder), journal)
            try:
                listed = [self._add(name) for name in names]
            except FileNotFoundError:  # renamed or packed away just now
                rest(_PAUSE)
                continue
            if replay_order(self._disk.listfiles(self.folder), journal) == names:
                for source, following in pairwise(listed):
                    if source is not None and source.is_packed and following is not None:
                        source.before = following.first_group
                there = {id(each) for each in listed}
                self._read_before = {key: each for key, each in self._read_before.items() if id(each[0]) in there}
                break
        self._drop_needless()

    def _add(self, name: str) -> _Source | None:
        """The file of that name, pinned; None if it has no group yet."""
        path = os.path.join(self.folder, name)
        if (known := self._known(self._disk.status(path))) is not None:
            return known
        pinned = self.pins.pin(path)
        file = self._disk.open(pinned)
        found = file.status()
        known = self._known(found)
        group = Window(file, file.size()).group(0) if known is None else None
        if group is None:
            file.close()
            self.pins.unpin(pinned)
            return known
        entry = self._entry()
        begins = entry.first if entry is not None and group.number in entry.starts else 0
        self._numbers += 1
        source = _Source(self._numbers, name.removesuffix(".pack"), pinned, file, group.number, begins)
        self._held[found.inode] = source
        self._sources.append(source)
        return source

    def _known(self, found: Status) -> _Source | None:
        """A file that was seen before. After it was dropped, its inode may be another file's."""
        if found.inode in self._held:
            return self._held[found.inode]
        source, changed, size = self._read_before.get(found.inode, (None, 0, 0))
        return source if (changed, size) == (found.changed, found.size) else None

    def _drop_needless(self) -> None:
        """Drop packed files whose groups have all been read before they were packed."""
        for source in [each for each in self._sources if each is not self._at and not each.offset]:
            if source.is_packed and source.before is not None and source.before <= (self._expected or 0):
                self._drop(source)

    def _drop(self, source: _Source) -> None:
        found = source.file.status()
        self._held.pop(found.inode, None)
        self._read_before[found.inode] = source, found.changed, found.size
        self._sources.remove(source)
        source.file.close()
        self.pins.unpin(source.pinned)


class JournalStreams(LiveStreams[JournalStorage]):
    """The streams of one journal store."""

    def __init__(
        self, folder: str, clock: Clock, find: Callable[[str], LiveQueue], upkeep: Mapping[str, Upkeep]
    ) -> None:
        def known(queue: str) -> Known[JournalStorage]:
            live, kept = find(queue), upkeep[queue]
            return Known(live, kept.journal.ledger, kept.storage)

        super().__init__(clock, known, lambda: list(upkeep))
        self._folder = folder

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """The places of a batch's messages, with files pinned for a process."""
        for _ in range(_TRIES):
            pages, segments = self._reading(queue, stream, batch, lambda storage: storage.segments)
            used = sorted({place >> PLACE_BITS for _, page in pages for place in page.place if place})
            files = self._pin([segments[number] for number in used if number in segments], pins)
            if files is not None:
                return BatchPlan(pages, files)
            rest(_PAUSE)
        raise PenstockError(f"the files of queue {queue!r} change faster than they can be pinned: try again")

    def _pin(self, segments: Sequence[Segment], process: str | None) -> list[tuple[int, str, str]] | None:
        """Pin files; None if one of them was renamed meanwhile."""
        name, _, machine = (process or "").partition("@")
        if machine != boot() or is_gone(name):
            return []  # nobody here would notice the end of a process on another machine
        pins = Pins(self._folder, name)
        try:
            return [(each.number, each.name, pins.pin(os.path.join(self._folder, each.name))) for each in segments]
        except FileNotFoundError:
            pins.drop()
            return None

    def before_packing(self, queue: str) -> None:
        """Let the followers of a queue pin its files, which are about to be packed."""
        self._feeds.look(queue)

    def _feed(self, queue: str) -> Follower:
        return Follower(self._folder, queue, os.getpid())

    def _bodies(self, storage: JournalStorage, seqs: Sequence[int], rows: Rows) -> list[Extent]:
        return storage.find(seqs, rows)
