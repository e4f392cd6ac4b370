"""Connections that are kept for the next request: which of them is used again, and for how long."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from penstock.http.client.address import Address
from penstock.http.client.calls import Answer

CONNECT_TIMEOUT = 5.0
MAX_IDLE = 100  # connections that are kept
MAX_IDLE_SECONDS = 30.0  # for how long; a server may close older ones at any moment


class Kept(Protocol):
    """A connection."""

    last_used: float

    def is_stale(self) -> bool:
        """Whether the server has closed it, or said something out of turn."""

    def close(self) -> None:
        """Close at once."""


AnyConnection = TypeVar("AnyConnection", bound=Kept)


class Pool(Generic[AnyConnection]):
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
