"""Ownership of a shared store: who opens it, and the Unix socket under which guests reach the owner.

The process that has the store's lock is the owner. It listens for guests before it reads the store. Most stores
are used by one process, so the server's modules are loaded when the first guest connects.
"""

import logging
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.contract.kinds import Kind, Options, kind_of
from penstock.engine.backend import Engine
from penstock.errors import StoreLocked, StoreUnreachable
from penstock.system import processes
from penstock.system import socket_path as place
from penstock.system.clock import Clock, SystemClock
from penstock.system.files import OWN_FOLDER, ReadingDisk, unavailable

if TYPE_CHECKING:
    from penstock.sharing.owner_server import OwnerServer

PATIENCE = 10.0  # seconds in which an owner must answer
PAUSE = 0.02  # seconds between two attempts to reach an owner, or to become it
LONGEST_PAUSE = 1.0  # seconds between two requests to an owner that is there and refuses
SETTLED = 0.5  # seconds after which a guest prepares to be the next owner
_log = logging.getLogger("penstock")


@dataclass(frozen=True)
class Folder:
    """The folder in which processes share a store, and how its owner opens the store."""

    path: str
    url: str
    kind: Kind
    options: Options
    clock: Clock

    def open(self, locked: Callable[[], None]) -> Engine:
        """Open the store; `locked` is called once this process has its lock."""
        opened: Engine = self.kind.open_owned(self.url, self.options, locked)
        return opened

    @property
    def share(self) -> str:
        """The folder of the owner's socket."""
        return place.share_of(self.path)


def folder_for(url: str, options: Options) -> Folder:
    """The folder of a store, with absolute paths."""
    kind, clock = kind_of(url), options.clock or SystemClock()
    return Folder(kind.meeting_folder(url), kind.absolute(url), kind, replace(options, clock=clock), clock)


class Host:
    """The listening socket of an owner, and the thread that serves guests from start() until stop()."""

    def __init__(self, share: str) -> None:
        self._share = share
        self._listening = place.bind(share)  # from here on guests can connect, and wait for an answer
        self._waking, self._wake = os.pipe()
        self._server: OwnerServer | None = None
        self._thread: threading.Thread | None = None
        self._gone = False

    def start(self, backend: Engine) -> None:
        """Begin to serve guests."""
        self._thread = threading.Thread(target=self._run, args=(backend,), name="penstock-share", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests, answer those that have arrived, and close the socket."""
        place.remove(self._share)
        if self._thread is not None:
            os.write(self._wake, b".")
            self._thread.join()
        self._let_go()

    def forked(self) -> None:
        """In a child: close all descriptors, so that guests notice the end of the parent."""
        if self._gone:
            return
        held = [self._listening.fileno(), self._waking, self._wake]
        if self._server is not None:
            held += self._server.connections()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in filter(lambda number: number >= 0, held):
            # The number stays taken: copies of the parent's objects will close it.
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def _let_go(self) -> None:
        self._gone = True
        self._listening.close()
        for descriptor in (self._waking, self._wake):
            os.close(descriptor)

    def _run(self, backend: Engine) -> None:
        poll = select.poll()
        for descriptor in (self._listening.fileno(), self._waking):
            poll.register(descriptor, select.POLLIN)
        poll.poll()
        if place.has_visitors(self._listening):  # also before a stop: guests that have connected are answered
            from penstock.sharing.owner_server import OwnerServer  # here, as few owners have guests

            self._server = OwnerServer(backend, self._listening, self._waking)
            self._server.run()


class Owner:
    """A store that this process owns: its engine, and the host for guests."""

    def __init__(self, folder: Folder) -> None:
        self._host: Host | None = None

        def listen() -> None:
            try:
                self._host = Host(folder.share)
            except OSError as error:  # this process can use the store all the same
                _log.warning("the store %r cannot be shared with other processes: %s", folder.path, error)

        try:
            self.backend: Any = folder.open(listen)
        except BaseException:
            if self._host is not None:
                self._host.stop()
            raise
        if self._host is not None:
            self._host.start(self.backend)
        processes.watch_forks(self)

    def close(self) -> None:
        """Answer open requests, and close the store."""
        if self._host is not None:
            self._host.stop()
        self.backend.close()

    def forked(self) -> None:
        """In a child: the parent stays the owner."""
        if self in _parents:
            return
        _parents.append(self)  # never freed: its finalizers would touch the parent's files
        if self._host is not None:
            self._host.forked()
        self.backend.forked()


_parents: list[Owner] = []


def become_owner(folder: Folder) -> Owner | None:
    """Own the store; None if another process does."""
    try:
        return Owner(folder)
    except StoreLocked:
        return None
    except StoreUnreachable:  # a subclass of OSError with a message of its own
        raise
    except OSError as error:
        raise unavailable(error.filename or folder.path, error) from error


def locked(folder: str, why: object) -> StoreLocked:
    """The error for a store that another process holds and does not share."""
    return StoreLocked(
        f"the store {folder!r} is open in {holder(folder)}, which does not share it: {why}. Close it there, or "
        "wait until that process ends; if it is another user's, work as that user"
    )


def holder(folder: str) -> str:
    """The process that has the store, by its lock file."""
    try:
        with ReadingDisk().open(os.path.join(folder, OWN_FOLDER, "lock")) as file:
            return file.read(0, 100).decode(errors="replace").strip() or "another process"
    except OSError:
        return "another process"


def prepare() -> None:
    """Load the server's modules ahead of a takeover."""
    import_module("penstock.sharing.owner_server")
    from penstock.http.server.server import new_loop

    new_loop().close()  # loads the event loop's module
