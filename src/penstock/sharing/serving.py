"""HTTP on the owner's Unix socket: the server's, and what only those who share the folder may ask.

    POST /-/share/pack?queue=NAME      pack a queue's journal
    GET  /-/share/stored?queue=NAME    the bytes of a queue's journal
    POST /-/share/load                 let a load take effect that was staged in the folder
    POST /-/share/frames               the same of a slate store: a load that was staged beside the database
    GET  /-/share/run?run=NAME         what a run has brought into a slate store
    POST /-/share/tidy                 let time take what it may from a slate store, and SlateDB tidy its files
    GET  /-/share/position             how far the queues of a slate store are in its log
    POST /-/share/route                entries of the log that queues want

Whoever stops serving leaves nobody in doubt: a request has either arrived as a whole and is answered, or its
sender is told that it was not sent.
"""

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, cast

from penstock import names
from penstock.aio.gathering import Committed
from penstock.aio.local import LocalKeeper
from penstock.errors import NotSupported
from penstock.journal.intake import Load
from penstock.journal.staging import Piece
from penstock.journal.store import JournalKeeper
from penstock.landing import Landing
from penstock.live.queue import LiveQueue
from penstock.server.bodies import json_answer
from penstock.server.connection import Connection
from penstock.server.exchange import Answer, Request, Route
from penstock.server.roles import ANYONE  # whoever may connect may do everything
from penstock.server.running import Acceptor, Limits, Service, new_loop
from penstock.sharing import place, slate
from penstock.sharing.loading import take_in
from penstock.sharing.slate import SlateOwner
from penstock.slate import bulk
from penstock.wire import jsons

if TYPE_CHECKING:
    from penstock.slate.store import SlateKeeper

_MANIFEST = 256 << 20  # bytes of a load's pieces
_GRACE = 5.0  # seconds for answers to go out
_SHORT = 0.001  # seconds that the others of a loop do not mind


class OwnersKeeper(LocalKeeper):
    """What the owner does for others."""

    def __init__(self, keeper: "JournalKeeper | SlateKeeper") -> None:
        super().__init__(keeper)
        self._owned = keeper
        self._loading = threading.Lock()

    async def pack(self, queue: str) -> int:
        """Pack a queue's journal."""
        return await self._in_thread(self._owned.pack, queue)

    async def stored(self, queue: str) -> int:
        """The bytes of a queue's journal."""
        return await self._in_thread(self._owned.stored, queue)

    async def load(self, load: Load) -> bool:
        """Let a load take effect."""
        return await self._in_thread(self._load, load)

    def _commit_puts(self, live: LiveQueue, written: int, others: bool, then: Committed) -> None:
        """At once, where a commit takes no longer than a thread to be told of it and to tell of it."""
        if others or self._pending or self.latest_commit > _SHORT:
            super()._commit_puts(live, written, others, then)
            return
        try:
            self._commit_now(live, written)
        except Exception as error:
            then(error)
        else:
            then(None)

    def _load(self, load: Load) -> bool:
        with self._loading:
            return take_in(self._owned, load)


