"""What becomes of an operation that the disk fails: it never was, or the store stops in this process.

What the system refuses before anything counted (want of space, permission, a read-only file system) is told, and
what was in hand goes back. After any other error nobody knows what the disk has: this process does nothing more,
and the next process that opens the store looks at the files.

Some space is kept free, so that messages can be claimed and settled although puts have filled the disk. It belongs
to files without content. A process that finds the disk full takes those files away, and then the content of
messages that are acknowledged or removed, of which only the receipts still matter. Nothing is put before the files
are back.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from penstock.engine.unowned import stopped
from penstock.errors import DiskFull, PenstockError, StoreClosed
from penstock.stores.folder import recovery
from penstock.stores.folder.layout import DONE, HELD, OWN, REMOVE
from penstock.stores.folder.shared import SECOND, Shared
from penstock.stores.folder.tree import is_full
from penstock.system.files import is_refused, unavailable

Item = TypeVar("Item")
_log = logging.getLogger("penstock")
Refusal = Callable[[], StoreClosed]


class Guard:
    """Entered by every operation; operations of one thread may be nested."""

    def __init__(self, shared: Shared, stop: Callable[[Refusal], None]) -> None:
        self._shared = shared
        self._stop = stop
        self.refusal: Refusal | None = None
        self.failure: OSError | None = None  # what has stopped the store
        self.is_open = False

    def __enter__(self) -> None:
        if self.refusal is not None:
            raise self.refusal()
        self._shared.tree.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            raise self._told(error) from error

    def each(self, items: Iterator[Item]) -> Iterator[Item]:
        """Items that are looked for one by one."""
        while True:
            with self:
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _told(self, error: OSError) -> PenstockError:
        tree = self._shared.tree
        if tree.counts or not (is_full(error) or is_refused(error)):
            return self._break(error)
        try:
            recovery.undo(self._shared)
        except OSError as worse:
            return self._break(worse)
        if error.errno != errno.EFBIG and is_full(error):
            return DiskFull(
                f"no room in {tree.root!r}, nothing was changed: free space, or consume, and try again"
            )
        return unavailable(error.filename or tree.root, error)

    def _break(self, error: OSError) -> PenstockError:
        root = self._shared.tree.root
        broken = stopped(root, root, error)
        self.refusal = broken
        self._shared.tree.abandon()
        if not self.is_open:
            return unavailable(error.filename or root, error)
        if self.failure is None:
            self.failure = error
            _log.error("%s", broken())
        self._stop(broken)
        return broken()


SIZE = 1 << 20
_SPARE = 8  # empty files, where the number of files is limited: a process that opens the store makes two


class Ballast:
    """The space that a store keeps free, whichever process made it."""

    def __init__(self, shared: Shared, size: int, keep_done: Callable[[str], float | None]) -> None:
        self._shared, self._size, self._keep_done = shared, size, keep_done
        self._path = shared.tree.path(f"{OWN}/ballast")
        self._spare = [f"{self._path}-{number}" for number in range(_SPARE)] if size else []
        self._looked: float | None = None

    def make(self, certain: bool = True) -> None:
        """Have the space; if it must be certain, OSError (ENOSPC) says that there is not so much."""
        now, disk = self._shared.clock.monotonic(), self._shared.tree.disk
        if self._looked is not None and now - self._looked < SECOND:
            return
        if not disk.exists(self._path):
            new = f"{self._path}.new"
            try:
                for path in self._spare:
                    disk.open(path, create=True).close()
                with disk.open(new, create=True) as file:
                    file.reserve(self._size)
                disk.rename(new, self._path)  # under its name, the space is there
            except FileNotFoundError:
                pass  # another process was quicker
            except OSError as error:
                with suppress(OSError):
                    disk.unlink(new)
                if certain or not is_full(error):
                    raise
                return
        self._looked = now

    def spend(self) -> bool:
        """Free some space; False: there is none left to free."""
        self._looked = None
        found = False
        for path in (self._path, *self._spare):
            with suppress(FileNotFoundError):
                self._shared.tree.disk.unlink(path)
                found = True
        return found or self._shed() > 0

    def _shed(self) -> int:
        """Let go of content that nobody can ask for any more; how many bytes."""
        tree = self._shared.tree
        there = [(DONE, *each) for each in tree.messages(DONE) if self._keep_done(each[0]) == 0]
        there += [(REMOVE, *each) for each in tree.messages(REMOVE)]
        # A move that a machine forgets when it stops must find the content: so all of them are made durable first.
        recovery.sync_all(self._shared)
        tree.sync(*(f"{HELD}/{process}" for process in tree.names(HELD)))
        freed = 0
        for folder, queue, uid in there:
            with (
                suppress(FileNotFoundError, PermissionError),
                tree.disk.open(tree.place(folder, queue, uid)) as file,
            ):
                if (size := file.size()) and file.status().names == 1:
                    file.truncate(0)
                    freed += size
        return freed
