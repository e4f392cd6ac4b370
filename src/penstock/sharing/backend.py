"""A store that many processes have open: this one owns it, or asks the one that does, and may be the next."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.contract.kinds import Options
from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Messages, Peek
from penstock.contract.store import Store
from penstock.engine.backend import Engine
from penstock.errors import StoreClosed, StoreLocked, StoreUnreachable
from penstock.sharing.guest import Gone, GuestBackend
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
)
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.loads import Load
from penstock.stores.journal.store import JournalBackend
from penstock.stores.owner_operations import Pack, SlateOwner, Stored, TakeIn
from penstock.system import forks
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk

if TYPE_CHECKING:
    from penstock.engine.coroutines import LocalBackend
    from penstock.sharing.forwarding import ForwardingBackend
    from penstock.stores.slate.store import SlateBackend

Result = TypeVar("Result")
Held: TypeAlias = "JournalBackend | SlateBackend | GuestBackend"


class SharedBackend:
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
        self._backend: Held = self._guest() if self._owner is None else self._owner.backend
        forks.watch(self)
        if isinstance(self._backend, GuestBackend):
            try:
                self._find_owner(self._backend, self._time.monotonic() + self._patience)
                folder.kind.check_guest(folder.url, self)
            except (Gone, StoreUnreachable) as error:
                self.close()
                raise locked(folder.path, error) from error
            except BaseException:
                self.close()
                raise
            threading.Thread(target=self._prepare, name="penstock-guest", daemon=True).start()

    @property
    def owned(self) -> "JournalBackend | SlateBackend | None":
        """What keeps the store, if this process owns it."""
        return self._owner.backend if self._owner is not None else None

    @property
    def journals(self) -> JournalBackend | None:
        """The journals, if this process owns some."""
        return self.owned if isinstance(self.owned, JournalBackend) else None

    @property
    def folder(self) -> Folder:
        """The folder of the store, and how it is opened."""
        return self._folder

    def run(self, operation: Operation[Result]) -> Result:
        """Carry out an operation, or have it carried out by the owner."""
        if operation.listing:
            return self._listed(operation)  # type: ignore[return-value, arg-type]
        if operation.http.polls and operation.wait > 0:
            left = self._left(operation.wait)
            polling: Any = operation
            return self._run(lambda backend: backend.run(replace(polling, wait=left())))  # type: ignore[no-any-return]
        backend = self._backend
        try:
            return backend.run(operation)
        except Gone as gone:
            return self._again(lambda backend: backend.run(operation), backend, gone)

    async def for_loop(self) -> "LocalBackend | ForwardingBackend":
        """The same store for coroutines: this process's, or its owner's, until this process is the owner."""
        from penstock.sharing.forwarding import ForwardingBackend  # here, as most programs have no event loop

        if self.owned is not None:
            return await self.owned.for_loop()
        forwarding = ForwardingBackend(self._folder, None)
        await forwarding.open()
        return forwarding

    def pack(self, queue: str) -> int:
        """Pack a queue's journal now, if that makes it smaller; how many bytes that freed."""
        return self.run(Pack(queue))

    def stored(self, queue: str) -> int:
        """Bytes of a queue's journal."""
        return self.run(Stored(queue))

    def load(self, load: Load) -> bool:
        """Let a load that was staged in the folder take effect, all of it or nothing."""
        return self.run(TakeIn(load.name, load.pieces, load.queues, load.run, load.sink))

    def slate(self) -> SlateOwner:
        """What only a slate store can do."""
        return SlateOwner(self.run)

    def close(self) -> None:
        """Let go of the store; if this process owns it, the next may have it."""
        self._closing.set()
        backend = self._backend
        if isinstance(backend, GuestBackend):
            backend.close()  # here, as a thread that looks for the owner may wait for an answer
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
            self._backend = self._guest()

    def _guest(self) -> GuestBackend:
        return GuestBackend(self._folder.path, self._folder.share, self._timeout, self._folder.clock)

    def _prepare(self) -> None:
        if not self._closing.wait(SETTLED):
            prepare()

    def _left(self, wait: float) -> Callable[[], float]:
        """How much of a wait is left."""
        clock = self._folder.clock
        end = clock.monotonic() + wait
        return lambda: max(end - clock.monotonic(), 0.0)

    def _run(self, operate: Callable[[Held], Result]) -> Result:
        backend = self._backend
        try:
            return operate(backend)
        except Gone as gone:
            return self._again(operate, backend, gone)

    def _again(self, operate: Callable[[Held], Result], left: Held, gone: Gone) -> Result:
        """Once more, with whoever has the store now."""
        maybe_done, pause = False, PAUSE
        deadline = self._time.monotonic() + self._patience
        while True:
            maybe_done |= gone.failure.done
            try:
                if isinstance(left, GuestBackend):
                    self._find_owner(left, deadline)
                left = self._backend
                return operate(left)
            except Gone as again:
                self._check_open()
                gone = again
            if self._time.monotonic() > deadline:
                raise gone.error(self._folder.path, maybe_done) from gone.failure
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _listed(self, operation: Peek | Messages) -> Iterator[Message]:
        """A listing, which whoever has the store then goes on with if its owner goes."""
        left: Peek | Messages | None = operation
        items, seen = self._backend.run(operation), 0
        last: Message | None = None
        while left is not None:
            try:
                for last in items:
                    seen += 1
                    yield last
                return
            except Gone as gone:
                left = left if last is None else left.rest(seen, last)
                if left is not None:
                    items, seen, last = self._again(_begun(left), self._backend, gone), 0, None

    def _find_owner(self, left: GuestBackend, deadline: float) -> None:
        """Return once there is someone to ask, be it this process; Gone if nobody answers in time."""
        with self._moving:
            while self._backend is left:
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

    def _take_over(self, left: GuestBackend, owner: Owner) -> None:
        self._owner, self._backend = owner, owner.backend
        left.close()  # whom it asked has ended; threads that still wait for an answer are told

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosed(f"the store {self._folder.path!r} was closed: open it again with penstock.open()")


def open_shared(url: str, options: Options | None = None) -> SharedBackend:
    """Open a store that one process owns, whether or not another process has it open."""
    options = options or Options()
    return SharedBackend(folder_for(url, options), options.timeout)


def check_reachable(folder: str) -> None:
    """StoreLocked if the store is held by a process that does not share it; nothing is read for that."""
    catalog = Catalog(folder, SystemDisk())
    try:
        catalog.open()
    except StoreLocked:
        open_shared(folder).close()
    else:
        catalog.close()


def engine_of(store: Store) -> Engine | None:
    """What keeps a store whose rules run in this process; None if they run in another."""
    backend = store.backend
    if isinstance(backend, SharedBackend):
        return backend.owned
    return backend if isinstance(backend, Engine) else None


def _begun(operation: Peek | Messages) -> Callable[[Held], Iterator[Message]]:
    """A listing whose first message was had, so that it shows at once whether there is anyone to ask."""

    def begin(backend: Held) -> Iterator[Message]:
        items = backend.run(operation)
        first = next(items, None)
        return items if first is None else chain([first], items)

    return begin
