"""Snapshots of a slate store: the database at one moment, pinned for readers while its writer continues.

    .penstock/pins/OWNER/NAME/db/...      hard links to SlateDB's files, which never change
    .penstock/pins/OWNER/NAME/objects/    hard links to payloads that are too large for a record

In a folder, links keep files that the writer removes. SlateDB links a file to its name when it is complete, and a
reader replays the log after the tables: so the links hold all committed rows. They belong to a process that
outlives the reading, and are removed when that process has ended.

In a bucket, a checkpoint keeps the tables; the rows of the log after them are read at once, into the snapshot. A
checkpoint is named after its process. It is removed when that process has ended, by the next process that takes a
snapshot, or by SlateDB a day after its last use.

A `Snapshot` can be sent to other processes, which open it as a `View`.
"""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from penstock.errors import PenstockError, StoreCorrupt
from penstock.stores.slate import recovery
from penstock.stores.slate.binding import (
    AT_ONCE,
    LENGTH,
    READ_AHEAD,
    TAIL,
    Database,
    blocking,
    check_end,
    load,
    next_batch,
    rows_in,
    scan_options,
    told,
)
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.extensions import LOG_END_KEY
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.place import SUBFOLDER, TIMEOUT, Place, parse
from penstock.stores.slate.synced import names_in, numbered
from penstock.system.files import SystemDisk
from penstock.system.processes import is_gone, name_of

_TRIES = 50
_SYNCED = 16  # files at the end of the log that its writer may not have synced yet
_UNUSED = 24 * 3600  # seconds after its last use until a snapshot may be removed
_IN_USE = 600  # seconds for which it is kept in any case
_MOST = 200  # snapshots of one process
_DAY = 86_400_000  # milliseconds
_PREFIX = "penstock-reader"
_FETCHES = 4
_FOREVER = 10 * 365 * 86_400_000  # milliseconds between a reader's polls: a snapshot does not change
_MEMORY = 256 << 20
Result = TypeVar("Result")


class Values(NamedTuple):
    """The values of many rows, as positions in shared bytes: decoded by columns."""

    data: bytes
    starts: list[int]
    ends: list[int]

    def each(self) -> list[bytes]:
        return [self.data[start:end] for start, end in zip(self.starts, self.ends, strict=True)]


def joined(values: Sequence[bytes]) -> Values:
    """Separate values as `Values`."""
    ends = list(accumulate(map(len, values)))
    return Values(b"".join(values), [0, *ends[:-1]], ends)


@dataclass(frozen=True)
class Snapshot:
    """A pinned state of the database. `rows` override the tables: rows of the log, None for deleted keys."""

    url: str  # the folder or bucket
    held: str  # the folder of links, or the name of the checkpoint
    rows: Mapping[bytes, bytes | None]
    tail: int  # the number of the last file of the database's own log

    def within(self, *ranges: tuple[bytes, bytes]) -> "Snapshot":
        """The snapshot for a reader of only these key ranges."""
        rows = {key: value for key, value in self.rows.items() if any(start <= key < end for start, end in ranges)}
        return replace(self, rows=rows)


