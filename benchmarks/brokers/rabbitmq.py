"""RabbitMQ with durable queues, persistent messages and publisher confirms: a classic queue, and a quorum of one.

The broker pushes what a consumer may hold (its prefetch count). It does not confirm acknowledgements, so a
consumer's time ends when the broker has answered a question that came after them.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.brokers.connection import HOST, Claimed, Connection, Refused
from benchmarks.brokers.process import Broker

# Methods of AMQP 0-9-1, as class and number
START_OK, TUNE_OK, OPEN = (10, 11), (10, 31), (10, 40)
CHANNEL_OPEN = (20, 10)
DECLARE, DECLARE_OK = (50, 10), (50, 11)
QOS, CONSUME, PUBLISH, DELIVER, ACK = (60, 10), (60, 20), (60, 40), (60, 60), (60, 80)
CONFIRM_SELECT = (85, 10)

METHOD, HEADER, BODY = 1, 2, 3
PASSIVE, DURABLE = 1, 2
QUEUE = b"bench"


class RabbitConnection(Connection):
    """One channel. Bodies must fit into one frame, 128 KiB."""

    kind: ClassVar[bytes]

    async def greet(self) -> None:
        self.published, self.unconfirmed = 0, set[int]()
        login = struct.pack(">I", 0) + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
        await self.link.ask(b"AMQP\0\0\x09\x01", _frame)
        await self.link.ask(_method(START_OK, login, channel=0), _frame)
        self.link.write(_method(TUNE_OK, struct.pack(">HIH", 1, 128 * 1024, 0), channel=0))
        await self.link.ask(_method(OPEN, _short(b"/") + b"\0\0", channel=0), _frame)
        await self.link.ask(_method(CHANNEL_OPEN, _short(b"")), _frame)
        kind = _short(b"x-queue-type") + b"S" + _long(self.kind)
        await self._ask(_method(DECLARE, b"\0\0" + _short(QUEUE) + bytes([DURABLE]) + _long(kind)))
        if self.holds:
            await self._ask(_method(QOS, struct.pack(">IHB", 0, self.holds, 0)))
            self.link.write(_method(CONSUME, b"\0\0" + _short(QUEUE) + _short(b"") + b"\0" + _long(b"")))
            await self.link.read(_frame)
        else:
            await self._ask(_method(CONFIRM_SELECT, b"\0"))

    async def _ask(self, request: bytes) -> None:
        _, payload = await self.link.ask(request, _frame)
        if payload[:4] == struct.pack(">HH", 20, 40):  # the channel is closed
            raise Refused(payload[7:].decode(errors="replace"))

    async def put(self, body: bytes) -> None:
        await self.put_many([body])

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        self.link.write(b"".join([_publish(body) for body in bodies]))
        self.unconfirmed.update(range(self.published + 1, self.published + 1 + len(bodies)))
        self.published += len(bodies)
        while self.unconfirmed:
            _, payload = await self.link.read(_frame)
            if payload[:4] != struct.pack(">HH", *ACK):
                raise Refused(f"not a confirm: {payload[:40]!r}")
            number, several = struct.unpack_from(">QB", payload, 4)
            if several:
                self.unconfirmed = {each for each in self.unconfirmed if each > number}
            else:
                self.unconfirmed.discard(number)

    async def claim(self, wait: int = 0) -> Claimed | None:
        return await self.link.read(_delivery)  # waits for as long as it takes

    async def claim_many(self, count: int) -> list[Claimed]:
        return [await self.link.read(_delivery) for _ in range(count)]

    async def ack(self, token: bytes) -> None:
        self.link.write(_method(ACK, token + b"\0"))

    async def ack_many(self, tokens: Sequence[bytes]) -> None:
        self.link.write(_method(ACK, tokens[-1] + b"\x01"))  # and all that were delivered before

    async def flush(self) -> None:
        if self.holds:
            self.link.write(_method(DECLARE, b"\0\0" + _short(QUEUE) + bytes([PASSIVE]) + _long(b"")))
            while (await self.link.read(_frame))[1][:4] != struct.pack(">HH", *DECLARE_OK):
                pass  # deliveries that were on their way


class ClassicConnection(RabbitConnection):
    kind = b"classic"


class QuorumConnection(RabbitConnection):
    kind = b"quorum"


def _short(text: bytes) -> bytes:
    return struct.pack(">B", len(text)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _method(method: tuple[int, int], arguments: bytes, channel: int = 1) -> bytes:
    return _framed(METHOD, struct.pack(">HH", *method) + arguments, channel)


def _framed(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


_PUBLISH = _method(PUBLISH, b"\0\0" + _short(b"") + _short(QUEUE) + b"\0")


def _publish(body: bytes) -> bytes:
    # Of the properties only the delivery mode is given: 2, persistent.
    return _PUBLISH + _framed(HEADER, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)) + _framed(BODY, body)


def _frame(received: bytearray, at: int = 0) -> tuple[tuple[int, bytes], int] | None:
    if len(received) < at + 7:
        return None
    kind, _, length = struct.unpack_from(">BHI", received, at)
    start, end = at + 7, at + 7 + length
    return ((kind, bytes(received[start:end])), end + 1) if len(received) > end else None


def _delivery(received: bytearray) -> tuple[Claimed, int] | None:
    """A message: the frames of the method, the header and the body."""
    frames, at = list[bytes](), 0
    while len(frames) < 3:
        parsed = _frame(received, at)
        if parsed is None:
            return None
        (_, payload), at = parsed
        frames.append(payload)
    method, _, body = frames
    if method[:4] != struct.pack(">HH", *DELIVER):
        raise Refused(f"not a delivery: {method[:40]!r}")
    start = 5 + method[4]  # behind the consumer's name
    return (method[start : start + 8], body), at


class RabbitMQ(Broker):
    """Started by the script that starts the server as the user who calls it, with a port mapper of its own."""

    package = "rabbitmq-server"

    @classmethod
    def program(cls) -> str | None:
        """Debian's program in the path changes the user, its original does not."""
        original = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        return original if os.path.exists(original) else super().program()

    def start(self) -> None:
        mapper, cluster = map(str, self.spare_ports)
        plugins, settings = self._write("plugins", "[].\n"), f"listeners.tcp.1 = {HOST}:{self.port}\n"
        environment = {"HOME": str(self.folder), "ERL_EPMD_PORT": mapper, "ERL_EPMD_ADDRESS": HOST}
        self.spawn("epmd", "-address", HOST, "-port", mapper, **environment)
        self.spawn(
            self.program() or self.package,
            RUNNING_UNDER_SYSTEMD="1",  # the script becomes the server, so that ours is its process
            RABBITMQ_NODENAME="bench@localhost",
            RABBITMQ_DIST_PORT=cluster,
            RABBITMQ_MNESIA_BASE=str(self.folder / "mnesia"),
            RABBITMQ_LOG_BASE=str(self.folder / "logs"),
            RABBITMQ_PID_FILE=str(self.folder / "pid"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(plugins),
            RABBITMQ_CONFIG_FILE=str(self._write("rabbitmq.conf", settings)),
            RABBITMQ_CONF_ENV_FILE=str(self.folder / "none"),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
            **environment,
        )
        self.await_ready()

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


class RabbitClassic(RabbitMQ):
    name, connection = "RabbitMQ classic", ClassicConnection


class RabbitQuorum(RabbitMQ):
    name, connection = "RabbitMQ quorum", QuorumConnection
