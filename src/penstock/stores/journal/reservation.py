"""Reserved disk space, so that accepted messages can be written, and settled even when the disk is full.

The store's ballast is a file of reserved space. Every queue reserves bytes per message, in steps and ahead of the
need, so that most puts do not ask the disk. A put for which there is no space is DiskFull, before anything has
changed. A write that finds the disk full takes space from the ballast; until that is refilled no messages are
accepted. New messages also need xids that no other message has.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.contract.message import Entry, Plain
from penstock.errors import DiskFull, InvalidArgument, StoreClosed
from penstock.rules.state import State
from penstock.stores.journal import bodies, groups
from penstock.stores.journal.groups import PERIOD
from penstock.system.files import Disk, File, is_full
from penstock.system.threads import Lock

_SETTLING = 384  # bytes kept free for each message: claiming and settling it, one by one
_BESIDE = bodies.OVERHEAD + 160  # bytes of a message beside its payload, in a group of its own
PER_MESSAGE = _BESIDE + _SETTLING  # bytes reserved for a new message beside its payload
_FAR = PERIOD - (1 << 20)  # from this span of numbers on the next xids may be open
_AHEAD = 4 << 20  # bytes reserved ahead, at most
_SETTLE, _CLAIM = 160, 1024
STEP = 64 << 10  # smaller changes of the reserved space are not worth a system call
_RELEASE = 4 << 10


class Ballast:
    """The reserved space of one store."""

    def __init__(self, disk: Disk, path: str, lock: Lock) -> None:
        self.size = 0
        self.owed = 0
        self._disk = disk
        self._path = path
        self._lock = lock
        self._file: File | None = None

    def owe(self, change: int, exactly: bool = False) -> None:
        """Change the owed space and reserve it; OSError changes nothing."""
        with self._lock:
            owed = self.owed + change
            if owed > self.size:
                self._reserve(owed)
            elif self.size > (owed if exactly else 2 * owed + STEP) and self._file is not None:
                self._file.truncate(0)
                self.size = 0
                self._reserve(owed)
            self.owed = owed

    def inherit(self, owed: int) -> None:
        """Owe space for existing messages, and reserve as much of it as the disk has."""
        with self._lock:
            self.owed += owed
            size = self.owed
            while size > self.size:
                try:
                    self._reserve(size)
                except OSError as error:
                    if not is_full(error):
                        raise
                    size //= 2

    def _reserve(self, size: int) -> None:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        self._file.reserve(size)
        self.size = size

    def refill(self, size: int) -> None:
        """Reserve space for settling again, after release(); OSError if the disk is full."""
        with self._lock:
            if self.size < size:
                self._reserve(size)

    def close(self) -> None:
        """Close the file; the space stays reserved."""
        if self._file is not None:
            self._file.close()

    @property
    def short(self) -> bool:
        """Whether a write took space that is not refilled yet."""
        return self.size < self.owed

    def release(self, need: int) -> bool:
        """Free space for a write that found the disk full; False: nothing is left."""
        with self._lock:
            if self._file is None or not self.size:
                return False
            left = max(0, self.size - max(need, _RELEASE))
            self._file.truncate(0)
            self.size = 0
            with suppress(OSError):
                self._reserve(left)
            return True


class Reservation:
    """The reserved space of one queue; used under the queue's lock."""

    def __init__(
        self,
        state: State,
        folder: str,
        ballast: Ballast,
        pending: Callable[[], int],
        stop: Callable[[BaseException], StoreClosed],
    ) -> None:
        self._state = state
        self._folder = folder
        self.ballast = ballast
        self.left = 0  # bytes of new messages that need no new reservation
        self._pending = pending  # bytes that are still to be written
        self._stop = stop
        self._owed = 0  # bytes that the ballast has for this queue

    def make_room(self, entries: Sequence[Entry] = (), claims: int = 0) -> None:
        """Reserve space for new messages, and for claiming and settling all messages."""
        ballast, count = self.ballast, len(entries)
        if not count:
            if ballast.short:
                self._refill(_SETTLE * self._state.unsettled() + _CLAIM + 16 * claims)
            return
        size = _BESIDE * count
        if isinstance(entries, Plain):
            size += sum(map(len, entries.payloads))
        else:
            size += sum([len(entry.payload) + bodies.meta_size(entry) for entry in entries])
        pending = self._pending()
        if pending + size > groups.MAX_SIZE:
            raise InvalidArgument(f"{size} bytes are too many for one step: put fewer messages at a time")
        self.skip_open_xids(count)
        needed = pending + size + self._for_settling(count)
        if not needed <= self._owed <= 2 * (needed + STEP) or ballast.short:
            self._reserve(needed)
        near = self._state.next_seq - self._state.rows.oldest() < _FAR
        self.left = min(self._owed - needed, STEP, groups.MAX_SIZE - pending - size) if near else 0

    def expect(self, count: int, size: int) -> None:
        """Reserve space to write `size` bytes and settle `count` messages of a load."""
        self._reserve(self._pending() + size + self._for_settling(count))

    def skip_open_xids(self, count: int) -> None:
        """Skip message numbers whose xid another message still has."""
        self.left = 0
        if self._state.next_seq + count - self._state.rows.oldest() > PERIOD:
            _skip_open_xids(self._state, count)

    def inherit(self) -> None:
        """Reserve space for settling the recovered messages."""
        self._owed = self._for_settling()
        self.ballast.inherit(self._owed)

    def shrink(self) -> None:
        """Give back space that settling the queue's messages does not need."""
        self._reserve(self._for_settling(), 0)

    def give_back(self) -> None:
        """Give back all space: the queue is deleted."""
        self.ballast.owe(-self._owed)

    def _for_settling(self, more: int = 0) -> int:
        size = self._state.unsettled() + more
        return size and _CLAIM + _SETTLING * size

    def _reserve(self, needed: int, ahead: int = STEP) -> None:
        self.left = 0
        for size in (needed + max(ahead, min(needed // 4, _AHEAD)), needed):
            try:
                self.ballast.owe(size - self._owed, exactly=not ahead)
                self._owed = size
                return
            except OSError as error:
                if not is_full(error):
                    raise self._stop(error) from error
        raise self._full()

    def _refill(self, needed: int) -> None:
        try:
            self.ballast.refill(needed)
        except OSError as error:
            if not is_full(error):
                raise self._stop(error) from error
            raise self._full() from None

    def _full(self) -> DiskFull:
        return DiskFull(
            f"no space left for queue {self._state.name!r} in {self._folder!r}, and nothing was changed: "
            "settle messages, which space is reserved for, or free some on that disk"
        )


def _skip_open_xids(state: State, count: int) -> None:
    """Skip numbers whose xid is still open, after four billion messages."""
    if (
        state.next_seq - state.rows.oldest()
    ) // PERIOD > state.size():  # a number that cannot be: look at every message
        rows = [(first, page, page.keys()) for first, page in state.snapshot().pages]
        left = {
            (first + keys[row]) % PERIOD for first, page, keys in rows for row, at in enumerate(page.state) if at
        }

        def is_open(seq: int) -> bool:
            return seq % PERIOD in left
    else:

        def is_open(seq: int) -> bool:
            return any(state.has(earlier) for earlier in range(seq - PERIOD, state.rows.oldest() - 1, -PERIOD))

    while True:
        taken = [seq for seq in range(state.next_seq, state.next_seq + count) if is_open(seq)]
        if not taken:
            return
        state.skip_to(taken[-1] + 1)
