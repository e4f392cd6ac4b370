"""Packing: all files of a journal but the latest become one, with what is still there and nothing else.

1. Begin a new file, and freeze the state as it is between the two.
2. Write the frozen state, with the bodies that are still there, to a temporary file, and sync it: building.py.
3. Rename it to NAME.TIME.pack: from here on it counts, and every file up to that time is dead, by Kestrel's rule.
4. Read bodies from it; remove the dead files; rename it to NAME.TIME.

Traffic goes on meanwhile. A crash before 3 leaves a temporary file that opening removes, one after it a step that
opening repeats. 1, 3 and 4 are for the process that has the store open; 2 may be done elsewhere, see parallel.py.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.stores.journal import groups
from penstock.stores.journal.bodies import Damaged
from penstock.stores.journal.building import Moved, Order, Result, Stop, fill, refuse
from penstock.stores.journal.files import Segment, mode_of
from penstock.stores.journal.storage import Cut, JournalStorage
from penstock.system.files import File


class Built(NamedTuple):
    """A packed file that does not count yet."""

    temporary: str  # its path
    file: File
    moved: Sequence[Moved]


def pack(
    storage: JournalStorage, emptied: Callable[[Cut], None], go_on: Callable[[], bool], smaller: bool = False
) -> int:
    """Pack a journal; how many bytes that freed. `emptied` is told first if nothing at all will be left.

    With `smaller` it stays as it is, but for a new file, if a packed one would not be.
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
        with suppress(OSError):  # opening does it, too
            storage.files.disk.unlink(built.temporary)
        return 0
    return swap(storage, cut, built)


def is_smaller(cut: Cut, size: int) -> bool:
    """Whether a packed file of that size takes less than those that it stands for."""
    return size < sum(each.size for each in cut.files)


def is_whole(segments: Iterable[Segment], size: int) -> bool:
    """Whether all groups in the first so many bytes of a journal have their checksums."""
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
    """Step 1; None if there are no files. Until step 4 is done, or will never be, no one else may begin."""
    return storage.rotate() if storage.segments else None


def leaves_nothing(cut: Cut) -> bool:
    """Whether there is nothing to build."""
    frozen = cut.frozen
    return not (
        frozen.pages or frozen.receipts or frozen.keys or frozen.streams.last_batch or frozen.streams.streams
    )


def build(
    storage: JournalStorage, cut: Cut, emptied: Callable[[Cut], None], go_on: Callable[[], bool] = lambda: True
) -> Built:
    """Step 2, here. What makes it fail leaves the journal as it was."""
    files, disk = storage.files, storage.files.disk
    temporary = files.path(files.temporary(_stamp(storage, cut)))
    moved: list[Moved] = []
    try:
        file = disk.open(temporary, create=True, mode=mode_of(cut.files))
        if leaves_nothing(cut):
            emptied(cut)
            file.sync()
        else:
            moved = fill(file, cut.frozen, cut.files, cut.next_group, cut.at, storage.sink.dialect, go_on)
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
    return Order(names.folder, names.name, stamp, files, cut.frozen, cut.next_group, cut.at, storage.sink.dialect)


def take(storage: JournalStorage, result: Result) -> Built:
    """What another process has built."""
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
        f"{path!r} is not here what it is where it was built: all who pack must see one and the same folder. "
        "Nothing was changed"
    )


def swap(storage: JournalStorage, cut: Cut, built: Built) -> int:
    """Steps 3 and 4; how many bytes that freed."""
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
