"""What becomes of an operation that the disk fails: it never was, or the store stops in this process.

Want of space before anything counted is told, and what was in hand goes back. After any other error nobody knows
what the disk has: this process does nothing more, and whoever opens the store next looks at what is there.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from penstock.errors import DiskFull, PenstockError, StoreClosed
from penstock.folder import recovery
from penstock.folder.shared import Shared
from penstock.folder.tree import is_full

Item = TypeVar("Item")
Refusal = Callable[[], StoreClosed]


class Guard:
    """Entered by every operation; operations of one thread may be nested."""

    def __init__(self, shared: Shared, stop: Callable[[Refusal], None]) -> None:
        self._shared = shared
        self._stop = stop
        self.refusal: Refusal | None = None

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
        if not is_full(error) or tree.counts:
            return self._break(error)
        try:
            recovery.undo(self._shared)
        except OSError as worse:
            return self._break(worse)
        return DiskFull(f"no room in {tree.root!r}, nothing was changed: free space, or consume, and try again")

    def _break(self, error: OSError) -> StoreClosed:
        root = self._shared.tree.root

        def broken() -> StoreClosed:
            return StoreClosed(
                f"the disk failed while {root!r} was used ({error}), so that nobody knows what it holds: close "
                "the store and open it again"
            )

        self.refusal = broken
        self._stop(broken)
        self._shared.tree.abandon()
        return broken()
