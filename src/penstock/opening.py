"""From a URL to a store."""

import os
import re
import shlex
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.errors import InvalidArgument, NotSupported, PenstockError
from penstock.memory import open_memory
from penstock.store import Store

if TYPE_CHECKING:
    from penstock.journal.format import Dialect

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+]+):")  # at least two letters: C:\queues is a path
_SYNC = ("always", "interval", "never")
_SHARED = ("text", "folder")
_REMOTE = ("http", "https")


def open(  # noqa: A001
    url: str | os.PathLike[str],
    *,
    sync: str = "always",
    clock: Clock | None = None,
    dialect: "Dialect" = "doc",
    timeout: float | None = None,
    peers: int = 0,
    token: str | None = None,
    ca: str | None = None,
    share: bool = True,
) -> Store:
    """Open a store.

    url: a folder, or `journal:DIR`, for a store on disk, which is made if it is not there; `text:DIR` for one of
        text files that people read and edit, `NAME.tq` for one such file; `folder:DIR` for one with a file per
        message (many processes may open these at once); `memory:` for a new store in memory, `memory:NAME` for one
        that this process shares by name; `slate:DIR` or `slate:s3://bucket/prefix` for one in SlateDB, on disk or
        in a bucket (as AWS_ENDPOINT, AWS_ACCESS_KEY_ID and the like say); `http://host:port` or
        `https://host:port` for one that a server keeps (`penstock serve`)
    sync: when a change counts as stored: "always" before the call returns; "interval" and "never" trade safety
        for speed, where a store has a disk to sync
    dialect: of the journal store: "2.x" writes what a real Kestrel 2.x can take back
    clock: where the store gets its time from; a `penstock.SimulatedClock` lets tests move it
    peers: of the folder store: how many processes fetch from its queues beside this one; with some, each chooses
        at random among the first messages, so that they seldom go for the same
    token: of a server: the secret that `penstock token create` printed; otherwise that of $PENSTOCK_TOKEN
    ca: of an https server: a file with the certificates to trust (PEM); otherwise those of the system, or of
        $SSL_CERT_FILE
    timeout: of a server: the seconds that an answer may take, beyond the time that it was asked to wait; 60. Of a
        folder that another process has open: the same, and how long its owner is looked for if none answers; 10.
        Of a slate store: the seconds that its disk or its bucket may take for a change; 30
    share: of a folder: serve the store to other processes of this user that open it while this one has it; with
        False they get StoreLocked
    """
    check_sync(sync)
    url = os.fspath(url)
    matched = _SCHEME.match(url)
    scheme = matched[1].lower() if matched else "journal"
    if peers and scheme != "folder":
        raise InvalidArgument(f"peers={peers}: store {url!r} has none; that is for folder stores")
    if scheme == "memory":
        return Store(url, open_memory(url[len("memory:") :], clock))
    if is_remote(url):
        from penstock.client.keeper import open_remote

        check_remote(sync, dialect)
        return Store(url, open_remote(url, timeout, clock, token, ca))
    if scheme == "folder":
        from penstock.folder.keeper import open_folder

        return Store(url, open_folder(url[len("folder:") :], clock=clock, sync=sync, peers=peers))
    if scheme == "slate":
        from penstock.sharing.keeper import open_shared_slate
        from penstock.slate.opening import open_slate

        opened = open_shared_slate if share else open_slate
        return Store(url, opened(url, clock=clock, sync=sync, timeout=timeout))
    if (folder := journal_folder(url)) is not None:
        # Here, so that import penstock stays quick.
        from penstock.journal.store import open_journal
        from penstock.sharing.keeper import open_shared

        if not share:
            return Store(url, open_journal(folder, clock=clock, sync=sync, dialect=dialect))
        return Store(url, open_shared(folder, clock=clock, sync=sync, dialect=dialect, timeout=timeout))
    if scheme == "text" or url.endswith(".tq"):
        from penstock.text.store import open_text

        return Store(url, open_text(url, clock=clock, sync=sync))
    raise NotSupported(
        f"store {url!r}: there is no kind of store {scheme!r}; give a folder, journal:DIR, text:DIR, NAME.tq, "
        "folder:DIR, slate:DIR, slate:s3://bucket/prefix, memory:, memory:NAME or http://host:port (a path with a "
        "colon in its first part can be written as ./path)"
    )


