"""Loads: many messages, staged beside the journals of a store, that take effect all at once.

1. Who loads stages groups of messages in files (staging.py), and syncs them.
2. The store checks what the rules of each queue ask, and reserves space and places.
3. The manifest is written: from here on the load counts. A crash after it is made good when the store is opened.
4. Each queue takes its messages in. Its journal then shows the name of the load, so that none arrive twice.
5. The manifest goes; that of a load with a name (a run of a job) is kept, so that the run takes effect once.
"""

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.contract import names
from penstock.contract.landing import Landing
from penstock.contract.settings import Settings
from penstock.engine.backend import check_start
from penstock.engine.loads import began_at
from penstock.engine.queue import LiveQueue
from penstock.errors import DiskFull, QueueExists, QueueNotFound, StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.stores.journal import arrival, landings, staging
from penstock.stores.journal.arrival import StagedFile
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.checksum import crc32
from penstock.stores.journal.recovery import Journal
from penstock.stores.journal.staging import MANIFEST, Piece
from penstock.stores.journal.storage import JournalStorage
from penstock.stores.journal.upkeep import Upkeep
from penstock.system.files import Disk, File, is_full, replace_file

_WHOLE = 4 << 20  # bytes of a queue's messages from which on they come as files, if a segment is not smaller
_COPY = 4 << 20
_LONGEST = 200  # bytes of a file name
_OWN = "queue-"  # how the names of files begin that a queue does not share


@dataclass
class Load:
    """A load: what was staged, and the queues that it makes if they are not there."""

    name: str
    pieces: list[Piece]
    queues: dict[str, Settings] = field(default_factory=dict)
    run: str | None = None  # takes effect once under this name
    sink: Landing | None = None  # or once as this batch of a stream

    def by_queue(self) -> dict[str, list[Piece]]:
        """The pieces of each queue, in the order in which they were staged."""
        found: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            found.setdefault(piece.queue, []).append(piece)
        return found


