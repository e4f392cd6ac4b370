"""Snapshots of a slate store: the database as it is at one moment, held for a process while its writer goes on.

    .penstock/pins/OWNER/NAME/db/...      links to the files of SlateDB, of which none ever changes
    .penstock/pins/OWNER/NAME/objects/    and to payloads that are too large for a record

In a folder, links keep the files whatever the writer removes. SlateDB names a file when it is whole, and a reader
replays what its log holds beyond the tables: so the links are all that was committed. They belong to a process
that outlives the reading, and are dropped when it is gone.

In a bucket, a checkpoint keeps the tables; what the log holds beyond them is read at once. A checkpoint has the
name of the process that it is for, and is removed when that is gone, by the next process that takes a snapshot, or
by SlateDB a day after it was last used.
"""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from penstock.errors import PenstockError, StoreCorrupt
from penstock.stores.slate import recovery
from penstock.stores.slate.binding import blocking, load, told
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.extensions import LOG_END_KEY
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.place import SUBFOLDER, TIMEOUT, parse
from penstock.stores.slate.synced import names_in, numbered
from penstock.stores.slate.view import Snapshot, View
from penstock.system.files import SystemDisk
from penstock.system.processes import is_gone, name_of

_TRIES = 50
_SYNCED = 16  # files at the end of the log that its writer may still be about to sync
_UNUSED = 24 * 3600  # seconds after which a snapshot that nobody has opened may go
_IN_USE = 600  # seconds for which one is kept in any case
_MOST = 200  # snapshots of one process
_DAY = 86_400_000  # milliseconds
_PREFIX = "penstock-reader"
Result = TypeVar("Result")


def place_at(url: str) -> Folder | BucketPlace:
    """Where the store at a URL lies, for a process that does not open it."""
    where = parse(url).where
    return BucketPlace(where, TIMEOUT) if "://" in where else Folder(where, "never")


def take(url: str, owner: int, objects: bool = True) -> Snapshot:
    """The store as it is now, held for a process; in a folder, perhaps without large payloads."""
    return _database(parse(url).where).take(owner, objects)


def exists(url: str) -> bool:
    """Whether there is such a store, or what is left of one."""
    return _database(parse(url).where).exists()


def tail(url: str) -> int:
    """The number of the last file of the database's own log: it grows with every commit."""
    return _database(parse(url).where).tail()


def opened(snapshot: Snapshot) -> View:
    """Read a snapshot, in any process."""
    return _database(snapshot.url).opened(snapshot)


def opened_for(snapshot: Snapshot, log: str) -> tuple[Snapshot, View]:
    """Read a snapshot of the log with this key; also the snapshot with which tasks see the same.

    In a database that Penstock has never written the log may have numbers of its own: see recovery.adoption().
    """
    view = opened(snapshot)
    if view.get(LOG_END_KEY) is None and (moved := recovery.adoption(view, log).moved):
        view.close()
        snapshot = replace(snapshot, rows={**snapshot.rows, **moved})
        view = opened(snapshot)
    return snapshot, view


def drop(snapshot: Snapshot) -> None:
    """A snapshot is not needed any more."""
    _database(snapshot.url).drop(snapshot.held)


@contextmanager
def read_only(url: str) -> Iterator[tuple[View, str]]:
    """The store as it is now, without large payloads, and the key of its log."""
    taken, log = take(url, os.getpid(), objects=False), parse(url).log
    try:
        _, view = opened_for(taken, log)
        with closing(view):
            yield view, log
    finally:
        drop(taken)


def _database(where: str) -> "_InFolder | _InBucket":
    return _InBucket(where) if "://" in where else _InFolder(where)


