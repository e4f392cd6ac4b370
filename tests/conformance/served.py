"""Stores behind a server, or behind an owner: opened with their client, and closed with it."""

from pathlib import Path
from typing import Any, cast

import penstock
import penstock.aio
from penstock.engine.backend import Engine
from penstock.engine.coroutines import LocalBackend
from penstock.engine.threaded import ThreadedBackend
from penstock.http.client.backend import open_remote
from penstock.http.server import RunningServer, serve_in_thread
from penstock.sharing.backend import engine_of
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
    """A journal store that its owner has open."""

    def __init__(self, folder: Path, clock: penstock.Clock) -> None:
        self._store = penstock.open(folder, clock=clock)
        self.backend = engine_of(self._store)

    @property
    def asynchronous(self) -> object:
        return self.backend

    def end(self) -> None:
        self._store.close()


class GuestStore(penstock.Store):
    """A guest's store. Closing it also closes the owner's."""

    def __init__(self, folder: Path, clock: penstock.Clock) -> None:
        self.served: Owned | None = Owned(folder, clock)
        super().__init__(str(folder), penstock.open(folder, clock=clock).backend)
        assert engine_of(self) is None

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
    backend = store._target._backend
    return _in_line(backend if isinstance(backend, ThreadedBackend) else backend.owner.backend)


def _in_line(asynchronous: object) -> int:
    if isinstance(asynchronous, ThreadedBackend):
        return asynchronous.in_line
    backend = asynchronous.engine if isinstance(asynchronous, LocalBackend) else asynchronous
    assert isinstance(backend, Engine)
    return sum(backend.find(info.name).in_line for info in backend.queues())
