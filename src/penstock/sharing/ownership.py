"""How a store comes to its owner: whoever has its lock listens for the others before anything is read."""

import errno
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, StoreLocked, StoreUnreachable
from penstock.sharing.host import Host
from penstock.stores.journal.catalog import FOLDER
from penstock.stores.journal.format import DIALECTS, Dialect
from penstock.stores.journal.store import open_journal
from penstock.system import forks
from penstock.system.clock import Clock, SystemClock
from penstock.system.files import ReadingDisk, unavailable
from penstock.system.socket_path import share_of

if TYPE_CHECKING:
    from penstock.stores.journal.store import JournalBackend
    from penstock.stores.slate.store import SlateBackend

PATIENCE = 10.0  # seconds in which a new owner, or the old one, must be found
PAUSE = 0.02  # seconds between two looks for one
LONGEST_PAUSE = 1.0  # seconds before asking once more an owner that is there and refuses
_log = logging.getLogger("penstock")


@dataclass(frozen=True)
class Folder:
    """A folder, and how its store is opened by who owns it."""

    path: str
    clock: Clock
    sync: str
    dialect: Dialect
    slate: str = ""  # the URL of a slate store; else it is one of journals
    timeout: float | None = None

    def open(self, locked: Callable[[], None]) -> "JournalBackend | SlateBackend":
        """Open the store; `locked` is called once it is ours."""
        if not self.slate:
            backend = open_journal(
                self.path, clock=self.clock, sync=self.sync, dialect=self.dialect, locked=locked
            )
            backend.keep_indexes()  # as owners that are killed one after the other would replay more and more
            return backend
        from penstock.stores.slate.opening import open_slate  # here, as few need it

        return open_slate(
            self.slate, clock=self.clock, sync=self.sync, timeout=self.timeout, shared=self.path, locked=locked
        )

    @property
    def share(self) -> str:
        """Where its owner is reached."""
        return share_of(self.path)


def folder_for(folder: str | os.PathLike[str], clock: Clock | None, sync: str, dialect: Dialect) -> Folder:
    """The folder as it is wherever this process goes."""
    if dialect not in DIALECTS:
        raise InvalidArgument(f"dialect={dialect!r} is none of {', '.join(DIALECTS)}")
    return Folder(os.path.abspath(folder), clock or SystemClock(), sync, dialect)


def slate_for(url: str, clock: Clock | None, sync: str, timeout: float | None) -> Folder:
    """The same of a slate store; one in a bucket is shared by way of a folder of this user on this machine."""
    where = url[len("slate:") :].partition("?")[0]
    if "://" in where:
        name = hashlib.sha256(where.encode()).hexdigest()[:32]
        ours = os.path.join(tempfile.gettempdir(), f"penstock-{os.geteuid()}")
        with suppress(FileExistsError):
            os.mkdir(ours, 0o700)
        if os.stat(ours, follow_symlinks=False).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is another user's, so nothing is shared there", ours)
        path = os.path.join(ours, name)
        os.makedirs(path, mode=0o700, exist_ok=True)
    else:
        path = os.path.abspath(where)
    return Folder(path, clock or SystemClock(), sync, "doc", url, timeout)


class Owner:
    """A store that this process owns: what keeps it, and what serves it to others."""

    def __init__(self, folder: Folder) -> None:
        self._host: Host | None = None

        def listen() -> None:
            try:
                self._host = Host(folder.share)
            except OSError as error:  # it is still of use to this process
                _log.warning("the store %r cannot be shared with other processes: %s", folder.path, error)

        try:
            self.backend = folder.open(listen)
        except BaseException:
            if self._host is not None:
                self._host.stop()
            raise
        if self._host is not None:
            self._host.start(self.backend)
        forks.watch(self)

    def close(self) -> None:
        """Answer who has asked, and hand over."""
        if self._host is not None:
            self._host.stop()
        self.backend.close()

    def forked(self) -> None:
        """In a child: the store is the parent's."""
        if self in _parents:
            return
        _parents.append(self)  # never to be cleared away: its objects would touch what is the parent's
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
    except StoreUnreachable:  # an OSError too, that says what is wrong
        raise
    except OSError as error:
        raise unavailable(error.filename or folder.path, error) from error


def locked(folder: str, why: object) -> StoreLocked:
    """The error of who finds a store that is held, and nobody to talk to."""
    return StoreLocked(
        f"the store {folder!r} is open in {holder(folder)}, which does not share it: {why}. Close it there, or "
        "wait until that process ends; if it is another user's, work as that user"
    )


def holder(folder: str) -> str:
    """Which process has the store."""
    try:
        with ReadingDisk().open(os.path.join(folder, FOLDER, "lock")) as file:
            return file.read(0, 100).decode(errors="replace").strip() or "another process"
    except OSError:
        return "another process"
