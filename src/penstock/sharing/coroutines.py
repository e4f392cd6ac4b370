"""A store that many processes have open, for coroutines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from penstock.contract.backend import Histogram, Reading
from penstock.contract.kinds import Options
from penstock.contract.loads import LoadInfo, TooManyLoads
from penstock.contract.message import MESSAGE_FIELDS, STATES, Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import PAGE, AllFigures, Figures, Lookup, Messages, Peek
from penstock.contract.settings import MAX_PAYLOAD
from penstock.contract.streams import FollowerInfo
from penstock.engine.coroutines import COMMIT_RECORDS, COMMIT_SECONDS, LocalBackend
from penstock.http.client.calls import call_of
from penstock.http.client.coroutines import RemoteBackend
from penstock.http.client.failures import Refused
from penstock.sharing.backend import Gone, Guest, Shared
from penstock.sharing.ownership import SETTLED, Folder, Owner, become_owner, folder_for, prepare

Result = TypeVar("Result")


class GuestBackend(Guest, RemoteBackend):
    """A guest for coroutines."""

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        return self._loaded(operation) if operation.part == "uploads" else super().run(operation)

    async def page(self, operation: Peek | Messages) -> list[Message]:
        """One page of a listing, with all fields: the caller gets whole messages."""
        asked: Any = operation.changed(fields=MESSAGE_FIELDS) if isinstance(operation, Messages) else operation
        return list(await self.ask(call_of(asked)))

    async def _loaded(self, operation: Operation[Result]) -> Result:
        """An operation of a load. An owner with too many loads answers TooManyLoads, which is not repeated."""
        try:
            return await super().run(operation)
        except Gone as gone:
            if isinstance(gone.failure, Refused) and not gone.failure.done:
                raise TooManyLoads(str(gone.failure).removesuffix(" (Overloaded)")) from None
            raise


class SharedBackend(Shared):
    """A shared store for coroutines."""

    opener, guest_type = "penstock.aio.open()", GuestBackend

    def __init__(self, folder: Folder, timeout: float | None = None) -> None:
        super().__init__(folder, timeout)
        self._loop = asyncio.get_running_loop()
        self._moving = asyncio.Lock()
        self._preparing: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        if await self.enter():
            self._preparing = self._loop.call_later(SETTLED, self._loop.run_in_executor, None, prepare)

    def run(self, operation: Operation[Result]) -> Awaitable[Result]:
        return self._run(self.operating(operation))

    async def listed(self, operation: Peek | Messages) -> AsyncIterator[Message]:
        left: Peek | Messages | None = operation
        while left is not None and (page := await self._run(partial(_page, left))):
            for message in page:
                yield message
            left = left.rest(len(page), page[-1])

    async def close(self) -> None:
        self.is_closed = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self.owner is None and self._backend is not None:
            await self._backend.close()
        async with self._moving:
            owner, self.owner = self.owner, None
            if owner is not None:
                await self._loop.run_in_executor(None, owner.close)
                await self._backend.close()

    async def _run(self, operate: Callable[[Any], Awaitable[Result]]) -> Result:
        backend = self._backend
        try:
            return await operate(backend)
        except Gone as gone:
            return await self.again(operate, backend, gone)  # type: ignore[no-any-return]

    async def ask(self, call: Callable[[], Any]) -> Any:
        return await call()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def moving(self) -> AbstractAsyncContextManager[Any]:
        return self._moving

    async def become_owner(self) -> Owner | None:
        opened = self._loop.run_in_executor(None, become_owner, self.folder)
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_close)  # else the store would stay open
            raise

    def kept_by(self, owner: Owner) -> LocalBackend:
        return LocalBackend(owner.backend)


class ForwardingBackend(SharedBackend):
    """A shared store for a server: forwards to the owner until this process is the owner."""

    descriptors = 2  # of a request that waits: it waits at the owner, too
    commit_seconds, commit_records = Histogram(COMMIT_SECONDS), Histogram(COMMIT_RECORDS)  # its owner commits

    @property
    def failure(self) -> BaseException | None:
        return self._backend.failure if isinstance(self._backend, LocalBackend) else None

    def is_open(self) -> bool:
        return not self.is_closed and (isinstance(self._backend, GuestBackend) or self._backend.is_open())

    async def check(self) -> None:
        await self.run(Lookup(DEFAULT))

    def longest_commit(self) -> float:
        return self._backend.longest_commit() if isinstance(self._backend, LocalBackend) else 0.0

    def tend(self) -> "asyncio.Future[None]":
        if isinstance(self._backend, LocalBackend):
            return self._backend.tend()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def figures(self) -> list[Figures]:
        if isinstance(self._backend, LocalBackend):
            return await self._backend.figures()
        return await self.run(AllFigures())

    async def readings(self) -> Iterable[Reading]:
        if isinstance(self._backend, LocalBackend):
            return await self._backend.readings()
        return [reading_of(figures) for figures in await self.run(AllFigures())]

    async def waits(self, queues: Sequence[str]) -> dict[str, float]:
        if isinstance(self._backend, LocalBackend):
            return await self._backend.waits(queues)
        wanted = set(queues)
        figures = await self.run(AllFigures())
        return {each.queue: each.waiting_seconds for each in figures if each.queue in wanted}

    async def under_way(self) -> tuple[list[FollowerInfo], list[LoadInfo]]:
        return await self._backend.under_way() if isinstance(self._backend, LocalBackend) else ([], [])

    def max_payload(self, queue: str) -> int:
        return MAX_PAYLOAD

    async def detach(self) -> None:
        await self.close()


def reading_of(figures: Figures) -> Reading:
    """The reading that an owner's figures are."""
    events, counts = figures.events, figures.counts
    flows = (
        events.get("put", 0), events.get("acked", 0) + events.get("popped", 0), events.get("failed", 0),
        figures.leases_expired, figures.given_up,
    )  # fmt: skip
    return Reading(
        figures.queue, figures.up, tuple(counts.get(state, 0) for state in STATES), flows, figures.in_line
    )


async def open_shared(url: str, options: Options) -> SharedBackend:
    """Open a store that one process owns, whether or not another process has it open."""
    backend = SharedBackend(folder_for(url, options), options.timeout)
    await backend.open()
    return backend


async def _page(operation: Peek | Messages, backend: LocalBackend | GuestBackend) -> list[Message]:
    """The first page of a listing."""
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
