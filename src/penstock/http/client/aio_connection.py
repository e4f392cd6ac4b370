"""One connection to a server, used by one coroutine at a time."""

import asyncio
import select
from typing import cast

from penstock.http.client.address import Address
from penstock.http.client.answers import Answer, AnswerReader
from penstock.http.client.connection import CONNECT_TIMEOUT, not_sent, reason
from penstock.http.client.failures import Failure, Lost, NotSent, TimedOut


async def connect(address: Address) -> "Connection":
    """A connection to the server; NotSent if there is none to be had."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if address.share is not None:
                return await _connect_locally(address.share)
            _, connection = await loop.create_connection(
                lambda: Connection(address.tls is not None), address.host, address.port, ssl=address.tls
            )
    except (OSError, UnicodeError) as error:  # neither is a name that cannot be one
        raise not_sent(address, error) from None
    return connection


async def _connect_locally(share: str) -> "Connection":
    from penstock.system import socket_path as place

    _, connection = await asyncio.get_running_loop().create_unix_connection(
        lambda: Connection(encrypted=False), sock=place.connect(share, CONNECT_TIMEOUT)
    )
    return connection


class Connection(asyncio.Protocol):
    """Asks, and reads the answer. After any failure it must be ended."""

    def __init__(self, encrypted: bool) -> None:
        self._encrypted = encrypted
        self._reader = AnswerReader()
        self._begun = False  # to be answered
        self._answer: asyncio.Future[Answer] | None = None
        self._unsent = False
        self._lost = False
        self._readable = select.poll()
        self.last_used = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server is there."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._encrypted:  # of TLS, nobody knows how much of what it took was sent
            self._transport.set_write_buffer_limits(high=0)  # so that we are told when all was sent
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._gone = asyncio.get_running_loop().create_future()

    def is_stale(self) -> bool:
        """Whether the server has closed it, or said something out of turn."""
        return self._lost or self._transport.is_closing() or bool(self._readable.poll(0))

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request, if it comes within so many seconds."""
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

    def end(self) -> None:
        """Close at once; who waits for an answer finds it lost."""
        self._transport.abort()

    async def ended(self) -> None:
        """Wait until it is closed."""
        await self._gone

    # What asyncio calls

    def pause_writing(self) -> None:
        """Not all was sent yet."""
        self._unsent = not self._encrypted

    def resume_writing(self) -> None:
        """All was sent."""
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        """A part of an answer."""
        if self._answer is None:
            self.end()  # said out of turn
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
        """The end."""
        self._lost = True
        self._gone.set_result(None)
        where = "in the middle of" if self._begun else "before"
        why = f"the connection was closed {where} the answer" if error is None else reason(error)
        unsent = self._unsent or isinstance(error, BrokenPipeError)  # the system took nothing, or not all
        self._fail(NotSent(why) if unsent else Lost(why))

    def _time_out(self) -> None:
        why = "it takes too long"
        self._fail(NotSent(why) if self._unsent else TimedOut(why))

    def _fail(self, failure: Failure) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)
