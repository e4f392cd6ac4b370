"""Connections to a server: which are kept for the next request, and those of threads. Processes share none."""

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
MAX_IDLE = 100  # connections that are kept
MAX_IDLE_SECONDS = 30.0  # for how long; a server may close older ones at any moment
_LAST_WORDS = 1.0  # seconds in which a server that takes no more may still say why
_SOME, _MUCH = 16_384, 262_144  # bytes to read at first, and once there is more


class Kept(Protocol):
    """A connection."""

    last_used: float

    def is_stale(self) -> object:
        """Whether the server has closed it, or said something out of turn."""

    def close(self) -> None:
        """Close at once."""


AnyConnection = TypeVar("AnyConnection", bound=Kept)


class AnyPool(Generic[AnyConnection]):
    """As many connections as there are threads, or coroutines, that ask at the same time."""

    def __init__(self, address: Address, closed: Callable[[], Exception]) -> None:
        self._address = address
        self._error = closed
        self._idle: deque[AnyConnection] = deque()  # the last used one is at the right
        self._all: set[AnyConnection] = set()
        self._closed = False

    def check_open(self) -> None:
        """Raise the error of a store that was closed, if the pool was."""
        if self._closed:
            raise self._error()

    def _kept(self, now: float) -> AnyConnection | None:
        """A connection that can be used again; those that cannot are closed."""
        latest = now - MAX_IDLE_SECONDS
        try:
            while self._idle[0].last_used < latest:
                self._drop(self._idle.popleft())
            while True:
                connection = self._idle.pop()
                if not connection.is_stale():
                    return connection
                self._drop(connection)
        except IndexError:  # there is none, or another thread was faster
            return None

    def _keep(self, connection: AnyConnection, answer: Answer) -> None:
        """Keep a connection, if there is room and the server agrees."""
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
        with suppress(IndexError):  # until there is none
            while True:
                self._drop(self._idle.pop())


def connect(address: Address) -> "socket.socket | SSLSocket":
    """A socket that is connected to the server; OSError."""
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
    """Asks, and reads the answer. After any failure it must be closed."""

    def __init__(self, address: Address) -> None:
        try:
            self._socket = connect(address)
        except (OSError, UnicodeError) as error:  # neither is a name that cannot be one
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
        """The answer to a request, if it comes within so many seconds."""
        deadline = monotonic() + seconds
        try:
            sent = self._socket.send(request)
        except OSError:
            sent = 0
        if sent == len(request) or self._send(memoryview(request)[sent:], deadline):
            answer = self._receive(deadline)
        else:  # a server that takes no more may have said why
            try:
                answer = self._receive(min(deadline, monotonic() + _LAST_WORDS))._replace(keep_alive=False)
            except Failure as failure:
                raise NotSent(str(failure)) from None
        self.last_used = monotonic()
        return answer

    def interrupt(self) -> None:
        """Let the thread that waits here find that the connection has ended; called by another one."""
        with suppress(OSError):  # it has ended already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not that of ssl, which is not for two threads

    def close(self) -> None:
        self._socket.close()

    def _send(self, rest: memoryview, deadline: float) -> bool:
        """Whether the server took all of it."""
        # An answer before all is sent is a refusal. With TLS it cannot be told from the protocol's own messages.
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
        # Of TLS, something may be there that no poll sees.
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
        """What has come of these events until then."""
        poll = self._readable
        if events != select.POLLIN:
            poll = select.poll()
            poll.register(self._socket, events)
        ready = poll.poll(max(deadline - monotonic(), 0) * 1000)
        return ready[0][1] if ready else 0


def _awaited(error: OSError, usual: int) -> int:
    """What to wait for before trying again; 0 if that is of no use."""
    if isinstance(error, BlockingIOError):
        return usual
    kind = type(error).__name__  # of ssl, which need not be loaded
    return {"SSLWantReadError": select.POLLIN, "SSLWantWriteError": select.POLLOUT}.get(kind, 0)


class Pool(AnyPool[Connection]):
    """The connections of threads."""

    def __init__(self, address: Address, closed: Callable[[], Exception]) -> None:
        super().__init__(address, closed)
        self._pid = os.getpid()

    def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request; a Failure if there is none."""
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
        """End every connection; threads that wait for an answer are woken."""
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
        if self._closed:  # close() may have missed it
            self._drop(connection)
            self.check_open()
        return connection

    def _forget_the_parents(self) -> None:
        """After a fork: the connections are the parent's, which goes on with them."""
        for connection in self._all:
            connection.close()  # our copy of the descriptor only
        self._idle, self._all, self._pid = deque(), set(), os.getpid()
