"""What is the matter with a journal store: looks at every byte and changes none.

It takes no lock, so another process may have the store open; then the end of a journal may be in motion.
"""

import os
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from penstock.contract.examination import Examination, Finding, QueueExamination
from penstock.errors import InvalidArgument, StoreCorrupt, StoreUnavailable
from penstock.stores.journal.catalog import FOLDER, LOST, PUT_BACK, Catalog, Entry, queue_of
from penstock.stores.journal.checkup import check
from penstock.stores.journal.files import Segment
from penstock.stores.journal.format import DIALECTS, Dialect
from penstock.stores.journal.reading import Found, close, open_segments
from penstock.stores.journal.segments import is_temporary, journals, replay_order
from penstock.stores.journal.staging import MANIFEST, is_abandoned
from penstock.stores.journal.strays import check_folder, find_strays
from penstock.system.clock import SystemClock
from penstock.system.files import Disk, SystemDisk

_LOOKS = 3  # at a journal in motion, before what seems a problem is called one


class _Subfolder(Catalog):
    """The subfolder of a store, read by someone who may not touch it."""

    def __init__(self, folder: str, disk: Disk) -> None:
        super().__init__(folder, disk)
        self.damage: list[Finding] = []

    def holder(self) -> str | None:
        """Who has the store open."""
        with suppress(FileNotFoundError), self._disk.open(self._in("lock")) as file:
            if not file.lock():
                return file.read(0, 100).decode(errors="replace").strip() or "another process"
            file.unlock()
        return None

    def entries(self) -> dict[str, Entry]:
        """Every queue that is known here; again if one was deleted meanwhile."""
        for _ in range(_LOOKS):
            with suppress(FileNotFoundError):
                return super().entries()
        return super().entries()

    def _read(self, path: str) -> Any:
        """Of a damaged file what can be told without it."""
        try:
            return super()._read(path)
        except StoreCorrupt as error:
            if path == self._in("clean"):
                raise
            finding = Finding("problem", str(error).partition(". ")[0], f"put {path} back from a copy", path)
            if finding not in self.damage:
                self.damage.append(finding)
        return {"first": 1} if path == self._in("store") else asdict(Entry(queue_of(os.path.basename(path))))

    def names(self, subfolder: str = "") -> list[str]:
        """What is in it, or in one of its folders."""
        with suppress(FileNotFoundError):
            return sorted(self._disk.listdir(self._in(subfolder)))
        return []

    def size(self, subfolder: str, name: str) -> int:
        """How long a file is."""
        with suppress(OSError), self._disk.open(os.path.join(self._in(subfolder), name)) as file:
            return file.size()
        return 0


