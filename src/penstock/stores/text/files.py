"""A text queue's two files, the queue and the mutex file beside it: their lock, and how bytes get into them.

The lock is an flock on the mutex file, which may itself be replaced by a new one. A queue's file may have several
names. A symbolic link is followed; of hard links, the file's attribute `penstock.name` says beside which one the
mutex file lies.

Everything but the lock itself needs the lock. A write or a sync that failed leaves bytes that programs still read,
and that the disk may not have: no later sync would bring them there. So the mutex file is marked as doubtful, for
all processes until the machine stops, and the next process writes both files once more.
"""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from penstock.errors import QueueProtected, StoreClosed
from penstock.stores.text import mutex
from penstock.stores.text.format import QUEUED
from penstock.stores.text.mutex import HEAD
from penstock.system.clock import rest
from penstock.system.files import Disk, File, appenders, identity, is_full, status_if_there

SUFFIX = ".mutex"
_NAME = "penstock.name"


def mutex_of(path: str, disk: Disk) -> str:
    """The mutex file of a queue, whichever name of the queue's file is given."""
    path = disk.real(path)
    there = status_if_there(disk, path)
    if there is None:
        return path + SUFFIX
    own = os.path.abspath(path)
    try:
        first = os.fsdecode(disk.attribute(path, _NAME) or b"")
        if first == own:
            return path + SUFFIX
        # Only another name of the same file is believed, not whatever a stranger has written there.
        if there.names > 1 and first:
            found = status_if_there(disk, first)
            if found is not None and found.inode == there.inode:
                return first + SUFFIX
        # An editor's new file has no attribute: under another name it must not pass for one without a lock.
        if there.names > 1 and not disk.exists(path + SUFFIX) and _was_used(path, disk):
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path)
        disk.set_attribute(path, _NAME, os.fsencode(own))  # before anyone can link to it
    except OSError as error:
        if there.names > 1:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path) from error
    return path + SUFFIX


def _was_used(path: str, disk: Disk) -> bool:
    """Whether Penstock has written to a queue's file, be it under another name."""
    with disk.open(path) as file:
        return b"\n\\id=" in file.read(0, file.size())


