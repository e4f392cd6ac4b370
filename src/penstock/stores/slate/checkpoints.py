"""A moment of a database in a bucket: a checkpoint, which keeps the tables, and what the log holds beyond them.

A checkpoint has the name of the process that it is for, and is removed when that is gone, by the next one that
takes a moment, or by SlateDB a day after it was last used.
"""

import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from penstock.errors import PenstockError
from penstock.stores.slate.binding import blocking, load, told
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.view import Moment, View
from penstock.system.processes import is_gone, name_of

_DAY = 86_400_000  # milliseconds
_PREFIX = "penstock-reader"
Result = TypeVar("Result")


def exists(url: str, timeout: float) -> bool:
    """Whether there is such a store, or what is left of one."""
    return BucketPlace(url, timeout).exists()


def tail(url: str, timeout: float) -> int:
    """The number of the last file of the log: it grows with every commit."""
    database = _Bucket(url, timeout)
    manifest = database.manifest(None)
    return database.tail(manifest.replay_after_wal_id) if manifest is not None else 0


def take(url: str, owner: int, timeout: float) -> Moment:
    """Take a moment, for a process."""
    database = _Bucket(url, timeout)
    if database.manifest(None) is None:
        raise PenstockError(f"there is no store {url!r}: nothing of one is there")
    database.sweep()
    checkpoint = database.checkpoint(f"{_PREFIX} {socket.gethostname()} {name_of(owner)}")
    manifest = database.manifest(checkpoint.manifest_id)
    rows: dict[bytes, bytes | None] = {}
    last = database.replay(manifest.replay_after_wal_id, rows)
    return Moment(url, checkpoint.id, rows, last)


def opened(moment: Moment, timeout: float) -> View:
    """Look at a moment."""
    database, ffi = _Bucket(moment.url, timeout), load()
    try:
        database.refresh(moment.held)
        mode = ffi.ReaderMode.CHECKPOINT(moment.held)
        place = database.place
        return View(database.store, database.path, mode, moment, place, place.what, timeout)
    except ffi.Error as error:
        raise PenstockError(
            f"what this DataFrame reads is gone from {moment.url!r}, as it was not used for long ({error}): "
            "load() it again"
        ) from error


def drop(moment: Moment, timeout: float) -> None:
    """A moment is not needed any more."""
    _Bucket(moment.url, timeout).delete(moment.held)


class _Bucket:
    """The database, as its administrator sees it."""

    def __init__(self, url: str, timeout: float) -> None:
        self.place = BucketPlace(url, timeout)
        self.store = self.place._object_store()
        self.path = f"{self.place._prefix}db"
        self._timeout = timeout
        self._ffi = load()
        self._admin = self._ffi.AdminBuilder(self.path, self.store).build()

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        with told(self._ffi, self.place.what, self._timeout, opening=True):
            return blocking(call, self._timeout)

    def manifest(self, number: int | None) -> Any:
        return self._run(self._admin.read_manifest(number))

    def checkpoint(self, name: str) -> Any:
        options = self._ffi.CheckpointOptions(lifetime_ms=_DAY, source=None, name=name)
        return self._run(self._admin.create_detached_checkpoint(options))

    def refresh(self, held: str) -> None:
        blocking(self._admin.refresh_checkpoint(held, _DAY), self._timeout)

    def delete(self, held: str) -> None:
        with suppress(self._ffi.Error):
            blocking(self._admin.delete_checkpoint(held), self._timeout)

    def sweep(self) -> None:
        """Remove the checkpoints of processes of this machine that are gone."""
        for each in self._run(self._admin.list_checkpoints(None)):
            prefix, _, rest = (each.name or "").partition(" ")
            host, _, process = rest.partition(" ")
            if prefix == _PREFIX and host == socket.gethostname() and is_gone(process):
                self.delete(each.id)

    def tail(self, after: int) -> int:
        reader = self._ffi.SlateDbWalReader(self.path, self.store)
        return int(self._run(reader.last_wal_file_id(after)))

    def replay(self, after: int, rows: dict[bytes, bytes | None]) -> int:
        """Add what the log holds after one of its files; the number of the last."""
        reader = self._ffi.SlateDbWalReader(self.path, self.store)
        last = int(self._run(reader.last_wal_file_id(after)))
        if last <= after:
            return last
        iterator, done = self._run(reader.iterator(after + 1)), after
        while done < last:
            found = self._run(iterator.next())
            if found is None:
                break
            for row in found.rows:
                rows[row.key] = row.value
            done = found.last_consumed_wal_file_id
        return last
