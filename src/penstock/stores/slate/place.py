"""Where a slate store lies: its URL, its lock, and what folder.py and bucket.py both offer."""

import os
from contextlib import suppress
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

from penstock.errors import InvalidArgument, StoreLocked
from penstock.stores.slate.binding import Database
from penstock.stores.slate.format import LOG_KEY
from penstock.system.files import File, SystemDisk

TIMEOUT = 30.0  # seconds that a disk or a bucket may take
SUBFOLDER = ".penstock"  # of a folder: whatever is not SlateDB's
STAGED = "staged"
ASIDE = "aside"
WEEK = 7 * 86_400_000  # milliseconds for which what an opening has set aside is kept


class Address(NamedTuple):
    """What the URL of a slate store says."""

    where: str  # a folder, or the URL of a bucket
    log: str
    instance: str

    @property
    def is_bucket(self) -> bool:
        """Whether it lies in a bucket."""
        return "://" in self.where


def parse(url: str) -> Address:
    """Of `slate:DIR` or `slate:s3://bucket/prefix`, perhaps with `?instance=NAME`."""
    where, _, query = url.removeprefix("slate:").partition("?")
    instance = parse_qs(query).get("instance", [""])[-1]
    if not where:
        raise InvalidArgument("slate: without a folder or a bucket; give slate:DIR or slate:s3://bucket/prefix")
    return Address(where, f"{LOG_KEY}/{instance}" if instance else LOG_KEY, instance)


class Place(Protocol):
    """A database, with payloads that are too large for its records, and loads, beside it."""

    what: str  # names it in errors
    files: int = 0  # that commits have added to the log: a measure of when to collect
    _lock: "StoreLock | None" = None

    def lock(self) -> None:
        """See to it that no other process of this machine writes here; StoreLocked."""

    def unlock(self) -> None:
        """Let others of this machine open the store."""
        if self._lock is not None:
            self._lock.release()

    def forked(self) -> None:
        """In a child: the store stays the parent's."""
        if self._lock is not None:
            self._lock.forked()

    def open(self, timeout: float) -> Database:
        """Open the database; StoreCorrupt if some of it is lost, and nothing is changed."""

    def loaded(self) -> None:
        """The database was read, and is of the instance that was asked for."""

    def closed(self) -> None:
        """The database was closed, and has written its last manifest."""

    def make_durable(self) -> None:
        """What was flushed is on stable storage after this."""

    def collect(self, database: Database) -> None:
        """Record what is on stable storage, and remove what nobody needs, while nobody writes."""

    def free(self) -> int | None:
        """Bytes of space that are left, if that is known."""

    # Payloads

    def put_object(self, name: str, data: bytes) -> None:
        """Keep a payload beside the database, on stable storage."""

    def get_object(self, name: str) -> bytes:
        """A payload; FileNotFoundError, StoreUnavailable."""

    def delete_object(self, name: str) -> None:
        """A payload is not needed any more; one that cannot be removed now is found when the store is opened."""

    def discard_objects(self, names: list[str]) -> None:
        """Set payloads aside to which nothing leads."""

    def list_objects(self) -> list[str]:
        """The names of all payloads; another program's database has none."""

    # Loads, as frames (wire/frames.py)

    def stage(self, load: str, name: str, frame: bytes) -> None:
        """Keep a frame of a load, on stable storage."""

    def staged(self, load: str, name: str) -> bytes:
        """A frame; FileNotFoundError."""

    def has_load(self, load: str) -> bool:
        """Whether anything of a load is staged."""

    def remove_load(self, load: str) -> None:
        """What is staged of a load is not needed any more."""

    def discard_load(self, load: str) -> None:
        """A load will never take effect: keep it where people find it, for a week."""

    def list_loads(self) -> list[str]:
        """All loads of which something is staged."""


class StoreLock:
    """A lock file, which says who holds it."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what
        self._file: File | None = None

    def take(self) -> None:
        """Hold it; StoreLocked if another process does."""
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
        with suppress(OSError):  # whose it is is only for people
            file.truncate(0)
            file.write(0, f"pid {os.getpid()}\n".encode())
        self._file = file

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            with suppress(OSError):  # not only closed: a child that was forked may have the file open as well
                self._file.unlock()
        self.forked()

    def forked(self) -> None:
        """In a child: it stays the parent's."""
        if self._file is not None:
            self._file.close()
            self._file = None
