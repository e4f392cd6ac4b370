"""What a journal store keeps beside its journals, in the subfolder `.penstock`: nothing here is a journal.

    lock            held while the store is open; names the process that holds it
    queues/FILE     a queue's name and settings, and where its numbering starts; FILE is also its journal's name.
                    Where settings were changed, the journal rules: `begins_with` has those that its replay begins
                    with, `settings` those it ends with, written once their record is synced. Opening mends it
    adopting        journals of other programs that are being taken over: none of these has a queues/FILE yet
    store           the number above those of all deleted queues
    clean           how far each journal reached; written when the store is closed, gone before it is open again
    ballast         space kept free, see reservation.py
    index/FILE      a snapshot of a queue's index, see index.py
    pins/           files that readers without the lock hold, see pins.py
    share/          where other processes reach the one that has the store open, see system/socket_path.py
    sinks/SINK      the last batch of a streaming sink that was committed, see loads.py
    quarantine/     what could not be read

Each of `queues/FILE`, `adopting`, `store` and `clean` is a line of JSON and a line with its crc32.
"""

import errno
import json
import logging
import os
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from zlib_ng.zlib_ng import crc32

from penstock.contract import names
from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt, StoreLocked
from penstock.stores.journal.files import journals
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

FOLDER = OWN_FOLDER
LOST = "is missing, in which the queue's name and settings were"
PUT_BACK = "Put back a copy of that file, or the one of a queue with the same name and settings in another store"
_LONGEST = 200
_log = logging.getLogger("penstock")


@dataclass
class Entry:
    """A queue that the store has made or changed; a journal without one is a stranger's."""

    name: str
    settings: Settings = field(default_factory=Settings)
    first: int = 1  # where the numbers of its messages start
    starts: list[int] = field(default_factory=lambda: [1])  # which numbers its first group may have
    at: int = 0  # the latest time that was recorded when the journal was last emptied
    deleted: bool = False
    latest: int = 0  # the number of the first group of its latest file; 0: not known
    begins_with: Settings | None = None  # settings that its journal begins with, where update() gave it others

    @property
    def base(self) -> Settings:
        """The settings that replaying the journal begins with."""
        return self.settings if self.begins_with is None else self.begins_with

    def updated(self, settings: Settings) -> "Entry":
        """The entry with the settings that the journal ends with."""
        return replace(self, settings=settings, begins_with=None if settings == self.base else self.base)

    def beginning_with(self, base: Settings) -> "Entry":
        """The entry with other settings that the journal begins with."""
        return replace(self, begins_with=None if base == self.settings else base)


