"""`penstock doctor` for journal stores: reads every byte, changes none, and reports findings.

It takes no lock. If another process has the store open, the end of a journal may change while it is read.
"""

import os
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from penstock.contract.examination import Examination, Finding, QueueExamination, note, problem
from penstock.errors import StoreCorrupt, StoreUnavailable
from penstock.rules.ledger import Ledger
from penstock.rules.rows import Page
from penstock.rules.state import StateSnapshot
from penstock.stores.examining import plural, times, word
from penstock.stores.journal import bodies, kestrel
from penstock.stores.journal.catalog import FOLDER, LOST, PUT_BACK, Catalog, Entry, queue_of
from penstock.stores.journal.files import PLACE_BITS, Segment, is_temporary, journals, offset_of, replay_order
from penstock.stores.journal.format import Dialect, check_dialect
from penstock.stores.journal.index import SavedIndex, read_index
from penstock.stores.journal.packing import packed_size
from penstock.stores.journal.reading import (
    Damage,
    FoundJournal,
    Reading,
    close_segments,
    covers,
    left_of,
    open_segments,
    read,
)
from penstock.stores.journal.staging import MANIFEST, is_abandoned
from penstock.stores.journal.strays import check_folder, find_strays
from penstock.system.clock import SystemClock
from penstock.system.files import Disk, SystemDisk

_LOOKS = 3  # tries, at a journal of an open store, before a problem is reported
_WORTH_PACKING = 1 << 20
_SHOWN = 20  # ids of damaged messages that are named
_SECOND = 1_000


def check(journal: FoundJournal, index_path: str, disk: Disk, now: int, holder: str | None) -> QueueExamination:
    """Examine one journal. `now` is the clock's time; `holder` the process that may be writing to it."""
    found = QueueExamination(journal.name, journal.file, len(journal.segments))
    found.bytes = sum(segment.size for segment in journal.segments)
    index = read_index(disk, index_path)
    holds = index is not None and index.holds(journal.segments)
    if disk.exists(index_path) and not holds:
        found.findings.append(_stale_index(index, index_path))
    reading = read(journal)
    found.groups = reading.loader.count
    damage = reading.damage
    if damage is not None and index is not None and holds and covers(index, damage):
        reading = read(journal, index)  # as opening does
    if reading.damage is not None:
        found.findings.append(_damage(journal, reading, reading.damage))
        found.counts = reading.ledger.state.counts()
        return found
    found.findings += _torn(reading, holder)
    found.findings += _behind(reading, now)
    _check_messages(journal, reading, damage, max(now, reading.loader.at), found)
    if found.sound:
        found.findings.insert(0, _all_whole(found))
    return found


def _check_messages(
    journal: FoundJournal, reading: Reading, damage: Damage | None, now: int, found: QueueExamination
) -> None:
    """Examine the messages that opening will find; `damage` is covered by the saved index."""
    ledger = reading.ledger
    found.findings += times(ledger.state, now)
    ledger.state.advance(now)
    snapshot = ledger.state.snapshot()
    damaged = dict(damaged_bodies(snapshot, journal.segments))
    if damage is not None:
        found.findings.append(_indexed_damage(journal, damage, damaged))
    elif damaged:
        found.findings.append(_damaged_bodies(journal, damaged))
    if reading.foreign or reading.unreadable:
        found.findings += _adopt(reading, now)
    elif journal.segments:
        found.packing_frees = max(0, found.bytes - packed_size(snapshot, reading.loader.next_group))
        found.findings += _worth_packing(found)
    found.counts = reading.ledger.state.counts()


