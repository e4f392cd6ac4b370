"""A database in a folder of this machine, made durable: SlateDB itself never syncs a file.

    db/            SlateDB's: manifest/ wal/ compacted/ compactions/ gc/
    objects/ID     payloads that are too large for a record
    .penstock/     lock: held while the store is open; synced: what is known to be on stable storage

- A commit is acknowledged once its files in wal/, and that folder, are synced.
- Everything else (manifests, tables) may be lost or torn by a crash, and can be done without as long as the log it
  was made of is there. So files are only ever removed by `collect`: after everything was synced, and the numbers
  of the newest manifest and compactions were written to `synced`.
- Opening after a crash goes back to what `synced` names: later manifests and compactions are removed, as are files
  that were being written (`#` in their name), and the end of the log from a file on that was never whole.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.errors import NotSupported, StoreCorrupt, StoreUnreachable
from penstock.files import SystemDisk, refuse_links
from penstock.journal.ballast import is_full
from penstock.slate.binding import Database, blocking, load
from penstock.slate.locking import StoreLock

SUBFOLDER = ".penstock"
_DB = "db"
_NUMBERED = re.compile(r"([0-9]{20})\.(sst|manifest|compactions)")
LOOKED_AT = 4  # files at the end of the log that a crash may have torn: those of one commit
_SECONDS = 30
_MIN_AGE = 60.0  # seconds that a file is left for those who still read it
_SETTINGS = (("garbage_collector_options", "null"),)


class Folder:
    """Where a store in a folder lies."""

    def __init__(self, folder: str, sync: str) -> None:
        self.folder = os.path.abspath(folder)
        self.what = f"the store {self.folder!r}"
        self.subfolder = os.path.join(self.folder, SUBFOLDER)
        self._sync = sync
        self._disk = SystemDisk()
        self._db = os.path.join(self.folder, _DB)
        self._wal = os.path.join(self._db, "wal")
        self._objects = os.path.join(self.folder, "objects")
        self._last = 0  # the number of the last file of the log that is synced
        self._lock = StoreLock(os.path.join(self.subfolder, "lock"), self.what)

    # Opening

    def lock(self) -> None:
        """Make what is missing, and see to it that no other process of this machine writes here; StoreLocked."""
        if self._sync != "never" and _syncfs is None:
            raise NotSupported(
                f"{self.what} cannot be made safe: this system ({sys.platform}) cannot sync a file system, and "
                'SlateDB does not sync its files: use a journal store, a bucket, or sync="never" at your own risk'
            )
        if os.path.isdir(self.folder):
            refuse_links(self._disk, self.folder)  # before anything is made or removed behind one
        os.makedirs(self.subfolder, exist_ok=True)
        os.makedirs(self._objects, exist_ok=True)
        os.makedirs(self._wal, exist_ok=True)
        for folder in (self.subfolder, self._objects, self._db, *self._db_folders()):
            refuse_links(self._disk, folder)
        self._lock.take()

    def _db_folders(self) -> list[str]:
        return [each.path for each in os.scandir(self._db) if each.is_dir(follow_symlinks=False)]

    def unlock(self) -> None:
        """Let others open the store."""
        self._lock.release()

    def forked(self) -> None:
        """In a child: the store stays the parent's."""
        self._lock.forked()

    def open(self, timeout: float) -> Database:
        """Take away what a crash may have left half done, and open the database."""
        store = self.object_store()
        self._go_back(store)
        self._sync_all()
        database = Database(store, _DB, _SETTINGS, self.what, timeout)
        self._last = max([number for number, _ in numbered(self._wal)], default=0)
        self._remember()
        return database

    def object_store(self) -> Any:
        """The folder as SlateDB knows it."""
        ffi = load()
        builder = ffi.ObjectStoreBuilder(ffi.ObjectStoreType.LOCAL)
        builder.with_config("local_path", self.folder)
        return builder.build()

    def _go_back(self, store: Any) -> None:
        """Remove what a crash may have torn, and what follows from it."""
        synced = self.synced()
        for kind in ("manifest", "compactions"):
            for number, path in numbered(os.path.join(self._db, kind)):
                if (number > synced[kind]) if synced is not None else os.path.getsize(path) == 0:
                    os.unlink(path)
        for folder, _, names in os.walk(self._db):
            for name in names:
                if "#" in name or os.path.basename(folder) == "gc":
                    os.unlink(os.path.join(folder, name))
        self._cut_off(store)

    def synced(self) -> dict[str, int] | None:
        """What was on stable storage when the store last knew; None if it never did."""
        try:
            with open(os.path.join(self.subfolder, "synced"), "rb") as file:
                content = json.load(file)
                return {kind: int(content[kind]) for kind in ("manifest", "compactions")}
        except FileNotFoundError:
            return None  # nothing was acknowledged here, or another program made the database
        except (ValueError, KeyError) as error:
            raise StoreCorrupt(
                f"{self.subfolder}/synced cannot be read ({error}): restore it from a backup, or remove it if the "
                "machine has not crashed since the store was last closed"
            ) from error

    def _cut_off(self, store: Any) -> None:
        """Remove the end of the log from a file on that is not whole: nothing of it was acknowledged."""
        files = sorted(numbered(self._wal))[-LOOKED_AT:]
        for at, (number, path) in enumerate(files):
            # An empty one is a writer's first, with which it fences others.
            if os.path.getsize(path) and not is_whole(store, number):
                for _, torn in reversed(files[at:]):
                    os.unlink(torn)
                return

    # At work

    def make_durable(self) -> None:
        """Sync what a flush has added to the log."""
        synced = self._sync != "never"
        for number in range(self._last + 1, sys.maxsize):
            path = os.path.join(self._wal, f"{number:020}.sst")
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                break
            try:
                if synced:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._last = number
        if synced:
            self._disk.sync_folder(self._wal)

    def collect(self, database: Database) -> None:
        """Remove files that nobody needs, while nobody writes; the last row must not be in tables yet."""
        database.flush_tables()
        self._sync_all()
        self._remember()
        database.collect_garbage(_MIN_AGE)

    @property
    def files(self) -> int:
        """Files that were added to the log since the store was made: a measure of when to collect."""
        return self._last

    def free(self) -> int:
        """Bytes of space that are left."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def _remember(self) -> None:
        """Write down which manifest and compactions are on stable storage; everything was synced just now."""
        newest = {
            kind: max([number for number, _ in numbered(os.path.join(self._db, kind))], default=0)
            for kind in ("manifest", "compactions")
        }
        self._sync_all()
        path = os.path.join(self.subfolder, "synced")
        try:
            with open(path + ".new", "w") as file:
                json.dump(newest, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if is_full(error):  # what was written down last still holds
                raise StoreUnreachable(f"no space left in {self.what}: free some") from error
            raise
        os.replace(path + ".new", path)
        self._disk.sync_folder(self.subfolder)

    def _sync_all(self) -> None:
        if self._sync == "never" or _syncfs is None:
            return
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            if _syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), self.folder)
        finally:
            os.close(descriptor)

    # Objects

    def put_object(self, name: str, data: bytes) -> None:
        """Keep a payload beside the database, on stable storage."""
        path = os.path.join(self._objects, name)
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            if self._sync != "never":
                os.fsync(file.fileno())
        if self._sync != "never":
            self._disk.sync_folder(self._objects)

    def get_object(self, name: str) -> bytes:
        """A payload; FileNotFoundError."""
        with open(os.path.join(self._objects, name), "rb") as file:
            return file.read()

    def delete_object(self, name: str) -> None:
        """A payload is not needed any more."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._objects, name))

    def list_objects(self) -> list[str]:
        """The names of all payloads."""
        return os.listdir(self._objects)