class MutexLock:
    """Held by one thread of one process at a time; the caller sees to the threads of its own process."""

    def __init__(self, queue_path: str, disk: Disk) -> None:
        self.path = queue_path + SUFFIX
        self._queue_path = queue_path
        self.disk = disk
        self.size = 0  # of the file when the lock was taken
        self.inode = 0
        self._file: File | None = None

    @property
    def file(self) -> File:
        """The mutex file, while the lock is held."""
        if self._file is None:
            raise RuntimeError("the lock is not held")
        return self._file

    def acquire(self) -> None:
        """Wait for the lock; FileNotFoundError if the folder is gone."""
        while True:
            try:
                if self._lock():
                    return
            except BaseException:
                self.close()  # or else nobody would ever get it
                raise
            self.close()  # another process has put a new one in its place, or removed it

    def _lock(self) -> bool:
        """Lock the file that we have; whether it is the one that is found under its name then."""
        if self._file is None:
            self._file = self._open()
            self.inode = self._file.status().inode
        self._file.lock(wait=True)
        there = status_if_there(self.disk, self.path)
        if there is None or there.inode != self.inode:
            return False
        self.size = there.size
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            try:
                self._file.unlock()
            except OSError:
                self.close()

    def replace(self, file: File) -> File:
        """Hold the lock of the file that has taken the place of the old one, and is locked; the old one."""
        old, self._file = self.file, file
        status = file.status()
        self.size, self.inode = status.size, status.inode
        return old

    def close(self) -> None:
        """Let go of the file too."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # closed all the same
                file.close()

    def _open(self) -> File:
        self.path = mutex_of(self._queue_path, self.disk)
        if self.disk.exists(self.path):
            try:
                return self.disk.open(self.path)
            except FileNotFoundError:
                pass
        file = self.disk.open(self.path, create=True)
        try:
            # What will be written into it is lost in a crash unless its name is durable.
            self.disk.sync_folder(os.path.dirname(self.path) or ".")
        except OSError:
            with suppress(OSError):
                self.disk.unlink(self.path)  # or the next would take it for durable
            file.close()
            raise
        return file


BORN = QUEUED.encode()


def append_unborn(
    file: File, entries: Sequence[bytes], sync: bool = True, end: int | None = None, newline: bytes = b"\n"
) -> list[int]:
    """Durably add entries that are commented out; where each starts. Until they are born they are comments.

    `end` is where the file ended, if that is known, and known to be after a newline. Other programs may append at
    any moment, so the first entry may start further on. `newline` is what lines of the file end with.
    """
    if end is None and (size := file.size()) and file.read(size - 1, 1) != b"\n":
        # Synced before anything else is written: a torn write must not lengthen a message that lacks its newline.
        file.append(newline, sync=sync)
    data = b"".join(entries)
    start = file.append(data, sync=sync)
    if start not in (0, end) and file.read(start - 1, 1) != b"\n":
        # Another program has just added a line that lacks its newline: end that line, and begin again after it.
        file.write_through(start, (newline + b"#").ljust(len(data) - len(newline), b"#") + newline)
        return append_unborn(file, entries, sync, newline=newline)
    return list(accumulate(map(len, entries[:-1]), initial=start))


def bear(file: File, offsets: Sequence[int], sync: bool = True, controls: str = "") -> None:
    """Durably uncomment entries, or give them other control characters: one byte each."""
    if sync and len(offsets) == 1:
        file.write_through(offsets[0], controls.encode() or BORN)
        return
    for offset, control in zip(offsets, controls or QUEUED * len(offsets), strict=True):
        file.write(offset, control.encode())
    if sync:
        file.sync()


_LOOKS, _LOOK = 100, 0.01  # for so many seconds, a shell may be between opening a file and writing to it
_log = logging.getLogger("penstock")


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

    @property
    def always(self) -> bool:
        """Whether every change is synced, so that one need not care for those before it."""
        return self._mode == "always"

    def file(self, file: File) -> None:
        """Sync it, if that is due."""
        if self.due():
            file.sync()

    def names(self, disk: Disk, folder: str) -> None:
        """Sync the names in a folder, which happens seldom."""
        if self._mode != "never":
            disk.sync_folder(folder)


def is_appended(path: str) -> bool:
    """Whether another program has the file open to append; then it stays as it is, and that is said."""
    holders = appenders(identity(path))
    if holders:
        _log.warning("%s is not packed: process %d has it open to append", path, holders[0])
    return bool(holders)


def replace_queue(disk: Disk, path: str, old: File, data: bytes, end: int) -> bool:
    """Durably put other bytes in the place of a file of `end` bytes; owner, mode and attributes stay.

    What others append meanwhile is carried over. False: nothing was done, as a program has it open to append.
    """
    temporary = path + ".new"
    with suppress(FileNotFoundError):
        disk.unlink(temporary)
    try:
        with disk.open(temporary, create=True) as file:
            disk.copy_facts(path, temporary)
            file.write(0, data)
            file.sync()
            end = _carry_over(old, file, end)
            was = identity(path)
            if is_appended(path):
                disk.unlink(temporary)
                return False
            disk.rename(temporary, path)
            disk.sync_folder(os.path.dirname(path) or ".")
            _follow(old, file, end, was)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise
    return True


def _carry_over(old: File, file: File, end: int) -> int:
    """Let a file have what was appended to another from there on; where that ends by now."""
    late = old.read(end, old.size() - end)
    if late:
        file.append(late, sync=True)
    return end + len(late)


def _follow(old: File, file: File, end: int, was: tuple[int, int] | None) -> None:
    """Carry over until no program has the old file open to append; one may have opened it just before."""
    for _ in range(_LOOKS):
        holders = appenders(was)  # what these append is there when they are gone, so it is read after this
        end = _carry_over(old, file, end)
        if not holders:
            return
        rest(_LOOK)
    _log.warning("process %d still has the file open that was %s: what it appends is lost", holders[0], old.path)


class Pair:
    """The files of one queue, as bytes."""

    def __init__(self, path: str, disk: Disk, sync: Sync) -> None:
        self.path = path
        self.disk = disk
        self.sync = sync
        self.lock = MutexLock(path, disk)
        self.inode = -1  # of the queue's file, while it is open
        self.written = False  # whether the queue's file was changed since the last seal
        self.changed: int | None = None  # its time after that, if someone has looked
        self._file: File | None = None
        self.doubtful = False  # whether a write or sync has failed here, although the mutex file may not say so
        self._last_line = HEAD
        self._keeps_times = False  # whether the file system is known to keep the times that it is given

    @property
    def file(self) -> File:
        """The queue's file."""
        if self._file is None:
            raise StoreClosed(f"the file {self.path!r} was closed: open the store again")
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether the queue's file is."""
        return self._file is not None

    def open(self) -> None:
        """Open the queue's file, whichever has the name by now; FileNotFoundError."""
        self.close_file()
        self._file = self.disk.open(self.path, follow=True)
        self.inode = self._file.status().inode
        self._keeps_times = False  # its owner alone may set its time, and may be another user

    def sync_names(self) -> None:
        """Make the names of both files durable: the process that gave them may have stopped, or be an editor."""
        self.sync.names(self.disk, os.path.dirname(self.path) or ".")

    def read_all(self) -> bytes:
        """The whole queue."""
        return self.file.read(0, self.file.size())

    def write(self, offset: int, data: bytes) -> None:
        """Change the queue's file, in place."""
        self.written, self.changed = True, None
        self.file.write(offset, data)

    def sync_file(self) -> None:
        """Make that durable, if it is time."""
        self.sync.file(self.file)

    def replace(self, data: bytes, end: int) -> bool:
        """Put another file in the queue's place, which had `end` bytes when it was read; False: that cannot be."""
        return replace_queue(self.disk, self.path, self.file, data, end)

    # The mutex file

    def note(self, offset: int, content: dict[str, Any], pending: bool) -> int:
        """Durably add a line at the end of the mutex file; where it ends."""
        line = mutex.line(content, pending)
        self.lock.file.write(offset, line)
        self.sync.file(self.lock.file)
        self._last_line = offset
        return offset + len(line)

    def note_is_done(self, offset: int | None = None) -> None:
        """The bytes that the last line speaks of are in the queue's file."""
        self.lock.file.write(self._last_line if offset is None else offset, mutex.DONE)

    def rewrite(self, content: dict[str, Any]) -> int:
        """Write the mutex file anew, with one line; where that ends. It is locked before others can find it."""
        line = mutex.line(content, pending=False)
        try:
            old = self._replace_mutex(line)
        except OSError as error:
            if not is_full(error):
                raise
            self.lock.file.truncate(self.lock.file.size())  # frees the space that is kept behind its end for this
            old = self._replace_mutex(line)
        try:
            self.disk.sync_folder(os.path.dirname(self.lock.path) or ".")
            with suppress(OSError):
                old.truncate(0)  # else processes that have it open would keep its space
        finally:
            with suppress(OSError):
                old.close()
        return HEAD + len(line)

    def _replace_mutex(self, line: bytes) -> File:
        temporary = self.lock.path + ".new"
        with suppress(FileNotFoundError):
            self.disk.unlink(temporary)
        file = self.disk.open(temporary, create=True)
        try:
            file.lock()
            file.write(0, mutex.UNSEALED + line)
            file.sync()
            self.disk.rename(temporary, self.lock.path)
        except BaseException:
            with suppress(OSError):
                self.disk.unlink(temporary)
            file.close()
            raise
        return self.lock.replace(file)  # before anything else can fail: it is locked, and others have found it

    def seal(self, end: int) -> mutex.Seal:
        """Say how the file was left, so that others see at once whether a person has changed it since.

        `end` is where it ends as far as we know: what someone adds right now is not ours, and will be read.
        """
        seal = mutex.Seal(self.inode, end, self._set_back() if self.written else self.file.status().changed)
        try:
            self.lock.file.write(0, mutex.write_seal(seal))
        except OSError as error:
            if not is_full(error):
                raise
            # A new mutex file on a full disk: others will compare the files.
        self.written, self.changed = False, None
        return seal

    def _set_back(self) -> int:
        """Set the file's time a little back: what is written later, be it in the same moment, has another one."""
        changed = self.file.status().changed if self.changed is None else self.changed
        # An odd number of nanoseconds, which no file system keeps by chance that counts in hundreds or thousands.
        time = (changed - 2 - int.from_bytes(os.urandom(2))) | 1
        self.file.set_changed(time)
        if not self._keeps_times:
            kept = self.file.status().changed
            self._keeps_times, time = kept == time, kept
        return time

    # What goes wrong

    def doubt(self) -> None:
        """Something failed: nobody knows which of the last bytes the disk has."""
        self.doubtful = True
        with suppress(OSError, RuntimeError):
            self.lock.file.write(0, mutex.DOUBTFUL)

    def write_again(self) -> None:
        """Let the disk have what programs read: the same bytes, once more."""
        self.file.write(0, self.read_all())
        self.file.sync()
        self.doubtful = False

    # The end

    def forked(self) -> None:
        """In a child: open both files anew, as an open file and its lock would be shared with the parent."""
        self.close()
        self.written, self.changed = False, None

    def remove(self, link: str | None = None) -> None:
        """Remove both files; of a file that has other names only this one, or only the link that leads to it."""
        others = link is not None or self.file.status().names > 1
        if others and link is None and self.lock.path == self.path + SUFFIX:
            raise QueueProtected(
                f"the file {self.path!r} has other names (hard links), and its lock is beside this one: "
                "remove the others first"
            )
        name = link or self.path
        self.disk.unlink(name)
        self.disk.sync_folder(os.path.dirname(name) or ".")
        if not others:
            with suppress(FileNotFoundError):
                self.disk.unlink(self.lock.path)
                self.disk.sync_folder(os.path.dirname(name) or ".")
        self.close_file()

    def close_file(self) -> None:
        """Let go of the queue's file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Let go of both."""
        self.close_file()
        self.lock.close()
