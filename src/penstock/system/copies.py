"""The destination of a backup: a folder NAME.partial, renamed to NAME once the copy is complete and synced."""

import os
from contextlib import suppress

from penstock.errors import InvalidArgument, PenstockError
from penstock.system.files import Disk, SystemDisk

PARTIAL = ".partial"
SUBFOLDER = ".penstock"
MARK = "backup"  # says that a folder is the unfinished copy of a store


class Destination:
    """A new or empty folder, and the partial copy that becomes it."""

    def __init__(self, source: str, dest: str) -> None:
        self._source = source
        self.path = os.path.abspath(dest)
        self.partial = self.path + PARTIAL
        self.subfolder = os.path.join(self.partial, SUBFOLDER)
        self._disk: Disk = SystemDisk()

    def check(self) -> None:
        """Refuse a destination inside of the store, or one with other files."""
        source, dest = os.path.realpath(self._source), os.path.realpath(self.path)
        if os.path.commonpath([source, dest]) == source:
            raise InvalidArgument(f"DEST {self.path!r} is inside of the store: give a folder elsewhere")
        if self._disk.exists(self.path):
            if not self._disk.is_folder(self.path):
                raise PenstockError(f"DEST {self.path!r} is a file: give a folder that is empty or not there yet")
            if self._disk.listdir(self.path):
                raise PenstockError(
                    f"DEST {self.path!r} is not empty: give another folder, such as one with the date in its name"
                )
        if self._disk.exists(self.partial) and not self._is_ours():
            raise PenstockError(f"{self.partial!r} is in the way, and no backup made it: move it, or give another")

    def _is_ours(self) -> bool:
        """Whether an interrupted backup has left the partial copy."""
        return self._disk.exists(os.path.join(self.subfolder, MARK)) or set(self._disk.listdir(self.partial)) <= {
            SUBFOLDER
        }

    def begin(self) -> None:
        """Mark the partial copy, and remove the files of an interrupted one. The caller holds its lock."""
        with self._disk.open(os.path.join(self.subfolder, MARK), create=True) as file:
            file.sync()
        for name in self._disk.listdir(self.partial):
            if name != SUBFOLDER:
                remove(self._disk, os.path.join(self.partial, name))
        for name in self._disk.listdir(self.subfolder):
            if name not in (MARK, "lock"):
                remove(self._disk, os.path.join(self.subfolder, name))

    def finish(self) -> None:
        """Rename the partial copy. Its files must be synced."""
        for folder in (self.subfolder, self.partial):
            self._disk.sync_folder(folder)
        self._disk.rename(self.partial, self.path)
        self._disk.sync_folder(os.path.dirname(self.path))
        # Last, so that an interrupted backup always has the mark; in a complete copy it has no meaning.
        self._disk.unlink(os.path.join(self.path, SUBFOLDER, MARK))

    def abandon(self) -> None:
        """Remove the partial copy."""
        with suppress(OSError):
            remove(self._disk, self.partial)


def remove(disk: Disk, path: str) -> None:
    """Remove a file, or a folder with all that is in it."""
    if disk.is_folder(path):
        for name in disk.listdir(path):
            remove(disk, os.path.join(path, name))
        disk.rmdir(path)
    else:
        with suppress(FileNotFoundError):
            disk.unlink(path)
