"""The storage of one queue: commit groups that threads share, and the journal files that they are written to.

Records and bodies join the open group. A commit seals that group, appends and syncs it while the next group fills:
one sync serves all threads that arrived while the last one ran. Only the thread that leads a commit appends to the
latest file, until that is rotated and the next begins. With sync="always" small groups overwrite a filling, which
is written ahead. A write that finds the disk full takes space from the ballast.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from zlib_ng.zlib_ng import crc32

from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.engine.commits import Commits
from penstock.engine.storage import Body
from penstock.errors import StoreClosed, StoreCorrupt
from penstock.rules.records import Ack, Pop, Put, Record, StreamSettle, Update
from penstock.rules.state import State, StateSnapshot
from penstock.stores.journal import bodies, groups
from penstock.stores.journal.bodies import ADDX, ITEM, RESERVE, TIMES, Extent, Located
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.files import (
    FILL,
    FILLING,
    PACKED,
    PLACE_BITS,
    ROTATED,
    SECTOR,
    JournalFiles,
    Segment,
    filling_end,
    mode_of,
)
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.groups import last_xid, xid_before
from penstock.stores.journal.records import PUT_ONE, PUT_ONE_FIELDS, encode_put, encode_record
from penstock.stores.journal.reservation import PER_MESSAGE, Ballast, Reservation
from penstock.system.clock import Alarm, Clock
from penstock.system.files import File, is_full
from penstock.system.threads import Lock, Threads

_SYNC_EVERY = 1_000  # milliseconds, with sync="interval"
_ENTRY = 4 << 10  # bytes of `queues/FILE`
_TAIL = groups.OVERHEAD - groups.HEAD_SIZE
_DONE = frozenset({Ack, Pop, StreamSettle})  # records after which messages are done


class OpenGroup:
    """A commit group that is being filled, under the queue's lock; its place in the journal is fixed."""

    __slots__ = ("at", "buffer", "next_seq", "number", "place", "records", "segment", "start", "written", "xid")

    def __init__(self, segment: int, start: int, number: int) -> None:
        self.segment = segment
        self.start = start
        self.place = (segment << PLACE_BITS) + start  # of its first byte
        self.number = number
        self.buffer = bytearray(groups.HEAD_SIZE)
        self.records = bytearray()
        self.xid: int | None = None  # the last used one before its first message
        self.next_seq = 0
        self.at = 0
        self.written = 0

    @property
    def size(self) -> int:
        """Bytes of the group if it were sealed now."""
        return len(self.buffer) + len(self.records) + _TAIL

    def is_empty(self) -> bool:
        return not self.records and len(self.buffer) == groups.HEAD_SIZE

    def put(
        self, record: Put, entries: Sequence[Entry], dialect: Dialect
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Add new messages; the places, sizes and checksums of their bodies."""
        at, first, priority, visible_at, expires_at, keys, in_groups, taken = record
        self.number_next(first, len(entries))
        if len(priority) == 1 and not keys and not in_groups and taken is None and dialect == "doc":
            [entry] = entries
            if entry.headers is None and entry.created_at is None:
                return self._put_plain(entry.payload, at, first, priority[0], visible_at[0], expires_at[0])
        parts, sizes, crcs = bodies.encode(entries, first, at, expires_at, dialect)
        offset, base = len(self.buffer), self.place
        offsets = list(accumulate(sizes[:-1], initial=offset))
        if offsets[-1] > 2 * offset:  # most of it is new
            self.buffer = bytearray().join([self.buffer, *parts])  # makes one large object, not two
        else:
            self.buffer += b"".join(parts)
        self.records += encode_put(record, Bodies(offsets, sizes, crcs))
        return [base + each for each in offsets], sizes, crcs

    def _put_plain(
        self, payload: bytes, at: int, seq: int, priority: int, visible_at: int, expires_at: int
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """One payload, encoded as bodies.encode() and encode_put() do, in two calls less: nearly all puts."""
        body = ITEM.pack(ADDX, TIMES + len(payload), at, expires_at) + payload + RESERVE
        offset, size, crc = len(self.buffer), len(body), crc32(body)
        self.buffer += body
        self.records += PUT_ONE_FIELDS.pack(PUT_ONE, at, seq, priority, visible_at, expires_at, offset, size, crc)
        return (self.place + offset,), (size,), (crc,)

    def number_next(self, first: int, count: int) -> None:
        """Write SAVE_XID, where needed, so that the next messages get the xids of their sequence numbers."""
        if self.xid is None:
            self.xid = xid_before(first)
        elif first != self.next_seq:
            self.buffer += bodies.save_xid(xid_before(first))
        self.next_seq = first + count

    def read(self, place: int, size: int) -> bytes:
        """A body that is still to be written."""
        start = place - self.place
        return bytes(self.buffer[start : start + size])


Result = TypeVar("Result")


class LatestFile:
    """The latest file of one journal. There is none until its first group is written."""

    def __init__(self, files: JournalFiles, segment: Segment | None, ballast: Ballast, through: bool) -> None:
        self.segment = segment
        self._files = files
        self._ballast = ballast
        self._through = through  # whether every write is synced
        self._filled = segment.size if segment else 0  # end of the file, with its filling
        self._unsynced: File | None = None

    def append(self, segment: Segment, start: int, buffer: bytearray) -> None:
        """Write a group. Small groups overwrite a filling: to sync a growing file costs much more.

        A whole filling followed by other bytes means that another program went on with the journal. What a crash
        leaves of a group must never look like that. So the sector in which the filling ends must be old, with
        nothing after it, or new and begin with something else than filling. A group that has only REMOVE there is
        written in two steps: its beginning is on disk before the rest.
        """
        end, through = start + len(buffer), self._through
        write = segment.file.write_through if through else segment.file.write
        over = self._filled - start
        if 0 < over < len(buffer) and not buffer[max(0, over - SECTOR // 2) : over].strip(FILL):
            write(start, buffer[:over])
        if end > self._filled and through and len(buffer) < FILLING // 2 and not self._ballast.short:
            filled = filling_end(end)
            try:
                write(start, buffer + FILL * (filled - end))
                self._filled = filled
                return
            except OSError as error:
                if not is_full(error):
                    raise
            segment.file.truncate(self._filled)
        self.with_space(len(buffer), write, start, buffer)
        self._filled = max(self._filled, end)

    def rotate(self, stamp: Callable[[], int]) -> None:
        """Rename the file, if there is one, to its name with a time stamp."""
        files, old = self._files, self.segment
        if old is None:
            return
        old.file.truncate(old.size)
        old.file.sync()
        name = files.rotated(stamp())
        files.disk.rename(files.path(files.name), files.path(name))
        files.sync()  # before the new file takes the name
        old.name, old.file.path = name, files.path(name)

    def create(self, number: int) -> Segment:
        files = self._files
        mode = mode_of([self.segment] if self.segment is not None else [])
        file = self.with_space(0, lambda: files.disk.open(files.path(files.name), create=True, mode=mode))
        files.sync()
        return Segment(number, files.name, file, 0)

    def go_on_with(self, segment: Segment) -> None:
        self.segment, self._filled = segment, 0

    def with_space(self, size: int, work: Callable[..., Result], *arguments: object) -> Result:
        """Do `work`, which needs `size` bytes; when the disk is full, with space from the ballast."""
        while True:
            try:
                return work(*arguments)
            except OSError as error:
                if not is_full(error) or not self._ballast.release(size):
                    raise

    def sync_later(self, file: File) -> bool:
        """Let the next sync() include a file; whether none was waiting."""
        first, self._unsynced = self._unsynced is None, file
        return first

    def sync(self) -> None:
        """Sync the latest file, and an earlier one that waits for it."""
        file, self._unsynced = self._unsynced, None
        current = self.segment
        for each in {id(each): each for each in (file, current.file if current else None) if each}.values():
            each.sync()

    def finish(self) -> None:
        """Cut off the filling and sync the file: the next opening relies on where it ends."""
        if self.segment is None:
            return
        filled = self._filled > self.segment.size
        if filled:
            self.segment.file.truncate(self.segment.size)
            self._filled = self.segment.size
        if filled or not self._through:
            self.segment.file.sync()


class Shared(NamedTuple):
    """What the storages of one store have in common."""

    clock: Clock
    elapsed: Clock  # goes on while the clock is set back
    timer: Alarm  # by the elapsed clock
    threads: Threads
    sync: str
    dialect: Dialect
    segment_size: int
    ballast: Ballast
    failed: Callable[[BaseException], None]  # stops the whole store


class Cut(NamedTuple):
    """A journal cut between two files: the files before the cut, and the state after them."""

    snapshot: StateSnapshot
    files: list[Segment]
    next_group: int
    at: int
    base: Settings  # with which replay of the files begins


class JournalStorage:
    """Where the records and bodies of one queue go."""

    def __init__(
        self,
        files: JournalFiles,
        state: State,
        lock: Lock,
        shared: Shared,
        segments: Sequence[Segment],
        next_group: int,
        at: int,
        begin: Callable[[int], None],
    ) -> None:
        self.files = files
        self.state = state
        self.lock = lock
        self.shared = shared
        self.segments = {segment.number: segment for segment in segments}
        self.stored = sum(segment.size for segment in segments)  # bytes of all files
        self.written = 0
        # Called by the committing thread once the journal has that many bytes.
        self.on_commit: Callable[[], None] = lambda: None
        self.on_commit_from = 0
        # Called before the first write to a file: with the number of the group if the file is new, else 0.
        self._begin = begin
        self._begun = False
        self._closed = self._retired = False
        self.at = at  # the latest time that was recorded
        self._last = max([ROTATED, *self.segments])  # the highest number of a segment
        latest = segments[-1] if segments and segments[-1].name == files.name else None
        self._latest = LatestFile(files, latest, shared.ballast, shared.sync == "always")
        self.commits = Commits(shared.threads, self._flush, shared.failed)
        self.reservation = Reservation(state, files.folder, shared.ballast, self._pending, self.commits.stop)
        self._sealed: deque[OpenGroup] = deque()
        if latest is None:
            self._last += 1
            self._open = OpenGroup(self._last, 0, next_group)
        else:
            self._open = OpenGroup(latest.number, latest.size, next_group)
        self._first_unwritten = self._open.place

    # Under the queue's lock

    @property
    def next_group(self) -> int:
        """The number of the open group."""
        return self._open.number

    def total(self) -> int:
        """Bytes of the journal, with those still to be written."""
        return self.stored + self._pending()

    @property
    def durable(self) -> int:
        return self.commits.durable

    def is_quiet(self) -> bool:
        """Whether no record waits to be written."""
        return self._open.is_empty() and not self._sealed

    def _pending(self) -> int:
        pending = self._open.size
        return pending if not self._sealed else pending + sum([each.size for each in list(self._sealed)])

    def make_room(self, entries: Sequence[Entry] = (), claims: int = 0, settings: Settings | None = None) -> None:
        """Reserve space for new messages, claims or settings; DiskFull changes nothing."""
        reservation = self.reservation
        ballast = reservation.ballast
        if ballast.size >= ballast.owed and settings is None:
            if not entries:
                return  # space for claims is reserved with their messages
            if len(entries) == 1:
                entry = entries[0]
                needed = len(entry.payload) + PER_MESSAGE
                plain = entry.headers is None and entry.key is None and entry.created_at is None
                if plain and needed <= reservation.left:
                    reservation.left -= needed
                    return
        if settings is not None:
            reservation.left = 0
            reservation.expect(0, groups.OVERHEAD + len(encode_record(Update(self.at, settings))))
        else:
            reservation.make_room(entries, claims)

    def begin_piece(self, first: int, count: int, content: bytes) -> tuple[int, int]:
        """Add the bodies of a staged piece with `count` xids; the open group's place, and their offset in it."""
        group = self._open
        group.number_next(first, count)
        offset = len(group.buffer)
        group.buffer += content
        return group.place, offset

    def end_piece(self, records: bytes, at: int) -> None:
        """Add the records of the staged pieces."""
        self._open.records += records
        self.at = max(self.at, at)
        self._open.at = self.at
        self.written += 1
        self._open.written = self.written

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        """Add a record to the open group."""
        group = self._open
        if type(record) is Put:
            self.state.rows.place(record.first, *group.put(record, entries, self.shared.dialect))
        else:
            group.records += encode_record(record)
            if type(record) in _DONE and self.state.settings.keep_done != 0:
                # Still listed here, but gone for every other reader of the journal.
                group.buffer += bodies.confirm(self._done(record))  # type: ignore[arg-type]
        if record.at > self.at:
            self.at = record.at
        group.at = self.at
        self.written += 1
        group.written = self.written

    def _done(self, record: Ack | Pop | StreamSettle) -> list[int]:
        """Messages that a record has made done, and that stay listed."""
        if isinstance(record, StreamSettle):
            return self.state.streams.kept_and_done(record.stream, record.batch)
        return record.seqs

    def drop(self, seqs: Sequence[int]) -> None:
        """End the transactions of messages that are gone."""
        self._open.buffer += bodies.confirm(seqs)

    def find(self, seqs: Sequence[int], among: Located | None = None) -> list[Extent]:
        """The extents of bodies; unwritten bodies are copied."""
        rows = self.state.rows if among is None else among
        return bodies.find(rows, seqs, self.segments, self._first_unwritten, self._unwritten)

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        rows = map(self.state.rows.locate, seqs)
        return [page.size[at] for page, at in rows]

    def _unwritten(self, place: int, size: int) -> bytes:
        for group in (*self._sealed, self._open):
            if 0 <= place - group.place < len(group.buffer):
                return group.read(place, size)
        raise StoreCorrupt(f"a message of queue {self.state.name!r} is neither on disk nor waiting to be written")

    # In any thread

    at_hand = staticmethod(bodies.from_cache)

    def read(self, found: Sequence[Extent]) -> list[Body]:
        """Read bodies and check them."""
        return bodies.read(found, self.state.name, lambda: self._closed)

    def commit(self, written: int) -> None:
        if self.commits.commit(written) and self.stored >= self.on_commit_from:
            self.on_commit()

    def refuse(self, failure: Callable[[], StoreClosed]) -> None:
        """Stop writing: a change was interrupted, and the state no longer agrees with the records."""
        self.commits.refuse(failure)

    def rotate(self) -> "Cut":
        """Begin a new file."""
        cut: Cut | None = None

        def begin() -> None:
            nonlocal cut
            with self.lock:  # held during a few syncs, so that files and state agree
                self.commits.check()
                self.commits.flush()
                old = list(self.segments.values())
                latest = self._latest.segment
                if latest is not None and latest.number == self._open.segment:
                    self._begin_file(self._open.number)
                self._install(self._open)
                cut = Cut(self.state.snapshot(), old, self._open.number, self.at, self.state.base)

        self.commits.lead(begin)
        if cut is None:
            raise RuntimeError("a journal was not rotated")
        return cut

    def leave_file(self) -> int:
        """Rotate the latest file, before staged files follow; the next group's number. The caller leads."""
        self.commits.check()
        self.commits.flush()
        self._begin_writing()
        self._latest.rotate(self.next_stamp)
        self._latest.segment = None
        return self._open.number

    def follow(self, name: str, file: File, number: int) -> Segment:
        """Append a whole file to the journal; the next group, with this number, goes to a new file."""
        segment = Segment(self._last + 1, name, file, file.size())
        self.add(segment)
        self._last += 2
        self._open = OpenGroup(self._last, 0, number)
        self._first_unwritten = self._open.place
        return segment

    def next_packed(self) -> int:
        """The segment number of the next packed file: below those of all rotated files."""
        return max([PACKED, *[number for number in self.segments if number < ROTATED]]) + 1

    def add(self, segment: Segment) -> None:
        """Let bodies be read from a new file."""
        with self.lock:  # a new dict, because other threads may iterate over the old one
            self.segments = {**self.segments, segment.number: segment}
            self.stored += segment.size

    def replace(self, old: Sequence[Segment], new: Segment | None) -> None:
        """Read bodies from the new file instead of the old ones, which current readers still have open."""
        with self.lock:
            dead = {segment.number for segment in old}
            kept = {number: each for number, each in self.segments.items() if number not in dead}
            self.segments = kept if new is None else {new.number: new, **kept}
            self.stored = sum(each.size for each in self.segments.values())

    # By the one thread that leads

    def _flush(self) -> int:
        """Write all groups; how many records are durable then."""
        with self.lock:
            if self._retired:
                return self.written  # the queue is deleted
            if not self._open.is_empty() and self.commits.failure is None:
                self._seal()
            waiting = list(self._sealed)
        latest = self._latest
        if waiting and latest.segment is not None and not self._begun:
            self._begin_writing()
        durable = self.commits.durable
        for group in waiting:
            groups.seal(group.buffer, group.records, group.xid or 0, group.number, group.at)
            segment = latest.segment
            if segment is None or segment.number != group.segment:
                segment = self._install(group)
            latest.append(segment, group.start, group.buffer)
            if self.shared.sync == "interval" and latest.sync_later(segment.file):
                self.shared.timer.set(self.sync_now, self.shared.elapsed.now() + _SYNC_EVERY)
            with self.lock:
                segment.size = group.start + len(group.buffer)
                self.stored += len(group.buffer)
                self._sealed.popleft()
                first = self._sealed[0] if self._sealed else self._open
                self._first_unwritten = first.place
            durable = group.written or durable
        return durable

    def _begin_writing(self) -> None:
        if not self._begun:
            self._latest.with_space(_ENTRY, self._begin, 0)
            self._begun = True

    def _seal(self) -> None:
        """Seal the open group and begin the next, in a new file if this one has reached the segment size."""
        group = self._open
        if group.xid is None:
            group.xid = last_xid(self.state.rows.next_seq)
        group.at = self.at = max(self.at, self.state.advanced)  # messages that are gone by then stay gone
        self._sealed.append(group)
        end = group.start + len(group.buffer) + len(group.records) + _TAIL
        if end >= self.shared.segment_size:
            self._begin_file(group.number + 1)
        else:
            self._open = OpenGroup(group.segment, end, group.number + 1)

    def _begin_file(self, number: int) -> None:
        """Let the next group go to a new file."""
        self._last += 1
        self._open = OpenGroup(self._last, 0, number)

    def _install(self, group: OpenGroup) -> Segment:
        """The segment of a group; a new file is made for its first group."""
        latest = self._latest
        if latest.segment is not None and latest.segment.number == group.segment:
            return latest.segment
        latest.rotate(self.next_stamp)
        segment = latest.create(group.segment)
        latest.with_space(_ENTRY, self._begin, group.number)  # after the file's name is durable
        self._begun = True
        with self.lock:
            self.add(segment)
            latest.go_on_with(segment)
        return segment

    def next_stamp(self) -> int:
        """A time for a file name, later than those of all files."""
        stamps = [self.files.stamp(each.name) for each in self.segments.values() if each.name != self.files.name]
        return max([self.shared.clock.now(), *[stamp + 1 for stamp in stamps]])

    def sync_now(self) -> None:
        """Sync what was written with sync="interval"."""
        if self._closed:
            return
        try:
            self._latest.sync()
        except OSError as error:
            raise self.commits.stop(error) from error

    def close(self) -> bool:
        """Write the last records; False if writing has failed."""
        if self.commits.failure is None:
            self.commits.lead(self._finish)
        return self.commits.failure is None

    def let_go(self) -> None:
        """Close the files, which frees the space of removed ones."""
        self._closed = True
        for segment in self.segments.values():
            segment.file.close()

    def retire(self) -> None:
        """Stop writing: the queue is deleted, and its files are about to be removed."""

        def end() -> None:  # led, because a thread that writes would make a file again
            with self.lock:
                self.segments, self.stored = {}, 0
                self._latest.segment = None
                self._retired = True
                self.reservation.give_back()

        self.commits.lead(end)

    def _finish(self) -> None:
        self.commits.check()
        self.commits.flush()
        self._latest.finish()
