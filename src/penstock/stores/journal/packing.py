"""Packing: all files of a journal but the latest become one, with the messages that still exist.

1. Begin a new file, and take a snapshot of the state between the two.
2. Write the snapshot, with the bodies of its messages, to a temporary file, and sync it.
3. Rename it to NAME.TIME.pack: this is the commit. By Kestrel's rule every file up to that time is dead now.
4. Read bodies from it; remove the dead files; rename it to NAME.TIME.

Traffic goes on meanwhile. After a crash before step 3 recovery removes the temporary file; after a later crash it
repeats step 4. Steps 1, 3 and 4 are for the process that has the store open. Step 2 only reads files and writes a
temporary one, so that any process that sees the folder can carry out its Order. A Round packs many journals, each
step for all of them before the next.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from penstock.contract.tables import Packed
from penstock.errors import DiskFull, PenstockError, QueueNotFound, StoreCorrupt
from penstock.rules.rows import DONE, Page
from penstock.rules.state import StateSnapshot
from penstock.stores.journal import bodies, groups
from penstock.stores.journal.bodies import Damaged
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.files import PLACE_BITS, JournalFiles, Segment, is_temporary, mode_of, offset_of
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.groups import last_xid
from penstock.stores.journal.records import (
    encode_page,
    encode_rest,
    encode_rows,
    encode_settings_image,
    encode_streams,
)
from penstock.stores.journal.storage import Cut, JournalStorage
from penstock.system.files import Disk, File, is_full
from penstock.system.threads import Task, Threads

if TYPE_CHECKING:
    from penstock.stores.journal.store import JournalBackend
    from penstock.stores.journal.upkeep import Upkeep

_GROUP = 4 << 20  # bytes of bodies in one group of a packed file, about
_ROW = 128  # bytes of a message in a packed file beside its body, at most
_THREADS = 16  # they mostly wait for the disk, and share syncs
Fetch = Callable[[int, Page, Sequence[int]], list[bytes]]  # the bodies of some rows of a page


class Moved(NamedTuple):
    """Where messages are in a packed file."""

    first: int
    positions: Sequence[int]
    bodies: Bodies  # with offsets in the whole file
    kept: tuple[str, int] | None = None  # the stream and batch that keep them; None: messages of the queue


class Stop(Exception):
    """Packing was cancelled."""


@dataclass(frozen=True)
class Order:
    """The order to build a packed file, for any process that sees the folder."""

    folder: str
    journal: str  # the name of its latest file
    stamp: int  # the time in the name of the packed file
    files: list[tuple[int, str]]  # number (in the places of bodies) and name
    snapshot: StateSnapshot
    next_group: int
    at: int
    dialect: Dialect

    @property
    def size(self) -> int:
        """Bytes of the packed file, about."""
        return estimate(self.snapshot)


class Result(NamedTuple):
    """A packed file that is built and synced, but not committed."""

    journal: str
    temporary: str  # its name
    size: int
    moved: list[Moved]


def build_order(order: Order, disk: Disk, attempt: int) -> Result | PenstockError:
    """Carry out an order; the result, or an error. Every attempt writes a file of its own."""
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
            moved = _fill(file, order.snapshot, segments, order.next_group, order.at, order.dialect)
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
    """Raise a PenstockError for an error after which the journal certainly is unchanged.

    This is a function because a frame that has its own exception in a variable would keep its files open.
    """
    if isinstance(error, bodies.Damaged):
        raise StoreCorrupt(f"{error}. Put that file back from a copy, or remove the message") from error
    if isinstance(error, OSError) and is_full(error):
        raise DiskFull(
            f"no space to pack {path!r}, and nothing was lost: settle messages, or free some"
        ) from error


def _fill(
    file: File,
    snapshot: StateSnapshot,
    segments: Sequence[Segment],
    next_group: int,
    at: int,
    dialect: Dialect,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Moved]:
    """Write a snapshot, and its bodies from these segments, to a new file, and sync it."""
    file.reserve(estimate(snapshot))  # or fail at once: the last space is for settling messages
    moved = write_pack(file, snapshot, from_segments(segments), next_group, at, dialect, go_on)
    file.sync()
    return moved


def write_pack(
    file: File,
    snapshot: StateSnapshot,
    fetch: Fetch,
    next_group: int,
    at: int,
    dialect: Dialect,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Moved]:
    """Write a snapshot and its bodies to a file; the new places of the messages."""
    moved = []
    end = 0
    xid = last_xid(snapshot.next_seq)

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
                raise Stop("packing was cancelled")
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
            stream = None if kept is None else kept[0]
            append(buffer, encode_page(first, page, positions, part, where, stream))

    if settings := encode_settings_image(snapshot):
        append(bytearray(groups.HEAD_SIZE), settings)
    for first, page in snapshot.pages:
        append_page(first, page, None)
    if streams := encode_streams(snapshot.streams):
        append(bytearray(groups.HEAD_SIZE), streams)
    for name, stream in snapshot.streams.streams.items():
        for first, page in stream.kept.pages():
            append_page(first, page, (name, stream.settled))
    append(bytearray(groups.HEAD_SIZE), encode_rest(snapshot, next_group))
    return moved


def estimate(snapshot: StateSnapshot) -> int:
    """Bytes that are reserved for a packed file: more than it takes."""
    kept = [page for stream in snapshot.streams.streams.values() for _, page in stream.kept.pages()]
    rows = sum(sum(page.size) + _ROW * page.live for page in [*[page for _, page in snapshot.pages], *kept])
    held = sum(len(stream.held.seqs) for stream in snapshot.streams.streams.values() if stream.held is not None)
    return (
        rows
        + 16 * held
        + 32 * len(snapshot.receipts)
        + sum(map(len, snapshot.history.values()))
        + 300 * len(snapshot.keys)
        + len(encode_settings_image(snapshot))
        + 1024
    )


def packed_size(snapshot: StateSnapshot, next_group: int) -> int:
    """Bytes of a packed file, close enough to decide whether packing frees any."""
    streams = encode_streams(snapshot.streams)
    settings = encode_settings_image(snapshot)
    if not (snapshot.pages or snapshot.receipts or snapshot.keys or streams or settings):
        return 0
    kept = [each for stream in snapshot.streams.streams.values() for each in stream.kept.pages()]
    pages = [*snapshot.pages, *kept]
    stored = sum(sum(page.size) + 4 * page.live for _, page in pages)  # ADD_XID has an xid that ADDX has not
    rows = sum(len(encode_rows(first, page)) + groups.OVERHEAD for first, page in pages)
    # A column of equal checksums is one number; in the packed file they differ, because xids do.
    rows += sum(4 * page.live for _, page in pages if len(set(page.crc)) == 1)
    named = sum(groups.OVERHEAD + len(each) for each in (streams, settings) if each)
    return stored + rows + named + groups.OVERHEAD + len(encode_rest(snapshot, next_group))


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
    """A function that reads bodies from these files and compares their checksums."""
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
    """Places as arrays: a tenth of the bytes when they are sent to another process."""
    offset, size, crc = moved.bodies
    places = Bodies(array("Q", offset), array("I", size), array("I", crc))
    return Moved(moved.first, array("H", moved.positions), places, moved.kept)


class Built(NamedTuple):
    """A packed file, open, that is not committed."""

    temporary: str  # its path
    file: File
    moved: Sequence[Moved]


def pack(
    storage: JournalStorage,
    emptied: Callable[[Cut], None],
    packed: Callable[[Cut], None],
    go_on: Callable[[], bool],
    smaller: bool = False,
) -> int:
    """Pack a journal; the bytes freed.

    `emptied` is called before a pack that leaves nothing, `packed` when the packed file has taken its place. With
    `smaller` a packed file that is not smaller is given up, and only a new file has begun.
    """
    cut = begin(storage)
    if cut is None:
        return 0
    try:
        built = build(storage, cut, emptied, go_on)
    except Stop:
        return 0
    if smaller and not is_smaller(cut, built.file.size()):
        built.file.close()
        with suppress(OSError):  # recovery removes it, too
            storage.files.disk.unlink(built.temporary)
        return 0
    freed = swap(storage, cut, built)
    packed(cut)
    return freed


def is_smaller(cut: Cut, size: int) -> bool:
    """Whether a packed file of that size is smaller than the files that it replaces."""
    return size < sum(each.size for each in cut.files)


def is_whole(segments: Iterable[Segment], size: int) -> bool:
    """Whether the checksums of all groups in the first `size` bytes of a journal are right."""
    for segment in segments:
        offset, end = 0, min(size, segment.size)
        while offset < end:
            head = groups.head(segment.file.read(offset, groups.HEAD_SIZE), 0)
            if head is None or groups.read(memoryview(segment.file.read(offset, head.length)), 0, head) is None:
                return False
            offset += head.length
        size -= end
    return True


def begin(storage: JournalStorage) -> Cut | None:
    """Step 1; None if there are no files. No other packing may begin before this one ends."""
    return storage.rotate() if storage.segments else None


def leaves_nothing(cut: Cut) -> bool:
    """Whether the packed file would be empty: no messages, receipts, keys or streams, and no changed settings."""
    snapshot = cut.snapshot
    return snapshot.settings in (None, cut.base) and not (
        snapshot.pages
        or snapshot.receipts
        or snapshot.keys
        or snapshot.streams.last_batch
        or snapshot.streams.streams
    )


def build(
    storage: JournalStorage, cut: Cut, emptied: Callable[[Cut], None], go_on: Callable[[], bool] = lambda: True
) -> Built:
    """Step 2 in this process. A failure leaves the journal unchanged."""
    files, disk = storage.files, storage.files.disk
    temporary = files.path(files.temporary(_stamp(storage, cut)))
    moved: list[Moved] = []
    try:
        file = disk.open(temporary, create=True, mode=mode_of(cut.files))
        if leaves_nothing(cut):
            emptied(cut)
            file.sync()
        else:
            moved = _fill(file, cut.snapshot, cut.files, cut.next_group, cut.at, storage.shared.dialect, go_on)
    except (OSError, Stop, Damaged) as error:
        with suppress(OSError):
            disk.unlink(temporary)
        refuse(error, files.path(files.name))
        raise
    return Built(temporary, file, moved)


def order(storage: JournalStorage, cut: Cut) -> Order:
    """Step 2 for another process."""
    files = [(each.number, each.name) for each in cut.files]
    names, stamp = storage.files, _stamp(storage, cut)
    return Order(
        names.folder, names.name, stamp, files, cut.snapshot, cut.next_group, cut.at, storage.shared.dialect
    )


def take(storage: JournalStorage, result: Result) -> Built:
    """Open the packed file that another process has built."""
    path = storage.files.path(result.temporary)
    try:
        file = storage.files.disk.open(path)
    except FileNotFoundError:
        raise _elsewhere(path) from None
    if file.size() != result.size:
        raise _elsewhere(path)
    return Built(path, file, result.moved)


def _elsewhere(path: str) -> PenstockError:
    return PenstockError(
        f"{path!r} differs from the file that a task has built: all tasks must see the same folder there. "
        "Nothing was changed"
    )


def swap(storage: JournalStorage, cut: Cut, built: Built) -> int:
    """Steps 3 and 4; the bytes freed."""
    files, disk, old = storage.files, storage.files.disk, cut.files
    file, stamp = built.file, _stamp(storage, cut)
    packed = files.rotated(stamp) + ".pack"
    disk.rename(built.temporary, files.path(packed))
    files.sync()
    segment = Segment(storage.next_packed(), files.rotated(stamp), file, file.size())
    storage.add(segment)
    for first, positions, places, kept in built.moved:
        with storage.lock:
            elsewhere = [segment.base + offset for offset in places.offset]
            storage.state.move(first, positions, elsewhere, places.size, places.crc, kept)
    storage.replace(old, segment)
    files.finish_pack(packed, [each.name for each in old])
    file.path = files.path(segment.name)
    if leaves_nothing(cut):
        storage.replace([segment], None)
        disk.unlink(file.path)
        files.sync()
    return sum(each.size for each in old) - segment.size


def _stamp(storage: JournalStorage, cut: Cut) -> int:
    return storage.files.stamp(cut.files[-1].name)


Item = TypeVar("Item")


class _Begun(NamedTuple):
    queue: str
    upkeep: "Upkeep"
    cut: Cut
    before: int


class Round:
    """Packs the journals of some queues together; none of them can be packed otherwise, or deleted, meanwhile.

    with Round(backend, queues) as packing:
        results = [build(order, disk, 0) for order in packing.begin()]  # in any processes
        packing.swap(results)
    """

    def __init__(self, backend: "JournalBackend", queues: Iterable[str]) -> None:
        self._backend = backend
        self._queues = sorted(set(queues))  # locked in one order, or two rounds could deadlock
        self._held = ExitStack()
        self._upkeep: dict[str, Upkeep] = {}
        self._begun: dict[str, _Begun] = {}  # by the journal's name
        self._unfinished: set[str] = set()  # journals that may have temporary files

    def __enter__(self) -> Self:
        with ExitStack() as held:
            for queue in self._queues:
                with suppress(QueueNotFound):  # deleted meanwhile
                    self._upkeep[queue] = held.enter_context(self._backend.packing(queue))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:
            self._remove_temporaries()

    def begin(self) -> list[Order]:
        """Step 1 for all journals; orders for those that are not empty."""
        self._for_each(self._begin, list(self._upkeep.items()))
        begun = [each for each in self._begun.values() if not leaves_nothing(each.cut)]
        return [order(each.upkeep.storage, each.cut) for each in sorted(begun)]

    def _begin(self, item: "tuple[str, Upkeep]") -> None:
        queue, upkeep = item
        self._backend.find(queue)  # raises if the store has stopped
        before = upkeep.storage.stored
        cut = upkeep.begin()
        if cut is not None:
            journal = upkeep.storage.files.name
            self._unfinished.add(journal)
            self._begun[journal] = _Begun(queue, upkeep, cut, before)

    def queue(self, journal: str) -> str:
        """The queue of a journal that was begun."""
        return self._begun[journal].queue

    def swap(self, results: Iterable[Result]) -> list[Packed]:
        """Steps 3 and 4 for all journals that are empty or were built."""
        built = {result.journal: result for result in results}
        begun, self._begun = list(self._begun.values()), {}
        there = {each.queue for each in begun}
        packed = [Packed(queue, 0, 0) for queue in self._upkeep if queue not in there]

        def swap(each: _Begun) -> None:
            self._backend.find(each.queue)
            upkeep, storage = each.upkeep, each.upkeep.storage
            if leaves_nothing(each.cut):
                upkeep.swap(each.cut, upkeep.empty(each.cut))
            elif (result := built.get(storage.files.name)) is None:
                return
            elif is_smaller(each.cut, result.size) or upkeep.storage.shared.dialect != "doc":
                upkeep.swap(each.cut, upkeep.take(result))
            packed.append(Packed(each.queue, each.before, storage.stored))

        self._for_each(swap, begun)
        return sorted(packed)

    def _for_each(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        if items:
            _for_each(work, items, next(iter(self._upkeep.values())).storage.shared.threads)

    def _remove_temporaries(self) -> None:
        """Remove the files of failed and repeated attempts."""
        if not self._unfinished:
            return
        files = next(iter(self._upkeep.values())).storage.files
        with suppress(OSError):  # recovery removes them, too
            for name in files.disk.listdir(files.folder):
                if is_temporary(name) and name.partition("~~")[0] in self._unfinished:
                    files.disk.unlink(files.path(name))


def _for_each(work: Callable[[Item], None], items: Sequence[Item], threads: Threads) -> None:
    """Call `work` with each item, in several threads. Waits for all threads, then raises the first error."""
    waiting = deque(items)
    errors: list[BaseException] = []

    def run() -> None:
        while not errors:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException as error:
                errors.append(error)

    tasks: list[Task] = []
    with suppress(RuntimeError):  # no more threads can start
        while len(tasks) < min(_THREADS, len(items)):
            tasks.append(threads.start("penstock-pack", run))
    if not tasks:
        run()
    while tasks:
        try:
            tasks[-1].join()
            tasks.pop()
        except BaseException as error:  # as Ctrl-C: the threads still finish what they have begun
            errors.append(error)
    if errors:
        raise errors[0]