class Intake:
    """Takes loads into the queues of one store."""

    def __init__(
        self,
        catalog: Catalog,
        disk: Disk,
        find: Callable[[str], LiveQueue],
        upkeep: dict[str, Upkeep],
        create: Callable[[str, Settings], None],
        segment_size: int,
    ) -> None:
        self._store = catalog.folder
        self._catalog = catalog
        self._disk = disk
        self._find = find
        self._upkeep = upkeep
        self._create = create
        self._whole = min(_WHOLE, segment_size)
        self._landing = threading.Lock()  # one batch of a stream after the other

    def begin(self) -> str:
        """A place for a load that this process stages."""
        load = staging.new_name(os.getpid())
        make_folder(self._disk, self._store, load)
        return load

    def take_in(self, load: Load) -> bool:
        """Let a load take effect, all of it or nothing; False: its run has taken effect before."""
        folder = staging.folder_of(self._store, load.name)
        with self._landing if load.sink is not None else nullcontext():
            return self._take_in(folder, load)

    def _take_in(self, folder: str, load: Load) -> bool:
        landed = load.sink is not None and landings.has_landed(self._disk, self._catalog, load.sink)
        if landed or has_run(self._disk, self._catalog, load.run):
            staging.remove_folder(self._disk, folder)
            return False
        for settings in load.queues.values():
            check_start(settings)
        with ExitStack() as done:
            for queue, pieces in sorted(load.by_queue().items()):
                self._expect(queue, pieces, load, done)
            load = self._begin_to_count(folder, load)
            try:
                self._finish(folder, load, {})
            except DiskFull as error:  # too late: opening has to finish it
                raise OSError(errno.ENOSPC, str(error)) from error
        return True

    def recover(self, journals: dict[str, Journal]) -> None:
        """Make good what a crash interrupted, and remove what nobody will finish."""
        for name in list(staging.staged_loads(self._disk, self._store)):
            folder = staging.folder_of(self._store, name)
            path = os.path.join(folder, MANIFEST)
            if self._disk.exists(path):
                load = _parse(path, self._disk)
                self._finish(folder, load, {queue: journal.loads for queue, journal in journals.items()})
            elif staging.is_abandoned(name):
                staging.remove_folder(self._disk, folder)

    # Before it counts

    def _begin_to_count(self, folder: str, load: Load) -> Load:
        """Write the manifest; if there is no space for it, everything is as it was before."""
        path = os.path.join(folder, MANIFEST)
        try:
            load = replace(load, pieces=self._own_files(folder, load))
            self._disk.sync_folder(folder)
            replace_file(self._disk, path, _text(load))
            self._disk.sync_folder(folder)
        except OSError as error:
            if not is_full(error) or self._disk.exists(path):
                raise
            for name in self._disk.listdir(folder):
                if name.startswith(_OWN):
                    self._disk.unlink(os.path.join(folder, name))
            raise DiskFull(f"no space left for a load in {self._store!r}, and nothing was changed") from error
        return load

    def _expect(self, queue: str, pieces: Sequence[Piece], load: Load, done: ExitStack) -> None:
        """Check the rules of a queue, and keep it from being deleted or packed until the load is there."""
        count = sum(piece.messages for piece in pieces)
        waiting = sum(piece.messages for piece in pieces if not piece.done)
        longest = max(piece.longest for piece in pieces)
        lowest, highest = min(piece.lowest for piece in pieces), max(piece.highest for piece in pieces)
        if queue in load.queues and queue not in self._upkeep:  # it will be made
            Ledger(queue, load.queues[queue]).expect(count, longest, lowest, highest, waiting, 0)
            return
        upkeep = self._upkeep.get(queue)
        live = self._find(queue)
        if upkeep is None:
            raise QueueNotFound(f"queue {queue!r} is just being made or deleted: try again")
        done.enter_context(upkeep.packing)
        storage, ledger = upkeep.storage, upkeep.journal.ledger
        size = sum(piece.length for piece in pieces)

        def expect(now: int) -> None:
            storage.reservation.expect(count, size if size < self._whole else 0)
            ledger.expect(count, longest, lowest, highest, waiting, now)

        live.run(expect)

        def expect_no_more() -> None:
            with storage.lock:
                ledger.expect_no_more(waiting)

        done.callback(expect_no_more)

    def _own_files(self, folder: str, load: Load) -> list[Piece]:
        """The pieces, with those of large queues in files that no other queue shares."""
        shared = {file for file, queues in _queues_of_files(load.pieces).items() if len(queues) > 1}
        kept: list[Piece] = []
        for pieces in load.by_queue().values():
            together = [piece for piece in pieces if piece.file in shared]
            if not (together and self._is_large(pieces)):
                kept += pieces
                continue
            copies = iter(self._copy(folder, f"{_OWN}{len(kept)}", together))
            kept += [next(copies) if piece.file in shared else piece for piece in pieces]
        return kept

    def _copy(self, folder: str, name: str, pieces: Sequence[Piece]) -> list[Piece]:
        copies = []
        with ExitStack() as opened:
            files = self._open_all(folder, pieces, opened)
            target = opened.enter_context(self._disk.open(os.path.join(folder, name), exclusive=True))
            end = 0
            for piece in pieces:
                for start in range(0, piece.length, _COPY):
                    size = min(_COPY, piece.length - start)
                    target.write(end + start, files[piece.file].read(piece.offset + start, size))
                copies.append(piece._replace(file=name, offset=end))
                end += piece.length
            target.sync()
        return copies

    # From when it counts

    def _finish(self, folder: str, load: Load, arrived: dict[str, set[str]]) -> None:
        """Take in what has not arrived, and forget the manifest."""
        for queue, settings in load.queues.items():
            if queue not in self._upkeep:
                with suppress(QueueExists):  # just now
                    self._create(queue, settings)
        for queue, pieces in load.by_queue().items():
            upkeep = self._upkeep.get(queue)
            if upkeep is not None:  # else it was deleted since
                with suppress(QueueNotFound):  # or is made by this load, and deleted just now
                    self._arrive(folder, load.name, queue, upkeep.storage, pieces, arrived.get(queue, set()))
        manifest = os.path.join(folder, MANIFEST)
        if load.sink is not None:
            landings.keep(self._disk, self._catalog, load.sink)
        if load.run is not None:
            _keep_run(self._disk, self._catalog, load.run, manifest)
        with suppress(FileNotFoundError):
            self._disk.unlink(manifest)
        self._disk.sync_folder(folder)
        staging.remove_folder(self._disk, folder)

    def _arrive(
        self,
        folder: str,
        load: str,
        queue: str,
        storage: JournalStorage,
        pieces: Sequence[Piece],
        arrived: set[str],
    ) -> None:
        live = self._find(queue)
        if load in arrived:
            return
        if not self._is_large(pieces):
            with ExitStack() as opened:
                files = self._open_all(folder, pieces, opened)
                staged = [(piece, files[piece.file]) for piece in pieces]
                _, written = live.run(lambda now: arrival.append(storage, load, staged, now))
            live.commit(written)
        else:
            whole = [
                StagedFile(folder, file, [piece for piece in pieces if piece.file == file])
                for file in dict.fromkeys(piece.file for piece in pieces)
            ]
            missing = [each for each in whole if not self._has_arrived(each, arrived)]

            def install() -> None:
                live.run(lambda now: arrival.install(storage, missing, now))

            storage.commits.lead(install)

    def _has_arrived(self, staged: StagedFile, arrived: set[str]) -> bool:
        """Whether a file has its new name; if the machine stopped just then, it may have the old one too."""
        path = os.path.join(staged.folder, staged.name)
        if not self._disk.exists(path):
            return True
        with self._disk.open(path) as file:
            return staging.number_group(staged.pieces[0], file, 1, 0, 0).load in arrived

    def _is_large(self, pieces: Iterable[Piece]) -> bool:
        return sum(piece.length for piece in pieces) >= self._whole

    def _open_all(self, folder: str, pieces: Iterable[Piece], opened: ExitStack) -> dict[str, File]:
        names = dict.fromkeys(piece.file for piece in pieces)
        return {name: opened.enter_context(self._disk.open(os.path.join(folder, name))) for name in names}


