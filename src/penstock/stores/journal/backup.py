"""The backup of a journal store, made without its lock while processes use it.

1. A snapshot of every queue is taken, with its files pinned so that packing cannot remove them. If a load was
   committed meanwhile, this is repeated: the copy has a load with all of its queues, or with none.
2. The files are copied to DEST.partial, the latest of each journal up to its last whole group, and synced.
3. The copy is read from its first byte and compared with the snapshots.
4. DEST.partial is renamed to DEST. A failure before that leaves no DEST.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.contract.kinds import kind_of, split
from penstock.errors import NotSupported, PenstockError, StoreCorrupt, StoreLocked
from penstock.stores.journal.catalog import FOLDER, Catalog
from penstock.stores.journal.kind import folder_of
from penstock.stores.journal.loads import RUNS, SINKS
from penstock.stores.journal.pins import Pins, sweep
from penstock.stores.journal.reading import FoundJournal, close_segments, open_segments, read
from penstock.stores.journal.snapshot import QueueSnapshot, StoreSnapshot
from penstock.stores.journal.staging import manifests
from penstock.system.clock import Clock, SystemClock, rest
from penstock.system.copies import Destination
from penstock.system.files import Disk, ReadingDisk, SystemDisk, replace_file

_CHUNK = 4 << 20
_TRIES = 20
_PAUSE = 0.5  # seconds between two tries while loads are committed

Progress = Callable[[int, int], object]  # bytes copied, of how many


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A queue in the copy."""

    queue: str
    files: int
    bytes: int
    counts: dict[str, int]  # messages by state


