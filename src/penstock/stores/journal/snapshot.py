"""Snapshots of a journal store's queues, read without the lock while another process writes, rotates and packs.

A snapshot is the state of a queue at one moment after the call: it has everything that was acknowledged before,
and nothing that is half written. Files that are renamed or packed between being listed and being opened are not
found, or leave a gap in the numbers of groups; then the folder is read again.

Journals that Kestrel left, and that no process has opened with Penstock yet, are read by the document. Nothing is
made or changed in their folder.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from penstock.contract import names
from penstock.contract.settings import Settings
from penstock.errors import NotSupported, PenstockError, QueueNotFound, StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.rules.state import State
from penstock.stores.journal.catalog import FOLDER, Catalog, Entry, queue_of
from penstock.stores.journal.files import ROTATED, Segment, journals, replay_order
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.format import Entry as KestrelEntry
from penstock.stores.journal.index import read_index
from penstock.stores.journal.kestrel import replay_entries
from penstock.stores.journal.reading import FoundJournal, Item, Reading, close_segments, is_ours, open_all, read
from penstock.stores.journal.staging import Piece, manifests
from penstock.stores.journal.strays import check_folder, find_strays
from penstock.system.clock import rest
from penstock.system.files import Disk, File

_TRIES = 20
_PAUSE = 0.01  # seconds between two tries, growing
_LONG_PAUSE = 0.5  # seconds between two tries while a load arrives

_log = logging.getLogger("penstock")

OpenFile = Callable[[str], File]  # opens a path; it may pin the file first


@dataclass(frozen=True)
class SegmentFile:
    """A file with bodies, and the number that it has in their places."""

    number: int
    name: str
    path: str
    inode: int


@dataclass(frozen=True)
class QueueSnapshot:
    """A queue at one moment."""

    contents: State
    files: list[SegmentFile]
    journal: str  # the name of its latest file
    entry: Entry | None  # of the catalog
    end: int  # of the last whole group in the last file
    next_group: int
    items: dict[int, Item] | None = None  # of a journal that Kestrel left: the items by message number


class _Queue(NamedTuple):
    name: str
    file: str
    known: Entry | None  # None: another program's journal, or the queue `default` without one


class _Arriving(PenstockError):
    """Only a part of a committed load has arrived yet."""


class StoreSnapshot:
    """Makes snapshots of the queues of a store. `now` is the clock's time.

    `witness` makes the ledgers that journals are replayed into; then they are replayed from their beginning. With
    `kestrel` journals that Kestrel left are read too, in this dialect: their files are not pinned, and have items
    instead of bodies.
    """

    def __init__(
        self,
        folder: str,
        disk: Disk,
        now: int,
        witness: Callable[[str, Settings], Ledger] | None = None,
        kestrel: Dialect | None = None,
    ) -> None:
        self.folder = folder
        self._disk = disk
        self._now = now
        self._witness = witness
        self._reads_kestrel = kestrel is not None
        self._dialect: Dialect = kestrel or "doc"
        self._catalog = Catalog(folder, disk)
        self._found: dict[str, _Queue] = {}  # all queues, when they were last listed
        if not disk.is_folder(folder):
            raise PenstockError(f"there is no store {os.path.abspath(folder)!r}: no such folder")
        check_folder(folder, disk, self._dialect)
        self._refresh()
        if not self._listed and not disk.is_folder(os.path.join(folder, FOLDER)):
            raise PenstockError(f"there is no store in {os.path.abspath(folder)!r}: it has no journals")

    def _refresh(self) -> None:
        """List the folder again."""
        self._clean = self._catalog.clean()
        self._listed: dict[str, list[str]] = {}
        for name in self._disk.listfiles(self.folder):
            for journal in journals([name]):
                self._listed.setdefault(journal, []).append(name)

    def settings(self, queue: str | None = None) -> dict[str, Settings]:
        """The settings of one queue, or of all queues, by name."""
        return {name: Settings() if known is None else known.settings for name, _, known in self._queues(queue)}

    def journal(self, queue: str) -> str | None:
        """The name of the latest file of a queue's journal; None if there is no such queue."""
        self._refresh()
        try:
            return self._queues(queue)[0].file
        except QueueNotFound:
            return None

    def check_ours(self, queue: str) -> None:
        """NotSupported for a queue whose journal is only Kestrel's: it has no groups to follow."""
        (found,) = self._queues(queue)
        if found.known is None and found.file in self._listed:
            raise _foreign(queue)

    def view(self, queue: str, open_file: OpenFile, let_go: Callable[[str], None]) -> QueueSnapshot | None:
        """A snapshot of a queue; None if it was deleted meanwhile. `let_go` gets files that it does not use.

        The files stay readable only if `open_file` has pinned them; their paths are those that it has opened.
        """
        failure: PenstockError | None = None
        for number in range(_TRIES):
            if number:
                rest(_LONG_PAUSE if isinstance(failure, _Arriving) else _PAUSE * number)
                self._refresh()
                self._found.clear()
            try:
                (found,) = [self._found[queue]] if queue in self._found else self._queues(queue)
            except QueueNotFound:
                return None
            with suppress(FileNotFoundError):  # renamed or packed meanwhile
                view, failure = self._look(found, open_file, let_go)
                if view is not None:
                    return view
        raise failure or StoreCorrupt(
            f"the files of queue {queue!r} in {self.folder!r} change faster than they can be opened: try again"
        )

    def _queues(self, queue: str | None) -> "list[_Queue]":
        """One queue, or all of them, by name."""
        if queue is not None:
            known = self._catalog.entry(names.file_name(queue))
            if known is not None and known.name == queue and not known.deleted:  # no other entry is read
                return [_Queue(queue, names.file_name(queue), known)]
        entries = self._entries()
        living = ((file, known) for file, known in entries.items() if not known.deleted)
        found = {known.name: _Queue(known.name, file, known) for file, known in living}
        listed = [name for each in self._listed.values() for name in each]
        strays = find_strays(self.folder, listed, entries, self._disk, self._dialect)
        for file in self._listed:
            if file not in entries and file not in strays:
                name = queue_of(file, found)
                found[name] = _Queue(name, file, None)
        if names.DEFAULT not in found:
            found[names.DEFAULT] = _Queue(names.DEFAULT, names.file_name(names.DEFAULT), None)
        if queue is None:
            self._found = found
            return [found[name] for name in sorted(found)]
        if queue not in found:
            raise QueueNotFound(f"there is no queue {queue!r} in the store {self.folder!r}")
        return [found[queue]]

    def _entries(self) -> dict[str, Entry]:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # a queue was deleted meanwhile
                return self._catalog.entries()
        return self._catalog.entries()

    def _look(
        self, queue: "_Queue", open_file: OpenFile, let_go: Callable[[str], None]
    ) -> tuple[QueueSnapshot | None, PenstockError | None]:
        """Read one journal; the snapshot, or the error that a further try may not have."""
        name, file, known = queue
        opened: list[str] = []

        def open_one(name: str) -> File:
            found = open_file(os.path.join(self.folder, name))
            opened.append(found.path)
            return found

        view = None
        segments: list[Segment] = []
        try:
            listed = replay_order(self._listed.get(file, ()), file)
            foreign = self._reads_kestrel and known is None and self._is_foreign(listed)
            if foreign:
                segments = open_all(listed, lambda name: self._disk.open(os.path.join(self.folder, name)))
            else:
                segments = open_all(listed, open_one)
            if self._catalog.entry(file) != known:  # another queue of the same name, or emptied
                return None, None
            for segment in segments:
                segment.file.path = os.path.join(self.folder, segment.name)  # for people
            forgotten = "" if known else self._catalog.forgotten(file)
            journal = FoundJournal(name, file, known, segments, self._clean.get(file), self._dialect, forgotten)
            reading = self._read(journal)
            if (failure := _failure(journal, reading, foreign)) is not None:
                return None, failure
            # A missing file between others makes a gap in the numbers of groups. A missing file at the end does
            # not: it may have been rotated while the folder was listed, or files of a load may follow. The
            # manifest is looked for before the files, because it is removed after they have arrived.
            if file not in listed or not reading.end:
                if self._is_loading(name):
                    return None, _arriving(name)
                if replay_order(self._disk.listfiles(self.folder), file) != listed:
                    return None, None
            ledger = reading.ledger
            now = max(self._now, reading.loader.at, known.at if known else 0)
            items = _items(ledger.state, reading.foreign, segments, now) if foreign else None
            ledger.state.advance(now)
            paths = [os.path.join(self.folder, name) for name in listed] if foreign else opened
            files = [
                SegmentFile(segment.number, segment.name, path, segment.file.status().inode)
                for segment, path in zip(segments, paths, strict=True)
            ]
            view = QueueSnapshot(ledger.state, files, file, known, reading.end, reading.loader.next_group, items)
            return view, None
        finally:
            close_segments(segments)
            for path in opened if view is None else ():
                let_go(path)

    def _is_foreign(self, files: Sequence[str]) -> bool:
        """Whether Kestrel wrote a journal, and no group of ours is in it."""
        segments = open_all(files, lambda name: self._disk.open(os.path.join(self.folder, name)))
        try:
            return not any(map(is_ours, segments))
        finally:
            close_segments(segments)

    def _is_loading(self, queue: str) -> bool:
        """Whether a committed load has messages for a queue that may not have arrived."""
        for manifest in manifests(self._disk, self.folder):
            with suppress(FileNotFoundError), self._disk.open(manifest) as file:
                content = json.loads(file.read(0, file.size()).partition(b"\n")[0])
                if any(Piece(*piece).queue == queue for piece in content["pieces"]):
                    return True
        return False

    def _read(self, journal: FoundJournal) -> Reading:
        """Read from the saved index on, if that is valid, as opening does."""
        if self._witness is not None:
            return read(journal, make=self._witness)
        index = read_index(self._disk, self._catalog.index(journal.file)) if journal.segments else None
        if index is not None and index.holds(journal.segments):
            reading = read(journal, index)
            if reading.damage is None:
                return reading
            for number, segment in enumerate(journal.segments, ROTATED):  # perhaps only the index is wrong
                segment.number = number
        return read(journal)


