"""The backend of a journal store: a folder of Kestrel journals, one per queue, open in one process at a time."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.contract.names import DEFAULT
from penstock.contract.settings import Settings
from penstock.engine.backend import Engine
from penstock.engine.commits import stopped
from penstock.engine.loads import OpenLoads
from penstock.errors import (
    DiskFull,
    NotSupported,
    QueueNotFound,
    StoreClosed,
    StoreCorrupt,
    StoreUnavailable,
)
from penstock.rules.ledger import Ledger
from penstock.stores.journal import pins, staging
from penstock.stores.journal.catalog import FOLDER, LOST, PUT_BACK, Catalog, Entry, queue_of
from penstock.stores.journal.files import JournalFiles, Listing, SharedNames, journals
from penstock.stores.journal.follow import JournalStreams
from penstock.stores.journal.format import Dialect, check_dialect
from penstock.stores.journal.loads import JournalDepot, Load, Loads
from penstock.stores.journal.reading import close_segments, is_ours, open_segments
from penstock.stores.journal.recovery import Journal, Recovery
from penstock.stores.journal.reservation import Ballast
from penstock.stores.journal.storage import JournalStorage, Shared
from penstock.stores.journal.strays import check_folder, find_strays, is_journal, warn
from penstock.stores.journal.upkeep import Upkeep
from penstock.system import processes
from penstock.system.clock import Alarm, Clock, ElapsedClock, SystemClock
from penstock.system.files import Disk, SystemDisk, is_full, unavailable
from penstock.system.threads import Lock, Threads

SEGMENT_SIZE = 64 << 20
_log = logging.getLogger("penstock")


class JournalBackend(Engine):
    """An engine whose queues are stored in the journals of one folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        clock: Clock,
        sync: str,
        dialect: Dialect,
        disk: Disk,
        threads: Threads | None,
        segment_size: int,
        locked: Callable[[], None],
    ) -> None:
        super().__init__(clock, threads)
        self.folder = self._folder = os.fspath(folder)
        self._disk = disk
        self._names = SharedNames(self._folder, disk, self._threads.lock())
        self._catalog = Catalog(self._folder, disk, self._threads.lock())
        ballast = Ballast(disk, self._catalog.ballast, self._threads.lock())
        elapsed = ElapsedClock(self._clock)
        self._shared = Shared(
            self._clock, elapsed, Alarm(elapsed), self._threads, sync, dialect, segment_size, ballast, self._failed
        )
        self._journals: dict[str, Journal] = {}
        self._taking_in = self._threads.lock()
        self._left = False  # whether the folder was closed, or left to the parent process
        self._upkeep: dict[str, Upkeep] = {}
        self._failure: BaseException | None = None
        create = partial(self.create, of_load=True)
        self._loads = Loads(self._catalog, disk, self.find, self._upkeep, self.check_new, create, segment_size)
        depot = JournalDepot(self.find, self.check_new, self.load, self._catalog, disk, self._shared.ballast)
        self._uploads = OpenLoads(depot, self._clock, self._alarm)
        self._streams = JournalStreams(self._folder, self._clock, self.find, self._upkeep)
        check_folder(self._folder, disk, dialect)
        self._catalog.open()
        try:
            locked()
            pins.sweep(self._folder, disk)
            self._load()
        except BaseException:
            self._catalog.close()
            raise
        processes.watch_forks(self)

    # Opening

    def _load(self) -> None:
        entries, clean = self._catalog.entries(), self._catalog.clean()
        for path in self._catalog.lost(entries, clean):
            raise StoreCorrupt(f"{path!r} {LOST}. Nothing was changed. {PUT_BACK}")
        for file in [file for file, entry in entries.items() if entry.deleted]:
            self._remove(file)  # a crash interrupted the deletion
            del entries[file]
        self._first = self._catalog.first()
        taken = {entry.name for entry in entries.values()}
        listing = Listing(self._folder, self._disk)
        strangers = self._strangers(listing, entries)
        recovery = Recovery(self._catalog, self._disk, self._clock, self._shared.dialect)
        for file in [*entries, *strangers]:
            known = entries.get(file)
            name = queue_of(file, taken) if known is None else known.name
            taken.add(name)
            journal = recovery.recover(file, known, name, partial(listing.of, file), clean.get(file))
            self._clock.at_least(journal.at, os.path.join(self._folder, file))
            self._journals[name] = journal
            if journal.entry is None:
                journal.entry = Entry(name, starts=journal.starts)
                self._catalog.keep(file, journal.entry)
            self._keep_settings(journal)
        self._catalog.remove("adopting")
        self._catalog.remove("clean")  # from here on the store may change
        if DEFAULT not in self._journals:
            file = self._catalog.new_file(DEFAULT, self._taken())
            self._journals[DEFAULT] = Journal(file, None, Ledger(DEFAULT, Settings(), self._first))
        for journal in self._journals.values():
            self._add(journal.ledger)
        self._loads.recover(self._journals)
        self.moves.finish()

    def _strangers(self, listing: Listing, entries: dict[str, Entry]) -> list[str]:
        """Journals of other programs, to be adopted; files that only have a journal's name are left alone."""
        strays = find_strays(self._folder, listing.names, entries, self._disk, self._shared.dialect)
        for name in strays.values():
            warn(self._folder, name)
        for name in set(self._disk.listdir(self._folder)) - set(listing.names):
            if name in entries:
                raise StoreUnavailable(
                    f"{os.path.join(self._folder, name)!r} is no file, but a folder, a link, a pipe or a socket, "
                    f"in the place of the journal of queue {entries[name].name!r}: move it elsewhere, and put the "
                    "journal itself there"
                )
            if name != FOLDER and journals([name]):
                warn(self._folder, name)
        strangers = [file for file in journals(listing.names) if file not in entries and file not in strays]
        adopting = set(self._catalog.adopting())
        if new := [file for file in strangers if file not in adopting and not self._is_ours(file)]:
            self._catalog.keep_adopting(sorted([*new, *adopting]))
        return strangers

    def _is_ours(self, file: str) -> bool:
        """Whether Penstock wrote a journal that has no `queues/FILE`."""
        segments = open_segments(self._folder, file, self._disk)
        try:
            return any(map(is_ours, segments))
        finally:
            close_segments(segments)

    def _taken(self) -> list[str]:
        """Names that a new journal may not have."""
        there = [name.partition(".")[0] for name in self._disk.listdir(self._folder)]
        return [*there, *[journal.file for journal in self._journals.values()]]

    # Packing

    def pack(self, queue: str) -> int:
        """Pack a queue's journal; the bytes freed."""
        with self.packing(queue) as upkeep:
            return upkeep.pack()

    def shrinks(self, queue: str) -> bool:
        return self._upkeep_of(queue).shrinks()

    def shrink(self, queue: str) -> int:
        """Pack a queue's journal if it is damaged or would become smaller; the bytes freed."""
        with self.packing(queue) as upkeep:
            if upkeep.is_damaged():
                return upkeep.pack()
            return upkeep.pack(smaller=True) if upkeep.shrinks() else 0

    @contextmanager
    def packing(self, queue: str) -> Iterator[Upkeep]:
        """The upkeep of a queue, locked: no other thread packs or deletes the queue."""
        with self._held(queue) as upkeep:
            self.find(queue).counts()  # ends delays, leases and retentions that are over
            yield upkeep

    @contextmanager
    def _held(self, queue: str) -> Iterator[Upkeep]:
        """The upkeep of a queue, locked. The queue may be deleted and made again while the lock is waited for."""
        while True:
            upkeep = self._upkeep_of(queue)
            with upkeep.packing:
                if self._upkeep.get(queue) is upkeep:
                    yield upkeep
                    return

    # Loads and streams

    def owner(self) -> None:
        """Slate stores have one, see owner_operations.py."""
        raise NotSupported(f"the store {self.folder!r} is not a slate store")

    def take_in(self, load: Load) -> bool:
        """Commit a load; a second call does nothing, because the staged folder goes with the first."""
        with self._taking_in:
            if not self._disk.exists(staging.folder_of(self.folder, load.name)):
                return True
            return self.load(load)

    def load(self, load: Load) -> bool:
        """Commit a load, all of it or nothing; False: its run was committed before."""
        self._check_dialect()
        try:
            return self._loads.take_in(load)
        except OSError as error:  # whether the load is committed shows when the store is opened again
            self._failed(error)
            raise stopped(error) from error

    def uploads(self) -> OpenLoads:
        self._check_dialect()
        return self._uploads

    def streams(self) -> JournalStreams:
        return self._streams

    def tend(self) -> None:
        super().tend()
        self._streams.tend()

    def _check_dialect(self) -> None:
        staging.check_dialect(self._shared.dialect)

    def keep_indexes(self) -> None:
        """Save indexes right after recovery, if it replayed much, so that the next opening replays less."""
        for upkeep in list(self._upkeep.values()):
            upkeep.keep_index_early()

    def stored(self, queue: str) -> int:
        """Bytes of a queue's journal."""
        self.find(queue)
        return self._upkeep[queue].storage.stored

    def _upkeep_of(self, queue: str) -> Upkeep:
        upkeep = self._upkeep.get(queue)
        if upkeep is None:
            self.find(queue)  # raises QueueNotFound
            raise QueueNotFound(f"queue {queue!r} is just being made or deleted: try again")
        return upkeep

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        settings = super().update(queue, changes)
        upkeep = self._upkeep.get(queue)
        if upkeep is not None:
            with upkeep.keeping:
                self._keep_settings(upkeep.journal)
        return settings

    def _keep_settings(self, journal: Journal) -> None:
        """Write the settings that a journal ends with, unless that is known or the queue is gone."""
        entry = journal.entry
        if entry is None or entry.deleted or entry.settings == journal.ledger.settings:
            return
        entry = entry.updated(journal.ledger.settings)
        try:
            self._catalog.keep(journal.file, entry)
        except OSError as error:
            if not is_full(error):
                self._failed(error)
                raise stopped(error) from error
            _log.warning(
                "no space left for the new settings of queue %r in %r, which its journal has: opening "
                "the store will try again",
                entry.name,
                self._catalog.settings_of(journal.file),
            )
            return
        journal.entry = entry

    def delete(self, queue: str) -> None:
        with self._held(queue):
            try:
                super().delete(queue)
            except OSError as error:  # half deleted: opening finishes that
                self._failed(error)
                raise stopped(error) from error

    def _new_storage(self, ledger: Ledger, lock: Lock) -> JournalStorage:
        journal = self._journals[ledger.name]
        journal.ledger = ledger

        def begin(latest: int) -> None:
            with upkeep.keeping:
                entry = journal.entry or Entry(ledger.name, ledger.state.base, 1, [journal.next_group])
                if journal.entry is None or latest > entry.latest:
                    entry = replace(entry, latest=max(latest, entry.latest))
                    self._catalog.keep(journal.file, entry)
                    journal.entry = entry

        files = JournalFiles(self._folder, journal.file, self._disk, self._names)
        storage = JournalStorage(
            files, ledger.state, lock, self._shared, journal.segments, journal.next_group, journal.at, begin
        )
        journal.segments = []  # the storage owns the files now, and closes those that it replaces
        upkeep = Upkeep(
            journal,
            storage,
            self._catalog,
            self._lock,
            self._is_open,
            lambda: self.pack(ledger.name),
        )
        upkeep.before_packing = lambda: self._streams.before_packing(ledger.name)
        self._upkeep[ledger.name] = upkeep
        storage.reservation.inherit()
        return storage

    def _is_open(self) -> bool:
        return self._refusal is None

    def create(self, queue: str, settings: Settings, of_load: bool = False) -> None:
        try:
            super().create(queue, settings, of_load)
        except OSError as error:
            self._failed(error)
            raise stopped(error) from error

    def _creating(self, queue: str, settings: Settings, first: int) -> None:
        file = self._catalog.new_file(queue, self._taken())
        entry = Entry(queue, settings, first)
        try:
            self._catalog.keep(file, entry)
        except OSError as error:
            if is_full(error) and not self._disk.exists(self._catalog.settings_of(file)):
                raise DiskFull(f"no space left for queue {queue!r} in {self._folder!r}: free some") from error
            raise  # whether the queue exists shows when the store is opened again
        self._journals[queue] = Journal(file, entry, Ledger(queue, settings, first))

    def _deleting(self, queue: str, first: int) -> None:
        journal, upkeep = self._journals[queue], self._upkeep[queue]
        self._catalog.keep_first(first)
        with upkeep.keeping:
            entry = journal.entry or Entry(queue)
            journal.entry = replace(entry, deleted=True)
            self._catalog.keep(journal.file, journal.entry)
        upkeep.storage.retire()
        self._remove(journal.file)
        del self._upkeep[queue], self._journals[queue]

    def _remove(self, file: str) -> None:
        names = [
            name
            for name in self._disk.listfiles(self._folder)
            if name == file or is_journal(os.path.join(self._folder, name), self._disk, self._shared.dialect)
        ]
        JournalFiles(self._folder, file, self._disk, self._names).remove(names)
        self._catalog.forget(file)

    # Closing

    def close(self) -> None:
        if self._left:
            return
        super().close()
        self._uploads.close()
        self._streams.close()
        try:
            self._wait_for_packing()
            if self._failure is None:
                hints = not self._shared.ballast.short  # else the space left is for settling messages
                reached = {}
                for upkeep in self._upkeep.values():
                    if upkeep.close(index=hints):
                        reached[upkeep.journal.file] = upkeep.storage.next_group
                if hints:
                    with suppress(OSError):
                        self._catalog.keep_clean(reached)
        finally:
            self._wait_for_packing()  # again if the first wait was interrupted: the lock is released after it
            for upkeep in self._upkeep.values():
                upkeep.storage.let_go()
            self._shared.ballast.close()
            self._catalog.close()
            self._left = True

    def forked(self) -> None:
        """In a forked child: leave the store to the parent."""
        if not self._left:
            self._left = True
            self._refusal = _forked
            self._catalog.forked()
            _parents.append(self)

    def _wait_for_packing(self) -> None:
        for upkeep in list(self._upkeep.values()):
            upkeep.wait()

    def _failed(self, error: BaseException) -> None:
        """Stop the whole store: the last writes may be lost."""
        if self._failure is not None:
            return
        self._failure = error
        self._refusal = lambda: stopped(error)
        _log.error("%s", str(stopped(error)))

        def stop() -> None:
            for queue in list(self._queues.values()):
                queue.stop(lambda: stopped(error))

        # On a thread of its own, because the one that failed may hold a queue's lock.
        with suppress(RuntimeError):  # no thread can start: waiting consumers wait until their timeout
            self._threads.start("penstock-stop", stop)


def open_journal(
    folder: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    sync: str = "always",
    dialect: Dialect = "doc",
    disk: Disk | None = None,
    threads: Threads | None = None,
    segment_size: int = SEGMENT_SIZE,
    locked: Callable[[], None] = lambda: None,
) -> JournalBackend:
    """Open the journal store in a folder, which is made if missing; `locked` is called once the lock is taken."""
    check_dialect(dialect)
    try:
        return JournalBackend(
            folder, clock or SystemClock(), sync, dialect, disk or SystemDisk(), threads, segment_size, locked
        )
    except OSError as error:
        raise unavailable(error.filename or folder, error) from error


_parents: list[JournalBackend] = []  # backends of the parent process: nothing of them may be freed here


def _forked() -> StoreClosed:
    return StoreClosed(
        "this process was forked from the one that has the store open, and does not share it: open it with "
        "share=True there, or here once that one has closed it"
    )


__all__ = ["FOLDER", "JournalBackend", "open_journal"]
