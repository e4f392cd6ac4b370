"""A server at work: its connections, its limits, and its end."""

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
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

from penstock.contract.backend import Served
from penstock.errors import InvalidArgument, NotSupported
from penstock.http.server.access import Hosts
from penstock.http.server.connection import Connection, Heads
from penstock.http.server.exchange import OVERLOADED, as_bytes, refusal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from penstock.contract.store import Store
    from penstock.http.server.access import Access

_TICK = 1.0  # seconds
_GRACE = 5.0  # seconds for requests to end when the server stops
_BACKLOG = 4_096
_HOUSEKEEPING = 5  # ticks
_LISTING = 4  # requests that list messages, with their bodies in memory
_AT_ONCE = 64  # connections that are accepted before others have their turn
_KEPT, _MOST_KEPT = 128, 1_024  # descriptors for the store: threads that read and commit, new queues, packing
_PER_REQUEST, _FEW = 3, 48  # descriptors that a request may leave open; that may be left open uncounted
_log = logging.getLogger("penstock.server")


class Patient(Protocol):
    """A connection with a deadline."""

    def give_up(self) -> None:
        """It took too long."""


class Deadlines:
    """Connections with a deadline, in the order in which it ends: all have the same number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._new: dict[Patient, None] = {}  # since the last tick
        self._since: dict[Patient, float] = {}

    def start(self, who: Patient) -> None:
        """Begin to count, unless it has begun."""
        if who not in self._since:
            self._new[who] = None

    def stop(self, who: Patient) -> None:
        """It is done."""
        self._new.pop(who, None)
        self._since.pop(who, None)

    def first(self, count: int) -> list[Patient]:
        """The next to be late, at most so many."""
        return list(islice(chain(self._since, self._new), max(count, 0)))

    def tick(self, now: float) -> None:
        """Give up connections that are late. Called about every second, which is as exact as it gets.

        A connection that came since the last tick is counted from this one: none has less than its seconds.
        """
        late = []
        for who, since in self._since.items():
            if now - since <= self._seconds:
                break
            late.append(who)
        self._since.update(dict.fromkeys(self._new, now))
        self._new.clear()
        for who in late:
            del self._since[who]
            who.give_up()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on.

    connections: open at a time; further ones are told to come back later
    buffered: bytes of request bodies that are arriving or wait for their answer; and, apart from these, of answers
        that wait to be read
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
        self.hosts = hosts  # compared where nobody is asked for a token; None: no browser can connect
        self.access_log = access_log
        self.answers: dict[int, int] = defaultdict(int)  # by status
        self.heads = Heads()
        self.loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self.loop.create_future()  # done once the server is of no more use
        self.arriving = Deadlines(limits.arriving)
        self.leaving = Deadlines(limits.leaving)
        self.idle = Deadlines(limits.idle)
        self.buffered = 0
        self.unread = 0  # bytes of answers
        self._unread: dict[Connection, int] = {}  # of whom, the slowest first
        self.listing = asyncio.Semaphore(_LISTING)
        self.stopping = False
        self._connections: set[Connection] = set()
        self.coming: dict[Connection, asyncio.Task[None]] = {}  # those that were accepted and are not yet at work
        self._nobody = asyncio.Event()
        self._ticks = 0
        self._files = files  # descriptors that one connection may need
        self._most = 0  # connections, as far as there are descriptors
        self._unseen = 0  # descriptors that the store may take before they are counted again
        self._counted = float("-inf")  # when that was found out
        self._generation = 0 if access is None else access.generation  # of the tokens that long polls came with
        self._tending: asyncio.Future[None] | None = None
        self._tick()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    def welcome(self, connection: Connection) -> bool:
        """Take a connection in; False: the server is stopping."""
        if self.stopping:
            return False
        self.coming.pop(connection, None)
        self._connections.add(connection)
        return True

    def has_room(self) -> bool:
        """Whether another connection can be served beside those that are open or about to be.

        The store needs descriptors, too: it fails without, so it comes first.
        """
        there = len(self._connections) + len(self.coming)
        now = self.loop.time()
        if now - self._counted > _TICK:
            self._counted = now
            self._most = min(self.limits.connections, room_for_connections(there) // self._files)
        return not self.stopping and there < self._most

    def _make_room(self) -> None:
        """End the connections that were idle longest, once the store has used up half of what was kept for it."""
        there = len(self._connections) + len(self.coming)
        spare = room_for_connections(there, kept=0.5) - there
        self._unseen = max(spare, _FEW)
        for connection in self.idle.first(-spare):
            connection.give_up()

    def answered(self, status: int, size: int) -> None:
        """A request with a body of that size was answered. It may have made a queue: count descriptors in time."""
        self.answers[status] += 1
        self.buffered -= size
        self._unseen -= _PER_REQUEST
        if self._unseen < 0:
            self._make_room()

    def hold_back(self, connection: Connection, size: int) -> None:
        """Count bytes that wait for a client to read. If all are too many, the slowest clients are cut off."""
        self.let_go(connection)
        self._unread[connection] = size
        self.unread += size
        while self.unread > self.limits.buffered and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            self.let_go(slowest)
            slowest.transport.abort()

    def let_go(self, connection: Connection) -> None:
        """A client has read, or is gone."""
        self.unread -= self._unread.pop(connection, 0)

    def farewell(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self.let_go(connection)
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
        self._make_room()
        self._timer = self.loop.call_later(_TICK, self._tick)
        if self.access is not None:
            self.access.refresh()
            if self.access.generation != self._generation:
                self._generation = self.access.generation
                for connection in list(self._connections):
                    connection.check_caller()
        self._ticks += 1
        if self.backend.failure is not None:  # the store has said in the log what it was
            self.give_up()
        elif self._ticks % _HOUSEKEEPING == 0 and (self._tending is None or self._tending.done()):
            self._tending = self.backend.tend()
            self._tending.add_done_callback(self._tended)

    def _tended(self, tending: asyncio.Future[None]) -> None:
        if not tending.cancelled() and (error := tending.exception()) is not None:
            _log.error("housekeeping failed", exc_info=error)
            self.give_up()

    def give_up(self) -> None:
        """End the server: something went wrong that is no request's."""
        if not self.failed.done():
            self.failed.set_result(None)

    def on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop could not tell anyone else."""
        error, message = context.get("exception"), context.get("message") or "an error in the event loop"
        _log.error("%s", message, exc_info=error)
        # Of a connection, which has ended thereby, or of accepting one, which is tried again.
        if not context.keys() & {"transport", "protocol", "socket"}:
            self.give_up()


class Acceptor:
    """Accepts connections at a listening socket for as long as there is room.

    Each one counts from when it is accepted, during its TLS handshake too. What is too much is told so.
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
        """Accept no more; handshakes end."""
        if self._timer is not None:
            self._timer.cancel()
        self._service.loop.remove_reader(self._listening)
        self._listening.close()
        if self._tls is not None:  # the others are there in a moment, and are told
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
            except OSError as error:  # no descriptor to be had, which may pass
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
        except OSError:  # of which SSLError is one: the client has gone, or speaks no TLS
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
                accepted.recv(1 << 16)  # or closing would reset the connection, and with it the answer


