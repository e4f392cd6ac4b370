"""HTTP on the owner's Unix socket: what the server offers, and the operations of stores/owner_operations.py.

An owner that stops leaves no guest in doubt: a request has either arrived as a whole and is answered, or its
sender is told that it was not sent.
"""

import asyncio
import os
import socket
from typing import cast

from penstock.engine.backend import Engine
from penstock.engine.coroutines import Committed, LocalBackend
from penstock.engine.queue import LiveQueue
from penstock.http.server.connection import Connection
from penstock.http.server.exchange import Route
from penstock.http.server.routes import tree_of
from penstock.http.server.server import Acceptor, Limits, Service, new_loop
from penstock.stores.owner_operations import OPERATIONS
from penstock.system import socket_path as place

_GRACE = 5.0  # seconds for answers to go out
_SHORT = 0.001  # seconds of a commit that may hold up the event loop


class OwnersBackend(LocalBackend):
    """The owner's backend for guests."""

    def _commit_puts(self, live: LiveQueue, written: int, others: bool, then: Committed) -> None:
        """Commit in the event loop where that is quicker than a handover to a thread and back."""
        if others or self._pending or self.latest_commit > _SHORT:
            super()._commit_puts(live, written, others, then)
            return
        try:
            self._commit_now(live, written)
        except Exception as error:
            then(error)
        else:
            then(None)


class LocalConnection(Connection):
    """A guest's connection; one of another user is refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        with _duplicate(transport) as connected:
            user = place.user_of(connected)
        if user != os.geteuid():
            self._lost = True
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if hasattr(self, "transport"):
            super().connection_lost(error)

    def eof_received(self) -> bool:
        if not self.service.stopping:
            return super().eof_received()
        if self._current is None and not self._waiting:
            self._close()  # a request that has arrived in part: its sender knows that it was not sent
            return bool(self._unsent)
        self._ending = True
        return True

    def finish(self) -> None:
        """Take no more requests. The other end of a Unix socket learns at once that nothing more is read."""
        with _duplicate(self.transport) as connected:
            connected.shutdown(socket.SHUT_RD)

    def find(self, method: bytes, target: bytes) -> tuple[Route, tuple[str, ...], bytes]:
        path, _, query = target.partition(b"?")
        route = _SHARE.find(path.split(b"/")[1:])[0].get(method)
        return super().find(method, target) if route is None else (route, (), query)


class OwnerServer:
    """An event loop that serves a store to other processes of its user."""

    def __init__(self, backend: Engine, listening: socket.socket, waking: int) -> None:
        self._backend = backend
        self._listening = listening
        self._waking = waking
        self._service: Service | None = None

    def run(self) -> None:
        """Serve until there is something to read at `waking`."""
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._serve())

    def connections(self) -> list[int]:
        """The descriptors of open connections."""
        if self._service is None:
            return []
        return [each.transport.get_extra_info("socket").fileno() for each in self._service._connections]

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        local = OwnersBackend(self._backend)
        service = self._service = Service(local, Limits())
        acceptor = Acceptor(service, self._listening, LocalConnection)
        loop.add_reader(self._waking, stopping.set)
        await stopping.wait()
        loop.remove_reader(self._waking)
        while place.has_visitors(self._listening) or service.coming:  # nobody can find the socket any more
            await asyncio.sleep(0.001)
        acceptor.close()
        await self._finish(service, local)
        await local.detach()

    async def _finish(self, service: Service, local: OwnersBackend) -> None:
        service.stopping = True
        local.end_waiting()
        for connection in list(service._connections):
            cast("LocalConnection", connection).finish()
        await service.wait_for_the_last(_GRACE)


def _duplicate(transport: asyncio.BaseTransport) -> socket.socket:
    """A copy of the transport's socket, as asyncio hands out none with all its methods."""
    return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))


_SHARE = tree_of({}, OPERATIONS)
