"""Listings of folders that others change too: made again when the folder's own time says so, and seldom."""

from collections.abc import Callable

from penstock.clock import Clock
from penstock.files import Disk

SECOND = 1.0
_QUICK = 0.005  # seconds that a listing may take and still be made by whoever is eager for news


class Watch:
    """The names in one folder, as of the last listing."""

    def __init__(self, disk: Disk, path: str, clock: Clock, changes: Callable[[], int]) -> None:
        self.names: frozenset[str] = frozenset()
        self.listed_at = -1  # the store's count of changes when the listing began, or earlier
        self._disk, self._path, self._clock, self._changes = disk, path, clock, changes
        self._time: int | None = None  # of the folder's last change
        self._unsure = True  # two changes within one tick of the folder's clock look like one
        self._listed = 0.0
        self._took = 0.0

    def look(self, eager: bool = False, certain: bool = False) -> bool:
        """List the folder if it has changed: at most once a second, if it is long; whether it was listed.

        `eager`: a short folder at once. `certain`: any folder, changed or not.
        """
        started = self._clock.monotonic()
        waited = self._time is None or started - self._listed >= SECOND
        if not (certain or waited or (eager and self._took < _QUICK)):
            return False
        try:
            time = self._disk.status(self._path).changed
        except FileNotFoundError:
            time = -1
        if time == self._time and not certain and not (self._unsure and waited):
            return False
        before = self._changes()
        try:
            names = frozenset(self._disk.listdir(self._path)) if time >= 0 else frozenset()
        except FileNotFoundError:
            names = frozenset()
        # Threads may list at once. In this order none takes what is old for new.
        self.listed_at = before
        self.names = names
        self._unsure, self._time = time != self._time, time
        self._listed = self._clock.monotonic()
        self._took = self._listed - started
        return True


class SharedWatch(Watch):
    """A folder that all queues share, by queue."""

    def __init__(self, disk: Disk, path: str, clock: Clock, changes: Callable[[], int]) -> None:
        super().__init__(disk, path, clock, changes)
        self._grouped: frozenset[str] | None = None
        self._groups: dict[str, set[str]] = {}

    def of(self, queue: str) -> set[str]:
        """The ids of a queue's messages."""
        names = self.names
        if names is not self._grouped:
            groups: dict[str, set[str]] = {}
            for name in names:
                file, _, message = name.partition(":")
                groups.setdefault(file, set()).add(message)
            self._groups, self._grouped = groups, names
        return self._groups.get(queue, set())
