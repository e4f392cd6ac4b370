"""How a store comes to its owner: whoever has its lock listens for the others before anything is read."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.contract.kinds import Kind, Options, kind_of
from penstock.errors import StoreLocked, StoreUnreachable
from penstock.sharing.host import Host
from penstock.stores.journal.catalog import FOLDER
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
    """The folder in which processes share a store, and how its owner opens the store."""

    path: str
    url: str
    kind: Kind
    options: Options
    clock: Clock

    def open(self, locked: Callable[[], None]) -> "JournalBackend | SlateBackend":
        """Open the store; `locked` is called once it is ours."""
        opened: JournalBackend | SlateBackend = self.kind.open_owned(self.url, self.options, locked)
        return opened

    @property
    def share(self) -> str:
        """Where its owner is reached."""
        return share_of(self.path)


def folder_for(url: str, options: Options) -> Folder:
    """The folder of a store as it is wherever this process goes."""
    kind, clock = kind_of(url), options.clock or SystemClock()
    return Folder(kind.meeting_folder(url), kind.absolute(url), kind, replace(options, clock=clock), clock)


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
