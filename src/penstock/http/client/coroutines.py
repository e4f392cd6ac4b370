"""The client's backend for coroutines: connections, their pool, and operations as HTTP requests."""

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Ack, Claim, Messages, Peek, Release
from penstock.errors import InvalidArgument, PenstockError, StoreUnreachable
from penstock.http.client import together
from penstock.http.client.address import Address
from penstock.http.client.backend import HELLO, Remote
from penstock.http.client.calls import Answer, AnswerReader, Call, call_of
from penstock.http.client.connection import CONNECT_TIMEOUT, AnyPool
from penstock.http.client.failures import Failure, Lost, NotSent, TimedOut, lost, not_sent, reason
from penstock.http.client.together import AGAIN, ALONE, lane_of
from penstock.system.clock import Clock, pause

Result = TypeVar("Result")


async def _connect(address: Address) -> "Connection":
    """A connection to the server; NotSent."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if address.share is not None:
                return await _connect_locally(address.share)
            _, connection = await loop.create_connection(
                lambda: Connection(address.tls is not None), address.host, address.port, ssl=address.tls
            )
    except (OSError, UnicodeError) as error:  # UnicodeError: of a host name that is too long
        raise not_sent(error, address.share is not None) from None
    return connection


async def _connect_locally(share: str) -> "Connection":
    from penstock.system import socket_path as place

    _, connection = await asyncio.get_running_loop().create_unix_connection(
        lambda: Connection(encrypted=False), sock=place.connect(share, CONNECT_TIMEOUT)
    )
    return connection


class Connection(asyncio.Protocol):
    """Sends one request at a time and reads its answer. After a failure the caller closes it."""

    def __init__(self, encrypted: bool) -> None:
        self._encrypted = encrypted
        self._reader = AnswerReader()
        self._begun = False  # a part of the answer has come
        self._answer: asyncio.Future[Answer] | None = None
        self._unsent = False  # the system has not taken all of the request yet
        self._lost = False
        self._readable = select.poll()
        self.last_used = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._encrypted:  # under TLS, what the transport has taken may not be sent yet
            self._transport.set_write_buffer_limits(high=0)  # resume_writing() then means: all was sent
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._gone = asyncio.get_running_loop().create_future()

    def is_stale(self) -> bool:
        return self._lost or self._transport.is_closing() or bool(self._readable.poll(0))

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """Send a request and return its answer; Failure, TimedOut after so many seconds."""
        if self._lost or self._transport.is_closing():
            raise NotSent("the connection was closed at once")
        loop = asyncio.get_running_loop()
        self._answer, self._begun = loop.create_future(), False
        self._transport.write(request)
        timer = loop.call_later(seconds, self._time_out)
        try:
            answer = await self._answer
        finally:
            timer.cancel()
            self._answer = None
        self.last_used = loop.time()
        return answer._replace(keep_alive=False) if self._unsent else answer

    def close(self) -> None:
        """Close at once; a coroutine that waits for an answer gets Lost."""
        self._transport.abort()

    async def ended(self) -> None:
        """Wait until the connection is closed."""
        await self._gone

    # Callbacks of asyncio

    def pause_writing(self) -> None:
        self._unsent = not self._encrypted

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()  # nobody asked for these bytes
            return
        self._begun = True
        try:
            answer = self._reader.feed(data)
        except Failure as failure:
            self._fail(failure)
            return
        if answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._gone.set_result(None)
        failure = lost(self._begun) if error is None else Lost(reason(error))
        unsent = self._unsent or isinstance(error, BrokenPipeError)  # the system took nothing, or not all of it
        self._fail(NotSent(str(failure)) if unsent else failure)

    def _time_out(self) -> None:
        self._fail(NotSent(str(TimedOut())) if self._unsent else TimedOut())

    def _fail(self, failure: Failure) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)


class Pool(AnyPool[Connection]):
    """The connections of one event loop."""

    def __init__(self, address: Address, closed: Callable[[], Exception]) -> None:
        super().__init__(address, closed)
        self._loop = asyncio.get_running_loop()

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request; Failure if there is none."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"the store {self._address.url!r} belongs to another event loop: open it in the one that uses it"
            )
        self.check_open()
        connection = self._kept(self._loop.time()) or await _connect(self._address)
        self._all.add(connection)
        try:
            self.check_open()  # it may have been closed while this one connected
            answer = await connection.ask(request, seconds)
        except BaseException:
            self._drop(connection)
            raise
        self._keep(connection, answer)
        return answer

    async def close(self) -> None:
        """End every connection; coroutines that wait for an answer get StoreClosed."""
        self._closed = True
        ending = list(self._all)
        self._idle.clear()
        for connection in ending:
            self._drop(connection)
        for connection in ending:
            await connection.ended()


class _Ride(NamedTuple):
    """A call that waits for the request under way, to go with the next one."""

    operation: Operation[Any]
    share: "asyncio.Future[Any]"


class _Lanes:
    """Calls of coroutines that go together: for each lane at most one request is under way.

    What has waited for long goes alone: one connection may be stuck.
    """

    def __init__(
        self, once: Callable[[Operation[Any]], Awaitable[Any]], run: Callable[[Operation[Any]], Awaitable[Any]]
    ) -> None:
        self.mixes = True  # acks may go with claims, which servers of earlier versions refuse
        self._crowded = False  # the latest request had several calls
        self._once = once
        self._run = run
        self._lanes: dict[Hashable, list[_Ride]] = {}  # those that wait, by lane
        self._tasks: set[asyncio.Task[None]] = set()

    def is_busy(self, lane: Hashable) -> bool:
        """Whether a request of a lane is under way."""
        return lane in self._lanes

    async def run(self, lane: Hashable, operation: Operation[Any]) -> Any:
        """The operation's result, AGAIN, or ALONE; raises its error, also Failure."""
        loop, waiting = asyncio.get_running_loop(), self._lanes.get(lane)
        if waiting is None:
            self._lanes[lane] = waiting = []
            if not self._crowded:
                try:
                    return await self._once(operation)
                finally:
                    self._send_next(lane)
            loop.call_soon(self._send_next, lane)  # others call in the same turn, as they did before
        ride = _Ride(operation, loop.create_future())
        waiting.append(ride)
        timer = loop.call_later(together.PATIENCE, self._let_go, lane, ride)
        try:
            return await ride.share
        finally:
            timer.cancel()

    def _let_go(self, lane: Hashable, ride: _Ride) -> None:
        waiting = self._lanes.get(lane, [])
        if ride in waiting and not ride.share.done():
            waiting.remove(ride)
            ride.share.set_result(ALONE)

    def _send_next(self, lane: Hashable) -> None:
        waiting = [ride for ride in self._lanes[lane] if not ride.share.done()]  # without cancelled ones
        if not waiting:
            del self._lanes[lane]
            return
        riders, self._lanes[lane] = together.chosen(waiting, self.mixes)
        self._crowded = len(riders) > 1
        self._begin(self._send(lane, riders))

    async def _send(self, lane: Hashable, riders: list[_Ride]) -> None:
        operations = [ride.operation for ride in riders]
        shares: list[Any] = [Lost("the request was cancelled")] * len(riders)
        try:
            shares = together.shares(operations, await self._once(together.joined(operations)))
        except Exception as error:
            shares = together.shares_of(operations, error)
            self.mixes = self.mixes and not together.refuses_acks(operations, error)
        finally:
            self._send_next(lane)
            for ride, share in zip(riders, shares, strict=True):
                if ride.share.done():  # cancelled meanwhile: what was claimed for it is for others
                    if receipts := together.receipts_of(share):
                        self._begin(self._give_back(ride.operation.queue, receipts))
                elif isinstance(share, Exception):
                    ride.share.set_exception(share)
                else:
                    ride.share.set_result(share)

    async def _give_back(self, queue: str, receipts: list[str]) -> None:
        with suppress(PenstockError):  # the lease will end
            await self._run(Release(queue, receipts))

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class RemoteBackend(Remote):
    """The backend of a server's store, for coroutines."""

    opener, pool_type, event_type = "penstock.aio.open()", Pool, asyncio.Event

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lanes = _Lanes(self._once, self.run)

    async def connect(self) -> None:
        """Check that the server answers, without retries; StoreUnreachable."""
        try:
            await self.ask(call_of(HELLO), tries=1)
        except StoreUnreachable as error:
            from penstock.http.client.tls import explained  # late: seldom needed

            raise await asyncio.to_thread(explained, self.address, error) from error.__cause__

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        if operation.http.polls and operation.wait > 0:
            if self._lanes.is_busy(together.lane_of_poll(operation)):
                return self._taken_together(operation)
            return self.taken(operation)  # type: ignore[arg-type]
        if isinstance(operation, Claim) and operation.ack:
            return self._acking(operation)  # type: ignore[return-value]
        lane = lane_of(operation)
        return self.ask(call_of(operation)) if lane is None else self._together(lane, operation)

    async def _taken_together(self, operation: Operation[Result]) -> Result:
        """What a claim brings at once, together with others; else what it waits for."""
        taken = await self.run(operation.changed(wait=0))
        return taken or await self.taken(operation)  # type: ignore[arg-type]

    async def _acking(self, operation: Claim) -> list[Message]:
        """The messages of a claim that acknowledges others."""
        if not self._lanes.mixes:
            await self.run(Ack(operation.queue, operation.ack))
            return await self.run(operation.changed(ack=()))
        lane = lane_of(operation)
        try:
            return await (self.ask(call_of(operation)) if lane is None else self._together(lane, operation))
        except InvalidArgument:
            return await self.acked_before(operation)

    async def _together(self, lane: Hashable, operation: Operation[Result]) -> Result:
        """The result of an operation that may go together with others."""
        try:
            while (result := await self._lanes.run(lane, operation)) is AGAIN:
                pass
        except Failure as failure:
            return await self.again(call_of(operation), failure)
        return await self.ask(call_of(operation)) if result is ALONE else result

    async def _once(self, operation: Operation[Result]) -> Result:
        return await self.once(call_of(operation))

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        left: Any = operation
        while left is not None and (page := list(await self.ask(call_of(left)))):
            for message in page:
                yield message
            left = left.rest(len(page), page[-1])

    async def close(self) -> None:
        self.closing.set()
        await self.pool.close()

    async def ask(self, call: Call[Result], tries: int = 0) -> Result:
        """Send a request and return its result; retried where that is safe."""
        try:
            return await self.once(call)
        except Failure as failure:
            return await self.again(call, failure, tries)

    async def once(self, call: Call[Result]) -> Result:
        return call.result(await self.pool.ask(call.request(self.address), self.timeout + call.wait))

    async def sleep(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while not self.closing.is_set() and (left := end - self.clock.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), pause(self.clock, left))


async def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteBackend:
    """A backend whose server has answered; StoreUnreachable if it does not."""
    backend = RemoteBackend(url, timeout, clock, token, ca)
    try:
        await backend.connect()
    except BaseException:
        await backend.close()
        raise
    return backend
