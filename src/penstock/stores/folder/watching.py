"""Listings of folders that others change too: made again when the folder's own time says so, and seldom."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.stores.folder.layout import is_id
from penstock.system.clock import Clock
from penstock.system.files import Disk

SECOND = 1.0
STRAYS = ""  # no queue's file name
_QUICK = 0.005  # seconds that a listing may take and still be made by whoever is eager for news


@dataclass(slots=True)
class Listing:
    """The names in a folder, and the store's count of changes when the listing began."""

    names: frozenset[str]
    at: int
    groups: dict[str, set[str]] | None = None  # of a folder that all queues share: by queue, once somebody asks


class Watch:
    """The names in one folder, as of the last listing."""

    def __init__(self, disk: Disk, path: str, clock: Clock, changes: Callable[[], int]) -> None:
        self.listing = Listing(frozenset(), -1)  # one object, as threads may list at once
        self._disk, self._path, self._clock, self._changes = disk, path, clock, changes
        self._time: int | None = None  # of the folder's last change
        self._unsure = True  # two changes within one tick of the folder's clock look like one
        self._listed = 0.0
        self._took = 0.0

    def look(self, eager: bool = False, certain: bool = False, doubtful: bool = False) -> bool:
        """List the folder if it has changed: at most once a second, if it is long; whether it was listed.

        `eager`: a short folder at once. `doubtful`: also if it has not changed. `certain`: whatever it costs.
        """
        started = self._clock.monotonic()
        waited = self._time is None or started - self._listed >= SECOND
        if not (certain or waited or (eager and self._took < _QUICK)):
            return False
        try:
            status = self._disk.status(self._path)
            time = status.changed if status.is_folder else -1
        except FileNotFoundError:
            time = -1
        if time == self._time and not certain and not doubtful and not (self._unsure and waited):
            return False
        before = self._changes()
        try:
            names = frozenset(self._disk.listdir(self._path)) if time >= 0 else frozenset()
        except FileNotFoundError:
            names = frozenset()
        self.listing = Listing(names, before)
        self._unsure, self._time = time != self._time, time
        self._listed = self._clock.monotonic()
        self._took = self._listed - started
        return True


def names_of(listing: Listing, queue: str) -> set[str]:
    """The ids of a queue's messages in a folder that all queues share; of STRAYS the names that are none's."""
    if listing.groups is None:
        groups: dict[str, set[str]] = {}
        for name in listing.names:
            file, _, message = name.partition(":")
            if is_id(message):
                groups.setdefault(file, set()).add(message)
            elif not name.startswith("."):
                groups.setdefault(STRAYS, set()).add(name)
        listing.groups = groups
    return listing.groups.get(queue, set())
