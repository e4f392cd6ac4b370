"""The upkeep of one journal: packing in the background, and the saved index when the store closes.

A journal is packed when more than half of it, and more than a segment, is waste, or when no messages are left; and
not again before it has doubled, so that packing stays cheap beside the work that makes it due.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from penstock.engine.commits import stopped
from penstock.errors import DiskFull, PenstockError
from penstock.stores.journal import packing
from penstock.stores.journal.catalog import Catalog, Entry
from penstock.stores.journal.index import write_index
from penstock.stores.journal.packing import Result, packed_size
from penstock.stores.journal.recovery import Journal
from penstock.stores.journal.storage import Cut, JournalStorage
from penstock.system.files import is_full
from penstock.system.threads import Lock, Task

_EMPTY = 16 << 20  # an empty queue's journal is packed from this size on, as Kestrel's is
_HELD_BACK = 1 << 30  # bytes of a journal up to which packing waits for followers
_OVERHEAD = 192  # bytes of a waiting message beside its body, about
_SMALL = 1 << 20  # an index of at most this size is always worth writing
_REPLAYED = 256 << 10  # bytes that recovery replayed: beyond them an index helps the next opening
_FEW = 50_000  # messages whose index is written quickly
_log = logging.getLogger("penstock")


class Upkeep:
    """Packs and indexes one journal."""

    def __init__(
        self,
        journal: Journal,
        storage: JournalStorage,
        catalog: Catalog,
        lock: Lock,
        is_open: Callable[[], bool],
        pack: Callable[[], object],
    ) -> None:
        self.journal = journal
        self.storage = storage
        self.packing = storage.shared.threads.lock()
        self.keeping = storage.shared.threads.lock()  # held while `queues/FILE` is written
        self._catalog = catalog
        self._lock = lock  # the store's: no packing starts once it is closed
        self._is_open = is_open
        self._pack_now = pack  # through the store, which knows whether the queue still exists
        self.before_packing: Callable[[], None] = lambda: None  # called before files are removed
        self._least = min(_EMPTY, storage.shared.segment_size)
        storage.on_commit, storage.on_commit_from = self.look, self._least
        self._wanted = False
        self._task: Task | None = None  # that packs, or packed, in the background
        self._pack_from = 0  # bytes of the journal from which on it is packed
        self._empty_from = 0  # bytes from which on it is packed when it has no messages
        self._emptied_to: int | None = None  # the first group after the running packing, if that empties it

    def look(self) -> None:
        """Pack in the background if it is time; called after commits."""
        storage = self.storage
        total = storage.total()
        if total < self._least or self._wanted or not self._is_open() or self._waits():
            return
        size = storage.state.size()
        wasted = total >= self._pack_from and self._waste() > max(storage.shared.segment_size, total // 2)
        if wasted or (not size and total >= self._empty_from):
            self._pack_soon()

    def _waste(self) -> int:
        """Bytes of the journal that are not needed any more, about."""
        state = self.storage.state
        return self.storage.total() - state.stored - _OVERHEAD * state.size()

    def _waits(self) -> bool:
        """Whether packing waits, up to a limit, because followers may still have to read the files."""
        return self.storage.state.streams.is_followed() and self.storage.total() < _HELD_BACK

    def _pack_soon(self) -> None:
        with self._lock:
            if self._wanted or not self._is_open():
                return
            self._wanted = True
            try:
                self._task = self.storage.shared.threads.start("penstock-pack", self._run)
            except RuntimeError as error:  # no thread can start
                self._wanted = False
                self._pack_from = self._empty_from = self.storage.total() * 5 // 4
                _log.warning("queue %r is not packed yet: %s", self.storage.state.name, str(error))

    def _run(self) -> None:
        try:
            self._pack_now()
        except DiskFull as error:
            self._pack_from = self._empty_from = self.storage.total() * 5 // 4
            _log.warning("%s", str(error))  # as text: an exception in a log record would keep files open
        except PenstockError as error:
            if self._is_open():
                self._pack_from = self._empty_from = self.storage.total() * 2
                _log.error("packing queue %r failed: %s", self.storage.state.name, str(error))
        finally:
            self._wanted = False

    def wait(self) -> None:
        """Wait for packing in the background."""
        if (task := self._task) is not None:
            task.join()

    def pack(self, smaller: bool = False) -> int:
        """Pack the journal, perhaps only if it becomes smaller; the bytes freed. The caller holds `packing`."""
        if self._waits():
            return 0
        self._prepare()
        with self._stopping():
            freed = packing.pack(self.storage, self._emptied, self._packed, self._is_open, smaller)
        self._finish()
        return freed

    # The steps of a Round (packing.py), which holds `packing` from the first to the last

    def begin(self) -> Cut | None:
        """Step 1; None if the journal has no files, or followers still have to read them."""
        if self._waits():
            return None
        self._prepare()
        with self._stopping():
            return packing.begin(self.storage)

    def empty(self, cut: Cut) -> packing.Built:
        """Step 2 for a journal without messages."""
        with self._stopping():
            return packing.build(self.storage, cut, self._emptied)

    def take(self, result: Result) -> packing.Built:
        """Open a packed file that another process has built."""
        with self._stopping():
            return packing.take(self.storage, result)

    def swap(self, cut: Cut, built: packing.Built) -> int:
        """Steps 3 and 4; the bytes freed."""
        with self._stopping():
            freed = packing.swap(self.storage, cut, built)
            self._packed(cut)
        self._finish()
        return freed

    def shrinks(self) -> bool:
        """Whether packing makes the journal smaller. In dialect "2.x" it is packed in any case."""
        storage = self.storage
        with storage.lock:
            snapshot, next_group, stored = storage.state.snapshot(), storage.next_group, storage.stored
        return storage.shared.dialect != "doc" or packed_size(snapshot, next_group) < stored

    def is_damaged(self) -> bool:
        """Whether bytes are damaged that opening did not read, because the saved index covers them."""
        with self._stopping():
            return not packing.is_whole(list(self.storage.segments.values()), self.journal.indexed)

    def _prepare(self) -> None:
        self._emptied_to = None
        self.before_packing()
        # Rotation makes the saved index invalid. It may also cover damaged bytes, so that closing must write a new
        # one even if packing fails.
        self.journal.indexed = self.journal.index_size = 0
        with suppress(DiskFull), self.storage.lock:
            self.storage.reservation.shrink()  # packing may need the space

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the store on any error but a PenstockError, which changes nothing."""
        failed = self.storage.shared.failed
        try:
            yield
        except OSError as error:
            failed(error)
            raise stopped(error) from error
        except PenstockError:
            raise
        except BaseException as error:  # half done: a second packing would leave files that recovery misreads
            failed(error)
            raise

    def _finish(self) -> None:
        storage, journal = self.storage, self.journal
        with suppress(DiskFull), storage.lock:
            storage.reservation.shrink()
        if self._emptied_to is not None:
            journal.starts = [self._emptied_to]
        self._pack_from = 2 * storage.total()
        self._empty_from = 0 if storage.state.size() else self._pack_from

    def _emptied(self, cut: Cut) -> None:
        journal = self.journal
        with self.keeping:
            entry = journal.entry or Entry(journal.ledger.name, journal.ledger.state.base)
            starts = [*journal.starts, cut.next_group]
            journal.entry = replace(entry, first=cut.snapshot.next_seq, starts=starts, at=cut.at)
            self._catalog.keep(journal.file, journal.entry)
        self._emptied_to = cut.next_group

    def _packed(self, cut: Cut) -> None:
        """Let `queues/FILE` begin with the settings that the packed file has.

        Not before that file is committed: older records are replayed with the settings of their time.
        """
        journal, settings = self.journal, cut.snapshot.settings
        if settings in (None, cut.base):
            return
        with self.keeping:
            if journal.entry is None or journal.entry.deleted:
                return
            entry = journal.entry.beginning_with(settings)
            try:
                self._catalog.keep(journal.file, entry)
            except OSError as error:
                if not is_full(error):
                    raise
                return  # the next packing tries again
            journal.entry = entry
        with self.storage.lock:
            self.storage.state.base = settings

    def close(self, index: bool) -> bool:
        """Write the last records and the index; False if writing has failed."""
        with self.packing:
            whole = self.storage.close()
            if whole and index:
                self._keep_index()
            return whole

    def keep_index_early(self) -> None:
        """Save the index after a recovery that replayed much; a large index would take too long."""
        storage = self.storage
        with self.packing, storage.lock:
            replayed = storage.stored - self.journal.indexed
            if storage.is_quiet() and replayed > _REPLAYED and storage.state.size() <= _FEW:
                self._keep_index()

    def _keep_index(self) -> None:
        storage, journal = self.storage, self.journal
        total = storage.stored
        if not total or total == journal.indexed:
            return
        if journal.index_size <= _SMALL or total - journal.indexed > journal.index_size // 4:
            segments = list(storage.segments.values())
            path = self._catalog.index(journal.file)
            with suppress(OSError):  # only a hint
                at = max(storage.at, storage.state.advanced)
                write_index(storage.files.disk, path, storage.state.snapshot(), segments, storage.next_group, at)
                journal.indexed = total
