r"""Messages that have nothing but a payload and that nobody has touched, found by columns. Pure; needs NumPy.

    -PAYLOAD
    \id=9f86d081884c7d65
    \received=2026-11-16T07:30:55.123Z
    \attempts=0
    \lease=

Most messages of a large queue end in these lines, which always have the same length. Such a message needs no
parser, and no ledger either: it is available, and nothing is noted about it.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.stores.text.format import QUEUED, scan
from penstock.stores.text.variables import TAIL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_ID, _DIGIT = b"\0", b"\1"  # stand for a hexadecimal and for a decimal digit
_TIME = b"\1\1\1\1-\1\1-\1\1T\1\1:\1\1:\1\1.\1\1\1Z"
_END = np.frombuffer(b"\n\\id=" + _ID * 16 + b"\n\\received=" + _TIME + TAIL, np.uint8)
_IDS, _DIGITS = np.flatnonzero(_END == 0), np.flatnonzero(_END == 1)
_FIXED = np.flatnonzero(_END > 1)
_ROWS = 1 << 16  # that are compared together, for the sake of memory


class Plain(NamedTuple):
    """Such messages, in the order of the file, and where all other entries start and end."""

    starts: "Numbers"  # of their payloads
    stops: "Numbers"
    ids: "Bytes"  # 16 characters each
    received_at: "Numbers"
    others: list[tuple[int, int]]

    def part(self, start: int, stop: int) -> "Plain":
        """Some of the messages."""
        some = slice(start, stop)
        return Plain(self.starts[some], self.stops[some], self.ids[some], self.received_at[some], [])


def find(data: bytes, noted: Collection[int]) -> Plain:
    """Tell plain messages from everything else; `noted` are offsets of messages that something is noted about."""
    found = scan(data)
    offsets = np.frombuffer(found.offsets, np.int64)
    controls = np.frombuffer(found.controls, np.uint8)
    ends = np.append(offsets[1:], len(data)) if len(offsets) else offsets
    likely = (controls == ord(QUEUED)) & (ends - offsets > len(_END)) & ~np.isin(offsets, list(noted))
    likely &= _is_text(data, offsets, ends)
    chosen = np.flatnonzero(likely)
    parts = [_compared(data, ends[chosen[at : at + _ROWS]]) for at in range(0, len(chosen), _ROWS)]
    fits, ids, received = (np.concatenate(each) for each in zip(_NONE, *parts, strict=True))
    plain = chosen[fits]
    likely[:] = True
    likely[plain] = False
    others = list(zip(offsets[likely].tolist(), ends[likely].tolist(), strict=True))
    return Plain(offsets[plain] + 1, ends[plain] - len(_END), ids, received, others)


def payloads(data: bytes, plain: Plain) -> list[bytes]:
    """The payloads; a newline in one is followed by a space in the file."""
    slices = map(slice, plain.starts.tolist(), plain.stops.tolist())
    return [each.replace(b"\n ", b"\n") if b"\n" in each else each for each in map(data.__getitem__, slices)]


def _is_text(data: bytes, offsets: "Numbers", ends: "Numbers") -> "NDArray[np.bool_]":
    """Of each entry whether the lines above its end are a payload, and no variables or blank lines."""
    column = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(column[:-1] == 10)
    odd = newlines[column[newlines + 1] != 32]  # a line that does not go on with the one above
    return np.equal(np.searchsorted(odd, ends - len(_END)), np.searchsorted(odd, offsets))


def _compared(data: bytes, ends: "Numbers") -> tuple["NDArray[np.bool_]", "Bytes", "Numbers"]:
    """Which of the entries end as plain messages do; the ids and times of those."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), len(_END))
    rows = windows[ends - len(_END)]
    digits = rows[:, _DIGITS].astype(np.int64) - ord("0")
    fits = (rows[:, _FIXED] == _END[_FIXED]).all(1) & ((digits >= 0) & (digits < 10)).all(1)
    ids = rows[:, _IDS]
    fits &= (((ids >= ord("0")) & (ids <= ord("9"))) | ((ids >= ord("a")) & (ids <= ord("f")))).all(1)
    year, month, day, hour, minute, second, milli = (
        digits[:, start:stop] @ 10 ** np.arange(stop - start - 1, -1, -1)
        for start, stop in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14), (14, 17))
    )
    # Times that people have edited into something else are read, or not understood, by the parser.
    fits &= (year >= 1970) & (month >= 1) & (month <= 12) & (hour < 24) & (minute < 60) & (second < 60)
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64) + day - 1
    fits &= (day >= 1) & (days < (months + 1).astype("M8[D]").astype(np.int64))
    time = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milli
    return fits, ids[fits], time[fits]


_NONE = (np.zeros(0, np.bool_), np.zeros((0, len(_IDS)), np.uint8), np.zeros(0, np.int64))