def damaged_bodies(snapshot: StateSnapshot, segments: list[Segment]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Messages whose bodies have a wrong checksum, each with the file and the offset."""
    known = {segment.number: segment for segment in segments}
    for first, page in snapshot.pages:
        keys = page.keys()
        for row, state in enumerate(page.state):
            if not state:
                continue
            segment, offset = known[page.place[row] >> PLACE_BITS], offset_of(page.place[row])
            if not _is_whole(segment, offset, page, row):
                yield first + keys[row], (segment.file.path, offset)


def _is_whole(segment: Segment, offset: int, page: Page, row: int) -> bool:
    try:
        return bodies.checksum(segment.file.read(offset, page.size[row])) == page.crc[row]
    except OSError:
        return False


def _all_whole(found: QueueExamination) -> Finding:
    counted = sum(found.counts.values())
    return Finding("ok", f"{plural(found.groups, 'group')} and {plural(counted, 'message')}, all of them whole")


def _damage(journal: FoundJournal, reading: Reading, damage: Damage) -> Finding:
    before, after = left_of(journal.segments, reading, damage)
    text = (
        f"{damage.why}. Opening is refused (StoreCorrupt) and changes nothing. "
        f"{plural(before, 'message')} can be saved from before that place, {after:,} from after it"
    )
    if damage.position == len(journal.segments):
        return problem(text, "put back the right files from a copy")
    path = journal.segments[damage.position].file.path
    advice = f"put {os.path.basename(path)} back from a copy"
    if before:
        later = [os.path.basename(each.file.path) for each in journal.segments[damage.position + 1 :]]
        move = f", move {', '.join(later)} elsewhere" if later else ""
        advice += (
            f"; without one, save a copy of the folder, then `truncate -s {damage.offset} "
            f"{os.path.basename(path)}`{move} and remove .penstock/clean: the store opens with what was before"
        )
    return problem(text, advice, path, damage.offset)


def _indexed_damage(journal: FoundJournal, damage: Damage, damaged: dict[int, tuple[str, int]]) -> Finding:
    text = f"{damage.why}. The store opens all the same, as the snapshot of the queue's index stands for that part"
    path, offset = journal.segments[damage.position].file.path, damage.offset
    pack = f"`penstock pack {word(journal.name)}` writes the journal anew"
    if not damaged:
        return problem(f"{text}; no message is damaged", pack, path, offset)
    return problem(
        f"{text}. {_named(damaged)} cannot be read any more",
        f"put {os.path.basename(path)} back from a copy; without one, `penstock remove {word(journal.name)} "
        f"{' '.join(_ids(damaged))}`, then {pack}",
        path,
        offset,
    )


def _damaged_bodies(journal: FoundJournal, damaged: dict[int, tuple[str, int]]) -> Finding:
    path, offset = next(iter(damaged.values()))
    return problem(
        f"{_named(damaged)} cannot be read: the checksum of the body is wrong",
        f"put {os.path.basename(path)} back from a copy, or `penstock remove {word(journal.name)} "
        f"{' '.join(_ids(damaged))}`",
        path,
        offset,
    )


def _torn(reading: Reading, holder: str | None) -> Iterator[Finding]:
    if reading.torn is None:
        return
    segment, rest = reading.torn
    path, count = segment.file.path, len(rest.data.rstrip(b"\x01"))
    text = f"{os.path.basename(path)} ends with {plural(count, 'byte')} that are no whole group"
    if holder is not None:
        yield note(f"{text}: the store is open, and may just write there", "", path, rest.offset)
        return
    yield note(
        f"{text}: a crash interrupted a write that no one was told had succeeded, or the very last group is "
        "damaged, which looks the same",
        "nothing: opening moves them to .penstock/quarantine",
        path,
        rest.offset,
    )


def _adopt(reading: Reading, now: int) -> Iterator[Finding]:
    """Adopt another program's entries as opening does, in memory only."""
    for segment, offset in reading.unreadable:
        path = segment.file.path
        yield problem(
            f"{os.path.basename(path)}, which another program wrote, cannot be read from offset {offset} on. "
            f"Opening keeps what is before and moves the other {plural(segment.size - offset, 'byte')} to "
            ".penstock/quarantine",
            "put it back from a copy, or, if a Kestrel 2.x wrote it, give the store as journal:DIR?dialect=2.x",
            path,
            offset,
        )
    if not reading.foreign:
        return
    ledger = reading.ledger
    before = ledger.state.size()
    brought = len(kestrel.replay_entries(ledger.state, reading.foreign, now))
    taken = before + brought - ledger.state.size()
    reading.ledger = _reloaded(ledger)  # opening reads the packed file that it has written
    reading.ledger.state.advance(now)
    took = f" and took {plural(taken, 'message')} of ours" if taken else ""
    yield note(
        f"another program, as Kestrel, wrote {plural(len(reading.foreign), 'entry', 'entries')}, which brought "
        f"{plural(brought, 'message')}{took}",
        "nothing: opening makes them ours, in a file that Kestrel can still read; copy the folder first if it "
        "must stay as it is",
    )


def _reloaded(ledger: Ledger) -> Ledger:
    snapshot, reloaded = ledger.state.snapshot(), Ledger(ledger.name, ledger.settings)
    reloaded.state.updated = ledger.state.updated
    for first, page in snapshot.pages:
        reloaded.state.load_page(first, page)
    reloaded.streams.load(snapshot.streams)
    reloaded.state.load(snapshot)
    return reloaded


def _behind(reading: Reading, now: int) -> Iterator[Finding]:
    ahead = reading.loader.at - now
    if ahead > _SECOND:
        yield note(
            f"the journal's latest time is {ahead // _SECOND:,} s ahead of the clock, and the store's time goes "
            "on from there",
            "look at the machine's clock",
        )


def _stale_index(index: SavedIndex | None, path: str) -> Finding:
    why = "is not whole" if index is None else "is of another time than the journal"
    return note(
        f"the snapshot of the queue's index {why}",
        "nothing: opening reads the journal itself, which takes longer, and closing writes a new one",
        path,
    )


def _worth_packing(found: QueueExamination) -> Iterator[Finding]:
    if found.packing_frees >= max(_WORTH_PACKING, found.bytes // 2):
        yield note(
            f"packing would free about {found.packing_frees:,} of {found.bytes:,} bytes",
            f"nothing: the store packs by itself when it is worth it; `penstock pack {word(found.name)}` does it "
            "now",
        )


def _named(damaged: dict[int, tuple[str, int]]) -> str:
    return f"{plural(len(damaged), 'message')} ({', '.join(_ids(damaged))})"


def _ids(damaged: dict[int, tuple[str, int]]) -> list[str]:
    return [*map(str, list(damaged)[:_SHOWN]), *(["..."] if len(damaged) > _SHOWN else [])]


class _Subfolder(Catalog):
    """The catalog of a store, read only: damaged files become findings."""

    def __init__(self, folder: str, disk: Disk) -> None:
        super().__init__(folder, disk)
        self.damage: list[Finding] = []

    def holder(self) -> str | None:
        with suppress(FileNotFoundError), self._disk.open(self._in("lock")) as file:
            if not file.lock():
                return file.read(0, 100).decode(errors="replace").strip() or "another process"
            file.unlock()
        return None

    def entries(self) -> dict[str, Entry]:
        for _ in range(_LOOKS):
            with suppress(FileNotFoundError):
                return super().entries()
        return super().entries()

    def _read(self, path: str) -> Any:
        """Defaults in place of a damaged file."""
        try:
            return super()._read(path)
        except StoreCorrupt as error:
            if path == self._in("clean"):
                raise
            finding = problem(str(error).partition(". ")[0], f"put {path} back from a copy", path)
            if finding not in self.damage:
                self.damage.append(finding)
        return {"first": 1} if path == self._in("store") else asdict(Entry(queue_of(os.path.basename(path))))

    def names(self, subfolder: str = "") -> list[str]:
        """The files of the subfolder, or of a folder in it."""
        with suppress(FileNotFoundError):
            return sorted(self._disk.listdir(self._in(subfolder)))
        return []

    def size(self, subfolder: str, name: str) -> int:
        with suppress(OSError), self._disk.open(os.path.join(self._in(subfolder), name)) as file:
            return file.size()
        return 0


def examine(
    folder: str | os.PathLike[str], disk: Disk | None = None, dialect: Dialect = "doc", now: int | None = None
) -> Examination[QueueExamination]:
    """Examine the journal store in a folder, as of now.

    >>> examine("data").sound
    """
    check_dialect(dialect)
    disk, folder = disk or SystemDisk(), os.fspath(folder)
    found: Examination[QueueExamination] = Examination(folder, SystemClock().now() if now is None else now)
    try:
        names, others = sorted(disk.listfiles(folder)), sorted(disk.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        found.findings.append(
            problem(f"there is no folder {folder!r}", "check the name; opening it makes an empty store")
        )
        return found
    try:
        check_folder(folder, disk, dialect)
    except (StoreCorrupt, StoreUnavailable) as error:
        what, _, advice = str(error).rpartition(": ")
        found.findings.append(problem(what, advice))
        return found
    subfolder = _Subfolder(folder, disk)
    found.holder = subfolder.holder()
    entries = subfolder.entries()
    subfolder.first()
    deleted = {file for file, entry in entries.items() if entry.deleted}
    strays = find_strays(folder, names, entries, disk, dialect)
    files = [file for file in dict.fromkeys([*entries, *journals(names)]) if file not in {*deleted, *strays}]
    found.findings += _opened(found.holder, subfolder, files)
    found.findings += subfolder.damage
    if found.holder is None:
        found.findings += _leftovers(names, files, {*deleted, *strays}, folder)
        found.findings += _unfinished(subfolder, deleted)
        found.findings += _staged(subfolder)
    found.findings += _strangers(others, set(names), strays, folder)
    found.findings += _quarantine(subfolder)
    clean = subfolder.clean() if found.holder is None else {}
    for path in subfolder.lost({*entries, *journals(names)}, clean):
        found.findings.append(problem(f"{path} {LOST}", f"p{PUT_BACK[1:]}", path))
    for file in files:
        known = entries.get(file)
        queue = _look(file, known, subfolder, disk, clean.get(file), dialect, found)
        found.queues.append(queue)
    found.queues.sort(key=lambda queue: queue.name)
    return found


def _look(
    file: str,
    known: Entry | None,
    subfolder: _Subfolder,
    disk: Disk,
    clean: int | None,
    dialect: Dialect,
    found: Examination[QueueExamination],
) -> QueueExamination:
    """Examine one journal; of an open store again, if a problem may come from a concurrent write."""
    for _ in range(1 if found.holder is None else _LOOKS):
        name = queue_of(file) if known is None else known.name
        segments: list[Segment] = []
        try:
            segments = open_segments(found.folder, file, disk)
            forgotten = "" if known else subfolder.forgotten(file)
            journal = FoundJournal(name, file, known, segments, clean, dialect, forgotten)
            queue = check(journal, subfolder.index(file), disk, found.at, found.holder)
        except OSError as error:
            queue = QueueExamination(name, file)
            queue.findings.append(_not_readable(error))
        finally:
            close_segments(segments)
        if queue.sound:
            break
        known = subfolder.entry(file)
    return queue


def _not_readable(error: OSError) -> Finding:
    path = error.filename
    return problem(f"a file cannot be read: {error.strerror}", f"look what is wrong with {path}", path)


def _opened(holder: str | None, subfolder: _Subfolder, files: list[str]) -> Iterator[Finding]:
    """Whether the store is open, was closed or was never opened."""
    names = subfolder.names()
    if holder is not None:
        yield note(
            f"the store is open in {holder}: the end of a journal may be in motion, and leftovers are not looked "
            "for, as they may be in use",
            "for a certain answer close it there first",
        )
    elif not names:
        what = "nothing but journals of another program" if files else "nothing of a store"
        yield note(f"Penstock never opened this folder: it has {what}", "nothing: opening makes it a store")
    elif "clean" not in names:
        yield note(
            "the store was not closed: a crash, or a kill, ended the process that had it",
            "nothing: opening looks at how each journal ends",
        )
    elif not subfolder.clean():
        yield note("the mark that the store was closed is damaged", "nothing: opening takes it as not closed")
    else:
        yield Finding("ok", "the store was closed as it should be")


def _leftovers(names: Iterable[str], files: list[str], deleted: set[str], folder: str) -> Iterator[Finding]:
    """Files that a crash left during rotation or packing."""
    names = set(names)
    living = {name for file in files for name in replay_order(names, file)}
    doomed = {name for name in names for file in journals([name]) if file in deleted}
    for name in sorted(names - living - doomed):
        path = os.path.join(folder, name)
        journal = name.partition("~~")[0]
        if journal != name:
            removed = "nothing: opening removes it" if journal in files else "remove it"
            yield note(f"{name} is a temporary file that a crash left, and never counted", removed, path)
        elif journals([name]) and "." in name:
            yield note(
                f"{name} is dead: it was packed into a later file, before a crash",
                "nothing: opening removes it",
                path,
            )
    for name in sorted(living):
        if name.endswith(".pack"):
            path = os.path.join(folder, name)
            yield note(f"{name} was packed, and then came a crash", "nothing: opening renames it", path)


def _unfinished(subfolder: _Subfolder, deleted: set[str]) -> Iterator[Finding]:
    """Files that a crash left during a deletion or a write to the subfolder."""
    for file in sorted(deleted):
        entry = subfolder.entry(file)
        name = entry.name if entry else file
        yield note(f"queue {name} was deleted, but not all of its files", "nothing: opening removes them")
    for folder in ("", "queues", "index", "quarantine"):
        for name in subfolder.names(folder):
            if name.endswith(".new"):
                path = os.path.join(subfolder.path, folder, name)
                yield note(f"{name} was being written when a crash came, and never counted", "remove it", path)


def _staged(subfolder: _Subfolder) -> Iterator[Finding]:
    """Loads that a crash interrupted."""
    for load in subfolder.names("staged"):
        if MANIFEST in subfolder.names(os.path.join("staged", load)):
            yield note(
                f"load {load} took effect, and was interrupted before its messages had arrived",
                "nothing: opening takes them in",
            )
        elif is_abandoned(load):
            yield note(f"load {load} was given up by a process that is gone", "nothing: opening removes it")


def _strangers(names: Iterable[str], files: set[str], strays: Container[str], folder: str) -> Iterator[Finding]:
    """Stray files."""
    for name in names:
        path = os.path.join(folder, name)
        journal = journals([name])
        if name == FOLDER or (name in files and (is_temporary(name) or (journal and journal[0] not in strays))):
            continue
        yield note(
            f"{name} is no journal: Penstock leaves it alone, but a Kestrel would stumble over it",
            "move it elsewhere if a Kestrel is to open this folder",
            path,
        )


def _quarantine(subfolder: _Subfolder) -> Iterator[Finding]:
    for name in subfolder.names("quarantine"):
        if not name.endswith(".new"):
            yield note(
                f"{subfolder.size('quarantine', name):,} bytes that could not be read were once moved to {name}",
                "look at them, and remove the file when no one needs it",
                os.path.join(subfolder.path, "quarantine", name),
            )


__all__ = ["Examination", "Finding", "QueueExamination", "examine"]