class Server:
    """Serves a store on sockets until it is stopped; the store stays open.

    access: whose tokens are asked for; None: everyone may do everything
    allow_hosts: names under which clients find a server without tokens, beside its addresses and localhost
    tls: what connections are encrypted with
    access_log: a line in the log for every request
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
        local = await self._store.for_loop()
        self._local = local
        self._service = Service(
            local, self._limits, self._access, self._hosts, self._access_log, local.descriptors
        )
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._service.on_error)
        self._acceptors = [Acceptor(self._service, each, Connection, self._tls) for each in sockets]

    async def failure(self) -> None:
        """Return once something went wrong that is no request's, so that the server had better end."""
        await asyncio.shield(self._service.failed)

    def give_up(self) -> None:
        """Let failure() return."""
        self._service.give_up()

    async def stop(self) -> None:
        """Stop accepting, finish what was begun, end what waits."""
        for acceptor in self._acceptors:
            acceptor.close()
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


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    """Where clients find it."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def check_reach(listening: socket.socket, access: Access | None, insecure: bool) -> None:
    """Refuse to let strangers in by mistake."""
    if access is None and not insecure and not is_loopback(listening):
        raise InvalidArgument(
            f"{listening.getsockname()[0]} can be reached from other machines, and without tokens everyone there "
            "could do everything: give --tokens FILE (see `penstock token create --help`), or --insecure if only "
            "friends can reach it"
        )


def room_for_connections(there: int, kept: float = 1.0) -> int:
    """How many connections this process can have, those included that are there.

    Descriptors are kept for its store, or a part of them. If the store has taken nearly all there are, some of the
    rest are for connections still: nobody could use it without.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return 1 << 30
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError as error:  # no descriptor is left to read the list with, or there is no such list here
        used = most if error.errno in (errno.EMFILE, errno.ENFILE) else 64 + there
    free = most - used + there
    return free - int(kept * min(_MOST_KEPT, max(_KEPT, most // 4), most // 2, free * 3 // 4))


def raise_file_limit() -> None:
    """Let this process have as many connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class RunningServer:
    """A server in a thread of its own."""

    def __init__(
        self,
        store: Store,
        host: str,
        port: int,
        limits: Limits | None,
        access: Access | None,
        tls: ssl.SSLContext | None,
        insecure: bool,
        allow_hosts: Iterable[str],
    ) -> None:
        self._server = Server(store, limits, access=access, allow_hosts=allow_hosts, tls=tls)
        self._listening = listen(host, port)
        try:
            check_reach(self._listening, access, insecure)
        except BaseException:
            self._listening.close()
            raise
        self.url = url_of(self._listening, "http" if tls is None else "https")
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

    Another address than one of loopback needs `access`, or `insecure` if everyone there may do everything. Without
    `access`, clients find the server by an IP address, as localhost, or under one of `allow_hosts`.
    """
    return RunningServer(store, host, port, limits, access, tls, insecure, allow_hosts)
