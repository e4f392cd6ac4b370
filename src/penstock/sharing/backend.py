"""The backend of a store that many processes have open: the owner's engine, or a guest of the owner."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from penstock.contract.kinds import Options
from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Messages, Peek
from penstock.contract.store import Store
from penstock.engine.backend import Engine
from penstock.errors import PenstockError, StoreClosed, StoreUnreachable
from penstock.http.client.address import UNIX
from penstock.http.client.backend import Remote, RemoteBackend
from penstock.http.client.calls import Call
from penstock.http.client.failures import Failure, NotSent
from penstock.sharing.ownership import (
    LONGEST_PAUSE,
    PATIENCE,
    PAUSE,
    SETTLED,
    Folder,
    Owner,
    become_owner,
    folder_for,
    locked,
    prepare,
)
from penstock.stores.owner_operations import Pack, Stored
from penstock.system import blocking, processes
from penstock.system.clock import Clock

if TYPE_CHECKING:
    from penstock.contract.backend import Served

Result = TypeVar("Result")


class Gone(Exception):
    """The owner did not answer a call that may be sent to the next owner."""

    def __init__(self, failure: Failure, call: Call[Any]) -> None:
        super().__init__(str(failure))
        self.failure, self.call = failure, call


def unanswered(failure: Failure, call: Call[Any], folder: str, maybe_done: bool) -> PenstockError:
    """The error of a call that the owner did not answer; `maybe_done`: the owner may have carried it out."""
    if not maybe_done:
        return StoreUnreachable(
            f"the process that has the store {folder!r} open cannot be reached: {failure}. Nothing was done: look "
            "whether that process is stuck, and try again"
        )
    harmless = "trying again does no harm" if call.repeatable else "look before you try again"
    return StoreUnreachable(
        f"the process that had the store {folder!r} open did not answer: {failure}. The {call.name} may have "
        f"happened: {harmless}"
    )


def judged(failure: Failure, call: Call[Any], folder: str) -> Exception:
    """Gone if the call may be sent to the next owner, else the error for the caller."""
    if failure.passing and (call.repeatable or not failure.done):
        return Gone(failure, call)
    return unanswered(failure, call, folder, failure.done)


class Guest(Remote):
    """Forwards operations to the owner over its Unix socket, without retries."""

    def __init__(self, folder: str, share: str, timeout: float | None, clock: Clock) -> None:
        super().__init__(f"{UNIX}{share}", timeout, clock)
        self.folder = folder

    def closed(self) -> Exception:
        return NotSent("it has ended")  # another thread or coroutine has found that the owner has gone

    async def again(self, call: Call[Result], failure: Failure, tries: int = 0) -> Result:
        raise judged(failure, call, self.folder) from failure


class GuestBackend(Guest, RemoteBackend):
    """A guest for threads."""


class Shared:
    """A store in a folder that other processes may have open as well; the part that threads and coroutines share.

    A guest forwards operations to the owner. When the owner no longer answers, the guest takes the lock and is
    the owner, or finds the next owner. Then it repeats the operation, if repeating is harmless.
    """

    opener: ClassVar[str]
    guest_type: ClassVar[type[Guest]]

    def __init__(self, folder: Folder, timeout: float | None = None) -> None:
        self.folder = folder
        self.owner: Owner | None = None
        self.is_closed = False
        self._timeout = timeout
        self._patience = PATIENCE if timeout is None else timeout
        self._backend: Any = None  # the engine of the owner, or a guest's

    # What threads and coroutines differ in

    @abstractmethod
    async def ask(self, call: Callable[[], Any]) -> Any:
        """The result of a call to a backend."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait; closing the store ends the wait."""

    @abstractmethod
    def moving(self) -> AbstractAsyncContextManager[Any]:
        """The lock of the search for an owner: one thread or coroutine searches at a time."""

    @abstractmethod
    async def become_owner(self) -> Owner | None:
        """Own the store; None if another process does."""

    @abstractmethod
    def kept_by(self, owner: Owner) -> Any:
        """The backend of a store that this process owns."""

    @abstractmethod
    def close(self) -> Any:
        """Close the store; if this process owns it, a guest becomes the owner."""

    def guest(self) -> Guest:
        """A new guest of the folder's owner."""
        folder = self.folder
        return self.guest_type(folder.path, folder.share, self._timeout, folder.clock)

    async def enter(self) -> bool:
        """Become the owner, or connect to it; True: another process owns the store."""
        owner = await self.become_owner()
        if owner is not None:
            self.owner, self._backend = owner, self.kept_by(owner)
            return False
        self._backend = guest = self.guest()
        try:
            await self.find_owner(guest, monotonic() + self._patience)
            return True
        except (Gone, StoreUnreachable) as error:
            await self.ask(self.close)
            raise locked(self.folder.path, error) from error
        except BaseException:
            await self.ask(self.close)
            raise

    def operating(self, operation: Operation[Any]) -> Callable[[Any], Any]:
        """A function from a backend to the operation's result; a long poll has one deadline for all backends."""
        if not operation.http.polls or operation.wait <= 0:
            return lambda backend: backend.run(operation)
        clock, polling = self.folder.clock, operation
        end = clock.monotonic() + operation.wait
        return lambda backend: backend.run(polling.changed(wait=max(end - clock.monotonic(), 0.0)))

    async def again(self, operate: Callable[[Any], Any], left: Any, gone: Gone) -> Any:
        """Repeat an operation with the current owner, after the backend `left` got no answer."""
        maybe_done, pause = False, PAUSE
        deadline = monotonic() + self._patience
        while True:
            maybe_done |= gone.failure.done
            try:
                if isinstance(left, Guest):
                    await self.find_owner(left, deadline)
                left = self._backend
                return await self.ask(partial(operate, left))
            except Gone as error:
                self.check_open()
                gone = error
            if monotonic() > deadline:
                raise unanswered(gone.failure, gone.call, self.folder.path, maybe_done) from gone.failure
            await self.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def find_owner(self, left: Any, deadline: float) -> None:
        """Return once an owner answers, or this process is the owner; Gone if that takes too long."""
        async with self.moving():
            while self._backend is left:
                self.check_open()
                try:
                    await self.ask(left.connect)
                    return
                except Gone as gone:
                    owner = await self.become_owner()
                    if owner is not None:
                        self.owner, self._backend = owner, self.kept_by(owner)
                        await self.ask(left.close)  # the old owner has ended: calls that wait for its answer fail
                        return
                    if monotonic() > deadline:
                        raise gone from None
                await self.sleep(PAUSE)

    def check_open(self) -> None:
        """StoreClosed if the store was closed."""
        if self.is_closed:
            raise StoreClosed(f"the store {self.folder.path!r} was closed: open it again with {self.opener}")