def journal_folder(url: str) -> str | None:
    """The folder of a journal store; None if the URL is that of another kind."""
    matched = _SCHEME.match(url)
    if url.endswith(".tq") or (matched and matched[1].lower() != "journal"):
        return None
    folder = url[len("journal:") :] if matched else url
    if not folder:
        raise InvalidArgument("journal: without a folder; give journal:DIR, or just the folder")
    return folder


def is_slate(url: str) -> bool:
    """Whether that is a slate store."""
    matched = _SCHEME.match(url)
    return matched is not None and matched[1].lower() == "slate"


def is_remote(url: str) -> bool:
    """Whether a server keeps that store."""
    matched = _SCHEME.match(url)
    return matched is not None and matched[1].lower() in _REMOTE


def check_sync(sync: str) -> None:
    """Refuse what is no way to sync."""
    if sync not in _SYNC:
        raise InvalidArgument(f"sync={sync!r} is none of {', '.join(_SYNC)}")


def check_remote(sync: str, dialect: str) -> None:
    """Refuse to a client what the server has decided."""
    for name, given, usual in (("sync", sync, "always"), ("dialect", dialect, "doc")):
        if given != usual:
            raise InvalidArgument(f"{name}={given!r}: that is for the server to say; give it to `penstock serve`")


def is_shared(url: str) -> bool:
    """Whether that is a store that any number of processes may open, without an owner."""
    matched = _SCHEME.match(url)
    return url.endswith(".tq") or bool(matched and matched[1].lower() in _SHARED)


def check_there(url: str) -> None:
    """Refuse a URL at which there is no store, for those who only read: opening would make one."""
    if not is_there(url):
        shown = shlex.quote(url)
        make = f"touch {shown}" if url.endswith(".tq") else f"penstock --store {shown} create jobs"
        raise PenstockError(f"no store at {url}: `{make}` makes one")


def is_there(url: str) -> bool:
    """Whether a store is at that URL, or something that opening it will explain. Nothing is made.

    A server is not asked, and an empty folder is no store.
    """
    matched = _SCHEME.match(url)
    scheme = matched[1].lower() if matched else "journal"
    if scheme == "slate" and "://" in url:
        from penstock.slate import moments

        return moments.exists(url)
    path = url[matched.end() :] if matched else url
    path = path.partition("?")[0] if scheme == "slate" else path
    if scheme not in ("journal", "slate", *_SHARED) or not path:
        return True
    if path.endswith(".tq") and scheme != "folder":
        return os.path.lexists(path)
    try:
        with os.scandir(path) as entries:
            return any(_is_of_store(scheme, entry) for entry in entries)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    except OSError as error:
        from penstock.files import unavailable

        raise unavailable(path, error) from error


def _is_of_store(scheme: str, entry: os.DirEntry[str]) -> bool:
    """Whether a file or folder is there for the sake of a store of that kind."""
    if scheme == "text":
        return entry.name.endswith(".tq")
    if scheme == "folder":
        return entry.name in ("queues", "new") and entry.is_dir()
    if scheme == "slate":
        return entry.name == "db" and any(map(os.path.isdir, (f"{entry.path}/manifest", f"{entry.path}/wal")))
    return entry.name == ".penstock" or entry.is_file()  # which may be Kestrel's: opening it tells


def absolute(url: str) -> str:
    """The same store, for a process in another folder."""
    matched = _SCHEME.match(url)
    if is_remote(url) or (matched and matched[1].lower() == "memory"):
        return url
    start = matched.end() if matched else 0
    if "://" in url[start:]:  # a bucket
        return url
    return url[:start] + os.path.abspath(url[start:])


def shared_folder(url: str) -> str:
    """The folder in which a store lies that any number of processes may open."""
    matched = _SCHEME.match(url)
    path = url[matched.end() :] if matched else url
    return os.path.dirname(os.path.abspath(path)) if path.endswith(".tq") else os.path.abspath(path)