def examine(
    folder: str | os.PathLike[str], disk: Disk | None = None, dialect: Dialect = "doc", now: int | None = None
) -> Examination[QueueExamination]:
    """Examine the journal store in a folder, as of now.

    >>> examine("data").sound
    """
    if dialect not in DIALECTS:
        raise InvalidArgument(f"dialect={dialect!r} is none of {', '.join(DIALECTS)}")
    disk, folder = disk or SystemDisk(), os.fspath(folder)
    found: Examination[QueueExamination] = Examination(folder, SystemClock().now() if now is None else now)
    try:
        names, others = sorted(disk.listfiles(folder)), sorted(disk.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        found.findings.append(
            Finding("problem", f"there is no folder {folder!r}", "check the name; opening it makes an empty store")
        )
        return found
    try:
        check_folder(folder, disk, dialect)
    except (StoreCorrupt, StoreUnavailable) as error:
        what, _, advice = str(error).rpartition(": ")
        found.findings.append(Finding("problem", what, advice))
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
        found.findings.append(Finding("problem", f"{path} {LOST}", f"p{PUT_BACK[1:]}", path))
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
    """Examine one journal; again if what seems a problem may only have been in motion."""
    for _ in range(1 if found.holder is None else _LOOKS):
        name = queue_of(file) if known is None else known.name
        segments: list[Segment] = []
        try:
            segments = open_segments(found.folder, file, disk)
            forgotten = "" if known else subfolder.forgotten(file)
            journal = Found(name, file, known, segments, clean, dialect, forgotten)
            queue = check(journal, subfolder.index(file), disk, found.at, found.holder)
        except OSError as error:
            queue = QueueExamination(name, file)
            queue.findings.append(_not_readable(error))
        finally:
            close(segments)
        if queue.sound:
            break
        known = subfolder.entry(file)
    return queue


def _not_readable(error: OSError) -> Finding:
    path = error.filename
    return Finding("problem", f"a file cannot be read: {error.strerror}", f"look what is wrong with {path}", path)


def _opened(holder: str | None, subfolder: _Subfolder, files: list[str]) -> Iterator[Finding]:
    """Whether the store is open, was closed, or never was one."""
    names = subfolder.names()
    if holder is not None:
        yield Finding(
            "note",
            f"the store is open in {holder}: the end of a journal may be in motion, and leftovers are not looked "
            "for, as they may be in use",
            "for a certain answer close it there first",
        )
    elif not names:
        what = "nothing but journals of another program" if files else "nothing of a store"
        yield Finding(
            "note", f"Penstock never opened this folder: it has {what}", "nothing: opening makes it a store"
        )
    elif "clean" not in names:
        yield Finding(
            "note",
            "the store was not closed: a crash, or a kill, ended the process that had it",
            "nothing: opening looks at how each journal ends",
        )
    elif not subfolder.clean():
        yield Finding(
            "note", "the mark that the store was closed is damaged", "nothing: opening takes it as not closed"
        )
    else:
        yield Finding("ok", "the store was closed as it should be")


def _leftovers(names: Iterable[str], files: list[str], deleted: set[str], folder: str) -> Iterator[Finding]:
    """What a crash in the middle of rotating or packing left."""
    names = set(names)
    living = {name for file in files for name in replay_order(names, file)}
    doomed = {name for name in names for file in journals([name]) if file in deleted}
    for name in sorted(names - living - doomed):
        path = os.path.join(folder, name)
        journal = name.partition("~~")[0]
        if journal != name:
            removed = "nothing: opening removes it" if journal in files else "remove it"
            yield Finding(
                "note", f"{name} is a temporary file that a crash left, and never counted", removed, path
            )
        elif journals([name]) and not _is_latest(name):
            yield Finding(
                "note",
                f"{name} is dead: it was packed into a later file, before a crash",
                "nothing: opening removes it",
                path,
            )
    for name in sorted(living):
        if name.endswith(".pack"):
            path = os.path.join(folder, name)
            yield Finding("note", f"{name} was packed, and then came a crash", "nothing: opening renames it", path)


def _unfinished(subfolder: _Subfolder, deleted: set[str]) -> Iterator[Finding]:
    """What a crash in the middle of writing to the subfolder left."""
    for file in sorted(deleted):
        entry = subfolder.entry(file)
        name = entry.name if entry else file
        yield Finding(
            "note", f"queue {name} was deleted, but not all of its files", "nothing: opening removes them"
        )
    for folder in ("", "queues", "index", "quarantine"):
        for name in subfolder.names(folder):
            if name.endswith(".new"):
                path = os.path.join(subfolder.path, folder, name)
                yield Finding(
                    "note", f"{name} was being written when a crash came, and never counted", "remove it", path
                )


def _staged(subfolder: _Subfolder) -> Iterator[Finding]:
    """Messages that were being loaded."""
    for load in subfolder.names("staged"):
        if MANIFEST in subfolder.names(os.path.join("staged", load)):
            yield Finding(
                "note",
                f"load {load} took effect, and was interrupted before its messages had arrived",
                "nothing: opening takes them in",
            )
        elif is_abandoned(load):
            yield Finding(
                "note", f"load {load} was given up by a process that is gone", "nothing: opening removes it"
            )


def _strangers(names: Iterable[str], files: set[str], strays: Container[str], folder: str) -> Iterator[Finding]:
    """What is no journal."""
    for name in names:
        path = os.path.join(folder, name)
        journal = journals([name])
        if name == FOLDER or (name in files and (is_temporary(name) or (journal and journal[0] not in strays))):
            continue
        yield Finding(
            "note",
            f"{name} is no journal: Penstock leaves it alone, but a Kestrel would stumble over it",
            "move it elsewhere if a Kestrel is to open this folder",
            path,
        )


def _quarantine(subfolder: _Subfolder) -> Iterator[Finding]:
    for name in subfolder.names("quarantine"):
        if not name.endswith(".new"):
            yield Finding(
                "note",
                f"{subfolder.size('quarantine', name):,} bytes that could not be read were once moved to {name}",
                "look at them, and remove the file when no one needs it",
                os.path.join(subfolder.path, "quarantine", name),
            )


def _is_latest(name: str) -> bool:
    return "." not in name


__all__ = ["Examination", "Finding", "QueueExamination", "examine"]
