"""Connections that are kept for the next request. Threads may share a pool; processes do not."""

import os
from collections import deque
from contextlib import suppress
from time import monotonic

from penstock.errors import StoreClosed
from penstock.http.client.address import Address
from penstock.http.client.answers import Answer
from penstock.http.client.connection import Connection

MAX_IDLE = 100  # connections that are kept
MAX_IDLE_SECONDS = 30.0  # for how long; a server may close older ones at any moment


class Pool:
    """As many connections as there are threads that ask at the same time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[Connection] = deque()  # the last used one is at the right
        self._all: set[Connection] = set()
        self._pid = os.getpid()
        self._closed = False

    def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request; a Failure if there is none, StoreClosed if the pool is closed."""
        connection = self._take()
        try:
            answer = connection.ask(request, seconds)
        except BaseException:
            self._drop(connection)
            raise
        if answer.keep_alive and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            self._drop(connection)
        if self._closed:
            self._drop_idle()
        return answer

    def check_open(self) -> None:
        """StoreClosed if the pool was closed."""
        if self._closed:
            raise StoreClosed(f"the store {self._address.url!r} was closed: open it again with penstock.open()")

    def close(self) -> None:
        """End every connection; threads that wait for an answer are woken."""
        self._closed = True
        self._forget_the_parents()
        for connection in list(self._all):
            connection.interrupt()
        self._drop_idle()

    def _take(self) -> Connection:
        self._forget_the_parents()
        latest = monotonic() - MAX_IDLE_SECONDS
        try:
            while self._idle[0].last_used < latest:
                self._drop(self._idle.popleft())
            while True:
                connection = self._idle.pop()
                if not connection.is_stale():
                    return connection
                self._drop(connection)
        except IndexError:  # there is none, or another thread was faster
            return self._new()

    def _new(self) -> Connection:
        self.check_open()
        connection = Connection(self._address)
        self._all.add(connection)
        if self._closed:  # close() may have missed it
            self._drop(connection)
            self.check_open()
        return connection

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    def _forget_the_parents(self) -> None:
        """After a fork: the connections are the parent's, which goes on with them."""
        if self._pid != os.getpid():
            for connection in self._all:
                connection.close()  # our copy of the descriptor only
            self._idle, self._all, self._pid = deque(), set(), os.getpid()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # until there is none
            while True:
                self._drop(self._idle.pop())
