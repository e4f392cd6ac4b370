"""Loads: many messages, staged beside the journals of a store, that are committed all at once.

1. The sender stages groups of messages in files (staging.py), and syncs them.
2. The store checks the rules of each queue, and reserves space and places.
3. The manifest is written: this commits the load. After a crash recovery goes on with step 4.
4. Each queue gets its messages: few join the open group, many come as files of their own. Its journal then has the
   name of the load, so that no message arrives twice.
5. The manifest is removed. That of a named load (a run of a job) is kept, so that the run is committed once. Of a
   streaming sink the last batch is kept, so that a batch that Spark writes again is committed once:

    .penstock/loads/RUN     the manifest
    .penstock/sinks/SINK    a line of JSON (the sink, the query, the batch) and a line with its crc32
"""

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.contract import names
from penstock.contract.loads import Brought, SinkCommit, is_repeated
from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.engine.loads import Restored, StagedPart, Taken, began_at, full
from penstock.engine.queue import LiveQueue
from penstock.errors import DiskFull, QueueExists, QueueNotFound
from penstock.rules.ledger import Ledger
from penstock.rules.records import Put
from penstock.rules.state import State
from penstock.stores.journal import staging
from penstock.stores.journal.catalog import Catalog, read_line, write_line
from penstock.stores.journal.records import Recorded, encode_load, encode_put, encode_record
from penstock.stores.journal.recovery import Journal
from penstock.stores.journal.reservation import Ballast
from penstock.stores.journal.staging import MANIFEST, Part, Piece, bodies_of, number_group
from penstock.stores.journal.storage import JournalStorage
from penstock.stores.journal.upkeep import Upkeep
from penstock.system.files import Disk, File, is_full, remove_folder

if TYPE_CHECKING:
    from penstock.wire.frames import Staged
    from penstock.wire.restored import Columns


SINKS, RUNS = "sinks", "loads"
_WHOLE = 4 << 20  # bytes of a queue's messages from which on they come as files; a smaller segment size wins
_COPY = 4 << 20
_LONGEST = 200  # bytes of a file name
_OWN = "queue-"  # prefix of files with messages of one queue


def has_landed(disk: Disk, catalog: Catalog, landing: SinkCommit) -> bool:
    """Whether a batch was committed before; StreamMismatch if it is of another query, whose numbers start anew."""
    path = _path(catalog, SINKS, landing.sink)
    return disk.exists(path) and is_repeated(landing, SinkCommit(*read_line(disk, path)))


def _path(catalog: Catalog, folder: str, name: str) -> str:
    """The path of the file of a sink or a run."""
    file = names.file_name(name)
    if len(file.encode()) > _LONGEST:  # `%_` is in no encoded name
        file = f"{file[:30]}%_{hashlib.sha256(name.encode()).hexdigest()}"
    return os.path.join(catalog.path, folder, file)


@dataclass
class Load:
    """A load: its staged pieces, and the queues that it creates if they are missing."""

    name: str
    pieces: list[Piece]
    queues: dict[str, Settings] = field(default_factory=dict)
    run: str | None = None  # is committed once under this name
    sink: SinkCommit | None = None  # or once as this batch of a sink

    def by_queue(self) -> dict[str, list[Piece]]:
        """The pieces of each queue, in the order in which they were staged."""
        found: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            found.setdefault(piece.queue, []).append(piece)
        return found

    def brought(self) -> list[Brought]:
        """Messages and bytes of each queue."""
        return [
            Brought(queue, sum(piece.messages for piece in pieces), sum(piece.payloads for piece in pieces))
            for queue, pieces in sorted(self.by_queue().items())
        ]


class StagedFile(NamedTuple):
    """A staged file with groups of one queue."""

    folder: str
    name: str
    pieces: list[Piece]


