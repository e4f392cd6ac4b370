"""The doctor for text stores: reads every line of the queues' files and of their mutex files, and changes nothing.

Both files of a queue are read under its lock, if it has one and no process holds it for long, so that they belong
together. A file that a person has edited is compared with its mutex file as the next operation will do it.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.contract.examination import Examination, Finding, Held, note, problem
from penstock.contract.kinds import split
from penstock.contract.message import STATES
from penstock.errors import StoreUnavailable
from penstock.stores.examining import plural, times, word
from penstock.stores.text import mutex
from penstock.stores.text.catalog import SUFFIX, files_of_queues, has_file, is_text_file, queue_of, stem_of
from penstock.stores.text.files import NAME
from penstock.stores.text.files import SUFFIX as MUTEX
from penstock.stores.text.format import COMMENT, QUEUED, Document, Entry, Lines, parse
from penstock.stores.text.ledger import noted
from penstock.stores.text.mutex import HEAD, Memory, Note
from penstock.stores.text.queue import packable
from penstock.stores.text.variables import facts, oddities, write_time
from penstock.stores.text.view import View, load
from penstock.system.clock import FOLLOWED, SystemClock, rest
from penstock.system.files import OWN_FOLDER, Disk, ReadingDisk, Status, appenders, identity, refusal

_TRIES, _PAUSE = 100, 0.01  # to get the lock of a queue
_WORTH_PACKING = 64 << 10
_SHOWN = 20  # findings of one kind that are named
_TEMPORARY = ".new"


@dataclass
class TextExamination:
    """The contents of one queue's file, as opening the store at that moment would show them."""

    name: str
    file: str  # its path
    bytes: int = 0
    lines: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    comments: int = 0
    skipped: int = 0  # lines that belong to nothing
    packing_frees: int = 0  # bytes
    packing_drops: int = 0  # entries
    held: list[Held] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def cells(self) -> Mapping[str, int | None]:
        sizes = {"bytes": self.bytes, "lines": self.lines}
        return {**sizes, **self.counts, "comments": self.comments, "skipped": self.skipped,
                "packing frees": self.packing_frees}  # fmt: skip


class _Files(NamedTuple):
    """Both files of a queue, as they were at one moment."""

    data: bytes
    status: Status
    mutex_path: str
    head: bytes | None  # the content of the mutex file; None: there is none
    is_locked: bool  # whether no process was changing them


def examine(url: str, disk: Disk | None = None, now: int | None = None) -> Examination[TextExamination]:
    """Examine `text:DIR`, or one file `NAME.tq`.

    >>> examine("jobs.tq").sound
    """
    _, place = split(url)
    disk = disk or ReadingDisk()
    found: Examination[TextExamination] = Examination(place, SystemClock().now() if now is None else now)
    try:
        if is_text_file(place):
            files = _only(place, disk)
        else:
            files = files_of_queues(place, disk, lambda path, error: found.findings.append(_skipped(path, error)))
        found.findings += _strays(place, files, disk)
    except (FileNotFoundError, NotADirectoryError):
        found.findings.append(problem(f"there is no text store {place!r}", "check the name; a put makes one"))
        return found
    except (OSError, StoreUnavailable) as error:
        found.findings.append(_refused(place, error))
        return found
    for name in sorted(files):
        found.queues.append(_examine_queue(name, files[name], disk, found.at))
    if all(each.severity == "ok" for _, each in found.all_findings()):
        found.findings.append(Finding("ok", "every line is understood, and nothing is left over"))
    return found


def _only(path: str, disk: Disk) -> dict[str, str]:
    if not has_file(path, disk):
        raise FileNotFoundError(path)
    file = os.path.basename(path)
    return {queue_of(file) or stem_of(file): path}


def _skipped(path: str, error: OSError) -> Finding:
    """A name that looks like a queue's, and is none or may not be read."""
    return (note if not isinstance(error, PermissionError) else problem)(
        f"skipped: {refusal(path, error)}", "", path
    )


def _refused(path: str, error: OSError | StoreUnavailable) -> Finding:
    return problem(refusal(path, error) if isinstance(error, OSError) else str(error), "", path)


