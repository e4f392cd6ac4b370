"""A server under attack: clients that send any bytes, requests as bytes, and a check that no harm was done."""

import asyncio
import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock.engine.backend import Engine
from penstock.engine.coroutines import LocalBackend
from penstock.http.server import Limits, serve_in_thread, watch
from penstock.http.server.connection import Connection
from penstock.http.server.server import Deadlines
from penstock.sharing.backend import engine_of
from tests.http.serving import until

HOST = b"Host: localhost\r\n"


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def told(self) -> tuple[int, str]:
        return self.status, self.error

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])

    @property
    def id(self) -> bytes:
        return self.headers[b"x-message-id"]


class Client:
    """A connection on which anything can be said."""

    def __init__(self, port: int, said: list[bytes], receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self._said = said  # by the server, to anyone
        self._rest = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_no_more(self) -> None:
        with suppress(OSError):  # the server may have ended the connection before
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Vanish, as a client that crashed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def answer(self, is_head: bool = False) -> Answer:
        while b"\r\n\r\n" not in self._rest:
            self._read()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        start, *lines = head.split(b"\r\n")
        version, status, _ = start.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = {name.lower(): value for name, value in (line.split(b": ", 1) for line in lines)}
        size = 0 if is_head else int(headers.get(b"content-length", 0))
        while len(self._rest) < size:
            self._read()
        body, self._rest = self._rest[:size], self._rest[size:]
        return Answer(int(status), headers, body)

    def answers(self) -> list[Answer]:
        """All that come until the server ends the connection."""
        answers = []
        while self._rest or self._reads_on():
            answers.append(self.answer())
        return answers

    def last_answer(self) -> Answer:
        """The only one, after which the server ends the connection."""
        [answer] = self.answers()
        assert answer.headers[b"connection"] == b"close"
        return answer

    def _read(self) -> None:
        assert self._reads_on(), f"the server ended the connection in the middle of {self._rest!r}"

    def _reads_on(self) -> bool:
        data = self.socket.recv(1 << 20)
        self._said.append(data)
        self._rest += data
        return bool(data)


class Victim:
    """A server, and everything it must not lose hold of."""

    def __init__(self, store: penstock.Store, limits: Limits | None = None) -> None:
        self.store = store
        self.said: list[bytes] = []
        self.clients: list[Client] = []
        self.running = serve_in_thread(store, limits=limits)
        self.port = int(self.running.url.rpartition(":")[2])
        self.service = self.running._server._service

    def client(self, receive_buffer: int | None = None) -> Client:
        client = Client(self.port, self.said, receive_buffer)
        self.clients.append(client)
        return client

    def tell(self, data: bytes) -> Client:
        """A new client that has said this."""
        client = self.client()
        client.send(data)
        return client

    @property
    def connections(self) -> list[Connection]:
        return list(self.service._connections)

    @property
    def in_line(self) -> int:
        return sum(queue.in_line for queue in self.live._queues.values())

    @property
    def live(self) -> Engine:
        backend = engine_of(self.running._server._store)
        assert backend is not None
        return backend

    def until_nobody_is_there(self) -> None:
        until(lambda: not self.connections)

    def check(self, tmp_path: Path) -> None:
        """Healthy clients are served as ever, and nothing is left of the others."""
        client = self.client()
        client.send(put(b"healthy", "default") + get("default"))
        assert client.answer().status == 201
        claimed = client.answer()
        assert (claimed.status, claimed.body) == (200, b"healthy")
        client.send(delete("default", claimed.id))
        assert client.answer().status == 204
        for each in self.clients:
            each.close()
        self.until_nobody_is_there()
        until(lambda: not self._tasks() and not self.in_line)
        for deadlines in (self.service.arriving, self.service.leaving, self.service.idle):
            assert not counted(deadlines)
        assert isinstance(self.service.backend, LocalBackend)
        assert not self.service.backend._pending
        assert self.service.buffered == 0
        everything = b"\n".join(self.said)
        assert str(tmp_path).encode() not in everything
        assert not re.search(rb"Traceback|\.py\b|File \"|/(home|tmp|usr)/|0x[0-9a-f]{6}|site-packages", everything)

    def _tasks(self) -> int:
        async def count() -> int:
            others = [task for task in asyncio.all_tasks() if task.get_name() != watch.TASK]
            return len(others) - 2  # this one, and that which serves

        return asyncio.run_coroutine_threadsafe(count(), self.running._loop).result()


def counted(deadlines: Deadlines) -> set[object]:
    return {*deadlines._new, *deadlines._since}


Serve = Callable[[Limits | None], Victim]


def request(method: str, target: str, headers: bytes = b"", body: bytes | None = None) -> bytes:
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    return f"{method} {target} HTTP/1.1\r\n".encode() + HOST + headers + length + b"\r\n" + (body or b"")


def put(payload: bytes, queue: str = "jobs", headers: bytes = b"") -> bytes:
    return request("POST", f"/{queue}/messages", headers, payload)


def get(queue: str = "jobs", query: str = "") -> bytes:
    return request("GET", f"/{queue}/messages{query}")


def delete(queue: str, message_id: bytes) -> bytes:
    return request("DELETE", f"/{queue}/messages/{message_id.decode()}")


def chunked(*rest: bytes, headers: bytes = b"") -> bytes:
    head = request("POST", "/jobs/messages", headers + b"Transfer-Encoding: chunked\r\n")
    return head + b"".join(rest)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def payloads(queue: penstock.Queue) -> list[bytes]:
    return [message.payload for message in queue.messages()]
