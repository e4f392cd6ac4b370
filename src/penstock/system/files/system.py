"""The disk of the operating system."""

import ctypes
import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

from penstock.system.files.door import Data, Kind, Status, StrPath

_SYNCERS = 16  # threads of sync_files: the file system commits concurrent syncs together

# A closed file gets a descriptor that Linux never hands out (its limit is a little below 2**31), so that using
# it is EBADF from every call without a check in each. Not -1: some of Python's calls raise ValueError for it.
_CLOSED = 2**31 - 1


_DSYNC: int = getattr(os, "RWF_DSYNC", 0)  # 0: not Linux
_APPEND: int = getattr(os, "RWF_APPEND", 0)
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_ITSELF = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # no link is followed, no pipe is waited for
_SETLEASE: int = getattr(fcntl, "F_SETLEASE", 1024)
_USER = "user."
_PROCESSES = Path("/proc")
_MOST_LINKS = 40  # in a chain; no system follows more
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def allocate(descriptor: int, offset: int, size: int) -> bool:
    """Allocate space without changing the size, which Python's posix_fallocate would; False: not possible here."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:  # not Linux
        return False
    keep_size, number = 1, errno.EINTR
    while number == errno.EINTR:  # by a signal
        if fallocate(descriptor, keep_size, ctypes.c_longlong(offset), ctypes.c_longlong(size)) == 0:
            return True
        number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))


class SystemFile:
    """A file of the operating system."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._locked_by = 0  # the process that has taken the flock, or is about to

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def read_cached(self, offset: int, size: int) -> bytes | None:
        data = bytearray(size)
        try:
            if _NOWAIT and os.preadv(self._descriptor, [data], offset, _NOWAIT) == size:
                return bytes(data)
        except OSError:  # not cached, or an error that read() will raise
            pass
        return None

    def append(self, data: Data, *, sync: bool = False) -> int:
        # Not O_APPEND: with it Linux appends every pwrite, whatever its offset.
        if not _APPEND or not data:
            offset = os.lseek(self._descriptor, 0, os.SEEK_END)
            (self.write_through if sync else self.write)(offset, data)
            return offset
        flags, size = _APPEND | (_DSYNC if sync else 0), len(data)
        written = os.pwritev(self._descriptor, [data], -1, flags)  # -1: at the end, and the position moves there
        offset = os.lseek(self._descriptor, 0, os.SEEK_CUR) - written
        while written < size:
            written += os.pwritev(self._descriptor, [memoryview(data)[written:]], -1, flags)
            if os.lseek(self._descriptor, 0, os.SEEK_CUR) != offset + written:
                raise OSError(errno.EIO, "another program has appended in the middle of a write", self.path)
        return offset

    def write(self, offset: int, data: Data) -> None:
        while (written := os.pwrite(self._descriptor, data, offset)) < len(data):
            data = memoryview(data)[written:]
            offset += written

    def write_through(self, offset: int, data: Data) -> None:
        if not _DSYNC:
            self.write(offset, data)
            self.sync()
            return
        while (written := os.pwritev(self._descriptor, [data], offset, _DSYNC)) < len(data):
            data = memoryview(data)[written:]
            offset += written

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def reserve(self, size: int) -> None:
        held = os.fstat(self._descriptor).st_size
        if size > held and not allocate(self._descriptor, held, size - held):
            free = os.fstatvfs(self._descriptor)
            if free.f_bavail * free.f_frsize < size - held:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def lock(self, *, wait: bool = False) -> bool:
        self._locked_by = os.getpid()  # before the flock: another thread may fork meanwhile
        _locked.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            self._locked_by = 0
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._locked_by = 0

    def status(self) -> Status:
        return _status(os.fstat(self._descriptor))

    def set_changed(self, time: int) -> None:
        with suppress(PermissionError):
            os.utime(self._descriptor, ns=(time, time))

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            if self._locked_by == os.getpid():
                # Closing is not enough: a child that was forked meanwhile shares the open file and its lock.
                # The child itself only closes: the lock is its parent's.
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A file may be replaced while a reader has the old one; the last reader closes it.
        self.close()


_locked: "weakref.WeakSet[SystemFile]" = weakref.WeakSet()  # now, or some time ago


def _forked() -> None:
    """In a child: close locked files, so that a lock ends with the parent that holds it."""
    for file in list(_locked):
        if file._locked_by:
            file.close()


os.register_at_fork(after_in_child=_forked)


