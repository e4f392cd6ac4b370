"""Stores that another has open, on a socket of this machine, for as long as their client has them open."""

from pathlib import Path
from typing import Any, cast

import penstock
import penstock.aio
from penstock.aio.local import LocalKeeper
from penstock.aio.threaded import ThreadedKeeper
from penstock.client.keeper import open_remote
from penstock.live.keeper import LiveKeeper
from penstock.server import RunningServer, serve_in_thread
from penstock.sharing.keeper import live_keeper
from tests.conformance.blocking import BlockingStore


class Served:
    """A store and its server."""

    def __init__(self, url: Path | str, clock: penstock.Clock) -> None:
        self._store = penstock.open(url, clock=clock)
        self._server: RunningServer = serve_in_thread(self._store)
        self.url = self._server.url

    @property
    def asynchronous(self) -> object:
        return self._server._server._local

    def end(self) -> None:
        self._server.stop()
        self._store.close()


class RemoteStore(penstock.Store):
    """A client's store. Closing it also ends its server."""

    def __init__(self, served: Served, clock: penstock.Clock) -> None:
        super().__init__(served.url, open_remote(served.url, timeout=None, clock=clock))
        self.served: Served | None = served

    def close(self) -> None:
        super().close()
        served, self.served = self.served, None
        if served is not None:
            served.end()


def open_http(folder: Path, clock: penstock.Clock) -> penstock.Store:
    return RemoteStore(Served(folder, clock), clock)


def open_http_text(folder: Path, clock: penstock.Clock) -> penstock.Store:
    return RemoteStore(Served(f"text:{folder}", clock), clock)


def open_http_folder(folder: Path, clock: penstock.Clock) -> penstock.Store:
    return RemoteStore(Served(f"folder:{folder}", clock), clock)


def open_aio(folder: Path, clock: penstock.Clock) -> penstock.Store:
    served = Served(folder, clock)
    store = BlockingStore(lambda: penstock.aio.open(served.url, clock=clock), served.end)
    store.served = served  # type: ignore[attr-defined]
    return cast("penstock.Store", store)


class Owned:
    """A journal store that was opened before, by its owner."""

    def __init__(self, folder: Path, clock: penstock.Clock) -> None:
        self._store = penstock.open(folder, clock=clock)
        self.keeper = live_keeper(self._store)

    @property
    def asynchronous(self) -> object:
        return self.keeper

    def end(self) -> None:
        self._store.close()


class GuestStore(penstock.Store):
    """A guest's store. Closing it also closes the owner's."""

    def __init__(self, folder: Path, clock: penstock.Clock) -> None:
        self.served: Owned | None = Owned(folder, clock)
        super().__init__(str(folder), penstock.open(folder, clock=clock)._keeper)
        assert live_keeper(self) is None

    def close(self) -> None:
        super().close()
        served, self.served = self.served, None
        if served is not None:
            served.end()


def open_guest(folder: Path, clock: penstock.Clock) -> penstock.Store:
    return GuestStore(folder, clock)


def open_aio_guest(folder: Path, clock: penstock.Clock) -> penstock.Store:
    owned = Owned(folder, clock)
    store = BlockingStore(lambda: penstock.aio.open(folder, clock=clock), owned.end)
    store.served = owned  # type: ignore[attr-defined]
    return cast("penstock.Store", store)


def open_aio_local(folder: Path, clock: penstock.Clock) -> penstock.Store:
    return cast("penstock.Store", BlockingStore(lambda: penstock.aio.open(folder, clock=clock)))


def open_aio_text(folder: Path, clock: penstock.Clock) -> penstock.Store:
    return cast("penstock.Store", BlockingStore(lambda: penstock.aio.open(f"text:{folder}", clock=clock)))


def in_line_at_server(store: Any) -> int:
    """How many consumers wait, as the server sees it."""
    return _in_line(store.served.asynchronous)


def in_line_of_coroutines(store: Any) -> int:
    keeper = store._target._keeper
    return _in_line(keeper if isinstance(keeper, ThreadedKeeper) else keeper._owner.keeper)


def _in_line(asynchronous: object) -> int:
    if isinstance(asynchronous, ThreadedKeeper):
        return asynchronous.in_line
    keeper = asynchronous._keeper if isinstance(asynchronous, LocalKeeper) else asynchronous
    assert isinstance(keeper, LiveKeeper)
    return sum(keeper.find(info.name).in_line for info in keeper.queues())
