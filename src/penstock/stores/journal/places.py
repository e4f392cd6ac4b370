"""Bodies and the places where they lie: neighbours are found and read together, and each is checked.

They are found under the queue's lock and read outside of it. What was found stays readable whatever happens to
message and file meanwhile: an open file outlives its name, and what is still to be written is copied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.engine.storage import Body
from penstock.errors import StoreClosed, StoreCorrupt
from penstock.rules.index.rows import Page
from penstock.stores.journal import bodies
from penstock.stores.journal.files import PLACE_BITS, Segment, offset_of
from penstock.system.files import File

_READ_AHEAD = 4 << 20  # neighbours are read at once up to this
_FEW = 64 << 10  # bytes that take no longer than handing them to a thread


class Located(Protocol):
    """Messages whose rows can be found: those of a queue, or those that a stream keeps."""

    def runs(self, seqs: Sequence[int]) -> list[tuple[Page, int, int]] | None:
        """Where many messages lie that were put one after the other, see Rows.runs."""

    def locate(self, seq: int) -> tuple[Page, int]:
        """Where the columns of a message are that is there."""


class Found(NamedTuple):
    """Bodies that lie together in a file, or their bytes, if they are still to be written or were at hand."""

    file: File | None
    offset: int
    starts: list[int]  # after the offset
    sizes: list[int]
    crcs: list[int]
    data: bytes = b""


def find(
    contents: Located,
    seqs: Sequence[int],
    segments: Mapping[int, Segment],
    first_unwritten: int,
    copy: Callable[[int, int], bytes],
) -> list[Found]:
    """Where bodies are, neighbours together; those from the first unwritten place on are copied."""
    found = []
    runs = contents.runs(seqs)
    if runs is None:
        rows = [contents.locate(seq) for seq in seqs]
        runs = [(page, at, at + 1) for page, at in rows]
    for page, start, end in runs:
        places = page.place[start:end].tolist()
        sizes = page.size[start:end].tolist()
        crcs = page.crc[start:end].tolist()
        first, last = places[0], places[-1]
        together = last < first_unwritten and first >> PLACE_BITS == last >> PLACE_BITS
        if together and last - first <= _READ_AHEAD and (end - start == 1 or places == sorted(places)):
            found.append(_in_file(segments, places, sizes, crcs))
            continue
        for place, size, crc in zip(places, sizes, crcs, strict=True):
            if place < first_unwritten:
                found.append(_in_file(segments, [place], [size], [crc]))
            else:
                found.append(Found(None, 0, [0], [size], [crc], copy(place, size)))
    return found


def _in_file(segments: Mapping[int, Segment], places: list[int], sizes: list[int], crcs: list[int]) -> Found:
    first = places[0]
    starts = [place - first for place in places]
    return Found(segments[first >> PLACE_BITS].file, offset_of(first), starts, sizes, crcs)


def read(found: Sequence[Found], queue: str, is_closed: Callable[[], bool]) -> list[Body]:
    """Read bodies and check them."""
    read: list[Body] = []
    for file, offset, starts, sizes, crcs, data in found:
        if file is not None and not data:
            data = _read(file, offset, starts[-1] + sizes[-1], is_closed)
        try:
            read += bodies.decode(data, starts, sizes, crcs)
        except bodies.Damaged:
            path = "memory" if file is None else file.path
            raise StoreCorrupt(
                f"a message of queue {queue!r} is damaged, at offset {offset} of {path!r} or little "
                "after: its checksum is wrong. Put that file back from a copy, or remove() the message; "
                "`penstock doctor` finds all that are damaged"
            ) from None
    return read


def from_cache(found: Sequence[Found]) -> list[Found] | None:
    """The same with the bytes, if they are few and had without waiting for the disk."""
    fetched, total = [], 0
    for each in found:
        if not each.data and each.file is not None:
            size = each.starts[-1] + each.sizes[-1]
            total += size
            data = each.file.read_cached(each.offset, size) if total <= _FEW else None
            if data is None:
                return None
            each = each._replace(data=data)
        fetched.append(each)
    return fetched


def _read(file: File, offset: int, size: int, is_closed: Callable[[], bool]) -> bytes:
    try:
        return file.read(offset, size)
    except OSError as error:
        if is_closed():
            raise StoreClosed("the store was closed: open it again with penstock.open()") from None
        raise StoreCorrupt(f"{file.path!r} cannot be read at offset {offset}: {error}") from error
