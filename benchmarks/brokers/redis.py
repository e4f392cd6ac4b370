"""Redis with an append-only file that is synced before each answer: as a stream with a group, and as a list.

stream   XADD    XREADGROUP, XACK                                batches: pipelines; COUNT; XACK of many
list     LPUSH   LMOVE to a list of the consumer's own, LREM     batches: LPUSH of many; pipelines
"""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from benchmarks.brokers.connection import HOST, Claimed, Connection, Parse, Refused
from benchmarks.brokers.process import Broker

_numbers = itertools.count()


class RedisConnection(Connection):
    """The commands, and their replies: bytes, numbers, None, errors, and lists of these."""

    async def greet(self) -> None:
        self.consumer = b"consumer-%d" % next(_numbers)

    async def ask(self, *words: bytes | int) -> Any:
        (reply,) = await self.pipeline([_command(*words)])
        return reply

    async def pipeline(self, commands: Sequence[bytes]) -> list[Any]:
        replies = await self.link.ask(b"".join(commands), _replies(len(commands)))
        for reply in replies:
            if isinstance(reply, Refused):
                raise reply
        return replies


class StreamConnection(RedisConnection):
    """A stream with one group of consumers."""

    async def greet(self) -> None:
        await super().greet()
        with contextlib.suppress(Refused):  # the first connection creates the group
            await self.ask(b"XGROUP", b"CREATE", b"stream", b"group", b"0", b"MKSTREAM")

    async def put(self, body: bytes) -> None:
        await self.ask(b"XADD", b"stream", b"*", b"body", body)

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        await self.pipeline([_command(b"XADD", b"stream", b"*", b"body", body) for body in bodies])

    async def claim(self, wait: int = 0) -> Claimed | None:
        claimed = await self._read(1, *((b"BLOCK", wait * 1000) if wait else ()))
        return claimed[0] if claimed else None

    async def claim_many(self, count: int) -> list[Claimed]:
        return await self._read(count)

    async def _read(self, count: int, *block: bytes | int) -> list[Claimed]:
        group = (b"XREADGROUP", b"GROUP", b"group", self.consumer, b"COUNT", count)
        streams = await self.ask(*group, *block, b"STREAMS", b"stream", b">")
        return [(token, fields[1]) for token, fields in streams[0][1]] if streams else []

    async def ack(self, token: bytes) -> None:
        await self.ack_many([token])

    async def ack_many(self, tokens: Sequence[bytes]) -> None:
        if await self.ask(b"XACK", b"stream", b"group", *tokens) != len(tokens):
            raise Refused("XACK has not found every message")


class ListConnection(RedisConnection):
    """A list, and one for each consumer; the body itself is what acknowledges it."""

    async def put(self, body: bytes) -> None:
        await self.ask(b"LPUSH", b"list", body)

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        await self.ask(b"LPUSH", b"list", *bodies)

    async def claim(self, wait: int = 0) -> Claimed | None:
        move = (b"list", self.consumer, b"RIGHT", b"LEFT")
        body = await (self.ask(b"BLMOVE", *move, wait) if wait else self.ask(b"LMOVE", *move))
        return (body, body) if body else None

    async def claim_many(self, count: int) -> list[Claimed]:
        moves = [_command(b"LMOVE", b"list", self.consumer, b"RIGHT", b"LEFT")] * count
        return [(body, body) for body in await self.pipeline(moves) if body]

    async def ack(self, token: bytes) -> None:
        await self.ack_many([token])

    async def ack_many(self, tokens: Sequence[bytes]) -> None:
        removals = [_command(b"LREM", self.consumer, 1, token) for token in tokens]
        if sum(await self.pipeline(removals)) != len(tokens):
            raise Refused("LREM has not found every message")


def _command(*words: bytes | int) -> bytes:
    texts = [b"%d" % word if isinstance(word, int) else word for word in words]
    return b"*%d\r\n" % len(texts) + b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


def _replies(count: int) -> Parse[list[Any]]:
    """So many replies; one that was parsed is not parsed again when more arrives."""
    replies, at = list[Any](), 0

    def parse(received: bytearray) -> tuple[list[Any], int] | None:
        nonlocal at
        while len(replies) < count:
            parsed = _reply(received, at)
            if parsed is None:
                return None
            reply, at = parsed
            replies.append(reply)
        return replies, at

    return parse


def _reply(received: bytearray, at: int) -> tuple[Any, int] | None:
    end = received.find(b"\r\n", at)
    if end < 0:
        return None
    kind, text, at = received[at : at + 1], bytes(received[at + 1 : end]), end + 2
    if kind == b"+":
        return text, at
    if kind == b"-":
        return Refused(text.decode()), at
    number = int(text)
    if kind == b":":
        return number, at
    if number < 0:
        return None, at
    if kind == b"$":
        end = at + number
        return (bytes(received[at:end]), end + 2) if len(received) >= end + 2 else None
    items = []
    for _ in range(number):
        parsed = _reply(received, at)
        if parsed is None:
            return None
        item, at = parsed
        items.append(item)
    return items, at


class Redis(Broker):
    """Without snapshots, so that the append-only file is all that is written."""

    package = "redis-server"
    persistence: ClassVar[tuple[str, ...]] = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")

    def start(self) -> None:
        listen = ("--bind", HOST, "--port", str(self.port), "--dir", self.folder)
        self.spawn("redis-server", *listen, *self.persistence)
        self.await_ready()


class RedisStream(Redis):
    name, connection = "Redis stream", StreamConnection


class RedisList(Redis):
    name, connection = "Redis list", ListConnection


class ShippedRedis(RedisList):
    """As it is shipped, which is not durable: a snapshot now and then."""

    name, persistence = "Redis as shipped", ()