class SystemDisk:
    """The file systems of the machine."""

    def open(
        self,
        path: StrPath,
        *,
        create: bool = False,
        exclusive: bool = False,
        follow: bool = False,
        mode: int = 0o666,
    ) -> SystemFile:
        flags = os.O_RDWR
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return _opened(path, flags, follow, mode)

    def exists(self, path: StrPath) -> bool:
        # os.path.exists would call a file that cannot be looked at (EIO, EACCES) absent.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_folder(self, path: StrPath) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def kind(self, path: StrPath) -> Kind | None:
        try:
            return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "other")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def listdir(self, path: StrPath) -> list[str]:
        return os.listdir(path)

    def listfiles(self, path: StrPath) -> list[str]:
        with os.scandir(path) as found:
            return [each.name for each in found if each.is_file(follow_symlinks=False)]

    def listlinks(self, path: StrPath) -> list[str]:
        with os.scandir(path) as found:
            return [each.name for each in found if each.is_symlink()]

    def mkdir(self, path: StrPath) -> None:
        os.mkdir(path)

    def rmdir(self, path: StrPath) -> None:
        os.rmdir(path)

    def rename(self, source: StrPath, target: StrPath) -> None:
        os.replace(source, target)

    def link(self, source: StrPath, target: StrPath) -> None:
        os.link(source, target)

    def unlink(self, path: StrPath) -> None:
        os.unlink(path)

    def real(self, path: StrPath) -> str:
        return _real(path)

    def copy_facts(self, source: StrPath, target: StrPath) -> None:
        there = os.stat(source)
        if (there.st_uid, there.st_gid) != (os.stat(target).st_uid, os.stat(target).st_gid):
            os.chown(target, there.st_uid, there.st_gid)
        try:
            for name in os.listxattr(source):
                os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
        os.chmod(target, stat.S_IMODE(there.st_mode))

    def sync_folder(self, path: StrPath) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_files(self, paths: Sequence[StrPath]) -> None:
        if len(paths) < _SYNCERS // 4:
            for path in paths:
                _fsync(path)
            return
        with ThreadPoolExecutor(_SYNCERS) as pool:
            list(pool.map(_fsync_all, (paths[first::_SYNCERS] for first in range(_SYNCERS))))

    def status(self, path: StrPath) -> Status:
        return _status(os.stat(path))

    def set_changed(self, path: StrPath, time: int) -> None:
        try:
            os.utime(path, ns=(time, time), follow_symlinks=False)
        except OSError as error:  # without the file's name
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error

    def attributes(self, path: StrPath) -> dict[str, bytes]:
        found = {}
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_USER) and (value := self.attribute(path, name[len(_USER) :])) is not None:
                found[name[len(_USER) :]] = value
        return found

    def attribute(self, path: StrPath, name: str) -> bytes | None:
        try:
            return os.getxattr(path, _USER + name, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise

    def set_attribute(self, path: StrPath, name: str, value: bytes) -> None:
        os.setxattr(path, _USER + name, value, follow_symlinks=False)

    def may_change(self, path: StrPath, *, times: bool = True) -> bool:
        may = os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        return may and (not times or os.geteuid() in (0, os.stat(path).st_uid))

    def is_being_written(self, path: StrPath) -> bool:
        descriptor = os.open(path, _ITSELF)
        try:
            fcntl.fcntl(descriptor, _SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, _SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN
        finally:
            os.close(descriptor)
        return False


def _opened(path: StrPath, flags: int, follow: bool, mode: int = 0o666) -> SystemFile:
    # A link in a folder that another user has prepared may lead anywhere.
    real = _real(path) if follow else path
    file = SystemFile(os.fspath(path), os.open(real, flags | os.O_NOFOLLOW, mode))
    if not stat.S_ISREG(os.fstat(file._descriptor).st_mode):
        file.close()
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), os.fspath(path))
    return file


def _real(path: StrPath) -> str:
    """The target of a path; ELOOP for another user's link to a file that does not belong to that user."""
    at, owners = os.fspath(path), set()
    for _ in range(_MOST_LINKS):
        if not os.path.islink(at):
            break
        owners.add(os.lstat(at).st_uid)
        at = os.path.join(os.path.dirname(at), os.readlink(at))
    if not owners:
        return at
    with suppress(FileNotFoundError):
        owners.discard(os.stat(path).st_uid)
    if owners - {os.geteuid(), 0}:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return os.path.realpath(path)


def _fsync_all(paths: Sequence[StrPath]) -> None:
    for path in paths:
        _fsync(path)


def _fsync(path: StrPath) -> None:
    descriptor = os.open(path, _ITSELF)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _status(found: os.stat_result) -> Status:
    return Status(
        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink, found.st_ino,
        stat.S_ISDIR(found.st_mode), stat.S_IMODE(found.st_mode), stat.S_ISREG(found.st_mode),
    )  # fmt: skip


class ReadingDisk(SystemDisk):
    """A read-only disk: needs only the right to read, and cannot change a file by mistake."""

    def open(
        self,
        path: StrPath,
        *,
        create: bool = False,
        exclusive: bool = False,
        follow: bool = False,
        mode: int = 0o666,
    ) -> SystemFile:
        if create or exclusive:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
        return _opened(path, os.O_RDONLY | os.O_NONBLOCK, follow)  # NONBLOCK: a pipe would wait for a writer


# Other programs that have a file open to append to it, such as a shell's `>>`, as far as Linux tells


def identity(path: StrPath) -> tuple[int, int] | None:
    """(device, inode) of a file, which stay through renames; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def appenders(file: tuple[int, int] | None) -> list[int]:
    """The pids of processes that have a file open to append or write-only; none without /proc."""
    try:
        processes = [each for each in _PROCESSES.iterdir() if each.name.isdigit()] if file else []
    except OSError:
        return []
    return sorted(int(each.name) for each in processes if _appends(each, file))


def _appends(process: Path, file: tuple[int, int] | None) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            if identity(descriptor) == file:
                flags = int((process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0], 8)
                if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_APPEND:
                    return True
    except OSError:  # the process has ended, or is another user's
        pass
    return False
