"""The catalog of a journal store: the subfolder `.penstock`, with everything that is not a journal.

    lock            held while the store is open; names the process that holds it
    queues/FILE     a queue's name and settings, and where its numbering starts; FILE is also its journal's name.
                    Changed settings are in the journal: `begins_with` has those that its replay begins with,
                    `settings` those it ends with, written once their record is synced, or by the next opening
    adopting        journals of other programs that are being taken over: none of these has a queues/FILE yet
    store           the number above those of all deleted queues
    clean           how far each journal reached; written when the store is closed, gone before it is open again
    ballast         space kept free, see reservation.py
    index/FILE      a snapshot of a queue's index, see index.py
    pins/           files that readers without the lock hold, see pins.py
    share/          where other processes reach the one that has the store open, see system/socket_path.py
    sinks/SINK      the last batch of a streaming sink that was committed, see loads.py
    quarantine/     bytes that could not be read

Each of `queues/FILE`, `adopting`, `store` and `clean` is a line of JSON and a line with its crc32.
"""

import errno
import json
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from zlib_ng.zlib_ng import crc32

from penstock.contract import names
from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt, StoreLocked
from penstock.stores.journal.files import SharedNames, journals
from penstock.system.files import (
    OWN_FOLDER,
    Disk,
    File,
    make_folder,
    refuse_links,
    replace_file,
    unavailable,
    write_hint,
)
from penstock.system.threads import Lock

FOLDER = OWN_FOLDER
LOST = "is missing: it has the queue's name and settings"
PUT_BACK = "Put back a copy of that file, or the one of a queue with the same name and settings in another store"
_LONGEST = 200
_log = logging.getLogger("penstock")


@dataclass
class Entry:
    """The catalog's entry of a queue; a journal without one is another program's."""

    name: str
    settings: Settings = field(default_factory=Settings)
    first: int = 1  # the lowest number of its messages
    starts: list[int] = field(default_factory=lambda: [1])  # numbers that its first group may have
    at: int = 0  # the latest recorded time when the journal was last emptied
    deleted: bool = False
    latest: int = 0  # the number of the first group of its latest file; 0: not known
    begins_with: Settings | None = None  # settings that its journal begins with, where update() gave it others

    @property
    def base(self) -> Settings:
        """The settings with which replay begins."""
        return self.settings if self.begins_with is None else self.begins_with

    def updated(self, settings: Settings) -> "Entry":
        """The entry with other settings at the journal's end."""
        return replace(self, settings=settings, begins_with=None if settings == self.base else self.base)

    def beginning_with(self, base: Settings) -> "Entry":
        """The entry with other settings at the journal's beginning."""
        return replace(self, begins_with=None if base == self.settings else base)


