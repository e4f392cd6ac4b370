"""What somebody has to do now and then: unlink what is settled, bring back what others let fall.

Every process that uses a store does a little of it, at most once a second; `penstock mover` and `penstock
reaper` are for folders that nobody uses for long.
"""

from collections.abc import Callable
from contextlib import suppress

from penstock.contract.settings import FIVE_MINUTES
from penstock.stores.folder import layout, recovery
from penstock.stores.folder.layout import DONE, HELD, REMOVE
from penstock.stores.folder.rows import NEVER
from penstock.stores.folder.shared import Shared
from penstock.stores.folder.stamps import Stamp
from penstock.system.clock import milliseconds

_OFTEN = 1.0  # seconds
_SELDOM = 30.0
_MOST = 20_000  # files that are unlinked in one go


class Upkeep:
    """The share of one process in keeping a store tidy."""

    def __init__(self, shared: Shared, keep_done: Callable[[str], float | None]) -> None:
        self._shared = shared
        self._keep_done = keep_done
        self._last = self._last_thorough = shared.clock.monotonic()

    def tend(self, thorough: bool = False) -> None:
        """Do what is due, if it was not done just now."""
        now = self._shared.clock.monotonic()
        if thorough or now - self._last_thorough >= _SELDOM:
            self._last = self._last_thorough = now
            self.help_the_dead()
            self.reap()
        elif now - self._last >= _OFTEN:
            self._last = now
            reap(self._shared, REMOVE)

    def reap(self) -> int:
        """Unlink what nobody can ask for any more; how many."""
        return reap(self._shared, DONE, self._keep_done) + reap(self._shared, REMOVE)

    def help_the_dead(self) -> None:
        """Finish or undo what processes began that are gone."""
        shared = self._shared
        others = [process for process in shared.tree.names(HELD) if process != shared.tree.process]
        recovery.help_the_dead(shared, [process for process in others if recovery.is_gone(shared, process)])
        recovery.deliver_foreign(shared)


def reap(
    shared: Shared, folder: str, keep_done: Callable[[str], float | None] = lambda queue: 0, most: int = _MOST
) -> int:
    """Unlink messages that nobody can ask for any more; how many. `keep_done` says how long a queue lists them."""
    tree, now = shared.tree, shared.clock.now()
    reaped = 0
    # A private name that is gone, but not durably, must not outlive its file.
    tree.sync(*(f"{HELD}/{process}" for process in tree.names(HELD)))
    for name in tree.names(folder):
        if reaped >= most:
            break
        parsed = layout.parse_flat(name)
        if parsed is None and (folder == DONE or ":" not in name):  # MQ-Core's ids may be of any kind
            continue  # no message, and nothing of ours
        if folder == DONE and parsed and layout.time_of(layout.order_of(parsed[1])) + FIVE_MINUTES > now:
            continue  # put too lately to have been settled long ago: no need to look
        path = tree.path(f"{folder}/{name}")
        try:
            stamp = tree.stamp_of(path, parsed[1]) if parsed else Stamp(0, stamped=False)
            if parsed and (kept := _kept(folder, stamp, keep_done(parsed[0]))) is not None:
                due = (tree.settled_at(path, stamp) if folder == DONE else tree.until(path)) + kept
            else:
                due = NEVER if parsed else 0
            if due > now:
                continue
            tree.disk.unlink(path)
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            continue
        reaped += 1
        for value in (stamp.headers, stamp.reason, stamp.history):
            with suppress(OSError):
                tree.forget(value)
    return reaped


def _kept(folder: str, stamp: Stamp, keep_done: float | None) -> int | None:
    """For how many milliseconds a settled message is listed, or its receipts are good; None: for ever."""
    repeated = FIVE_MINUTES + 60_000
    if folder == DONE:
        return None if keep_done is None else max(repeated, milliseconds(keep_done))
    return repeated if stamp.history is not None or stamp.settled_at is not None else 0
