"""A slate store in a folder of this machine, with durable commits: SlateDB itself never syncs a file.

    db/            SlateDB's files: manifest/ wal/ compacted/ compactions/ gc/
    objects/ID     payloads that are too large for a record
    .penstock/     lock: held while the store is open; synced: the files on stable storage (synced.py);
                   aside/TIME/: files that an opening has set aside, removed a week later

- A commit is acknowledged once its files in wal/, the record of them, and the folder wal/ are synced.
- A crash may lose or tear all other files (manifests, tables). They can be made again from the log. So only
  `collect` removes files, after it has synced everything and written the numbers of the newest manifest and
  compactions to `synced`.
- Opening goes back to the manifest and compactions in `synced`. If a synced file is missing or has changed,
  opening is an error and changes nothing. Opening sets aside later manifests and compactions, unfinished files
  (`#` in their name), and the unsynced end of the log from its first torn file on.
"""

import ctypes
import logging
import os
import shutil
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import NotSupported, StoreCorrupt, StoreUnreachable
from penstock.stores.slate.binding import Database, Fenced, answer_of, blocking, load, told
from penstock.stores.slate.place import ASIDE, STAGED, SUBFOLDER, WEEK, Place, StoreLock
from penstock.stores.slate.synced import (
    KINDS,
    Extent,
    Needed,
    Record,
    checksum_of,
    in_words,
    log_file,
    name_of,
    names_in,
    numbered,
    read_manifest,
)
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk, is_full, make_folder, refuse_links, unavailable

RESTORE = (
    "put these files back from a backup; to see what is left without them copy the store, remove from the copy "
    f"{SUBFOLDER}/synced, these files and all later ones of their folder, and open that"
)
_DB = "db"
_UNRECORDED = 4  # without a record, a crash may have torn so many files at the end of the log: those of one commit
_SPARE = 16  # descriptors that SlateDB may need at once; short of them it panics
_SECONDS = 30
_MIN_AGE = 60.0  # seconds that an unreferenced file is left for its readers
_SETTINGS = (("garbage_collector_options", "null"),)
_log = logging.getLogger("penstock")


@dataclass
class Found:
    """How the files of a store differ from the record of synced files."""

    record: Record | None
    lost: list[str] = field(default_factory=list)  # sentences on synced files that are missing or changed
    aside: list[str] = field(default_factory=list)  # files to be set aside: none is recorded as synced
    torn: list[str] = field(default_factory=list)  # those of `aside` that are the end of the log
    synced: Extent | None = None  # the recorded part of the log


