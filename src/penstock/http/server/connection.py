"""A connection of the server: parses requests, runs their handlers one after the other, writes the answers.

No client can do harm: headers and bodies are capped before they are kept, a request must arrive in time, its
answer must be read in time, and bytes that are no HTTP are answered with 400 and the end of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

from penstock.http.server import logs
from penstock.http.server.access import Caller
from penstock.http.server.exchange import (
    FAILED,
    GOING,
    LONG,
    MAX_HEADERS,
    OVERLOADED,
    TOO_LONG,
    Answer,
    Head,
    Problem,
    Request,
    Route,
    about,
    as_bytes,
    named,
    of_error,
    of_head,
    refusal,
    too_large,
)
from penstock.http.server.routes import find

if TYPE_CHECKING:
    from penstock.http.server.server import Service

_MOST = 1_024  # heads in the cache; then it is cleared
_END = b"\r\n\r\n"
# A first line that any parser takes.
_FIRST_LINE = re.compile(rb"(GET|DELETE) (/[A-Za-z0-9\-._~%/?=&+:,@!$'()*;]*) HTTP/1\.1\r\n")
# Headers of requests that are not cached: the parser must find the end of a chunked body, 100 Continue must be
# sent, and a request's id and the time of a signature are never the same again.
_FOREIGN = frozenset({b"transfer-encoding", b"expect", b"x-request-id", b"x-amz-date"})

_PIPELINED = 16  # requests of a connection that may wait for their turn; then reading pauses
_UNREAD = 16_384  # unread bytes of answers at which a connection takes no further request
_PIECE = 262_144  # bytes written at a time: a TLS transport takes all that it is given before it pauses
_LINGER = 2.0  # seconds for a client that is still sending to read why it was refused
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_log = logging.getLogger("penstock.server")


class Known(NamedTuple):
    """A parsed head in the cache."""

    head: Head
    start: int  # of the body: the length of the head
    size: int  # of the whole request


class Lines(NamedTuple):
    """The parsed header lines of requests without a body, in the cache."""

    headers: dict[bytes, bytes]
    told: bool


def _is_of_browser(headers: dict[bytes, bytes]) -> bool:
    """Whether some routes may refuse a request for headers with which others take it (access.py)."""
    agent = headers.get(b"user-agent", b"")
    return b"origin" in headers or b"sec-fetch-site" in headers or agent.startswith(b"Mozilla/")


class Heads:
    """The cache of parsed heads of a server: clients send the same head again and again.

    An ack has another path each time, but the same header lines: looking these up is 10 microseconds quicker than
    parsing them.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._lines: dict[bytes, Lines] = {}

    def find(self, data: bytes) -> Known | None:
        """The cached head, if the bytes are exactly one request that begins with it."""
        known = self._known.get(data[: data.find(_END) + 4])
        return known if known is not None and known.size == len(data) else None

    def find_lines(self, data: bytes) -> tuple[bytes, bytes, Lines] | None:
        """Method, target and cached header lines, if the bytes are exactly one request with those and no body."""
        matched = _FIRST_LINE.match(data) if len(data) <= LONG else None
        lines = None if matched is None else self._lines.get(data[matched.end() :])
        return None if matched is None or lines is None else (matched[1], matched[2], lines)

    def learn(self, data: bytes, request: Request) -> None:
        """Cache the head of a request, if that request is all that is in the bytes."""
        start = data.find(_END) + 4
        headers = request.headers
        length = int(headers.get(b"content-length", b"0"))
        if (
            len(data) == start + length
            and start <= LONG
            and request.keep_alive
            and not request.route.discards
            and _FOREIGN.isdisjoint(headers)
        ):
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[data[:start]] = Known(request.head, start, len(data))
            matched = None if length or _is_of_browser(headers) else _FIRST_LINE.match(data)
            if matched is not None:
                if len(self._lines) >= _MOST:
                    self._lines.clear()
                self._lines[data[matched.end() :]] = Lines(headers, request.head.told)


