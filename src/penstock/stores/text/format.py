r"""The TextQueue format: parses a file's bytes into entries with exact offsets, and encodes entries. Pure.

Each line begins with a control character, in column 0:

    -text     a message that waits              (space)text  continues the message or comment above
    =text     a message that was processed      \text        a variable of the message or comment above, one line
    !text     a message with a critical error   (nothing)    a blank line: ignored, ends nothing
    #text     a comment, or a message commented out

A message's text is what follows its control character, and for each continuation a newline and what follows the
space. There is no escaping: tabs, trailing spaces and control characters further right are text. The last line may
lack its newline. Bytes are UTF-8; bytes that are not stay as they are. A byte order mark before the first line is
no part of it. `\r` is text, too, unless every line of an entry ends in `\r\n`: then those are its line ends.

A line that begins with any other character starts an unknown entry: it is kept byte for byte with its
continuations and variables, and warned about. So is a continuation or variable above the first entry, and a
continuation below a variable.

The format has no version. New control characters may come; old readers skip them, as above. An entry's control
character is changed in place, and so are the bytes of a variable, whose length stays; everything else is appended.
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import NamedTuple

from penstock.errors import InvalidArgument

QUEUED, PROCESSED, FAILED, COMMENT = "-", "=", "!", "#"
CONTROLS = "-=!#"
_CONTINUATION, _VARIABLE, _NEWLINE = b" ", b"\\", b"\n"
_BELONGS = b" \\\n\r"  # first characters of lines that start no entry
_START = re.compile(rb"\n[^ \\\n\r]")
_MARK = b"\xef\xbb\xbf"  # the byte order mark
_BLOCK = 1 << 18  # bytes that are scanned together, so that they stay in the processor's cache
_WORTH = 1 << 20  # bytes from which on NumPy saves more time than its import takes


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and its offset in the file; its bytes are all the room that a new value has."""

    offset: int  # of the byte after the backslash
    raw: bytes

    @property
    def text(self) -> str:
        """The variable without trailing spaces, which only reserve room."""
        return self.raw.rstrip(b" ").decode(errors="surrogateescape")

    @property
    def name(self) -> str:
        """The text before the first equals sign; all of it, if there is none."""
        return self.text.partition("=")[0]

    @property
    def value(self) -> str:
        """The text after the first equals sign."""
        return self.text.partition("=")[2]


@dataclass(frozen=True, slots=True)
class Entry:
    """A message or comment in a file: `length` bytes from `offset` on, its last newline included."""

    offset: int
    length: int
    control: str
    content: bytes  # the text as bytes, continuations joined by newlines
    variables: tuple[Variable, ...] = ()

    @property
    def text(self) -> str:
        """The text; bytes that are not UTF-8 come as lone surrogates, which encode to the same bytes again."""
        return self.content.decode(errors="surrogateescape")

    def variable(self, name: str) -> Variable | None:
        """The first variable of that name."""
        return next((each for each in self.variables if each.name == name), None)


class Problem(NamedTuple):
    """A line that was skipped, and why."""

    line: int
    offset: int
    what: str


class Document(NamedTuple):
    """A parsed file: its entries, in their order, and the lines that were skipped."""

    entries: list[Entry]
    problems: list[Problem]


class Starts(NamedTuple):
    """Offsets and control characters of a file's entries, unknown ones included."""

    offsets: "array[int]"
    controls: bytes


def scan(data: bytes | mmap, start: int = 0) -> Starts:
    """Find the starts of entries without parsing them, a few times slower than counting lines.

    `start` is the offset of the bytes in their file, which may have a byte order mark at its beginning.
    """
    head = 0 if start else _head(data)
    if len(data) >= _WORTH:
        try:
            return _scan_by_columns(data, head)
        except ImportError:
            pass  # NumPy is optional
    offsets = array("q", _first(data, head))
    offsets.extend([found.start() + 1 for found in _START.finditer(data)])
    return Starts(offsets, bytes([data[offset] for offset in offsets]))


def _head(data: bytes | mmap) -> int:
    """The offset of the first line."""
    return len(_MARK) if data[: len(_MARK)] == _MARK else 0


def _first(data: bytes | mmap, head: int) -> list[int]:
    """The offset of the first line, if it starts an entry."""
    return [head] if len(data) > head and data[head] not in _BELONGS else []


def _scan_by_columns(data: bytes | mmap, head: int) -> Starts:
    import numpy as np

    column = np.frombuffer(data, np.uint8)
    starts = [np.array(_first(data, head), np.int64)]
    for begin in range(0, len(data) - 1, _BLOCK):
        end = min(begin + _BLOCK, len(data) - 1)  # without the last newline, which no line follows
        newlines = np.flatnonzero(column[begin:end] == 10)
        first = column[begin + 1 : end + 1][newlines]
        starts.append(newlines[~np.isin(first, list(_BELONGS))] + (begin + 1))
    found = np.concatenate(starts)
    offsets = array("q")
    offsets.frombytes(found.tobytes())
    return Starts(offsets, column[found].tobytes())