class Catalog:
    """The subfolder of a store."""

    def __init__(self, folder: str, disk: Disk, lock: Lock | None = None) -> None:
        """`lock`: for entries of different queues that several threads keep at the same time."""
        self.folder = folder
        self.path = os.path.join(folder, FOLDER)
        self._disk = disk
        self._names = None if lock is None else SharedNames(self._in("queues"), disk, lock)
        self._lock: File | None = None

    def open(self) -> None:
        """Make the subfolder and lock the store; StoreLocked names the process that has it open."""
        make_folder(self._disk, self.folder)
        with suppress(FileExistsError):
            self._disk.mkdir(self.path)
        self._refuse_links()
        lock = self._take_lock()
        try:
            self._make()
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def _make(self) -> None:
        if not self.is_store() and (found := journals(self._disk.listfiles(self.folder))):
            self.keep_adopting(found)
        for path in (self._in("queues"), self._in("index")):
            with suppress(FileExistsError):
                self._disk.mkdir(path)
        for path in (self.folder, self.path, self._in("queues")):
            # Even if nothing is new: a process that made or removed a file may have crashed before its sync.
            self._disk.sync_folder(path)

    def _refuse_links(self) -> None:
        """Refuse links: files would be written and removed in a folder elsewhere."""
        if FOLDER in self._disk.listlinks(self.folder):
            raise unavailable(self.path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        refuse_links(self._disk, self.path)
        for name in ("pins", "staged"):
            if not self._disk.exists(self._in(name)):
                continue
            refuse_links(self._disk, self._in(name))
            for each in self._disk.listdir(self._in(name)):
                with suppress(FileNotFoundError, NotADirectoryError):  # others make and remove these all the time
                    refuse_links(self._disk, os.path.join(self._in(name), each))

    def is_store(self) -> bool:
        """Whether the folder was opened as a store before."""
        return self._disk.exists(self._in("queues"))

    def _take_lock(self) -> File:
        file = self._disk.open(self._in("lock"), create=True)
        try:
            taken = file.lock()
            holder = "" if taken else file.read(0, 100).decode(errors="replace").strip()
        except OSError:
            file.close()
            raise
        if not taken:
            file.close()
            holder = holder or "another process"
            raise StoreLocked(
                f"the store {self.folder!r} is open in {holder}: close it there, or wait until that process ends"
            )
        with suppress(OSError):  # the pid is only for people, and must not fail on a full disk
            file.truncate(0)
            file.write(0, f"pid {os.getpid()}\n".encode())
        return file

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            with suppress(OSError):  # closing is not enough: a forked child may have the file open as well
                self._lock.unlock()
            self._lock.close()
            self._lock = None

    def forked(self) -> None:
        """In a forked child: close the lock file. The lock stays the parent's."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def entries(self) -> dict[str, Entry]:
        """The entries of all queues by file name."""
        folder = self._in("queues")
        found = {}
        for file in sorted(self._disk.listdir(folder)) if self._disk.exists(folder) else []:
            if not file.endswith(".new"):  # a temporary file that a crash left
                found[file] = self._read_entry(file)
        return found

    def entry(self, file: str) -> Entry | None:
        """The entry of one queue, if it has one."""
        with suppress(FileNotFoundError):
            return self._read_entry(file)
        return None

    def _read_entry(self, file: str) -> Entry:
        path = self.settings_of(file)
        with _impossible(path):
            return _entry(self._read(path))

    def keep(self, file: str, entry: Entry) -> None:
        """Write the entry of a queue durably; one thread at a time for each queue."""
        content = asdict(entry) | {"settings": entry.settings.stored()}
        if entry.begins_with is not None:
            content["begins_with"] = entry.begins_with.stored()
        if entry.begins_with is None:
            del content["begins_with"]
        sync_names = None if self._names is None else self._names.sync
        replace_file(self._disk, self.settings_of(file), _text(content), sync_names=sync_names)

    def settings_of(self, file: str) -> str:
        """The path of `queues/FILE`."""
        return os.path.join(self._in("queues"), file)

    def forget(self, file: str) -> None:
        """Remove the index and the entry of a queue durably."""
        for path in (self.index(file), self.settings_of(file)):
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
            self._disk.sync_folder(os.path.dirname(path))

    def first(self) -> int:
        """The lowest message number of a new queue: above those of all deleted queues."""
        path = self._in("store")
        with _impossible(path):
            return int(self._read(path)["first"]) if self._disk.exists(path) else 1

    def keep_first(self, first: int) -> None:
        write_line(self._disk, self._in("store"), {"format": 1, "first": first})

    def clean(self) -> dict[str, int]:
        """The number of each journal's next group when the store was closed; empty if it was not."""
        try:
            return {str(file): int(number) for file, number in self._read(self._in("clean")).items()}
        except (OSError, StoreCorrupt, ValueError, TypeError, AttributeError):
            return {}

    def lost(self, known: Container[str], clean: Iterable[str]) -> list[str]:
        """Paths of settings that have vanished since the store was closed; `default` need not have any."""
        default = names.file_name(names.DEFAULT)
        return [self.settings_of(file) for file in clean if file not in known and file.split("%_")[0] != default]

    def remove(self, name: str) -> None:
        """Remove `adopting` or `clean` durably."""
        path = self._in(name)
        if self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.sync_folder(self.path)

    def keep_clean(self, reached: dict[str, int]) -> None:
        """Mark the store as closed. Not synced: without the mark opening only takes more care."""
        write_hint(self._disk, self._in("clean"), _text(reached))

    def adopting(self) -> list[str]:
        """Journals whose adoption has begun: they may be ours and have no entry yet."""
        path = self._in("adopting")
        with _impossible(path):
            return [str(file) for file in self._read(path)["files"]] if self._disk.exists(path) else []

    def forgotten(self, file: str) -> str:
        """The path of the missing entry, if a journal without one is ours; "" if it may be another program's."""
        return "" if not self.is_store() or file in self.adopting() else self.settings_of(file)

    def keep_adopting(self, files: list[str]) -> None:
        """Remember, durably, which journals are about to be adopted."""
        write_line(self._disk, self._in("adopting"), {"format": 1, "files": files})

    @property
    def ballast(self) -> str:
        """The path of the ballast."""
        return self._in("ballast")

    def index(self, file: str) -> str:
        """The path of a queue's saved index."""
        return os.path.join(self._in("index"), file)

    def quarantine(self, name: str, offset: int, data: bytes, mode: int) -> str:
        """Save bytes that cannot be read, durably and with the mode of their file; the path."""
        path = os.path.join(self.make("quarantine"), f"{name}.{offset}.{crc32(data):08x}")
        replace_file(self._disk, path, data, mode)
        return path

    def new_file(self, queue: str, taken: Iterable[str]) -> str:
        """A file name for a new queue's journal that differs, on any file system, from the taken ones."""
        return names.new_file(queue, taken, _LONGEST, 2)

    def _in(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _read(self, path: str) -> Any:
        advice = "; the journals beside it are untouched, and `penstock doctor` shows what they hold"
        return read_line(self._disk, path, advice)

    def make(self, name: str) -> str:
        """Make a folder in the subfolder, durably, if it is missing; its path."""
        path = self._in(name)
        if not self._disk.exists(path):
            self._disk.mkdir(path)
            self._disk.sync_folder(self.path)
        return path


def read_line(disk: Disk, path: str, advice: str = "") -> Any:
    """The content of a file that is a line of JSON and a line with its crc32; StoreCorrupt."""
    with disk.open(path) as file:
        line, _, check = file.read(0, file.size()).partition(b"\n")
    if check != _check(line):
        raise StoreCorrupt(f"{path!r} is damaged: its checksum is wrong. Put back a copy of this file{advice}")
    with _impossible(path):
        return json.loads(line)


def write_line(disk: Disk, path: str, content: Any) -> None:
    """Write a file of that form durably."""
    replace_file(disk, path, _text(content))


@contextmanager
def _impossible(path: str) -> Iterator[None]:
    """Turn errors of content whose checksum is right, but whose values are impossible, into StoreCorrupt."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreCorrupt(
            f"{path!r} has impossible content ({error!r}). Put back a copy of this file; nothing was changed"
        ) from error


def journal_of(folder: str, queue: str, disk: Disk) -> str:
    """The name of a queue's journal: the encoded one, unless the store had to choose another."""
    for file, entry in Catalog(folder, disk).entries().items():
        if entry.name == queue:
            return file
    strangers = [file for file in journals(disk.listfiles(folder)) if queue_of(file) == queue]
    return names.file_name(queue) if not strangers else strangers[0]


def queue_of(file: str, taken: Container[str] = ()) -> str:
    """A queue name, legal and not taken, for the journal of another program."""
    name = _decoded(file)
    number = 2
    while len(name) > 255 or name in taken:
        name = f"{_decoded(file)[:240]}~{number}"
        number += 1
    return name


def _decoded(file: str) -> str:
    decoded = re.sub("%([0-9A-F]{2})", lambda digits: chr(int(digits[1], 16)), file)
    if names.file_name(decoded) == file and decoded.isascii() and decoded.isprintable() and " " not in decoded:
        return decoded
    return "".join(letter if "!" <= letter <= "~" else f"%{ord(letter):02X}" for letter in file)


def _text(content: Any) -> bytes:
    line = json.dumps(content).encode()
    return line + b"\n" + _check(line)


def _check(line: bytes) -> bytes:
    return f"crc32 {crc32(line):08x}\n".encode()


def _entry(content: dict[str, Any]) -> Entry:
    content["settings"] = Settings(**content["settings"])
    if content.get("begins_with") is not None:
        content["begins_with"] = Settings(**content["begins_with"])
    entry = Entry(**content)
    numbers = [entry.first, entry.at, entry.latest, *entry.starts]
    if not entry.starts or not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"numbers {numbers}")
    names.checked(entry.name)
    return entry
