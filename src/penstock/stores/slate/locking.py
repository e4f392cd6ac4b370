"""The lock of a slate store: which process of this machine writes it."""

import os
from contextlib import suppress

from penstock.errors import StoreLocked
from penstock.system.files import File, SystemDisk


class StoreLock:
    """A lock file, which says who holds it."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what
        self._file: File | None = None

    def take(self) -> None:
        """Hold it; StoreLocked if another process does."""
        file = SystemDisk().open(self._path, create=True)
        try:
            taken = file.lock()
            holder = "" if taken else file.read(0, 100).decode(errors="replace").strip()
        except OSError:
            file.close()
            raise
        if not taken:
            file.close()
            raise StoreLocked(
                f"{self._what} is open in {holder or 'another process'}: close it there, or wait until that "
                "process ends"
            )
        with suppress(OSError):  # whose it is is only for people
            file.truncate(0)
            file.write(0, f"pid {os.getpid()}\n".encode())
        self._file = file

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            with suppress(OSError):  # not only closed: a child that was forked may have the file open as well
                self._file.unlock()
        self.forked()

    def forked(self) -> None:
        """In a child: it stays the parent's."""
        if self._file is not None:
            self._file.close()
            self._file = None