class Loads:
    """Commits loads into the queues of one store."""

    def __init__(
        self,
        catalog: Catalog,
        disk: Disk,
        find: Callable[[str], LiveQueue],
        upkeep: dict[str, Upkeep],
        check_new: Callable[[Mapping[str, Settings]], None],
        create: Callable[[str, Settings], None],
        segment_size: int,
    ) -> None:
        self._store = catalog.folder
        self._catalog = catalog
        self._disk = disk
        self._find = find
        self._upkeep = upkeep
        self._check_new = check_new
        self._create = create
        self._whole = min(_WHOLE, segment_size)
        self._landing = threading.Lock()  # batches of sinks are committed one by one

    def take_in(self, load: Load) -> bool:
        """Commit a load, all of it or nothing; False: its run or batch was committed before."""
        folder = staging.folder_of(self._store, load.name)
        with self._landing if load.sink is not None else nullcontext():
            return self._take_in(folder, load)

    def _take_in(self, folder: str, load: Load) -> bool:
        landed = load.sink is not None and has_landed(self._disk, self._catalog, load.sink)
        if landed or has_run(self._disk, self._catalog, load.run):
            remove_folder(self._disk, folder)
            return False
        self._check_new(load.queues)
        with ExitStack() as done:
            for queue, pieces in sorted(load.by_queue().items()):
                self._expect(queue, pieces, load, done)
            load = self._begin_to_count(folder, load)
            try:
                self._finish(folder, load, {})
            except DiskFull as error:  # the load is committed: recovery has to finish it
                raise OSError(errno.ENOSPC, str(error)) from error
        return True

    def recover(self, journals: dict[str, Journal]) -> None:
        """Finish the loads that a crash interrupted, and remove those that were abandoned."""
        for name in list(staging.staged_loads(self._disk, self._store)):
            folder = staging.folder_of(self._store, name)
            path = os.path.join(folder, MANIFEST)
            if self._disk.exists(path):
                load = _parse(path, self._disk)
                self._finish(folder, load, {queue: journal.loads for queue, journal in journals.items()})
            elif staging.is_abandoned(name):
                remove_folder(self._disk, folder)

    # Before the commit

    def _begin_to_count(self, folder: str, load: Load) -> Load:
        """Write the manifest, which commits the load; DiskFull changes nothing."""
        path = os.path.join(folder, MANIFEST)
        try:
            load = replace(load, pieces=self._own_files(folder, load))
            self._disk.sync_folder(folder)
            queues = {queue: settings.stored() for queue, settings in load.queues.items()}
            write_line(self._disk, path, asdict(load) | {"queues": queues})
        except OSError as error:
            if not is_full(error) or self._disk.exists(path):
                raise
            for name in self._disk.listdir(folder):
                if name.startswith(_OWN):
                    self._disk.unlink(os.path.join(folder, name))
            raise DiskFull(f"no space left for a load in {self._store!r}, and nothing was changed") from error
        return load

    def _expect(self, queue: str, pieces: Sequence[Piece], load: Load, done: ExitStack) -> None:
        """Check the rules of a queue, reserve space, and block deletion and packing until `done` is closed."""
        count = sum(piece.messages for piece in pieces)
        waiting = sum(piece.messages for piece in pieces if not piece.done)
        longest = max(piece.longest for piece in pieces)
        lowest, highest = min(piece.lowest for piece in pieces), max(piece.highest for piece in pieces)
        if queue in load.queues and queue not in self._upkeep:  # the load creates it
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
        """The pieces, with those of large queues copied to files that no other queue shares."""
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

    # After the commit

    def _finish(self, folder: str, load: Load, arrived: dict[str, set[str]]) -> None:
        """Let the messages arrive that have not yet, and remove the manifest."""
        for queue, settings in load.queues.items():
            if queue not in self._upkeep:
                with suppress(QueueExists):  # created meanwhile
                    self._create(queue, settings)
        for queue, pieces in load.by_queue().items():
            upkeep = self._upkeep.get(queue)
            if upkeep is not None:  # else the queue was deleted meanwhile
                with suppress(QueueNotFound):  # created by this load, and deleted meanwhile
                    self._arrive(folder, load.name, queue, upkeep.storage, pieces, arrived.get(queue, set()))
        manifest = os.path.join(folder, MANIFEST)
        if load.sink is not None:
            write_line(self._disk, self._begin_to_remember(SINKS, load.sink.sink), list(load.sink))
        if load.run is not None:
            path = self._begin_to_remember(RUNS, load.run)
            if self._disk.exists(manifest):
                self._disk.rename(manifest, path)
            self._disk.sync_folder(os.path.dirname(path))
        with suppress(FileNotFoundError):
            self._disk.unlink(manifest)
        self._disk.sync_folder(folder)
        remove_folder(self._disk, folder)

    def _begin_to_remember(self, folder: str, name: str) -> str:
        """The path for the file of a sink or a run, in a folder that is made durably."""
        self._catalog.make(folder)
        return _path(self._catalog, folder, name)

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
                _, written = live.run(lambda now: _append(storage, load, staged, now))
            live.commit(written)
        else:
            whole = [
                StagedFile(folder, file, [piece for piece in pieces if piece.file == file])
                for file in dict.fromkeys(piece.file for piece in pieces)
            ]
            missing = [each for each in whole if not self._has_arrived(each, arrived)]

            def install() -> None:
                live.run(lambda now: _install(storage, missing, now))

            storage.commits.lead(install)

    def _has_arrived(self, staged: StagedFile, arrived: set[str]) -> bool:
        """Whether a staged file is part of the journal. After a crash of the machine it may have both names."""
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
    """Make the folder of a load durably."""
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
    """Whether a run of that name was committed."""
    return run is not None and disk.exists(_path(catalog, RUNS, run))


