"""URLs of stores: of which kind a store is, and where it lies. Nothing is opened."""

import os
import re

from penstock.errors import InvalidArgument

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+]+):")  # at least two letters: C:\queues is a path
SHARED = ("text", "folder")  # no process owns them
_REMOTE = ("http", "https")


def journal_folder(url: str) -> str | None:
    """The folder of a journal store; None if the URL is that of another kind."""
    matched = SCHEME.match(url)
    if url.endswith(".tq") or (matched and matched[1].lower() != "journal"):
        return None
    folder = url[len("journal:") :] if matched else url
    if not folder:
        raise InvalidArgument("journal: without a folder; give journal:DIR, or just the folder")
    return folder


def is_slate(url: str) -> bool:
    """Whether that is a slate store."""
    matched = SCHEME.match(url)
    return matched is not None and matched[1].lower() == "slate"


def is_remote(url: str) -> bool:
    """Whether a server keeps that store."""
    matched = SCHEME.match(url)
    return matched is not None and matched[1].lower() in _REMOTE


def is_file(url: str) -> bool:
    """Whether that is a store of a single text file, which is its queue."""
    matched = SCHEME.match(url)
    return url.endswith(".tq") and (matched is None or matched[1].lower() == "text")


def is_shared(url: str) -> bool:
    """Whether that is a store that any number of processes may open, without an owner."""
    matched = SCHEME.match(url)
    return url.endswith(".tq") or bool(matched and matched[1].lower() in SHARED)


def absolute(url: str) -> str:
    """The same store, for a process in another folder."""
    matched = SCHEME.match(url)
    if is_remote(url) or (matched and matched[1].lower() == "memory"):
        return url
    start = matched.end() if matched else 0
    if not url[start:] or "://" in url[start:]:  # nothing, of which opening tells, or a bucket
        return url
    return url[:start].lower() + os.path.abspath(url[start:])


def shared_folder(url: str) -> str:
    """The folder in which a store lies that any number of processes may open."""
    matched = SCHEME.match(url)
    path = url[matched.end() :] if matched else url
    return os.path.dirname(os.path.abspath(path)) if path.endswith(".tq") else os.path.abspath(path)