def _arriving(queue: str) -> _Arriving:
    return _Arriving(
        f"many messages are just being loaded into queue {queue!r}, or were when that was interrupted: try again, "
        "or open the store once with penstock.open(), which finishes it"
    )


def _items(
    state: State, entries: Sequence[KestrelEntry], segments: Sequence[Segment], now: int
) -> dict[int, Item]:
    """Replay what Kestrel wrote; the items that are left. Those without a time have that of their file."""
    items = replay_entries(state, entries, now)
    changed = {segment.number: segment.file.status().changed // 1_000_000 for segment in segments}
    return {seq: item._replace(added=item.added or changed[item.segment]) for seq, item in items.items()}


def _failure(journal: FoundJournal, reading: Reading, foreign: bool) -> PenstockError | None:
    """Why a journal that was read cannot be used, if it cannot."""
    if reading.damage is not None:
        return StoreCorrupt(
            f"the journal of queue {journal.name!r} is damaged: {reading.damage.why}. "
            "`penstock doctor` shows what can be saved"
        )
    if foreign:
        for segment, offset in reading.unreadable:
            _log.warning(
                "%s cannot be read from offset %d on; its other messages are shown. If a Kestrel 2.x wrote it, "
                "give the store as journal:DIR?dialect=2.x",
                segment.file.path, offset,
            )  # fmt: skip
    elif reading.foreign or reading.unreadable:
        return _foreign(journal.name)
    return None


def _foreign(queue: str) -> NotSupported:
    return NotSupported(
        f"the journal of queue {queue!r} has entries of another program, as Kestrel: open the store once with "
        "penstock.open(), which makes them its own"
    )