class _InFolder:
    """The database of a folder, and links to its files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._db = os.path.join(folder, "db")
        self._pins = os.path.join(folder, SUBFOLDER, "pins")

    def exists(self) -> bool:
        return any(names_in(os.path.join(self._db, name)) for name in ("manifest", "wal", "compacted"))

    def tail(self) -> int:
        return max([number for number, _ in numbered(os.path.join(self._db, "wal"))], default=0)

    def take(self, owner: int, objects: bool) -> Snapshot:
        if not self.exists():
            raise PenstockError(f"there is no store {self._folder!r}: nothing of one is there")
        self._sweep()
        owned = os.path.join(self._pins, name_of(owner))
        held = os.path.join(owned, secrets.token_hex(8))
        try:
            self._drop_unused(owned)
            payloads = (os.path.join(self._folder, "objects"), os.path.join(held, "objects"))
            if objects:
                _link_all(*payloads)
            last = self._linked(os.path.join(held, "db"))
            if objects:  # of messages that were put meanwhile; those of messages that went were linked before
                _link_all(*payloads)
            _sync(os.path.join(held, "db", "wal"), last)
        except OSError as error:
            self.drop(held)
            raise PenstockError(
                f"the files of the store {self._folder!r} cannot be held for reading: {error.strerror} "
                f"({held!r}). Reading needs the right to write to that folder, on a file system with hard links"
            ) from error
        except BaseException:
            self.drop(held)
            raise
        return Snapshot(self._folder, held, {}, last)

    def _linked(self, target: str) -> int:
        """Link the files of a database that goes on; the last number of its log."""
        for _ in range(_TRIES):
            newest = self._newest()
            for name in ("manifest", "compacted", "wal"):
                _link_all(os.path.join(self._db, name), os.path.join(target, name))
            last = _link_between(os.path.join(self._db, "wal"), os.path.join(target, "wal"))
            if self._newest() == newest:  # nothing that it names can have gone before it was linked
                return last
            shutil.rmtree(target)
        raise StoreCorrupt(f"the files of {self._folder!r} change faster than they can be read: try again")

    def _newest(self) -> int:
        return max([number for number, _ in numbered(os.path.join(self._db, "manifest"))], default=0)

    def opened(self, snapshot: Snapshot) -> View:
        place = Folder(snapshot.held, "never")
        place.what = f"the store {snapshot.url!r}"
        with suppress(FileNotFoundError):
            os.utime(snapshot.held)  # it is in use
            mode = load().ReaderMode.FOLLOW_LATEST()
            return View(place.object_store(), "db", mode, snapshot, place, place.what, TIMEOUT)
        raise PenstockError(
            f"what this DataFrame reads is gone ({snapshot.held!r}), as it was not used for long: load() it again"
        )

    def drop(self, held: str) -> None:
        shutil.rmtree(held, ignore_errors=True)
        with suppress(OSError):  # its process has others
            os.rmdir(os.path.dirname(held))

    def _sweep(self) -> None:
        """Drop the snapshots of processes that are gone."""
        with suppress(OSError):
            for owner in os.listdir(self._pins):
                if is_gone(owner):
                    shutil.rmtree(os.path.join(self._pins, owner), ignore_errors=True)

    def _drop_unused(self, owned: str) -> None:
        now = time.time()
        found: list[tuple[float, str]] = []
        with suppress(FileNotFoundError), os.scandir(owned) as there:
            for each in there:
                with suppress(FileNotFoundError):
                    found.append((each.stat().st_mtime, each.path))
        for number, (used, path) in enumerate(sorted(found, reverse=True)):
            if now - used > _UNUSED or (number >= _MOST and now - used > _IN_USE):
                self.drop(path)


def _link_between(source: str, target: str) -> int:
    """Link what a listing has left out because it was just then made, before what it has; the last number."""
    found = {number for number, _ in numbered(target)}
    for number in range(min(found, default=0), max(found, default=0)):
        if number not in found:
            with suppress(FileNotFoundError):
                name = f"{number:020}.sst"
                os.link(os.path.join(source, name), os.path.join(target, name))
    return max(found, default=0)


def _link_all(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    if not os.path.isdir(source):
        return
    for name in os.listdir(source):
        if "#" not in name:  # it is still being written
            with suppress(FileNotFoundError, FileExistsError):
                os.link(os.path.join(source, name), os.path.join(target, name))


def _sync(wal: str, last: int) -> None:
    """What is read must not be lost, even if its writer has not been told yet that it was committed."""
    disk = SystemDisk()
    for number in range(max(1, last - _SYNCED), last + 1):
        with suppress(FileNotFoundError):
            file = disk.open(os.path.join(wal, f"{number:020}.sst"))
            file.sync()
            file.close()
    disk.sync_folder(wal)


class _InBucket:
    """The database of a bucket, as its administrator sees it, and checkpoints."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._place = BucketPlace(url, TIMEOUT)

    @cached_property
    def _store(self) -> Any:
        return self._place.object_store()

    @cached_property
    def _admin(self) -> Any:
        return load().AdminBuilder(self._place.path, self._store).build()

    def exists(self) -> bool:
        return self._place.exists()

    def tail(self) -> int:
        manifest = self._manifest(None)
        return 0 if manifest is None else self._tail(manifest.replay_after_wal_id)

    def take(self, owner: int, objects: bool) -> Snapshot:
        if self._manifest(None) is None:
            raise PenstockError(f"there is no store {self._url!r}: nothing of one is there")
        self._sweep()
        name = f"{_PREFIX} {socket.gethostname()} {name_of(owner)}"
        options = load().CheckpointOptions(lifetime_ms=_DAY, source=None, name=name)
        checkpoint = self._run(self._admin.create_detached_checkpoint(options))
        rows: dict[bytes, bytes | None] = {}
        last = self._replay(self._manifest(checkpoint.manifest_id).replay_after_wal_id, rows)
        return Snapshot(self._url, checkpoint.id, rows, last)

    def opened(self, snapshot: Snapshot) -> View:
        place, ffi = self._place, load()
        try:
            blocking(self._admin.refresh_checkpoint(snapshot.held, _DAY), TIMEOUT)
            mode = ffi.ReaderMode.CHECKPOINT(snapshot.held)
            return View(self._store, place.path, mode, snapshot, place, place.what, TIMEOUT)
        except ffi.Error as error:
            raise PenstockError(
                f"what this DataFrame reads is gone from {self._url!r}, as it was not used for long ({error}): "
                "load() it again"
            ) from error

    def drop(self, held: str) -> None:
        with suppress(load().Error):
            blocking(self._admin.delete_checkpoint(held), TIMEOUT)

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        with told(load(), self._place.what, TIMEOUT, opening=True):
            return blocking(call, TIMEOUT)

    def _manifest(self, number: int | None) -> Any:
        return self._run(self._admin.read_manifest(number))

    def _sweep(self) -> None:
        """Remove the checkpoints of processes of this machine that are gone."""
        for each in self._run(self._admin.list_checkpoints(None)):
            prefix, _, rest = (each.name or "").partition(" ")
            host, _, process = rest.partition(" ")
            if prefix == _PREFIX and host == socket.gethostname() and is_gone(process):
                self.drop(each.id)

    def _tail(self, after: int) -> int:
        reader = load().SlateDbWalReader(self._place.path, self._store)
        return int(self._run(reader.last_wal_file_id(after)))

    def _replay(self, after: int, rows: dict[bytes, bytes | None]) -> int:
        """Add what the log holds after one of its files; the number of the last."""
        last, done = self._tail(after), after
        if last > after:
            reader = load().SlateDbWalReader(self._place.path, self._store)
            iterator = self._run(reader.iterator(after + 1))
        while done < last and (found := self._run(iterator.next())) is not None:
            rows.update((row.key, row.value) for row in found.rows)
            done = found.last_consumed_wal_file_id
        return last
