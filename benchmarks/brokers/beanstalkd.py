"""beanstalkd with a binlog that is synced at each write; its puts cannot be batched."""

from benchmarks.brokers.connection import HOST, Claimed, Connection, Refused
from benchmarks.brokers.process import Broker


class BeanstalkConnection(Connection):
    """The tube `default`, which needs no greeting."""

    batches = False

    async def put(self, body: bytes) -> None:
        await self._ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body), b"INSERTED")

    async def claim(self, wait: int = 0) -> Claimed | None:
        words, body = await self.link.ask(b"reserve-with-timeout %d\r\n" % wait, _reply)
        return (words[1], body) if words[0] == b"RESERVED" else None

    async def ack(self, token: bytes) -> None:
        await self._ask(b"delete %b\r\n" % token, b"DELETED")

    async def _ask(self, request: bytes, expected: bytes) -> None:
        words, _ = await self.link.ask(request, _reply)
        if words[0] != expected:
            raise Refused(b" ".join(words).decode())


def _reply(received: bytearray) -> tuple[tuple[list[bytes], bytes], int] | None:
    """The words of a line, and the body behind it if the line announces one."""
    end = received.find(b"\r\n")
    if end < 0:
        return None
    words, start = bytes(received[:end]).split(), end + 2
    if words[0] != b"RESERVED":
        return (words, b""), start
    end = start + int(words[2])
    return ((words, bytes(received[start:end])), end + 2) if len(received) >= end + 2 else None


class Beanstalkd(Broker):
    """Listens as soon as it has written its first file."""

    name, package, connection = "beanstalkd", "beanstalkd", BeanstalkConnection

    def start(self) -> None:
        self.spawn("beanstalkd", "-l", HOST, "-p", str(self.port), "-b", self.folder, "-f0")
        self.await_ready()
