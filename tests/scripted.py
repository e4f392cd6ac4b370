"""A scripted server that misbehaves on purpose, byte by byte if need be."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias, cast

import penstock
import penstock.aio
from penstock.contract.settings import Settings
from penstock.http.client import backend
from penstock.http.client import coroutines as remote
from penstock.wire import frames, jsons
from tests.conformance.blocking import BlockingQueue, Loop

Act: TypeAlias = "bytes | Callable[[Conversation], None]"


class Conversation:
    """One connection as the server sees it. What it does is called by scripts."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._received = bytearray()

    def read_request(self) -> bytes | None:
        """A whole request; None if the client has gone."""
        while (end := self._received.find(b"\r\n\r\n") + 4) < 4:
            if not self._read():
                return None
        length = bytes(self._received[:end]).lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        while len(self._received) < end + int(length or b"0"):
            if not self._read():
                return None
        request = bytes(self._received)
        self._received.clear()  # nobody sends a request before the last one is answered
        return request

    def _read(self) -> bool:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            return False
        self._received += data
        return bool(data)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def reset(self) -> None:
        """Close so that the client is told that what it sent was not read."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def answer(body: bytes = b"", status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def problem(status: int, error: str, detail: str = "why", headers: str = "") -> bytes:
    body = jsons.dumps({"status": status, "error": error, "title": error, "detail": detail})
    return answer(body, f"{status} Problem", headers)


QUEUE = answer(
    jsons.dumps({"name": "default", "settings": dict(Settings()), "counts": {"available": 3, "delayed": 0}})
)
PUT = answer(status="201 Created", headers="X-Message-Id: 7\r\n")
SETTLED = b"HTTP/1.1 204 No Content\r\n\r\n"
COUNT = answer(b'{"count": 3}')
NOTHING = answer(b"".join(frames.message_parts([])))
MESSAGE = penstock.Message("7", "jobs", b"hello", {}, 0, 1, 1, 1, None, 1, "in_flight", "7.ff", 1, 2, "me")
CLAIMED = answer(b"".join(frames.message_parts([MESSAGE])))


def close(conversation: Conversation) -> None:
    """Say nothing and go."""
    conversation.close()


def reset(conversation: Conversation) -> None:
    """Say nothing and go, rudely."""
    conversation.reset()


def silence(conversation: Conversation) -> None:
    """Say nothing, for as long as the client likes."""
    conversation.read_request()


def then_close(data: bytes) -> Act:
    """Say this and go."""

    def act(conversation: Conversation) -> None:
        conversation.socket.sendall(data)
        conversation.close()

    return act


class ScriptedServer:
    """Plays one act for each request. When the script is over, it plays the last act again."""

    def __init__(self, listening: socket.socket, acts: Sequence[Act], wrap: Callable[..., socket.socket]) -> None:
        self._listening = listening
        self._acts = list(acts)
        self._wrap = wrap
        self._lock = threading.Lock()
        self._conversations: list[Conversation] = []
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[bytes] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self._conversations)

    def hang_up(self) -> None:
        """Close every connection."""
        for conversation in self._conversations:
            conversation.close()

    def say(self, data: bytes) -> None:
        """To every client, unasked."""
        for conversation in self._conversations:
            conversation.socket.sendall(data)

    def stop(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        self.hang_up()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
                conversation = Conversation(self._wrap(connected))
            except OSError:
                if self._listening.fileno() < 0:
                    return
                continue
            self._conversations.append(conversation)
            self._threads.append(threading.Thread(target=self._converse, args=[conversation], daemon=True))
            self._threads[-1].start()

    def _converse(self, conversation: Conversation) -> None:
        with suppress(OSError):  # the client, or the test, has had enough
            while (request := conversation.read_request()) is not None:
                with self._lock:
                    self.requests.append(request)
                    act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
                if isinstance(act, bytes):
                    conversation.socket.sendall(act)
                else:
                    act(conversation)


@contextmanager
def scripted(
    *acts: Act, port: int = 0, wrap: Callable[[socket.socket], socket.socket] = lambda connected: connected
) -> Iterator[ScriptedServer]:
    """A server that plays these acts."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        server = ScriptedServer(listening, acts, wrap)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def reserved_port() -> Iterator[int]:
    """The port of a server that is not there, or not there yet: nobody else is given it meanwhile."""
    with socket.socket() as bound:  # but does not listen, so that a server of ours may
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class HurriedClock(penstock.SimulatedClock):
    """A clock whose waits return at once, with the time passed."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds)
        return event.is_set()


@contextmanager
def talking_to(
    server: ScriptedServer, client: str = "sync", timeout: float = 1000, clock: penstock.Clock | None = None
) -> Iterator[penstock.Queue]:
    """A queue of a server that was not asked for anything yet."""
    with queue_at(server.url, client, timeout, clock) as queue:
        yield queue


@contextmanager
def queue_at(
    url: str, client: str = "sync", timeout: float = 1000, clock: penstock.Clock | None = None
) -> Iterator[penstock.Queue]:
    """A queue of a server that need not even be there."""
    if client == "sync":
        with penstock.Store(url, backend.RemoteBackend(url, timeout, clock)) as store:
            yield penstock.Queue(store, "jobs")
        return

    async def new_queue() -> penstock.aio.Queue:
        return penstock.aio.Queue(penstock.aio.Store(url, remote.RemoteBackend(url, timeout, clock)), "jobs")

    loop = Loop()
    queue = loop.run(new_queue())
    yield cast("penstock.Queue", BlockingQueue(loop, queue))
    loop.run(queue._store.close())
    loop.stop()
