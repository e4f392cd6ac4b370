"""A server's answers: bytes in, one answer at a time out. Nothing here reads or waits."""

import re
from typing import NamedTuple

import httptools

from penstock.http.client.failures import Garbage

MAX_HEAD = 65_536
# What a server of ours says to a put, which is what most are about: known at a glance.
_ADDED = re.compile(
    rb"HTTP/1\.1 201 Created\r\nDate: [ -~]+\r\nX-Message-Id: ([!-~]+)\r\nContent-Length: 0\r\n\r\n"
)


class Answer(NamedTuple):
    """A whole answer; header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool


class AnswerReader:
    """Puts the answers of one connection together."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._head_size = 0
        self._in_head = True
        self._answer: Answer | None = None
        self._superfluous = False

    def feed(self, data: bytes) -> Answer | None:
        """The answer, once all of it is there; Garbage if it is none, or more than one."""
        if self._in_head:
            if not self._head_size and (added := _ADDED.fullmatch(data)):
                return Answer(201, {b"x-message-id": added[1]}, b"", True)
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise Garbage(f"it does not speak HTTP/1.1 ({error or type(error).__name__})") from None
        if self._in_head and self._head_size > MAX_HEAD:
            raise Garbage("its answer has endless headers")
        if self._superfluous:
            raise Garbage("it answers more than it was asked")
        answer, self._answer = self._answer, None
        return answer

    # What httptools calls

    def on_message_begin(self) -> None:
        """Another answer."""
        self._superfluous = self._answer is not None

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Only the body is still to come."""
        self._in_head = False

    def on_body(self, chunk: bytes) -> None:
        """A part of the body."""
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """All is there, unless it only says that an answer is to come (1xx)."""
        status = self._parser.get_status_code()
        if status >= 200:
            body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._answer = Answer(status, self._headers, body, self._parser.should_keep_alive())
        self._headers, self._chunks, self._head_size, self._in_head = {}, [], 0, True
