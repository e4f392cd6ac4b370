"""Recovery: opens a journal that a closed store, a crash or another program left.

An interrupted packing is finished, a torn group is cut off, and entries of another program are adopted. Damage is
refused with StoreCorrupt, which says where it is.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.rules.records import Update
from penstock.stores.journal import kestrel, strays
from penstock.stores.journal.catalog import LOST, PUT_BACK, Catalog, Entry
from penstock.stores.journal.files import JournalFiles, Segment, journals
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.format import Entry as KestrelEntry
from penstock.stores.journal.index import SavedIndex, read_index
from penstock.stores.journal.reading import BEGINNINGS, Loader, Rest, is_ours, lacks_latest, look_at_rest, open_all
from penstock.stores.journal.strays import is_journal
from penstock.system.clock import Clock
from penstock.system.files import Disk, is_full

_CHUNK = 4 << 20
_log = logging.getLogger("penstock")


@dataclass(eq=False)
class Journal:
    """A recovered journal: its files, and how far they reach."""

    file: str
    entry: Entry | None
    ledger: Ledger
    segments: list[Segment] = field(default_factory=list)
    next_group: int = 1
    starts: list[int] = field(default_factory=lambda: [1])  # possible numbers of its first group, 0 if packed
    at: int = 0
    loads: set[str] = field(default_factory=set)  # names of loads whose messages have arrived
    indexed: int = 0  # bytes of the journal that the saved index covers
    index_size: int = 0


class Recovery:
    """Recovers the journals of one folder."""

    def __init__(self, catalog: Catalog, disk: Disk, clock: Clock, dialect: Dialect) -> None:
        self._catalog = catalog
        self._disk = disk
        self._clock = clock
        self._dialect = dialect
        self._first = catalog.first()
        self._adopting = catalog.adopting()

    def recover(
        self, file: str, known: Entry | None, name: str, names: Callable[[], list[str]], clean: int | None
    ) -> Journal:
        """Recover the journal of a queue; `names` lists its files."""
        index = read_index(self._disk, self._catalog.index(file))
        if index is not None:
            try:
                return self._load_with(index, file, known, name, names(), clean)
            except StoreCorrupt:  # perhaps only the index is wrong: try without it
                pass
        return self._load_with(None, file, known, name, names(), clean)

    def _load_with(
        self,
        index: SavedIndex | None,
        file: str,
        known: Entry | None,
        name: str,
        names: list[str],
        clean: int | None,
    ) -> Journal:
        files = JournalFiles(self._catalog.folder, file, self._disk)
        ledger = Ledger(name, Settings() if known is None else known.base)
        journal = Journal(file, known, ledger)
        if known is not None and known.latest:
            names = [name for name in names if not self._is_stray(files, name)]
        journal.segments = open_all(files.tidy(names), lambda name: self._disk.open(files.path(name)))
        if known is None and file not in self._adopting and any(map(is_ours, journal.segments)):
            raise StoreCorrupt(
                f"{files.path(file)!r} is a queue's journal, but {self._catalog.settings_of(file)!r} {LOST}. "
                f"Nothing was changed. {PUT_BACK}"
            )
        starts = known.starts if known else [1]
        loader = Loader(ledger.state, starts)
        offset, at = 0, 0
        if index is not None and index.holds(journal.segments):
            index.number(journal.segments)
            loader.resume(index.load(ledger.state), index.at)
            at, offset = len(index.files) - 1, index.files[-1]["size"]
            journal.indexed = sum(each["size"] for each in index.files)
            journal.index_size = index.size
        foreign: list[KestrelEntry] = []
        strange = False
        for segment in journal.segments[at:]:
            if not foreign:
                offset = loader.replay(segment, offset)
            last = segment is journal.segments[-1]
            ours = (known is not None or loader.begun) and not foreign
            rest = look_at_rest(segment, offset, ours, self._dialect)
            segment.size = offset
            if rest is not None:
                foreign += self._judge(segment, rest, last, clean, loader.next_group)
                strange = strange or not rest.torn
            offset = 0
        loader.finish()
        if clean is not None and loader.next_group < clean and not foreign:
            raise StoreCorrupt(
                f"the journal of queue {ledger.name!r} ends with group {loader.next_group - 1}, but the store was "
                f"closed after group {clean - 1}: its end is missing. Put the file back; `penstock doctor` shows "
                "what there is"
            )
        if known is not None and not foreign and lacks_latest(known, loader.next_group, journal.segments, clean):
            raise StoreCorrupt(
                f"the journal of queue {ledger.name!r} ends with group {loader.next_group - 1}, but "
                f"{files.path(file)!r} began with group {known.latest}: it is missing, or one before it is. "
                "Put the file back; `penstock doctor` shows what there is"
            )
        if strange:
            # Kestrel may have rewritten the journal; then only these know which numbers were used.
            ledger.state.skip_to(self._first if known is None else known.first)
            if index is not None:
                ledger.state.skip_to(index.next_seq())
            loader.next_group = max(loader.next_group, clean or 0, known.latest + 1 if known else 0)
            return self._adopt(files, journal, loader, foreign)
        if journal.segments:
            _settle(journal.segments[-1], closed=clean is not None)
        journal.next_group, journal.at, journal.starts = loader.next_group, loader.at, loader.starts
        journal.loads = loader.loads
        if known is not None:
            ledger.state.skip_to(known.first)
            journal.at = max(journal.at, known.at)
            if not journal.segments:
                journal.next_group = known.starts[-1]
                journal.starts = known.starts[-1:]
        return journal

    def _is_stray(self, files: JournalFiles, name: str) -> bool:
        """Whether a file only has the name of a rotated one. If it is damaged, its groups will be missing."""
        if journals([name]) != [files.name] or name == files.name or name.endswith(".pack"):
            return False
        if stray := not is_journal(files.path(name), self._disk, self._dialect):
            strays.warn(files.folder, name)
        return stray

    def _judge(
        self, segment: Segment, rest: Rest, last: bool, clean: int | None, next_group: int
    ) -> list[KestrelEntry]:
        """Refuse, quarantine or cut off the bytes after the last group; another program's entries among them."""
        path = segment.file.path
        if not rest.offset and rest.torn and rest.data[0] not in BEGINNINGS:
            raise StoreCorrupt(
                f"{path!r} is no journal, or its beginning is damaged. Nothing was changed. Move it elsewhere, or "
                "put the file back from a copy; `penstock doctor` shows what can be saved"
            )
        if rest.is_damage(last, clean):
            where = f"; whole groups follow from offset {rest.group_after} on" if rest.group_after else ""
            raise StoreCorrupt(
                f"{path!r} is damaged at offset {rest.offset}, where group {next_group} should be{where}. Nothing "
                "was changed. Put the file back from a copy; `penstock doctor` shows what can be saved"
            )
        if rest.torn:
            torn = rest.data.rstrip(b"\0\1")
            try:
                kept = f"They were moved to {self._keep(segment, rest.offset, torn)}"
            except OSError as error:
                if not is_full(error):
                    raise
                kept = "There is no space to keep them"  # recovery needs none
            _log.warning(
                "%s: %d bytes at its end are no whole group; a crash interrupted the write, which no one was told "
                "had succeeded. %s",
                path, len(torn), kept,
            )  # fmt: skip
            segment.file.truncate(rest.offset)
            segment.file.sync()
            return []
        if rest.broken is not None:
            kept = self._keep(segment, rest.broken, rest.data[rest.broken - rest.offset :])
            _log.warning("%s cannot be read from offset %d on; the rest was moved to %s", path, rest.broken, kept)
        return rest.entries

    def _keep(self, segment: Segment, offset: int, data: bytes) -> str:
        """Move bytes to quarantine, with the mode of their file; the path."""
        return self._catalog.quarantine(segment.name, offset, data, segment.file.status().mode)

    def _adopt(
        self, files: JournalFiles, journal: Journal, loader: Loader, foreign: list[KestrelEntry]
    ) -> Journal:
        """Write the entries of another program as a packed file of ours, and recover that."""
        state, now = journal.ledger.state, max(loader.at, self._clock.now())
        items = kestrel.replay_entries(state, foreign, now)
        if journal.entry is not None and state.settings != journal.entry.settings:
            state.replay(Update(now, journal.entry.settings))  # the record that changed them may be lost
        packed = kestrel.rewrite(files, journal.segments, state, items, loader.next_group, now, self._dialect)
        entry = journal.entry or Entry(state.name)
        self._catalog.keep(journal.file, entry)
        adopted = self._load_with(None, journal.file, entry, state.name, [packed.name], None)
        adopted.loads = loader.loads
        return adopted


def _settle(segment: Segment, closed: bool) -> None:
    """Cut off the filling of the latest file, and make it durable: the next write relies on where it ends.

    It is written anew unless the store was closed: after a failed sync the system may show bytes that the disk
    never got, and call them synced.
    """
    filled = segment.file.size() > segment.size
    if filled:
        segment.file.truncate(segment.size)
    if not closed:
        for offset in range(0, segment.size, _CHUNK):
            segment.file.write(offset, segment.file.read(offset, min(_CHUNK, segment.size - offset)))
    if filled or not closed:
        segment.file.sync()