class Folder(Place):
    """The files of a store in a folder."""

    path = _DB  # of the database, in the object store

    def __init__(self, folder: str, sync: str) -> None:
        self.folder = os.path.abspath(folder)
        self.what = f"the store {self.folder!r}"
        self.subfolder = os.path.join(self.folder, SUBFOLDER)
        self._sync = sync
        self._disk = SystemDisk()
        self._db = os.path.join(self.folder, _DB)
        self._wal = os.path.join(self._db, "wal")
        self._objects = os.path.join(self.folder, "objects")
        self._staged = os.path.join(self.subfolder, STAGED)
        self.files = 0  # the number of the last synced file of the log
        self._extent: Extent | None = None  # the synced part of the log; None: nothing is recorded
        self._marked: Extent | None = None  # the part that a file name in db/wal records
        self._lock: StoreLock = StoreLock(os.path.join(self.subfolder, "lock"), self.what)

    # Opening

    def lock(self) -> None:
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

    def open(self, timeout: float) -> Database:
        self._check_descriptors()
        store = self.object_store()
        found = self.compare()
        if found.lost:
            raise StoreCorrupt(
                f"{self.what} has lost synced files, and nothing was changed: {in_words(found.lost)}: {RESTORE}"
            )
        self._set_aside(found.aside)
        if found.torn:
            _log.warning(
                "%s: the end of the log was torn, and was moved to %s: %s",
                self.what, os.path.join(SUBFOLDER, ASIDE), ", ".join(map(os.path.basename, found.torn)),
            )  # fmt: skip
        self._sync_all()
        try:
            database = Database(store, _DB, _SETTINGS, self.what, timeout)
        except Fenced as error:  # no other writer can exist, as the lock is ours
            raise StoreCorrupt(
                f"{self.what} is damaged: its manifest names a writer that never existed"
            ) from error
        self._extent = self._marked = found.synced
        self.files = max([number for number, _ in numbered(self._wal)], default=0)
        self._remember()
        return database

    def _check_descriptors(self) -> None:
        with ExitStack() as opened:
            for _ in range(_SPARE):
                opened.callback(os.close, os.open(self.folder, os.O_RDONLY))

    def object_store(self) -> Any:
        """The folder as SlateDB's object store."""
        ffi = load()
        builder = ffi.ObjectStoreBuilder(ffi.ObjectStoreType.LOCAL)
        builder.with_config("local_path", self.folder)
        return builder.build()

    def synced(self) -> Record | None:
        """The record of synced files; None if there is none."""
        try:
            with open(os.path.join(self.subfolder, "synced"), "rb") as file:
                return Record.from_text(file.read())
        except FileNotFoundError:
            return None  # nothing was ever acknowledged, or another program made the database
        except ValueError as error:
            raise StoreCorrupt(
                f"{self.subfolder}/synced cannot be read ({error}): restore it from a backup, or remove it if the "
                "machine has not crashed since the store was last closed"
            ) from error

    def compare(self) -> Found:
        """Compare the files with the record of synced files, while no process writes; changes nothing."""
        found = Found(self.synced())
        newest = self._compare_manifests(found)
        log = sorted(numbered(self._wal))
        needed = self._compare_tables(found, newest, log)
        if found.record is None or found.record.log is None:
            self._look_at_log(found, needed.after, log)
        else:
            self._compare_log(found, found.record.log, log)
        for name in ("", "manifest", "wal", "compacted", "compactions", "gc"):
            folder = os.path.join(self._db, name)
            left = {each for each in names_in(folder) if "#" in each or name == "gc"}
            if found.synced is not None:
                left.discard(name_of(*found.synced))
            found.aside += [os.path.join(folder, each) for each in left]
        return found

    def _compare_manifests(self, found: Found) -> int:
        """Compare manifests and compactions; the number of the manifest with which the database opens."""
        record, opens_with = found.record, 0
        for kind in KINDS:
            files = dict(numbered(os.path.join(self._db, kind)))
            if record is None:
                later = [number for number, path in files.items() if os.path.getsize(path) == 0]
            else:
                later = [number for number in files if number > record.number(kind)]
                newest, sums = record.number(kind), dict(zip(KINDS, record.checksums or (), strict=False))
                if newest and newest not in files:
                    found.lost.append(f"db/{kind}/{newest:020}.{kind} is missing")
                elif newest and sums and checksum_of(files[newest]) != sums[kind]:
                    found.lost.append(f"db/{kind}/{newest:020}.{kind} has changed")
            found.aside += [files.pop(number) for number in sorted(later, reverse=True)]
            if kind == "manifest":
                opens_with = max(files, default=0)
        return opens_with

    def _compare_tables(self, found: Found, manifest: int, log: list[tuple[int, str]]) -> Needed:
        """Check that the manifest's tables exist, each with its length; what the manifest needs."""
        folder = os.path.join(self._db, "compacted")
        sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names_in(folder)}
        if found.lost:
            return Needed()
        if manifest:
            needed = self._needed(manifest)
            found.lost += needed.lost(sizes)
            return needed
        if any(sizes.values()) or any(os.path.getsize(path) for _, path in log):
            found.lost.append("db/manifest has no manifest")
        return Needed()

    def _needed(self, manifest: int) -> Needed:
        return read_manifest(self.object_store(), _DB, manifest, self.what, _SECONDS)

    def _compare_log(self, found: Found, recorded: int, log: list[tuple[int, str]]) -> None:
        """With a record of the log: recorded files must be intact; later ones were never acknowledged."""
        marks = [extent for name in os.listdir(self._wal) if (extent := Extent.parse(name)) is not None]
        found.synced = synced = max(marks, key=lambda extent: extent.last, default=None)
        if synced is None or synced.last < recorded:
            found.lost.append(f"db/wal/synced#..., the record of the log up to {recorded:020}.sst, is missing")
            return
        numbers = {number for number, _ in log}
        missing = [number for number in range(synced.after + 1, synced.last + 1) if number not in numbers]
        found.lost += [f"db/wal/{number:020}.sst is missing" for number in missing]
        if not missing and Extent(synced.after, synced.after).up_to(synced.last, self._wal) != synced:
            files = [(number, path) for number, path in log if synced.after < number <= synced.last]
            damaged = self._damaged(files)
            found.lost += [f"db/wal/{number:020}.sst is damaged" for number in damaged] or [
                f"a file of db/wal from {files[0][0]:020}.sst to {files[-1][0]:020}.sst has changed"
            ]
        rest = [(number, path) for number, path in log if number > synced.last]
        whole = 0
        while whole < len(rest) and rest[whole][0] == synced.last + 1 + whole and not self._damaged([rest[whole]]):
            whole += 1
        found.torn = [path for _, path in reversed(rest[whole:])]
        found.aside += found.torn

    def _look_at_log(self, found: Found, after: int, log: list[tuple[int, str]]) -> None:
        """Without a record of the log: torn files at its end may never have been acknowledged."""
        if found.lost:
            return
        log = [(number, path) for number, path in log if number > after]
        numbers = {number for number, _ in log}
        missing = [number for number in range(after + 1, max(numbers, default=0)) if number not in numbers]
        damaged = self._damaged(log)
        first = log[-_UNRECORDED:][0][0] if log else 0
        found.lost += [f"db/wal/{number:020}.sst is missing" for number in missing if number < first]
        found.lost += [f"db/wal/{number:020}.sst is damaged" for number in damaged if number < first]
        if (missing or damaged) and not found.lost:
            end = min(missing + damaged)
            found.torn = [path for number, path in reversed(log) if number >= end]
            found.aside += found.torn

    def _damaged(self, files: list[tuple[int, str]]) -> list[int]:
        """The torn files among these of the log. An empty one is intact: a writer's first, which fences others."""
        store = self.object_store()
        return [number for number, path in files if os.path.getsize(path) and not _is_whole(self, store, number)]

    def _set_aside(self, paths: list[str]) -> None:
        """Move files to aside/TIME, where people can find them for a week."""
        folder = os.path.join(self.subfolder, ASIDE, f"{SystemClock().now()}")
        for path in paths:
            target = os.path.join(folder, os.path.relpath(path, self.folder))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(path, target)

    # At work

    def make_durable(self) -> None:
        synced = self._sync != "never"
        for number in range(self.files + 1, sys.maxsize):
            path = os.path.join(self._wal, f"{number:020}.sst")
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                break
            try:
                if synced:
                    os.fsync(descriptor)
                if self._extent is not None:
                    self._extent = self._extent.and_next(descriptor)
            finally:
                os.close(descriptor)
            self.files = number
        if synced:
            self._mark()

    def _mark(self) -> None:
        """Record the synced part of the log in a file name, and sync the log's folder, with it the record."""
        if self._extent is not None and self._extent != self._marked:
            target = os.path.join(self._wal, name_of(*self._extent))
            try:
                if self._marked is None:
                    os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
                else:
                    os.rename(os.path.join(self._wal, name_of(*self._marked)), target)
            except OSError as error:
                raise self._full(error) from error
            self._marked = self._extent
        self._disk.sync_folder(self._wal)

    def _full(self, error: OSError) -> OSError:
        """The error for the caller: if the disk is full, StoreUnreachable, as the last record still holds."""
        return StoreUnreachable(f"no space left in {self.what}: free some") if is_full(error) else error

    def collect(self, database: Database) -> None:
        database.flush_tables()  # the latest rows may be in the log only
        self._sync_all()
        self._remember()
        database.collect_garbage(_MIN_AGE)
        aside = os.path.join(self.subfolder, ASIDE)
        for name in names_in(aside):
            if name.isdecimal() and int(name) < SystemClock().now() - WEEK:
                shutil.rmtree(os.path.join(aside, name), ignore_errors=True)

    def loaded(self) -> None:
        """Nothing to do: open() has written the record."""

    def closed(self) -> None:
        try:
            with suppress(StoreUnreachable):
                self._remember()
        except OSError as error:  # the last record still holds
            raise unavailable(error.filename or self.folder, error) from error

    def seal(self) -> None:
        """Record all files as synced, of a copy whose database was never open."""
        self.files = max([number for number, _ in numbered(self._wal)], default=0)
        self._remember()

    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def _remember(self) -> None:
        """Sync all files, and write the record of them."""
        files = {kind: max(numbered(os.path.join(self._db, kind)), default=(0, "")) for kind in KINDS}
        self._sync_all()
        record = Record(files["manifest"][0], files["compactions"][0])
        if self._sync == "never":
            self._extent = None
        else:
            after = self._needed(record.manifest).after
            if self._extent is None or self._extent.after != after:
                self._extent = Extent(after, after)
            self._extent = self._extent.up_to(self.files, self._wal)
            if self._marked is None:
                self._mark()  # before the record names it
            sums = [checksum_of(path) if path else 0 for _, path in files.values()]
            record = record._replace(checksums=sums, log=(self._marked or self._extent).last)
        path = os.path.join(self.subfolder, "synced")
        try:
            with suppress(FileNotFoundError):
                os.unlink(path + ".new")
            with open(path + ".new", "x") as file:  # a new file, never the target of a link
                file.write(record.to_text())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._full(error) from error
        os.replace(path + ".new", path)
        self._disk.sync_folder(self.subfolder)
        if self._extent is not None:
            self._mark()

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

    # Payloads and loads

    def put_object(self, name: str, data: bytes) -> None:
        self._write(os.path.join(self._objects, name), data, self._sync != "never")

    def get_object(self, name: str) -> bytes:
        path = os.path.join(self._objects, name)
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable(path, error) from error

    def delete_object(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._objects, name))

    def discard_objects(self, names: list[str]) -> None:
        self._set_aside([os.path.join(self._objects, name) for name in names])

    def list_objects(self) -> list[str]:
        return names_in(self._objects)

    def stage(self, load: str, name: str, frame: bytes) -> None:
        folder = os.path.join(self._staged, load)
        make_folder(self._disk, folder)
        self._write(os.path.join(folder, name), frame, sync=True)

    def staged(self, load: str, name: str) -> bytes:
        with open(os.path.join(self._staged, load, name), "rb") as file:
            return file.read()

    def has_load(self, load: str) -> bool:
        return os.path.isdir(os.path.join(self._staged, load))

    def remove_load(self, load: str) -> None:
        shutil.rmtree(os.path.join(self._staged, load), ignore_errors=True)

    def discard_load(self, load: str) -> None:
        self._set_aside([os.path.join(self._staged, load)])

    def list_loads(self) -> list[str]:
        return names_in(self._staged)

    def _write(self, path: str, data: bytes, sync: bool) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if sync:
            self._disk.sync_folder(os.path.dirname(path))


def _is_whole(place: Folder, store: Any, number: int) -> bool:
    """Whether the rows of a log file can be read; StoreUnreachable or OSError if the file cannot be."""
    checksum_of(
        log_file(os.path.join(place.folder, _DB, "wal"), number)
    )  # OSError: an unreadable file is not a torn one
    ffi = load()
    try:
        with told(ffi, place.what, _SECONDS, opening=True):
            iterator = blocking(ffi.SlateDbWalReader(_DB, store).iterator(number), _SECONDS)
            start = blocking(answer_of(ffi, "slatedbwaliterator_next", iterator, most=5), _SECONDS)
            return int.from_bytes(start[1:]) > 0 if start[0] else False  # no list, or one with its length first
    except StoreCorrupt:
        return False


def _find_syncfs() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_int
    return function


_syncfs = _find_syncfs()
