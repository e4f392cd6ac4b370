"""What every disk can do with what it has: a look, folders, and small files that get new content as a whole."""

import errno
import os
from contextlib import suppress

from penstock.system.files.door import Data, Disk, Status, StrPath
from penstock.system.files.refusals import unavailable


def status_if_there(disk: Disk, path: StrPath) -> Status | None:
    """What a file or folder is; None if there is none."""
    try:
        return disk.status(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def make_folder(disk: Disk, path: StrPath) -> None:
    """Durably make a folder, and those above it that are missing."""
    missing, there = [], os.fspath(path)
    while not disk.exists(there):
        missing.append(there)
        there = os.path.dirname(there) or "."
    with suppress(PermissionError):  # a folder that others have made, where this user may not look
        # Even though it was there: who made it may have stopped before this.
        disk.sync_folder(os.path.dirname(there) or ".")
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was quicker
            disk.mkdir(each)
        disk.sync_folder(os.path.dirname(each) or ".")


def refuse_links(disk: Disk, folder: StrPath) -> None:
    """Refuse a folder with a symbolic link in it: another user may have put it there, and it may lead anywhere."""
    for name in disk.listlinks(folder):
        raise unavailable(os.path.join(folder, name), OSError(errno.ELOOP, os.strerror(errno.ELOOP)))


def write_hint(disk: Disk, path: StrPath, data: Data) -> None:
    """Give a file new content that may be lost or torn by a crash: for what can be checked and done without."""
    path = os.fspath(path)
    temporary = path + ".new"
    try:
        with suppress(FileNotFoundError):  # a new file, or a crash could bring back what an earlier one left in it
            disk.unlink(temporary)
        with disk.open(temporary, exclusive=True, mode=_mode(disk, path)) as file:
            file.write(0, data)
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise


def replace_file(disk: Disk, path: StrPath, data: Data, mode: int | None = None) -> None:
    """Durably give a small file new content: whenever the machine stops, it has the old or the new, whole.

    A file that is there keeps its mode; `mode` is for a new one. After an OSError the program reads either; the
    one that a crash leaves is as open. One writer at a time.
    """
    path = os.fspath(path)
    temporary = path + ".new"
    try:
        with suppress(FileNotFoundError):  # a crash may have left one behind
            disk.unlink(temporary)
        with disk.open(temporary, exclusive=True, mode=_mode(disk, path) if mode is None else mode) as file:
            file.write(0, data)
            file.sync()  # before the rename, else the new name may outlive its content
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync_folder(os.path.dirname(path) or ".")


def _mode(disk: Disk, path: str) -> int:
    status = status_if_there(disk, path)
    return 0o666 if status is None else status.mode
