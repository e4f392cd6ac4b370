"""TextQueue: the file format alone, without leases and settings; one file, and a lock file beside it."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from penstock.contract.settings import utf8
from penstock.errors import InvalidArgument
from penstock.stores.text.files import MutexLock, append_commented, is_appended, replace_queue, uncomment
from penstock.stores.text.format import (
    COMMENT,
    FAILED,
    PROCESSED,
    QUEUED,
    Document,
    Entry,
    Problem,
    Variable,
    dropped,
    encode,
    fitting,
    line_end,
    parse,
    parse_one,
    without,
)
from penstock.stores.text.mutex import DOUBTFUL
from penstock.system.files import Disk, File, SystemDisk

_log = logging.getLogger("penstock")
_HEAD = 1 << 16  # bytes that are read to find the line end of a file


class TextQueue:
    r"""A text file as a queue.

    >>> queue = TextQueue("jobs.tq")
    >>> queue.append("resize cat.jpg", variables=["mutex=          "])
    >>> for entry in queue:
    ...     queue.set_variable(entry, "mutex", "me")
    ...     queue.mark_processed(entry)

    Entries are as they were when the file was read. Several programs may use the file at once, also one that has
    it open as a Penstock store. An entry that another program has changed is refused: read the queue again then.
    """

    def __init__(self, path: str | os.PathLike[str], *, disk: Disk | None = None) -> None:
        self._disk = disk or SystemDisk()
        self.path = self._disk.real(path)
        self.problems: list[Problem] = []  # of the last reading
        self._lock = MutexLock(self.path, self._disk)

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def entries(
        self, *, queued: bool = True, processed: bool = False, failed: bool = False, comments: bool = False
    ) -> Iterator[Entry]:
        """The entries of these kinds, in the order of the file."""
        chosen = ((queued, QUEUED), (processed, PROCESSED), (failed, FAILED), (comments, COMMENT))
        wanted = {control for is_wanted, control in chosen if is_wanted}
        return (entry for entry in self._read().entries if entry.control in wanted)

    def append(self, text: str, variables: Sequence[str] = ()) -> Entry:
        """Durably append a message; trailing spaces of a variable reserve room for longer values."""
        data = encode(COMMENT, utf8("text", text), [utf8("variable", each) for each in variables])
        with self._open(create=True) as file:
            head = file.read(0, _HEAD)
            newline = line_end(head, parse(head).entries)
            data = data.replace(b"\n", newline)
            [offset] = append_commented(file, [data], newline=newline)
            uncomment(file, [offset])
        return parse_one(QUEUED.encode() + data[1:], offset)

    def mark_processed(self, entry: Entry) -> Entry:
        """Mark a message as processed."""
        return self._mark(entry, PROCESSED)

    def mark_failed(self, entry: Entry) -> Entry:
        """Mark a message as failed by a critical error."""
        return self._mark(entry, FAILED)

    def mark_queued(self, entry: Entry) -> Entry:
        """Queue a message again."""
        return self._mark(entry, QUEUED)

    def comment_out(self, entry: Entry) -> Entry:
        """Make a message a comment."""
        return self._mark(entry, COMMENT)

    def set_variable(self, entry: Entry, which: int | str, value: str) -> Entry:
        """Overwrite a variable in its own bytes: the whole variable by its number, or the value of NAME=value."""
        variable = self._variable(entry, which)
        name = which if isinstance(which, str) and variable.raw.startswith(f"{which}=".encode()) else None
        offset, data = fitting(variable, utf8("value", value), name)
        with self._open() as file:
            found = self._check(file, entry)
            file.write(offset, data)
            file.sync()
        kept = variable.raw[: offset - variable.offset] + data
        variables = [
            replace(each, raw=kept) if each.offset == variable.offset else each for each in found.variables
        ]
        return replace(found, variables=tuple(variables))

    def pack(self) -> int:
        """Drop processed messages, unless a program has the file open to append; how many bytes that frees."""
        with self._open() as file:
            if file.status().names > 1 or is_appended(self.path):  # a new file would not have the other names
                return 0
            data = file.read(0, file.size())
            kept = without(data, dropped(parse(data), lambda entry: entry.control == PROCESSED))
            if len(kept) < len(data) and not replace_queue(self._disk, self.path, file, kept, len(data)):
                return 0
        return len(data) - len(kept)

    def _read(self) -> Document:
        try:
            with self._disk.open(self.path, follow=True) as file:
                document = parse(file.read(0, file.size()))
        except FileNotFoundError:
            document = Document([], [])
        for problem in document.problems:
            if problem not in self.problems:
                _log.warning("%s line %d is skipped: %s", self.path, problem.line, problem.what)
        self.problems = document.problems
        return document

    @contextmanager
    def _open(self, create: bool = False) -> Iterator[File]:
        """The file, under its lock."""
        self._lock.acquire()
        try:
            is_new = create and not self._disk.exists(self.path)
            with self._disk.open(self.path, create=create, follow=True) as file:
                if is_new:
                    self._disk.sync_folder(os.path.dirname(self.path) or ".")
                yield file
        except OSError:
            with suppress(OSError):  # the last bytes may not be on the disk: see files.py
                self._lock.file.write(0, DOUBTFUL)
            raise
        finally:
            self._lock.release()
            self._lock.close()

    def _check(self, file: File, entry: Entry) -> Entry:
        """The current entry at the same offset; InvalidArgument if its text is another."""
        found = parse_one(file.read(entry.offset, entry.length) or b"?", entry.offset)
        places = [each.offset for each in found.variables] == [each.offset for each in entry.variables]
        if found.content != entry.content or not places:
            raise InvalidArgument(
                f"the message at byte {entry.offset} of {self.path!r} is another one by now: the file was edited. "
                "Read the queue again"
            )
        return found

    def _mark(self, entry: Entry, control: str) -> Entry:
        with self._open() as file:
            found = self._check(file, entry)
            file.write(entry.offset, control.encode())
            file.sync()
        return replace(found, control=control)

    def _variable(self, entry: Entry, which: int | str) -> Variable:
        found = entry.variable(which) if isinstance(which, str) else None
        if isinstance(which, int) and -len(entry.variables) <= which < len(entry.variables):
            found = entry.variables[which]
        if found is None:
            has = ", ".join(each.name for each in entry.variables) or "none"
            raise InvalidArgument(
                f"the message has no variable {which!r}, but {has}: reserve it when it is appended"
            )
        return found