class View(Database):
    """An open snapshot, with the reading methods of a Database."""

    def __init__(
        self, store: Any, path: str, mode: Any, snapshot: Snapshot, objects: Place, what: str, timeout: float
    ) -> None:
        self._ffi = ffi = load()
        self._store, self._path, self._what, self.timeout = store, path, what, timeout
        self.what = what
        self._latest = sorted(snapshot.rows.items())
        self._known = snapshot.rows
        self.get_object = objects.get_object
        builder = ffi.DbReaderBuilder(path, store)
        builder.with_reader_mode(mode)
        builder.with_options(
            ffi.ReaderOptions(
                manifest_poll_interval_ms=_FOREVER,
                checkpoint_lifetime_ms=3 * _FOREVER,
                max_memtable_bytes=_MEMORY,
                skip_wal_replay=False,
            )
        )
        with told(ffi, what, timeout, opening=True):
            self._db = blocking(builder.build(), timeout)
        self._scanning = scan_options(ffi, READ_AHEAD, _FETCHES)

    def get(self, key: bytes) -> bytes | None:
        return self._known[key] if key in self._known else super().get(key)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        latest = [key for key, value in self._latest if value is not None and start <= key < end]
        return max([key for key in (super().last(start, end), *latest[-1:]) if key is not None], default=None)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for some in self.batches(start, end):
            yield from some

    def batches(self, start: bytes, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """The rows of scan(), many at a time."""
        stored = map(rows_in, self._stored(start, end))
        latest = [row for row in self._latest if start <= row[0] < end]
        return _merged(stored, latest) if latest else stored

    def values(self, start: bytes, end: bytes) -> Iterator[Values]:
        """The values of the rows of scan(), many at a time."""
        if any(start <= key < end for key, _ in self._latest):
            return (joined([value for _, value in some]) for some in self.batches(start, end))
        return map(_values, self._stored(start, end))

    def _stored(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Batches of rows from the tables, as undecoded bytes."""
        iterator = self._iterator(start, end, self._scanning)
        while True:
            data = self._run(next_batch(self._ffi, iterator))
            (count,) = LENGTH.unpack_from(data)
            if count:
                yield data
            if count < AT_ONCE:
                return

    def close(self) -> None:
        self._run(self._db.shutdown())


def _merged(
    stored: Iterator[list[tuple[bytes, bytes]]], latest: Sequence[tuple[bytes, bytes | None]]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows of tables, with later rows that replace or delete them."""
    at = 0
    for some in stored:
        last = some[-1][0]
        found: dict[bytes, bytes | None] = dict(some)
        while at < len(latest) and latest[at][0] <= last:
            found[latest[at][0]] = latest[at][1]
            at += 1
        yield sorted((key, value) for key, value in found.items() if value is not None)
    rest = [(key, value) for key, value in latest[at:] if value is not None]
    if rest:
        yield rest


def _values(data: bytes) -> Values:
    """The values of a batch of rows."""
    length = LENGTH.unpack_from
    starts, ends, at = [], [], 4
    for _ in range(length(data)[0]):
        start = at + 8 + length(data, at)[0]
        stop = start + length(data, start - 4)[0]
        starts.append(start)
        ends.append(stop)
        at = stop + TAIL[data[stop + 16]]
    check_end(data, at)
    return Values(data, starts, ends)


def place_at(url: str) -> Folder | BucketPlace:
    """The folder or bucket of a store, for a process that does not open the store."""
    where = parse(url).where
    return BucketPlace(where, TIMEOUT) if "://" in where else Folder(where, "never")


def take(url: str, owner: int, objects: bool = True) -> Snapshot:
    """Take a snapshot, pinned for a process; in a folder, `objects=False` leaves large payloads out."""
    return _database(parse(url).where).take(owner, objects)


def exists(url: str) -> bool:
    """Whether there is a store at the URL, or remains of one."""
    return _database(parse(url).where).exists()


def tail(url: str) -> int:
    """The number of the last file of SlateDB's log; every commit raises it."""
    return _database(parse(url).where).tail()


def opened(snapshot: Snapshot) -> View:
    """Open a snapshot, in any process."""
    return _database(snapshot.url).opened(snapshot)


def opened_for(snapshot: Snapshot, log: str) -> tuple[Snapshot, View]:
    """Open a snapshot; also returns the snapshot that tasks open to see the same.

    In a database that Penstock has never written, log entries may need to be moved: see recovery.adoption().
    """
    view = opened(snapshot)
    if view.get(LOG_END_KEY) is None and (moved := recovery.adoption(view, log).moved):
        view.close()
        snapshot = replace(snapshot, rows={**snapshot.rows, **moved})
        view = opened(snapshot)
    return snapshot, view


def drop(snapshot: Snapshot) -> None:
    """Unpin a snapshot."""
    _database(snapshot.url).drop(snapshot.held)


@contextmanager
def read_only(url: str) -> Iterator[tuple[View, str]]:
    """A view of the store at this moment, without large payloads, and the key of its log."""
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
    """Snapshots of a store in a folder: hard links."""

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
            raise PenstockError(f"there is no store {self._folder!r}: check the name")
        self._sweep()
        owned = os.path.join(self._pins, name_of(owner))
        held = os.path.join(owned, secrets.token_hex(8))
        try:
            self._drop_unused(owned)
            payloads = (os.path.join(self._folder, "objects"), os.path.join(held, "objects"))
            if objects:
                _link_all(*payloads)
            last = self._linked(os.path.join(held, "db"))
            if (
                objects
            ):  # again, for messages that were put meanwhile; those of removed messages are linked already
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
        """Link the files of a database that is being written; the last number of its log."""
        for _ in range(_TRIES):
            newest = self._newest()
            for name in ("manifest", "compacted", "wal"):
                _link_all(os.path.join(self._db, name), os.path.join(target, name))
            last = _link_between(os.path.join(self._db, "wal"), os.path.join(target, "wal"))
            if self._newest() == newest:  # so no file that it names was removed before it was linked
                return last
            shutil.rmtree(target)
        raise StoreCorrupt(f"the files of {self._folder!r} change faster than they can be read: try again")

    def _newest(self) -> int:
        return max([number for number, _ in numbered(os.path.join(self._db, "manifest"))], default=0)

    def opened(self, snapshot: Snapshot) -> View:
        place = Folder(snapshot.held, "never")
        place.what = f"the store {snapshot.url!r}"
        with suppress(FileNotFoundError):
            os.utime(snapshot.held)  # marks it as used
            mode = load().ReaderMode.FOLLOW_LATEST()
            return View(place.object_store(), "db", mode, snapshot, place, place.what, TIMEOUT)
        raise PenstockError(
            f"the snapshot of this DataFrame was unused for long and is gone ({snapshot.held!r}): load() it again"
        )

    def drop(self, held: str) -> None:
        shutil.rmtree(held, ignore_errors=True)
        with suppress(OSError):  # the process has other snapshots
            os.rmdir(os.path.dirname(held))

    def _sweep(self) -> None:
        """Remove the snapshots of processes that have ended."""
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
    """Link files that a listing missed, as they were just being made; the last number."""
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
        if "#" not in name:  # else it is still being written
            with suppress(FileNotFoundError, FileExistsError):
                os.link(os.path.join(source, name), os.path.join(target, name))


def _sync(wal: str, last: int) -> None:
    """Sync the end of the log: rows that are read must not be lost, even if their commit is still running."""
    disk = SystemDisk()
    for number in range(max(1, last - _SYNCED), last + 1):
        with suppress(FileNotFoundError):
            file = disk.open(os.path.join(wal, f"{number:020}.sst"))
            file.sync()
            file.close()
    disk.sync_folder(wal)


class _InBucket:
    """Snapshots of a store in a bucket: checkpoints."""

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
            raise PenstockError(f"there is no store {self._url!r}: check the name")
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
                f"the snapshot of this DataFrame in {self._url!r} was unused for long and is gone ({error}): "
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
        """Remove the checkpoints of processes of this machine that have ended."""
        for each in self._run(self._admin.list_checkpoints(None)):
            prefix, _, rest = (each.name or "").partition(" ")
            host, _, process = rest.partition(" ")
            if prefix == _PREFIX and host == socket.gethostname() and is_gone(process):
                self.drop(each.id)

    def _tail(self, after: int) -> int:
        reader = load().SlateDbWalReader(self._place.path, self._store)
        return int(self._run(reader.last_wal_file_id(after)))

    def _replay(self, after: int, rows: dict[bytes, bytes | None]) -> int:
        """Add the rows of the log files after a number; the number of the last file."""
        last, done = self._tail(after), after
        if last > after:
            reader = load().SlateDbWalReader(self._place.path, self._store)
            iterator = self._run(reader.iterator(after + 1))
        while done < last and (found := self._run(iterator.next())) is not None:
            rows.update((row.key, row.value) for row in found.rows)
            done = found.last_consumed_wal_file_id
        return last
