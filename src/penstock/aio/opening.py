"""From a URL to a store for coroutines."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from penstock import opening
from penstock.contract import urls
from penstock.contract.aio import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType
    from typing import Any

    import penstock
    from penstock.stores.journal.format import Dialect
    from penstock.system.clock import Clock


def open(  # noqa: A001
    url: str | os.PathLike[str],
    *,
    sync: str = "always",
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
    if urls.is_remote(url):
        urls.check_remote(sync, dialect)
        return Opening(lambda: _open_remote(url, timeout, clock, token, ca))
    urls.check_sync(sync)
    if share and (urls.is_slate(url) or urls.journal_folder(url) is not None):
        return Opening(lambda: _open_shared(url, clock, sync, dialect, timeout))
    return Opening(
        lambda: _open_local(
            lambda: opening.open(url, sync=sync, clock=clock, dialect=dialect, timeout=timeout, share=share)
        )
    )


class Opening:
    """A store that is about to be opened, by `await` or by `async with`."""

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


async def _open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None, ca: str | None
) -> Store:
    from penstock.http.client.coroutines import open_remote

    return Store(url, await open_remote(url, timeout, clock, token, ca))


async def _open_shared(url: str, clock: Clock | None, sync: str, dialect: Dialect, timeout: float | None) -> Store:
    from penstock.sharing.coroutines import open_shared
    from penstock.sharing.ownership import folder_for, slate_for

    journals = urls.journal_folder(url)
    if journals is None:
        return Store(url, await open_shared(slate_for(url, clock, sync, timeout), timeout))
    return Store(url, await open_shared(folder_for(journals, clock, sync, dialect), timeout))


async def _open_local(open: Callable[[], penstock.Store]) -> Store:  # noqa: A002
    """Opens in a thread, as a store on disk may have much to read."""
    opened = asyncio.get_running_loop().run_in_executor(None, open)
    try:
        store = await asyncio.shield(opened)
    except asyncio.CancelledError:
        opened.add_done_callback(_close)  # else nobody would
        raise
    return Store(store.url, await store.for_loop())


def _close(opened: asyncio.Future[penstock.Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