def backup(
    store: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    verify: bool = True,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> list[BackedUp]:
    """Copy a journal store to DEST, an empty or missing folder; the queues in the copy.

    Other processes may use the store meanwhile. The copy has everything that was acknowledged before the call and,
    of each queue, all later changes up to one moment. DEST is a store like any other. Without `verify` the copy is
    not read again.
    """
    url = os.fspath(store)
    if split(url)[0] != "journal":
        raise NotSupported(kind_of(url).how_to_copy(url))
    return _Backup(folder_of(url), os.fspath(dest), clock or SystemClock(), progress).run(verify)


class _Backup:
    """One copy."""

    def __init__(self, folder: str, dest: str, clock: Clock, progress: Progress | None) -> None:
        self._source = folder
        self._to = Destination(folder, dest)
        self._partial = self._to.partial
        self._clock = clock
        self._progress = progress or (lambda copied, total: None)
        self._disk: Disk = SystemDisk()
        self._reading = ReadingDisk()
        self._catalog = Catalog(self._partial, self._disk)
        self._copied = self._total = 0

    def run(self, verify: bool) -> list[BackedUp]:
        self._to.check()
        store = StoreSnapshot(self._source, self._reading, self._clock.now())
        for queue in store.settings():
            store.check_ours(queue)  # raises before anything is made, also in the source
        self._begin()
        try:
            sweep(self._source, self._disk)
            pins = Pins(self._source, os.getpid())
            try:
                views, loads, sinks = self._look(pins)
                self._total = sum(self._size(view, each.path) for view in views.values() for each in view.files)
                made = [self._copy(name, view) for name, view in views.items()]
                self._copy_rest(views, loads, sinks)
            finally:
                pins.drop()
            if verify:
                for name, view in views.items():
                    self._verify(name, view)
            self._disk.sync_folder(os.path.join(self._catalog.path, "queues"))
            self._to.finish()
        except BaseException:
            self._catalog.close()
            self._to.abandon()
            raise
        self._catalog.close()
        return made

    def _begin(self) -> None:
        try:
            self._catalog.open()  # locks it, so that no second backup is made there
        except StoreLocked as error:
            raise StoreLocked(
                f"another backup to {self._to.path!r} is being made: wait until it is done"
            ) from error
        self._to.begin()
        self._disk.mkdir(os.path.join(self._catalog.path, "queues"))

    # Snapshots

    def _look(self, pins: Pins) -> tuple[dict[str, QueueSnapshot], list[str], dict[str, bytes]]:
        """Snapshots of all queues, and the loads and batches of sinks that were committed before all of them."""
        for _ in range(_TRIES):
            before, sinks = self._loads(), self._sinks()
            if not self._is_loading():
                store = StoreSnapshot(self._source, self._reading, self._clock.now())
                found = {
                    name: view
                    for name in store.settings()
                    if (view := store.view(name, lambda path: self._reading.open(pins.pin(path)), pins.unpin))
                }
                if not self._is_loading() and self._loads() == before and self._sinks() == sinks:
                    return found, before, sinks
                for view in found.values():
                    for each in view.files:
                        pins.unpin(each.path)
            rest(_PAUSE)
        raise PenstockError(
            f"many messages are just being loaded into the store {self._source!r}, or were when that was "
            "interrupted: try again, or open the store once with penstock.open(), which finishes it"
        )

    def _loads(self) -> list[str]:
        folder = os.path.join(self._source, FOLDER, RUNS)
        return sorted(self._disk.listdir(folder)) if self._disk.exists(folder) else []

    def _sinks(self) -> dict[str, bytes]:
        folder, found = os.path.join(self._source, FOLDER, SINKS), {}
        for name in sorted(self._disk.listdir(folder)) if self._disk.exists(folder) else []:
            with suppress(FileNotFoundError), self._reading.open(os.path.join(folder, name)) as file:
                found[name] = file.read(0, file.size())
        return found

    def _is_loading(self) -> bool:
        """Whether a committed load may not have arrived in all of its queues."""
        return any(manifests(self._disk, self._source))

    # Copying

    def _size(self, view: QueueSnapshot, path: str) -> int:
        return view.end if path == view.files[-1].path else self._disk.status(path).size

    def _copy(self, name: str, view: QueueSnapshot) -> BackedUp:
        size = 0
        for each in view.files:
            target = os.path.join(self._partial, each.name)
            size += self._copy_file(each.path, target, self._size(view, each.path))
        if view.entry is not None:
            self._catalog.keep(view.journal, view.entry)
        return BackedUp(name, len(view.files), size, view.contents.counts())

    def _copy_file(self, source: str, target: str, size: int) -> int:
        copied = 0
        with (
            self._reading.open(source) as old,
            self._disk.open(target, exclusive=True, mode=old.status().mode) as new,
        ):
            # A file may have been cut off since the snapshot; _verify() checks that nothing is missing.
            while data := old.read(copied, min(_CHUNK, size - copied)):
                new.write(copied, data)
                copied += len(data)
                self._copied += len(data)
                self._progress(self._copied, self._total)
            new.sync()
        return copied

    def _copy_rest(self, views: dict[str, QueueSnapshot], loads: list[str], sinks: dict[str, bytes]) -> None:
        """Copy the other files of the catalog: sinks, loads, `store` and `clean`."""
        if sinks:
            folder = self._catalog.make(SINKS)
            for name, content in sinks.items():
                replace_file(self._disk, os.path.join(folder, name), content)
        if loads:
            folder = self._catalog.make(RUNS)
            for name in loads:
                with suppress(FileNotFoundError):  # removed meanwhile, because it is old
                    source = os.path.join(self._source, FOLDER, RUNS, name)
                    self._copy_file(source, os.path.join(folder, name), self._disk.status(source).size)
            self._disk.sync_folder(folder)
        self._catalog.keep_first(Catalog(self._source, self._reading).first())
        # As of a closed store: if the copy loses its end, opening it will report that.
        self._catalog.keep_clean({view.journal: view.next_group for view in views.values() if view.files})
        with self._disk.open(os.path.join(self._catalog.path, "clean")) as file:
            file.sync()

    def _verify(self, name: str, view: QueueSnapshot) -> None:
        segments = open_segments(self._partial, view.journal, self._reading)
        try:
            reading = read(FoundJournal(name, view.journal, view.entry, segments, view.next_group, "doc"))
        finally:
            close_segments(segments)
        why = None if reading.damage is None else reading.damage.why
        if why is None and reading.loader.next_group != view.next_group:
            why = f"it reaches group {reading.loader.next_group - 1} and not {view.next_group - 1}"
        if why is not None:
            raise StoreCorrupt(
                f"the copy of queue {name!r} is not whole: {why}. There is no backup; `penstock doctor` shows "
                "whether the store itself is damaged"
            )
