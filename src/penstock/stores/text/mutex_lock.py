"""The lock of a text queue: an flock on the mutex file beside it, which may itself be replaced by a new one.

A queue's file may have several names. A symbolic link is followed; of hard links, the file's attribute
`penstock.name` says beside which one the mutex file lies.
"""

import errno
import os
from contextlib import suppress

from penstock.system.files import Disk, File, status_if_there

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
        # An editor's new file has no attribute: who comes by another name must not take it for one without a lock.
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
