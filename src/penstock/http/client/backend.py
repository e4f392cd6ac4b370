"""The client's backend: operations as HTTP requests, retried where that is safe. For threads; the base of both."""

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar, TypeVar

from penstock.contract.loads import AddToLoad, Loads
from penstock.contract.message import Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import Ack, Claim, Lookup, Messages, Peek, Pop
from penstock.contract.settings import seconds
from penstock.errors import InvalidArgument, StoreClosed, StoreUnreachable
from penstock.http.client import address, together
from penstock.http.client.calls import Call, call_of
from penstock.http.client.connection import AnyPool, Pool
from penstock.http.client.failures import PATIENCE, TRIES, Failure, Lost, Patience
from penstock.http.client.together import AGAIN, ALONE, lane_of
from penstock.system import blocking
from penstock.system.clock import Clock, SystemClock

HELLO = Lookup(DEFAULT)  # the first request of a client: fails unless a server answers
TIMEOUT = 60.0
LOADING = (TRIES, 120.0)  # tries and seconds of a load's requests while the server is overloaded
MAX_POLL = 30.0  # seconds that one request waits: proxies close connections that are silent for longer
Result = TypeVar("Result")


class Remote:
    """Runs operations on a server. Requests that fail are retried for a while, where repeating does no harm.

    The base of the backends for threads and for coroutines, which differ in how they send and how they sleep.
    """

    opener: ClassVar[str]
    pool_type: ClassVar[type[AnyPool[Any]]]
    event_type: ClassVar[type[Any]]
    _lanes: Any  # calls that go together

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
        """Send a request once and return its result; Failure if there is no usable answer."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait by the store's clock; ends early when the store is closed."""

    async def again(self, call: Call[Result], failure: Failure, tries: int = 0) -> Result:
        """Retry a request that has failed; raises the caller's error once patience is over."""
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

    async def answered(self, operation: Operation[Result]) -> Result:
        """The result of an operation, retried where that is safe."""
        call = call_of(operation)
        try:
            return await self.once(call)
        except Failure as failure:
            return await self.again(call, failure)

    async def acked_before(self, operation: Claim) -> list[Message]:
        """The messages of a claim that acknowledges others, in two requests.

        Earlier servers refuse acks in a claim as InvalidArgument, and have done nothing.
        """
        await self.answered(Ack(operation.queue, operation.ack))
        claimed = await self.answered(operation.changed(ack=()))
        self._lanes.mixes = False
        return claimed

    async def taken(self, operation: Claim | Pop) -> Any:
        """The messages of a claim or pop that waits: a long wait is several requests."""
        end = self.clock.monotonic() + operation.wait
        while True:
            left = max(end - self.clock.monotonic(), 0.0)
            call: Call[Any] = call_of(operation.changed(wait=min(left, MAX_POLL)))
            try:
                taken = await self.once(call)
            except Failure as failure:
                taken = await self.again(call, failure)
            if taken or end - self.clock.monotonic() < 0.001:
                return taken


class _Ride:
    """A call that waits for the request under way, to go with the next one."""

    __slots__ = ("gate", "operation", "riders", "share")

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.riders: list[_Ride] | None = None  # those that this one's thread sends a request for
        self.share: Any = None
        self.gate = threading.Lock()
        self.gate.acquire()


