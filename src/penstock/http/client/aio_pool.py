"""Connections that are kept for the next request, in one event loop."""

import asyncio
from collections import deque

from penstock.errors import StoreClosed
from penstock.http.client.address import Address
from penstock.http.client.aio_connection import Connection, connect
from penstock.http.client.answers import Answer
from penstock.http.client.pool import MAX_IDLE, MAX_IDLE_SECONDS


class Pool:
    """As many connections as there are coroutines that ask at the same time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Connection] = deque()  # the last used one is at the right
        self._busy: set[Connection] = set()
        self._closed = False

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer to a request; a Failure if there is none, StoreClosed if the pool is closed meanwhile."""
        connection = self._take_idle() or await connect(self._address)
        self._busy.add(connection)
        keep = False
        try:
            self.check_open()  # here, as close() ends only what is busy
            answer = await connection.ask(request, seconds)
            keep = answer.keep_alive and len(self._idle) < MAX_IDLE and not self._closed
        finally:
            self._busy.discard(connection)
            if keep:
                self._idle.append(connection)
            else:
                connection.end()
        return answer

    def check_open(self) -> None:
        """StoreClosed if the pool was closed."""
        if self._closed:
            raise StoreClosed(
                f"the store {self._address.url!r} was closed: open it again with penstock.aio.open()"
            )

    async def close(self) -> None:
        """End every connection; who waits for an answer is woken."""
        self._closed = True
        ending = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in ending:
            connection.end()
        for connection in ending:
            await connection.ended()

    def _take_idle(self) -> Connection | None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"the store {self._address.url!r} belongs to another event loop: open it in the one that uses it"
            )
        self.check_open()
        latest = self._loop.time() - MAX_IDLE_SECONDS
        while self._idle and self._idle[0].last_used < latest:
            self._idle.popleft().end()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_stale():
                return connection
            connection.end()
        return None
