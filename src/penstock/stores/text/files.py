"""The lock of a text queue, and reads, writes and syncs of its two files: the queue's file and the mutex file.

The lock is an flock on the mutex file, which may itself be replaced by a new one. A queue's file may have several
names. A symbolic link is followed; for hard links, the file's attribute `penstock.name` is the name beside which
the mutex file is.

Every write needs the lock. A write or a sync that failed leaves bytes in the page cache that the disk may not
have, and no later sync would write them. So the mutex file is marked as doubtful in the page cache, which all
processes see until the machine stops, and the next process writes both files again.
"""

import errno
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
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
NAME = "penstock.name"


def mutex_of(path: str, disk: Disk) -> str:
    """The path of a queue's mutex file, for any name of the queue's file."""
    path = disk.real(path)
    there = status_if_there(disk, path)
    if there is None:
        return path + SUFFIX
    own = os.path.abspath(path)
    try:
        first = os.fsdecode(disk.attribute(path, NAME) or b"")
        if first == own:
            return path + SUFFIX
        # The attribute is believed only if it names the same file.
        if there.names > 1 and first:
            found = status_if_there(disk, first)
            if found is not None and found.inode == there.inode:
                return first + SUFFIX
        # A file that an editor has replaced has no attribute: its other name must not get a second mutex file.
        if there.names > 1 and not disk.exists(path + SUFFIX) and _was_used(path, disk):
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path)
        disk.set_attribute(path, NAME, os.fsencode(own))  # before anyone can link to it
    except OSError as error:
        if there.names > 1:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path) from error
    return path + SUFFIX


def _was_used(path: str, disk: Disk) -> bool:
    """Whether Penstock has put messages into a file."""
    with disk.open(path) as file:
        return b"\n\\id=" in file.read(0, file.size())


class MutexLock:
    """The lock between processes; the caller excludes other threads of its process."""

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
                self.close()  # which unlocks it
                raise
            self.close()  # another process has replaced or removed the mutex file

    def _lock(self) -> bool:
        """Lock the open mutex file; False if another file has its name by then."""
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
        """Unlock."""
        if self._file is not None:
            try:
                self._file.unlock()
            except OSError:
                self.close()

    def replace(self, file: File) -> File:
        """Go on with a new mutex file, which is locked and has replaced the old one; the old one."""
        old, self._file = self.file, file
        status = file.status()
        self.size, self.inode = status.size, status.inode
        return old

    def close(self) -> None:
        """Unlock and close the mutex file."""
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
            # Bytes in the file are lost in a power failure unless its name is durable.
            self.disk.sync_folder(os.path.dirname(self.path) or ".")
        except OSError:
            with suppress(OSError):
                self.disk.unlink(self.path)  # or else the next process would take its name for durable
            file.close()
            raise
        return file


def append_commented(
    file: File, entries: Sequence[bytes], sync: bool = True, end: int | None = None, newline: bytes = b"\n"
) -> list[int]:
    """Durably append entries that are commented out; their offsets. They are messages once uncommented.

    `end` is the end of the file, if it is known to follow a newline. Other programs may append at any moment, so
    the first entry may start further on. `newline` is the line end of the file.
    """
    if end is None and (size := file.size()) and file.read(size - 1, 1) != b"\n":
        # Synced before anything else is written: a torn write must not lengthen a message that lacks its newline.
        file.append(newline, sync=sync)
    data = b"".join(entries)
    start = file.append(data, sync=sync)
    if start not in (0, end) and file.read(start - 1, 1) != b"\n":
        # Another program has just appended a line without its newline: end that line, and append again after it.
        file.write_through(start, (newline + b"#").ljust(len(data) - len(newline), b"#") + newline)
        return append_commented(file, entries, sync, newline=newline)
    return list(accumulate(map(len, entries[:-1]), initial=start))


def uncomment(file: File, offsets: Sequence[int], sync: bool = True, controls: str = "") -> None:
    """Durably uncomment entries, or give them other control characters: one byte each."""
    if sync and len(offsets) == 1:
        file.write_through(offsets[0], (controls or QUEUED).encode())
        return
    for offset, control in zip(offsets, controls or QUEUED * len(offsets), strict=True):
        file.write(offset, control.encode())
    if sync:
        file.sync()


_LOOKS, _LOOK = 100, 0.01  # a shell may take a second between opening a file and writing to it
_log = logging.getLogger("penstock")