class Connection(asyncio.Protocol):
    """A client's connection. httptools parses its bytes and calls back."""

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self.service = service
        self._parser = httptools.HttpRequestParser(self)
        self.peer = ""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._data = b""  # received bytes that begin with a request, while they are parsed
        self._fed = 0  # bytes since a head, or a part of a body, was complete
        self._head_size = 0
        self._arriving = False  # a part of a request has come
        self._told = False  # the head has X-Message headers
        self._declined = b""  # the head of a request that asked for an upgrade, without that header
        self._request: Request | None = None  # the one whose body is arriving
        self._body: bytes | bytearray = b""
        self._size = 0  # of the body so far
        self._refused: Answer | None = None  # the last answer of this connection
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None  # the one that is being carried out
        self._task: asyncio.Task[None] | None = None
        self._paused = False  # reading is
        self._clogged = False  # the client does not read: writing is paused
        self._unsent: deque[bytes] = deque()  # parts of answers that the transport has no room for yet
        self._sent = 0  # bytes of the first part that are written
        self._slow = False  # the unread bytes are counted in the service
        self._ending = False  # after the current answer
        self._lost = False
        self._caller = Caller()
        self._revoked: Problem | None = None  # the answer to a long poll whose token was revoked

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if not self.service.welcome(self):
            self._lost = True
            self.transport.write(as_bytes(refusal(OVERLOADED), keep_alive=False))
            self.transport.close()
            return
        self.transport.set_write_buffer_limits(_UNREAD)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self.service.idle.start(self)

    def data_received(self, data: bytes) -> None:
        if self._refused is not None or self._ending or self._lost:
            return  # the client still sends, and nothing of that counts
        if not self._arriving:
            known = self.service.heads.find(data)
            if known is not None:
                if self._repeat(known.head, data[known.start :]):
                    return
            elif (found := self.service.heads.find_lines(data)) is not None and self._resemble(*found):
                return
        self._data = b"" if self._arriving else data
        self._fed += len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._decline(data[upgrade.args[0] :])
            except httptools.HttpParserCallbackError as error:  # a bug in a callback below
                _log.error("a request failed", exc_info=error.__context__ or error, extra={"peer": self.peer})
                self._refuse(refusal(FAILED))
                break
            except httptools.HttpParserError as error:
                if self._refused is None and not self._ending:
                    reason = str(error) or type(error).__name__
                    if "url" in reason:
                        reason += ". A path is ASCII; other characters are percent-encoded, as in /%2Fvar"
                    self._refuse(refusal(Problem("BadRequest", f"this is no HTTP/1.1 request: {reason}")))
                break
        self._data = b""
        if self._refused is None and self._arriving:
            if not self._paused:
                self.service.arriving.start(self)
            if self._fed > MAX_HEADERS:
                self._refuse(refusal(TOO_LONG))

    def eof_received(self) -> bool:
        """The client sends no more. It may still read its answers; a client of a long poll has gone."""
        if self._current is None and not self._waiting:
            if self._arriving and self._refused is None:
                self._refuse(refusal(Problem("BadRequest", "the request ended before it was complete")))
            self._close()
            return bool(self._unsent)
        if self._current is not None and self._current.route.polls:
            if self._task is not None:
                self._task.cancel()
            self._close()
            return False
        self._ending = True
        answerable = len(list(takewhile(lambda request: not request.route.polls, self._waiting)))
        while len(self._waiting) > answerable:
            self._release(self._waiting.pop())
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone. A long poll is cancelled; a put that is being stored goes on."""
        self._lost = True
        self._drop_body()
        self._drop_waiting()
        self._unsent.clear()
        self.service.farewell(self)
        if self._current is not None and self._current.route.polls:
            if self._task is not None:
                self._task.cancel()
            self._release(self._current)  # a task that has not begun never runs its except clause

    def pause_writing(self) -> None:
        """The client does not read: count the bytes that wait for it, and start its deadline."""
        self._clogged = True
        if not self._slow:
            self._slow = True
            self.service.leaving.start(self)
            self.service.hold_back(self, self.transport.get_write_buffer_size() + sum(map(len, self._unsent)))

    def resume_writing(self) -> None:
        self._clogged = False
        self._send_on()
        if not self._clogged:
            self._slow = False
            self.service.leaving.stop(self)
            self.service.let_go(self)
            self._next()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._arriving = True
        self.service.idle.stop(self)

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is not None:
            return  # a trailer
        self._head_size += len(name) + len(value) + 4
        name = name.lower()
        if name in self._headers:
            value = self._headers[name] + b", " + value
        elif name.startswith(b"x-message-") or name == b"idempotency-key":
            self._told = True
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Find the route and check token, host and length, before any of the body is kept."""
        if self._refused is not None:
            return
        headers, self._headers = self._headers, {}
        size, self._head_size, self._fed = self._head_size, 0, 0
        if size > MAX_HEADERS:
            self._refuse(refusal(TOO_LONG))
            return
        method, http = self._parser.get_method(), self._parser.get_http_version()
        url, self._url = self._url, b""
        if self._parser.should_upgrade() and method != b"CONNECT":
            lines = [b"%b: %b\r\n" % header for header in headers.items() if header[0] != b"upgrade"]
            self._declined = b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, http.encode(), b"".join(lines))
            return
        route, arguments, query = self.find(method, url)
        service = self.service
        request = Request(Head(route, arguments, query, headers, self._told, method, url), self)
        self._told = False
        request.keep_alive = http == "1.1" and self._parser.should_keep_alive()
        self._request = request
        if service.access_log:
            request.begun = service.loop.time()
        problem = None
        if service.access is not None:
            problem = self._caller.problem(service.access, request)
        elif service.hosts is not None:
            problem = service.hosts.problem(request)
        if problem is not None:
            self._refuse(refusal(problem, request=request))
            return
        if route.is_payload:
            request.most = min(route.most, service.backend.max_payload(arguments[0]))
        problem = of_head(request, http)
        if problem is not None:
            self._refuse(refusal(problem, request=request))
        elif http == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue":
            self._send(_CONTINUE)

    def find(self, method: bytes, target: bytes) -> tuple[Route, tuple[str, ...], bytes]:
        """The route of a request; sharing overrides this."""
        return find(method, target)

    def on_body(self, chunk: bytes) -> None:
        request = self._request
        if self._refused is not None or request is None:
            return
        self._fed = 0
        self._size += len(chunk)
        self.service.buffered += len(chunk)
        if self._size > request.most:
            self._refuse(refusal(too_large(request), request=request))
        elif self.service.buffered > self.service.limits.buffered:
            self._refuse(refusal(OVERLOADED, request=request))
        elif not self._body and not request.route.discards:
            self._body = chunk  # mostly the whole body
        elif not request.route.discards:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # not a list: chunks may be tiny
            self._body += chunk

    def on_message_complete(self) -> None:
        request = self._request
        if self._refused is not None or request is None:
            return
        request.body = bytes(self._body)
        self._drop_body()
        self.service.buffered += len(request.body)
        self._arriving = False
        self.service.arriving.stop(self)
        if not request.keep_alive:
            self._ending = True
        self.service.heads.learn(self._data, request)
        self._data = b""  # the next request of these bytes does not begin them
        self._waiting.append(request)
        if len(self._waiting) > _PIPELINED and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._next()

    def _resemble(self, method: bytes, target: bytes, lines: Lines) -> bool:
        """Begin with a request whose header lines are cached; False if the parser has to decide about it."""
        route, arguments, query = self.find(method, target)
        if route.discards:
            return False
        return self._repeat(Head(route, arguments, query, lines.headers, lines.told, method, target), b"")

    def _repeat(self, head: Head, body: bytes) -> bool:
        """Begin with a request whose head is cached; False if the parser has to decide what to do with it."""
        service, request = self.service, Request(head, self, body)
        if (
            self._current is not None
            or self._clogged
            or service.buffered + len(body) > service.limits.buffered
            or (head.route.is_payload and len(body) > service.backend.max_payload(head.arguments[0]))
            or (service.access is not None and self._caller.problem(service.access, request) is not None)
        ):
            return False
        if service.access_log:
            request.begun = service.loop.time()
        service.buffered += len(body)
        service.idle.stop(self)
        self._begin(request)
        return True

    # Answering

    def _next(self) -> None:
        """Begin with the next request, unless one is being carried out or the client does not read."""
        if self._current is not None or self._clogged or self._lost:
            return
        if self._waiting:
            request = self._waiting.popleft()
            access = self.service.access
            if access is not None and (problem := self._caller.problem(access, request)) is not None:
                self._release(request)  # its token was revoked while it waited
                self._drop_waiting()
                self._refuse(refusal(problem, request=request))
                return
            if self._paused and not self._waiting:
                self._paused = False
                self.transport.resume_reading()
                if self._arriving:
                    self.service.arriving.start(self)
            self._begin(request)
        elif self._refused is not None:
            self._say_goodbye(self._refused)
        elif self._ending:
            self._close()
        elif not self._arriving:
            self.service.idle.start(self)

    def _begin(self, request: Request) -> None:
        self._current = request
        shortcut = request.route.shortcut
        try:
            if shortcut is None or not shortcut(self.service.backend, request):
                self._task = self.service.loop.create_task(self._handle(request))
        except Exception as error:
            # In the next turn of the loop, or many pipelined failures would nest until the stack overflows.
            self.service.loop.call_soon(self.fail, request, error)

    async def _handle(self, request: Request) -> None:
        try:
            if request.route.lists:
                async with self.service.listing:
                    answer = await request.route.handler(self.service.backend, request)
            else:
                answer = await request.route.handler(self.service.backend, request)
        except asyncio.CancelledError:
            if self._revoked is not None and not self._lost:
                answer = refusal(self._revoked, close=True, request=request)
            elif self.service.stopping and not self._lost:
                answer = refusal(GOING, close=True, request=request)
            else:
                self._release(request)
                self._current = self._task = None
                self._close()
                return
        except Exception as error:
            self.fail(request, error)
            return
        self.answer(request, answer)

    def fail(self, request: Request, error: BaseException) -> None:
        """Answer the current request with an error."""
        self.answer(request, of_error(error, request))

    def answer(self, request: Request, answer: Answer) -> None:
        """Answer the current request."""
        service, size, request.body = self.service, len(request.body), b""
        self._current = self._task = None
        try:
            service.answered(answer.status, size)
            if service.access_log:
                logs.access(request, answer)
            if self._lost:
                return
            if answer.status >= 400 or b"x-request-id" in request.headers:
                answer = named(request, answer)
            if answer.close or service.stopping or not request.keep_alive:
                self._ending = True
            keep_alive = not self._ending or bool(self._waiting)
            if request.head.method == b"HEAD":
                self._send(as_bytes(answer, keep_alive, without_body=True))
            elif len(answer.body) > _PIECE:  # large ones are not copied
                self._send(as_bytes(answer, keep_alive, without_body=True), answer.body, *answer.rest)
            else:
                self._send(as_bytes(answer, keep_alive), *answer.rest)
            self._next()
        except Exception:
            _log.exception("a request could not be answered", extra=about(request))
            self.transport.abort()

    def has_gone(self) -> bool:
        """Whether the client reads no more answers."""
        return self._lost or self.transport.is_closing()

    def end(self) -> None:
        """Finish the current request, drop those that wait, and close; a long poll is cancelled."""
        self._ending = True
        self._drop_waiting()
        if self._current is None:
            self._close()
        elif self._current.route.polls and self._task is not None:
            self._task.cancel()

    def check_caller(self) -> None:
        """End a long poll whose token was revoked."""
        request, access = self._current, self.service.access
        if request is None or access is None or self._task is None or not request.route.polls:
            return
        self._revoked = self._caller.problem(access, request)
        if self._revoked is not None:
            self._drop_waiting()
            self._task.cancel()

    def give_up(self) -> None:
        """End the connection: a deadline is over."""
        if self._clogged or self._refused is not None or self.transport.is_closing():
            self.transport.abort()
        elif self._arriving:
            self._refuse(refusal(Problem("RequestTimeout", "the request took too long to arrive")))
        else:
            self._close()  # it was idle

    def _refuse(self, answer: Answer) -> None:
        """Answer a refusal after the requests before it, and end the connection."""
        self.service.answers[answer.status] += 1
        if self._request is not None:
            answer = named(self._request, answer)
            if self.service.access_log:
                logs.access(self._request, answer)
        self._refused = answer
        self._drop_body()
        self.service.arriving.stop(self)
        self._next()

    def _send(self, data: bytes, *more: bytes) -> None:
        """Write as much as the client reads. The rest waits in `_unsent`, where it is counted."""
        if len(data) <= _PIECE and not more and not self._unsent:
            self.transport.write(data)
        else:
            self._unsent += (data, *more)
            self._send_on()

    def _send_on(self) -> None:
        while self._unsent and not self._clogged and not self._lost:
            data = self._unsent[0]
            self.transport.write(memoryview(data)[self._sent : self._sent + _PIECE])
            self._sent += _PIECE
            if self._sent >= len(data):
                self._unsent.popleft()
                self._sent = 0

    def _say_goodbye(self, answer: Answer) -> None:
        self._send(as_bytes(answer, keep_alive=False))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # Closing at once would reset the connection of a client that still sends, and it would lose the answer.
        self.service.loop.call_later(_LINGER, self._close)

    def _close(self) -> None:
        """Close, once the client has read its answers or its deadline is over."""
        if self._lost:
            return
        self._ending = True
        self.service.leaving.start(self)
        if not self._unsent:  # else _next() closes after the last part
            self.transport.close()

    def _decline(self, rest: bytes) -> bytes:
        """The bytes to parse instead of a request that asked for an upgrade: the parser has skipped its body."""
        if not self._declined:
            self._ending = True  # a CONNECT: it is answered or refused
            return b""
        head, self._declined = self._declined, b""
        self._parser = httptools.HttpRequestParser(self)
        return head + rest

    def _drop_body(self) -> None:
        self.service.buffered -= self._size
        self._size, self._body, self._request = 0, b"", None

    def _drop_waiting(self) -> None:
        while self._waiting:
            self._release(self._waiting.pop())

    def _release(self, request: Request) -> None:
        self.service.buffered -= len(request.body)
        request.body = b""