def _strays(place: str, files: dict[str, str], disk: Disk) -> Iterator[Finding]:
    """Names that are neither queues nor their mutex files."""
    folder = os.path.dirname(place) or "." if is_text_file(place) else place
    known = {os.path.basename(path) for path in files.values()}
    others = []
    for name in sorted(disk.listdir(folder)):
        path = os.path.join(folder, name)
        queue = name.removesuffix(_TEMPORARY).removesuffix(MUTEX)
        if is_text_file(place) and queue not in known:
            continue  # of no concern to a store of one file
        if name.endswith((SUFFIX + _TEMPORARY, SUFFIX + MUTEX + _TEMPORARY)):
            left = "a crash left it, and it never counted; or a program is just writing it"
            yield note(f"{name} is a temporary file: {left}", "remove it if nothing uses the store", path)
        elif name.endswith(SUFFIX + MUTEX) and queue not in known:
            leases = "it has the leases and attempts of a queue whose file is not here"
            yield note(f"{name} is left over: {leases}", f"put {queue} back, or remove it", path)
        elif name not in known and not name.endswith((SUFFIX, SUFFIX + MUTEX)) and name != OWN_FOLDER:
            others.append(name)
    for name in others[:_SHOWN]:
        path = os.path.join(folder, name)
        yield note(f"{name} is no queue, as its name does not end in {SUFFIX}: it is left alone", "", path)
    if others[_SHOWN:]:
        yield note(f"{plural(len(others) - _SHOWN, 'more file is', 'more files are')} no queues and left alone")


# One queue


def _examine_queue(name: str, path: str, disk: Disk, at: int) -> TextExamination:
    found = TextExamination(name, path)
    try:
        files = _read(disk.real(path), disk)
    except OSError as error:
        found.findings.append(_refused(error.filename or path, error))
        return found
    data = files.data
    document = parse(data)
    head = files.head or b""
    memory = mutex.read(head[HEAD:], HEAD)
    sealed, horizon = mutex.read_seal(head), at + FOLLOWED
    intact = sealed == mutex.seal_of(files.status)
    is_damaged = memory.end != max(len(head), HEAD)
    view = load(
        name,
        document,
        len(data),
        memory if memory.at <= horizon else memory._replace(at=0),
        intact,
        files.status.changed // 1_000_000,
        at,
        horizon,
        is_damaged,
        None if sealed is None else len(data) - sealed.size,
    ).view
    now = max(at, view.at)
    lines = Lines(data)
    found.bytes, found.lines = len(data), data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    found.comments = sum(entry.control == COMMENT for entry in document.entries)
    found.skipped = len(document.problems)
    found.findings += sorted(_lines(path, data, document, view), key=lambda each: each.line or 0)
    found.findings += _mutex(files, memory, view, intact, now)
    found.findings += _times(view, now, at, horizon)
    view.ledger.state.advance(now)
    found.counts = view.ledger.state.counts()
    found.held = sorted(
        [*_held(view, path, lines), *_marked(view, document, path, lines)], key=lambda each: each.line or 0
    )
    over = packable(document, view)
    found.packing_frees, found.packing_drops = sum(each.length for each in over), len(over)
    found.findings += _packing(found, files, path)
    return found


def _read(path: str, disk: Disk) -> _Files:
    """Read both files, under the lock if it can be had."""
    mutex_path = _mutex_of(path, disk)
    for left in range(_TRIES, -1, -1):
        with disk.open(path, follow=True) as file:
            try:
                with disk.open(mutex_path) as lock:
                    is_locked = lock.lock()
                    there = file.status()
                    replaced = disk.status(path).inode != there.inode
                    replaced |= disk.status(mutex_path).inode != lock.status().inode
                    if (is_locked and not replaced) or not left:
                        head = lock.read(0, lock.size())
                        return _Files(file.read(0, there.size), there, mutex_path, head, is_locked)
            except FileNotFoundError:
                if not disk.exists(mutex_path) or not left:
                    there = file.status()
                    return _Files(file.read(0, there.size), there, mutex_path, None, True)
        rest(_PAUSE)
    raise AssertionError("unreachable")


def _mutex_of(path: str, disk: Disk) -> str:
    """The path of the mutex file; unlike files.mutex_of, it marks nothing."""
    there = disk.status(path)
    if there.names > 1:
        with suppress(OSError):
            first = os.fsdecode(disk.attribute(path, NAME) or b"")
            if first and disk.status(first).inode == there.inode:
                return first + MUTEX
    return path + MUTEX


