"""The files of a queue's journal: their names, the order in which they are read, rotation and packing.

cars            the latest file
cars.904        rotated at that time
cars.950.pack   replaces all files up to that time, which are dead
cars~~951       temporary, ignored
"""

import operator
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from penstock.system.files import Disk, File
from penstock.system.threads import Lock

PACKED, ROTATED = 0, 1 << 23  # the first segment numbers of packed and of rotated files; a pack is read first
PLACE_BITS = 40
FILL = b"\x01"  # REMOVE, which does nothing to an empty queue
FILLING = 256 << 10  # the most bytes that a file is filled ahead
SECTOR = 512  # bytes that a disk writes whole, or not at all
OFFSET = (1 << PLACE_BITS) - 1


def journals(names: Iterable[str]) -> list[str]:
    """The journals that these files belong to."""
    pattern = re.compile(r"([^.~/][^.~/]*)(\.[0-9]+(\.pack)?)?", re.ASCII)
    return list(dict.fromkeys(matched[1] for name in sorted(names) if (matched := pattern.fullmatch(name))))


def is_temporary(name: str, journal: str | None = None) -> bool:
    """Whether a file is a temporary one, of this journal or of any."""
    pattern = r"[^.~/]+" if journal is None else re.escape(journal)
    return re.fullmatch(pattern + r"~~[0-9]+", name, re.ASCII) is not None


def replay_order(names: Iterable[str], journal: str) -> list[str]:
    """The files of one journal in the order in which they are read, without dead and temporary ones."""
    pattern = re.compile(re.escape(journal) + r"\.([0-9]+)(\.pack)?", re.ASCII)
    rotated: dict[int, str] = {}
    packs: dict[int, str] = {}
    current = []
    for name in names:
        if not name.startswith(journal):
            continue  # a folder may have thousands of journals
        if name == journal:
            current = [name]
        elif matched := pattern.fullmatch(name):
            (packs if matched[2] else rotated)[int(matched[1])] = name
    packed = max(packs, default=None)
    living = {time: name for time, name in rotated.items() if packed is None or time > packed}
    first = [] if packed is None else [packs[packed]]
    return first + [living[time] for time in sorted(living)] + current


@dataclass(eq=False)
class Segment:
    """One file of a journal. Its number is known in memory only: a place is the number and an offset."""

    number: int
    name: str
    file: File
    size: int  # bytes of whole groups

    @property
    def base(self) -> int:
        """The place of its first byte."""
        return self.number << PLACE_BITS


def mode_of(segments: Sequence[Segment]) -> int:
    """The mode of a file that gets the content of these: what all of them allow."""
    return reduce(operator.and_, [segment.file.status().mode for segment in segments], 0o666)


def offset_of(place: int) -> int:
    """The offset of a place in its segment."""
    return place & OFFSET


def filling_end(end: int) -> int:
    """Where the filling after a group ends: always in the middle of a sector."""
    return (end + SECTOR // 2) // FILLING * FILLING + FILLING - SECTOR // 2


def may_end_filling(place: int) -> bool:
    """Whether a filling may end at this offset."""
    return (place + SECTOR // 2) % FILLING == 0


class Listing:
    """The files in a folder by journal. The folder is listed once, and again when a journal is asked for twice."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._asked: set[str] = set()
        self._look()

    def _look(self) -> None:
        self.names: list[str] = []
        self._by_journal: dict[str, list[str]] = {}
        for name in self._disk.listfiles(self._folder):
            self.names.append(name)
            self._by_journal.setdefault(re.split("[.~]", name, maxsplit=1)[0], []).append(name)

    def of(self, journal: str) -> list[str]:
        """The files of a journal, with temporary and dead ones."""
        if journal in self._asked:
            self._look()
        self._asked.add(journal)
        return self._by_journal.get(journal, [])


class SharedNames:
    """Syncs a folder that several journals share, in one thread at a time: one sync for all that wait for it.

    After a sync that failed the system may take lost names for durable ones: a second sync would succeed without
    them.
    """

    def __init__(self, folder: str, disk: Disk, lock: Lock) -> None:
        self._folder = folder
        self._disk = disk
        self._lock = lock
        self._failure: OSError | None = None
        self._begun = self._ended = 0  # numbers of the latest sync that has begun, and that has succeeded

    def sync(self) -> None:
        """Make the caller's names durable; after a failure it only raises."""
        before = self._begun
        with self._lock:
            if self._failure is not None:
                raise OSError(self._failure.errno, self._failure.strerror, self._folder)
            if self._ended > before:
                return  # that sync began after the caller had changed its names
            self._begun += 1
            try:
                self._disk.sync_folder(self._folder)
            except OSError as error:
                self._failure = error
                raise
            self._ended = self._begun


class JournalFiles:
    """The names of a journal's files."""

    def __init__(self, folder: str, name: str, disk: Disk, names: SharedNames | None = None) -> None:
        self.folder = folder
        self.name = name
        self.disk = disk
        self._names = names

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def rotated(self, stamp: int) -> str:
        """The name of a file that is rotated at that time."""
        return f"{self.name}.{stamp}"

    def temporary(self, stamp: int) -> str:
        """The name of a file that does not count yet."""
        return f"{self.name}~~{stamp}"

    def stamp(self, name: str) -> int:
        """The time in the name of a rotated file."""
        return int(name.removeprefix(self.name + "."))

    def sync(self) -> None:
        """Make the names durable."""
        if self._names is None:
            self.disk.sync_folder(self.folder)
        else:
            self._names.sync()

    def tidy(self, names: list[str]) -> list[str]:
        """Finish a packing that a crash interrupted; the names in the order in which the files are read."""
        mine = [name for name in names if name.startswith(self.name)]
        for name in mine:
            if is_temporary(name, self.name):
                self.disk.unlink(os.path.join(self.folder, name))
        order = replay_order(mine, self.name)
        packs = [name for name in order if name.endswith(".pack")]
        if not packs:
            return order
        rotated = re.compile(re.escape(self.name) + r"\.([0-9]+)(\.pack)?", re.ASCII)
        stamps = {name: int(matched[1]) for name in mine if (matched := rotated.fullmatch(name))}
        stamp = int(packs[0].removeprefix(self.name + ".").removesuffix(".pack"))
        self.finish_pack(packs[0], [name for name, each in stamps.items() if each <= stamp and name != packs[0]])
        return [packs[0].removesuffix(".pack"), *order[1:]]

    def finish_pack(self, pack: str, dead: list[str]) -> None:
        """Remove the files that were packed, then give the packed file its lasting name."""
        for name in dead:
            self.disk.unlink(os.path.join(self.folder, name))
        # The removal must be durable first: beside a file without .pack dead files would be read again.
        self.sync()
        self.disk.rename(os.path.join(self.folder, pack), os.path.join(self.folder, pack.removesuffix(".pack")))
        self.sync()

    def remove(self, names: list[str]) -> None:
        for name in names:
            if is_temporary(name, self.name) or journals([name]) == [self.name]:
                self.disk.unlink(os.path.join(self.folder, name))
        self.sync()
