"""A store that a server keeps: when it is asked again, and the backend for threads."""

import threading
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from penstock.contract.loads import AddToLoad, Loads
from penstock.contract.message import Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import Claim, Lookup, Messages, Peek, Pop
from penstock.contract.settings import seconds
from penstock.errors import InvalidArgument, StoreClosed
from penstock.http.client import address
from penstock.http.client.calls import Call, call_of
from penstock.http.client.connection import AnyPool, Pool
from penstock.http.client.failures import PATIENCE, TRIES, Failure, Patience, Turns
from penstock.system import blocking
from penstock.system.clock import Clock, SystemClock

HELLO = Lookup(DEFAULT)  # finds out whether the server is there
TIMEOUT = 60.0
LOADING = (TRIES, 120.0)  # tries and seconds, with a server that has too much to do
Result = TypeVar("Result")


class Remote:
    """Asks a server to keep queues. What fails on the way is tried again for a while, where that does no harm.

    Threads and coroutines share this; they differ in how a request travels and how time passes.
    """

    opener: ClassVar[str]
    pool_type: ClassVar[type[AnyPool[Any]]]
    event_type: ClassVar[type[Any]]

    def __init__(
        self,
        url: str,
        timeout: float | None = None,
        clock: Clock | None = None,
        token: str | None = None,
        ca: str | None = None,
        patience: tuple[int, float] = (TRIES, PATIENCE),
    ) -> None:
        self.address = address.parse(url, token, ca)
        self.timeout = checked_timeout(timeout)
        self.clock = clock or SystemClock()
        self.pool: Any = self.pool_type(self.address, self.closed)
        self.closing = self.event_type()
        self._tries, self._patience = patience

    def closed(self) -> Exception:
        """The error of a store that was closed."""
        return StoreClosed(f"the store {self.address.url!r} was closed: open it again with {self.opener}")

    @abstractmethod
    async def once(self, call: Call[Result]) -> Result:
        """The result of a request; a Failure if there is no answer."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds of the store's clock, or until the store is closed."""

    async def again(self, call: Call[Result], failure: Failure, tries: int = 0) -> Result:
        """Ask once more, and again, after a failure; raises what the caller is told in the end."""
        patience = Patience(
            self.address.url, call.name, call.repeatable, self.clock, tries or self._tries, self._patience
        )
        while True:
            self.pool.check_open()
            await self.sleep(patience.pause(failure))
            self.pool.check_open()
            try:
                return await self.once(call)
            except Failure as error:
                failure = error

    async def taken(self, operation: Claim | Pop) -> Any:
        """What a consumer gets, in several turns if it waits for long."""
        turns = Turns(operation.wait, self.clock)
        while True:
            call: Call[Any] = call_of(operation.changed(wait=turns.next()))
            try:
                taken = await self.once(call)
            except Failure as failure:
                taken = await self.again(call, failure)
            if taken or turns.over():
                return taken


class RemoteBackend(Remote):
    """The store of a server, for threads."""

    opener, pool_type, event_type = "penstock.open()", Pool, threading.Event

    def connect(self) -> None:
        """Find out whether the server is there, at once."""
        self.ask(call_of(HELLO), tries=1)

    def run(self, operation: Operation[Result]) -> Result:
        if operation.listing:
            return self._listed(operation)  # type: ignore[return-value, arg-type]
        if operation.http.polls and operation.wait > 0:
            return blocking.run(self.taken(operation))  # type: ignore[no-any-return, arg-type]
        return self.ask(call_of(operation))

    def _listed(self, operation: Peek | Messages) -> Iterator[Message]:
        """A listing, page by page."""
        left: Any = operation
        while left is not None and (page := list(self.ask(call_of(left)))):
            yield from page
            left = left.rest(len(page), page[-1])

    def close(self) -> None:
        self.closing.set()
        self.pool.close()

    def ask(self, call: Call[Result], tries: int = 0) -> Result:
        """Have a request carried out; it is tried again where that may help."""
        try:
            return call.result(self.pool.ask(call.request(self.address), self.timeout + call.wait))
        except Failure as failure:
            return blocking.run(self.again(call, failure, tries))

    async def once(self, call: Call[Result]) -> Result:
        return call.result(self.pool.ask(call.request(self.address), self.timeout + call.wait))

    async def sleep(self, seconds: float) -> None:
        self.clock.wait(self.closing, seconds)


class RemoteLoads(Loads):
    """The loads of a server. A batch is sent again and again while the server has too much to do."""

    def __init__(self, url: str, patience: tuple[int, float] = LOADING, tries: int = 200) -> None:
        self.backend = RemoteBackend(url, patience=patience)
        self._tries = tries  # of a batch
        super().__init__(self.backend.run)

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        self.backend.ask(call_of(AddToLoad(load, part, number, queue, frame)), self._tries)

    def close(self) -> None:
        """Leave the server alone."""
        self.backend.close()


def checked_timeout(timeout: float | None) -> float:
    """How long an answer may take."""
    if timeout is None:
        return TIMEOUT
    if seconds("timeout", timeout) == 0:
        raise InvalidArgument("timeout=0 leaves no time for an answer; give the seconds that one may take")
    return timeout


def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteBackend:
    """The backend of the store of a server that is there; StoreUnreachable if it is not."""
    backend = RemoteBackend(url, timeout, clock, token, ca)
    try:
        backend.connect()
    except BaseException:
        backend.close()
        raise
    return backend
