"""A connection of the load generator to a broker: one interface for all protocols, over TCP with asyncio.

The protocols are written by hand: the usual libraries take more time than some brokers, and would be what is
measured. One request, or one batch of requests, is outstanding per connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast

HOST = "127.0.0.1"

T = TypeVar("T")
Claimed = tuple[bytes, bytes]  # what acknowledges the message, and its body
# Parses received bytes: the value and its length in bytes, or None if it is incomplete.
Parse = Callable[[bytearray], tuple[T, int] | None]


class Refused(Exception):
    """The broker answered something other than what was asked for."""


class Link(asyncio.Protocol):
    """A TCP connection with one reader at a time, which awaits a value that its parser finds."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._parse: Parse[Any] | None = None
        self._answer: asyncio.Future[Any] | None = None

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect to a broker on this machine; asyncio switches Nagle's delay off."""
        _, link = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, but is no subclass

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the broker has closed the connection"))

    def _advance(self) -> None:
        if self._parse is None or self._answer is None or self._answer.done():
            return
        try:
            parsed = self._parse(self._received)
        except Exception as error:
            self._answer.set_exception(error)
            return
        if parsed:
            value, length = parsed
            del self._received[:length]
            self._answer.set_result(value)

    def write(self, data: bytes) -> None:
        """Send, and await nothing."""
        self.transport.write(data)

    def read(self, parse: Parse[T]) -> asyncio.Future[T]:
        """The next value that the parser finds."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._parse, self._answer = parse, answer
        if self._received:
            self._advance()
        return answer

    def ask(self, data: bytes, parse: Parse[T]) -> asyncio.Future[T]:
        """Send, and await the next value that the parser finds."""
        self.write(data)
        return self.read(parse)


class Connection:
    """A producer, or a consumer that `holds` at most so many messages. With `rings`, a put wakes a waiting one.

    Most brokers need none of this in advance.
    """

    batches: ClassVar[bool] = True  # whether there is more to a batch than its messages one after the other

    def __init__(self, link: Link, holds: int, rings: bool) -> None:
        self.link, self.holds, self.rings = link, holds, rings

    @classmethod
    async def open(cls, port: int, *, holds: int = 0, rings: bool = False) -> Self:
        """Connect, and do what must come before the first message."""
        connection = cls(await Link.open(port), holds, rings)
        await connection.greet()
        return connection

    async def greet(self) -> None:
        """What must come before the first message."""

    async def put(self, body: bytes) -> None:
        """Add a message; returns when it is synced."""
        raise NotImplementedError

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        """Add messages at once."""
        raise NotImplementedError

    async def claim(self, wait: int = 0) -> Claimed | None:
        """The next message, for which to wait so many seconds."""
        raise NotImplementedError

    async def claim_many(self, count: int) -> list[Claimed]:
        """The next messages, at most so many."""
        raise NotImplementedError

    async def ack(self, token: bytes) -> None:
        """Settle a message."""
        raise NotImplementedError

    async def ack_many(self, tokens: Sequence[bytes]) -> None:
        """Settle messages at once."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Returns when the broker has processed everything, in protocols with unanswered requests."""

    def close(self) -> None:
        """Hang up."""
        self.link.transport.close()