class Catalog:
    """The subfolder of a store."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self.path = os.path.join(folder, FOLDER)
        self._disk = disk
        self._lock: File | None = None

    def open(self) -> None:
        """Make what is missing and lock the store; StoreLocked names the process that has it."""
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
            # Even if nothing is new there: who made or removed something may have stopped before this.
            self._disk.sync_folder(path)

    def _refuse_links(self) -> None:
        """Refuse links to folders elsewhere, in which files would be written and removed."""
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
        with suppress(OSError):  # whose it is is only for people; a full disk must not matter
            file.truncate(0)
            file.write(0, f"pid {os.getpid()}\n".encode())
        return file

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            with suppress(OSError):  # not only closed: a child that was forked may have the file open as well
                self._lock.unlock()
            self._lock.close()
            self._lock = None

    def forked(self) -> None:
        """In a child: hold on to the lock no longer, which stays the parent's."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def entries(self) -> dict[str, Entry]:
        """Every queue that is known here, by its file name."""
        folder = self._in("queues")
        found = {}
        for file in sorted(self._disk.listdir(folder)) if self._disk.exists(folder) else []:
            if not file.endswith(".new"):  # left by a crash, before it counted
                found[file] = self._read_entry(file)
        return found

    def entry(self, file: str) -> Entry | None:
        """What is known of one queue; None if that is nothing."""
        with suppress(FileNotFoundError):
            return self._read_entry(file)
        return None

    def _read_entry(self, file: str) -> Entry:
        path = os.path.join(self._in("queues"), file)
        with _impossible(path):
            return _entry(self._read(path))

    def keep(self, file: str, entry: Entry) -> None:
        """Durably write what is known of a queue."""
        content = asdict(entry)
        if entry.begins_with is None:
            del content["begins_with"]
        self._write(os.path.join(self._in("queues"), file), content)

    def knows(self, file: str) -> bool:
        """Whether something is written of a queue."""
        return self._disk.exists(self.settings_of(file))

    def settings_of(self, file: str) -> str:
        """Where a queue's name and settings are."""
        return os.path.join(self._in("queues"), file)

    def forget(self, file: str) -> None:
        """Durably forget a queue."""
        for path in (os.path.join(self._in("index"), file), os.path.join(self._in("queues"), file)):
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
            self._disk.sync_folder(os.path.dirname(path))

    def first(self) -> int:
        """The number above those of all deleted queues."""
        path = self._in("store")
        with _impossible(path):
            return int(self._read(path)["first"]) if self._disk.exists(path) else 1

    def keep_first(self, first: int) -> None:
        """Durably remember the number above those of all deleted queues."""
        self._write(self._in("store"), {"format": 1, "first": first})

    def clean(self) -> dict[str, int]:
        """How far each journal reached when the store was closed; nothing if it was not."""
        try:
            return {str(file): int(number) for file, number in self._read(self._in("clean")).items()}
        except (OSError, StoreCorrupt, ValueError, TypeError, AttributeError):
            return {}

    def lost(self, known: Container[str], clean: Iterable[str]) -> list[str]:
        """Settings that were there when the store was closed, and are not; `default` need not have any."""
        default = names.file_name(names.DEFAULT)
        return [self.settings_of(file) for file in clean if file not in known and file.split("%_")[0] != default]

    def forget_clean(self) -> None:
        """From now on the store may change."""
        path = self._in("clean")
        if self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.sync_folder(self.path)

    def keep_clean(self, reached: dict[str, int]) -> None:
        """The store is about to be closed. Not synced: without it opening only takes more care."""
        write_hint(self._disk, self._in("clean"), _text(reached))

    def adopting(self) -> list[str]:
        """Journals that are being taken over, or were when a crash came: they may be ours without an entry."""
        path = self._in("adopting")
        with _impossible(path):
            return [str(file) for file in self._read(path)["files"]] if self._disk.exists(path) else []

    def forgotten(self, file: str) -> str:
        """The file that is missing if a journal without entry is ours; none if it may be a stranger's."""
        return "" if not self.is_store() or file in self.adopting() else self.settings_of(file)

    def keep_adopting(self, files: list[str]) -> None:
        """Durably remember which journals are about to be taken over."""
        self._write(self._in("adopting"), {"format": 1, "files": files})

    def forget_adopting(self) -> None:
        """All of them were."""
        path = self._in("adopting")
        if self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.sync_folder(self.path)

    @property
    def ballast(self) -> str:
        """Where space is kept free."""
        return self._in("ballast")

    def index(self, file: str) -> str:
        """Where the snapshot of a queue's index is."""
        return os.path.join(self._in("index"), file)

    def quarantine(self, name: str, offset: int, data: bytes, mode: int) -> str:
        """Durably keep bytes that cannot be read, of a file with this mode; where they are."""
        path = os.path.join(self.make("quarantine"), f"{name}.{offset}.{crc32(data):08x}")
        replace_file(self._disk, path, data, mode)
        return path

    def new_file(self, queue: str, taken: Iterable[str]) -> str:
        """A file name for a new queue's journal, on any file system unlike those that are taken."""
        return names.new_file(queue, taken, _LONGEST, 2)

    def _in(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _read(self, path: str) -> Any:
        advice = "; the journals beside it are untouched, and `penstock doctor` shows what they hold"
        return read_line(self._disk, path, advice)

    def _write(self, path: str, content: dict[str, Any]) -> None:
        write_line(self._disk, path, content)

    def make(self, name: str) -> str:
        """Durably make a folder in here, if it is not there; its path."""
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
    """Write such a file, synced, in the place of an older one; its name is durable once the folder is synced."""
    replace_file(disk, path, _text(content))


@contextmanager
def _impossible(path: str) -> Iterator[None]:
    """What is whole by its checksum, and cannot be."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreCorrupt(
            f"{path!r} says what cannot be ({error!r}). Put back a copy of this file; nothing was changed"
        ) from error


def journal_of(folder: str, queue: str, disk: Disk) -> str:
    """The name of a queue's journal: the encoded one, unless the store had to choose another."""
    for file, entry in Catalog(folder, disk).entries().items():
        if entry.name == queue:
            return file
    strangers = [file for file in journals(disk.listfiles(folder)) if queue_of(file) == queue]
    return names.file_name(queue) if not strangers else strangers[0]


def queue_of(file: str, taken: Container[str] = ()) -> str:
    """The queue that a stranger's journal stands for, under a name that is legal and not taken."""
    name = _decoded(file)
    number = 2
    while len(name) > 255 or name in taken:
        name = f"{_decoded(file)[:240]}~{number}"
        number += 1
    return name


def _decoded(file: str) -> str:
    decoded, at = "", 0
    while at < len(file):
        digits = file[at + 1 : at + 3]
        if file[at] == "%" and len(digits) == 2 and all(digit in "0123456789ABCDEF" for digit in digits):
            decoded += chr(int(digits, 16))
            at += 3
        else:
            decoded += file[at]
            at += 1
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
