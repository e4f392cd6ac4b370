"""The latest file of a journal: groups are appended to it, until it is rotated away and the next begins.

Only the thread that leads a commit appends. Where a sync is part of every write, small groups go over a filling,
which is written ahead; and a write that finds the disk full takes space from the ballast.
"""

from collections.abc import Callable
from typing import TypeVar

from penstock.stores.journal.ballast import Ballast
from penstock.stores.journal.files import FILL, FILLING, SECTOR, JournalFiles, Segment, filling_end, mode_of
from penstock.system.files import File, is_full

Result = TypeVar("Result")


class LatestFile:
    """The latest file of one journal, if it is there: it is made with its first group."""

    def __init__(self, files: JournalFiles, segment: Segment | None, ballast: Ballast, through: bool) -> None:
        self.segment = segment
        self._files = files
        self._ballast = ballast
        self._through = through  # every write is synced
        self._filled = segment.size if segment else 0  # how far the file reaches with its filling
        self._unsynced: File | None = None

    def append(self, segment: Segment, start: int, buffer: bytearray) -> None:
        """Write a group. Small ones are written over a filling, as a sync of that is much cheaper than of growth.

        What a crash leaves of a group must never look like a whole filling and then something else, for that is
        what another program leaves that went on after us. So the sector in which the filling ends must be old, and
        then nothing follows, or be new and begin with something else. A group that has only REMOVE there goes to
        the disk in two steps: by then its beginning is there.
        """
        end, through = start + len(buffer), self._through
        write = segment.file.write_through if through else segment.file.write
        over = self._filled - start
        if 0 < over < len(buffer) and not buffer[max(0, over - SECTOR // 2) : over].strip(FILL):
            write(start, buffer[:over])
        if end > self._filled and through and len(buffer) < FILLING // 2 and not self._ballast.short:
            filled = filling_end(end)
            try:
                write(start, buffer + FILL * (filled - end))
                self._filled = filled
                return
            except OSError as error:
                if not is_full(error):
                    raise
            segment.file.truncate(self._filled)
        self.with_space(lambda: write(start, buffer), len(buffer))
        self._filled = max(self._filled, end)

    def rotate(self, stamp: Callable[[], int]) -> None:
        """Give the file, if there is one, the name that says when it was left."""
        files, old = self._files, self.segment
        if old is None:
            return
        old.file.truncate(old.size)
        old.file.sync()
        name = files.rotated(stamp())
        files.disk.rename(files.path(files.name), files.path(name))
        files.sync()  # before the new file takes the name
        old.name, old.file.path = name, files.path(name)

    def create(self, number: int) -> Segment:
        """Make the next file."""
        files = self._files
        mode = mode_of([self.segment] if self.segment is not None else [])
        file = self.with_space(lambda: files.disk.open(files.path(files.name), create=True, mode=mode), 0)
        files.sync()
        return Segment(number, files.name, file, 0)

    def go_on_with(self, segment: Segment) -> None:
        """From here on this is the latest file."""
        self.segment, self._filled = segment, 0

    def with_space(self, work: Callable[[], Result], size: int) -> Result:
        """Do something that needs so much space, with space from the ballast if there is no other."""
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error) or not self._ballast.release(size):
                    raise

    def sync_later(self, file: File) -> bool:
        """A file is to be synced; whether no other was."""
        first, self._unsynced = self._unsynced is None, file
        return first

    def sync(self) -> None:
        """Sync what was written and not synced."""
        file, self._unsynced = self._unsynced, None
        current = self.segment
        for each in {id(each): each for each in (file, current.file if current else None) if each}.values():
            each.sync()

    def finish(self) -> None:
        """Make the file durable, without its filling: whoever opens it next relies on where it ends."""
        if self.segment is None:
            return
        filled = self._filled > self.segment.size
        if filled:
            self.segment.file.truncate(self.segment.size)
            self._filled = self.segment.size
        if filled or not self._through:
            self.segment.file.sync()
