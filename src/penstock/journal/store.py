"""The journal store: a folder of Kestrel journals, one per queue, kept by one process at a time."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from penstock.clock import Clock, SystemClock
from penstock.errors import DiskFull, InvalidArgument, PenstockError, QueueNotFound, StoreCorrupt
from penstock.files import Disk, SystemDisk
from penstock.journal import adoption, packing, snapshot
from penstock.journal.ballast import Ballast, is_full
from penstock.journal.catalog import FOLDER, Catalog, Entry, queue_of
from penstock.journal.commits import stopped
from penstock.journal.files import ROTATED, JournalFiles, Segment
from penstock.journal.format import DIALECTS, Dialect
from penstock.journal.format import Entry as KestrelEntry
from penstock.journal.loading import Loader, Rest, look_at_rest
from penstock.journal.segments import journals
from penstock.journal.shelf import Cut, JournalShelf, Sink
from penstock.ledger import Ledger
from penstock.live.keeper import LiveKeeper
from penstock.names import DEFAULT
from penstock.settings import Settings
from penstock.threads import Lock, Task, Threads

SEGMENT_SIZE = 64 << 20
_EMPTY = 16 << 20  # an empty queue's journal shrinks from this size on, as Kestrel's does
_OVERHEAD = 192  # bytes that a waiting message may well take beside its body
_CHUNK = 4 << 20
_SMALL = 1 << 20  # a snapshot of at most this size is always worth writing
_log = logging.getLogger("penstock")


class _Journal:
    """A queue's journal as it was found: its files, and how far they reach."""

    def __init__(self, file: str, entry: Entry | None, ledger: Ledger, packing: Lock) -> None:
        self.file = file
        self.entry = entry
        self.ledger = ledger
        self.segments: list[Segment] = []
        self.next_group = 1
        self.start = 1  # the number of its first group; 0 if that is packed
        self.at = 0
        self.packing = packing
        self.pack_wanted = False
        self.task: Task | None = None  # that packs, or packed, in the background
        self.pack_from = 0  # not before it has so many bytes
        self.empty_from = 0  # nor, when it has no messages, before so many
        self.indexed = 0  # bytes of the journal that the snapshot stands for
        self.index_size = 0


