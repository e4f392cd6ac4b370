"""Kinds of stores: from a URL to the plug-in for its scheme, imported on first use.

To add a kind, add its scheme to `_MODULES`, with the module that has the plug-in as `KIND`.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from penstock.errors import InvalidArgument, NotSupported, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from penstock.contract.backend import AsyncBackend, Backend
    from penstock.contract.dumps import Piece
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
Sync: TypeAlias = Literal["always", "interval", "never"]
"""When a change counts as stored."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `penstock.open` beyond the URL."""

    sync: Sync = "always"
    clock: Clock | None = None
    dialect: Any = "doc"
    timeout: float | None = None
    peers: int = 0
    token: str | None = None
    ca: str | None = None

    def check_sync(self) -> None:
        """Refuse an unknown value of sync."""
        if self.sync not in get_args(Sync):
            raise InvalidArgument(f"sync={self.sync!r} is none of {', '.join(get_args(Sync))}")


@dataclass(frozen=True)
class Copy:
    """A backup: its size, and a row for each queue with the messages by state as `counts`."""

    bytes: int
    queues: list[dict[str, Any]]


class Kind:
    """A kind of store, as the rest of the program sees it. Each kind overrides the features that it has."""

    name: ClassVar[str]
    format_version: ClassVar[int | None] = None  # the next for a layout that older versions cannot read
    owned: ClassVar[bool] = False  # one process has the store open, and serves it to the others (sharing/)
    remote: ClassVar[bool] = False  # a server keeps the store, and does not see whether this process lives
    fenced: ClassVar[bool] = False  # opening the store on another machine takes it away from its owner
    has_log: ClassVar[bool] = False  # published messages are kept in a log, from which queues may start
    has_tables: ClassVar[bool] = False  # many processes at once read and write the store
    has_streams: ClassVar[bool] = False  # its queues are read and written as streams

    def check(self, url: str, options: Options) -> None:
        """Refuse options that the kind does not have."""
        if options.peers:
            raise InvalidArgument(f"peers={options.peers}: store {url!r} has none; that is for folder stores")

    def open(self, url: str, options: Options) -> Backend:
        """Open the store; one on disk is made if it does not exist."""
        raise NotImplementedError

    async def open_for_loop(self, url: str, options: Options) -> AsyncBackend | None:
        """Open the store for coroutines; None: open() it in a thread."""
        return None

    def open_owned(self, url: str, options: Options, locked: Callable[[], None]) -> Any:
        """Open the store for this process and its guests; calls `locked` once the store's lock is held."""
        raise NotImplementedError

    def meeting_folder(self, url: str) -> str:
        """The folder with the owner's socket, where other processes of this machine find it."""
        raise NotImplementedError

    def is_held(self, url: str) -> bool:
        """Whether a process holds the lock of a store that one process owns. Nothing is read for that."""
        return False

    def check_guest(self, url: str, backend: Backend) -> None:
        """Refuse a store whose owner has opened it with options that contradict the URL."""

    def tended(self, backend: Any) -> AbstractContextManager[None]:
        """Maintain the store while a server has it open."""
        return nullcontext()

    def exists(self, url: str) -> bool:
        """Whether a store exists, or a file in its place that opening would report. Creates nothing."""
        return True

    def how_to_make(self, url: str) -> str:
        """The command that makes a store at the URL."""
        return f"penstock --store {shlex.quote(url)} create jobs"

    def absolute(self, url: str) -> str:
        """The URL of the same store for a process in another folder."""
        _, path = split(url)
        if not path or "://" in path:  # an empty path, which opening refuses, or a bucket
            return url
        return url[: len(url) - len(path)].lower() + os.path.abspath(path)

    def files(self, url: str) -> str | None:
        """The folder or file with the store on this machine; None: it is in memory, or elsewhere."""
        path = split(self.absolute(url))[1].partition("?")[0]
        return None if not path or "://" in path else path

    def place(self, url: str) -> str:
        """One text for all URLs of a store; runs of jobs are identified by it."""
        return self.absolute(url)

    def only_queue(self, url: str) -> str | None:
        """The name of the queue, of a store that has only one."""
        return None

    def tables(self, url: str) -> Tables:
        """The tables of the store, for Spark. This imports Arrow."""
        raise NotSupported(f"store {url!r} has no tables")

    def packer(self, url: str) -> Packer:
        """Frees unused space of the store with Spark tasks."""
        raise NotSupported(f"store {url!r} has no journals to pack: --spark is for journal and slate stores")

    def examine(self, url: str) -> Examination[Any]:
        """Examine the store without changing it (`penstock doctor`)."""
        raise NotSupported(
            f"store {url!r} has no files to examine: give a store on disk or in a bucket, on a machine that has it"
        )

    def dump(self, url: str, dialect: Any) -> Iterator[Piece]:
        """A file of the store piece by piece, damaged ones too. Nothing is changed, and no lock is taken."""
        raise NotSupported(
            f"{url!r} has no entries to dump: give a file of a journal store, a file NAME.tq, or slate:DIR"
        )

    def backup(self, url: str, dest: str, verify: bool, progress: Callable[[int, int], object] | None) -> Copy:
        """Copy the store to a folder while other processes use it."""
        raise NotSupported(self.how_to_copy(url))

    def how_to_copy(self, url: str) -> str:
        """How a person copies a store of a kind that has no backup()."""
        return f"store {url!r} has no files: backup is for journal and slate stores, on the machine that has them"


def split(url: str) -> tuple[str, str]:
    """The scheme of a URL in lower case, and the rest. A plain path is a journal store, or text for `NAME.tq`."""
    matched = _SCHEME.match(url)
    if matched is None:
        return "text" if url.lower().endswith(".tq") else "journal", url
    return matched[1].lower(), url[matched.end() :]


def kind_of(url: str) -> Kind:
    """The kind of store at a URL; NotSupported for an unknown scheme."""
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
    """Whether a store exists at the URL; servers are not asked."""
    return kind_of(url).exists(url)


def check_exists(url: str) -> None:
    """Refuse a URL without a store, for callers that only read: opening would create one."""
    if not exists(url):
        raise PenstockError(f"no store at {url}: `{kind_of(url).how_to_make(url)}` makes one")


def absolute(url: str) -> str:
    """The URL of the same store for a process in another folder."""
    return kind_of(url).absolute(url)


def folder_has(folder: str, belongs: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Whether a folder contains an entry of a store, or a file is in its place, which opening reports."""
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
