"""A server at work: its connections, its limits, and its end."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.aio.local import LocalKeeper
from penstock.errors import NotSupported
from penstock.server.connection import Connection
from penstock.server.deadlines import Deadlines
from penstock.server.forwarding import forwarding
from penstock.sharing.keeper import is_guest, live_keeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.store import Store

_TICK = 1.0  # seconds
_GRACE = 5.0  # seconds for requests to end when the server stops
_BACKLOG = 4_096


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on.

    connections: open at a time; further ones are told to come back later
    buffered: bytes of request bodies that are arriving or wait for their answer
    arriving: seconds in which a request must be there, from its first byte to its last
    leaving: seconds in which a client must read what it asked for
    idle: seconds for which a connection is kept between requests
    """

    connections: int = 20_000
    buffered: int = 512 << 20
    arriving: float = 30.0
    leaving: float = 60.0
    idle: float = 300.0


class Service:
    """What all connections share."""

    def __init__(self, keeper: LocalKeeper, limits: Limits) -> None:
        self.keeper = keeper
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.arriving = Deadlines(limits.arriving)
        self.leaving = Deadlines(limits.leaving)
        self.idle = Deadlines(limits.idle)
        self.buffered = 0
        self.stopping = False
        self._connections: set[Connection] = set()
        self._nobody = asyncio.Event()
        self._tick()

    def welcome(self, connection: Connection) -> bool:
        """Whether one more can be served."""
        if self.stopping or len(self._connections) >= self.limits.connections:
            return False
        self._connections.add(connection)
        return True

    def farewell(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        for deadlines in (self.arriving, self.leaving, self.idle):
            deadlines.stop(connection)
        if self.stopping and not self._connections:
            self._nobody.set()

    async def stop(self) -> None:
        """Let requests end that are being worked on, and end everything else."""
        self.stopping = True
        for connection in list(self._connections):
            connection.end()
        await self.wait_for_the_last(_GRACE)

    async def wait_for_the_last(self, grace: float) -> None:
        """Wait until every connection has ended, or end it."""
        if self._connections:
            try:
                await asyncio.wait_for(self._nobody.wait(), grace)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.transport.abort()
        self._timer.cancel()

    def _tick(self) -> None:
        now = self.loop.time()
        for deadlines in (self.arriving, self.leaving, self.idle):
            deadlines.tick(now)
        self._timer = self.loop.call_later(_TICK, self._tick)


class Server:
    """Serves a store on sockets until it is stopped; the store stays open."""

    def __init__(self, store: Store, limits: Limits | None = None) -> None:
        self._store = store
        self._keeper: Any = live_keeper(store)
        if self._keeper is None and not is_guest(store):
            raise NotSupported(f"store {store.url!r} is kept elsewhere: serve it where it is kept")
        self._limits = limits or Limits()
        self._servers: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to answer."""
        local = LocalKeeper(self._keeper) if self._keeper is not None else await forwarding(self._store)
        self._local = local
        self._service = Service(local, self._limits)
        loop = asyncio.get_running_loop()
        for each in sockets:
            server = await loop.create_server(lambda: Connection(self._service), sock=each, backlog=_BACKLOG)
            self._servers.append(server)

    async def stop(self) -> None:
        """Stop accepting, finish what was begun, end what waits."""
        for server in self._servers:
            server.close()
        await self._service.stop()
        await self._local.detach()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 finds a free one."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def url_of(listening: socket.socket) -> str:
    """Where clients find it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> None:
    """Let this process have as many connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class RunningServer:
    """A server in a thread of its own."""

    def __init__(self, store: Store, host: str, port: int, limits: Limits | None) -> None:
        self._listening = listen(host, port)
        self.url = url_of(self._listening)
        self._server = Server(store, limits)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-server", daemon=True)
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Stop serving; the store stays open."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self._server.start([self._listening])
        self._started.set()
        await self._stopping.wait()
        await self._server.stop()


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop there is: uvloop's, if `penstock[server]` is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve_in_thread(
    store: Store, host: str = "127.0.0.1", port: int = 0, limits: Limits | None = None
) -> RunningServer:
    """Serve a store of this process to others, in a thread, until stop()."""
    return RunningServer(store, host, port, limits)