class JournalKeeper(LiveKeeper):
    """Keeps queues in journals."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        clock: Clock,
        sync: str,
        dialect: Dialect,
        disk: Disk,
        threads: Threads | None,
        segment_size: int,
    ) -> None:
        super().__init__(clock, threads)
        self._folder = os.fspath(folder)
        self._disk = disk
        self._catalog = Catalog(self._folder, disk)
        ballast = Ballast(disk, self._catalog.ballast, self._threads.lock())
        self._sink = Sink(
            self._clock, self._alarm, self._threads, sync, dialect, segment_size, ballast, self._failed
        )
        self._journals: dict[str, _Journal] = {}
        self._shelves: dict[str, JournalShelf] = {}
        self._failure: BaseException | None = None
        self._catalog.open()
        try:
            self._load()
        except BaseException:
            self._catalog.close()
            raise

    # Opening

    def _load(self) -> None:
        entries = self._catalog.entries()
        for file in [file for file, entry in entries.items() if entry.deleted]:
            self._remove(file)  # a crash interrupted that
            del entries[file]
        names = self._names()
        self._first = self._catalog.first()
        clean = self._catalog.clean()
        taken = {entry.name for entry in entries.values()}
        for file in dict.fromkeys([*entries, *journals(names)]):
            known = entries.get(file)
            name = queue_of(file, taken) if known is None else known.name
            taken.add(name)
            journal = self._load_journal(file, known, name, names, clean.get(file))
            self._clock.at_least(journal.at)
            self._journals[name] = journal
        self._catalog.forget_clean()
        if DEFAULT not in self._journals:
            file = self._catalog.new_file(DEFAULT, self._taken())
            self._journals[DEFAULT] = _Journal(
                file, None, Ledger(DEFAULT, Settings(), self._first), self._threads.lock()
            )
        for journal in self._journals.values():
            self._add(journal.ledger)

    def _names(self) -> list[str]:
        """The files in the folder; no journal is a folder, whatever its name."""
        names = self._disk.listdir(self._folder)
        return [name for name in names if not self._disk.is_folder(os.path.join(self._folder, name))]

    def _taken(self) -> list[str]:
        """What no new journal may be called."""
        there = [name.partition(".")[0] for name in self._disk.listdir(self._folder)]
        return [*there, *[journal.file for journal in self._journals.values()]]

    def _load_journal(
        self, file: str, known: Entry | None, name: str, names: list[str], clean: int | None
    ) -> _Journal:
        index = snapshot.read(self._disk, self._catalog.index(file))
        if index is not None:
            try:
                return self._load_with(index, file, known, name, names, clean)
            except StoreCorrupt:  # it may be the snapshot that is wrong: see without it
                pass
        return self._load_with(None, file, known, name, names, clean)

    def _load_with(
        self,
        index: snapshot.Snapshot | None,
        file: str,
        known: Entry | None,
        name: str,
        names: list[str],
        clean: int | None,
    ) -> _Journal:
        files = JournalFiles(self._folder, file, self._disk)
        ledger = Ledger(name, Settings() if known is None else known.settings)
        journal = _Journal(file, known, ledger, self._threads.lock())
        journal.segments = self._open_segments(files, names)
        starts = known.starts if known else [1]
        loader = Loader(ledger, starts)
        offset, at = 0, 0
        if index is not None and index.holds(journal.segments):
            self._renumber(journal.segments, [each["number"] for each in index.files])
            loader.resume(index.load(ledger), index.at)
            at, offset = len(index.files) - 1, index.files[-1]["size"]
            journal.indexed = sum(each["size"] for each in index.files)
            journal.index_size = index.size
        foreign: list[KestrelEntry] = []
        for segment in journal.segments[at:]:
            if not foreign:
                offset = loader.replay(segment, offset)
            last = segment is journal.segments[-1]
            ours = (known is not None or loader.begun) and not foreign
            rest = look_at_rest(segment, offset, ours, self._sink.dialect)
            segment.size, segment.filled = offset, segment.size
            if rest is not None:
                foreign += self._judge(segment, rest, last, clean, loader.next_group)
            offset = 0
        loader.finish()
        if clean is not None and loader.next_group < clean and not foreign:
            raise StoreCorrupt(
                f"the journal of queue {ledger.name!r} ends with group {loader.next_group - 1}, but the store was "
                f"closed after group {clean - 1}: its end is missing. Put the file back; `penstock doctor` shows "
                "what there is"
            )
        if foreign:
            if index is not None:  # Kestrel may have left nothing of what we wrote
                ledger.skip_to(index.next_seq())
            return self._adopt(files, journal, loader, foreign)
        if clean is None and journal.segments:
            _write_again(journal.segments[-1])
        journal.next_group, journal.at, journal.start = loader.next_group, loader.at, loader.start
        if known is not None:
            ledger.skip_to(known.first)
            journal.at = max(journal.at, known.at)
            if not journal.segments:
                journal.next_group = journal.start = known.starts[-1]
        return journal

    def _renumber(self, segments: list[Segment], numbers: list[int]) -> None:
        """Give files the numbers that a snapshot knows them by, and those after them higher ones."""
        number = ROTATED - 1
        for segment in segments:
            segment.number = numbers.pop(0) if numbers else number + 1
            number = max(ROTATED, segment.number)

    def _open_segments(self, files: JournalFiles, names: list[str]) -> list[Segment]:
        segments = []
        for number, name in enumerate(files.tidy(names), ROTATED):
            file = self._disk.open(files.path(name))
            segments.append(Segment(number, name, file, file.size()))
        return segments

    def _judge(
        self, segment: Segment, rest: Rest, last: bool, clean: int | None, next_group: int
    ) -> list[KestrelEntry]:
        """What is to be done with bytes that are not in a group; another program's entries among them."""
        path = segment.file.path
        if rest.group_after is not None or (rest.torn and not (last and clean is None)):
            where = f"; whole groups follow from offset {rest.group_after} on" if rest.group_after else ""
            raise StoreCorrupt(
                f"{path!r} is damaged at offset {rest.offset}, where group {next_group} should be{where}. Nothing "
                "was changed. Put the file back from a copy; `penstock doctor` shows what can be saved"
            )
        if rest.torn:
            torn = rest.data.rstrip(b"\0\1")
            try:
                kept = f"They were moved to {self._catalog.quarantine(segment.name, rest.offset, torn)}"
            except OSError as error:
                if not is_full(error):
                    raise
                kept = "There is no space to keep them"  # and none is needed to go on
            _log.warning(
                "%s: %d bytes at its end are no whole group; a crash interrupted the write, which no one was told "
                "had succeeded. %s",
                path, len(torn), kept,
            )  # fmt: skip
            segment.file.truncate(rest.offset)
            segment.file.sync()
            segment.filled = rest.offset
            return []
        if rest.broken is not None:
            kept = self._catalog.quarantine(segment.name, rest.broken, rest.data[rest.broken - rest.offset :])
            _log.warning("%s cannot be read from offset %d on; the rest was moved to %s", path, rest.broken, kept)
        return rest.entries

    def _adopt(
        self, files: JournalFiles, journal: _Journal, loader: Loader, foreign: list[KestrelEntry]
    ) -> _Journal:
        """Make another program's entries ours, and read the result."""
        ledger, now = journal.ledger, max(loader.at, self._clock.now())
        items = adoption.replay_entries(ledger, foreign, now)
        packed = adoption.rewrite(
            files, journal.segments, ledger, items, loader.next_group, now, self._sink.dialect
        )
        entry = journal.entry or Entry(ledger.name)
        self._catalog.keep(journal.file, entry)
        return self._load_with(None, journal.file, entry, ledger.name, [packed.name], None)

    # At work

    def pack(self, queue: str) -> int:
        """Pack a queue's journal now; how many bytes that freed."""
        with self._journal(queue).packing:
            self.find(queue).counts()  # it may have been deleted meanwhile; and lets time have passed
            return self._pack(queue)

    def stored(self, queue: str) -> int:
        """Bytes of a queue's journal."""
        self.find(queue)
        return self._shelves[queue].stored()

    def _journal(self, queue: str) -> _Journal:
        journal = self._journals.get(queue)
        if journal is None:
            self.find(queue)  # says that there is none
            raise QueueNotFound(f"queue {queue!r} is just being made or deleted: try again")
        return journal

    def delete(self, queue: str) -> None:
        """Remove a queue, its messages and its files."""
        with self._journal(queue).packing:
            try:
                super().delete(queue)
            except OSError as error:  # half deleted: opening finishes that
                self._failed(error)
                raise stopped(error) from error

    def _pack(self, queue: str) -> int:
        shelf, journal = self._shelves[queue], self._journals[queue]

        def emptied(cut: Cut) -> None:
            entry = journal.entry or Entry(queue, journal.ledger.settings)
            starts = [journal.start, cut.next_group]
            journal.entry = replace(entry, first=cut.frozen.next_seq, starts=starts, at=cut.at)
            self._catalog.keep(journal.file, journal.entry)
            journal.start = cut.next_group

        with suppress(DiskFull), shelf.lock:
            shelf.reservation.shrink()  # no more than is needed, which may be what packing needs
        try:
            freed = packing.pack(shelf, emptied, lambda: self._refusal is None)
        except OSError as error:
            self._failed(error)
            raise stopped(error) from error
        with suppress(DiskFull), shelf.lock:
            shelf.reservation.shrink()
        journal.pack_from = 2 * shelf.total()
        journal.empty_from = 0 if shelf.state.size() else journal.pack_from
        journal.indexed = journal.index_size = 0
        return freed

    def _committed(self, queue: str) -> Callable[[], None]:
        shelf, journal = self._shelves[queue], self._journals[queue]
        least = min(_EMPTY, self._sink.segment_size)

        def look() -> None:
            total = shelf.total()
            if total < least or journal.pack_wanted or self._refusal is not None:
                return
            size = shelf.state.size()
            waste = total - shelf.state.stored - _OVERHEAD * size
            wasted = total >= journal.pack_from and waste > max(self._sink.segment_size, total // 2)
            if wasted or (not size and total >= journal.empty_from):
                self._pack_soon(queue, journal, shelf)

        return look

    def _pack_soon(self, queue: str, journal: _Journal, shelf: JournalShelf) -> None:
        def run() -> None:
            try:
                self.pack(queue)
            except DiskFull as error:
                journal.pack_from = journal.empty_from = shelf.total() * 5 // 4
                _log.warning("%s", str(error))  # an exception in a record would keep files open
            except PenstockError as error:
                if self._refusal is None:
                    journal.pack_from = journal.empty_from = shelf.total() * 2
                    _log.error("packing queue %r failed: %s", queue, str(error))
            finally:
                journal.pack_wanted = False

        with self._lock:
            if not journal.pack_wanted and self._refusal is None:
                journal.pack_wanted = True
                journal.task = self._threads.start("penstock-pack", run)

    def _new_shelf(self, ledger: Ledger, lock: Lock) -> JournalShelf:
        journal = self._journals[ledger.name]
        journal.ledger = ledger

        def begin() -> None:
            if journal.entry is None:
                journal.entry = Entry(ledger.name, ledger.settings, 1, [journal.next_group])
                self._catalog.keep(journal.file, journal.entry)

        files = JournalFiles(self._folder, journal.file, self._disk)
        shelf = JournalShelf(
            files, ledger, lock, self._sink, journal.segments, journal.next_group, journal.at, begin
        )
        journal.segments = []  # the shelf's from here on: a file that is replaced must be let go of
        self._shelves[ledger.name] = shelf
        shelf.reservation.inherit()
        shelf.on_commit = self._committed(ledger.name)
        return shelf

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        try:
            super().create(queue, settings)
        except OSError as error:
            self._failed(error)
            raise stopped(error) from error

    def _creating(self, queue: str, settings: Settings, first: int) -> None:
        file = self._catalog.new_file(queue, self._taken())
        entry = Entry(queue, settings, first)
        try:
            self._catalog.keep(file, entry)
        except OSError as error:
            if is_full(error) and not self._catalog.knows(file):
                raise DiskFull(f"no space left for queue {queue!r} in {self._folder!r}: free some") from error
            raise  # it may be there after a restart, or not
        ledger = Ledger(queue, settings, first)
        self._journals[queue] = _Journal(file, entry, ledger, self._threads.lock())

    def _deleting(self, queue: str, first: int) -> None:
        journal = self._journals[queue]
        self._catalog.keep_first(first)
        entry = journal.entry or Entry(queue, journal.ledger.settings)
        self._catalog.keep(journal.file, replace(entry, deleted=True))
        self._shelves.pop(queue).retire()
        self._remove(journal.file)
        del self._journals[queue]

    def _remove(self, file: str) -> None:
        JournalFiles(self._folder, file, self._disk).remove(self._disk.listdir(self._folder))
        self._catalog.forget(file)

    # Ending

    def close(self) -> None:
        """Write what is left and let go of the folder."""
        super().close()
        for journal in list(self._journals.values()):
            if (task := journal.task) is not None:
                task.join()
        try:
            if self._failure is None:
                hints = not self._sink.ballast.short  # or else the space is for those who settle
                reached = {}
                for queue, shelf in self._shelves.items():
                    journal = self._journals[queue]
                    with journal.packing:
                        shelf.close()
                        if hints:
                            self._keep_index(journal, shelf)
                    reached[journal.file] = shelf.next_group
                if hints:
                    with suppress(OSError):
                        self._catalog.keep_clean(reached)
        finally:
            for shelf in self._shelves.values():
                shelf.let_go()
            self._sink.ballast.close()
            self._catalog.close()

    def _keep_index(self, journal: _Journal, shelf: JournalShelf) -> None:
        total = shelf.stored()
        if not total or total == journal.indexed:
            return
        if journal.index_size <= _SMALL or total - journal.indexed > journal.index_size // 4:
            segments = list(shelf.segments.values())
            path = self._catalog.index(journal.file)
            with suppress(OSError):  # only a hint
                at = max(shelf.at, shelf.state.advanced)
                snapshot.write(self._disk, path, shelf.state.freeze(), segments, shelf.next_group, at)

    def _failed(self, error: BaseException) -> None:
        """Stop everything: what was written last may be lost."""
        if self._failure is not None:
            return
        self._failure = error
        self._refusal = lambda: stopped(error)
        _log.error("%s", str(stopped(error)))

        def stop() -> None:
            for queue in list(self._queues.values()):
                queue.stop(lambda: stopped(error))

        # On a thread of its own, because the one that failed may hold a queue's lock.
        self._threads.start("penstock-stop", stop)


def _write_again(segment: Segment) -> None:
    """Make the latest file durable as it was read.

    After a sync that failed the system may show bytes that the disk never got, and call them synced.
    """
    for offset in range(0, segment.size, _CHUNK):
        segment.file.write(offset, segment.file.read(offset, min(_CHUNK, segment.size - offset)))
    segment.file.sync()


def open_journal(
    folder: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    sync: str = "always",
    dialect: Dialect = "doc",
    disk: Disk | None = None,
    threads: Threads | None = None,
    segment_size: int = SEGMENT_SIZE,
) -> JournalKeeper:
    """Open the journals in a folder, which is made if it is not there."""
    if dialect not in DIALECTS:
        raise InvalidArgument(f"dialect={dialect!r} is none of {', '.join(DIALECTS)}")
    return JournalKeeper(
        folder, clock or SystemClock(), sync, dialect, disk or SystemDisk(), threads, segment_size
    )


__all__ = ["FOLDER", "JournalKeeper", "open_journal"]
