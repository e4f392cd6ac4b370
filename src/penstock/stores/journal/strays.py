"""Stray files: files in a store's folder that are no journals. They are never adopted, moved or removed."""

import logging
import os
from collections.abc import Container, Iterable

from penstock.errors import StoreCorrupt, StoreUnavailable
from penstock.stores.journal.catalog import FOLDER
from penstock.stores.journal.files import is_temporary, journals
from penstock.stores.journal.format import Broken, Dialect, added, decode
from penstock.system.files import Disk, File

_LOOKED_AT = 64 << 10  # bytes read from the beginning of a file
USUAL = ("lost+found", ".gitignore", ".gitkeep", ".DS_Store")  # a folder with these alone is empty
_LATER = {"clean", "store", "ballast", "share"}
_TIMES = range(946_684_800_000, 4_102_444_800_000)  # of this century, in milliseconds
_log = logging.getLogger("penstock")


def check_folder(folder: str, disk: Disk, dialect: Dialect) -> None:
    """Refuse a folder with other files, unless it is a store already or a Kestrel's folder.

    StoreCorrupt: it was a store, and its folder of settings is missing.
    """
    subfolder, settings = os.path.join(folder, FOLDER), os.path.join(folder, FOLDER, "queues")
    later = _later(subfolder, disk)  # looked for first: another process may be making the store just now
    if not disk.exists(folder) or disk.exists(settings):
        return
    if later:
        raise StoreCorrupt(
            f"{settings!r} is missing: it has the names and settings of all queues. Nothing was changed: "
            f"put back a copy of that folder, or remove {subfolder!r} if all of them may have default settings"
        )
    files = set(disk.listfiles(folder))
    stray = ""
    for name in sorted(set(disk.listdir(folder)) - {FOLDER, *USUAL}):
        path = os.path.join(folder, name)
        if name not in files or not is_journal(path, disk, dialect):
            stray = stray or name
        elif not is_temporary(name) and disk.status(path).size:
            return  # a Kestrel's folder
    if stray:
        raise StoreUnavailable(
            f"{folder!r} is no store, and {stray!r} in it is no journal, so that nothing was touched: give the "
            "folder of a store, an empty one, or one that is not there yet"
        )


def _later(subfolder: str, disk: Disk) -> bool:
    """Whether the subfolder has files that a store makes only after its folder of settings is durable."""
    index = os.path.join(subfolder, "index")
    made = disk.listdir(subfolder) if disk.is_folder(subfolder) else []
    return not _LATER.isdisjoint(made) or (disk.is_folder(index) and bool(disk.listdir(index)))


def is_journal(path: str, disk: Disk, dialect: Dialect) -> bool:
    """Whether a file has the name and the beginning of a journal's file."""
    name = os.path.basename(path)
    if is_temporary(name):  # never read
        return True
    if not journals([name]):
        return False
    try:
        with disk.open(path) as file:
            return begins_as_journal(file, dialect)
    except FileNotFoundError:  # renamed or packed away meanwhile
        return True
    except PermissionError:
        return False


def begins_as_journal(file: File, dialect: Dialect) -> bool:
    """Whether entries can be read from the first on, until one adds an item; there need not be any.

    One entry is not enough: a table whose first column is empty begins with a tab, as REMOVE_TENTATIVE_XID does.
    """
    size, data, offset = file.size(), file.read(0, _LOOKED_AT), 0
    try:
        while offset < len(data):
            if (item := added(data, offset, dialect)) is not None:
                end, time = item
                return end <= size or time in _TIMES  # a crash may have cut it off
            _, offset = decode(data, offset, dialect)
    except Broken:
        return len(data) < size and offset > len(data) - 32  # cut off by where we looked
    # A text may be all REMOVE_TENTATIVE_XID ("\t@ls\n"); the numbers in one of Kestrel's have zeros.
    return not data.startswith(b"\t") or b"\0" in data


def find_strays(
    folder: str, names: Iterable[str], known: Container[str], disk: Disk, dialect: Dialect
) -> dict[str, str]:
    """Unknown journals by name that are none, each with the file that shows it."""
    found: dict[str, str] = {}
    for name in sorted(names):
        for journal in journals([name]):
            if journal in known or journal in found or is_journal(os.path.join(folder, name), disk, dialect):
                continue
            found[journal] = name
    return found


def warn(folder: str, name: str) -> None:
    """Warn of a stray file."""
    _log.warning("%s is no journal, and is left alone: move it elsewhere", os.path.join(folder, name))
