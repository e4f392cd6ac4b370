"""The Unix socket of a store's owner, in a folder that only its user can enter.

    .penstock/share/socket    the socket
    .penstock/share/path      the path of the socket elsewhere, if this one would be too long for a socket

The holder of the store's lock creates both, and removes them before it releases the lock. The next owner removes
what a killed owner left. This module does not use `Disk`: none of it has to survive a crash.
"""

import errno
import os
import select
import socket
import stat
import struct
import tempfile
from contextlib import suppress

from penstock.system.files import OWN_FOLDER, ReadingDisk, SystemDisk

_LONGEST = 107  # bytes of a socket's path
_PREFIX = "penstock-"  # of a folder elsewhere
_BACKLOG = 4_096
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def share_of(folder: str) -> str:
    """The folder of a store's socket, the same for all paths of the store."""
    return os.path.join(os.path.realpath(folder), OWN_FOLDER, "share")


def find(share: str) -> str:
    """The path where the socket is, if an owner listens."""
    with suppress(FileNotFoundError), ReadingDisk().open(os.path.join(share, "path")) as file:
        path = os.fsdecode(file.read(0, _LONGEST + 1))
        if _is_elsewhere(path):
            return path
    return os.path.join(share, "socket")


def _is_elsewhere(path: str) -> bool:
    """Whether bind() made this path for this user. Another user could have written any path."""
    folder = os.path.dirname(path)
    if os.path.basename(path) != "socket" or not os.path.basename(folder).startswith(_PREFIX):
        return False
    try:
        found = os.lstat(folder)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def bind(share: str) -> socket.socket:
    """Listen on the socket. The caller holds the store's lock."""
    with suppress(FileExistsError):
        os.mkdir(share, 0o700)
    if not stat.S_ISDIR(os.lstat(share).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), share)
    os.chmod(share, 0o700)
    remove(share)
    path = os.path.join(share, "socket")
    if len(os.fsencode(path)) <= _LONGEST:
        with suppress(OSError):  # not every file system has sockets
            return _listen(path)
    elsewhere = tempfile.mkdtemp(prefix=_PREFIX)  # only for this user, too
    path = os.path.join(elsewhere, "socket")
    new = os.path.join(share, "path.new")
    with suppress(FileNotFoundError):
        os.unlink(new)
    with SystemDisk().open(new, exclusive=True) as file:
        file.write(0, os.fsencode(path))
    os.replace(new, os.path.join(share, "path"))  # before the socket, so that a crash leaves no unknown socket
    try:
        return _listen(path)
    except BaseException:
        remove(share)
        raise


def remove(share: str) -> None:
    """Remove the socket. Open connections stay."""
    path = find(share)
    with suppress(OSError):
        os.unlink(path)
    if os.path.dirname(path) != share:
        with suppress(OSError):
            os.rmdir(os.path.dirname(path))
    with suppress(OSError):
        os.unlink(os.path.join(share, "path"))


def has_visitors(listening: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    return bool(poll.poll(0))


def user_of(connected: socket.socket) -> int:
    """The uid of the peer."""
    given = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(given)[1])


def connect(share: str, seconds: float) -> socket.socket:
    """A connection to the owner; OSError if none listens, or another user's process."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(seconds)
        connected.connect(find(share))
        check_user(user_of(connected))
    except BaseException:
        connected.close()
        raise
    return connected


def check_user(user: int) -> None:
    """Refuse a store that another user's process serves."""
    if user != os.geteuid():
        raise PermissionError(f"it belongs to user {user}, and this is user {os.geteuid()}")


def _listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
