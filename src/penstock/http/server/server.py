"""The server: accepts connections, keeps them within limits and deadlines, and stops."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from penstock.contract.backend import Served
from penstock.contract.kinds import kind_of
from penstock.errors import InvalidArgument, NotSupported
from penstock.http.server.access import Hosts
from penstock.http.server.connection import Connection, Heads
from penstock.http.server.exchange import OVERLOADED, as_bytes, refusal
from penstock.http.server.sqs.memory import Memory
from penstock.http.server.watch import Consumers, Watch

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from penstock.contract.store import Store
    from penstock.http.server.access import Access

_TICK = 1.0  # seconds
_GRACE = 5.0  # seconds for requests to end when the server stops
_BACKLOG = 4_096
_HOUSEKEEPING = 5  # ticks
_LISTING = 4  # requests that list messages at the same time: their payloads are in memory
_AT_ONCE = 64  # connections accepted in one turn of the event loop
_KEPT, _MOST_KEPT = 128, 1_024  # descriptors reserved for the store: threads, new queues, packing
_PER_REQUEST, _FEW = 3, 48  # descriptors that a request may leave open; spare ones that need no new count
_log = logging.getLogger("penstock.server")


class Patient(Protocol):
    """A connection with a deadline."""

    def give_up(self) -> None:
        """End the connection: its deadline is over."""


class Deadlines:
    """Connections with a deadline, in order of their deadlines: all have the same number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._new: dict[Patient, None] = {}  # started since the last tick
        self._since: dict[Patient, float] = {}

    def start(self, connection: Patient) -> None:
        """Start the deadline of a connection, unless it runs."""
        if connection not in self._since:
            self._new[connection] = None

    def stop(self, connection: Patient) -> None:
        """Cancel the deadline of a connection."""
        self._new.pop(connection, None)
        self._since.pop(connection, None)

    def first(self, count: int) -> list[Patient]:
        """The connections whose deadlines end next, at most so many."""
        return list(islice(chain(self._since, self._new), max(count, 0)))

    def tick(self, now: float) -> None:
        """End connections whose deadline is over. Called about once a second.

        Deadlines that started since the last tick count from this one: no connection has less than its seconds.
        """
        late = list(takewhile(lambda each: now - self._since[each] > self._seconds, self._since))
        self._since.update(dict.fromkeys(self._new, now))
        self._new.clear()
        for connection in late:
            del self._since[connection]
            connection.give_up()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server.

    connections: open at the same time; further ones are answered with 503
    buffered: bytes of request bodies in memory; the same number again of answers that clients have not read yet
    arriving: seconds from the first byte of a request to its last
    leaving: seconds in which a client must read its answer
    idle: seconds for which a connection stays open between requests
    """

    connections: int = 20_000
    buffered: int = 512 << 20
    arriving: float = 30.0
    leaving: float = 60.0
    idle: float = 300.0


class Service:
    """The state that all connections of a server share: backend, tokens, deadlines, counters."""

    def __init__(
        self,
        backend: Served,
        limits: Limits,
        access: Access | None = None,
        hosts: Hosts | None = None,
        access_log: bool = False,
        files: int = 1,
    ) -> None:
        self.backend = backend
        self.limits = limits
        self.access = access
        self.hosts = hosts  # checked where no token is asked for; None: no browser can connect (Unix socket)
        self.access_log = access_log
        self.store_files: str | None = None  # the store's folder or file on this machine
        self.answers: dict[int, int] = defaultdict(int)  # by status
        self.heads = Heads()
        self.loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self.loop.create_future()  # done once the server must end
        self.arriving = Deadlines(limits.arriving)
        self.leaving = Deadlines(limits.leaving)
        self.idle = Deadlines(limits.idle)
        self.buffered = 0  # bytes of request bodies
        self.unread = 0  # bytes of answers that clients have not read
        self._unread: dict[Connection, int] = {}  # by connection, the slowest first
        self.listing = asyncio.Semaphore(_LISTING)
        self.sqs = Memory(backend)
        self.stopping = False
        self.consumers: Consumers | None = None  # that have asked lately; None: nobody will want to know
        self._watch: Watch | None = None
        self._connections: set[Connection] = set()
        self.coming: dict[Connection, asyncio.Task[None]] = {}  # accepted, but not connected yet: TLS handshakes
        self._empty = asyncio.Event()  # the server stops, and the last connection has ended
        self._ticks = 0
        self._files = files  # descriptors that one connection may need
        self._most = 0  # connections for which there are descriptors
        self._unseen = 0  # descriptors that the store may open before they are counted again
        self._counted = float("-inf")  # when `_most` was computed
        self._generation = 0 if access is None else access.generation  # of the tokens of long polls
        self._tending: asyncio.Future[None] | None = None
        self._tick()

    @property
    def connections(self) -> int:
        """The number of connections that are open."""
        return len(self._connections)

    def watch(self) -> Watch:
        """What reads the queues again and again; NotSupported where there is none."""
        if self._watch is None:
            raise NotSupported("the process that has this store open remembers nothing: start `penstock serve`")
        return self._watch

    def begin_watching(self, kind: str) -> None:
        """Read the queues of a store of that kind from now on."""
        self.consumers = Consumers()
        self._watch = Watch(self, kind)

    def welcome(self, connection: Connection) -> bool:
        """Register a connection; False if the server is stopping."""
        if self.stopping:
            return False
        self.coming.pop(connection, None)
        self._connections.add(connection)
        return True

    def has_room(self) -> bool:
        """Whether another connection can be accepted.

        The store fails without descriptors, so its share comes first.
        """
        there = len(self._connections) + len(self.coming)
        now = self.loop.time()
        if now - self._counted > _TICK:
            self._counted = now
            self._most = min(self.limits.connections, room_for_connections(there) // self._files)
        return not self.stopping and there < self._most

    def _make_room(self) -> None:
        """End the connections that were idle longest, once the store has used half of its reserved descriptors."""
        there = len(self._connections) + len(self.coming)
        spare = room_for_connections(there, kept=0.5) - there
        self._unseen = max(spare, _FEW)
        for connection in self.idle.first(-spare):
            connection.give_up()

    def answered(self, status: int, size: int) -> None:
        """Count an answered request and its body. It may have made a queue: descriptors are counted in time."""
        self.answers[status] += 1
        self.buffered -= size
        self._unseen -= _PER_REQUEST
        if self._unseen < 0:
            self._make_room()

    def hold_back(self, connection: Connection, size: int) -> None:
        """Count the unread bytes of a client. If the sum exceeds the limit, the slowest clients are cut off."""
        self.let_go(connection)
        self._unread[connection] = size
        self.unread += size
        while self.unread > self.limits.buffered and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            self.let_go(slowest)
            slowest.transport.abort()

    def let_go(self, connection: Connection) -> None:
        """Forget the unread bytes of a client that has read them, or has gone."""
        self.unread -= self._unread.pop(connection, 0)

    def farewell(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        self.let_go(connection)
        for deadlines in (self.arriving, self.leaving, self.idle):
            deadlines.stop(connection)
        if self.stopping and not self._connections:
            self._empty.set()

    async def stop(self) -> None:
        """Finish the requests that are being carried out, and end all connections."""
        self.stopping = True
        self.sqs.tasks.stop()
        for connection in list(self._connections):
            connection.end()
        await self.wait_for_the_last(_GRACE)
        if self._watch is not None:
            await self._watch.stop()

    async def wait_for_the_last(self, grace: float) -> None:
        """Wait until every connection has ended; abort those that are left after the grace period."""
        if self._connections:
            try:
                await asyncio.wait_for(self._empty.wait(), grace)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.transport.abort()
        self._timer.cancel()

    def _tick(self) -> None:
        now = self.loop.time()
        for deadlines in (self.arriving, self.leaving, self.idle):
            deadlines.tick(now)
        self._make_room()
        self._timer = self.loop.call_later(_TICK, self._tick)
        if self.access is not None:
            self.access.refresh()
            if self.access.generation != self._generation:
                self._generation = self.access.generation
                for connection in list(self._connections):
                    connection.check_caller()
        self._ticks += 1
        if self.backend.failure is not None:  # the store has logged the reason
            self.give_up()
        elif self._ticks % _HOUSEKEEPING == 0 and (self._tending is None or self._tending.done()):
            self._tending = self.backend.tend()
            self._tending.add_done_callback(self._tended)

    def _tended(self, tending: asyncio.Future[None]) -> None:
        if not tending.cancelled() and (error := tending.exception()) is not None:
            _log.error("housekeeping failed", exc_info=error)
            self.give_up()

    def give_up(self) -> None:
        """Have the server ended: an error outside of any request."""
        if not self.failed.done():
            self.failed.set_result(None)

    def on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error that no coroutine handles (asyncio's exception handler)."""
        error, message = context.get("exception"), context.get("message") or "an error in the event loop"
        _log.error("%s", message, exc_info=error)
        # An error of a connection ends only that connection.
        if not context.keys() & {"transport", "protocol", "socket"}:
            self.give_up()


