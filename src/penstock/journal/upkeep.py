"""The upkeep of one journal: packed in the background when that is worth it, indexed when the store closes.

It is worth it when most of a journal is waste, and that more than a segment, or when no messages are left; and not
again before the journal has doubled, so that packing stays cheap beside the work that makes it due.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from penstock.errors import DiskFull, PenstockError
from penstock.journal import packing, snapshot
from penstock.journal.building import Result
from penstock.journal.catalog import Catalog, Entry
from penstock.journal.checkup import packed_size
from penstock.journal.commits import stopped
from penstock.journal.recovery import Journal
from penstock.journal.shelf import Cut, JournalShelf
from penstock.threads import Lock, Task

_EMPTY = 16 << 20  # an empty queue's journal shrinks from this size on, as Kestrel's does
_HELD_BACK = 1 << 30  # bytes of a journal up to which it is not packed for the sake of those who follow
_OVERHEAD = 192  # bytes that a waiting message may well take beside its body
_SMALL = 1 << 20  # a snapshot of at most this size is always worth writing
_REPLAYED = 256 << 10  # bytes that were replayed when a store was opened: then an index helps the next opening
_FEW = 50_000  # messages whose index is written in no time
_log = logging.getLogger("penstock")


class Upkeep:
    """Keeps one journal small, and quick to open."""

    def __init__(
        self,
        journal: Journal,
        shelf: JournalShelf,
        catalog: Catalog,
        lock: Lock,
        keeping: Lock,
        is_open: Callable[[], bool],
        pack: Callable[[], object],
    ) -> None:
        self.journal = journal
        self.shelf = shelf
        self.packing = shelf.sink.threads.lock()
        self._catalog = catalog
        self._lock = lock  # the store's: no task starts once that is closed
        self._keeping = keeping  # held by who writes what is known of a queue
        self._is_open = is_open
        self._pack_now = pack  # by way of the store, where the queue may be gone by then
        self.before_packing: Callable[[], None] = lambda: None  # called while the files are all there
        self._least = min(_EMPTY, shelf.sink.segment_size)
        self._wanted = False
        self._task: Task | None = None  # that packs, or packed, in the background
        self._pack_from = 0  # not before it has so many bytes
        self._empty_from = 0  # nor, when it has no messages, before so many
        self._emptied_to: int | None = None  # which group comes first once the packing that runs has emptied it

    def look(self) -> None:
        """After a commit: pack if it is time."""
        shelf = self.shelf
        total = shelf.total()
        if total < self._least or self._wanted or not self._is_open() or self._waits():
            return
        size = shelf.state.size()
        wasted = total >= self._pack_from and self._waste() > max(shelf.sink.segment_size, total // 2)
        if wasted or (not size and total >= self._empty_from):
            self._pack_soon()

    def _waste(self) -> int:
        """About how many bytes of the journal are not needed any more."""
        state = self.shelf.state
        return self.shelf.total() - state.stored - _OVERHEAD * state.size()

    def _waits(self) -> bool:
        """Whether someone who follows the queue has still to read what packing would take; not for ever."""
        return self.shelf.state.is_followed() and self.shelf.total() < _HELD_BACK

    def _pack_soon(self) -> None:
        with self._lock:
            if self._wanted or not self._is_open():
                return
            self._wanted = True
            try:
                self._task = self.shelf.sink.threads.start("penstock-pack", self._run)
            except RuntimeError as error:  # no thread to be had just now
                self._wanted = False
                self._pack_from = self._empty_from = self.shelf.total() * 5 // 4
                _log.warning("queue %r is not packed yet: %s", self.shelf.state.name, str(error))

    def _run(self) -> None:
        try:
            self._pack_now()
        except DiskFull as error:
            self._pack_from = self._empty_from = self.shelf.total() * 5 // 4
            _log.warning("%s", str(error))  # an exception in a record would keep files open
        except PenstockError as error:
            if self._is_open():
                self._pack_from = self._empty_from = self.shelf.total() * 2
                _log.error("packing queue %r failed: %s", self.shelf.state.name, str(error))
        finally:
            self._wanted = False

    def wait(self) -> None:
        """Return when nothing is packed in the background."""
        if (task := self._task) is not None:
            task.join()

    def pack(self) -> int:
        """Pack the journal, by who holds `packing`; how many bytes that freed."""
        if self._waits():
            return 0
        self._prepare()
        with self._stopping():
            freed = packing.pack(self.shelf, self._emptied, self._is_open)
        self._finish()
        return freed

    # The same in steps, by who holds `packing` from the first to the last: see parallel.py

    def begin(self) -> Cut | None:
        """Cut the journal off where it is; None if it has no files, or someone has still to read them."""
        if self._waits():
            return None
        self._prepare()
        with self._stopping():
            return packing.begin(self.shelf)

    def empty(self, cut: Cut) -> packing.Built:
        """What takes the place of files of which nothing is left."""
        with self._stopping():
            return packing.build(self.shelf, cut, self._emptied)

    def take(self, result: Result) -> packing.Built:
        """What was built elsewhere."""
        with self._stopping():
            return packing.take(self.shelf, result)

    def swap(self, cut: Cut, built: packing.Built) -> int:
        """Let a packed file take the place of all before the cut; how many bytes that freed."""
        with self._stopping():
            freed = packing.swap(self.shelf, cut, built)
        self._finish()
        return freed

    def shrinks(self) -> bool:
        """Whether packing makes the journal smaller; with another dialect it is rewritten in any case."""
        shelf = self.shelf
        with shelf.lock:
            frozen, next_group, stored = shelf.state.freeze(), shelf.next_group, shelf.stored()
        return shelf.sink.dialect != "doc" or packed_size(frozen, next_group) < stored

    def _prepare(self) -> None:
        self._emptied_to = None
        self.before_packing()
        # The snapshot does not hold for a file with another name. It may stand for bytes that cannot be read, so
        # that closing must write a new one even if nothing comes of packing.
        self.journal.indexed = self.journal.index_size = 0
        with suppress(DiskFull), self.shelf.lock:
            self.shelf.reservation.shrink()  # no more than is needed, which may be what packing needs

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """What breaks in the middle of packing stops the store; a refusal does not."""
        failed = self.shelf.sink.failed
        try:
            yield
        except OSError as error:
            failed(error)
            raise stopped(error) from error
        except PenstockError:
            raise
        except BaseException as error:  # half done: a second packing beside it would not be understood
            failed(error)
            raise

    def _finish(self) -> None:
        shelf, journal = self.shelf, self.journal
        with suppress(DiskFull), shelf.lock:
            shelf.reservation.shrink()
        if self._emptied_to is not None:
            journal.starts = [self._emptied_to]
        self._pack_from = 2 * shelf.total()
        self._empty_from = 0 if shelf.state.size() else self._pack_from

    def _emptied(self, cut: Cut) -> None:
        journal = self.journal
        with self._keeping:
            entry = journal.entry or Entry(journal.ledger.name, journal.ledger.settings)
            starts = [*journal.starts, cut.next_group]
            journal.entry = replace(entry, first=cut.frozen.next_seq, starts=starts, at=cut.at)
            self._catalog.keep(journal.file, journal.entry)
        self._emptied_to = cut.next_group

    def close(self, index: bool) -> bool:
        """Write what is left, and the index as a hint for the next opening; False: neither can be trusted."""
        with self.packing:
            whole = self.shelf.close()
            if whole and index:
                self._keep_index()
            return whole

    def keep_index_early(self) -> None:
        """After a crash: what was replayed need not be once more. A large index would keep others waiting."""
        shelf = self.shelf
        with self.packing, shelf.lock:
            replayed = shelf.stored() - self.journal.indexed
            if shelf.is_quiet() and replayed > _REPLAYED and shelf.state.size() <= _FEW:
                self._keep_index()

    def _keep_index(self) -> None:
        shelf, journal = self.shelf, self.journal
        total = shelf.stored()
        if not total or total == journal.indexed:
            return
        if journal.index_size <= _SMALL or total - journal.indexed > journal.index_size // 4:
            segments = list(shelf.segments.values())
            path = self._catalog.index(journal.file)
            with suppress(OSError):  # only a hint
                at = max(shelf.at, shelf.state.advanced)
                snapshot.write(shelf.files.disk, path, shelf.state.freeze(), segments, shelf.next_group, at)
                journal.indexed = total
