"""Packing: all files of a journal but the latest become one, with what is still there and nothing else.

1. Begin a new file, and freeze the state as it is between the two.
2. Write the frozen state, with the bodies that are still there, to a temporary file, and sync it: building.py.
3. Rename it to NAME.TIME.pack: from here on it counts, and every file up to that time is dead, by Kestrel's rule.
4. Read bodies from it; remove the dead files; rename it to NAME.TIME.

Traffic goes on meanwhile. A crash before 3 leaves a temporary file that opening removes, one after it a step that
opening repeats. 1, 3 and 4 are for the process that has the store open; 2 may be done elsewhere, see parallel.py.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.files import File
from penstock.journal.bodies import Damaged
from penstock.journal.building import Moved, Order, Result, Stop, fill, refuse
from penstock.journal.files import Segment, mode_of
from penstock.journal.shelf import Cut, JournalShelf


class Built(NamedTuple):
    """A packed file that does not count yet."""

    temporary: str  # its path
    file: File
    moved: Sequence[Moved]


def pack(shelf: JournalShelf, emptied: Callable[[Cut], None], go_on: Callable[[], bool]) -> int:
    """Pack a journal; how many bytes that freed. `emptied` is told first if nothing at all will be left."""
    cut = begin(shelf)
    if cut is None:
        return 0
    try:
        built = build(shelf, cut, emptied, go_on)
    except Stop:
        return 0
    return swap(shelf, cut, built)


def begin(shelf: JournalShelf) -> Cut | None:
    """Step 1; None if there are no files. Until step 4 is done, or will never be, no one else may begin."""
    return shelf.rotate() if shelf.segments else None


def leaves_nothing(cut: Cut) -> bool:
    """Whether there is nothing to build."""
    frozen = cut.frozen
    return not (
        frozen.pages or frozen.receipts or frozen.keys or frozen.streams.last_batch or frozen.streams.streams
    )


def build(
    shelf: JournalShelf, cut: Cut, emptied: Callable[[Cut], None], go_on: Callable[[], bool] = lambda: True
) -> Built:
    """Step 2, here. What makes it fail leaves the journal as it was."""
    files, disk = shelf.files, shelf.files.disk
    temporary = files.path(files.temporary(_stamp(shelf, cut)))
    moved: list[Moved] = []
    try:
        file = disk.open(temporary, create=True, mode=mode_of(cut.files))
        if leaves_nothing(cut):
            emptied(cut)
            file.sync()
        else:
            moved = fill(file, cut.frozen, cut.files, cut.next_group, cut.at, shelf.sink.dialect, go_on)
    except (OSError, Stop, Damaged) as error:
        with suppress(OSError):
            disk.unlink(temporary)
        refuse(error, files.path(files.name))
        raise
    return Built(temporary, file, moved)


def order(shelf: JournalShelf, cut: Cut) -> Order:
    """Step 2 for another process."""
    files = [(each.number, each.name) for each in cut.files]
    names, stamp = shelf.files, _stamp(shelf, cut)
    return Order(names.folder, names.name, stamp, files, cut.frozen, cut.next_group, cut.at, shelf.sink.dialect)


def take(shelf: JournalShelf, result: Result) -> Built:
    """What another process has built."""
    path = shelf.files.path(result.temporary)
    try:
        file = shelf.files.disk.open(path)
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


def swap(shelf: JournalShelf, cut: Cut, built: Built) -> int:
    """Steps 3 and 4; how many bytes that freed."""
    files, disk, old = shelf.files, shelf.files.disk, cut.files
    file, stamp = built.file, _stamp(shelf, cut)
    packed = files.rotated(stamp) + ".pack"
    disk.rename(built.temporary, files.path(packed))
    files.sync()
    segment = Segment(shelf.next_packed(), files.rotated(stamp), file, file.size())
    shelf.add(segment)
    for first, positions, places, kept in built.moved:
        with shelf.lock:
            elsewhere = [segment.base + offset for offset in places.offset]
            shelf.state.move(first, positions, elsewhere, places.size, places.crc, kept)
    shelf.replace(old, segment)
    files.finish_pack(packed, [each.name for each in old])
    file.path = files.path(segment.name)
    if leaves_nothing(cut):
        shelf.replace([segment], None)
        disk.unlink(file.path)
        files.sync()
    return sum(each.size for each in old) - segment.size


def _stamp(shelf: JournalShelf, cut: Cut) -> int:
    return shelf.files.stamp(cut.files[-1].name)
