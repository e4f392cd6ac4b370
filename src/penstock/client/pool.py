"""Connections that are kept for the next request. Threads may share a pool; processes do not."""

import os
from collections import deque
from contextlib import suppress
from time import monotonic

from penstock.client.address import Address
from penstock.client.answers import Answer
from penstock.client.connection import Connection
from penstock.errors import StoreClosed

MAX_IDLE = 100  # connections that are kept
MAX_IDLE_SECONDS = 30.0  # for how long; a server may close older ones at any moment


class Pool:
    """As many connections as there are threads that ask at the same time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[Connection] = deque()  # the last used one is at the right
        self._busy: set[Connection] = set()
        self._pid = os.getpid()
        self._closed = False

    def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request; a Failure if there is none, StoreClosed if the pool is closed meanwhile."""
        connection = self._take()
        self._busy.add(connection)
        keep = False
        try:
            self.check_open()  # here, as close() ends only what is busy
            answer = connection.ask(request, seconds)
            keep = answer.keep_alive and len(self._idle) < MAX_IDLE
        finally:
            self._busy.discard(connection)
            if keep:
                self._idle.append(connection)
            else:
                connection.close()
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
        for connection in list(self._busy):
            connection.interrupt()
        self._drop_idle()

    def _take(self) -> Connection:
        if self._pid != os.getpid():
            self._forget()
        latest = monotonic() - MAX_IDLE_SECONDS
        try:
            while self._idle[0].last_used < latest:
                self._idle.popleft().close()
            while True:
                connection = self._idle.pop()
                if not connection.is_stale():
                    return connection
                connection.close()
        except IndexError:  # there is none, or another thread was faster
            pass
        self.check_open()
        return Connection(self._address)

    def _forget(self) -> None:
        """After a fork: the connections are the parent's, which goes on with them."""
        for connection in (*self._idle, *self._busy):
            connection.close()  # our copy of the descriptor only
        self._idle, self._busy, self._pid = deque(), set(), os.getpid()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # until there is none
            while True:
                self._idle.pop().close()