class SharedBackend(Shared):
    """A shared store, for threads."""

    opener, guest_type = "penstock.open()", GuestBackend

    def __init__(self, folder: Folder, timeout: float | None = None) -> None:
        super().__init__(folder, timeout)
        self._moving = blocking.Lock()
        self._closing = threading.Event()
        is_guest = blocking.run(self.enter())
        processes.watch_forks(self)
        if is_guest:
            try:
                folder.kind.check_guest(folder.url, self)
            except BaseException:
                self.close()
                raise
            threading.Thread(target=self._prepare, name="penstock-guest", daemon=True).start()

    @property
    def owned(self) -> Engine | None:
        """The engine, if this process owns the store."""
        return self.owner.backend if self.owner is not None else None

    def run(self, operation: Operation[Result]) -> Result:
        if operation.listing:
            return self._listed(operation)  # type: ignore[return-value, arg-type]
        backend = self._backend
        waits = operation.http.polls and operation.wait > 0
        operate = self.operating(operation) if waits else None
        try:
            return backend.run(operation)  # type: ignore[no-any-return]
        except Gone as gone:
            return blocking.run(self.again(operate or self.operating(operation), backend, gone))  # type: ignore[no-any-return]

    async def for_loop(self) -> "Served":
        """The store for coroutines: the engine's, or one that forwards to the owner."""
        from penstock.sharing.coroutines import ForwardingBackend  # here, as most programs have no event loop

        if self.owned is not None:
            return await self.owned.for_loop()
        forwarding = ForwardingBackend(self.folder)
        await forwarding.open()
        return forwarding

    def pack(self, queue: str) -> int:
        """Pack a queue if that makes it smaller; the bytes that it freed."""
        return self.run(Pack(queue))

    def stored(self, queue: str) -> int:
        """Bytes that a queue takes on disk."""
        return self.run(Stored(queue))

    def close(self) -> None:
        self.is_closed = True
        self._closing.set()
        backend = self._backend
        if isinstance(backend, GuestBackend):
            backend.close()  # before the lock: the thread that holds it may wait for an answer
        with self._moving:
            owner, self.owner = self.owner, None
            if owner is not None:
                owner.close()

    def forked(self) -> None:
        """In a child: the parent stays the owner, and the child becomes a guest."""
        self._moving = blocking.Lock()
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.forked()
            self._backend = self.guest()

    def _prepare(self) -> None:
        if not self._closing.wait(SETTLED):
            prepare()

    async def ask(self, call: Callable[[], Any]) -> Any:
        return call()

    async def sleep(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def moving(self) -> blocking.Lock:
        return self._moving

    async def become_owner(self) -> Owner | None:
        return become_owner(self.folder)

    def kept_by(self, owner: Owner) -> Any:
        return owner.backend

    def _listed(self, operation: Peek | Messages) -> Iterator[Message]:
        """A listing, continued with the next owner if the first one ends."""
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
                    items = blocking.run(self.again(_begun(left), self._backend, gone))
                    seen, last = 0, None


def open_shared(url: str, options: Options | None = None) -> SharedBackend:
    """Open a store that one process owns, whether or not another process has it open."""
    options = options or Options()
    return SharedBackend(folder_for(url, options), options.timeout)


def engine_of(store: Store) -> Engine | None:
    """The engine of a store whose rules run in this process; None if they run in another."""
    backend = store.backend
    if isinstance(backend, SharedBackend):
        return backend.owned
    return backend if isinstance(backend, Engine) else None


def _begun(operation: Peek | Messages) -> Callable[[Any], Iterator[Message]]:
    """A listing with its first message read, so that Gone is raised here and not later."""

    def begin(backend: Any) -> Iterator[Message]:
        items = backend.run(operation)
        first = next(items, None)
        return items if first is None else chain([first], items)

    return begin
