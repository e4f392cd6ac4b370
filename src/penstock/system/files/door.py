"""What a disk is to every store: `File` and `Disk`, which the system's and the simulated one both are."""

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, Self

StrPath = str | os.PathLike[str]
OWN_FOLDER = ".penstock"  # in a store's folder: everything of ours that is in no published format
Data = bytes | bytearray | memoryview
Kind = Literal["file", "folder", "link", "other"]  # other: a pipe, a socket, a device


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
