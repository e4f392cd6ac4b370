"""What a disk is to every store: `File` and `Disk`, which the system's and the simulated one both are.

And what follows from that for every disk: errors in words, folders, small files that get new content as a whole.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol, Self

from penstock.errors import StoreUnavailable

StrPath = str | os.PathLike[str]
OWN_FOLDER = ".penstock"  # in a store's folder: everything of ours that is in no published format
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
    """What a file or folder is, apart from its bytes. Times are nanoseconds since the epoch."""

    size: int
    changed: int  # when the bytes changed, or what `set_changed` said
    moved: int  # when the name or anything else about it last changed; no program can set it
    names: int
    inode: int  # one number for as long as someone has the file open
    is_folder: bool
    mode: int = 0o666  # who may read and write it
    is_file: bool = True  # and no folder, pipe, socket or device


class File(Protocol):
    """An open file that is read and written at offsets. Use after `close` is an OSError (EBADF)."""

    path: str

    def size(self) -> int:
        """The size in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at offset; fewer than size only where the file ends."""

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """The bytes at offset if they are had without waiting for the disk, else None."""

    def append(self, data: Data, *, sync: bool = False) -> int:
        """Write at the end, wherever that is by then, and return the offset; durable if `sync`.

        Nothing that another program appends at the same time is written over (on Linux). Fails as `write` does.
        """

    def write(self, offset: int, data: Data) -> None:
        """Write at offset; a gap after the old end reads as zeros. An OSError may leave any first part of data."""

    def write_through(self, offset: int, data: Data) -> None:
        """`write` and `sync` in one; fails as either does."""

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros, to size; durable after `sync`."""

    def reserve(self, size: int) -> None:
        """Make sure that the file can grow to this size; it stays as it is. ENOSPC: there is not so much space."""

    def sync(self) -> None:
        """Make content and size durable. After an OSError they may be lost whatever a later sync says."""

    def lock(self, *, wait: bool = False) -> bool:
        """Lock the file against every other open of it, in any process; False: it is taken, and nobody waits."""

    def unlock(self) -> None:
        """Let go of the lock; closing the file, or the end of the process, does so too."""

    def status(self) -> Status:
        """What it is, apart from its bytes."""

    def set_changed(self, time: int) -> None:
        """Say when it was last written to, in nanoseconds; where that is not allowed, nothing happens."""

    def close(self) -> None:
        """Close the file; a second time does nothing. Closing does not sync."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class Disk(Protocol):
    """Names in folders. Every method fails with the OSError of its system call, and then changed nothing."""

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
        """Whether there is a file or folder; an error that leaves it unknown is raised, never False."""

    def is_folder(self, path: StrPath) -> bool:
        """Whether there is a folder of that name."""

    def kind(self, path: StrPath) -> Kind | None:
        """What a name stands for itself, without following a link; None: nothing."""

    def listdir(self, path: StrPath) -> list[str]:
        """The names in a folder, in no particular order."""

    def listfiles(self, path: StrPath) -> list[str]:
        """Those of them that are files themselves: no folders, links, pipes or sockets."""

    def listlinks(self, path: StrPath) -> list[str]:
        """Those of them that are symbolic links."""

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
        """Make files durable with all that belongs to them: bytes, times, attributes. Fails as `File.sync`."""

    def status(self, path: StrPath) -> Status:
        """What a file or folder is."""

    def set_changed(self, path: StrPath, time: int) -> None:
        """Say when a file changed, in nanoseconds since the epoch; durable after `sync_files`. Follows no link."""

    def attributes(self, path: StrPath) -> dict[str, bytes]:
        """The user's extended attributes, without `user.` before their names; ENOTSUP: there are none here.

        Neither this nor the next two follow a link, which has none.
        """

    def attribute(self, path: StrPath, name: str) -> bytes | None:
        """One of them; None if the file does not have it."""

    def set_attribute(self, path: StrPath, name: str, value: bytes) -> None:
        """Give a file an attribute, or another value of it; durable after `sync_files`. ENOTSUP as above."""

    def may_change(self, path: StrPath, *, times: bool = True) -> bool:
        """Whether this user may read and write a file, and set its times, which only its owner may."""

    def is_being_written(self, path: StrPath) -> bool:
        """Whether someone has the file open to write, as far as the system can tell."""


# Errors in words


def refusal(path: StrPath, error: OSError) -> str:
    """Why the system refuses a path, and the next step."""
    words = _WORDS.get(error.errno or 0)
    return f"{os.fspath(path)!r}: " + (words or f"the disk failed ({error.strerror or error}): see `dmesg`")


def is_refused(error: OSError) -> bool:
    """Whether the system has refused to do something, rather than failed at it or had no space."""
    return error.errno in _WORDS and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT)


def unavailable(path: StrPath, error: OSError) -> StoreUnavailable:
    """The error for a path of a store that the system refuses."""
    return StoreUnavailable(refusal(path, error))


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


# Folders and small files


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


def remove_folder(disk: Disk, folder: str) -> None:
    """Remove a folder that has only files, if it is there."""
    with suppress(FileNotFoundError):
        for name in disk.listdir(folder):
            with suppress(FileNotFoundError):
                disk.unlink(os.path.join(folder, name))
        disk.rmdir(folder)
