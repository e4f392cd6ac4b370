"""A store that many processes have open: this one owns it, or asks the one that does, and may be the next."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.errors import NotSupported, StoreClosed, StoreLocked, StoreUnreachable
from penstock.files import SystemDisk
from penstock.index.history import Attempt
from penstock.journal.catalog import Catalog
from penstock.journal.format import Dialect
from penstock.journal.intake import Load
from penstock.journal.store import JournalKeeper
from penstock.keeper import QueueInfo
from penstock.live.keeper import LiveKeeper
from penstock.message import Entry, Message
from penstock.settings import Settings
from penstock.sharing import forks, loading
from penstock.sharing.guest import Gone, GuestKeeper
from penstock.sharing.host import SETTLED, prepare
from penstock.sharing.ownership import (
    LONGEST_PAUSE,
    PATIENCE,
    PAUSE,
    Folder,
    Owner,
    become_owner,
    folder_for,
    locked,
    slate_for,
)
from penstock.sharing.streams import SharedStreams
from penstock.store import Store

if TYPE_CHECKING:
    from penstock.sharing.slate import SlateOwner
    from penstock.slate.store import SlateKeeper

Result = TypeVar("Result")
Held: TypeAlias = "JournalKeeper | SlateKeeper | GuestKeeper"


class SharedKeeper:
    """Keeps queues of a folder that other processes may have open, too.

    While another process owns the store, it is asked. When that does not answer, this one becomes the owner, or
    finds who has, and asks again, where that does no harm.
    """

    def __init__(self, folder: Folder, timeout: float | None = None) -> None:
        self._folder = folder
        self._timeout = timeout
        self._patience = PATIENCE if timeout is None else timeout
        self._time = SystemClock()  # not the store's: other processes live in this one
        self._moving = threading.RLock()
        self._closing = threading.Event()
        self._owner = become_owner(folder)
        self._keeper: Held = self._guest() if self._owner is None else self._owner.keeper
        forks.watch(self)
        if isinstance(self._keeper, GuestKeeper):
            try:
                self._find_owner(self._keeper, self._time.monotonic() + self._patience)
                self._check_instance()
            except (Gone, StoreUnreachable) as error:
                self.close()
                raise locked(folder.path, error) from error
            except BaseException:
                self.close()
                raise
            threading.Thread(target=self._prepare, name="penstock-guest", daemon=True).start()

    @property
    def owned(self) -> "JournalKeeper | SlateKeeper | None":
        """What keeps the store, if this process owns it."""
        return self._owner.keeper if self._owner is not None else None

    @property
    def journals(self) -> JournalKeeper | None:
        """The journals, if this process owns some."""
        return self.owned if isinstance(self.owned, JournalKeeper) else None

    @property
    def folder(self) -> Folder:
        """The folder of the store, and how it is opened."""
        return self._folder

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        self._run(lambda keeper: keeper.create(queue, settings))

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        self._run(lambda keeper: keeper.delete(queue))

    def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return self._run(lambda keeper: keeper.queues())

    def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return self._run(lambda keeper: keeper.settings(queue))

    def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return self._run(lambda keeper: keeper.counts(queue))

    def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches."""
        return self._run(lambda keeper: keeper.publish(entry))

    def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        keeper = self._keeper
        try:  # as in _run, but nothing is made that most puts do not need
            return keeper.put(queue, entries)
        except Gone as gone:
            return self._again(lambda keeper: keeper.put(queue, entries), keeper, gone)

    def claim(self, queue: str, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages."""
        left = self._left(wait)
        return self._run(lambda keeper: keeper.claim(queue, n, lease, left(), consumer))

    def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        left = self._left(wait)
        return self._run(lambda keeper: keeper.pop(queue, left(), consumer))

    def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self._run(lambda keeper: keeper.ack(queue, receipts))

    def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self._run(lambda keeper: keeper.fail(queue, receipts, delay, reason))

    def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        self._run(lambda keeper: keeper.release(queue, receipts))

    def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on."""
        return self._run(lambda keeper: keeper.extend(queue, receipts, lease))

    def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        return self._run(lambda keeper: keeper.remove(queue, ids))

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        return self._run(lambda keeper: keeper.redrive(queue, ids))

    def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        return self._run(lambda keeper: keeper.purge(queue))

    def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self._run(lambda keeper: keeper.attempts(queue, id))

    def peek(self, queue: str, n: int) -> Iterator[Message]:
        """What claim would give."""
        seen = 0

        def rest(keeper: Held) -> Iterator[Message]:
            if isinstance(keeper, GuestKeeper):
                return keeper.peek_after(queue, n - seen, seen)
            return keeper.find(queue).peek(n - seen, seen)

        for message in self._iterate(rest):
            seen += 1
            yield message

    def messages(self, queue: str, state: str | None) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put."""
        after = ""

        def rest(keeper: Held) -> Iterator[Message]:
            if isinstance(keeper, GuestKeeper):
                return keeper.messages_after(queue, state, after)
            return keeper.find(queue).messages(state, after)

        for message in self._iterate(rest):
            after = message.id
            yield message

    def pack(self, queue: str) -> int:
        """Pack a queue's journal now; how many bytes that freed."""
        return self._run(lambda keeper: keeper.pack(queue))

    def stored(self, queue: str) -> int:
        """Bytes of a queue's journal."""
        return self._run(lambda keeper: keeper.stored(queue))

    def load(self, load: Load) -> bool:
        """Let a load that was staged in the folder take effect, all of it or nothing."""

        def take_in(keeper: Held) -> bool:
            if isinstance(keeper, GuestKeeper):
                return keeper.load(load)
            return loading.take_in(keeper, load)

        return self._run(take_in)

    def slate(self, ask: Callable[["SlateOwner"], Result]) -> Result:
        """Have the owner of a slate store do what only such a store can."""

        def run(keeper: Held) -> Result:
            if isinstance(keeper, GuestKeeper):
                from penstock.sharing.slate import SlateGuest  # here, as few need it, and it takes long

                return ask(SlateGuest(keeper))
            if isinstance(keeper, JournalKeeper):
                raise NotSupported(f"the store {self._folder.path!r} is not a slate store")
            return ask(keeper.owner)

        return self._run(run)

    def streams(self) -> SharedStreams:
        """The streams that read queues of the store."""
        return SharedStreams(self._run)

    def close(self) -> None:
        """Let go of the store; if this process owns it, the next may have it."""
        self._closing.set()
        keeper = self._keeper
        if isinstance(keeper, GuestKeeper):
            keeper.close()  # here, as a thread that looks for the owner may wait for an answer
        with self._moving:
            owner, self._owner = self._owner, None
            if owner is not None:
                owner.close()

    def forked(self) -> None:
        """In a child: the store stays the parent's, and is asked of it."""
        self._moving = threading.RLock()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.forked()
            self._keeper = self._guest()

    def _guest(self) -> GuestKeeper:
        return GuestKeeper(self._folder.path, self._folder.share, self._timeout, self._folder.clock)

    def _check_instance(self) -> None:
        """Refuse a slate store that another process has open as another instance."""
        if self._folder.slate:
            from penstock.slate.loading import check_asked  # here, as few need it
            from penstock.slate.moments import parse

            found = self.slate(lambda owner: owner.instance())
            check_asked(parse(self._folder.slate).instance, set() if found is None else {found})

    def _prepare(self) -> None:
        if not self._closing.wait(SETTLED):
            prepare()

    def _left(self, wait: float) -> Callable[[], float]:
        """How much of a wait is left."""
        if wait <= 0:
            return lambda: 0.0
        clock = self._folder.clock
        end = clock.monotonic() + wait
        return lambda: max(end - clock.monotonic(), 0.0)

    def _run(self, operate: Callable[[Held], Result]) -> Result:
        keeper = self._keeper
        try:
            return operate(keeper)
        except Gone as gone:
            return self._again(operate, keeper, gone)

    def _again(self, operate: Callable[[Held], Result], left: Held, gone: Gone) -> Result:
        """Once more, with whoever has the store now."""
        maybe_done, pause = False, PAUSE
        deadline = self._time.monotonic() + self._patience
        while True:
            maybe_done |= gone.failure.done
            try:
                if isinstance(left, GuestKeeper):
                    self._find_owner(left, deadline)
                left = self._keeper
                return operate(left)
            except Gone as again:
                self._check_open()
                gone = again
            if self._time.monotonic() > deadline:
                raise gone.error(self._folder.path, maybe_done) from gone.failure
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _iterate(self, rest: Callable[[Held], Iterator[Message]]) -> Iterator[Message]:
        """What is left of a listing, from whoever has the store."""
        end = object()
        items = rest(self._keeper)
        while True:
            try:
                item = next(items, end)
            except Gone as gone:
                items = self._again(_started(rest), self._keeper, gone)
                continue
            if not isinstance(item, Message):
                return
            yield item

    def _find_owner(self, left: GuestKeeper, deadline: float) -> None:
        """Return once there is someone to ask, be it this process; Gone if nobody answers in time."""
        with self._moving:
            while self._keeper is left:
                self._check_open()
                try:
                    left.connect()
                    return
                except Gone as gone:
                    owner = become_owner(self._folder)
                    if owner is not None:
                        self._take_over(left, owner)
                        return
                    if self._time.monotonic() > deadline:
                        raise gone from None
                self._closing.wait(PAUSE)

    def _take_over(self, left: GuestKeeper, owner: Owner) -> None:
        self._owner, self._keeper = owner, owner.keeper
        left.close()  # whom it asked has ended; threads that still wait for an answer are told

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosed(f"the store {self._folder.path!r} was closed: open it again with penstock.open()")


def open_shared(
    folder: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    sync: str = "always",
    dialect: Dialect = "doc",
    timeout: float | None = None,
) -> SharedKeeper:
    """Open the store in a folder, which is made if it is not there, whoever else has it open."""
    return SharedKeeper(folder_for(folder, clock, sync, dialect), timeout)


def open_shared_slate(
    url: str, *, clock: Clock | None = None, sync: str = "always", timeout: float | None = None
) -> SharedKeeper:
    """Open a slate store, whoever else of this machine has it open."""
    return SharedKeeper(slate_for(url, clock, sync, timeout), timeout)


def check_reachable(folder: str) -> None:
    """StoreLocked if the store is held by a process that does not share it; nothing is read for that."""
    catalog = Catalog(folder, SystemDisk())
    try:
        catalog.open()
    except StoreLocked:
        open_shared(folder).close()
    else:
        catalog.close()


def is_guest(store: Store) -> bool:
    """Whether another process of this machine owns a store."""
    return isinstance(store._keeper, SharedKeeper) and store._keeper.owned is None


def live_keeper(store: Store) -> LiveKeeper | None:
    """What keeps a store whose rules run in this process; None if they run in another."""
    keeper = store._keeper
    if isinstance(keeper, SharedKeeper):
        return keeper.owned
    return keeper if isinstance(keeper, LiveKeeper) else None


def _started(rest: Callable[[Held], Iterator[Message]]) -> Callable[[Held], Iterator[Message]]:
    """An iterator whose first item was had, so that it shows at once whether there is anyone to ask."""

    def start(keeper: Held) -> Iterator[Message]:
        items = rest(keeper)
        first = next(items, None)
        return iter(()) if first is None else _chained(first, items)

    return start


def _chained(first: Message, items: Iterator[Message]) -> Iterator[Message]:
    yield first
    yield from items
