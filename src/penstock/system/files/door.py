"""The interfaces `File` and `Disk`, of the system's and of the simulated disk.

Also functions for any disk: error texts, folders, atomic replacement of small files.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol, Self

from penstock.errors import StoreUnavailable

StrPath = str | os.PathLike[str]
OWN_FOLDER = ".penstock"  # a store's subfolder for files that are in no published format
Data = bytes | bytearray | memoryview
Kind = Literal["file", "folder", "link", "other"]  # other: a pipe, a socket, a device
_WORDS = {
    errno.EACCES: "permission denied: ask the owner of the file for access, or run as a user who has it",
    errno.EPERM: "permission denied: ask the owner of the file for access, or run as a user who has it",
    errno.EROFS: "the file system is read-only: remount it for writing, or use a copy elsewhere",
    errno.ENOENT: "this is gone: somebody has moved or deleted it",
    errno.EISDIR: "this is a folder, where a file belongs: move it away",
    errno.ENOTDIR: "this is a file, where a folder belongs: move it away",
    errno.ELOOP: "this is a symbolic link, and links in a store are not followed: put the file itself there",
    errno.EMLINK: "this file has several names (hard links), and no attribute says which of them has the lock: "
    "use the name that was used first, or a symbolic link to it",
    errno.ENXIO: "this is a pipe or a socket, where a file belongs: move it away",
    errno.ENOSPC: "no space is left on the disk: free some, and try again",
    errno.EDQUOT: "the disk quota is used up: free some space, and try again",
    errno.EFBIG: "the file may not grow as this process is limited: raise `ulimit -f`",
    errno.EMFILE: "this process has too many files open: raise `ulimit -n`",
    errno.ENFILE: "this machine has too many files open: close some programs, and try again",
}


class Status(NamedTuple):
    """The metadata of a file or folder. Times are nanoseconds since the epoch."""

    size: int
    changed: int  # mtime: when the bytes changed, or the time of `set_changed`
    moved: int  # ctime: when name or metadata changed; no program can set it
    names: int
    inode: int  # unique while the file is open
    is_folder: bool
    mode: int = 0o666  # permissions
    is_file: bool = True  # not a folder, pipe, socket or device


class File(Protocol):
    """An open file that is read and written at offsets. Use after `close` is an OSError (EBADF)."""

    path: str

    def size(self) -> int:
        """The size in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at offset; fewer than size only where the file ends."""

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """The bytes at offset if they are cached in memory, else None."""

    def append(self, data: Data, *, sync: bool = False) -> int:
        """Write at the current end, and return the offset; durable if `sync`.

        On Linux, it never overwrites what another program appends at the same time. Fails as `write` does.
        """

    def write(self, offset: int, data: Data) -> None:
        """Write at offset; a gap after the old end reads as zeros. An OSError may leave any first part of data."""

    def write_through(self, offset: int, data: Data) -> None:
        """`write` and `sync` in one; fails as either does."""

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros, to size; durable after `sync`."""

    def reserve(self, size: int) -> None:
        """Allocate space so that the file can grow to this size, without growing it; ENOSPC."""

    def sync(self) -> None:
        """Make content and size durable. After an OSError they may be lost whatever a later sync says."""

    def lock(self, *, wait: bool = False) -> bool:
        """Lock the file against other handles, in any process; False: it is locked, and `wait` is False."""

    def unlock(self) -> None:
        """Release the lock; close() and the end of the process release it too."""

    def status(self) -> Status:
        """The file's metadata."""

    def set_changed(self, time: int) -> None:
        """Set the time of the last change, in nanoseconds; does nothing where that is not allowed."""

    def close(self) -> None:
        """Close the file; a second time does nothing. Closing does not sync."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class Disk(Protocol):
    """Names in folders. A method that fails raises the OSError of its system call and has changed nothing."""

    def open(
        self,
        path: StrPath,
        *,
        create: bool = False,
        exclusive: bool = False,
        follow: bool = False,
        mode: int = 0o666,
    ) -> File:
        """Open a file to read and write. `exclusive` creates it or raises FileExistsError.

        A link is ELOOP unless it is to be followed, as far as `real` does; a pipe, a socket or a device is ENXIO.
        `mode` is what a new file allows at most.
        """

    def exists(self, path: StrPath) -> bool:
        """Whether a file or folder exists; OSError if that is unknown."""

    def is_folder(self, path: StrPath) -> bool:
        """Whether a folder of that name exists."""

    def kind(self, path: StrPath) -> Kind | None:
        """The kind of a name, without following links; None if it does not exist."""

    def listdir(self, path: StrPath) -> list[str]:
        """The names in a folder, in no particular order."""

    def listfiles(self, path: StrPath) -> list[str]:
        """The names of regular files: no folders, links, pipes or sockets."""

    def listlinks(self, path: StrPath) -> list[str]:
        """The names of symbolic links."""

    def mkdir(self, path: StrPath) -> None:
        """Create a folder in one that exists; FileExistsError if the name is taken."""

    def rmdir(self, path: StrPath) -> None:
        """Remove an empty folder."""

    def rename(self, source: StrPath, target: StrPath) -> None:
        """Move a file, at once replacing a target that exists; two names of one file both stay as they are."""

    def link(self, source: StrPath, target: StrPath) -> None:
        """Give a file a second name; FileExistsError if that is taken."""

    def unlink(self, path: StrPath) -> None:
        """Take a file's name away; the content goes with its last name and its last open handle."""

    def real(self, path: StrPath) -> str:
        """The path that a symbolic link leads to; any other path as it is.

        ELOOP: another user has made the link, and the file that it leads to is not theirs.
        """

    def copy_facts(self, source: StrPath, target: StrPath) -> None:
        """Give a file the owner, permissions and extended attributes of another."""

    def sync_folder(self, path: StrPath) -> None:
        """Make the names in a folder durable. After an OSError they may be lost whatever a later sync says."""

    def sync_files(self, paths: Sequence[StrPath]) -> None:
        """Make files durable with bytes, times and attributes. Fails as `File.sync`."""

    def status(self, path: StrPath) -> Status:
        """The metadata of a file or folder."""

    def set_changed(self, path: StrPath, time: int) -> None:
        """Set when a file changed, in nanoseconds since the epoch; durable after `sync_files`. Follows no link."""

    def attributes(self, path: StrPath) -> dict[str, bytes]:
        """The user's extended attributes, without `user.` before their names; ENOTSUP: there are none here.

        Neither this nor the next two follow a link, which has none.
        """

    def attribute(self, path: StrPath, name: str) -> bytes | None:
        """One extended attribute; None if the file does not have it."""

    def set_attribute(self, path: StrPath, name: str, value: bytes) -> None:
        """Set an extended attribute; durable after `sync_files`. ENOTSUP as above."""

    def may_change(self, path: StrPath, *, times: bool = True) -> bool:
        """Whether this user may read and write a file, and set its times, which only its owner may."""

    def is_being_written(self, path: StrPath) -> bool:
        """Whether a process has the file open for writing, as far as the system knows."""