class LocalConnection(Connection):
    """A connection of a process of this machine, if it is of the same user."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Someone is there."""
        with _duplicate(transport) as connected:
            user = place.user_of(connected)
        if user != os.geteuid():
            self._lost = True
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody is there any more."""
        if hasattr(self, "transport"):
            super().connection_lost(error)

    def eof_received(self) -> bool:
        """The other end sends no more; or this end reads no more."""
        if not self.service.stopping:
            return super().eof_received()
        if self._current is None and not self._waiting:
            self._close()  # what has arrived of a request is not all of it, and its sender knows
            return False
        self._ending = True
        return True

    def finish(self) -> None:
        """Take no more requests. On a Unix socket the other end learns at once that what it sends is not read."""
        with _duplicate(self.transport) as connected:
            connected.shutdown(socket.SHUT_RD)

    def find(self, method: bytes, target: bytes) -> tuple[Route, tuple[str, ...], bytes]:
        """Who answers."""
        path, _, query = target.partition(b"?")
        route = _ROUTES.get((method, path))
        return super().find(method, target) if route is None else (route, (), query)


class Serving:
    """An event loop that serves a store."""

    def __init__(self, keeper: "JournalKeeper | SlateKeeper", listening: socket.socket, waking: int) -> None:
        self._keeper = keeper
        self._listening = listening
        self._waking = waking
        self._service: Service | None = None

    def run(self) -> None:
        """Serve until there is something to read at `waking`."""
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._serve())

    def connections(self) -> list[int]:
        """The descriptors of those that are open."""
        if self._service is None:
            return []
        return [each.transport.get_extra_info("socket").fileno() for each in self._service._connections]

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        local = OwnersKeeper(self._keeper)
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

    async def _finish(self, service: Service, local: OwnersKeeper) -> None:
        service.stopping = True
        local.end_waiting()
        for connection in list(service._connections):
            cast("LocalConnection", connection).finish()
        await service.wait_for_the_last(_GRACE)


async def _pack(keeper: OwnersKeeper, request: Request) -> Answer:
    return json_answer({"freed": await keeper.pack(_queue(request))})


async def _stored(keeper: OwnersKeeper, request: Request) -> Answer:
    return json_answer({"bytes": await keeper.stored(_queue(request))})


async def _load(keeper: OwnersKeeper, request: Request) -> Answer:
    given = jsons.loads_object(request.body)
    queues = {name: jsons.settings_from_json(settings) for name, settings in given["queues"].items()}
    pieces = [Piece(*each) for each in given["pieces"]]
    sink = None if given["sink"] is None else Landing(*given["sink"])
    load = Load(given["name"], pieces, queues, given["run"], sink)
    return json_answer({"loaded": await keeper.load(load)})


def _queue(request: Request) -> str:
    return names.checked(request.parameters("queue").get("queue", ""))


def _duplicate(transport: asyncio.BaseTransport) -> socket.socket:
    """The transport's socket, which no transport lends to others."""
    return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))


def _owner(keeper: OwnersKeeper) -> SlateOwner:
    owned = keeper._owned
    if isinstance(owned, JournalKeeper):
        raise NotSupported("that is for slate stores")
    return owned.owner


async def _take_in(keeper: OwnersKeeper, request: Request) -> Answer:
    load = slate.load_from_json(jsons.loads_object(request.body))
    return json_answer({"loaded": await keeper._in_thread(_owner(keeper).take_in, load)})


async def _run(keeper: OwnersKeeper, request: Request) -> Answer:
    run = request.parameters("run")["run"]
    return json_answer({"brought": await keeper._in_thread(_owner(keeper).run, run)})


async def _tidy(keeper: OwnersKeeper, request: Request) -> Answer:
    await keeper._in_thread(_owner(keeper).tidy)
    return json_answer({"tidy": True})


async def _position(keeper: OwnersKeeper, request: Request) -> Answer:
    return json_answer({"position": _owner(keeper).position(), "instance": _owner(keeper).instance()})


async def _route(keeper: OwnersKeeper, request: Request) -> Answer:
    matches = bulk.decode(request.body)
    return json_answer({"routed": await keeper._in_thread(_owner(keeper).route, matches)})


_ROUTES = {
    (b"POST", b"/-/share/frames"): Route(_take_in, ANYONE, _MANIFEST),
    (b"GET", b"/-/share/run"): Route(_run, ANYONE),
    (b"POST", b"/-/share/tidy"): Route(_tidy, ANYONE),
    (b"GET", b"/-/share/position"): Route(_position, ANYONE),
    (b"POST", b"/-/share/route"): Route(_route, ANYONE, _MANIFEST),
    (b"POST", b"/-/share/pack"): Route(_pack, ANYONE),
    (b"GET", b"/-/share/stored"): Route(_stored, ANYONE),
    (b"POST", b"/-/share/load"): Route(_load, ANYONE, _MANIFEST),
}