class _Lanes:
    """Calls of threads that go together: for each lane at most one request is under way.

    A call that finds none under way is sent at once. Otherwise it waits; the thread of the first one that waits
    sends the next request, for all of them. What has waited for long goes alone: one connection may be stuck.
    """

    def __init__(self, once: Callable[[Operation[Any]], Any]) -> None:
        self.mixes = True  # acks may go with claims, which servers of earlier versions refuse
        self._once = once
        self._reset()

    def _reset(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._lanes: dict[Hashable, list[_Ride]] = {}  # those that wait, by lane

    def is_busy(self, lane: Hashable) -> bool:
        """Whether a request of a lane is under way."""
        return lane in self._lanes

    def run(self, lane: Hashable, operation: Operation[Any]) -> Any:
        """The operation's result, AGAIN, or ALONE; raises its error, also Failure."""
        if self._pid != os.getpid():
            self._reset()  # in a fork: the parent's threads are not here
        ride = None
        with self._lock:
            waiting = self._lanes.get(lane)
            if waiting is None:
                self._lanes[lane] = []
            else:
                ride = _Ride(operation)
                waiting.append(ride)
        if ride is None:
            try:
                return self._once(operation)
            finally:
                self._send_next(lane)
        try:
            if not ride.gate.acquire(timeout=together.PATIENCE):
                with self._lock:
                    if ride in (waiting := self._lanes.get(lane, [])):
                        waiting.remove(ride)
                        return ALONE
                ride.gate.acquire()
        except BaseException:
            self._leave(lane, ride)
            raise
        if ride.riders is not None:
            self._lead(lane, ride.riders)
        if isinstance(ride.share, Exception):
            raise ride.share
        return ride.share

    def _send_next(self, lane: Hashable) -> None:
        """Have the first call that waits send the next request."""
        with self._lock:
            waiting = self._lanes[lane]
            if not waiting:
                del self._lanes[lane]
                return
            riders, self._lanes[lane] = together.chosen(waiting, self.mixes)
            riders[0].riders = riders
        riders[0].gate.release()

    def _lead(self, lane: Hashable, riders: list[_Ride]) -> None:
        operations = [ride.operation for ride in riders]
        shares: list[Any] = [Lost("the request was interrupted")] * len(riders)
        try:
            shares = together.shares(operations, self._once(together.joined(operations)))
        except Exception as error:
            shares = together.shares_of(operations, error)
            self.mixes = self.mixes and not together.refuses_acks(operations, error)
        finally:
            self._send_next(lane)
            for ride, share in zip(riders, shares, strict=True):
                ride.share = share
                if ride is not riders[0]:
                    ride.gate.release()

    def _leave(self, lane: Hashable, ride: _Ride) -> None:
        """The thread of a call was interrupted."""
        with self._lock:
            waiting = self._lanes.get(lane, [])
            if ride in waiting:
                waiting.remove(ride)
                return
            if ride.riders is None:
                return  # its request is under way
            waiting[:0] = ride.riders[1:]
        self._send_next(lane)


class RemoteBackend(Remote):
    """The backend of a server's store, for threads."""

    opener, pool_type, event_type = "penstock.open()", Pool, threading.Event

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lanes = _Lanes(self._once)

    def connect(self) -> None:
        """Check that the server answers, without retries; StoreUnreachable."""
        try:
            self.ask(call_of(HELLO), tries=1)
        except StoreUnreachable as error:
            from penstock.http.client.tls import explained  # late: seldom needed

            raise explained(self.address, error) from error.__cause__

    def run(self, operation: Operation[Result]) -> Result:
        if operation.listing:
            return self._listed(operation)  # type: ignore[return-value, arg-type]
        if operation.http.polls and operation.wait > 0:
            if self._lanes.is_busy(together.lane_of_poll(operation)) and (
                taken := self.run(operation.changed(wait=0))
            ):
                return taken
            return blocking.run(self.taken(operation))  # type: ignore[no-any-return, arg-type]
        if isinstance(operation, Claim) and operation.ack and not self._lanes.mixes:
            self.run(Ack(operation.queue, operation.ack))
            operation = operation.changed(ack=())  # type: ignore[assignment]
        try:
            return self._together(operation)
        except InvalidArgument:
            if not isinstance(operation, Claim) or not operation.ack:
                raise
        return blocking.run(self.acked_before(operation))  # type: ignore[return-value]

    def _together(self, operation: Operation[Result]) -> Result:
        """The result of an operation, which may go together with others."""
        lane = lane_of(operation)
        if lane is None:
            return self.ask(call_of(operation))
        try:
            while (result := self._lanes.run(lane, operation)) is AGAIN:
                pass
        except Failure as failure:
            return blocking.run(self.again(call_of(operation), failure))
        return self.ask(call_of(operation)) if result is ALONE else result

    def _once(self, operation: Operation[Result]) -> Result:
        call = call_of(operation)
        return call.result(self.pool.ask(call.request(self.address), self.timeout + call.wait))

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
        """Send a request and return its result; retried where that is safe."""
        try:
            return call.result(self.pool.ask(call.request(self.address), self.timeout + call.wait))
        except Failure as failure:
            return blocking.run(self.again(call, failure, tries))

    async def once(self, call: Call[Result]) -> Result:
        return call.result(self.pool.ask(call.request(self.address), self.timeout + call.wait))

    async def sleep(self, seconds: float) -> None:
        self.clock.wait(self.closing, seconds)


class RemoteLoads(Loads):
    """Loads into a server's store. A batch is resent for as long as the server is overloaded."""

    def __init__(self, url: str, patience: tuple[int, float] = LOADING, tries: int = 200) -> None:
        self.backend = RemoteBackend(url, patience=patience)
        self._tries = tries  # of a batch
        super().__init__(self.backend.run)

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        self.backend.ask(call_of(AddToLoad(load, part, number, queue, frame)), self._tries)

    def close(self) -> None:
        """Close the connections."""
        self.backend.close()


def checked_timeout(timeout: float | None) -> float:
    """The seconds that an answer may take; TypeError, InvalidArgument."""
    if timeout is None:
        return TIMEOUT
    if seconds("timeout", timeout) == 0:
        raise InvalidArgument("timeout=0 leaves no time for an answer; give the seconds that one may take")
    return timeout


def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteBackend:
    """A backend whose server has answered; StoreUnreachable if it does not."""
    backend = RemoteBackend(url, timeout, clock, token, ca)
    try:
        backend.connect()
    except BaseException:
        backend.close()
        raise
    return backend