def _held(view: View, path: str, lines: Lines) -> Iterator[Held]:
    """Messages in flight."""
    table = view.table
    for seq in view.ledger.state.listed("in_flight", 0, len(table.ids)):
        known = noted(view.ledger.state, seq, Note(table.offsets[seq], 0, "", ""))
        line = lines.at(known.offset)
        yield Held(table.ids[seq], known.consumer, known.ends_at, known.attempts, path, line)


def _marked(view: View, document: Document, path: str, lines: Lines) -> Iterator[Held]:
    """Messages that another program has marked as its own."""
    delayed = set(view.ledger.state.listed("delayed", 0, len(view.table.ids)))
    for entry in document.entries:
        mark = facts(entry).mark if entry.control == QUEUED else ""
        seq = (view.table.at(entry.offset) or 0) if mark else 0
        if seq in delayed:
            yield Held(view.table.ids[seq], mark, None, 0, path, lines.at(entry.offset))


# What is odd about lines


def _lines(path: str, data: bytes, document: Document, view: View) -> Iterator[Finding]:
    lines, skipped = Lines(data), {each.offset for each in document.problems}
    for each in view.problems:
        line = lines.at(each.offset)
        if each.offset in skipped:
            text, advice = (
                f"line {line} is kept and skipped: {each.what}",
                "for a message begin it with -, for a comment with #; or take it out",
            )
        else:
            text, advice = f"line {line} counts as missing: {each.what}", "correct it, or take it out"
        yield note(text, advice, path, each.offset, line)
    ids: dict[str, int] = {}
    for entry in document.entries:
        for offset, what in oddities(entry):
            yield note(
                f"line {lines.at(offset)}: {what}", "correct it, or take it out", path, offset, lines.at(offset)
            )
        if (name := facts(entry).id) is not None:
            line = lines.at(entry.offset)
            if name in ids:
                text = (
                    f"line {line} has the id {name} of line {ids[name]}: both are messages, known by their texts"
                )
                yield note(text, "take \\id= out of the copy", path, entry.offset, line)
            ids.setdefault(name, line)
    yield from _line_ends(path, data, document.entries, lines)


def _line_ends(path: str, data: bytes, entries: list[Entry], lines: Lines) -> Iterator[Finding]:
    """Line ends of two kinds, and a last line without one."""
    all_ends, windows = data.count(b"\n"), data.count(b"\r\n")
    if 0 < windows < all_ends:
        odd = next((lines.at(each.offset) for each in entries if _is_mixed(data, each)), None)
        text = f"{plural(windows, 'line')} of {all_ends:,} end in \\r\\n, the others in \\n"
        if odd is not None:
            text += f"; in the entry at line {odd} they are mixed, so that each \\r is part of its text"
        yield note(text, "give all lines the same ends, if that is not what you want", path, None, odd)
    if data and not data.endswith(b"\n"):
        line, last = all_ends + 1, entries[-1] if entries else None
        if last is not None and last.control == COMMENT:
            text = "a comment, or a put that was cut off"
            advice = "nothing: the next operation ends the line"
        else:
            text, advice = "what a shell appends goes on in it", "end the line; a put of Penstock does so, too"
        yield note(f"line {line}, the last one, has no newline: {text}", advice, path, len(data), line)


def _is_mixed(data: bytes, entry: Entry) -> bool:
    raw = data[entry.offset : entry.offset + entry.length]
    return 0 < raw.count(b"\r\n") < raw.count(b"\n")


# The mutex file


