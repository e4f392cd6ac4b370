"""One queue's journal at work: commit groups that threads share, and bodies read from disk.

What is written joins the open group. A commit seals that group, appends and syncs it, while the next group fills:
one sync serves everyone who arrived while the last one ran.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from penstock.clock import Clock
from penstock.contents import Frozen
from penstock.errors import DiskFull, InvalidArgument, StoreClosed, StoreCorrupt
from penstock.files import File
from penstock.journal import bodies, groups
from penstock.journal.ballast import STEP, Ballast, is_full
from penstock.journal.commits import Commits
from penstock.journal.files import (
    ALIGNED,
    FILLING,
    PACKED,
    PLACE_BITS,
    ROTATED,
    JournalFiles,
    Segment,
    offset_of,
)
from penstock.journal.format import Dialect
from penstock.journal.records import Bodies, encode_put, encode_record
from penstock.journal.xids import PERIOD, before, xid_of
from penstock.live.alarm import Alarm
from penstock.live.shelf import Body
from penstock.message import Entry, Plain
from penstock.records import Ack, Pop, Put, Record
from penstock.state import State
from penstock.threads import Lock, Threads

Result = TypeVar("Result")
SETTLING = 384  # bytes kept free for each message: claiming and settling it, one by one
_SETTLE, _CLAIM = 160, 1024
_TAIL = groups.OVERHEAD - groups.HEAD_SIZE
_BESIDE = bodies.OVERHEAD + 160  # bytes that a message takes beside its payload, with a group for each
_RESERVE = 4 << 20  # no more than this is reserved in advance
_READ_AHEAD = 4 << 20  # neighbours are read at once up to this
_SYNC_EVERY = 1_000  # milliseconds, with sync="interval"


class Sink(NamedTuple):
    """What a shelf shares with the store."""

    clock: Clock
    alarm: Alarm
    threads: Threads
    sync: str
    dialect: Dialect
    segment_size: int
    ballast: Ballast
    failed: Callable[[BaseException], None]  # the whole store must stop


class _Group:
    """A commit group that is being filled, or waits to be written."""

    __slots__ = ("at", "buffer", "next_seq", "number", "records", "segment", "start", "written", "xid")

    def __init__(self, segment: int, start: int, number: int) -> None:
        self.segment = segment
        self.start = start
        self.number = number
        self.buffer = bytearray(groups.HEAD_SIZE)
        self.records = bytearray()
        self.xid: int | None = None  # before its first message
        self.next_seq = 0
        self.at = 0
        self.written = 0

    @property
    def size(self) -> int:
        return len(self.buffer) + len(self.records) + _TAIL

    def __bool__(self) -> bool:
        return bool(self.records) or len(self.buffer) > groups.HEAD_SIZE


class Found(NamedTuple):
    """Bodies that lie together in a file, or the bytes of one that is still to be written."""

    file: File | None
    offset: int
    starts: list[int]  # after the offset
    sizes: list[int]
    crcs: list[int]
    unwritten: bytes = b""


class Cut(NamedTuple):
    """A journal between two files: the state there, and all files before."""

    frozen: Frozen
    files: list[Segment]
    next_group: int
    at: int


class JournalShelf:
    """One queue's journal."""

    def __init__(
        self,
        files: JournalFiles,
        state: State,
        lock: Lock,
        sink: Sink,
        segments: Sequence[Segment],
        next_group: int,
        at: int,
        begin: Callable[[], None],
    ) -> None:
        self.files = files
        self.state = state
        self.lock = lock
        self.sink = sink
        self.segments = {segment.number: segment for segment in segments}
        self.written = 0
        self.on_commit: Callable[[], None] = lambda: None
        self._begin: Callable[[], None] | None = begin  # called before the first group is written
        self._closed = False
        self.at = at  # the latest time that was recorded
        self._last = max([ROTATED, *self.segments])  # the highest number of a segment
        self._current: Segment | None = None  # the latest file, if it is there
        if segments and segments[-1].name == files.name:
            self._current = segments[-1]
        self._filled = self._current.filled if self._current else 0  # how far the file reaches with its filling
        self._owed = 0  # what the ballast keeps free for this queue
        self.commits = Commits(sink.threads, self._flush, sink.failed)
        self._sealed: deque[_Group] = deque()
        self._unsynced: File | None = None
        if self._current is None:
            self._last += 1
            self._open = _Group(self._last, 0, next_group)
        else:
            self._open = _Group(self._current.number, self._current.size, next_group)
        self._first_unwritten = self._open.segment << PLACE_BITS | self._open.start

    # Under the queue's lock

    @property
    def next_group(self) -> int:
        """The number of the next group; every one before it is whole."""
        return self._open.number

    def total(self) -> int:
        """Bytes of the whole journal, with what is still to be written."""
        return self.stored() + self._pending

    def stored(self) -> int:
        """Bytes of all files."""
        return sum([each.size for each in list(self.segments.values())])

    @property
    def durable(self) -> int:
        """How many records are on stable storage."""
        return self.commits.durable

    @property
    def _pending(self) -> int:
        pending = self._open.size
        return pending if not self._sealed else pending + sum([each.size for each in list(self._sealed)])

    def make_room(self, entries: Sequence[Entry] = (), claims: int = 0) -> None:
        """Reserve space for new messages and for settling all there are, in which claims have their share."""
        ballast, state, count = self.sink.ballast, self.state, len(entries)
        if not count:
            if ballast.short:
                self._refill(_SETTLE * state.unsettled() + _CLAIM + 16 * claims)
            return
        size = _BESIDE * count
        if isinstance(entries, Plain):
            size += sum(map(len, entries.payloads))
        else:
            size += sum([len(entry.payload) + bodies.meta_size(entry) for entry in entries])
        pending = self._pending
        if pending + size > groups.MAX_SIZE:
            raise InvalidArgument(f"{size} bytes are too many for one step: put fewer messages at a time")
        if state.next_seq + count - state.oldest > PERIOD:
            self._skip_open_xids(count)
        needed = pending + size + self._for_settling(count)
        if not needed <= self._owed <= 2 * (needed + STEP) or ballast.short:
            self._reserve(needed)

    def _refill(self, needed: int) -> None:
        try:
            self.sink.ballast.refill(needed)
        except OSError as error:
            if not is_full(error):
                raise self.commits.stop(error) from error
            raise self._full() from None

    def inherit(self) -> None:
        """Reserve space for settling what was found."""
        self._owed = self._for_settling()
        self.sink.ballast.inherit(self._owed)

    def owe(self) -> None:
        """Reserve space for settling what is there, and no more."""
        self._reserve(self._for_settling(), 0)

    def _for_settling(self, more: int = 0) -> int:
        size = self.state.unsettled() + more
        return size and _CLAIM + SETTLING * size

    def _reserve(self, needed: int, ahead: int = STEP) -> None:
        for size in (needed + max(ahead, min(needed // 4, _RESERVE)), needed):
            try:
                self.sink.ballast.owe(size - self._owed, exactly=not ahead)
                self._owed = size
                return
            except OSError as error:
                if not is_full(error):
                    raise self.commits.stop(error) from error
        raise self._full()

    def _full(self) -> DiskFull:
        return DiskFull(
            f"no space left for queue {self.state.name!r} in {self.files.folder!r}, and nothing was changed: "
            "settle messages, which space is reserved for, or free some on that disk"
        )

    def _stamp(self) -> int:
        """A time that is later than that of every file."""
        stamps = [self.files.stamp(each.name) for each in self.segments.values() if each.name != self.files.name]
        return max([self.sink.clock.now(), *[stamp + 1 for stamp in stamps]])

    def _skip_open_xids(self, count: int) -> None:
        """Leave out numbers whose xid is still open, after four billion messages."""
        state = self.state

        def is_open(seq: int) -> bool:
            return any(state.has(earlier) for earlier in range(seq - PERIOD, state.oldest - 1, -PERIOD))

        while True:
            taken = [seq for seq in range(state.next_seq, state.next_seq + count) if is_open(seq)]
            if not taken:
                return
            state.skip_to(taken[-1] + 1)

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        """Let a record join the open group."""
        group = self._open
        if isinstance(record, Put):
            self._write_put(group, record, entries)
        else:
            group.records += encode_record(record)
            if isinstance(record, Ack | Pop) and self.state.settings.keep_done != 0:
                group.buffer += bodies.confirm(record.seqs)  # still listed by us, but no one else's any more
        if record.at > self.at:
            self.at = record.at
        group.at = self.at
        self.written += 1
        group.written = self.written

    def _write_put(self, group: _Group, record: Put, entries: Sequence[Entry]) -> None:
        first = record.first
        if group.xid is None:
            group.xid = before(xid_of(first))
        elif first != group.next_seq:
            group.buffer += bodies.save_xid(before(xid_of(first)))
        group.next_seq = first + len(entries)
        encoded = bodies.encode(entries, first, record.at, record.expires_at, self.sink.dialect)
        offset = len(group.buffer)
        base = (group.segment << PLACE_BITS) + group.start
        if len(encoded) == 1:
            body = encoded[0]
            size, crc = len(body), bodies.checksum(body)
            group.buffer += body
            group.records += encode_put(record, Bodies((offset,), (size,), (crc,)))
            self.state.place(first, (base + offset,), (size,), (crc,))
            return
        sizes = list(map(len, encoded))
        offsets = list(accumulate(sizes[:-1], initial=offset))
        crcs = list(map(bodies.checksum, encoded))
        group.buffer += b"".join(encoded)
        group.records += encode_put(record, Bodies(offsets, sizes, crcs))
        self.state.place(first, [base + each for each in offsets], sizes, crcs)

    def drop(self, seqs: Sequence[int]) -> None:
        """The messages are gone, for readers of the journal too."""
        self._open.buffer += bodies.confirm(seqs)

    def find(self, seqs: Sequence[int]) -> list[Found]:
        """Where bodies are, neighbours together; those that are still to be written are copied."""
        found = []
        runs = self.state.runs(seqs)
        if runs is None:
            rows = [self.state.locate(seq) for seq in seqs]
            runs = [(page, at, at + 1) for page, at in rows]
        for page, start, end in runs:
            places = page.place[start:end].tolist()
            sizes = page.size[start:end].tolist()
            crcs = page.crc[start:end].tolist()
            first, last = places[0], places[-1]
            together = last < self._first_unwritten and first >> PLACE_BITS == last >> PLACE_BITS
            if together and last - first <= _READ_AHEAD and (end - start == 1 or places == sorted(places)):
                found.append(self._in_file(places, sizes, crcs))
                continue
            for place, size, crc in zip(places, sizes, crcs, strict=True):
                if place < self._first_unwritten:
                    found.append(self._in_file([place], [size], [crc]))
                else:
                    found.append(Found(None, 0, [0], [size], [crc], self._unwritten(place, size)))
        return found

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        """How long bodies are."""
        rows = map(self.state.locate, seqs)
        return [page.size[at] for page, at in rows]

    def _in_file(self, places: list[int], sizes: list[int], crcs: list[int]) -> Found:
        first = places[0]
        starts = [place - first for place in places]
        return Found(self.segments[first >> PLACE_BITS].file, offset_of(first), starts, sizes, crcs)

    def _unwritten(self, place: int, size: int) -> bytes:
        for group in (*self._sealed, self._open):
            start = place - (group.segment << PLACE_BITS) - group.start
            if 0 <= start < len(group.buffer):
                return bytes(group.buffer[start : start + size])
        raise StoreCorrupt(f"a message of queue {self.state.name!r} is neither on disk nor about to be")

    # In any thread

    def read(self, places: Sequence[Found]) -> list[Body]:
        """Read bodies and check them."""
        read: list[Body] = []
        for file, offset, starts, sizes, crcs, unwritten in places:
            data = unwritten if file is None else self._read(file, offset, starts[-1] + sizes[-1])
            try:
                read += bodies.decode(data, starts, sizes, crcs)
            except bodies.Damaged:
                path = "memory" if file is None else file.path
                raise StoreCorrupt(
                    f"a message of queue {self.state.name!r} is damaged, at offset {offset} of {path!r} or little "
                    "after: its checksum is wrong. Put that file back from a copy, or remove() the message; "
                    "`penstock doctor` finds all that are damaged"
                ) from None
        return read

    def _read(self, file: File, offset: int, size: int) -> bytes:
        try:
            return file.read(offset, size)
        except OSError as error:
            if self._closed:
                raise StoreClosed("the store was closed: open it again with penstock.open()") from None
            raise StoreCorrupt(f"{file.path!r} cannot be read at offset {offset}: {error}") from error

    def commit(self, written: int) -> None:
        """Return once that many records are on stable storage."""
        if self.commits.commit(written):
            self.on_commit()

    def rotate(self) -> "Cut":
        """Begin a new file."""
        cut: Cut | None = None

        def begin() -> None:
            nonlocal cut
            with self.lock:  # for the time of a few syncs, so that the files and the state agree
                self.commits.flush()
                old = list(self.segments.values())
                if self._current is not None and self._current.number == self._open.segment:
                    self._begin_file(self._open.number)
                self._install(self._open)
                cut = Cut(self.state.freeze(), old, self._open.number, self.at)

        self.commits.lead(begin)
        if cut is None:
            raise RuntimeError("a journal was not rotated")
        return cut

    def next_packed(self) -> int:
        """The number of the next packed file: below those of all files that are rotated."""
        return max([PACKED, *[number for number in self.segments if number < ROTATED]]) + 1

    def replace(self, old: Sequence[Segment], new: Segment | None) -> None:
        """Bodies are no longer read from the old files; who reads one just now still has it open."""
        with self.lock:
            dead = {segment.number for segment in old}
            kept = {number: each for number, each in self.segments.items() if number not in dead}
            self.segments = kept if new is None else {new.number: new, **kept}

    # By the one thread that leads

    def _flush(self) -> int:
        """Write every group that there is; how many records are on stable storage then."""
        with self.lock:
            if self._open:
                self._seal()
            waiting = list(self._sealed)
        if waiting and self._begin is not None:
            self._begin()
            self._begin = None
        durable = self.commits.durable
        for group in waiting:
            groups.seal(group.buffer, group.records, group.xid or 0, group.number, group.at)
            segment = self._install(group)
            self._append(segment, group)
            if self.sink.sync == "interval":
                self._sync_soon(segment.file)
            with self.lock:
                segment.size = group.start + len(group.buffer)
                self._sealed.popleft()
                first = self._sealed[0] if self._sealed else self._open
                self._first_unwritten = (first.segment << PLACE_BITS) + first.start
            durable = group.written or durable
        return durable

    def _seal(self) -> None:
        """Close the open group and begin the next, in a new file if it is time for one."""
        group = self._open
        if group.xid is None:
            group.xid = last_xid(self.state.next_seq)
        group.at = self.at = max(self.at, self.state.advanced)  # what is gone by then stays gone
        self._sealed.append(group)
        end = group.start + group.size
        if end >= self.sink.segment_size:
            self._begin_file(group.number + 1)
        else:
            self._open = _Group(group.segment, end, group.number + 1)

    def _begin_file(self, number: int) -> None:
        """Let the next group go to a new file."""
        self._last += 1
        self._open = _Group(self._last, 0, number)

    def _install(self, group: _Group) -> Segment:
        """The segment that a group goes to; a new file is made with its first group."""
        if self._current is not None and self._current.number == group.segment:
            return self._current
        disk, files, old = self.files.disk, self.files, self._current
        if old is not None:
            old.file.truncate(old.size)
            old.file.sync()
            name = files.rotated(self._stamp())
            disk.rename(files.path(files.name), files.path(name))
            files.sync()  # before the new file takes the name
            old.name, old.file.path = name, files.path(name)
        file = self._with_space(lambda: disk.open(files.path(files.name), create=True), 0)
        files.sync()
        segment = Segment(group.segment, files.name, file, 0)
        with self.lock:
            self.segments[segment.number] = segment
            self._current, self._filled = segment, 0
        return segment

    def _append(self, segment: Segment, group: _Group) -> None:
        """Write a group. Small ones are written over a filling, as a sync of that is much cheaper than of growth.

        The filling is REMOVE over and over: of a queue that is empty, so for every reader it is nothing.
        """
        buffer, end = group.buffer, group.start + len(group.buffer)
        through = self.sink.sync == "always"
        write = segment.file.write_through if through else segment.file.write
        if end > self._filled and through and len(buffer) < FILLING // 2 and not self.sink.ballast.short:
            filled = (end + FILLING) // ALIGNED * ALIGNED
            try:
                write(group.start, buffer + bytes([1]) * (filled - end))
                self._filled = filled
                return
            except OSError as error:
                if not is_full(error):
                    raise
            segment.file.truncate(self._filled)
        self._with_space(lambda: write(group.start, buffer), len(buffer))
        self._filled = max(self._filled, end)

    def _with_space(self, work: Callable[[], Result], size: int) -> Result:
        """Do something that needs so much space, with space from the ballast if there is no other."""
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error) or not self.sink.ballast.release(size):
                    raise

    def _sync_soon(self, file: File) -> None:
        if self._unsynced is None:
            self._unsynced = file
            self.sink.alarm.set(self.sync_now, self.sink.clock.now() + _SYNC_EVERY)
        self._unsynced = file

    def sync_now(self) -> None:
        """Sync what was written with sync="interval" or "never"."""
        if self._closed:
            return
        file, self._unsynced = self._unsynced, None
        current = self._current
        for each in {id(each): each for each in (file, current.file if current else None) if each}.values():
            try:
                each.sync()
            except OSError as error:
                raise self.commits.stop(error) from error

    def close(self) -> None:
        """Write what is left, which no one waits for."""
        if self.commits.failure is None:
            self.commits.lead(self._finish)

    def let_go(self) -> None:
        """Close the files, so that what is removed of them no longer takes space."""
        self._closed = True
        for segment in list(self.segments.values()):
            segment.file.close()

    def retire(self) -> None:
        """The queue is gone, and its files are about to be."""
        with self.lock:
            self.segments = {}
            self._current = None
            self.sink.ballast.owe(-self._owed)

    def _finish(self) -> None:
        self.commits.flush()
        if self.sink.sync != "always" and self._current is not None:
            self._current.file.sync()
        if self._current is not None and self._filled > self._current.size:
            self._current.file.truncate(self._current.size)
            self._filled = self._current.size


def last_xid(next_seq: int) -> int:
    """The xid of the message before this one."""
    return xid_of(next_seq - 1) if next_seq > 1 else 0
