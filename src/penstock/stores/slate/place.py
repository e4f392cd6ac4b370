"""The location of a slate store: its URL, its lock file, and the interface of folder.py and bucket.py."""

import os
from contextlib import suppress
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

from penstock.errors import InvalidArgument, StoreLocked
from penstock.stores.slate.binding import Database
from penstock.stores.slate.format import LOG_KEY
from penstock.system.files import File, SystemDisk

TIMEOUT = 30.0  # seconds that a disk or a bucket may take
SUBFOLDER = ".penstock"  # in a store's folder: files that are not SlateDB's
STAGED = "staged"
ASIDE = "aside"
WEEK = 7 * 86_400_000  # milliseconds for which files are kept that an opening has set aside


class Address(NamedTuple):
    """The parsed URL of a slate store."""

    where: str  # a folder, or the URL of a bucket
    log: str  # the key of its log
    instance: str

    @property
    def is_bucket(self) -> bool:
        return "://" in self.where


def parse(url: str) -> Address:
    """Parse `slate:DIR` or `slate:s3://bucket/prefix`, perhaps with `?instance=NAME`."""
    where, _, query = url.removeprefix("slate:").partition("?")
    instance = parse_qs(query).get("instance", [""])[-1]
    if not where:
        raise InvalidArgument("slate: without a folder or a bucket; give slate:DIR or slate:s3://bucket/prefix")
    return Address(where, f"{LOG_KEY}/{instance}" if instance else LOG_KEY, instance)


class Place(Protocol):
    """A database, and beside it large payloads and staged loads."""

    what: str  # names it in errors
    files: int = 0  # log files that commits have written: the writer collects garbage by this count
    _lock: "StoreLock | None" = None

    def lock(self) -> None:
        """Keep other processes of this machine from writing; StoreLocked."""

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def forked(self) -> None:
        """In a forked child: forget the lock, which stays the parent's."""
        if self._lock is not None:
            self._lock.forked()

    def open(self, timeout: float) -> Database:
        """Open the database; StoreCorrupt if parts of it are lost, and then nothing is changed."""

    def loaded(self) -> None:
        """Called when the queues are loaded, and the instance is the requested one."""

    def closed(self) -> None:
        """Called when the database is closed, and its last manifest written."""

    def make_durable(self) -> None:
        """Bring flushed rows to stable storage."""

    def collect(self, database: Database) -> None:
        """Record the files on stable storage, and remove unreferenced ones, while no commit runs."""

    def free(self) -> int | None:
        """Free space in bytes, if it is known."""

    # Payloads

    def put_object(self, name: str, data: bytes) -> None:
        """Store a large payload, durably."""

    def get_object(self, name: str) -> bytes:
        """A large payload; FileNotFoundError, StoreUnavailable."""

    def delete_object(self, name: str) -> None:
        """Remove a large payload; if that fails, the next opening of the store finds it."""

    def discard_objects(self, names: list[str]) -> None:
        """Set unreferenced payloads aside."""

    def list_objects(self) -> list[str]:
        """The names of all large payloads."""

    # Loads, as frames (wire/frames.py)

    def stage(self, load: str, name: str, frame: bytes) -> None:
        """Store a frame of a load, durably."""

    def staged(self, load: str, name: str) -> bytes:
        """A frame; FileNotFoundError."""

    def has_load(self, load: str) -> bool:
        """Whether a load has staged frames."""

    def remove_load(self, load: str) -> None:
        """Remove the staged frames of a load."""

    def discard_load(self, load: str) -> None:
        """Set the frames of an abandoned load aside, for a week."""

    def list_loads(self) -> list[str]:
        """The names of all loads with staged frames."""


class StoreLock:
    """A lock file; its content names the process that holds it."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what
        self._file: File | None = None

    def take(self) -> None:
        """Take the lock; StoreLocked if another process has it."""
        file = SystemDisk().open(self._path, create=True)
        try:
            taken = file.lock()
            holder = "" if taken else file.read(0, 100).decode(errors="replace").strip()
        except OSError:
            file.close()
            raise
        if not taken:
            file.close()
            raise StoreLocked(
                f"{self._what} is open in {holder or 'another process'}: close it there, or wait until that "
                "process ends"
            )
        with suppress(OSError):  # the content is for people only
            file.truncate(0)
            file.write(0, f"pid {os.getpid()}\n".encode())
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing is not enough: a forked child may have the file open as well
                self._file.unlock()
        self.forked()

    def forked(self) -> None:
        """In a forked child: close the file; the lock stays the parent's."""
        if self._file is not None:
            self._file.close()
            self._file = None