class Sync:
    """The option `sync`: when files are synced."""

    def __init__(self, mode: str, monotonic: Callable[[], float]) -> None:
        self._mode = mode
        self._monotonic = monotonic
        self._last = 0.0

    def due(self) -> bool:
        """Whether a change is to be synced now."""
        if self._mode == "interval" and (now := self._monotonic()) - self._last >= 1:
            self._last = now
            return True
        return self._mode == "always"

    @property
    def always(self) -> bool:
        """Whether every change is synced, so that earlier changes are durable."""
        return self._mode == "always"

    def file(self, file: File) -> None:
        """Sync a file, if that is due."""
        if self.due():
            file.sync()

    def names(self, disk: Disk, folder: str) -> None:
        """Sync the names in a folder, also under `interval`, as it happens seldom."""
        if self._mode != "never":
            disk.sync_folder(folder)


def is_appended(path: str) -> bool:
    """Whether another program has the file open to append, which is logged: the file is then not replaced."""
    holders = appenders(identity(path))
    if holders:
        _log.warning("%s is not packed: process %d has it open to append", path, holders[0])
    return bool(holders)


def replace_queue(disk: Disk, path: str, old: File, data: bytes, end: int) -> bool:
    """Durably replace a queue's file, which had `end` bytes when it was read; owner, mode and attributes stay.

    Bytes that other programs append meanwhile are copied. False: not replaced, as a program has it open to append.
    """
    temporary = path + ".new"
    with suppress(FileNotFoundError):
        disk.unlink(temporary)
    try:
        with disk.open(temporary, create=True) as file:
            disk.copy_facts(path, temporary)
            file.write(0, data)
            file.sync()
            end = _copy_appended(old, file, end)
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


def _copy_appended(old: File, file: File, end: int) -> int:
    """Copy the bytes of the old file from an offset on; the end of the old file."""
    late = old.read(end, old.size() - end)
    if late:
        file.append(late, sync=True)
    return end + len(late)


def _follow(old: File, file: File, end: int, was: tuple[int, int] | None) -> None:
    """Copy appended bytes until no program has the old file open; one may have opened it before the rename."""
    for _ in range(_LOOKS):
        holders = appenders(was)  # before the copy: a program that has just closed the file has written its bytes
        end = _copy_appended(old, file, end)
        if not holders:
            return
        rest(_LOOK)
    _log.warning("process %d still has the file open that was %s: what it appends is lost", holders[0], old.path)


_BLOCK = 1 << 11  # bytes


