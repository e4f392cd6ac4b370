"""Space that is kept free so that messages can be settled when the disk is full: a file of nothing but space.

Every queue owes it so much per message. When a write finds the disk full it takes from the ballast what it needs;
until that is made good no new messages are let in.
"""

from contextlib import suppress

from penstock.system.files import Disk, File, is_full
from penstock.system.threads import Lock

STEP = 64 << 10  # what is owed less than this is not worth a change
_RELEASE = 4 << 10


class Ballast:
    """The reserved space of one store."""

    def __init__(self, disk: Disk, path: str, lock: Lock) -> None:
        self.size = 0
        self._owed = 0
        self._disk = disk
        self._path = path
        self._lock = lock
        self._file: File | None = None

    def owe(self, change: int, exactly: bool = False) -> None:
        """Owe so much more or less, and have it; OSError, and nothing has changed, if there is not so much."""
        with self._lock:
            owed = self._owed + change
            if owed > self.size:
                self._reserve(owed)
            elif self.size > (owed if exactly else 2 * owed + STEP) and self._file is not None:
                self._file.truncate(0)
                self.size = 0
                self._reserve(owed)
            self._owed = owed

    def inherit(self, owed: int) -> None:
        """Owe so much for messages that are there already, and have as much of it as there is."""
        with self._lock:
            self._owed += owed
            size = self._owed
            while size > self.size:
                try:
                    self._reserve(size)
                except OSError as error:
                    if not is_full(error):
                        raise
                    size //= 2

    def _reserve(self, size: int) -> None:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        self._file.reserve(size)
        self.size = size

    def refill(self, size: int) -> None:
        """Have so much again, for those who settle; OSError if there is not so much."""
        with self._lock:
            if self.size < size:
                self._reserve(size)

    def close(self) -> None:
        """Let go of the file; the space stays reserved."""
        if self._file is not None:
            self._file.close()

    @property
    def short(self) -> bool:
        """Whether a write took some of it."""
        return self.size < self._owed

    def release(self, need: int) -> bool:
        """Free space for a write that found the disk full; False: nothing is left."""
        with self._lock:
            if self._file is None or not self.size:
                return False
            left = max(0, self.size - max(need, _RELEASE))
            self._file.truncate(0)
            self.size = 0
            with suppress(OSError):
                self._reserve(left)
            return True
