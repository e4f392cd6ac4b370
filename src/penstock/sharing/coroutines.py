"""A store that many processes have open, for coroutines: as sharing/backend.py, without blocking."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from penstock.contract.kinds import Options
from penstock.contract.loads import TooManyLoads
from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import PAGE, Messages, Peek
from penstock.engine.coroutines import LocalBackend
from penstock.errors import StoreClosed, StoreUnreachable
from penstock.http.client.calls import call_of
from penstock.http.client.coroutines import RemoteBackend
from penstock.http.client.failures import Refused
from penstock.sharing.guest import Gone, Guest
from penstock.sharing.host import SETTLED, prepare
from penstock.sharing.ownership import (
    LONGEST_PAUSE,
    PATIENCE,
    PAUSE,
    Folder,
    Owner,
    become_owner,
    folder_for,
    locked,
)

Result = TypeVar("Result")


class GuestBackend(Guest, RemoteBackend):
    """Asks the owner, once."""

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        """Have an operation carried out by the owner."""
        return self._loaded(operation) if operation.part == "uploads" else super().run(operation)

    async def page(self, operation: Peek | Messages) -> list[Message]:
        """What the owner lists at once: messages, so all of their fields."""
        asked: Any = replace(operation, fields=MESSAGE_FIELDS) if isinstance(operation, Messages) else operation
        return list(await self.ask(call_of(asked)))

    async def _loaded(self, operation: Operation[Result]) -> Result:
        """What becomes of a load; an owner that has too many says so, and is not asked again."""
        try:
            return await super().run(operation)
        except Gone as gone:
            if isinstance(gone.failure, Refused) and not gone.failure.done:
                raise TooManyLoads(str(gone.failure).removesuffix(" (Overloaded)")) from None
            raise


Held: TypeAlias = LocalBackend | GuestBackend


class SharedBackend:
    """Keeps queues of a folder that other processes may have open, too."""

    def __init__(self, folder: Folder, timeout: float | None) -> None:
        self._folder = folder
        self._patience = PATIENCE if timeout is None else timeout
        self._loop = asyncio.get_running_loop()
        self._moving = asyncio.Lock()
        self._closed = False
        self._owner: Owner | None = None
        self._preparing: asyncio.TimerHandle | None = None
        self._backend: Held = GuestBackend(folder.path, folder.share, timeout, folder.clock)

    async def open(self) -> None:
        """Own the store, or find who does."""
        guest = self._backend
        try:
            owner = await self._become_owner()
            if owner is not None:
                await self._take_over(guest, owner)
            else:
                await self._find_owner(guest, self._loop.time() + self._patience)
                self._preparing = self._loop.call_later(SETTLED, self._prepare)
        except (Gone, StoreUnreachable) as error:
            await self.close()
            raise locked(self._folder.path, error) from error
        except BaseException:
            await self.close()
            raise

    def _prepare(self) -> None:
        self._loop.run_in_executor(None, prepare)

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        """Carry out an operation, or have it carried out by the owner."""
        if operation.http.polls and operation.wait > 0:
            left = self._left(operation.wait)
            polling: Any = operation
            return self._run(lambda backend: backend.run(replace(polling, wait=left())))
        return self._run(lambda backend: backend.run(operation))

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        """List messages page by page: whoever has the store then goes on with it if its owner goes."""
        left: Peek | Messages | None = operation
        while left is not None and (page := await self._run(partial(_page, left))):
            for message in page:
                yield message
            left = left.rest(len(page), page[-1])

    async def close(self) -> None:
        """Let go of the store; if this process owns it, the next may have it."""
        self._closed = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self._owner is None:
            await self._backend.close()
        async with self._moving:
            owner, self._owner = self._owner, None
            if owner is not None:
                await asyncio.get_running_loop().run_in_executor(None, owner.close)
                await self._backend.close()

    def _left(self, wait: float) -> Callable[[], float]:
        """How much of a wait is left."""
        clock = self._folder.clock
        end = clock.monotonic() + wait
        return lambda: max(end - clock.monotonic(), 0.0)

    async def _run(self, operate: Callable[[Held], Awaitable[Result]]) -> Result:
        left = self._backend
        try:
            return await operate(left)
        except Gone as failed:
            gone = failed
        maybe_done, pause = False, PAUSE
        deadline = self._loop.time() + self._patience
        while True:
            maybe_done |= gone.failure.done
            try:
                if isinstance(left, GuestBackend):
                    await self._find_owner(left, deadline)
                left = self._backend
                return await operate(left)
            except Gone as again:
                self._check_open()
                gone = again
            if self._loop.time() > deadline:
                raise gone.error(self._folder.path, maybe_done) from gone.failure
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _find_owner(self, left: Held, deadline: float) -> None:
        """Return once there is someone to ask, be it this process; Gone if nobody answers in time."""
        async with self._moving:
            while self._backend is left and isinstance(left, GuestBackend):
                self._check_open()
                try:
                    await left.connect()
                    return
                except Gone as gone:
                    owner = await self._become_owner()
                    if owner is not None:
                        await self._take_over(left, owner)
                        return
                    if self._loop.time() > deadline:
                        raise gone from None
                await asyncio.sleep(PAUSE)

    async def _become_owner(self) -> Owner | None:
        """Opens in a thread, as there may be much to read."""
        opened = asyncio.get_running_loop().run_in_executor(None, become_owner, self._folder)
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_close)  # else nobody would
            raise

    async def _take_over(self, left: Held, owner: Owner) -> None:
        self._owner, self._backend = owner, LocalBackend(owner.backend)
        await left.close()  # whom it asked has ended; who still waits for an answer is told

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(
                f"the store {self._folder.path!r} was closed: open it again with penstock.aio.open()"
            )


async def _page(operation: Peek | Messages, backend: Held) -> list[Message]:
    """The first of many messages."""
    if isinstance(backend, GuestBackend):
        return await backend.page(operation)
    page = []
    async for message in backend.listed(operation.within_limits()):
        page.append(message)
        if len(page) == PAGE:
            break
    return page


def _close(opened: "asyncio.Future[Owner | None]") -> None:
    if not opened.cancelled() and opened.exception() is None and (owner := opened.result()) is not None:
        owner.close()


async def open_shared(url: str, options: Options) -> SharedBackend:
    """Open a store that one process owns, whether or not another process has it open."""
    backend = SharedBackend(folder_for(url, options), options.timeout)
    await backend.open()
    return backend
