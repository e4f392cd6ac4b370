"""What all queues of an open folder store share: the tree, the clock, listings of folders, other processes."""

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from penstock.contract import names
from penstock.stores.folder.layout import DELAY, DONE, FAILED, is_id
from penstock.stores.folder.tree import Tree
from penstock.system import processes
from penstock.system.clock import Clock, SteadyClock, SystemClock, rest
from penstock.system.files import Disk
from penstock.system.threads import Threads

SECOND = 1.0
STRAYS = ""  # no queue's file name
_QUICK = 0.005  # seconds that a listing may take and still be made for eager callers


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


_PATIENCE = 60.0  # seconds after which a message that another host holds is taken from it
_numbers = itertools.count(1)


class Neighbours(Protocol):
    """What a store needs to know of processes."""

    @property
    def name(self) -> str:
        """The name of this one, of letters that any file name may have."""

    def is_gone(self, name: str, idle: float) -> bool:
        """Whether a process will touch nothing any more; `idle` are the seconds since it last did."""

    def has_stopped(self, name: str) -> bool:
        """Whether the whole machine of a process that is gone may have stopped with it."""

    def idle(self, time: int) -> float:
        """The seconds since a time that the file system noted, in nanoseconds."""

    def pause(self) -> None:
        """Let another process finish what it is doing."""


class SystemNeighbours:
    """The processes of this host, by their numbers, and those of others, by their silence."""

    def __init__(self) -> None:
        self._host = _host()
        self.name = f"{process_name(os.getpid())}.{next(_numbers)}"

    def is_gone(self, name: str, idle: float) -> bool:
        """Exact on this host. A process of another that holds something for a minute has lost it."""
        host, _, rest = name.partition(".")
        boot, _, process = rest.partition(".")
        if host != self._host.partition(".")[0]:
            return idle > _PATIENCE
        return boot != _boot() or processes.is_gone(process.rpartition(".")[0])

    def has_stopped(self, name: str) -> bool:
        """Unless it is of this start of this machine."""
        return not name.startswith(f"{self._host}.")

    def idle(self, time: int) -> float:
        """By this host's clock, which NTP keeps close enough for a minute."""
        return SystemClock().now() / 1e3 - time / 1e9

    def pause(self) -> None:
        """A moment: a process that does not wait for a disk has finished by then."""
        rest(0.002)


def process_name(pid: int) -> str:
    """A name for a process of this host that none of any host ever takes over."""
    return f"{_host()}.{processes.name_of(pid)}"


def _host() -> str:
    """This host, as long as it runs."""
    return f"{names.file_name(os.uname().nodename.encode('ascii', 'replace').decode())[:40]}.{_boot()}"


def _boot() -> str:
    """Differs after each start of the machine."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read()[:8]
    return "0"


_REACH = 8  # candidates for each peer, for each message fetched since the last listing


class Shared:
    """The tree, the clock, and what is known of the folders that hold messages of all queues."""

    def __init__(
        self, tree: Tree, clock: SteadyClock, threads: Threads, neighbours: Neighbours, peers: int
    ) -> None:
        self.tree, self.clock, self.threads, self.neighbours = tree, clock, threads, neighbours
        self.peers = peers
        self.dice = Random(tree.process)  # noqa: S311 - spreads fetchers, guards nothing
        self._changes = itertools.count(1)
        self._latest = 0
        self.delay, self.failed, self.done = (
            Watch(tree.disk, tree.path(folder), clock, self.changes) for folder in (DELAY, FAILED, DONE)
        )
        self.collisions = 0  # messages that a peer had taken first

    def changes(self) -> int:
        """How many changes this process has made to what it knows."""
        return self._latest

    def change(self) -> int:
        """Count one more change."""
        self._latest = next(self._changes)
        return self._latest

    def window(self, fetched: int) -> int:
        """Among how many candidates to choose, having fetched so many since the last listing."""
        return self.peers * _REACH * (fetched + 1)
