"""Penstock's own server over a journal store, spoken to as thinly as the others."""

import json
import re
import struct
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import ClassVar

import penstock
from benchmarks.brokers.connection import HOST, Claimed, Connection, Refused
from benchmarks.brokers.process import Broker

MESSAGES, QUEUE = b"/default/messages", b"/-/api/queues/default"  # for single messages, and for batches
FRAME = b"application/vnd.penstock.batch"


class HttpConnection(Connection):
    """One request at a time on a connection that is kept."""

    async def put(self, body: bytes) -> None:
        await self._ask(b"POST", MESSAGES, body, expected=b"201")

    async def claim(self, wait: int = 0) -> Claimed | None:
        status, head, body = await self.link.ask(_request(b"GET", MESSAGES + b"?wait=%d" % wait), response)
        if status == b"204":
            return None
        if status != b"200":
            raise Refused((head + b" " + body).decode(errors="replace"))
        return b"%b?receipt=%b" % (header(head, b"x-message-id"), header(head, b"x-message-receipt")), body

    async def ack(self, token: bytes) -> None:
        await self._ask(b"DELETE", MESSAGES + b"/" + token, expected=b"204")

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        head = json.dumps({"sizes": list(map(len, bodies))}).encode()
        frame = b"".join([struct.pack(">I", len(head)), head, *bodies])
        await self._ask(b"POST", QUEUE + b"/put", frame, FRAME, expected=b"200")

    async def claim_many(self, count: int) -> list[Claimed]:
        """What acknowledges one of many is its receipt alone."""
        frame = await self._ask(b"POST", QUEUE + b"/claim", b'{"n":%d}' % count, expected=b"200")
        start = 4 + int.from_bytes(frame[:4], "big")
        head = json.loads(frame[4:start])
        ends = pairwise(accumulate(head["sizes"], initial=start))
        return [(receipt.encode(), frame[a:b]) for receipt, (a, b) in zip(head["receipt"], ends, strict=True)]

    async def ack_many(self, tokens: Sequence[bytes]) -> None:
        receipts = json.dumps({"receipts": [token.decode() for token in tokens]})
        await self._ask(b"POST", QUEUE + b"/ack", receipts.encode(), expected=b"204")

    async def _ask(
        self, method: bytes, path: bytes, body: bytes = b"", kind: bytes = b"application/json", *, expected: bytes
    ) -> bytes:
        status, head, answer = await self.link.ask(_request(method, path, body, kind), response)
        if status != expected:
            raise Refused((head + b" " + answer).decode(errors="replace"))
        return answer


def _request(method: bytes, path: bytes, body: bytes = b"", kind: bytes = b"") -> bytes:
    line = b"%b %b HTTP/1.1\r\nHost: localhost\r\n" % (method, path)
    if not body:
        return line + b"\r\n"
    return line + b"Accept: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        FRAME,
        kind,
        len(body),
        body,
    )


def response(received: bytearray) -> tuple[tuple[bytes, bytes, bytes], int] | None:
    """Status, head and body."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, start = bytes(received[:end]), end + 4
    status = head[9:12]
    end = start if status == b"204" else start + int(header(head, b"content-length"))
    return ((status, head, bytes(received[start:end])), end) if len(received) >= end else None


def header(head: bytes, name: bytes) -> bytes:
    found = re.search(rb"\r\n%b: *([^\r]*)" % name, head, re.IGNORECASE)
    if not found:
        raise Refused(f"there is no {name.decode()} in {head!r}")
    return found[1]


def sources() -> dict[str, str]:
    """The environment in which Python finds the same Penstock as here."""
    return {"PYTHONPATH": str(Path(penstock.__file__).parents[1])}


class Penstock(Broker):
    """Chooses its own port, and says which on its first line."""

    name, package = "server", "penstock"
    connection: ClassVar[type[Connection]] = HttpConnection

    def start(self) -> None:
        command = ("-m", "penstock", "--store", self.folder / "store", "serve", "--port", "0")
        self.spawn(sys.executable, *command, **sources())
        self.await_ready()

    def ready(self) -> bool:
        """Whether it has said its address."""
        said = re.search(rf"http://{re.escape(HOST)}:(\d+)", self.log.read_text())
        if said:
            self.port = int(said[1])
        return said is not None