def read_run(disk: Disk, catalog: Catalog, run: str) -> Load | None:
    """The load of a run, if it was committed."""
    path = _path(catalog, RUNS, run)
    return _parse(path, disk) if disk.exists(path) else None


def forget_runs(disk: Disk, catalog: Catalog, before: int) -> None:
    """Remove the manifests of unnamed loads that the store's owner began before that time."""
    folder = os.path.join(catalog.path, RUNS)
    for file in disk.listdir(folder) if disk.exists(folder) else []:
        began = began_at(file.replace("%2E", "."))
        if began is not None and began < before:
            with suppress(FileNotFoundError):
                disk.unlink(os.path.join(folder, file))


def _queues_of_files(pieces: Iterable[Piece]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for piece in pieces:
        found.setdefault(piece.file, set()).add(piece.queue)
    return found


def _parse(path: str, disk: Disk) -> Load:
    content: dict[str, Any] = read_line(disk, path)
    pieces = [Piece(*piece) for piece in content["pieces"]]
    queues = {queue: Settings(**settings) for queue, settings in content["queues"].items()}
    sink = content.get("sink")
    return Load(content["name"], pieces, queues, content["run"], None if sink is None else SinkCommit(*sink))


def _append(storage: JournalStorage, load: str, staged: Sequence[tuple[Piece, File]], now: int) -> None:
    """Add staged messages to the open group, which is committed as a whole."""
    state = storage.state
    storage.reservation.skip_open_xids(sum(piece.messages for piece, _ in staged))
    records = bytearray(encode_load(load))
    for piece, file in staged:
        first, content = state.next_seq, bodies_of(piece, file)
        group, offset = storage.begin_piece(first, 0 if piece.done else piece.messages, content)  # done: no xids
        shift = offset - (piece.tail - len(content))
        for record, bodies in _arrive(state, number_group(piece, file, first, 0, now).records, group + shift):
            if isinstance(record, Put) and bodies is not None:
                records += encode_put(record, bodies._replace(offset=[shift + each for each in bodies.offset]))
            else:
                records += encode_record(record)
    storage.end_piece(bytes(records), now)


def _install(storage: JournalStorage, staged: Sequence[StagedFile], now: int) -> None:
    """Append staged files to the journal; called by the thread that leads its commits."""
    state, files, disk = storage.state, storage.files, storage.files.disk
    storage.reservation.skip_open_xids(sum(piece.messages for each in staged for piece in each.pieces))
    number = storage.leave_file()
    storage.at = now = max(storage.at, now)
    for folder, name, pieces in staged:
        path = os.path.join(folder, name)
        file, first, arriving = disk.open(path), state.next_seq, []
        for piece in pieces:
            numbered = number_group(piece, file, first, number, now)
            file.write(piece.offset, numbered.head)
            file.write(piece.offset + piece.tail, numbered.tail)
            arriving.append((piece.offset, numbered.records))
            first, number = first + piece.messages, number + 1
        file.sync()
        rotated = files.rotated(storage.next_stamp())
        _move(disk, path, files.path(rotated))
        file.path = files.path(rotated)
        segment = storage.follow(rotated, file, number)
        for offset, records in arriving:
            _arrive(state, records, segment.base + offset)


def _move(disk: Disk, source: str, target: str) -> None:
    """Move a file durably; after a crash of the machine it has one name or both."""
    disk.rename(source, target)
    disk.sync_folder(os.path.dirname(target))
    disk.sync_folder(os.path.dirname(source))


def _arrive(state: State, records: list[Recorded], base: int) -> list[Recorded]:
    """Apply staged records, whose bodies are at offsets from base; returns the records."""
    for record, bodies in records:
        state.replay(record)
        if isinstance(record, Put) and bodies is not None:
            state.rows.place(record.first, [base + each for each in bodies.offset], bodies.size, bodies.crc)
    return records


class JournalPart:
    """The messages of one sender of a load: a file of groups."""

    def __init__(self, file: Part, ballast: Ballast) -> None:
        self.file = file
        self.is_broken = False
        self._ballast = ballast

    @property
    def messages(self) -> int:
        return sum(piece.messages for piece in self.file.pieces)

    def add(self, queue: str, settings: Settings, staged: "Staged", frame: bytes, now: int) -> None:
        if self._ballast.short:
            raise full()
        restored = None if staged.restored is None else _restored(staged.restored, now)
        try:
            times = (staged.visible_at, staged.expires_at)
            self.file.add_entries(queue, staged.entries, settings, now, *times, restored)
            self.file.close()
        except BaseException:
            self.is_broken = True
            self.file.discard()
            raise


class JournalDepot:
    """Stages loads, which arrive over HTTP, beside the journals."""

    def __init__(
        self,
        find: Callable[[str], LiveQueue],
        check_new: Callable[[Mapping[str, Settings]], None],
        commit: Callable[[Load], bool],
        catalog: Catalog,
        disk: Disk,
        ballast: Ballast,
    ) -> None:
        self._find = find
        self._check_new = check_new
        self._commit = commit
        self._catalog = catalog
        self._disk = disk
        self._ballast = ballast

    def settings(self, queue: str) -> Settings:
        return self._find(queue).settings

    def ledger(self, queue: str, settings: Settings) -> Ledger:
        return Ledger(queue, settings)

    def check_new(self, queues: Mapping[str, Settings]) -> None:
        self._check_new(queues)

    def begin(self, load: str, forget_before: int) -> None:
        forget_runs(self._disk, self._catalog, forget_before)
        make_folder(self._disk, self._catalog.folder, load)

    def new_part(self, load: str, part: str) -> JournalPart:
        return JournalPart(Part(self._disk, self._folder(load), load, f"part-{part}"), self._ballast)

    def take_in(
        self,
        load: str,
        parts: Sequence[StagedPart],
        queues: Mapping[str, Settings],
        run: str | None,
        sink: SinkCommit | None,
    ) -> bool:
        pieces = [piece for part in parts for piece in cast("JournalPart", part).file.pieces]
        return self._commit(Load(load, pieces, dict(queues), run, sink))

    def counts(self, load: str) -> bool:
        return self._disk.exists(os.path.join(self._folder(load), MANIFEST))

    def has_landed(self, sink: SinkCommit) -> bool:
        return has_landed(self._disk, self._catalog, sink)

    def taken(self, run: str) -> Taken | None:
        taken = read_run(self._disk, self._catalog, run)
        return None if taken is None else Taken(taken.name, taken.brought())

    def drop(self, load: str) -> None:
        remove_folder(self._disk, self._folder(load))

    def _folder(self, load: str) -> str:
        return staging.folder_of(self._catalog.folder, load)


def _restored(columns: "Columns", now: int) -> Restored:
    return Restored(
        [now if each is None else each for each in columns.received_at],
        [STATES.index(state) + 1 for state in columns.state],
        columns.attempts,
        [each or 0 for each in columns.claimed_at],
        [each or 0 for each in columns.settled_at],
        columns.consumer,
        columns.reason,
        columns.history,
    )