# Error texts


def refusal(path: StrPath, error: OSError) -> str:
    """The text of an OSError: why the system refuses a path, and the next step."""
    words = _WORDS.get(error.errno or 0)
    return f"{os.fspath(path)!r}: " + (words or f"the disk failed ({error.strerror or error}): see `dmesg`")


def is_refused(error: OSError) -> bool:
    """Whether the system refused access, rather than failed or had no space."""
    return error.errno in _WORDS and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT)


def unavailable(path: StrPath, error: OSError) -> StoreUnavailable:
    """The error for a path of a store that the system refuses."""
    return StoreUnavailable(refusal(path, error))


def is_full(error: OSError) -> bool:
    """Whether the disk or the quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


# Folders and small files


def status_if_there(disk: Disk, path: StrPath) -> Status | None:
    """The metadata of a file or folder; None if it does not exist."""
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
    with suppress(PermissionError):  # another user's folder
        # Even if it existed: the process that made it may have stopped before this sync.
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
    """Replace the content of a file that may be lost or torn by a crash: for checked, optional data."""
    _rename_over(disk, os.fspath(path), data, mode=None, sync=False)


def replace_file(
    disk: Disk,
    path: StrPath,
    data: Data,
    mode: int | None = None,
    sync_names: Callable[[], None] | None = None,
) -> None:
    """Durably replace the content of a small file: a crash leaves the old or the new content, whole.

    An existing file keeps its mode unless one is given. After an OSError the file has either content, now and
    after a crash. One writer at a time. `sync_names` syncs the folder, where callers share that.
    """
    path = os.fspath(path)
    _rename_over(disk, path, data, mode, sync=True)
    if sync_names is None:
        disk.sync_folder(os.path.dirname(path) or ".")
    else:
        sync_names()


def _rename_over(disk: Disk, path: str, data: Data, mode: int | None, sync: bool) -> None:
    temporary = path + ".new"
    try:
        with suppress(FileNotFoundError):  # a crash may have left one, and could bring back its content
            disk.unlink(temporary)
        if mode is None:
            status = status_if_there(disk, path)
            mode = 0o666 if status is None else status.mode
        with disk.open(temporary, exclusive=True, mode=mode) as file:
            file.write(0, data)
            if sync:
                file.sync()  # before the rename, else the new name may outlive its content
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise


def remove_folder(disk: Disk, folder: str) -> None:
    """Remove a folder that contains only files, if it exists, also while a writer still adds files."""
    while disk.exists(folder):
        with suppress(FileNotFoundError):
            for name in disk.listdir(folder):
                with suppress(FileNotFoundError):
                    disk.unlink(os.path.join(folder, name))
            try:
                disk.rmdir(folder)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
