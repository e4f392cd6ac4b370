"""Packing many journals at once: begun and ended by the process that has the store open, built by others.

The steps are those of packing.py, each of them for all journals before the next. A journal that is not built, or
whose builder fails, is as it was; what builders left behind is removed in the end, or by the next opening.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from penstock.errors import QueueNotFound
from penstock.stores.journal import packing
from penstock.stores.journal.building import Order, Result
from penstock.stores.journal.segments import is_temporary
from penstock.stores.journal.storage import Cut
from penstock.stores.journal.store import JournalBackend
from penstock.stores.journal.upkeep import Upkeep
from penstock.system.threads import Task, Threads

_THREADS = 16  # they mostly wait for the disk, which syncs for several at the price of one
Item = TypeVar("Item")


class Packed(NamedTuple):
    """A journal that was packed, and its bytes."""

    queue: str
    before: int
    after: int


class _Begun(NamedTuple):
    queue: str
    upkeep: Upkeep
    cut: Cut
    before: int


class Round:
    """Packs the journals of some queues, which no one else packs or deletes meanwhile.

    with Round(backend, queues) as packing:
        results = [build(order, disk, 0) for order in packing.begin()]  # in any processes
        packing.swap(results)
    """

    def __init__(self, backend: JournalBackend, queues: Iterable[str]) -> None:
        self._backend = backend
        self._queues = sorted(set(queues))  # in one order, or two of these could wait for each other
        self._held = ExitStack()
        self._upkeep: dict[str, Upkeep] = {}
        self._begun: dict[str, _Begun] = {}  # by the journal's name
        self._unfinished: set[str] = set()  # journals that may have temporary files

    def __enter__(self) -> Self:
        with ExitStack() as held:
            for queue in self._queues:
                with suppress(QueueNotFound):  # deleted by now
                    self._upkeep[queue] = held.enter_context(self._backend.packing(queue))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:
            self._remove_temporaries()

    def begin(self) -> list[Order]:
        """Cut off all journals; what is to be built. For those of which nothing is left that is nothing."""
        self._for_each(self._begin, list(self._upkeep.items()))
        begun = [each for each in self._begun.values() if not packing.leaves_nothing(each.cut)]
        return [packing.order(each.upkeep.storage, each.cut) for each in sorted(begun)]

    def _begin(self, item: tuple[str, Upkeep]) -> None:
        queue, upkeep = item
        self._backend.find(queue)  # or else the store has stopped
        before = upkeep.storage.stored()
        cut = upkeep.begin()
        if cut is not None:
            journal = upkeep.storage.files.name
            self._unfinished.add(journal)
            self._begun[journal] = _Begun(queue, upkeep, cut, before)

    def queue(self, journal: str) -> str:
        """The queue of a journal that was begun."""
        return self._begun[journal].queue

    def swap(self, results: Iterable[Result]) -> list[Packed]:
        """Let what was built take its place, and what is empty shrink to nothing; all but what was not built."""
        built = {result.journal: result for result in results}
        begun, self._begun = list(self._begun.values()), {}
        there = {each.queue for each in begun}
        packed = [Packed(queue, 0, 0) for queue in self._upkeep if queue not in there]

        def swap(each: _Begun) -> None:
            self._backend.find(each.queue)
            upkeep, storage = each.upkeep, each.upkeep.storage
            if packing.leaves_nothing(each.cut):
                upkeep.swap(each.cut, upkeep.empty(each.cut))
            elif (result := built.get(storage.files.name)) is None:
                return
            elif packing.is_smaller(each.cut, result.size) or upkeep.storage.sink.dialect != "doc":
                upkeep.swap(each.cut, upkeep.take(result))
            packed.append(Packed(each.queue, each.before, storage.stored()))

        self._for_each(swap, begun)
        return sorted(packed)

    def _for_each(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        if items:
            _for_each(work, items, next(iter(self._upkeep.values())).storage.sink.threads)

    def _remove_temporaries(self) -> None:
        """Remove what builders left, failed ones and those that were built twice."""
        if not self._unfinished:
            return
        files = next(iter(self._upkeep.values())).storage.files
        with suppress(OSError):  # opening does it, too
            for name in files.disk.listdir(files.folder):
                if is_temporary(name) and name.partition("~~")[0] in self._unfinished:
                    files.disk.unlink(files.path(name))


def _for_each(work: Callable[[Item], None], items: Sequence[Item], threads: Threads) -> None:
    """Do something with each item, in several threads; the first error ends it. Returns when all threads have."""
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
    with suppress(RuntimeError):  # no more threads to be had
        while len(tasks) < min(_THREADS, len(items)):
            tasks.append(threads.start("penstock-pack", run))
    if not tasks:
        run()
    while tasks:
        try:
            tasks[-1].join()
            tasks.pop()
        except BaseException as error:  # as Ctrl-C: what was begun is still brought to its end
            errors.append(error)
    if errors:
        raise errors[0]
