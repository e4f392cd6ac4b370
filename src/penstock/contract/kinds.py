"""Kinds of stores: from a URL to the plug-in that knows its kind, which is loaded then and not before.

A kind is added by a line in `_MODULES`: its scheme, and the module that has it as `KIND`.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import InvalidArgument, NotSupported, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from penstock.contract.backend import AsyncBackend, Backend
    from penstock.contract.examination import Examination
    from penstock.contract.tables import Packer, Tables
    from penstock.system.clock import Clock

_MODULES = {
    "journal": "penstock.stores.journal.kind",
    "slate": "penstock.stores.slate.kind",
    "text": "penstock.stores.text.kind",
    "folder": "penstock.stores.folder.kind",
    "memory": "penstock.engine.memory",
    "http": "penstock.http.client.kind",
    "https": "penstock.http.client.kind",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+]+):")  # at least two letters: C:\queues is a path
_SYNC = ("always", "interval", "never")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `penstock.open` beyond the URL."""

    sync: str = "always"
    clock: Clock | None = None
    dialect: Any = "doc"
    timeout: float | None = None
    peers: int = 0
    token: str | None = None
    ca: str | None = None

    def check_sync(self) -> None:
        """Refuse an unknown way to sync."""
        if self.sync not in _SYNC:
            raise InvalidArgument(f"sync={self.sync!r} is none of {', '.join(_SYNC)}")


@dataclass(frozen=True)
class Copy:
    """A backup: its size, and a row for each queue with the messages by state as `counts`."""

    bytes: int
    queues: list[dict[str, Any]]


class Kind:
    """A kind of store: what the rest of the program may ask of it. A kind overrides what it can do."""

    name: ClassVar[str]
    format_version: ClassVar[int | None] = None  # the next for a layout that older versions cannot read
    owned: ClassVar[bool] = False  # one process has the store open, and serves it to the others (sharing/)
    remote: ClassVar[bool] = False  # a server keeps the store, and does not see whether this process lives
    fenced: ClassVar[bool] = False  # opening the store on another machine takes it away from its owner
    has_log: ClassVar[bool] = False  # published messages are kept in a log, from which queues may start
    has_tables: ClassVar[bool] = False  # many processes at once read and write the store
    has_streams: ClassVar[bool] = False  # its queues are read and written as streams

    def check(self, url: str, options: Options) -> None:
        """Refuse options that the kind has no use for."""
        if options.peers:
            raise InvalidArgument(f"peers={options.peers}: store {url!r} has none; that is for folder stores")

    def open(self, url: str, options: Options) -> Backend:
        """Open the store; one on disk is made if it does not exist."""
        raise NotImplementedError

    async def open_for_loop(self, url: str, options: Options) -> AsyncBackend | None:
        """Open the store for coroutines; None: open() it in a thread."""
        return None

    def open_owned(self, url: str, options: Options, locked: Callable[[], None]) -> Any:
        """Open the store for this process and its guests; `locked` is called once no other process can."""
        raise NotImplementedError

    def meeting_folder(self, url: str) -> str:
        """The folder in which processes of this machine find the one that owns the store."""
        raise NotImplementedError

    def is_held(self, url: str) -> bool:
        """Whether a process holds the lock of a store that one process owns. Nothing is read for that."""
        return False

    def check_guest(self, url: str, backend: Backend) -> None:
        """Refuse a store that its owner has opened in another way than the URL says."""

    def tended(self, backend: Any) -> AbstractContextManager[None]:
        """Keep the store in order for as long as a server has it open."""
        return nullcontext()

    def exists(self, url: str) -> bool:
        """Whether there is a store, or something that opening it explains. Nothing is made."""
        return True

    def how_to_make(self, url: str) -> str:
        """The command that makes a store at the URL."""
        return f"penstock --store {shlex.quote(url)} create jobs"

    def absolute(self, url: str) -> str:
        """The URL of the same store for a process in another folder."""
        _, path = split(url)
        if not path or "://" in path:  # nothing, of which opening tells, or a bucket
            return url
        return url[: len(url) - len(path)].lower() + os.path.abspath(path)

    def place(self, url: str) -> str:
        """The same text for all URLs of one store: runs of jobs are known by it."""
        return self.absolute(url)

    def only_queue(self, url: str) -> str | None:
        """The queue of a store that is a single one."""
        return None

    def tables(self, url: str) -> Tables:
        """The tables of the store, for processes that read and write it at once. This loads Arrow."""
        raise NotSupported(f"store {url!r} has no tables")

    def packer(self, url: str) -> Packer:
        """How tasks of Spark free the space that the store no longer needs."""
        raise NotSupported(f"store {url!r} has no journals to pack: this is for journal stores")

    def examine(self, url: str) -> Examination[Any]:
        """Examine the store without changing it (`penstock doctor`)."""
        raise NotSupported(f"store {url!r} has no journals to examine: this is for journal and slate stores")

    def check_packs(self, url: str) -> None:
        """Refuse a store whose files tasks of Spark cannot pack."""
        raise NotSupported(f"store {url!r} has no journals to examine: this is for journal and slate stores")

    def backup(self, url: str, dest: str, verify: bool, progress: Callable[[int, int], object] | None) -> Copy:
        """Copy the store to a folder while others go on using it."""
        raise NotSupported(self.how_to_copy(url))

    def how_to_copy(self, url: str) -> str:
        """How a person copies a store of a kind that has no backup()."""
        return f"store {url!r} has no files: backup is for journal and slate stores, on the machine that has them"


def split(url: str) -> tuple[str, str]:
    """The scheme of a URL in lower case, and the rest. A plain path is a journal's, or a file's: `NAME.tq`."""
    matched = _SCHEME.match(url)
    if matched is None:
        return "text" if url.endswith(".tq") else "journal", url
    return matched[1].lower(), url[matched.end() :]


def kind_of(url: str) -> Kind:
    """The kind of the store at a URL; NotSupported if there is none of that scheme."""
    scheme, _ = split(url)
    module = _MODULES.get(scheme)
    if module is None:
        raise NotSupported(
            f"store {url!r}: there is no kind of store {scheme!r}; give a folder, journal:DIR, text:DIR, NAME.tq, "
            "folder:DIR, slate:DIR, slate:s3://bucket/prefix, memory:, memory:NAME or http://host:port (a path "
            "with a colon in its first part can be written as ./path)"
        )
    kind: Kind = import_module(module).KIND
    return kind


def format_versions() -> dict[str, int]:
    """The version of the format of each kind that keeps files, by its name."""
    kinds = [import_module(module).KIND for module in dict.fromkeys(_MODULES.values())]
    return {kind.name: kind.format_version for kind in kinds if kind.format_version is not None}


def exists(url: str) -> bool:
    """Whether there is a store, or something that opening it explains; a server is not asked."""
    return kind_of(url).exists(url)


def check_exists(url: str) -> None:
    """Refuse a URL at which there is no store, to a caller that only reads: opening would make one."""
    if not exists(url):
        raise PenstockError(f"no store at {url}: `{kind_of(url).how_to_make(url)}` makes one")


def absolute(url: str) -> str:
    """The URL of the same store for a process in another folder."""
    return kind_of(url).absolute(url)


def folder_has(folder: str, belongs: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Whether a file or folder of a store is in a folder, or a file is in its place, of which opening tells."""
    try:
        with os.scandir(folder) as entries:
            return any(map(belongs, entries))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    except OSError as error:
        from penstock.system.files import unavailable  # here, so that import penstock stays quick

        raise unavailable(folder, error) from error


def names_in(folder: str) -> list[str]:
    """The names in a folder; none if there is no such folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
