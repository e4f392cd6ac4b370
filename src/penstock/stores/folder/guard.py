"""What becomes of an operation that the disk fails: it never was, or the store stops in this process.

What the system refuses before anything counted (want of space, permission, a read-only file system) is told, and
what was in hand goes back. After any other error nobody knows what the disk has: this process does nothing more,
and whoever opens the store next looks at what is there.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from penstock.errors import DiskFull, PenstockError, StoreClosed
from penstock.stores.folder import recovery
from penstock.stores.folder.shared import Shared
from penstock.stores.folder.tree import is_full
from penstock.system.files import is_refused, refusal, unavailable

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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(
                f"no room in {tree.root!r}, nothing was changed: free space, or consume, and try again"
            )
        return unavailable(error.filename or tree.root, error)

    def _break(self, error: OSError) -> PenstockError:
        root = self._shared.tree.root
        why = refusal(error.filename or root, error)

        def broken() -> StoreClosed:
            return StoreClosed(
                f"the store in {root!r} was stopped in this process, as nobody knows what is on the disk after "
                f"{why}; then open the store again, which checks and completes what was begun"
            )

        self.refusal = broken
        self._shared.tree.abandon()
        if not self.is_open:
            return unavailable(error.filename or root, error)
        if self.failure is None:
            self.failure = error
            _log.error("%s", broken())
        self._stop(broken)
        return broken()
