"""Errors of the system in words: what is wrong with a path, and what to do about it."""

import errno
import os

from penstock.errors import StoreUnavailable
from penstock.system.files.door import StrPath

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
