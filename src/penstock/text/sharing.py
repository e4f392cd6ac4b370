"""A text queue's two files, used by several processes: whose turn it is, what is known, and how changes are kept.

Everything happens in turns: the lock, what others have changed meanwhile, the operation, its writes and syncs, the
seal. Between turns a process only remembers, and checks at the next turn whether that still holds.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

from penstock.clock import SteadyClock
from penstock.errors import DiskFull, PenstockError, QueueNotFound, StoreClosed
from penstock.files import Disk, File, Status, replace_file, status_if_there
from penstock.text import mutex
from penstock.text.appending import append_unborn, bear
from penstock.text.format import Entry, parse, parse_one
from penstock.text.mutex import HEAD, Note, note_as_json, seal_of
from penstock.text.mutex_lock import MutexLock
from penstock.text.view import View, load
from penstock.threads import Threads

_FULL = (errno.ENOSPC, errno.EDQUOT)
_COMPACT = 256 << 10  # bytes of mutex file that are never worth writing it anew
_RACY = 2_000_000_000  # nanoseconds: two changes within the file system's idea of a moment may look like one
_log = logging.getLogger("penstock")


class Edited(Exception):
    """The file is not what it was a moment ago: look again."""


class SharedFile:
    """The files of one queue. Every method but `turn` and `changed_outside` is for who has the turn."""

    def __init__(
        self, name: str, path: str, disk: Disk, clock: SteadyClock, threads: Threads, sync: "Sync"
    ) -> None:
        self.name = name
        self.path = path
        self.lock = threads.rlock()
        self._disk = disk
        self._clock = clock
        self._sync = sync
        self._mutex = MutexLock(path, disk)
        self._file: File | None = None
        self._view: View | None = None
        self._depth = 0
        self._dirty = False
        self._warned: list[object] = []

    @contextmanager
    def turn(self) -> Iterator[View]:
        """Have the files for oneself; QueueNotFound if they are gone. Turns of one thread may be nested."""
        with self.lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self._known()
                finally:
                    self._depth -= 1
                return
            try:
                self._mutex.acquire()
            except FileNotFoundError:
                raise self._gone() from None
            self._depth = 1
            try:
                yield self._refresh()
                self._seal()
            except PenstockError:
                self._seal()
                raise
            except BaseException:
                self._view = None  # whatever was half done is read again from the files
                raise
            finally:
                self._depth = 0
                self._mutex.release()

    @property
    def known(self) -> View | None:
        """What was known after the last turn; to be looked at, not to be relied on."""
        return self._view

    def _known(self) -> View:
        if self._view is None:
            self._mutex.size = self._mutex.file.size()  # it may have grown in this turn
            self._view = self._refresh()
        return self._view

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
            raise self._gone()
        if self._file is None or self._inode != there.inode:
            self._close_file()
            try:
                self._file = self._disk.open(self.path)
            except FileNotFoundError:
                raise self._gone() from None
            there = self._file.status()
            self._inode = there.inode
            self._view = None
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
            document = parse(self._open_file.read(view.end, size - view.end), view.end)
            if document.problems:
                return False
            view.arrive(document.entries, now)
            view.end, view.ended = size, False
        found = [(seq, note) for note in lines.notes.values() if (seq := view.table.at(note.offset)) is not None]
        view.ledger.assign(found)
        for seq, note in found:
            view.table.controls[seq] = ord(note.byte)
            view.hold(seq, note)
        view.settled |= {receipt: (how, when) for receipt, how, when in lines.settled}
        view.keys |= {key: (each, until) for key, each, until in lines.keys}
        view.at = max(view.at, lines.at)
        self._clock.at_least(view.at)
        view.mutex_end = noted
        return True

    def _load(self, there: Status, noted: int) -> View:
        """Read both files from their beginnings, and finish what a crash has interrupted."""
        head = self._mutex.file.read(0, noted)
        memory = mutex.read(head[HEAD:], HEAD)
        intact = mutex.read_seal(head) == seal_of(there)
        data = self._open_file.read(0, there.size)
        now = self._clock.now()
        document = parse(data)
        view, repairs, rewrite = load(
            self.name, document, len(data), memory, intact, there.changed // 1_000_000 or now, max(now, memory.at)
        )
        self._clock.at_least(view.at)
        for problem in view.problems:
            if problem not in self._warned:
                _log.warning("%s line %d is skipped: %s", self.path, problem.line, problem.what)
        self._warned = list(view.problems)
        for offset, byte in repairs:
            self._write(offset, byte.encode())
        if repairs:
            self._sync_file()
        if rewrite or memory.end != max(noted, HEAD):  # the rest is a line that was torn
            self._rewrite(view)
        elif memory.pending or memory.born:
            self._mutex.file.write(memory.last, mutex.DONE)
        if not intact and not self._dirty:
            self._dirty = abs(self._now_ns() - there.changed) < _RACY
            self._reseal = True
        view.seal = seal_of(there)
        return view

    _reseal = False
    _inode = _mutex_inode = -1

    def _now_ns(self) -> int:
        return self._clock.now() * 1_000_000

    def read(self, seqs: Sequence[int]) -> list[Entry]:
        """The entries of messages, as they stand in the file; Edited if they are others by now."""
        view = self._known()
        table, entries = view.table, []
        for seq in seqs:
            offset = table.offsets[seq]
            entry = parse_one(self._open_file.read(offset, table.lengths[seq]) or b"?", offset)
            if crc32(entry.content) != table.crcs[seq]:
                self._view = None
                raise Edited
            entries.append(entry)
        return entries

    # Writing

    def append(self, unborn: Sequence[bytes], ids: Sequence[str], now: int) -> list[int]:
        """Durably add messages, all of them or none; where they start."""
        view = self._known()
        before = view.end
        try:
            offsets = append_unborn(self._open_file, unborn, self._sync.due(), before if view.ended else None)
            self._dirty = True
            if len(unborn) > 1:
                self._note({"at": now, "born": list(ids)}, pending=True)
        except OSError as error:
            self._view = None
            if error.errno not in _FULL:
                raise
            with suppress(OSError):
                self._open_file.truncate(before)
            raise DiskFull(
                f"no space left for messages of queue {self.name!r} in {self.path!r}: free some"
            ) from error
        bear(self._open_file, offsets, self._sync.due())
        if len(unborn) > 1:
            self._note_is_done()
        there = status_if_there(self._disk, self.path)
        if there is None or there.inode != self._inode:
            raise Edited  # an editor has just put another file in its place: into that one, then
        view.end, view.ended = offsets[-1] + len(unborn[-1]), True
        return offsets

    def record(
        self,
        content: dict[str, Any],
        notes: Sequence[tuple[int, Note]],
        mirrors: Iterable[tuple[int, bytes]],
    ) -> None:
        """Durably change messages: what is noted, their control characters, and what their variables say."""
        view = self._known()
        changed = [(seq, note) for seq, note in notes if view.table.controls[seq] != ord(note.byte)]
        said = {**content, "notes": [note_as_json(note) for _, note in notes]} if notes else content
        if view.new_seen:
            said = {**said, "seen": view.new_seen}
        try:
            self._note(said, pending=bool(changed))
        except OSError as error:
            self._view = None
            if error.errno not in _FULL:
                raise
            with suppress(OSError):
                self._mutex.file.truncate(view.mutex_end)
            raise DiskFull(f"no space left to change messages of queue {self.name!r}: free some") from error
        view.seen, view.new_seen = view.seen + view.new_seen, []
        for offset, data in mirrors:
            self._write(offset, data)
        for seq, note in changed:
            self._write(note.offset, note.byte.encode())
            view.table.controls[seq] = ord(note.byte)
        if changed:
            self._sync_file()
            self._note_is_done()
        for seq, note in notes:
            view.hold(seq, note)
        if view.mutex_end > max(_COMPACT, 4 * view.noted()):
            self._rewrite(view)

    def _note(self, content: dict[str, Any], pending: bool) -> None:
        view = self._known()
        line = mutex.line(content, pending)
        self._mutex.file.write(view.mutex_end, line)
        self._sync.file(self._mutex.file)
        self._last_line = view.mutex_end
        view.mutex_end += len(line)
        view.at = max(view.at, content["at"])

    _last_line = HEAD

    def _note_is_done(self) -> None:
        self._mutex.file.write(self._last_line, mutex.DONE)

    def _rewrite(self, view: View) -> None:
        """Write the mutex file anew, with what still means something. It is locked before others can find it."""
        notes = [note for seq, note in view.notes.items() if view.ledger.has(seq)]
        content = {
            "at": view.at,
            "all": True,
            "notes": [note_as_json(note) for note in notes],
            "settled": [[receipt, how, when] for receipt, (how, when) in view.settled.items()],
            "keys": [[key, each, until] for key, (each, until) in view.keys.items()],
            "seen": view.seen + view.new_seen,
        }
        line = mutex.line(content, pending=False)
        temporary = self._mutex.path + ".new"
        with suppress(FileNotFoundError):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.lock()
            file.write(0, bytes(HEAD - 1) + b"\n" + line)
            file.sync()
            self._disk.rename(temporary, self._mutex.path)
        except BaseException:
            file.close()
            raise
        self._mutex.replace(file)  # before anything else can fail: it is locked, and others have found it
        self._disk.sync_folder(os.path.dirname(self.path) or ".")
        self._mutex_inode = self._mutex.inode
        view.mutex_end = HEAD + len(line)
        view.notes = {seq: note for seq, note in view.notes.items() if view.ledger.has(seq)}
        view.seen, view.new_seen = view.seen + view.new_seen, []
        self._reseal = True

    def replace_file(self, data: bytes) -> None:
        """Put another file in the queue's place; everything is read again after that."""
        replace_file(self._disk, self.path, data)
        self._view = None

    def read_all(self) -> bytes:
        """The whole file."""
        return self._open_file.read(0, self._open_file.size())

    def _write(self, offset: int, data: bytes) -> None:
        self._open_file.write(offset, data)
        self._dirty = True

    def _sync_file(self) -> None:
        self._sync.file(self._open_file)

    def _seal(self) -> None:
        """Say how the file was left, so that others see at once whether a person has changed it since.

        The time is set a little back: whatever is written later, be it in the same moment, has another one.
        """
        view = self._view
        if view is None or self._file is None or not (self._dirty or self._reseal):
            return
        if self._dirty:
            self._file.set_changed(self._file.status().changed - 1 - int.from_bytes(os.urandom(2)))
        view.seal = seal_of(self._file.status())
        self._mutex.file.write(0, mutex.write_seal(view.seal))
        self._dirty = self._reseal = False

    # The end

    def remove(self) -> None:
        """Remove both files."""
        self._disk.unlink(self.path)
        self._disk.sync_folder(os.path.dirname(self.path) or ".")
        with suppress(FileNotFoundError):
            self._disk.unlink(self._mutex.path)
            self._disk.sync_folder(os.path.dirname(self.path) or ".")
        self._view = None
        self._close_file()

    def close(self) -> None:
        """Let go of the files."""
        with self.lock:
            self._close_file()
            self._mutex.close()
            self._view = None

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @property
    def _open_file(self) -> File:
        if self._file is None:
            raise StoreClosed(f"the file {self.path!r} was closed: open the store again")
        return self._file

    def _gone(self) -> QueueNotFound:
        self._view = None
        return QueueNotFound(f"there is no queue {self.name!r}: create it with store.create({self.name!r})")


class Sync:
    """When a change counts as stored."""

    def __init__(self, mode: str, monotonic: Callable[[], float]) -> None:
        self._mode = mode
        self._monotonic = monotonic
        self._last = 0.0

    def due(self) -> bool:
        """Whether what is written now is to be synced."""
        if self._mode == "interval" and (now := self._monotonic()) - self._last >= 1:
            self._last = now
            return True
        return self._mode == "always"

    def file(self, file: File) -> None:
        """Sync it, if that is due."""
        if self.due():
            file.sync()
