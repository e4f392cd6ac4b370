"""State that all queues of an open folder store share: tree, clock, folder listings, other processes."""

import itertools
import os
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from penstock.contract import names
from penstock.stores.folder.layout import DELAY, DONE, FAILED, is_id
from penstock.stores.folder.tree import Tree
from penstock.system import processes
from penstock.system.clock import SteadyClock, SystemClock, rest
from penstock.system.threads import Threads

SECOND = 1.0
STRAYS = ""  # no queue's file name
_QUICK = 0.005  # seconds that a listing may take and still be made for eager callers


@dataclass(slots=True)
class Listing:
    """The names in a folder, and the number of this process's last change when the listing began."""

    names: frozenset[str]
    at: int
    groups: dict[str, set[str]] | None = None  # ids by queue in a folder that all queues share; made on demand


class FolderWatch:
    """Lists one folder when its mtime has changed, and keeps the last listing."""

    def __init__(self, shared: "Shared", folder: str) -> None:
        self.listing = Listing(frozenset(), -1)  # replaced as a whole, because several threads may list
        self._disk, self._path = shared.tree.disk, shared.tree.path(folder)
        self._clock, self._shared = shared.clock, shared
        self._time: int | None = None  # the folder's mtime at the last listing
        self._unsure = True  # two changes within one tick of the folder's mtime look like one
        self._listed = 0.0
        self._took = 0.0

    def look(self, eager: bool = False, certain: bool = False, stale: bool = False) -> bool:
        """List the folder if it has changed and the last listing is a second old; whether it was listed.

        `eager`: list a short folder at once. `stale`: list an unchanged folder too. `certain`: list always.
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
        if time == self._time and not certain and not stale and not (self._unsure and waited):
            return False
        before = self._shared.changes
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
    """The ids of a queue's messages in a folder that all queues share; for STRAYS, names that are no message's."""
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


_PATIENCE = 60.0  # seconds without a change after which a process of another host is taken for dead
_numbers = itertools.count(1)


class Neighbours(Protocol):
    """Names and liveness of the processes that use a store."""

    @property
    def name(self) -> str:
        """The name of this process, which is a legal file name."""

    def is_gone(self, name: str, idle: float) -> bool:
        """Whether a process has ended; `idle` is the time in seconds since its last change of the store."""

    def has_stopped(self, name: str) -> bool:
        """Whether the machine of a process that has ended may have stopped too, and lost unsynced changes."""

    def idle(self, time: int) -> float:
        """The seconds since a file's time, which is in nanoseconds."""

    def pause(self) -> None:
        """Sleep for a moment, until another process has probably finished its operation."""


class SystemNeighbours:
    """Processes of this host, by their pid and start time, and of other hosts, by their last change."""

    def __init__(self) -> None:
        self._host = _host()
        self.name = f"{process_name(os.getpid())}.{next(_numbers)}"

    def is_gone(self, name: str, idle: float) -> bool:
        """Exact on this host. A process of another host is gone after a minute without a change."""
        host, _, rest = name.partition(".")
        boot, _, process = rest.partition(".")
        if host != self._host.partition(".")[0]:
            return idle > _PATIENCE
        return boot != _boot() or processes.is_gone(process.rpartition(".")[0])

    def has_stopped(self, name: str) -> bool:
        """False only for processes of this host since its last boot."""
        return not name.startswith(f"{self._host}.")

    def idle(self, time: int) -> float:
        """By this host's clock, which NTP keeps close enough for a minute."""
        return SystemClock().now() / 1e3 - time / 1e9

    def pause(self) -> None:
        """Long enough for an operation that does not wait for a disk."""
        rest(0.002)


def process_name(pid: int) -> str:
    """A name of a process of this host that no other process ever gets, on any host."""
    return f"{_host()}.{processes.name_of(pid)}"


def _host() -> str:
    """The name of this host and of its boot."""
    return f"{names.file_name(os.uname().nodename.encode('ascii', 'replace').decode())[:40]}.{_boot()}"


def _boot() -> str:
    """An id that differs after each boot."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read()[:8]
    return "0"


_REACH = 8  # candidates per peer, for each message fetched since the last listing


class Shared:
    """The tree, the clock, and listings of the folders that hold messages of all queues."""

    def __init__(
        self, tree: Tree, clock: SteadyClock, threads: Threads, neighbours: Neighbours, peers: int
    ) -> None:
        self.tree, self.clock, self.threads, self.neighbours = tree, clock, threads, neighbours
        self.peers = peers
        self.dice = Random(tree.process)  # noqa: S311 - spreads fetchers, guards nothing
        self._numbers = itertools.count(1)
        self.changes = 0  # number of the last change that this process made to its index of messages
        self.delay, self.failed, self.done = (FolderWatch(self, folder) for folder in (DELAY, FAILED, DONE))
        self.collisions = 0  # messages that another process had taken first

    def change(self) -> int:
        """The number of a new change."""
        self.changes = next(self._numbers)
        return self.changes

    def window(self, fetched: int) -> int:
        """The number of candidates to choose from, given the messages fetched since the last listing."""
        return self.peers * _REACH * (fetched + 1)
