"""Building a packed file: from a state and the files that its bodies are in to a file that does not count yet.

Files are read, and only a temporary one is written, so that any process that sees the folder can do it. What it
must know is in an Order.
"""

from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import DiskFull, PenstockError, StoreCorrupt
from penstock.rules.contents import Frozen
from penstock.rules.index.rows import DONE, Page
from penstock.stores.journal import bodies, groups
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.files import PLACE_BITS, JournalFiles, Segment, mode_of, offset_of
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.images import encode_kept, encode_page, encode_rest
from penstock.stores.journal.stream_records import encode_streams
from penstock.stores.journal.xids import last_xid
from penstock.system.files import Disk, File, is_full

_GROUP = 4 << 20  # bytes of bodies in one group of a packed file, about
_ROW = 128  # bytes that a message may take in a packed file beside its body
Fetch = Callable[[int, Page, Sequence[int]], list[bytes]]  # the bodies of some rows of a page


class Moved(NamedTuple):
    """Where messages are in a packed file."""

    first: int
    positions: Sequence[int]
    bodies: Bodies  # with offsets in the whole file
    kept: tuple[str, int] | None = None  # by which stream, as which batch; None: they are messages of the queue


class Stop(Exception):
    """Packing was told to end."""


@dataclass(frozen=True)
class Order:
    """A packed file that is to be built, by a process that need not have opened the store."""

    folder: str
    journal: str  # the name of its latest file
    stamp: int  # that the packed file will have in its name
    files: list[tuple[int, str]]  # in which the bodies are, each with the number in their places
    frozen: Frozen
    next_group: int
    at: int
    dialect: Dialect

    @property
    def size(self) -> int:
        """About how many bytes the packed file takes."""
        return estimate(self.frozen)


class Result(NamedTuple):
    """A packed file that was built and synced, and does not count yet."""

    journal: str
    temporary: str  # its name
    size: int
    moved: list[Moved]


def build(order: Order, disk: Disk, attempt: int) -> Result | PenstockError:
    """Do what an order says; or why that cannot be. Every attempt has a number, and with it a file of its own."""
    files = JournalFiles(order.folder, order.journal, disk)
    temporary = files.temporary(int(f"{order.stamp}{attempt:06}"))
    path = files.path(temporary)
    try:
        with ExitStack() as opened:
            segments = [
                Segment(number, name, opened.enter_context(disk.open(files.path(name))), 0)
                for number, name in order.files
            ]
            file = opened.enter_context(disk.open(path, exclusive=True, mode=mode_of(segments)))
            moved = fill(file, order.frozen, segments, order.next_group, order.at, order.dialect)
            return Result(order.journal, temporary, file.size(), [_slim(each) for each in moved])
    except BaseException as error:
        with suppress(OSError):
            disk.unlink(path)
        try:
            refuse(error, files.path(files.name))
        except PenstockError as refusal:
            return refusal.with_traceback(None)
        raise


def refuse(error: BaseException, path: str) -> None:
    """Raise what to tell someone whose journal was not packed and is as it was, if that is for sure.

    Here, because a frame that has its own exception in a variable would keep its files open.
    """
    if isinstance(error, bodies.Damaged):
        raise StoreCorrupt(f"{error}. Put that file back from a copy, or remove() the message") from error
    if isinstance(error, OSError) and is_full(error):
        raise DiskFull(
            f"no space to pack {path!r}, and nothing was lost: settle messages, or free some"
        ) from error


def fill(
    file: File,
    frozen: Frozen,
    segments: Sequence[Segment],
    next_group: int,
    at: int,
    dialect: Dialect,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Moved]:
    """Write a frozen state and its bodies, which are in these segments, to a new file, and sync it."""
    file.reserve(estimate(frozen))  # or else not even begin, and leave the rest to those who settle
    moved = write_pack(file, frozen, from_segments(segments), next_group, at, dialect, go_on)
    file.sync()
    return moved


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

    def append(content: bytearray, records: bytes) -> None:
        nonlocal end
        groups.seal(content, records, xid, 0, at)
        file.write(end, content)
        end += len(content)

    def append_page(first: int, page: Page, kept: tuple[str, int] | None) -> None:
        keys = page.keys()
        rows = [row for row, state in enumerate(page.state) if state]
        for part in _parts(page, rows):
            if not go_on():
                raise Stop("it was told to stop")
            buffer = bytearray(groups.HEAD_SIZE)
            offsets, sizes, crcs = [], [], []
            for row, body in zip(part, fetch(first, page, part), strict=True):
                done = kept is not None or page.state[row] == DONE
                packed = bodies.repack(body, first + keys[row], done, dialect)
                offsets.append(len(buffer))
                sizes.append(len(packed))
                crcs.append(bodies.checksum(packed))
                buffer += packed
            positions = [keys[row] for row in part]
            where = Bodies(offsets, sizes, crcs)
            moved.append(Moved(first, positions, Bodies([end + each for each in offsets], sizes, crcs), kept))
            if kept is None:
                append(buffer, encode_page(first, page, positions, part, where))
            else:
                append(buffer, encode_kept(kept[0], first, page, positions, part, where))

    for first, page in frozen.pages:
        append_page(first, page, None)
    if streams := encode_streams(frozen.streams):
        append(bytearray(groups.HEAD_SIZE), streams)
    for name, stream in frozen.streams.streams.items():
        for first, page in stream.kept.pages():
            append_page(first, page, (name, stream.settled))
    append(bytearray(groups.HEAD_SIZE), encode_rest(frozen, next_group))
    return moved


def estimate(frozen: Frozen) -> int:
    """About what a packed file takes."""
    kept = [page for stream in frozen.streams.streams.values() for _, page in stream.kept.pages()]
    rows = sum(sum(page.size) + _ROW * page.live for page in [*[page for _, page in frozen.pages], *kept])
    held = sum(len(stream.held.seqs) for stream in frozen.streams.streams.values() if stream.held is not None)
    return (
        rows
        + 16 * held
        + 32 * len(frozen.receipts)
        + sum(map(len, frozen.history.values()))
        + 300 * len(frozen.keys)
        + 1024
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


def _slim(moved: Moved) -> Moved:
    """The same in arrays: a tenth of the bytes on its way to another process."""
    offset, size, crc = moved.bodies
    places = Bodies(array("Q", offset), array("I", size), array("I", crc))
    return Moved(moved.first, array("H", moved.positions), places, moved.kept)