class KnownBytes:
    """Hashes of a queue's file as Penstock has left it: they tell an append of another program from an edit.

    They are Python's own: 64 bits with a secret of this process, made in the time that reading the bytes takes.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._hashes = array("q")
        self._rest = b""  # the last bytes, less than a block
        self.append(data)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        data = self._rest + data
        end = len(data) - len(data) % _BLOCK
        self._hashes.extend([hash(data[at : at + _BLOCK]) for at in range(0, end, _BLOCK)])
        self._rest = data[end:]

    def read_again(self, file: File, places: Iterable[tuple[int, int]]) -> None:
        """Take over what Penstock has written: offsets and sizes."""
        for block in {
            block
            for offset, size in places
            for block in range(offset // _BLOCK, (offset + max(size, 1) - 1) // _BLOCK + 1)
        }:
            if block < len(self._hashes):
                self._hashes[block] = hash(file.read(block * _BLOCK, _BLOCK))
            else:
                self._rest = file.read(len(self._hashes) * _BLOCK, len(self._rest))

    def begin(self, data: bytes) -> bool:
        """Whether data begins with these bytes."""
        end = len(self._hashes) * _BLOCK
        return data[end : end + len(self._rest)] == self._rest and all(
            hash(data[at : at + _BLOCK]) == each
            for at, each in zip(range(0, end, _BLOCK), self._hashes, strict=True)
        )


class QueueFiles:
    """The two files of one queue, as bytes."""

    def __init__(self, path: str, disk: Disk, sync: Sync) -> None:
        self.path = path
        self.disk = disk
        self.sync = sync
        self.lock = MutexLock(path, disk)
        self.inode = -1  # of the queue's file, while it is open
        self.written = False  # whether the queue's file was changed since the last seal
        self.places: list[tuple[int, int]] = []  # offsets and sizes of bytes that were written in place
        self.changed: int | None = None  # its mtime after that change, if it is known
        self.read_at: int | None = None  # its mtime when it was read, if nothing was written here since
        self._file: File | None = None
        self.doubtful = False  # whether a write or sync has failed here; the mutex file may not be marked
        self._last_line = HEAD
        self._keeps_times = False  # whether the file system keeps the times that it is given

    @property
    def file(self) -> File:
        """The queue's file."""
        if self._file is None:
            raise StoreClosed(f"the file {self.path!r} was closed: open the store again")
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether the queue's file is open."""
        return self._file is not None

    def open(self) -> None:
        """Open the file that has the queue's name now; FileNotFoundError."""
        self.close_file()
        self._file = self.disk.open(self.path, follow=True)
        self.inode = self._file.status().inode
        self._keeps_times = False  # only its owner may set its mtime

    def sync_names(self) -> None:
        """Make the names of both files durable: an editor, or a process that died, may have given them."""
        self.sync.names(self.disk, os.path.dirname(self.path) or ".")

    def read_all(self) -> bytes:
        """The bytes of the queue's file."""
        return self.file.read(0, self.file.size())

    def write(self, offset: int, data: bytes) -> None:
        """Overwrite bytes of the queue's file."""
        self.written, self.changed, self.read_at = True, None, None
        self.places.append((offset, len(data)))
        self.file.write(offset, data)

    def sync_file(self) -> None:
        """Sync the queue's file, if that is due."""
        self.sync.file(self.file)

    # The mutex file

    def note(self, offset: int, content: dict[str, Any], pending: bool) -> int:
        """Durably append a line to the mutex file; where it ends."""
        line = mutex.line(content, pending)
        self.lock.file.write(offset, line)
        self.sync.file(self.lock.file)
        self._last_line = offset
        return offset + len(line)

    def note_is_done(self, offset: int | None = None) -> None:
        """Mark the last line as complete: its bytes are in the queue's file."""
        self.lock.file.write(self._last_line if offset is None else offset, mutex.DONE)

    def rewrite(self, content: dict[str, Any]) -> int:
        """Replace the mutex file by one with a single line; where that ends. The new file is locked."""
        line = mutex.line(content, pending=False)
        try:
            old = self._replace_mutex(line)
        except OSError as error:
            if not is_full(error):
                raise
            self.lock.file.truncate(self.lock.file.size())  # frees the space that was reserved behind its end
            old = self._replace_mutex(line)
        try:
            self.disk.sync_folder(os.path.dirname(self.lock.path) or ".")
            with suppress(OSError):
                old.truncate(0)  # or else processes that have it open would keep its space
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
        return self.lock.replace(file)  # at once: other processes already wait for its lock

    def seal(self, end: int) -> mutex.Seal:
        """Write the seal: inode, size and mtime of the queue's file, by which processes notice later changes.

        `end` is the size after Penstock's own changes: bytes that another program appends now make it differ.
        """
        changed = self.read_at
        if changed is None or self.file.status().changed == changed:
            changed = self._set_back() if self.written else self.file.status().changed
        # Else it was edited since it was read: the seal does not fit then, so that the next look notices.
        seal = mutex.Seal(self.inode, end, changed)
        try:
            self.lock.file.write(0, mutex.write_seal(seal))
        except OSError as error:
            if not is_full(error):
                raise
            # A new mutex file on a full disk: without a seal, other processes compare the files.
        self.written, self.changed, self.read_at = False, None, None
        return seal

    def _set_back(self) -> int:
        """Set the mtime of the queue's file back a little, so that a later change gives it another; the mtime."""
        changed = self.file.status().changed if self.changed is None else self.changed
        # Odd, so that a file system which counts in hundreds or thousands of nanoseconds never has it by chance.
        time = (changed - 2 - int.from_bytes(os.urandom(2))) | 1
        self.file.set_changed(time)
        if not self._keeps_times:
            kept = self.file.status().changed
            self._keeps_times, time = kept == time, kept
        return time

    # Errors

    def mark_doubtful(self) -> None:
        """Note that a write or sync has failed, so that the last bytes may not be on the disk."""
        self.doubtful = True
        with suppress(OSError, RuntimeError):
            self.lock.file.write(0, mutex.DOUBTFUL)

    def write_again(self) -> None:
        """Write all bytes of the queue's file again, so that a sync covers them."""
        self.file.write(0, self.read_all())
        self.file.sync()
        self.doubtful = False

    # The end

    def forked(self) -> None:
        """In a forked child: close both files, because an open file and its lock are shared with the parent."""
        self.close()
        self.written, self.changed, self.read_at = False, None, None

    def remove(self, link: str | None = None) -> None:
        """Remove both files; or only one name of a queue's file that has others, or only a symbolic link to it."""
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
        """Close the queue's file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close both files."""
        self.close_file()
        self.lock.close()
