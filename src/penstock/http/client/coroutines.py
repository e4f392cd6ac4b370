"""A store that is somewhere else, for coroutines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from penstock.contract.message import Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import Claim, Lookup, Messages, Peek, Pop
from penstock.http.client import address
from penstock.http.client.aio_pool import Pool
from penstock.http.client.backend import checked_timeout
from penstock.http.client.calls import Call, call_of
from penstock.http.client.failures import TRIES, Failure, Patience, Turns
from penstock.system.clock import Clock, SystemClock, pause

Result = TypeVar("Result")


class RemoteBackend:
    """Asks a server to keep queues. What fails on the way is tried again for a while, where that does no harm."""

    def __init__(
        self,
        url: str,
        timeout: float | None = None,
        clock: Clock | None = None,
        token: str | None = None,
        ca: str | None = None,
    ) -> None:
        self._address = address.parse(url, token, ca)
        self._timeout = checked_timeout(timeout)
        self._clock = clock or SystemClock()
        self._pool = Pool(self._address)
        self._closing = asyncio.Event()

    async def connect(self) -> None:
        """Find out whether the server is there, at once."""
        await self._ask(call_of(Lookup(DEFAULT)), tries=1)

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        """Have an operation carried out."""
        if operation.http.polls and operation.wait > 0:
            return self._taken(operation)  # type: ignore[arg-type]
        return self._ask(call_of(operation))

    async def _taken(self, operation: Claim | Pop) -> Any:
        """What a consumer gets, in several turns if it waits for long."""
        turns = Turns(operation.wait, self._clock)
        while True:
            taken = await self._ask(call_of(replace(operation, wait=turns.next())))
            if taken or turns.over():
                return taken

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        """Have messages listed, page by page."""
        left: Any = operation
        while left is not None and (page := list(await self._ask(call_of(left)))):
            for message in page:
                yield message
            left = left.rest(len(page), page[-1])

    async def close(self) -> None:
        """Leave the server alone; who waits gets StoreClosed."""
        self._closing.set()
        await self._pool.close()

    async def _ask(self, call: Call[Result], tries: int = TRIES) -> Result:
        request = call.request(self._address.authority, self._address.credentials)
        patience: Patience | None = None
        while True:
            try:
                return call.result(await self._pool.ask(request, self._timeout + call.wait))
            except Failure as failure:
                self._pool.check_open()
                if patience is None:
                    patience = Patience(self._address.url, call.name, call.repeatable, self._clock, tries)
                seconds = patience.pause(failure)
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            self._pool.check_open()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause(self._clock, left))


async def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteBackend:
    """The backend of the store of a server that is there; StoreUnreachable if it is not."""
    backend = RemoteBackend(url, timeout, clock, token, ca)
    try:
        await backend.connect()
    except BaseException:
        await backend.close()
        raise
    return backend