def _mutex(files: _Files, memory: Memory, view: View, intact: bool, now: int) -> Iterator[Finding]:
    path, head = files.mutex_path, files.head
    file = os.path.basename(path)
    if head is None:
        if len(view.table.ids) > 1:
            yield note(
                f"there is no {file}: Penstock has not used the queue yet; or it was lost, and with it the leases "
                "and attempts that messages do not name themselves",
                "if it was lost, put it back from a copy; else nothing",
                path,
            )
        return
    if not files.is_locked:
        yield note(
            "a process holds the lock, and may be in the middle of a change", "for a certain answer try again"
        )
    if head[:HEAD] == mutex.DOUBTFUL:
        yield note(
            "a write or sync failed: it is unknown which of the last bytes the disk has",
            "look at the disk (`dmesg`); the next operation writes both files again",
            path,
        )
    elif head and not intact and files.is_locked:
        yield note(
            "the file was edited since Penstock last used it, or the machine has crashed",
            "nothing: the next operation compares it with its mutex file, message by message",
            files.mutex_path.removesuffix(MUTEX),
        )
    if memory.pending or memory.born:
        yield note(
            "an operation was interrupted before all of its bytes were in the queue's file",
            "nothing: the next one completes it",
            path,
            memory.last,
        )
    if view.leaving is not None:
        yield note(
            f"a move of {plural(len(view.leaving.ids), 'message')} to the queue in {view.leaving.to} was "
            "interrupted: both files may have them",
            "nothing: the next operation on either queue finishes it",
            path,
        )
    if memory.taken:
        yield note(
            f"a move of messages from the queue in {memory.taken} was interrupted: both files may have them",
            "nothing: the next operation on either queue finishes it",
            path,
        )
    yield from _damage(path, head, memory)
    lost = [
        each
        for each in memory.notes.values()
        if each.state == "in_flight" and each.ends_at > now and each.receipt not in view.receipts
    ]
    for each in lost[:_SHOWN]:
        yield note(
            f"{each.consumer or 'a consumer'} loses its lease until {write_time(each.ends_at)}, receipt "
            f"{each.receipt}: its message was changed or removed, or cannot be told from others that read alike",
            "nothing, if that was meant: its consumer gets LeaseExpired",
            path,
        )
    if lost[_SHOWN:]:
        yield note(f"{plural(len(lost) - _SHOWN, 'more lease')} are lost in the same way", "", path)


def _damage(path: str, head: bytes, memory: Memory) -> Iterator[Finding]:
    """Bytes of the mutex file that are no whole line."""
    torn = head[max(memory.end, HEAD) :]
    if not torn.strip(b"\0"):
        return
    _, newline, after = torn.partition(b"\n")
    line = head.count(b"\n", 0, memory.end) + 1
    if not newline or not after:
        yield note(
            f"line {line} of the mutex file is not whole: its operation was interrupted, and nobody was told that "
            "it had succeeded; or the very last line is damaged, which looks the same",
            "nothing: the next operation drops it",
            path,
            memory.end,
            line,
        )
        return
    lost = plural(after.count(b"\n"), "line")
    yield problem(
        f"line {line} of the mutex file is damaged: what it and {lost} after it say of leases, attempts, reasons "
        "and keys is lost, but for leases that messages name themselves",
        f"put {os.path.basename(path)} back from a copy of the same moment; without one the next operation goes "
        "on with what is left",
        path,
        memory.end,
        line,
    )


# Time and space


def _times(view: View, now: int, at: int, horizon: int) -> Iterator[Finding]:
    yield from times(view.ledger.state, now)
    latest = max(view.ahead, view.at)
    if latest > at + 1_000:
        far = latest > horizon
        yield note(
            f"the latest time in the files is {(latest - at) // 1_000:,} s ahead of the clock"
            + (", and is not followed: it ends no lease and expires nothing" if far else ""),
            "look at the machine's clock, or at the times that were written by hand",
        )


def _packing(found: TextExamination, files: _Files, path: str) -> Iterator[Finding]:
    if files.status.names > 1:
        yield note(
            "the file has several names (hard links), and is not packed: another file would part them", "", path
        )
    elif holders := appenders(identity(path)):
        yield note(f"process {holders[0]} has the file open to append, and it is not packed meanwhile", "", path)
    elif found.packing_frees >= max(_WORTH_PACKING, found.bytes // 2):
        entries = plural(found.packing_drops, "entry", "entries")
        yield note(
            f"packing would drop {entries}, {found.packing_frees:,} of {found.bytes:,} bytes",
            f"`penstock --store {shlex.quote(path)} pack` when nobody edits the file"
            if is_text_file(path)
            else f"`penstock pack {word(found.name)}`",
            path,
        )


__all__ = ["Examination", "Finding", "Held", "TextExamination", "examine"]
