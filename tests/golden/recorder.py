"""A server that records requests and gives each a fixed answer."""

import json
import re
import socket
import threading
from contextlib import suppress

from tests.golden.talk import frame

_SETTINGS = {
    "max_size": 0, "max_attempts": 5, "keep_done": 0, "filter": None, "start": "now", "max_payload": 16_777_216,
    "priorities": None, "max_lease": 43_200, "retention": 0, "description": "",
}  # fmt: skip
_COUNTS = {"delayed": 1, "available": 2, "in_flight": 3, "done": 4, "failed": 5}
_QUEUE: dict[str, object] = {"name": "jobs", "settings": _SETTINGS, "counts": _COUNTS}
_ATTEMPT = {"attempt": 1, "consumer": "me", "claimed_at": 3, "ended_at": 4, "outcome": "fail", "reason": "no"}
_STREAM: dict[str, object] = {
    "queue": "jobs", "stream": "s", "mode": "consume", "batch": 2, "settled": 1, "messages": 3,
    "since": 1_699_999_999_000, "failures": 0, "reader": "1-1@0@elsewhere", "lag": 4,
}  # fmt: skip
_MESSAGES = frame(
    {
        "id": "7", "headers": {"kind": "a"}, "priority": -1, "created_at": 1, "received_at": 2, "visible_at": 3,
        "attempts": 1, "state": "in_flight", "receipt": "7.00000000000000ff", "claimed_at": 4, "lease_until": 5,
        "consumer": "me",
    },
    b"\x00hello",
)  # fmt: skip
_NONE = frame({})
_ANSWERS: list[tuple[str, bytes | dict[str, object]]] = [  # by method and target; the first match counts
    ("POST /[^/]+/messages", b"HTTP/1.1 201 Created\r\nX-Message-Id: 7\r\nContent-Length: 0\r\n\r\n"),
    ("GET /-/api/queues", {"queues": [_QUEUE]}),
    ("POST /-/api/queues", _QUEUE),
    ("GET /-/api/queues/[^/]+", _QUEUE),
    ("POST /-/api/publish", {"id": "p7"}),
    ("GET /-/streams", {"streams": [_STREAM]}),
    ("POST /-/streams/.*/release", {"count": 3}),
    ("POST .*/put", {"ids": ["7"]}),
    ("POST .*/(claim|pop)", _MESSAGES),
    ("GET .*skip=[1-9].*|GET .*after=.*", _NONE),
    ("GET .*/(peek|messages)\\?.*", _MESSAGES),
    ("POST .*/extend", {"lease_until": 99, "lost": []}),
    ("POST .*/(remove|revoke|redrive|purge)", {"count": 3}),
    ("GET .*/attempts", {"attempts": [_ATTEMPT]}),
    ("POST .*|DELETE .*", b"HTTP/1.1 204 No Content\r\n\r\n"),
]


def problem(status: int, error: str, **more: object) -> bytes:
    """An answer with problem details."""
    return _json({"status": status, "error": error, "title": error, "detail": f"why {error}", **more}, status)


def _json(value: object, status: int = 200) -> bytes:
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Recorder:
    """Listens from when it is made until it is closed."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.refusal: bytes | None = None  # the answer to every request, if set
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._connected: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def taken(self) -> list[bytes]:
        """The requests since the last call."""
        taken, self.requests = self.requests, []
        return taken

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for each in self._connected:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                self._connected.append(connected)
                self._threads.append(threading.Thread(target=self._converse, args=[connected]))
                self._threads[-1].start()

    def _converse(self, connected: socket.socket) -> None:
        received = b""
        with connected, suppress(OSError):
            while data := connected.recv(1 << 20):
                received += data
                head, complete, body = received.partition(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                if complete and len(body) >= int(length[1] if length else 0):
                    self.requests.append(received)
                    received = b""
                    connected.sendall(self.refusal or self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        asked = " ".join(head.decode().split(" ")[:2])
        answer = next(answer for pattern, answer in _ANSWERS if re.fullmatch(pattern, asked))
        if asked.endswith("/put"):  # as many ids as there are messages
            sizes = json.loads(body[4 : 4 + int.from_bytes(body[:4], "big")])["sizes"]
            return _json({"ids": [str(7 + at) for at in range(len(sizes))]})
        if isinstance(answer, dict):
            return _json(answer)
        if answer[:4] == b"HTTP":
            return answer
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer
