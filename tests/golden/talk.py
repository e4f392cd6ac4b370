"""A client that records a conversation with a server, byte by byte, as a transcript.

A transcript has the lines of each head without their CR LF, `>` before sent ones and `<` before received ones, and
then the body: text as it is, a frame as the length and the text of its head and its payloads in hex. Unprintable
bytes are escaped.
"""

import json
import re
import socket
import struct
from typing import Any, NamedTuple

from tests.golden.normaliser import Normaliser
from tests.golden.processes import Time

FRAME = "Content-Type: application/vnd.penstock.batch"
WANTS_FRAME = "Accept: application/vnd.penstock.batch"
JSON = "Content-Type: application/json"
_LONG = 20_000
_NONCE = re.compile(rb"(?s).{8}(?=\x01\0\0\0\x08\0\0\0stream:)")  # of a stream's claim, where a plan has it


class Answer(NamedTuple):
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def frame(columns: dict[str, Any], *payloads: bytes) -> bytes:
    """A batch in few bytes: u32 length of the head, head, payloads."""
    head = json.dumps({"sizes": list(map(len, payloads)), **columns}).encode()
    return struct.pack(">I", len(head)) + head + b"".join(payloads)


class Talk:
    """A client of one server, with one connection at a time, and its transcript."""

    def __init__(self, port: int, time: Time, normaliser: Normaliser, secrets: dict[str, str]) -> None:
        self.secrets = secrets  # by role
        self._port = port
        self._time = time
        self._normaliser = normaliser
        self._socket: socket.socket | None = None
        self._received = b""
        self._lines: list[str] = []
        self.bearer: str | None = None

    def about(self, text: str) -> None:
        """Write a heading."""
        self._lines += ["", f"# {text}"]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._time.advance(seconds)
        self._lines += ["", f"# {seconds:g} seconds pass"]

    def __call__(self, method: str, target: str, body: bytes | str | None = None, *headers: str) -> Answer:
        """Send a request; a body that is a str is JSON, unless a header has another type."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
        if self.bearer is not None:
            lines.append(f"Authorization: Bearer {self.bearer}")
        if isinstance(body, str):
            lines += [] if any(each.startswith("Content-Type") for each in headers) else [JSON]
            body = body.encode()
        lines += headers
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))

    def raw(self, request: bytes, answers: int = 1) -> Answer:
        """Send bytes and receive so many answers; returns the last one."""
        self._lines.append("")
        self._write_down(">", request)
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.sendall(request)
        for _ in range(answers):
            answer = self._receive(request.startswith(b"HEAD"))
        return answer

    def status(self, method: str, target: str, body: str | None = None) -> int:
        """The status of a request that is left out of the transcript."""
        kept = len(self._lines)
        answer = self(method, target, body)
        del self._lines[kept:]
        return answer.status

    def note(self, line: str) -> None:
        self._lines.append(line)

    def text(self) -> str:
        """The transcript."""
        return self._normaliser("\n".join(self._lines).lstrip("\n") + "\n")

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def _receive(self, is_head: bool) -> Answer:
        while b"\r\n\r\n" not in self._received:
            assert self._more(), f"the server has gone after {self._received!r}"
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = 0 if is_head else int(headers.get("content-length", "0"))
        while len(self._received) < length:
            assert self._more()
        closes = headers.get("connection") == "close"
        while closes and self._more():
            pass
        length = len(self._received) if closes else length
        body, self._received = self._received[:length], self._received[length:]
        self._write_down("<", head + b"\r\n\r\n" + body)
        if closes:
            self._lines.append("(the server closes the connection)")
            self.close()
        return Answer(int(first.split()[1]), headers, body)

    def _more(self) -> bool:
        assert self._socket is not None
        data = self._socket.recv(1 << 20)
        self._received += data
        return bool(data)

    def _write_down(self, mark: str, sent: bytes) -> None:
        self._lines += [f"{mark} {line}" if line else mark for line in written_down(sent)]


def written_down(sent: bytes) -> list[str]:
    """The lines of a request or an answer in a transcript."""
    head, end, body = sent.partition(b"\r\n\r\n")
    body = _NONCE.sub(b"<nonce->", body)
    lines = [_visible(line) for line in head.split(b"\r\n")] + ([""] if end else [])
    if not body:
        return lines
    if any(line == FRAME for line in lines) and (shown := _frame(body)) is not None:
        return lines + shown
    if len(body) > _LONG:
        return lines + [f"({_visible(body[:20])}..., {len(body)} bytes)"]
    return lines + [_visible(line) for line in body.split(b"\n")]


def _frame(body: bytes) -> list[str] | None:
    try:
        start = 4 + struct.unpack_from(">I", body)[0]
        sizes = json.loads(body[4:start])["sizes"]
    except (struct.error, ValueError, LookupError, TypeError):
        return None
    lines = [f"frame {body[:4].hex()} {_visible(body[4:start])}"]
    for size in sizes:
        lines.append(f"  {body[start : start + size].hex(' ')}")
        start += size
    return [*lines, f"  and {body[start:].hex(' ')}"] if body[start:] else lines


def _visible(line: bytes) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text = line.decode("latin-1")
        return "".join(each if " " <= each <= "~" else f"\\x{ord(each):02x}" for each in text)
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)
