"""The backend of folder stores: opens the store, finds its queues, runs operations, also on a full disk."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from penstock.contract.message import Entry, Moved
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import Redrive
from penstock.contract.refusals import exists_already, not_found
from penstock.contract.settings import QueueInfo, Settings, whole
from penstock.engine.backend import check_start, closed
from penstock.engine.unowned import Unowned
from penstock.errors import (
    DiskFull,
    InvalidArgument,
    LeaseExpired,
    NotSupported,
    PenstockError,
    StoreClosed,
    StoreUnavailable,
)
from penstock.rules.moves import check_dead_letter, sources_of
from penstock.stores.folder import recovery
from penstock.stores.folder.catalog import Catalog, Listed
from penstock.stores.folder.dead_letters import Moves
from penstock.stores.folder.guard import SIZE, Ballast, Guard
from penstock.stores.folder.layout import DELAY, DONE, FAILED, QUEUES, REMOVE
from penstock.stores.folder.queue import FolderQueue
from penstock.stores.folder.recovery import Upkeep
from penstock.stores.folder.shared import SECOND, Neighbours, Shared, SystemNeighbours
from penstock.stores.folder.tree import Tree, home, is_full
from penstock.system import processes
from penstock.system.clock import Clock, SteadyClock, SystemClock
from penstock.system.files import Disk, SystemDisk
from penstock.system.threads import SystemThreads, Threads

Answer = TypeVar("Answer")
Result = TypeVar("Result")
_MOST_PEERS = 1_000
_TAKES = ("claim", "pop")  # operations after which a look every second is enough
_NO_LOOK = ("create", "delete", "settings", "put", "publish", "ack", "fail", "release", "extend")  # list nothing


class FolderBackend(Unowned):
    """Queues in a folder that any number of processes use at once."""

    kind = "a folder store"

    def __init__(
        self,
        folder: str,
        clock: Clock,
        disk: Disk,
        threads: Threads,
        neighbours: Neighbours,
        sync: str,
        peers: int,
        ballast: int,
    ) -> None:
        super().__init__()
        self.clock = clock
        self._lock = threads.rlock()
        self._closed = self._is_forked = False
        self._options = folder, disk, threads, sync, peers, ballast
        self._open(neighbours)
        processes.watch_forks(self)

    def _open(self, neighbours: Neighbours) -> None:
        folder, disk, threads, sync, peers, ballast = self._options
        steady = SteadyClock(self.clock)
        tree = Tree(folder, disk, neighbours.name, sync == "always", steady.now)
        self.shared = Shared(tree, steady, threads, neighbours, peers)
        self._clock = self.shared.clock
        self._catalog = Catalog(self.shared)
        self._upkeep = Upkeep(self.shared, self._keep_done)
        self._ballast = Ballast(self.shared, ballast, self._keep_done)
        self._queues: dict[str, FolderQueue] = {}
        self._moves = Moves(self._queues, threads)
        self._kept_back: dict[str, float] = {}  # when the disk last kept the dead letters of a queue back
        self._made: dict[str, Listed] = {}  # the catalog's entries of `_queues`
        self._unread = True  # whether the catalog must be read, because the last reading failed
        self._checked = steady.monotonic()
        self._guarding = Guard(self.shared, self._stop)
        self._with_ballast(self._start)  # opening needs space too, and a full store must be opened to be emptied
        self._guarding.is_open = True

    def _start(self) -> None:
        self.shared.tree.open()
        recovery.recover(self.shared, self._catalog)
        with self._catalog.locked():
            if self.shared.tree.is_adopted:
                self._catalog.adopt()
            if DEFAULT not in self._catalog.read() and DEFAULT not in self._catalog.refused:
                self._catalog.make(DEFAULT, Settings(), os.urandom(8).hex())
        self._read()
        self._ballast.make(certain=False)

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the store in this process."""
        return self._guarding.failure

    @property
    def _guard(self) -> Guard:
        """The context of every operation. A forked child first opens the store anew."""
        if self._is_forked:
            with self._lock:
                if self._is_forked and not self._closed:
                    self._open(SystemNeighbours())
                    self._is_forked = False
        return self._guarding

    def forked(self) -> None:
        """In a forked child, private folder and locks are the parent's: the next operation opens it anew."""
        self._guarding.refusal = self._guarding.refusal or _forked
        self._lock = self.shared.threads.rlock()
        self._is_forked = True

    # Queues

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        self._check(settings)
        with self._guard, self._lock, self._catalog.locked():
            there = self._catalog.read()
            known = there.get(queue)
            if queue in self._catalog.refused:
                raise self._missing(queue)
            if known is not None and not known.deleted:
                raise exists_already(queue)
            self._check_dead_letter(queue, settings, there)
            if known is not None:
                self._catalog.clear(known)
            self._add(self._catalog.make(queue, settings, os.urandom(8).hex()))

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        """Change settings; all settings then. Other processes read them with the catalog."""
        with self._guard, self._lock:
            found = self.find(queue)
            with self._catalog.locked():
                listed = self._listed(queue)
                settings = listed.settings.changed(changes)
                self._check(settings)
                if settings == listed.settings:
                    return settings
                if settings.dead_letter != listed.settings.dead_letter:  # else it may be gone
                    self._check_dead_letter(queue, settings, self._catalog.read())
                found.use(listed.settings)
                kept_anew = settings.keep_done != listed.settings.keep_done
                if kept_anew:
                    found.let_go_of_done()
                self._made[queue] = self._catalog.update(listed, settings)
            found.use(settings)
            self._moves.note()
            try:
                if kept_anew:
                    found.let_go_of_done()
            except OSError as error:
                if not is_full(error):  # else done messages stay in done/ for a while, and are not listed
                    raise
            return settings

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        with self._guard, self._lock:
            self.find(queue)
            with self._catalog.locked():
                listed = self._listed(queue)
                self._drop(queue)
                self._catalog.delete(listed)

    def _check(self, settings: Settings) -> None:
        """Refuse settings that the store does not keep to."""
        check_start(settings)
        if settings.dead_letter is not None:
            self.shared.tree.need_attributes("dead_letter")

    def _check_dead_letter(self, queue: str, settings: Settings, there: Mapping[str, Listed]) -> None:
        """Refuse a dead-letter queue that does not exist, or has one itself; the catalog is locked."""
        known = {name: listed.settings for name, listed in there.items() if not listed.deleted}

        def find(target: str) -> Settings:
            if target not in known:
                raise self._missing(target)
            return known[target]

        check_dead_letter(queue, settings, find, sources_of(known.items()))

    def _listed(self, queue: str) -> Listed:
        """The queue's entry in the catalog, which is locked; QueueNotFound if another process has deleted it."""
        listed = self._catalog.read().get(queue)
        if listed is None or listed.deleted:
            self._drop(queue)
            raise not_found(queue)
        return listed

    def _add(self, listed: Listed) -> None:
        look = partial(self._look, listed.name)
        queue = FolderQueue(self.shared, listed.name, listed.file, listed.settings, look)
        self._queues[listed.name] = queue
        self._made[listed.name] = listed
        if listed.settings.dead_letter is not None:
            self._moves.note()

    def _drop(self, name: str) -> None:
        self._made.pop(name, None)
        dropped = self._queues.pop(name, None)
        if dropped is not None:
            dropped.stop(lambda: self._missing(name))
            if dropped.settings.dead_letter is not None:
                self._moves.note()

    def _missing(self, name: str) -> PenstockError:
        """The error for a queue that does not exist, or that cannot be used."""
        refused = self._catalog.refused.get(name)
        return not_found(name) if refused is None else type(refused)(str(refused))

    def _read(self, eager: bool = False) -> None:
        """Take over queues that other processes have made, changed or deleted."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._checked >= SECOND:
                self.shared.tree.check_folders()
                self._checked = now
            if not self._catalog.changed(eager) and not self._unread:
                return
            self._unread = True  # until it was read: after an error the next call reads it again
            there = {name: listed for name, listed in self._catalog.read().items() if not listed.deleted}
            changed = False
            for name, known in list(self._made.items()):
                listed = there.get(name)
                if listed is not None and replace(listed, settings=known.settings) == known:
                    if listed != known:
                        self._queues[name].use(listed.settings)
                        self._made[name] = listed
                        changed = True
                else:
                    self._drop(name)
            for name, listed in there.items():
                if name not in self._made:
                    self._add(listed)
            if changed:
                self._moves.note()
            self._unread = False

    def find(self, queue: str) -> FolderQueue:
        """The queue; QueueNotFound."""
        with self._guard:
            self._read()
            if queue not in self._queues:
                self._read(eager=True)
        with self._lock:
            try:
                return self._queues[queue]
            except KeyError:
                raise self._missing(queue) from None

    def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        with self._guard:
            self._read(eager=True)
            with self._lock:
                queues = sorted(self._queues.items())
                for name in self._catalog.refused:  # a list without the queue would look complete
                    raise self._missing(name)
        found = []
        for _, queue in queues:
            with self._guard:
                found.append(queue.show())
        return found

    def check(self) -> None:
        """Raise if the store cannot be read or written; a full disk is no error."""
        self.queues()
        with suppress(DiskFull), self._guard:
            self.shared.tree.try_to_write()

    # Messages

    def run(self, operation: Operation[Result]) -> Result:
        queue = getattr(operation, "queue", None)
        look = operation.runs not in _NO_LOOK
        eager = look and operation.runs not in _TAKES
        if self._moves.sources and look:
            self._settle_dead(queue, look, eager)
        sent = 0
        if isinstance(operation, Redrive) and queue in self._moves.sources:
            source = self.find(operation.queue)
            sent = self._with_ballast(partial(self._moves.redrive, source, operation.ids))
        try:
            result = self._run(operation)
            return result + sent if sent else result  # type: ignore[return-value, operator]
        finally:
            if self._moves.sources and queue is not None:
                self._settle_dead(queue, operation.runs == "update", eager)

    def _run(self, operation: Operation[Result]) -> Result:
        if operation.on_queue is None or hasattr(self, operation.runs):
            return super().run(operation)
        found = self.find(operation.queue)
        call: Callable[[], Any] = partial(operation.on_queue, found)
        result: Any
        match operation.runs:
            case "put":
                result = self._take_in(call)
            case "claim" | "pop" | "extend" | "revoke" | "redrive":
                result = self._with_ballast(call)
            case "ack" | "fail" | "release":
                result = self._settle(found.name, call)
            case "remove" | "purge":
                result = self._all_parts(call)
            case _:
                with self._guard:
                    result = call()
                if operation.listing:
                    result = self._guard.each(result)
        return result  # type: ignore[no-any-return]

    def _settle_dead(self, queue: str | None, look: bool, eager: bool) -> None:
        """Move what has failed for good in a queue, and in those whose dead letters it takes; None: in all.

        `look`: end leases first. `eager`: look at once at what other processes have done. Where the disk or its
        permissions do not let them go, failed messages stay.
        """
        queues = list(self._moves.sources) if queue is None else [queue]
        for source in [each for name in queues for each in self._moves.concerned(name)]:
            now = self._clock.monotonic()
            if not eager and now - self._kept_back.get(source.name, -SECOND) < SECOND:
                continue
            try:
                with self._guard:
                    if look:
                        source.look(eager)
                    self._moves.bury(source, eager)
            except (DiskFull, StoreUnavailable):
                self._kept_back[source.name] = now
        self.shared.tree.begin()

    def _look(self, queue: str) -> None:
        """Look around for a consumer that waits in a queue, which may be deleted, or be sent dead letters."""
        self._read()
        if self._moves.sources:
            self._settle_dead(queue, look=True, eager=True)

    def move(self, queue: str, target: str, ids: Sequence[str] | None) -> int:
        """Move messages to another queue; how many."""
        self.shared.tree.need_attributes("move")
        source, goal = self.find(queue), self.find(target)
        return self._with_ballast(lambda: self._moves.move(source, goal, ids))

    def _settle(self, queue: str, call: Callable[[], list[str]]) -> Any:
        lost = self._with_ballast(call)
        with self._guard:
            self._tend()
        if lost:
            raise LeaseExpired(queue, lost)

    def _take_in(self, call: Callable[[], Answer]) -> Answer:
        with self._guard:
            self._tend()
            self._make_room()
            return call()

    def restore(self, queue: str, moved: Sequence[Moved]) -> None:
        found = self.find(queue)
        self._take_in(lambda: found.restore(moved))

    def _publish(self, entry: Entry, copy: Entry) -> None:
        from penstock.filters import Subject  # here, because most processes need none

        with self._guard, ExitStack() as locks:
            subject = Subject.of(entry, self._clock.now())
            self._read()
            self._make_room()
            with self._lock:
                queues = sorted(self._queues.items())
            matching = [queue for _, queue in queues if self._matches(queue.settings.filter, subject)]
            for queue in matching:
                queue.check([copy])
            for queue in matching:  # locked in the order of names, so that there is no deadlock
                if queue.is_exact:
                    locks.enter_context(queue.admission.locked())
                    queue.check_room(1)
            for queue in matching:
                queue.take_in([copy], exact=queue.is_exact)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._is_forked:  # not used since the fork: private folder and locks are the parent's
                self._guarding.refusal = closed
                return
            if self._guarding.refusal is None:
                self._guarding.refusal = closed
                self.shared.tree.close()
            self._stop(closed)

    def _stop(self, refusal: Callable[[], StoreClosed]) -> None:
        for queue in list(self._queues.values()):
            queue.stop(refusal)

    def tend(self) -> None:
        """Do the work of mover and reaper once."""
        self.move_due()
        self.reap()

    def move_due(self) -> int:
        """End due leases and delays in all queues, and recover from dead processes; how many were due."""
        with self._guard:
            self._read(eager=True)
            self._upkeep.recover_dead()
            with self._lock:
                queues = list(self._queues.values())
        moved, refused = 0, None
        for queue in queues:
            try:
                with self._guard:
                    moved += queue.bring_back()
            except StoreUnavailable as error:  # raised after the other queues
                refused = error
        if refused is not None:
            raise refused
        self._settle_dead(None, look=False, eager=True)
        return moved

    def pack(self, queue: str) -> int:
        """Unlink what is removed, expired or done of a queue, and no longer needed; how many bytes that frees."""
        found = self.find(queue)
        with self._guard:
            found.bring_back()
        self._settle_dead(queue, look=False, eager=True)
        with self._guard:
            before = self._stored(found)
            self._upkeep.reap(found.file)
            return max(0, before - self._stored(found))

    def stored(self, queue: str) -> int:
        """The bytes of a queue's files."""
        found = self.find(queue)
        with self._guard:
            return self._stored(found)

    def _stored(self, queue: FolderQueue) -> int:
        tree = self.shared.tree
        paths = [f"{home(QUEUES, queue.file)}/{name}" for name in tree.names(home(QUEUES, queue.file))]
        for folder in (DELAY, FAILED, DONE, REMOVE):
            paths += [f"{folder}/{name}" for name in tree.names(folder) if name.partition(":")[0] == queue.file]
        statuses = (tree.status(tree.path(path)) for path in paths)
        return sum(status.size for status in statuses if status is not None and status.is_file)

    def reap(self) -> int:
        """Unlink settled messages that are no longer needed; how many."""
        with self._guard:
            return self._upkeep.reap()

    def _with_ballast(self, call: Callable[[], Answer]) -> Answer:
        """Run an operation that may free space in the end; on a full disk, spend the ballast on it."""
        while True:
            try:
                with self._guarding:
                    return call()
            except DiskFull:
                with self._guarding:
                    if not self._ballast.spend() and not self._upkeep.reap():
                        raise

    def _all_parts(self, begin: Callable[[], Iterator[int]]) -> int:
        """Run an operation that is durable batch by batch to its end; the sum of its batches."""
        total = 0

        def go_on() -> None:
            nonlocal total
            for part in begin():
                total += part

        self._with_ballast(go_on)
        return total

    def _make_room(self) -> None:
        """Have the ballast back before a put; on a full disk, reap first."""
        try:
            self._ballast.make()
        except OSError as error:
            if not is_full(error) or not self._upkeep.reap():
                raise
            self._ballast.make()

    def _tend(self) -> None:
        try:
            self._upkeep.tend()
        except OSError as error:
            if not is_full(error):
                raise
            # On a full disk, upkeep waits for space.
        self.shared.tree.begin()

    def _keep_done(self, file: str) -> float | None:
        with self._lock:
            queues = [queue for queue in self._queues.values() if queue.file == file]
        if queues:
            return queues[0].settings.keep_done
        # The settings of the queue are damaged or not read yet: keep its done messages.
        is_there = self.shared.tree.disk.exists(self.shared.tree.path(f"{QUEUES}/{file}"))
        return None if is_there else 0


def open_folder(
    folder: str,
    *,
    clock: Clock | None = None,
    sync: str = "always",
    peers: int = 0,
    disk: Disk | None = None,
    threads: Threads | None = None,
    neighbours: Neighbours | None = None,
    ballast: int = SIZE,
) -> FolderBackend:
    """Open or make a folder store; `ballast` bytes are kept free in it."""
    if not folder:
        raise InvalidArgument("folder: without a folder; give folder:DIR")
    if sync == "interval":
        raise NotSupported('sync="interval": a folder store has no log to sync later; give "always" or "never"')
    peers = whole("peers", peers, 0, _MOST_PEERS)
    return FolderBackend(
        os.path.abspath(folder) if disk is None else folder,
        clock or SystemClock(),
        disk or SystemDisk(),
        threads or SystemThreads(),
        neighbours or SystemNeighbours(),
        sync,
        peers,
        ballast,
    )


def _forked() -> StoreClosed:
    return StoreClosed("this process was forked during the operation: repeat the operation")
