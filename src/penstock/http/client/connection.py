"""Connections to a server and their pool, for threads; the pool's base, which coroutines use too.

A forked process opens its own connections.
"""

import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.http.client.address import Address
from penstock.http.client.calls import Answer, AnswerReader
from penstock.http.client.failures import Failure, Lost, NotSent, TimedOut, lost, not_sent, reason

if TYPE_CHECKING:
    from ssl import SSLSocket

CONNECT_TIMEOUT = 5.0
MAX_IDLE = 100  # connections kept between requests
MAX_IDLE_SECONDS = 30.0  # an older connection may be closed by the server at any moment
_LAST_WORDS = 1.0  # seconds for the answer of a server that stops reading in the middle of a request
_SOME, _MUCH = 16_384, 262_144  # bytes of the first read of an answer, and of the next ones


class Kept(Protocol):
    """A connection in a pool."""

    last_used: float

    def is_stale(self) -> object:
        """Whether the server has closed it, or has sent bytes that nobody asked for."""

    def close(self) -> None:
        """Close at once."""


AnyConnection = TypeVar("AnyConnection", bound=Kept)


class AnyPool(Generic[AnyConnection]):
    """Idle connections for reuse. There are as many as threads, or coroutines, that ask at the same time."""

    def __init__(self, address: Address, closed: Callable[[], Exception]) -> None:
        self._address = address
        self._error = closed
        self._idle: deque[AnyConnection] = deque()  # the most recently used is at the right
        self._all: set[AnyConnection] = set()
        self._closed = False

    def check_open(self) -> None:
        """Raise StoreClosed if the pool was closed."""
        if self._closed:
            raise self._error()

    def _kept(self, now: float) -> AnyConnection | None:
        """An idle connection that still works; closes those that are stale or too old."""
        latest = now - MAX_IDLE_SECONDS
        try:
            while self._idle[0].last_used < latest:
                self._drop(self._idle.popleft())
            while True:
                connection = self._idle.pop()
                if not connection.is_stale():
                    return connection
                self._drop(connection)
        except IndexError:  # none is idle, or another thread took it
            return None

    def _keep(self, connection: AnyConnection, answer: Answer) -> None:
        """Return a connection to the pool, unless that is full or the server ends the connection."""
        if answer.keep_alive and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            self._drop(connection)
        if self._closed:
            self._drop_idle()

    def _drop(self, connection: AnyConnection) -> None:
        self._all.discard(connection)
        connection.close()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # none is left, or another thread took it
            while True:
                self._drop(self._idle.pop())


def connect(address: Address) -> "socket.socket | SSLSocket":
    """A socket connected to the server; OSError."""
    if address.share is not None:
        from penstock.system import socket_path as place

        return place.connect(address.share, CONNECT_TIMEOUT)
    connected = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is not None:
            return address.tls.wrap_socket(connected, server_hostname=address.host)
    except BaseException:
        connected.close()
        raise
    return connected


class Connection:
    """Sends one request at a time and reads its answer. After a failure the caller closes it."""

    def __init__(self, address: Address) -> None:
        try:
            self._socket = connect(address)
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host name that is too long
            raise not_sent(error, address.share is not None) from None
        self._encrypted = address.tls is not None
        self._reader = AnswerReader()
        self._socket.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        # Never of a Unix socket: a send to one tells at once whether the other end has gone.
        self.is_stale = bool if address.share is not None else partial(self._readable.poll, 0)
        self.last_used = monotonic()

    def ask(self, request: bytes, seconds: float) -> Answer:
        """Send a request and return its answer; Failure, TimedOut after so many seconds."""
        deadline = monotonic() + seconds
        try:
            sent = self._socket.send(request)
        except OSError:
            sent = 0
        if sent == len(request) or self._send(memoryview(request)[sent:], deadline):
            answer = self._receive(deadline)
        else:  # the server stopped reading, and may have said why
            try:
                answer = self._receive(min(deadline, monotonic() + _LAST_WORDS))._replace(keep_alive=False)
            except Failure as failure:
                raise NotSent(str(failure)) from None
        self.last_used = monotonic()
        return answer

    def interrupt(self) -> None:
        """End the connection under a thread that waits for an answer; called by another thread."""
        with suppress(OSError):  # it has already ended
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of SSLSocket is not thread-safe

    def close(self) -> None:
        self._socket.close()

    def _send(self, rest: memoryview, deadline: float) -> bool:
        """Whether the server took the rest of a request in time."""
        # An answer before all is sent is a refusal. Under TLS, incoming bytes may be the protocol's own.
        answered = 0 if self._encrypted else select.POLLIN
        while True:
            try:
                rest = rest[self._socket.send(rest) :]
                if not rest:
                    return True
            except OSError as error:
                events = _awaited(error, select.POLLOUT)
                if not events or not self._wait(events | answered, deadline) & events:
                    return False

    def _receive(self, deadline: float) -> Answer:
        size, begun = _SOME, False
        # Under TLS, decrypted bytes may wait in the socket object, where poll does not see them.
        if not self._encrypted and not self._readable.poll(max(deadline - monotonic(), 0) * 1000):
            raise TimedOut
        while True:
            try:
                data = self._socket.recv(size)
            except OSError as error:
                events = _awaited(error, select.POLLIN)
                if not events:
                    raise Lost(reason(error)) from None
                if not self._wait(events, deadline):
                    raise TimedOut from None
                continue
            if not data:
                raise lost(begun)
            answer = self._reader.feed(data)
            if answer is not None:
                return answer
            begun, size = True, _MUCH

    def _wait(self, events: int, deadline: float) -> int:
        """The events that occurred before the deadline; 0 if none did."""
        poll = self._readable
        if events != select.POLLIN:
            poll = select.poll()
            poll.register(self._socket, events)
        ready = poll.poll(max(deadline - monotonic(), 0) * 1000)
        return ready[0][1] if ready else 0


def _awaited(error: OSError, usual: int) -> int:
    """The poll event after which a send or recv may succeed; 0 if the connection is broken."""
    if isinstance(error, BlockingIOError):
        return usual
    kind = type(error).__name__  # by name: ssl need not be loaded
    return {"SSLWantReadError": select.POLLIN, "SSLWantWriteError": select.POLLOUT}.get(kind, 0)


class Pool(AnyPool[Connection]):
    """The connections that the threads of a process share."""

    def __init__(self, address: Address, closed: Callable[[], Exception]) -> None:
        super().__init__(address, closed)
        self._pid = os.getpid()

    def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request; Failure if there is none."""
        if self._pid != os.getpid():
            self._forget_the_parents()
        connection = self._kept(monotonic()) or self._new()
        try:
            answer = connection.ask(request, seconds)
        except BaseException:
            self._drop(connection)
            raise
        self._keep(connection, answer)
        return answer

    def close(self) -> None:
        """End every connection; threads that wait for an answer get StoreClosed."""
        self._closed = True
        if self._pid != os.getpid():
            self._forget_the_parents()
        for connection in list(self._all):
            connection.interrupt()
        self._drop_idle()

    def _new(self) -> Connection:
        self.check_open()
        connection = Connection(self._address)
        self._all.add(connection)
        if self._closed:  # close() may not have seen it
            self._drop(connection)
            self.check_open()
        return connection

    def _forget_the_parents(self) -> None:
        """After a fork: leave the connections to the parent process, which still uses them."""
        for connection in self._all:
            connection.close()  # only this process's copy of the descriptor
        self._idle, self._all, self._pid = deque(), set(), os.getpid()
