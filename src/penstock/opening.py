"""From a URL to a store."""

import os
import re

from penstock.clock import Clock
from penstock.errors import InvalidArgument, NotSupported
from penstock.memory import open_memory
from penstock.store import Store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+]+):")  # at least two letters: C:\queues is a path
_SYNC = ("always", "interval", "never")
_PLANNED = {
    "journal": "the journal store",
    "text": "the text store",
    "folder": "the folder store",
    "slate": "the slate store",
    "http": "a remote store",
    "https": "a remote store",
}


def open(url: str | os.PathLike[str], *, sync: str = "always", clock: Clock | None = None) -> Store:  # noqa: A001
    """Open a store.

    url: `memory:` for a new store in memory, `memory:NAME` for one that this process shares by name
    sync: when a change counts as stored: "always" before the call returns; "interval" and "never" trade safety
        for speed, where a store has a disk to sync
    clock: where the store gets its time from; a `penstock.SimulatedClock` lets tests move it
    """
    if sync not in _SYNC:
        raise InvalidArgument(f"sync={sync!r} is none of {', '.join(_SYNC)}")
    url = os.fspath(url)
    matched = _SCHEME.match(url)
    scheme = matched[1].lower() if matched else "journal"
    if scheme == "memory":
        return Store(url, open_memory(url[len("memory:") :], clock))
    if url.endswith(".tq"):
        scheme = "text"
    if scheme not in _PLANNED:
        raise NotSupported(
            f"store {url!r}: there is no kind of store {scheme!r}; give memory: or memory:NAME (a path with "
            "a colon in its first part can be written as ./path)"
        )
    raise NotSupported(f"store {url!r}: {_PLANNED[scheme]} is not part of this version; open 'memory:' instead")