def make_folder(disk: Disk, store: str, load: str) -> str:
    """Make the folder for a load, durably."""
    folder = staging.folder_of(store, load)
    above = os.path.dirname(folder)
    if not disk.exists(above):
        with suppress(FileExistsError):
            disk.mkdir(above)
    disk.sync_folder(os.path.dirname(above))
    disk.mkdir(folder)
    disk.sync_folder(above)
    return folder


def has_run(disk: Disk, catalog: Catalog, run: str | None) -> bool:
    """Whether a run of that name has taken effect."""
    return run is not None and disk.exists(_run_path(catalog, run))


def read_run(disk: Disk, catalog: Catalog, run: str) -> Load | None:
    """What a run of that name has brought, if it has taken effect."""
    path = _run_path(catalog, run)
    return _parse(path, disk) if disk.exists(path) else None


def forget_runs(disk: Disk, catalog: Catalog, before: int) -> None:
    """Forget loads of the store's owner that were begun before that time, and given no other name."""
    folder = os.path.join(catalog.path, "loads")
    for file in disk.listdir(folder) if disk.exists(folder) else []:
        began = began_at(file.replace("%2E", "."))
        if began is not None and began < before:
            with suppress(FileNotFoundError):
                disk.unlink(os.path.join(folder, file))


def _run_path(catalog: Catalog, run: str) -> str:
    file = names.file_name(run)
    if len(file.encode()) > _LONGEST:  # no other name has a % that no two digits follow
        file = f"{file[:30]}%_{hashlib.sha256(run.encode()).hexdigest()}"
    return os.path.join(catalog.path, "loads", file)


def _keep_run(disk: Disk, catalog: Catalog, run: str, manifest: str) -> None:
    path = _run_path(catalog, run)
    above = os.path.dirname(path)
    if not disk.exists(above):
        disk.mkdir(above)
        disk.sync_folder(catalog.path)
    if disk.exists(manifest):
        disk.rename(manifest, path)
    disk.sync_folder(above)


def _queues_of_files(pieces: Iterable[Piece]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for piece in pieces:
        found.setdefault(piece.file, set()).add(piece.queue)
    return found


def _text(load: Load) -> bytes:
    line = json.dumps(asdict(load)).encode()
    return line + b"\n" + _check(line)


def _check(line: bytes) -> bytes:
    return f"crc32 {crc32(line):08x}\n".encode()


def _parse(path: str, disk: Disk) -> Load:
    with disk.open(path) as file:
        line, _, check = file.read(0, file.size()).partition(b"\n")
    if check != _check(line):
        raise StoreCorrupt(f"{path!r} is damaged: its checksum is wrong. Put back a copy of this file")
    content: dict[str, Any] = json.loads(line)
    pieces = [Piece(*piece) for piece in content["pieces"]]
    queues = {queue: Settings(**settings) for queue, settings in content["queues"].items()}
    sink = content.get("sink")
    return Load(content["name"], pieces, queues, content["run"], None if sink is None else Landing(*sink))
