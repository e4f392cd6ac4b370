"""A text queue's two files, used by several processes: whose turn it is, what is known, and how changes are kept.

Everything happens in turns: the lock, what others have changed meanwhile, the operation, its writes and syncs, the
seal. Between turns a process only remembers, and checks at the next turn whether that still holds.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from penstock.engine.backend import not_found
from penstock.errors import DiskFull, PenstockError, QueueNotFound
from penstock.stores.text import mutex
from penstock.stores.text.files import Pair, Sync, append_unborn, bear, mutex_of
from penstock.stores.text.format import COMMENT, QUEUED, Document, Entry, line_end, parse, parse_one
from penstock.stores.text.ledger import assign_notes
from penstock.stores.text.mutex import HEAD, Note, note_as_json, seal_of
from penstock.stores.text.view import View, load
from penstock.system.clock import SteadyClock
from penstock.system.files import Disk, Status, is_full, is_refused, status_if_there
from penstock.system.threads import Threads

_COMPACT = 256 << 10  # bytes of mutex file that are never worth writing it anew
SPARE = 256 << 10  # bytes that puts leave free for the mutex file, and so many more for each message:
_EACH = 128  # the receipt of an ack, which is remembered for five minutes, twice
_LINE = 600  # bytes that a line about one message has at most, mostly
_RACY = 2_000_000_000  # nanoseconds: two changes within the file system's idea of a moment may look like one
_log = logging.getLogger("penstock")


class Edited(Exception):
    """The file is not what it was a moment ago: look again."""


class TextStorage:
    """The files of one queue. Every method but `turn` and `changed_outside` is for the holder of the turn."""

    def __init__(self, name: str, path: str, disk: Disk, clock: SteadyClock, threads: Threads, sync: Sync) -> None:
        self.name = name
        self.path = path
        self.lock = threads.rlock()
        self._threads = threads
        self._pair = Pair(path, disk, sync)
        self._mutex = self._pair.lock
        self._disk = disk
        self._clock = clock
        self._view: View | None = None
        self._mutex_inode = -1  # of the mutex file that the view knows
        self._room = 0  # up to which size the mutex file can grow
        self._named = (-1, -1)  # the files whose names are durable, as far as we know
        self._depth = 0
        self._reseal = False
        self.counts = False  # whether something counts that was done in this turn: an error no longer undoes it
        self._warned: list[object] = []

    @contextmanager
    def turn(self) -> Iterator[View]:
        """Have the files for oneself; QueueNotFound if they are gone. Turns of one thread may be nested."""
        with self.lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self.current()
                except PenstockError:
                    raise
                except BaseException as error:
                    self._distrust(error)
                    raise
                finally:
                    self._depth -= 1
                return
            try:
                self._mutex.acquire()
            except FileNotFoundError:
                raise self.gone() from None
            self._depth, self.counts = 1, False
            try:
                yield self._begin()
                self._seal()
            except PenstockError:
                self._seal()
                raise
            except BaseException as error:
                self._distrust(error)
                raise
            finally:
                self._depth = 0
                self._mutex.release()

    @property
    def known(self) -> View | None:
        """What was known after the last turn; to be looked at, not to be relied on."""
        return self._view

    def current(self) -> View:
        """What is known in this turn; read again if something went wrong."""
        if self._view is None:
            self._mutex.size = self._mutex.file.size()  # it may have grown in this turn
            self._view = self._refresh()
        return self._view

    def _begin(self) -> View:
        try:
            return self._refresh()
        except OSError as error:
            self._distrust(error)
            if is_full(error):  # nothing was done but finishing what others began
                raise self._full() from error
            raise

    def _distrust(self, error: BaseException) -> None:
        """Whatever was half done is read again from the files, and after an error of the disk written again."""
        self._view = None
        if isinstance(error, OSError):
            self._pair.doubt()
            self._named = (-1, -1)

    # Looking

    def changed_outside(self) -> bool:
        """Whether someone has changed the files since our last turn; a guess, made without the lock."""
        view = self._view
        if view is None:
            return True
        there, noted = status_if_there(self._disk, self.path), status_if_there(self._disk, self._mutex.path)
        if there is None or noted is None:
            return True
        return seal_of(there) != view.seal or noted.size != view.mutex_end

    def _refresh(self) -> View:
        there = status_if_there(self._disk, self.path)
        if there is None:
            raise self.gone()
        if not self._pair.is_open or self._pair.inode != there.inode:
            try:
                self._pair.open()
            except FileNotFoundError:
                raise self.gone() from None
            there = self._pair.file.status()
            self._view = None
            if mutex_of(self.path, self._disk) != self._mutex.path:  # said again of what an editor has put there
                self._mutex.close()
                raise Edited
        if self._named != (self._pair.inode, self._mutex.inode):
            self._pair.sync_names()
            self._named = (self._pair.inode, self._mutex.inode)
        view, seal, noted = self._view, seal_of(there), self._mutex.size
        if view is not None and self._mutex_inode == self._mutex.inode:
            if view.seal == seal and view.mutex_end == noted:
                return view
            sealed = mutex.read_seal(self._mutex.file.read(0, HEAD))
            if sealed == seal and self._catch_up(view, there.size, noted):
                view.seal = seal
                return view
        self._mutex_inode = self._mutex.inode
        self._view = self._load(there, noted)
        return self._view

    def _catch_up(self, view: View, size: int, noted: int) -> bool:
        """Take in what other processes have done; False if that is not so simple."""
        if size < view.end or noted < view.mutex_end:
            return False
        lines = mutex.read(self._mutex.file.read(view.mutex_end, noted - view.mutex_end), view.mutex_end)
        if lines.pending or lines.born or lines.end != noted:
            return False
        now = self._clock.now()
        if size > view.end:
            if view.end and self._pair.file.read(view.end - 1, 1) != b"\n":
                return False  # what came first goes on with the last line
            document = parse(self._pair.file.read(view.end, size - view.end), view.end)
            if document.problems:
                return False
            self._clock.follow(view.arrive(document.entries, now, self._clock.horizon()), self.path)
            view.end, view.ended = size, False
        found = [(seq, note) for note in lines.notes.values() if (seq := view.table.at(note.offset)) is not None]
        assign_notes(view.ledger.state, found)
        for seq, note in found:
            view.table.controls[seq] = ord(note.byte)
            view.hold(seq, note)
        view.settled |= {receipt: (how, when) for receipt, how, when in lines.settled}
        view.keys |= {key: (each, until) for key, each, until in lines.keys}
        if self._clock.follow(lines.at, self._mutex.path):
            view.at = max(view.at, lines.at)
        view.mutex_end = noted
        return True

    def _load(self, there: Status, noted: int) -> View:
        """Read both files from their beginnings, and finish what a crash has interrupted."""
        self._room = 0
        head = self._mutex.file.read(0, noted)
        memory = mutex.read(head[HEAD:], HEAD)
        if not self._clock.follow(memory.at, self._mutex.path):
            memory = memory._replace(at=0)
        intact = mutex.read_seal(head) == seal_of(there)
        doubtful = head[:HEAD] == mutex.DOUBTFUL or self._pair.doubtful
        if doubtful:
            self._pair.write_again()
        data = self._pair.file.read(0, there.size)
        document = parse(data)
        if not intact and _is_torn(data, document):  # a shell that appends to it would lengthen it
            self._pair.written = True
            self._pair.file.append(b"\n", sync=True)
            there = self._pair.file.status()
            data = self._pair.file.read(0, there.size)
            document = parse(data)
        now, horizon = self._clock.now(), self._clock.horizon()
        modified, damaged = there.changed // 1_000_000 or now, memory.end != max(noted, HEAD)
        view, repairs, rewrite = load(
            self.name, document, len(data), memory, intact, modified, now, horizon, damaged
        )
        for time in (view.at, view.ahead):
            self._clock.follow(time, self.path)
        view.line_end = line_end(data, document.entries)
        for problem in view.problems:
            if problem not in self._warned:
                line = problem.line or data.count(b"\n", 0, problem.offset) + 1
                _log.warning("%s line %d is skipped: %s", self.path, line, problem.what)
        self._warned = list(view.problems)
        for offset, byte in repairs:
            self._pair.write(offset, byte.encode())
        if repairs:
            self._pair.sync_file()
        if rewrite or doubtful or memory.end != max(noted, HEAD):  # the rest is a line that was torn
            self._rewrite(view)
        elif memory.pending or memory.born:
            self._pair.note_is_done(memory.last)
        if not intact and not self._pair.written:
            self._pair.written = abs(self._clock.now() * 1_000_000 - there.changed) < _RACY
            self._reseal = True
        view.seal = seal_of(there)
        return view

    def read(self, seqs: Sequence[int]) -> list[Entry]:
        """The entries of messages, as they stand in the file; Edited if they are others by now."""
        view = self.current()
        table, entries = view.table, []
        for seq in seqs:
            offset = table.offsets[seq]
            entry = parse_one(self._pair.file.read(offset, table.lengths[seq]) or b"?", offset)
            if crc32(entry.content) != table.crcs[seq]:
                self._view = None
                raise Edited
            entries.append(entry)
        return entries

    # Writing

    def append(
        self,
        unborn: Sequence[bytes],
        ids: Sequence[str],
        now: int,
        controls: str = "",
        notes: Mapping[int, Note] | None = None,
    ) -> list[int]:
        """Durably add messages, all of them or none; where they start.

        Those that were elsewhere have control characters, and by their position what is noted about them.
        """
        view = self.current()
        start = view.end
        kept = SPARE + _EACH * view.ledger.state.waiting()
        try:
            self._have_room(view, len(ids), kept + SPARE // 4, kept)
            self._pair.written, always = True, self._pair.sync.always
            end = view.end if view.ended else None
            offsets = append_unborn(self._pair.file, unborn, always, end, view.line_end)
            if not always:
                self._pair.sync_file()
            if len(unborn) > 1 or notes:
                self._note({"at": now, "born": list(ids), **_placed(notes or {}, offsets)}, pending=True)
        except OSError as error:
            raise self._undo(error, view, b"".join(unborn)) from error
        bear(self._pair.file, offsets, always, controls)
        self.counts = True
        if not always:
            self._pair.sync_file()
        if len(unborn) > 1 or notes:
            self._pair.note_is_done()
        there = status_if_there(self._disk, self.path)
        if there is None or there.inode != self._pair.inode:
            raise Edited  # an editor has just put another file in its place: into that one, then
        self._pair.changed = there.changed
        view.end, view.ended = offsets[-1] + len(unborn[-1]), True
        if offsets[0] != start:
            self._view = None  # what others have added before it is read at the next turn
        return offsets

    def record(
        self, content: dict[str, Any], notes: Sequence[tuple[int, Note]], mirrors: Iterable[tuple[int, bytes]]
    ) -> None:
        """Durably change messages: what is noted, their control characters, and what their variables say."""
        view = self.current()
        changed = [(seq, note) for seq, note in notes if view.table.controls[seq] != ord(note.byte)]
        said = {**content, "notes": [note_as_json(note) for _, note in notes]} if notes else content
        if view.new_seen:
            said = {**said, "seen": view.new_seen}
        try:
            self._have_room(view, len(notes), SPARE, 0)
            self._note(said, pending=bool(changed))
        except OSError as error:
            raise self._undo(error, view) from error
        view.seen, view.new_seen = view.seen + view.new_seen, []
        for offset, data in mirrors:
            self._pair.write(offset, data)
        for seq, note in changed:
            self._pair.write(note.offset, note.byte.encode())
            view.table.controls[seq] = ord(note.byte)
        if changed:
            self._pair.sync_file()
            self._pair.note_is_done()
        for seq, note in notes:
            view.hold(seq, note)
        if view.mutex_end > max(_COMPACT, 4 * view.noted()):
            self._compact(view)

    def _have_room(self, view: View, messages: int, wanted: int, kept: int) -> None:
        """Have space in the mutex file for a line about so many messages, and so much more, if not as wanted.

        It can always be written anew in the space behind its end, so that it never fills up for good.
        """
        size = view.mutex_end + _LINE * (messages + 1) + view.noted()
        if size + kept > self._room:
            try:
                self._mutex.file.reserve(size + wanted)
            except OSError as error:
                if not is_full(error):
                    raise
                self._mutex.file.reserve(size + kept)
                wanted = kept
            self._room = size + wanted

    def probe(self) -> None:
        """Write bytes over themselves, to see whether the files can be written at all."""
        view = self.current()
        if view.seal is not None:
            self._mutex.file.write(0, mutex.write_seal(view.seal))

    def shorten(self) -> bool:
        """Write the mutex file anew because the disk is full; False: that would not help."""
        with self.turn() as view:
            if view.mutex_end < 2 * view.noted() + _LINE:
                return False
            self._rewrite(view)
            return True

    def _note(self, content: dict[str, Any], pending: bool) -> None:
        view = self.current()
        view.mutex_end = self._pair.note(view.mutex_end, content, pending)
        self.counts = True
        view.at = max(view.at, content["at"])

    def _undo(self, error: OSError, view: View, appended: bytes = b"") -> Exception:
        """What to raise for an error before anything counted; what had no space, or was refused, never was."""
        self._view = None
        has_no_space = is_full(error)
        if not has_no_space and not is_refused(error):
            return error
        try:
            # Bytes that a failed sync has left would else be there to read, and not on the disk.
            left = self._pair.file.read(view.end, self._pair.file.size() - view.end)
            if appended.startswith(left) or (b"\n" + appended).startswith(left):
                self._pair.file.truncate(view.end)
            else:  # others have added something: ours stays, commented out, and ends before it
                ours = max(_alike(left, appended), _alike(left, b"\n" + appended))
                if ours > 1 and left[ours : ours + 1] == QUEUED.encode():  # a message, in the middle of our line
                    self._pair.file.write(view.end + ours - 1, b"\n")
                if not left.endswith(b"\n"):
                    self._pair.file.append(b"\n")
            if self._mutex.file.size() > view.mutex_end:  # else the space behind it would be lost for nothing
                self._mutex.file.truncate(view.mutex_end)
                self._mutex.file.sync()  # a line that the disk has must not come back, as it counts
            self._pair.seal(
                view.end
            )  # it is as it was: no need to write anything anew, for which there is no space
        except OSError as worse:
            self._pair.doubt()
            return worse
        return self._full() if has_no_space else error

    def _full(self) -> DiskFull:
        return DiskFull(
            f"no space left for queue {self.name!r} in {self.path!r}, nothing was changed: free some and try again"
        )

    def _compact(self, view: View) -> None:
        try:
            self._rewrite(view)
        except OSError as error:
            if not is_full(error) or self._mutex.inode != self._mutex_inode:
                raise
            # The longer file will do, until there is space.

    def _rewrite(self, view: View) -> None:
        """Write the mutex file anew, with what still means something."""
        notes = {seq: note for seq, note in view.notes.items() if view.ledger.state.has(seq)}
        content = {
            "at": view.at,
            "all": True,
            "notes": [note_as_json(note) for note in notes.values()],
            "settled": [[receipt, how, when] for receipt, (how, when) in view.settled.items()],
            "keys": [[key, each, until] for key, (each, until) in view.keys.items()],
            "seen": view.seen + view.new_seen,
        }
        view.mutex_end, self._room = self._pair.rewrite(content), 0
        self._mutex_inode = self._mutex.inode
        self._named = (self._pair.inode, self._mutex.inode)
        view.notes = notes
        view.seen, view.new_seen = view.seen + view.new_seen, []
        self._reseal = True

    def replace_file(self, data: bytes, end: int) -> bool:
        """Put another file in the place of one that had `end` bytes; everything is read again after that."""
        self._view = None
        try:
            return self._pair.replace(data, end)
        except OSError as error:
            there = status_if_there(self._disk, self.path)
            if is_full(error) and there is not None and there.inode == self._pair.inode:
                raise self._full() from error
            raise

    @property
    def names(self) -> int:
        """How many names the queue's file has."""
        return self._pair.file.status().names

    def read_all(self) -> bytes:
        """The whole file."""
        return self._pair.read_all()

    def _seal(self) -> None:
        view = self._view
        if view is not None and self._pair.is_open and (self._pair.written or self._reseal):
            view.seal = self._pair.seal(view.end)
            self._reseal = False

    # The end

    def remove(self, link: str | None = None) -> None:
        """Remove both files, or only the link that leads to them."""
        self._view = None
        self._pair.remove(link)

    def forked(self) -> None:
        """In a child: everything is read again, whatever another thread of the parent was doing."""
        self.lock = self._threads.rlock()
        self._pair.forked()
        self._view = None
        self._depth, self._reseal = 0, False

    def close(self) -> None:
        """Let go of the files."""
        with self.lock:
            self._pair.close()
            self._view = None

    def gone(self) -> QueueNotFound:
        """The error for a queue whose files are not there any more."""
        self._view = None
        return not_found(self.name)


def _placed(notes: Mapping[int, Note], offsets: Sequence[int]) -> dict[str, Any]:
    """What to say of messages, now that it is known where they are."""
    for at, note in notes.items():
        note.offset = offsets[at]
    return {"notes": [note_as_json(note) for note in notes.values()]} if notes else {}


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _is_torn(data: bytes, document: Document) -> bool:
    """Whether the file ends within a line as a put may have left it that was cut off: of a comment."""
    last = document.entries[-1] if document.entries else None
    return last is not None and last.control == COMMENT and not data.endswith(b"\n")
