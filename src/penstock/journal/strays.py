"""Files in a folder that are no journals. They are never taken over, moved or removed."""

import logging
import os
from collections.abc import Container, Iterable

from penstock.errors import StoreUnavailable
from penstock.files import Disk, File
from penstock.journal.catalog import FOLDER
from penstock.journal.format import Broken, Dialect, added, decode
from penstock.journal.segments import is_temporary, journals

_LOOKED_AT = 64 << 10  # bytes at the beginning of a file
_USUAL = ("lost+found", ".gitignore", ".gitkeep", ".DS_Store")  # in folders that people call empty
_TIMES = range(946_684_800_000, 4_102_444_800_000)  # of this century, in milliseconds
_log = logging.getLogger("penstock")


def check_folder(folder: str, disk: Disk, dialect: Dialect) -> None:
    """Refuse to make a store of a folder with files of others; one that was a store before stays one."""
    if not disk.exists(folder) or disk.exists(os.path.join(folder, FOLDER, "queues")):
        return
    files = set(disk.listfiles(folder))
    stray = ""
    for name in sorted(set(disk.listdir(folder)) - {FOLDER, *_USUAL}):
        path = os.path.join(folder, name)
        if name not in files or not is_journal(path, disk, dialect):
            stray = stray or name
        elif not is_temporary(name) and disk.status(path).size:
            return  # a Kestrel was here
    if stray:
        raise StoreUnavailable(
            f"{folder!r} is no store, and {stray!r} in it is no journal, so that nothing was touched: give the "
            "folder of a store, an empty one, or one that is not there yet"
        )


def is_journal(path: str, disk: Disk, dialect: Dialect) -> bool:
    """Whether a file has the name of a journal's, and begins as one."""
    name = os.path.basename(path)
    if is_temporary(name):  # no one ever reads it
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
    return True


def find_strays(
    folder: str, names: Iterable[str], known: Container[str], disk: Disk, dialect: Dialect
) -> dict[str, str]:
    """What looks like journals that the store does not know, and is none; each with the file that shows it."""
    found: dict[str, str] = {}
    for name in sorted(names):
        for journal in journals([name]):
            if journal in known or journal in found or is_journal(os.path.join(folder, name), disk, dialect):
                continue
            found[journal] = name
    return found


def warn(folder: str, name: str) -> None:
    """Tell of a file that is left alone."""
    _log.warning("%s is no journal, and is left alone: move it elsewhere", os.path.join(folder, name))
