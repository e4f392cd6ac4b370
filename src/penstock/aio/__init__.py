"""Penstock for coroutines: the names of `penstock`, with `await`.

    async with penstock.aio.open("http://queue.example:8390") as store:
        jobs = await store.create("jobs")
        await jobs.put(b"resize cat.jpg")
        for message in await jobs.claim(10, lease=60, wait=20):
            await message.ack()
        async for message in jobs.messages("failed"):
            print(message.reason)

Every method that asks the store is a coroutine, also where `penstock` has a property: `await queue.settings()`,
`await queue.count()`. `peek` and `messages` are asynchronous iterators. Waiting takes no thread: thousands of
coroutines may wait for messages at the same time.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from penstock.contract import store as threads
from penstock.contract.aio import Message, Queue, Store
from penstock.contract.kinds import Options, kind_of
from penstock.workers.coroutines import work

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType
    from typing import Any

    from penstock.contract.kinds import Kind, Sync
    from penstock.stores.journal.format import Dialect
    from penstock.system.clock import Clock

__all__ = ["Message", "Queue", "Store", "open", "work"]


def open(  # noqa: A001
    url: str | os.PathLike[str],
    *,
    sync: Sync = "always",
    clock: Clock | None = None,
    dialect: Dialect = "doc",
    timeout: float | None = None,
    token: str | None = None,
    ca: str | None = None,
    share: bool = True,
) -> Opening:
    """Open a store: `async with penstock.aio.open(url) as store`, or `store = await penstock.aio.open(url)`.

    The arguments are those of `penstock.open`.
    """
    url = os.fspath(url)
    options = Options(sync=sync, clock=clock, dialect=dialect, timeout=timeout, token=token, ca=ca)
    options.check_sync()
    kind = kind_of(url)
    kind.check(url, options)
    return Opening(lambda: _open(kind, url, options, share))


class Opening:
    """The result of open(): `await` or `async with` opens the store."""

    def __init__(self, open: Callable[[], Coroutine[Any, Any, Store]]) -> None:  # noqa: A002
        self._open = open

    def __await__(self) -> Generator[Any, Any, Store]:
        return self._open().__await__()

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.close()


async def _open(kind: Kind, url: str, options: Options, share: bool) -> Store:
    if kind.owned and share:
        from penstock.sharing.coroutines import open_shared  # here, so that import penstock stays quick

        return Store(url, await open_shared(url, options))
    backend = await kind.open_for_loop(url, options)
    if backend is not None:
        return Store(url, backend)
    # In a thread, as a store on disk may have much to read.
    opened = asyncio.get_running_loop().run_in_executor(None, lambda: threads.Store(url, kind.open(url, options)))
    try:
        store = await asyncio.shield(opened)
    except asyncio.CancelledError:
        opened.add_done_callback(_close)  # no caller is left to close it
        raise
    return Store(url, await store.for_loop())


def _close(opened: asyncio.Future[threads.Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
