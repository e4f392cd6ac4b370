"""The folder store's backend: names to queues, publishing, waiting, opening and closing."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from penstock.contract.message import PUBLISH_HEADER, Attempt, Entry, Message, Moved, checked_headers
from penstock.contract.names import DEFAULT
from penstock.contract.operations import Held
from penstock.contract.settings import QueueInfo, Settings, whole
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import not_supported
from penstock.engine.unowned import Unowned, between
from penstock.errors import (
    DiskFull,
    InvalidArgument,
    LeaseExpired,
    NotSupported,
    PenstockError,
    QueueExists,
    QueueNotFound,
    StoreClosed,
    StoreUnavailable,
)
from penstock.stores.folder import recovery
from penstock.stores.folder.catalog import Catalog, Listed
from penstock.stores.folder.guard import SIZE, Ballast, Guard
from penstock.stores.folder.layout import QUEUES
from penstock.stores.folder.queue import FolderQueue
from penstock.stores.folder.recovery import Upkeep
from penstock.stores.folder.shared import SECOND, Neighbours, Shared, SystemNeighbours
from penstock.stores.folder.tree import Tree, is_full
from penstock.stores.folder.waiting import Waiting
from penstock.system import forks
from penstock.system.clock import Clock, SteadyClock, SystemClock
from penstock.system.files import Disk, SystemDisk
from penstock.system.threads import SystemThreads, Threads

if TYPE_CHECKING:
    from penstock.filters import Filter

Answer = TypeVar("Answer")
_MOST_PEERS = 1_000


class FolderBackend(Unowned):
    """Keeps queues in a folder that any number of processes share."""

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
        self.clock = clock
        self._kept_free = ballast
        self._lock = threads.rlock()
        self._closed = self._is_forked = False
        self._open(folder, disk, threads, neighbours, sync, peers)
        self._again: Callable[[], None] = lambda: self._open(
            folder, disk, threads, SystemNeighbours(), sync, peers
        )
        forks.watch(self)

    def _open(
        self, folder: str, disk: Disk, threads: Threads, neighbours: Neighbours, sync: str, peers: int
    ) -> None:
        steady = SteadyClock(self.clock)
        tree = Tree(folder, disk, neighbours.name, sync == "always", steady.now)
        self.shared = Shared(tree, steady, threads, neighbours, peers)
        self._clock = self.shared.clock
        self._catalog = Catalog(self.shared)
        self._upkeep = Upkeep(self.shared, self._keep_done)
        self._ballast = Ballast(self.shared, self._kept_free, self._keep_done)
        self._waiting = Waiting(self._clock, self._read)
        self._queues: dict[str, FolderQueue] = {}
        self._made: dict[str, Listed] = {}
        self._filters: dict[str, Filter] = {}
        self._unread = True  # whether queues may have come or gone
        self._checked = steady.monotonic()
        self._guarding = Guard(self.shared, self._stop)
        self._with_ballast(self._start)  # opening needs a little space, too: who cannot open cannot consume
        self._guarding.is_open = True

    def _start(self) -> None:
        self.shared.tree.open()
        recovery.recover(self.shared, self._catalog)
        with self._catalog.locked():
            if self.shared.tree.is_adopted:
                self._catalog.adopt()
            if DEFAULT not in self._catalog.read() and DEFAULT not in self._catalog.refused:
                self._catalog.make(DEFAULT, Settings(), _new_mark())
        self._read()
        self._ballast.make(certain=False)

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store in this process; None if nothing has."""
        return self._guarding.failure

    @property
    def _guard(self) -> Guard:
        """What every operation enters first. In a child, the store is opened anew before that."""
        if self._is_forked:
            with self._lock:
                if self._is_forked and not self._closed:
                    self._again()
                    self._is_forked = False
        return self._guarding

    def forked(self) -> None:
        """In a child: what the parent holds stays the parent's, so nothing that is known here may be used."""
        self._guarding.refusal = self._guarding.refusal or _forked
        self._lock = self.shared.threads.rlock()
        self._is_forked = True

    # Queues

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        if settings.start != "now":
            raise NotSupported(
                f"start={settings.start!r}: this store keeps no log of published messages to start from; leave "
                "start='now', or use a slate store"
            )
        with self._guard, self._lock, self._catalog.locked():
            known = self._catalog.read().get(queue)
            if queue in self._catalog.refused:
                raise self._missing(queue)
            if known is not None and not known.deleted:
                raise QueueExists(f"queue {queue!r} exists already: open it with store.queue({queue!r})")
            if known is not None:
                self._catalog.clear(known)
            self._add(self._catalog.make(queue, settings, _new_mark()))

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        with self._guard, self._lock:
            self.find(queue)
            with self._catalog.locked():
                listed = self._catalog.read().get(queue)
                if listed is None or listed.deleted:
                    self._drop(queue)
                    raise _not_found(queue)
                self._drop(queue)
                self._catalog.delete(listed)

    def _add(self, listed: Listed) -> None:
        self._queues[listed.name] = FolderQueue(self.shared, listed.name, listed.file, listed.settings)
        self._made[listed.name] = listed
        if listed.settings.filter is not None:
            from penstock import filters  # here, because most processes need none

            self._filters[listed.name] = filters.parse(listed.settings.filter)

    def _drop(self, name: str) -> None:
        self._made.pop(name, None)
        self._filters.pop(name, None)
        dropped = self._queues.pop(name, None)
        if dropped is not None:
            dropped.stop(lambda: self._missing(name))

    def _missing(self, name: str) -> PenstockError:
        """The error for a queue that is not there, or that cannot be used."""
        refused = self._catalog.refused.get(name)
        return _not_found(name) if refused is None else type(refused)(str(refused))

    def _read(self, eager: bool = False) -> None:
        """Know which queues other processes have made and deleted."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._checked >= SECOND:
                self.shared.tree.check_folders()
                self._checked = now
            if not self._catalog.changed(eager) and not self._unread:
                return
            self._unread = True  # until it was read: an error must not make us miss the change
            there = {name: listed for name, listed in self._catalog.read().items() if not listed.deleted}
            for name in list(self._made):
                if self._made[name] != there.get(name):
                    self._drop(name)
            for name, listed in there.items():
                if name not in self._made:
                    self._add(listed)
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
                for name in self._catalog.refused:  # a list without it would look whole
                    raise self._missing(name)
        found = []
        for name, queue in queues:
            with self._guard:
                found.append(QueueInfo(name, queue.settings, queue.counts()))
        return found

    def check(self) -> None:
        """Raise what is wrong with the store: it cannot be read, or not be written, but for want of space."""
        self.queues()
        with suppress(DiskFull), self._guard:
            self.shared.tree.try_to_write()

    def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return self.find(queue).settings

    def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        found = self.find(queue)
        with self._guard:
            return found.counts()

    # Messages

    def publish(self, entry: Entry) -> str:
        """Put a copy into every queue whose filter matches, or into none if one of them refuses it."""
        published = os.urandom(16).hex()
        copy = replace(entry, headers=checked_headers({**(entry.headers or {}), PUBLISH_HEADER: published}))
        with self._guard, ExitStack() as locks:
            self._read()
            self._make_room()
            with self._lock:
                matching = self._matching(entry)
            for queue in matching:
                queue.check([copy])
            for queue in matching:  # by name, so that no two wait for each other
                if queue.is_exact:
                    locks.enter_context(queue.admission.locked())
                    queue.check_room(1)
            for queue in matching:
                queue.take_in([copy], exact=queue.is_exact)
        return published

    def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        found = self.find(queue)
        with self._guard:
            self._tend()
            self._make_room()
            return found.put(entries)

    def restore(self, queue: str, moved: Sequence[Moved]) -> None:
        """Take in messages as they were in another store, all or none."""
        found = self.find(queue)
        with self._guard:
            self._tend()
            self._make_room()
            found.restore(moved)

    def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages, and if `most` is given not many more bytes than that."""
        found = self.find(queue)

        def fetch(ids: list[str]) -> list[Message]:
            return found.fetch(ids if most is None else found.within(ids, most), lease, consumer)

        return self._with_ballast(lambda: self._waiting.take(found, n, wait, fetch))

    def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        found = self.find(queue)

        def fetch(ids: list[str]) -> list[Message]:
            return _listed(found.fetch_for_good(ids, consumer))

        taken = self._with_ballast(lambda: self._waiting.take(found, 1, wait, fetch))
        return taken[0] if taken else None

    def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self._settle(queue, receipts, "ack")

    def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self._settle(queue, receipts, "fail", delay, reason)

    def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        self._settle(queue, receipts, "release")

    def _settle(
        self, queue: str, receipts: Sequence[str], how: str, delay: float = 0, reason: str | None = None
    ) -> None:
        found = self.find(queue)
        lost = self._with_ballast(lambda: found.settle(receipts, how, delay, reason))
        with self._guard:
            self._tend()
        if lost:
            raise LeaseExpired(queue, lost)

    def extend(self, queue: str, receipts: Sequence[str], lease: float) -> Held:
        """Hold from now on."""
        found = self.find(queue)
        return Held(*self._with_ballast(lambda: found.extend(receipts, lease)))

    def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        found = self.find(queue)
        return self._all_parts(lambda: found.remove(ids))

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        found = self.find(queue)
        return self._with_ballast(lambda: found.redrive(ids))

    def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        found = self.find(queue)
        return self._all_parts(found.purge)

    def peek(self, queue: str, n: int, skip: int = 0) -> Iterator[Message]:
        """What claim would give, after some that are skipped."""
        found = self.find(queue)
        with self._guard:
            peeked = found.peek(n + skip)
        return islice(self._guard.each(peeked), skip, None)

    def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        found = self.find(queue)
        with self._guard:
            return found.attempts(id)

    def messages(
        self, queue: str, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        found = self.find(queue)
        if not after and not until:
            return self._guard.each(found.messages(state))
        return self._guard.each(between(lambda: found.messages(None), state, after, until))

    def streams(self) -> Streams:
        """The streams that read queues of this store: there are none."""
        raise not_supported("a folder store")

    def close(self) -> None:
        """End every queue's work in this process."""
        with self._lock:
            self._closed = True
            if self._is_forked:  # not used here since: private folder and locks of queues are the parent's
                self._guarding.refusal = _closed
                return
            if self._guarding.refusal is None:
                self._guarding.refusal = _closed
                self.shared.tree.close()
            self._stop(_closed)

    def _stop(self, refusal: Callable[[], StoreClosed]) -> None:
        for queue in list(self._queues.values()):
            queue.stop(refusal)

    def tend(self) -> None:
        """Bring back what is due in all queues, and unlink what nobody needs."""
        self.move_due()
        self.reap()

    def move_due(self) -> int:
        """Bring back what is due in all queues, and what processes held that are gone; how many were due."""
        with self._guard:
            self._read(eager=True)
            self._upkeep.help_the_dead()
            with self._lock:
                queues = list(self._queues.values())
        moved, refused = 0, None
        for queue in queues:
            try:
                with self._guard:
                    moved += queue.bring_back()
            except StoreUnavailable as error:  # the others go on
                refused = error
        if refused is not None:
            raise refused
        return moved

    def reap(self) -> int:
        """Unlink what nobody can ask for any more; how many."""
        with self._guard:
            return self._upkeep.reap()

    def _with_ballast(self, call: Callable[[], Answer]) -> Answer:
        """Do what may free space in the end; where there is none, with that which is kept free for it."""
        while True:
            try:
                with self._guarding:
                    return call()
            except DiskFull:
                with self._guarding:
                    if not self._ballast.spend() and not self._upkeep.reap():
                        raise

    def _all_parts(self, begin: Callable[[], Iterator[int]]) -> int:
        """Do all of what is durable part by part; how many messages it was."""
        total = 0

        def go_on() -> None:
            nonlocal total
            for part in begin():
                total += part

        self._with_ballast(go_on)
        return total

    def _make_room(self) -> None:
        """Have the space that is kept free; on a full disk, what was removed is unlinked for it."""
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
            # There will be space for it another time.
        self.shared.tree.begin()

    def _keep_done(self, file: str) -> float | None:
        with self._lock:
            queues = [queue for queue in self._queues.values() if queue.file == file]
        if queues:
            return queues[0].settings.keep_done
        # Of a queue whose settings are damaged, or not yet read, nobody knows how long it keeps what is done.
        is_there = self.shared.tree.disk.exists(self.shared.tree.path(f"{QUEUES}/{file}"))
        return None if is_there else 0

    # What is asked for

    def _matching(self, entry: Entry) -> list[FolderQueue]:
        if not self._filters:
            return []
        from penstock.filters import Subject

        subject = Subject.of(entry, self._clock.now())
        names = sorted(name for name, wanted in self._filters.items() if wanted.matches(subject))
        return [self._queues[name] for name in names]


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
    """Open a folder store, which is made if it is not there; `ballast` bytes are kept free in it."""
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


def _listed(message: Message | None) -> list[Message]:
    return [] if message is None else [message]


def _new_mark() -> str:
    return os.urandom(8).hex()


def _not_found(queue: str) -> QueueNotFound:
    return QueueNotFound(f"there is no queue {queue!r}: create it with store.create({queue!r})")


def _forked() -> StoreClosed:
    return StoreClosed("this process was forked meanwhile: begin again with what the store was asked for")


def _closed() -> StoreClosed:
    return StoreClosed("the store was closed: open it again with penstock.open()")
