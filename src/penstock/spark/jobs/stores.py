"""The store that a job works on."""

import os

from penstock.errors import NotSupported, PenstockError
from penstock.opening import journal_folder


def folder_of(store: str | os.PathLike[str]) -> str:
    """The folder of a journal store, for processes that may be elsewhere in the file system."""
    folder = journal_folder(os.fspath(store))
    if folder is None:
        raise NotSupported(f"store {os.fspath(store)!r} has no journals to pack: this is for journal stores")
    if not os.path.isdir(folder):  # opening would make it
        raise PenstockError(f"there is no store {os.path.abspath(folder)!r}: no such folder")
    return os.path.abspath(folder)
