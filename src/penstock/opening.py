"""From a URL to a store."""

import os
import shlex
from typing import TYPE_CHECKING

from penstock.contract.store import Store
from penstock.contract.urls import SCHEME, SHARED, check_remote, check_sync, is_remote, journal_folder
from penstock.engine.memory import open_memory
from penstock.errors import InvalidArgument, NotSupported, PenstockError
from penstock.system.clock import Clock

if TYPE_CHECKING:
    from penstock.stores.journal.format import Dialect


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
    matched = SCHEME.match(url)
    scheme = matched[1].lower() if matched else "journal"
    if peers and scheme != "folder":
        raise InvalidArgument(f"peers={peers}: store {url!r} has none; that is for folder stores")
    if scheme == "memory":
        return Store(url, open_memory(url[len("memory:") :], clock))
    if is_remote(url):
        from penstock.http.client.backend import open_remote

        check_remote(sync, dialect)
        return Store(url, open_remote(url, timeout, clock, token, ca))
    if scheme == "folder":
        from penstock.stores.folder.backend import open_folder

        return Store(url, open_folder(url[len("folder:") :], clock=clock, sync=sync, peers=peers))
    if scheme == "slate":
        from penstock.sharing.backend import open_shared_slate
        from penstock.stores.slate.opening import open_slate

        opened = open_shared_slate if share else open_slate
        return Store(url, opened(url, clock=clock, sync=sync, timeout=timeout))
    if (folder := journal_folder(url)) is not None:
        # Here, so that import penstock stays quick.
        from penstock.sharing.backend import open_shared
        from penstock.stores.journal.store import open_journal

        if not share:
            return Store(url, open_journal(folder, clock=clock, sync=sync, dialect=dialect))
        return Store(url, open_shared(folder, clock=clock, sync=sync, dialect=dialect, timeout=timeout))
    if scheme == "text" or url.endswith(".tq"):
        from penstock.stores.text.store import open_text

        return Store(url, open_text(url, clock=clock, sync=sync))
    raise NotSupported(
        f"store {url!r}: there is no kind of store {scheme!r}; give a folder, journal:DIR, text:DIR, NAME.tq, "
        "folder:DIR, slate:DIR, slate:s3://bucket/prefix, memory:, memory:NAME or http://host:port (a path with a "
        "colon in its first part can be written as ./path)"
    )


def is_file(url: str) -> bool:
    """Whether that is a store of a single text file, which is its queue."""
    matched = SCHEME.match(url)
    return url.endswith(".tq") and (matched is None or matched[1].lower() == "text")


def check_there(url: str) -> None:
    """Refuse a URL at which there is no store, for those who only read: opening would make one."""
    if not is_there(url):
        raise PenstockError(f"no store at {url}: `{_making(url)}` makes one")


def _making(url: str) -> str:
    """The command that makes a store at that URL."""
    if not is_file(url):
        return f"penstock --store {shlex.quote(url)} create jobs"
    matched = SCHEME.match(url)
    path = url[matched.end() :] if matched else url
    folder = os.path.dirname(path) or "."
    first = "" if os.path.isdir(folder) else f"mkdir -p {shlex.quote(folder)} && "
    return f"{first}touch {shlex.quote(path)}"


def is_there(url: str) -> bool:
    """Whether a store is at that URL, or something that opening it will explain. Nothing is made.

    A server is not asked, and an empty folder is no store.
    """
    matched = SCHEME.match(url)
    scheme = matched[1].lower() if matched else "journal"
    if scheme == "slate" and "://" in url:
        from penstock.stores.slate import moments

        return moments.exists(url)
    path = url[matched.end() :] if matched else url
    path = path.partition("?")[0] if scheme == "slate" else path
    if scheme not in ("journal", "slate", *SHARED) or not path:
        return True
    if path.endswith(".tq") and scheme in ("journal", "text"):
        return _leads_somewhere(path)
    try:
        with os.scandir(path) as entries:
            return any(_is_of_store(scheme, entry) for entry in entries)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    except OSError as error:
        from penstock.system.files import unavailable

        raise unavailable(path, error) from error


def _is_of_store(scheme: str, entry: os.DirEntry[str]) -> bool:
    """Whether a file or folder is there for the sake of a store of that kind."""
    if scheme == "text":
        return entry.name.endswith(".tq") and os.path.isfile(entry.path)
    if scheme == "folder":
        return entry.name in ("queues", "new") and entry.is_dir()
    if scheme == "slate":
        return entry.name == "db" and any(
            name.endswith(ending)
            for folder, ending in (("manifest", ".manifest"), ("wal", ".sst"))
            for name in _names(f"{entry.path}/{folder}")
        )
    from penstock.stores.journal.strays import USUAL

    if entry.name == ".penstock":
        return "queues" in _names(entry.path)
    # What may be Kestrel's; opening it tells.
    return entry.name not in USUAL and os.path.isfile(entry.path) and os.path.getsize(entry.path) > 0


def _leads_somewhere(path: str) -> bool:
    """Whether there is something, or a link to something; what cannot be looked at may be there."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
