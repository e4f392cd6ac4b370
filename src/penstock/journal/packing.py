"""Packing: all files of a journal but the latest become one, with what is still there and nothing else.

1. Begin a new file, and freeze the state as it is between the two.
2. Write the frozen state, with the bodies that are still there, to a temporary file, and sync it.
3. Rename it to NAME.TIME.pack: from here on it counts, and every file up to that time is dead, by Kestrel's rule.
4. Read bodies from it; remove the dead files; rename it to NAME.TIME.

Traffic goes on meanwhile. A crash before 3 leaves a temporary file that opening removes, one after it a step that
opening repeats.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.contents import Frozen
from penstock.errors import DiskFull, StoreCorrupt
from penstock.files import File
from penstock.index.rows import DONE, Page
from penstock.journal import bodies, groups
from penstock.journal.ballast import is_full
from penstock.journal.files import PLACE_BITS, Segment, offset_of
from penstock.journal.format import Dialect
from penstock.journal.records import Bodies, encode_page, encode_rest
from penstock.journal.shelf import Cut, JournalShelf
from penstock.journal.xids import last_xid

_GROUP = 4 << 20  # bytes of bodies in one group of a packed file, about
Fetch = Callable[[int, Page, Sequence[int]], list[bytes]]  # the bodies of some rows of a page


class Moved(NamedTuple):
    """Where messages are in a packed file."""

    first: int
    positions: list[int]
    bodies: Bodies  # with offsets in the whole file


class Stop(Exception):
    """Packing was told to end."""


def pack(shelf: JournalShelf, emptied: Callable[[Cut], None], go_on: Callable[[], bool]) -> int:
    """Pack a journal; how many bytes that freed. `emptied` is told first if nothing at all will be left."""
    if not shelf.segments:
        return 0
    cut = shelf.rotate()
    frozen, old = cut.frozen, cut.files
    files, disk = shelf.files, shelf.files.disk
    stamp = files.stamp(old[-1].name)
    temporary = files.path(files.temporary(stamp))
    empty = not (frozen.pages or frozen.receipts or frozen.keys)
    moved: list[Moved] = []
    try:
        file = disk.open(temporary, create=True)
        if empty:
            emptied(cut)
        else:
            file.reserve(_estimate(frozen))  # or else not even begin, and leave the rest to those who settle
            fetch = from_segments(old)
            moved = write_pack(file, frozen, fetch, cut.next_group, cut.at, shelf.sink.dialect, go_on)
        file.sync()
    except (OSError, Stop, bodies.Damaged) as error:
        with suppress(OSError):
            disk.unlink(temporary)
        if isinstance(error, Stop):
            return 0
        if isinstance(error, bodies.Damaged):
            raise StoreCorrupt(f"{error}. Put that file back from a copy, or remove() the message") from error
        if is_full(error):
            raise DiskFull(
                f"no space to pack {files.path(files.name)!r}, and nothing was lost: settle messages, or free some"
            ) from error
        raise
    packed = files.rotated(stamp) + ".pack"
    disk.rename(temporary, files.path(packed))
    files.sync()
    segment = Segment(shelf.next_packed(), files.rotated(stamp), file, file.size())
    shelf.add(segment)
    for first, positions, places in moved:
        with shelf.lock:
            elsewhere = [segment.base + offset for offset in places.offset]
            shelf.state.move(first, positions, elsewhere, places.size, places.crc)
    shelf.replace(old, segment)
    files.finish_pack(packed, [each.name for each in old])
    file.path = files.path(segment.name)
    if empty:
        shelf.replace([segment], None)
        disk.unlink(file.path)
        files.sync()
    return sum(each.size for each in old) - segment.size


def write_pack(
    file: File,
    frozen: Frozen,
    fetch: Fetch,
    next_group: int,
    at: int,
    dialect: Dialect,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Moved]:
    """Write a frozen state and its bodies to a file; where each message is in it."""
    moved = []
    end = 0
    xid = last_xid(frozen.next_seq)
    for first, page in frozen.pages:
        keys = page.keys()
        rows = [row for row, state in enumerate(page.state) if state]
        for part in _parts(page, rows):
            if not go_on():
                raise Stop("it was told to stop")
            buffer = bytearray(groups.HEAD_SIZE)
            offsets, sizes, crcs = [], [], []
            for row, body in zip(part, fetch(first, page, part), strict=True):
                packed = bodies.repack(body, first + keys[row], page.state[row] == DONE, dialect)
                offsets.append(len(buffer))
                sizes.append(len(packed))
                crcs.append(bodies.checksum(packed))
                buffer += packed
            positions = [keys[row] for row in part]
            records = encode_page(first, page, positions, part, Bodies(offsets, sizes, crcs))
            groups.seal(buffer, records, xid, 0, at)
            file.write(end, buffer)
            moved.append(Moved(first, positions, Bodies([end + offset for offset in offsets], sizes, crcs)))
            end += len(buffer)
    buffer = bytearray(groups.HEAD_SIZE)
    groups.seal(buffer, encode_rest(frozen, next_group), xid, 0, at)
    file.write(end, buffer)
    return moved


def _estimate(frozen: Frozen) -> int:
    """About what a packed file takes."""
    rows = sum(sum(page.size) + 128 * page.live for _, page in frozen.pages)
    return (
        rows + 32 * len(frozen.receipts) + sum(map(len, frozen.history.values())) + 300 * len(frozen.keys) + 1024
    )


def _parts(page: Page, rows: list[int]) -> list[list[int]]:
    """The rows of a page in parts whose bodies fit into one group."""
    parts: list[list[int]] = []
    size = _GROUP
    for row in rows:
        size += page.size[row]
        if size > _GROUP:
            parts.append([])
            size = page.size[row]
        parts[-1].append(row)
    return parts


def from_segments(segments: Sequence[Segment]) -> Fetch:
    """Bodies as they are in these files, checked."""
    known = {segment.number: segment for segment in segments}

    def fetch(first: int, page: Page, rows: Sequence[int]) -> list[bytes]:
        fetched = []
        for row in rows:
            segment = known[page.place[row] >> PLACE_BITS]
            data = segment.file.read(offset_of(page.place[row]), page.size[row])
            if bodies.checksum(data) != page.crc[row]:
                raise bodies.Damaged(
                    f"a message is damaged at offset {offset_of(page.place[row])} of {segment.name}"
                )
            fetched.append(data)
        return fetched

    return fetch
