"""Storage of a text queue: takes the lock, brings the view up to date, and commits changes to both files.

An operation runs in these steps: take the lock, read the changes of other processes and people, decide, write and
sync, write the seal, unlock. Between operations a process keeps its view, and checks it under the next lock.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from penstock.contract.refusals import not_found
from penstock.errors import DiskFull, PenstockError, QueueNotFound
from penstock.stores.text import mutex
from penstock.stores.text.files import (
    KnownBytes,
    QueueFiles,
    Sync,
    append_commented,
    mutex_of,
    replace_queue,
    uncomment,
)
from penstock.stores.text.format import COMMENT, QUEUED, Document, Entry, Problem, line_end, parse, parse_one
from penstock.stores.text.ledger import assign_notes
from penstock.stores.text.mutex import HEAD, Leaving, Note, note_as_json, seal_of
from penstock.stores.text.view import View, load
from penstock.system.clock import SteadyClock
from penstock.system.files import Disk, Status, is_full, is_refused, status_if_there
from penstock.system.threads import Threads

_COMPACT = 256 << 10  # bytes up to which the mutex file is never rewritten
SPARE = 256 << 10  # bytes that puts leave free for the mutex file
_EACH = 128  # bytes more for each message: the receipt of its ack, twice
_LINE = 600  # bytes of a line about one message
_RACY = 2_000_000_000  # nanoseconds: two changes within one tick of a file system's mtime look like one
_log = logging.getLogger("penstock")


class Edited(Exception):
    """The file was edited during an operation, which has to be repeated."""


class TextStorage:
    """The storage of one queue. All methods but `locked` and `changed_outside` need the lock."""

    def __init__(self, name: str, path: str, disk: Disk, clock: SteadyClock, threads: Threads, sync: Sync) -> None:
        self.name = name
        self.path = path
        self.lock = threads.rlock()
        self._threads = threads
        self._files = QueueFiles(path, disk, sync)
        self._mutex = self._files.lock
        self._disk = disk
        self._clock = clock
        self._view: View | None = None
        self._mutex_inode = -1  # of the mutex file that the view was read from
        self._room = 0  # size that is reserved for the mutex file
        self._named = (-1, -1)  # inodes of both files when their names were last synced
        self._depth = 0  # of nested locks
        self._reseal = False
        self.has_effect = False  # whether this operation has changed the files, so that it cannot be undone
        self._moved: dict[int, int] | None = None  # new offsets of entries, just after packing
        self._warned: list[Problem] = []

    @contextmanager
    def locked(self) -> Iterator[View]:
        """Hold the lock; QueueNotFound. May be nested in one thread."""
        with self.lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self.current()
                except PenstockError:
                    raise
                except BaseException as error:
                    self._drop_view(error)
                    raise
                finally:
                    self._depth -= 1
                return
            self.has_effect = False
            try:
                self._mutex.acquire()
            except FileNotFoundError:
                raise self.gone() from None
            self._depth = 1
            try:
                yield self._begin()
                self._seal()
            except PenstockError:
                self._seal()
                raise
            except BaseException as error:
                self._drop_view(error)
                raise
            finally:
                self._depth = 0
                self._mutex.release()

    @property
    def is_nested(self) -> bool:
        """Whether this thread had the lock before its last `locked`."""
        return self._depth > 1

    @property
    def known(self) -> View | None:
        """The view of the last operation, without a check whether the files have changed."""
        return self._view

    def current(self) -> View:
        """The view under this lock; read again if it was dropped."""
        if self._view is None:
            self._mutex.size = self._mutex.file.size()  # it may have grown under this lock
            self._view = self._refresh()
        return self._view

    def _begin(self) -> View:
        try:
            return self._refresh()
        except OSError as error:
            self._drop_view(error)
            if is_full(error):  # nothing was changed, except to complete operations of others
                raise self._full() from error
            raise

    def _drop_view(self, error: BaseException) -> None:
        """Read the files again at the next access; after an error of the disk, also write them again."""
        self._view = None
        if isinstance(error, OSError):
            self._files.mark_doubtful()
            self._named = (-1, -1)

    # Reading

    def changed_outside(self) -> bool:
        """Whether others have changed the files since the last operation; a guess, made without the lock."""
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
        if not self._files.is_open or self._files.inode != there.inode:
            try:
                self._files.open()
            except FileNotFoundError:
                raise self.gone() from None
            there = self._files.file.status()
            self._view = None
            if (
                mutex_of(self.path, self._disk) != self._mutex.path
            ):  # an editor's new file may be another's hard link
                self._mutex.close()
                raise Edited
        if self._named != (self._files.inode, self._mutex.inode):
            self._files.sync_names()
            self._named = (self._files.inode, self._mutex.inode)
        view, seal, noted = self._view, seal_of(there), self._mutex.size
        if view is not None and self._mutex_inode == self._mutex.inode:
            if view.seal == seal and view.mutex_end == noted:
                return view
            sealed = mutex.read_seal(self._mutex.file.read(0, HEAD))
            if sealed == seal and self._catch_up(view, there.size, noted):
                view.seal = seal
                return view
            if sealed == view.seal and view.mutex_end == noted and self._take_in(view, there):
                return view
        self._mutex_inode = self._mutex.inode
        self._view = self._load(there, noted)
        return self._view

    def _catch_up(self, view: View, size: int, noted: int) -> bool:
        """Apply appended entries and lines of other processes to the view; False: read the files whole."""
        if size < view.end or noted < view.mutex_end:
            return False
        lines = mutex.read(self._mutex.file.read(view.mutex_end, noted - view.mutex_end), view.mutex_end)
        if lines.pending or lines.born or lines.leaving or lines.taken or lines.end != noted:
            return False
        now = self._clock.now()
        if size > view.end:
            if view.end and self._files.file.read(view.end - 1, 1) != b"\n":
                return False  # the new bytes continue the last line
            data = self._files.file.read(view.end, size - view.end)
            document = parse(data, view.end)
            if document.problems:
                return False
            view.see(lines.seen)
            self._clock.follow(view.arrive(document.entries, now, self._clock.horizon()), self.path)
            view.content.append(data)
            view.end, view.ended = size, False
        else:
            view.see(lines.seen)
        found = [(seq, note) for note in lines.notes.values() if (seq := view.table.at(note.offset)) is not None]
        assign_notes(view.ledger.state, found)
        for seq, note in found:
            view.table.controls[seq] = ord(note.byte)
            view.keep_note(seq, note)
        table = view.table
        view.content.read_again(self._files.file, [(table.offsets[seq], table.lengths[seq]) for seq, _ in found])
        view.settled |= {receipt: (how, when) for receipt, how, when in lines.settled}
        view.keys |= {key: (each, until) for key, each, until in lines.keys}
        if self._clock.follow(lines.at, self._mutex.path):
            view.at = max(view.at, lines.at)
        view.mutex_end = noted
        return True

    def _take_in(self, view: View, there: Status) -> bool:
        """Add messages that another program has appended to the view; False: read the files whole.

        Only the bytes behind those that are known are parsed. That the file has only grown says nothing: an editor
        may have changed it as well, within one look. So the bytes before are compared with their hashes.
        """
        if there.size <= view.end or self._files.doubtful:
            return False
        data = self._files.file.read(0, there.size)
        known = view.end
        if len(data) < there.size or data[known - 1 : known] != b"\n" or not data.endswith(b"\n"):
            return False
        if not view.content.begin(data):
            return False
        document = parse(data[known:], known)
        if not view.is_plain(document):
            return False
        now, modified = self._clock.now(), there.changed // 1_000_000
        view.end = there.size
        view.see_new(document.entries, min(modified or now, now))
        if (twins := view.noted_twins(document.entries)) and not self._note_twins(view, twins, now):
            return False
        self._clock.follow(view.arrive(document.entries, now, self._clock.horizon()), self.path)
        view.content.append(data[known:])
        view.ended = True
        self._warn(view.add_problems(document, data.count(b"\n", 0, known)), data)
        self._seal_anew(there)
        view.seal = seal_of(there)
        return True

    def _note_twins(self, view: View, twins: list[tuple[int, int]], now: int) -> bool:
        """Durably note how many messages read alike; False if there is no space."""
        try:
            self._have_room(view, len(twins), SPARE, 0)
            view.mutex_end = self._files.note(
                view.mutex_end, {"at": now, "seen": view.new_seen, "texts": twins}, pending=False
            )
        except OSError as error:
            if not is_full(error):
                raise
            return False
        view.at = max(view.at, now)
        view.seen, view.new_seen = view.seen + view.new_seen, []
        return True

    def _seal_anew(self, there: Status) -> None:
        """Seal a file that others have changed, so that a later change within one tick of its mtime differs."""
        if not self._files.written:
            self._files.written = abs(self._clock.now() * 1_000_000 - there.changed) < _RACY
            self._files.read_at = there.changed
            self._reseal = True

    def _warn(self, problems: Sequence[Problem], data: bytes) -> None:
        """Log lines that are skipped, once each."""
        for problem in problems:
            if problem not in self._warned:
                line = problem.line or data.count(b"\n", 0, problem.offset) + 1
                _log.warning("%s line %d is skipped: %s", self.path, line, problem.what)

    def _load(self, there: Status, noted: int) -> View:
        """Read both files whole, and complete an operation that a crash has interrupted."""
        self._room = 0
        head = self._mutex.file.read(0, noted)
        memory = mutex.read(head[HEAD:], HEAD)
        if not self._clock.follow(memory.at, self._mutex.path):
            memory = memory._replace(at=0)
        sealed = mutex.read_seal(head)
        intact = sealed == seal_of(there)
        doubtful = head[:HEAD] == mutex.DOUBTFUL or self._files.doubtful
        if doubtful:
            self._files.write_again()
        data = self._files.file.read(0, there.size)
        document = parse(data)
        if not intact and _is_torn(data, document):  # a line that a shell appends would continue the torn one
            self._files.written = True
            self._files.file.append(b"\n", sync=True)
            there = self._files.file.status()
            data = self._files.file.read(0, there.size)
            document = parse(data)
        now, horizon = self._clock.now(), self._clock.horizon()
        modified, damaged = there.changed // 1_000_000 or now, memory.end != max(noted, HEAD)
        grown = None if sealed is None else len(data) - sealed.size
        view, repairs, rewrite = load(
            self.name, document, len(data), memory, intact, modified, now, horizon, damaged, grown, self._moved
        )
        for time in (view.at, view.ahead):
            self._clock.follow(time, self.path)
        view.line_end = line_end(data, document.entries)
        view.content = KnownBytes(data)
        self._warn(view.problems, data)
        self._warned = list(view.problems)
        for offset, byte in repairs:
            self._files.write(offset, byte.encode())
        if repairs:
            self._files.sync_file()
        # Processes that know the file by its last seal read it whole if the mutex file is another one.
        if rewrite or doubtful or damaged or (not intact and memory.lines):
            self._rewrite(view)
        elif not intact and noted:
            self._compact(view)
        elif memory.pending or memory.born:
            self._files.note_is_done(memory.last)
        if not intact:
            self._seal_anew(there)
        view.seal = seal_of(there)
        return view

    def read(self, seqs: Sequence[int]) -> list[Entry]:
        """The entries of messages in the file; Edited if their texts have changed."""
        view = self.current()
        table, entries = view.table, []
        for seq in seqs:
            offset = table.offsets[seq]
            entry = parse_one(self._files.file.read(offset, table.lengths[seq]) or b"?", offset)
            if crc32(entry.content) != table.crcs[seq]:
                self._view = None
                raise Edited
            entries.append(entry)
        return entries

    # Writing

    def append(
        self,
        entries: Sequence[bytes],
        ids: Sequence[str],
        now: int,
        controls: str = "",
        notes: Mapping[int, Note] | None = None,
        taken: str = "",
    ) -> list[int]:
        """Durably append messages, all or none; their offsets.

        Messages of another store have their control characters, and notes by position. `taken`: the file of the
        queue that they move from.
        """
        view = self.current()
        start = view.end
        kept = SPARE + _EACH * view.ledger.state.waiting()
        try:
            self._have_room(view, len(ids), kept + SPARE // 4, kept)
            is_noted = bool(len(entries) > 1 or notes or taken)
            self._files.written, self._files.read_at, always = True, None, self._files.sync.always
            end = view.end if view.ended else None
            offsets = append_commented(self._files.file, entries, always, end, view.line_end)
            if not always:
                self._files.sync_file()
            if is_noted:
                said = {"born": list(ids), **({"taken": taken} if taken else {}), **_placed(notes or {}, offsets)}
                self._note({"at": now, **said}, pending=True)
        except OSError as error:
            raise self._undo(error, view, b"".join(entries)) from error
        uncomment(self._files.file, offsets, always, controls)
        self.has_effect = True
        if not always:
            self._files.sync_file()
        if is_noted:
            self._files.note_is_done()
        there = status_if_there(self._disk, self.path)
        if there is None or there.inode != self._files.inode:
            raise Edited  # an editor has just replaced the file: append to the new one
        self._files.changed = there.changed
        view.end, view.ended = offsets[-1] + len(entries[-1]), True
        if offsets[0] != start:
            self._view = None  # another program has appended before it
            return offsets
        added = zip(controls or QUEUED * len(entries), entries, strict=True)
        view.content.append(b"".join(control.encode() + entry[1:] for control, entry in added))
        return offsets

    def record(
        self, content: dict[str, Any], notes: Sequence[tuple[int, Note]], writes: Iterable[tuple[int, bytes]]
    ) -> None:
        """Durably change messages: append their notes to the mutex file, then change bytes of the queue's file."""
        view = self.current()
        changed = [(seq, note) for seq, note in notes if view.table.controls[seq] != ord(note.byte)]
        said = {**content, "notes": [note_as_json(note) for _, note in notes]} if notes else content
        if view.new_seen:
            said = {**said, "seen": view.new_seen}
        try:
            # A move that has begun needs room for its end.
            self._have_room(view, len(notes) * 2 + 1 if content.get("leaving") else len(notes), SPARE, 0)
            self._note(said, pending=bool(changed))
        except OSError as error:
            raise self._undo(error, view) from error
        view.seen, view.new_seen = view.seen + view.new_seen, []
        for offset, data in writes:
            self._files.write(offset, data)
        for seq, note in changed:
            self._files.write(note.offset, note.byte.encode())
            view.table.controls[seq] = ord(note.byte)
        if changed:
            self._files.sync_file()
            if "leaving" not in content or not self._is_replaced():
                self._files.note_is_done()
        for seq, note in notes:
            view.keep_note(seq, note)
        if view.mutex_end > max(_COMPACT, 4 * view.noted()):
            self._compact(view)

    def _have_room(self, view: View, messages: int, wanted: int, kept: int) -> None:
        """Reserve space in the mutex file for a line about some messages and `wanted` bytes, or at least `kept`.

        The reserved space always suffices to rewrite the mutex file, so that it can never fill the disk for good.
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

    def make_room(self, messages: int, size: int) -> None:
        """Reserve space to append messages of about so many bytes; DiskFull."""
        view = self.current()
        kept = SPARE + _EACH * view.ledger.state.waiting()
        try:
            self._have_room(view, messages + 1, kept + SPARE // 4, kept)
            self._files.file.reserve(view.end + size + _LINE * messages)
        except OSError as error:
            if not is_full(error):
                raise
            raise self._full() from error

    def probe(self) -> None:
        """Write the seal again, which fails if the files cannot be written."""
        view = self.current()
        if view.seal is not None:
            self._mutex.file.write(0, mutex.write_seal(view.seal))

    def shorten(self) -> bool:
        """Rewrite the mutex file because the disk is full; False: it would not get shorter."""
        with self.locked() as view:
            if view.mutex_end < 2 * view.noted() + _LINE:
                return False
            self._rewrite(view)
            return True

    def _note(self, content: dict[str, Any], pending: bool) -> None:
        view = self.current()
        view.mutex_end = self._files.note(view.mutex_end, content, pending)
        self.has_effect = True
        view.at = max(view.at, content["at"])
        if content.get("leaving") == {}:
            view.leaving = None
        view.taken = content.get("taken", view.taken)

    def _undo(self, error: OSError, view: View, appended: bytes = b"") -> Exception:
        """Undo an operation that had no space or was refused; the error to raise."""
        self._view = None
        has_no_space = is_full(error)
        if not has_no_space and not is_refused(error):
            return error
        try:
            # Bytes of a failed sync would otherwise stay readable, and not be on the disk.
            left = self._files.file.read(view.end, self._files.file.size() - view.end)
            if appended.startswith(left) or (b"\n" + appended).startswith(left):
                self._files.file.truncate(view.end)
            else:  # another program has appended after ours: ours stay as a comment, and end before its line
                ours = max(_alike(left, appended), _alike(left, b"\n" + appended))
                if ours > 1 and left[ours : ours + 1] == QUEUED.encode():  # its message starts within our line
                    self._files.file.write(view.end + ours - 1, b"\n")
                if not left.endswith(b"\n"):
                    self._files.file.append(b"\n")
            if self._mutex.file.size() > view.mutex_end:  # only then: truncating frees the reserved space
                self._mutex.file.truncate(view.mutex_end)
                self._mutex.file.sync()  # after a power failure the line would be valid
            self._files.seal(view.end)  # the file is as before, and a rewrite of the mutex file would need space
        except OSError as worse:
            self._files.mark_doubtful()
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
            # On a full disk the longer file stays.

    def _rewrite(self, view: View) -> None:
        """Replace the mutex file by one with the current notes, receipts and keys."""
        notes = {seq: view.counted(note) for seq, note in view.notes.items() if view.ledger.state.has(seq)}
        content = {
            "at": view.at,
            "all": True,
            "notes": [note_as_json(note) for note in notes.values()],
            "settled": [[receipt, how, when] for receipt, (how, when) in view.settled.items()],
            "keys": [[key, each, until] for key, (each, until) in view.keys.items() if not view.is_kept(each)],
            "seen": view.seen + view.new_seen,
        }
        if view.leaving is not None:
            content["leaving"] = leaving_as_json(view.leaving, view)
        if view.taken:
            content["taken"] = view.taken
        view.mutex_end, self._room = self._files.rewrite(content), 0
        self._mutex_inode = self._mutex.inode
        self._named = (self._files.inode, self._mutex.inode)
        view.notes = notes
        view.seen, view.new_seen = view.seen + view.new_seen, []
        self._reseal = True

    def replace_file(self, data: bytes, end: int, moved: dict[int, int] | None = None) -> bool:
        """Replace the queue's file, which had `end` bytes, and drop the view; False if a program appends to it.

        `moved`: the new offsets of the entries, if that is all that has changed.
        """
        self._view = None
        try:
            if not replace_queue(self._disk, self.path, self._files.file, data, end):
                return False
        except OSError as error:
            there = status_if_there(self._disk, self.path)
            if is_full(error) and there is not None and there.inode == self._files.inode:
                raise self._full() from error
            raise
        self._moved = moved
        try:
            self.current()  # now, while it is known where each entry was
        except OSError as error:
            if not is_full(error):
                raise
            self._view = None  # the next operation finds the entries by their texts
        finally:
            self._moved = None
        return True

    def sync(self) -> None:
        """Sync both files: a process that died may have written what is in them, and have synced nothing."""
        self._files.sync_file()
        self._files.sync.file(self._mutex.file)

    def _is_replaced(self) -> bool:
        """Whether an editor has replaced the file: the next operation writes the bytes into the new one."""
        there = status_if_there(self._disk, self.path)
        return there is None or there.inode != self._files.inode

    @property
    def names(self) -> int:
        """The number of hard links to the queue's file."""
        return self._files.file.status().names

    def read_all(self) -> bytes:
        """The bytes of the queue's file."""
        return self._files.read_all()

    def _seal(self) -> None:
        view = self._view
        if view is not None and self._files.is_open and (self._files.written or self._reseal):
            if self._files.places:
                view.content.read_again(self._files.file, self._files.places)
            view.seal = self._files.seal(view.end)
            self._reseal = False
        self._files.places.clear()

    # The end

    def remove(self, link: str | None = None) -> None:
        """Remove both files, or only a symbolic link to them."""
        self._view = None
        self._files.remove(link)

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have been changing the view, so it is dropped."""
        self.lock = self._threads.rlock()
        self._files.forked()
        self._view = None
        self._depth, self._reseal = 0, False

    def close(self) -> None:
        """Close the files."""
        with self.lock:
            self._files.close()
            self._view = None

    def gone(self) -> QueueNotFound:
        """Drop the view of a removed queue; the error to raise."""
        self._view = None
        return not_found(self.name)


def leaving_as_json(leaving: Leaving, view: View) -> dict[str, Any]:
    """The part `leaving` of a line."""
    return {"to": leaving.to, "ids": [[view.table.offsets[seq], each] for seq, each in leaving.ids.items()]}


def _placed(notes: Mapping[int, Note], offsets: Sequence[int]) -> dict[str, Any]:
    """The part `notes` of a line, with the offsets of new messages filled in."""
    for at, note in notes.items():
        note.offset = offsets[at]
    return {"notes": [note_as_json(note) for note in notes.values()]} if notes else {}


def _alike(one: bytes, other: bytes) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _is_torn(data: bytes, document: Document) -> bool:
    """Whether the file ends within a comment line, as an interrupted put may leave it."""
    last = document.entries[-1] if document.entries else None
    return last is not None and last.control == COMMENT and not data.endswith(b"\n")