class Acceptor:
    """Accepts connections at a listening socket; answers them with 503 when there is no room.

    A connection takes up room from when it is accepted, during its TLS handshake too.
    """

    def __init__(
        self,
        service: Service,
        listening: socket.socket,
        connection: Callable[[Service], Connection],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._service = service
        self._listening = listening
        self._connection = connection
        self._tls = tls
        self._timer: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Stop accepting; TLS handshakes are cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._service.loop.remove_reader(self._listening)
        self._listening.close()
        if self._tls is not None:  # plain connections are there in a moment, and get their 503
            for task in list(self._service.coming.values()):
                task.cancel()

    def _begin(self) -> None:
        self._service.loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        service = self._service
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is free, which may pass
                _log.warning("cannot accept connections: %s", error.strerror)
                service.loop.remove_reader(self._listening)
                self._timer = service.loop.call_later(_TICK, self._begin)
                return
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if service.has_room():
                connection = self._connection(service)
                service.coming[connection] = service.loop.create_task(self._connect(accepted, connection))
            else:
                self._turn_away(accepted)

    async def _connect(self, accepted: socket.socket, connection: Connection) -> None:
        deadline = None if self._tls is None else self._service.limits.arriving
        try:
            await self._service.loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=deadline
            )
        except OSError:  # or SSLError: the client has gone, or speaks no TLS
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._service.coming.pop(connection, None)

    def _turn_away(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._tls is None:
                self._service.answers[503] += 1
                accepted.send(as_bytes(refusal(OVERLOADED), keep_alive=False))
                accepted.recv(1 << 16)  # closing with unread bytes would reset the connection


class Server:
    """Serves a store on sockets until it is stopped; the store stays open.

    access: the tokens that clients need; None: every client may do everything
    allow_hosts: host names of a server without tokens, beside IP addresses and localhost
    tls: the context of encrypted connections
    access_log: whether every request is logged
    """

    def __init__(
        self,
        store: Store,
        limits: Limits | None = None,
        *,
        access: Access | None = None,
        allow_hosts: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        access_log: bool = False,
    ) -> None:
        self._store = store
        if not store.is_served():
            raise NotSupported(f"store {store.url!r} is kept elsewhere: serve it where it is kept")
        self._limits = limits or Limits()
        self._access = access
        self._hosts = Hosts(allow_hosts, encrypted=tls is not None)
        self._tls = tls
        self._access_log = access_log
        self._acceptors: list[Acceptor] = []

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to answer."""
        self._local = local = await self._store.for_loop()
        self._service = Service(
            local, self._limits, self._access, self._hosts, self._access_log, local.descriptors
        )
        kind = kind_of(self._store.url)
        self._service.store_files = kind.files(self._store.url)
        self._service.begin_watching(kind.name)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._service.on_error)
        self._acceptors = [Acceptor(self._service, each, Connection, self._tls) for each in sockets]

    async def failure(self) -> None:
        """Return once an error outside of any request means that the server should end."""
        await asyncio.shield(self._service.failed)

    def give_up(self) -> None:
        """Make failure() return."""
        self._service.give_up()

    async def stop(self) -> None:
        """Stop accepting, finish the requests that are being carried out, end long polls."""
        for acceptor in self._acceptors:
            acceptor.close()
        await self._service.stop()
        await self._local.detach()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one."""
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


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can reach a listening socket."""
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def check_reach(listening: socket.socket, access: Access | None, insecure: bool) -> None:
    """InvalidArgument if other machines can reach a server without tokens, unless that is meant."""
    if access is None and not insecure and not is_loopback(listening):
        raise InvalidArgument(
            f"{listening.getsockname()[0]} can be reached from other machines, and without tokens everyone there "
            "could do everything: give --tokens FILE (see `penstock token create --help`), or --insecure if only "
            "friends can reach it"
        )


def room_for_connections(there: int, kept: float = 1.0) -> int:
    """How many connections this process has descriptors for, with those that are open.

    `kept` is the part of the store's reserve that is left alone. If the store has opened nearly all descriptors,
    a quarter of the rest is still for connections: a store without clients is of no use.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return 1 << 30
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError as error:  # none is left to list the folder with, or this system has no such folder
        used = most if error.errno in (errno.EMFILE, errno.ENFILE) else 64 + there
    free = most - used + there
    return free - int(kept * min(_MOST_KEPT, max(_KEPT, most // 4), most // 2, free * 3 // 4))


def raise_file_limit() -> None:
    """Raise the limit of descriptors to the most that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class RunningServer:
    """A server in a thread of its own."""

    def __init__(self, server: Server, listening: socket.socket, url: str) -> None:
        self.url = url
        self._server, self._listening = server, listening
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
    """A new event loop: uvloop's, which is faster, if `penstock[server]` is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve_in_thread(
    store: Store,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Limits | None = None,
    *,
    access: Access | None = None,
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    allow_hosts: Iterable[str] = (),
) -> RunningServer:
    """Serve a store of this process to others, in a thread, until stop().

    An address that other machines can reach needs `access`, or `insecure` if everyone there may do everything.
    Without `access`, clients find the server by an IP address, as localhost, or under one of `allow_hosts`.
    """
    server = Server(store, limits, access=access, allow_hosts=allow_hosts, tls=tls)
    listening = listen(host, port)
    try:
        check_reach(listening, access, insecure)
    except BaseException:
        listening.close()
        raise
    return RunningServer(server, listening, url_of(listening, "http" if tls is None else "https"))