def is_whole(store: Any, number: int) -> bool:
    """Whether a file of the log can be read, and has rows."""
    ffi = load()
    try:
        iterator = blocking(ffi.SlateDbWalReader(_DB, store).iterator(number), _SECONDS)
        return blocking(_rows_of_next(ffi, iterator), _SECONDS) > 0
    except ffi.Error:
        return False


async def _rows_of_next(ffi: Any, iterator: Any) -> int:
    """How many rows `iterator.next()` would give, which makes an object of each: a commit may have millions."""
    library = ffi._UniffiLib

    def count(buffer: Any) -> int:
        try:
            start = ctypes.string_at(buffer.data, min(buffer.len, 5))
        finally:
            buffer.free()
        return int.from_bytes(start[1:]) if start[0] else 0  # nothing, or a list with its length first

    rows: int = await ffi._uniffi_rust_call_async(
        library.uniffi_slatedb_uniffi_fn_method_slatedbwaliterator_next(iterator._uniffi_clone_handle()),
        library.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
        library.ffi_slatedb_uniffi_rust_future_complete_rust_buffer,
        library.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
        count,
        ffi._UniffiFfiConverterTypeError,
    )
    return rows


def numbered(folder: str) -> Iterator[tuple[int, str]]:
    """The files of a folder that have a number as their name."""
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        if matched := _NUMBERED.fullmatch(name):
            yield int(matched[1]), os.path.join(folder, name)


def _find_syncfs() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_int
    return function


_syncfs = _find_syncfs()
