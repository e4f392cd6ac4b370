"""Disk errors and full disks: an operation that fails is undone, or the store stops in this process.

An operation that the system refuses before it has an effect (no space, no permission, a read-only file system)
puts its messages back and raises. After any other error the state of the disk is unknown: this process does
nothing more, and the next process that opens the store recovers it.

Ballast keeps some space free, so that messages can be claimed and settled although puts have filled the disk. It
consists of files without content. A process that finds the disk full unlinks them, and then truncates messages
that are acknowledged or removed, of which only the receipts still matter. No put succeeds until the ballast is
back.
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
    """The context of every operation: turns its disk errors into Penstock's. May be nested in one thread."""

    def __init__(self, shared: Shared, stop: Callable[[Refusal], None]) -> None:
        self._shared = shared
        self._stop = stop
        self.refusal: Refusal | None = None  # the error of every operation, once the store is stopped or closed
        self.failure: OSError | None = None  # the error that stopped the store
        self.is_open = False  # whether opening has succeeded

    def __enter__(self) -> None:
        if self.refusal is not None:
            raise self.refusal()
        self._shared.tree.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            raise self._translated(error) from error

    def each(self, items: Iterator[Item]) -> Iterator[Item]:
        """An iterator whose every step is guarded."""
        while True:
            with self:
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _translated(self, error: OSError) -> PenstockError:
        tree = self._shared.tree
        if tree.has_effect or not (is_full(error) or is_refused(error)):
            return self._stop_store(error)
        try:
            recovery.undo(self._shared)
        except OSError as worse:
            return self._stop_store(worse)
        if error.errno != errno.EFBIG and is_full(error):
            return DiskFull(
                f"no room in {tree.root!r}, nothing was changed: free space, or consume, and try again"
            )
        return unavailable(error.filename or tree.root, error)

    def _stop_store(self, error: OSError) -> PenstockError:
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
_SPARE = 8  # empty files, for file systems that limit their number: a process that opens the store makes two


class Ballast:
    """The space that a store keeps free; all of its processes share it."""

    def __init__(self, shared: Shared, size: int, keep_done: Callable[[str], float | None]) -> None:
        self._shared, self._size, self._keep_done = shared, size, keep_done
        self._path = shared.tree.path(f"{OWN}/ballast")
        self._spare = [f"{self._path}-{number}" for number in range(_SPARE)] if size else []
        self._looked: float | None = None

    def make(self, certain: bool = True) -> None:
        """Reserve the space if it is not; `certain`: raise OSError (ENOSPC) if it cannot be."""
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
                disk.rename(new, self._path)  # only a file with its space has this name
            except FileNotFoundError:
                pass  # another process has just renamed it
            except OSError as error:
                with suppress(OSError):
                    disk.unlink(new)
                if certain or not is_full(error):
                    raise
                return
        self._looked = now

    def spend(self) -> bool:
        """Free some space; False: there is no ballast left, and no content to truncate."""
        self._looked = None
        found = False
        for path in (self._path, *self._spare):
            with suppress(FileNotFoundError):
                self._shared.tree.disk.unlink(path)
                found = True
        return found or self._truncate_settled() > 0

    def _truncate_settled(self) -> int:
        """Truncate messages that are no longer listed; how many bytes that frees."""
        tree = self._shared.tree
        there = [(DONE, *each) for each in tree.messages(DONE) if self._keep_done(each[0]) == 0]
        there += [(REMOVE, *each) for each in tree.messages(REMOVE)]
        # Make their moves durable first: a move that is lost in a power failure must find its content.
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