def parse(data: bytes, start: int = 0) -> Document:
    """Parse a file, or the part from an entry's offset on; line numbers count from there."""
    starts = scan(data, start)
    entries: list[Entry] = []
    problems: list[Problem] = []
    lines = Lines(data)
    head = starts.offsets[0] if starts.offsets else len(data)
    for offset in _line_offsets(data, 0 if start else _head(data), head):
        what = "continues" if data[offset : offset + 1] == _CONTINUATION else "is a variable of"
        problems.append(Problem(lines.at(offset), start + offset, f"it {what} nothing"))
    for number, offset in enumerate(starts.offsets):
        end = starts.offsets[number + 1] if number + 1 < len(starts.offsets) else len(data)
        entry, orphans = _entry(data, offset, end, start)
        if entry.control not in CONTROLS:
            problems.append(
                Problem(lines.at(offset), start + offset, f"nothing is known that begins with {entry.control!r}")
            )
        else:
            entries.append(entry)
            problems += [
                Problem(lines.at(each), start + each, "it continues a variable, which has one line only")
                for each in orphans
            ]
    return Document(entries, problems)


def parse_one(data: bytes, start: int) -> Entry:
    """Parse the entry at the beginning of bytes, whose offset in the file is `start`."""
    return _entry(data, 0, len(data), start)[0]


def _entry(data: bytes, offset: int, end: int, start: int) -> tuple[Entry, list[int]]:
    """The entry between two offsets, and the offsets of lines in it that belong to nothing."""
    at = data.find(_NEWLINE, offset, end)
    if at < 0 or at + 1 == end:  # a single line
        stop = end if at < 0 else at
        text = data[offset + 1 : stop] if at < 0 else data[offset + 1 : stop].removesuffix(b"\r")
        return Entry(start + offset, end - offset, _control(data[offset:stop]), text), []
    own = len(data[offset:end].rstrip(_NEWLINE)) + 1 if data[end - 1 : end] == _NEWLINE else end - offset
    end = offset + own  # blank lines below are no part of it
    count = data.count(_NEWLINE, offset, end)
    cut = 1 if data[at - 1 : at] == b"\r" and data.count(b"\r\n", offset, end) == count else 0
    content = [data[offset + 1 : at - cut]]
    variables: list[Variable] = []
    orphans: list[int] = []
    last = at + 1
    while (at := last) < end:
        stop = data.find(_NEWLINE, at, end)
        following = end if stop < 0 else stop + 1
        stop = end if stop < 0 else stop - cut
        kind = data[at : at + 1]
        if kind == _VARIABLE:
            variables.append(Variable(start + at + 1, data[at + 1 : stop]))
        elif kind == _CONTINUATION:
            if variables:
                orphans.append(at)
            else:
                content.append(data[at + 1 : stop])
        last = following
    return Entry(
        start + offset, own, _control(data[offset:end]), _NEWLINE.join(content), tuple(variables)
    ), orphans


def _control(data: bytes) -> str:
    """The first character, which has several bytes if it is not ASCII."""
    return data[:4].decode(errors="replace")[0]


class Lines:
    """Line numbers of offsets, quick if they mostly ascend."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = self._line = 0

    def at(self, offset: int) -> int:
        """The number of the line that an offset is in."""
        if offset < self._offset:
            self._offset = self._line = 0
        self._line += self._data.count(_NEWLINE, self._offset, offset)
        self._offset = offset
        return self._line + 1


def _line_offsets(data: bytes, start: int, end: int) -> Iterator[int]:
    """The offsets of lines between two offsets that are not blank."""
    while start < end:
        stop = data.find(_NEWLINE, start, end)
        if data[start : end if stop < 0 else stop] not in (b"", b"\r"):
            yield start
        start = end if stop < 0 else stop + 1


def line_end(data: bytes, entries: Sequence[Entry]) -> bytes:
    """The line end of a file: that of its first entry."""
    end = entries[0].offset + entries[0].length if entries else 0
    return b"\r\n" if data[max(end - 2, 0) : end] == b"\r\n" else _NEWLINE


def encode(control: str, content: bytes, variables: Iterable[bytes] = ()) -> bytes:
    """Encode an entry; InvalidArgument if a variable has a newline."""
    if control not in CONTROLS or len(control) != 1:
        raise InvalidArgument(f"control character {control!r} is none of {' '.join(CONTROLS)}")
    lines = [control.encode() + content.replace(_NEWLINE, b"\n "), _NEWLINE]
    for variable in variables:
        if _NEWLINE in variable:
            raise InvalidArgument(f"variable {variable!r} has a newline: a variable is a single line")
        lines += (_VARIABLE, variable, _NEWLINE)
    return b"".join(lines)


def fitting(variable: Variable, value: bytes, name: str | None = None) -> tuple[int, bytes]:
    """The offset and bytes that overwrite a variable, or its value if a name is given, padded with spaces."""
    keep = 0 if name is None else len(name.encode()) + 1
    room = len(variable.raw) - keep
    if _NEWLINE in value:
        raise InvalidArgument(f"value {value!r} has a newline: a variable is a single line")
    if len(value) > room:
        raise InvalidArgument(
            f"value {value!r} has {len(value)} bytes, the variable has room for {max(room, 0)}: reserve more with "
            "trailing spaces when the message is appended"
        )
    return variable.offset + keep, value.ljust(room, b" ")


def dropped(document: Document, is_over: Callable[[Entry], bool]) -> list[Entry]:
    """The entries that packing may drop: without those that contain a line of a person that belongs to nothing."""
    odd = sorted(problem.offset for problem in document.problems)
    return [
        entry
        for entry in document.entries
        if is_over(entry) and bisect_left(odd, entry.offset) == bisect_left(odd, entry.offset + entry.length)
    ]


def without(data: bytes, entries: Iterable[Entry]) -> bytes:
    """A file's bytes without some entries."""
    kept, at = [], 0
    for entry in entries:
        kept.append(data[at : entry.offset])
        at = entry.offset + entry.length
    return b"".join(kept) + data[at:]
