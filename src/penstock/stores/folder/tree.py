"""File operations of a folder store: new ids, names, attributes and times, contents, durability of messages."""

import errno
import itertools
import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from penstock.errors import NotSupported, StoreUnavailable
from penstock.stores.folder import layout, stamps
from penstock.stores.folder.stamps import Details, Holder, Stamp
from penstock.system import files
from penstock.system.files import Disk, Status, make_folder, status_if_there

MILLISECOND = 1_000_000  # in nanoseconds
_MOST_STRAYS = 1_000  # that are logged
_STRAYS = {
    "link": "a symbolic link, and links in a store are not followed: put the file itself there",
    "folder": "a folder, where messages lie: move it away",
    "other": "a pipe, a socket or a device, where messages lie: move it away",
}
OTHERS = "a file of another user, or one that may not be written: change its owner and mode"
_log = logging.getLogger("penstock")
_CHECKED = re.compile("-([0-9a-f]{8})$")
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS)


class _OperationState(threading.local):
    """The changes that a thread's operation has made so far."""

    def __init__(self) -> None:
        self.held: list[str] = []  # paths of messages that it has taken
        self.has_effect = False


class Tree:
    """The folder of a store, for one process. Names are relative to the store's folder, paths are whole."""

    def __init__(self, root: str, disk: Disk, process: str, synced: bool, now: Callable[[], int]) -> None:
        self.root = root
        self.disk = disk
        self.process = process
        self.held = f"{layout.HELD}/{process}"
        self.has_attributes = True
        self.is_adopted = False  # whether MQ-Core made the folder and Penstock opens it for the first time
        self._synced, self._now = synced, now
        self._node, self._sequence = layout.node_of(process), int.from_bytes(os.urandom(2), "big") & 0x3FFF
        self.order = 0  # of the latest id that this process made or saw
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._operation = _OperationState()
        self._unsynced: set[str] = set()  # folders into which a taken message was put back
        self._strays: set[str] = set()  # paths that were logged

    def open(self) -> None:
        """Make the missing folders, and the private folder of this process."""
        make_folder(self.disk, self.root)
        self._check_root()
        for name in (*layout.FOLDERS, self.held):
            with suppress(FileExistsError):
                self.disk.mkdir(self.path(name))
            self._check_folder(name)
        for path in (self.root, *map(self.path, (layout.OWN, layout.HELD))):
            # Even if nothing is new there: the process that made the folders may have died before this sync.
            self._sync_folder(path)
        self.has_attributes = self._try_attributes()

    def _check_folder(self, name: str) -> None:
        if (kind := self.kind(name)) != "folder":  # a link may lead to files of other programs
            raise OSError(errno.ELOOP if kind == "link" else errno.ENOTDIR, "", self.path(name))

    def check_folders(self) -> None:
        """Make folders again that were deleted, and refuse a link in the place of a folder."""
        for name in layout.FOLDERS:
            if self.kind(name) is None:
                with suppress(FileExistsError):
                    self.disk.mkdir(self.path(name))
                self._sync_folder(os.path.dirname(self.path(name)))
                _log.warning("the folder %s was missing, and was made again", self.path(name))
            self._check_folder(name)

    def _check_root(self) -> None:
        """Refuse a folder with other content: the reaper would unlink every file in its remove/."""
        names = set(self.disk.listdir(self.root)) - {"lost+found"}
        if self.kind(layout.HELD) is not None:
            return
        if all(self.kind(each) == "folder" for each in layout.MQ_CORE):
            self.is_adopted = layout.OWN not in names
            return
        own = self.disk.listdir(self.path(layout.OWN)) if layout.OWN in names else []
        strange = names - {layout.OWN, *layout.SEEN} | {f"{layout.OWN}/{each}" for each in own} - {*layout.FOLDERS}
        strange |= {
            each for each in names & {*layout.SEEN} if self.names(each)
        }  # a start that was cut off made none
        if strange:
            raise StoreUnavailable(
                f"{self.root!r} is no folder store, as there is {min(strange)!r} in it: give a folder of its own, "
                "which is made if it is not there"
            )

    def close(self) -> None:
        """Remove the private folder. If it is not empty, the next process recovers its messages."""
        try:
            if self._unsynced:  # or else a machine that stops could keep a private name without its folder
                self.sync(*sorted(self._unsynced), self.held)
            self.disk.rmdir(self.path(self.held))
        except OSError:
            self.abandon()

    def abandon(self) -> None:
        """Leave the messages in the private folder to other processes, although this one lives."""
        with suppress(OSError):
            self.disk.open(self.path(f"{self.held}/{layout.ABANDONED}"), create=True).close()

    # The operation of a thread

    def begin(self) -> None:
        """Start a new operation of this thread."""
        self._operation.held, self._operation.has_effect = [], False

    def take_effect(self, value: bool = True) -> None:
        """From here on a failed operation cannot be undone. False: its changes so far are complete."""
        self._operation.has_effect = value

    @property
    def has_effect(self) -> bool:
        """Whether this thread's operation has changed the store, so that it cannot be undone."""
        return self._operation.has_effect

    @contextmanager
    def separate_effect(self) -> Iterator[None]:
        """A complete change of its own: once it succeeds, the operation around it can still be undone."""
        has_effect = self._operation.has_effect
        yield
        self._operation.has_effect = has_effect

    def still_held(self) -> list[str]:
        """Paths of the messages that this thread's operation has taken and not moved on."""
        return [path for path in self._operation.held if self.disk.exists(path)]

    def try_to_write(self) -> None:
        """OSError if nothing can be written."""
        path = self.path(f"{self.held}/{layout.PROBE}")
        self.disk.open(path, create=True).close()
        self.disk.unlink(path)

    def _try_attributes(self) -> bool:
        path = self.path(f"{self.held}/{layout.PROBE}")
        self.disk.open(path, create=True).close()
        try:
            self.disk.set_attribute(path, stamps.PREFIX + "probe", b"1")
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
            return False
        finally:
            self.disk.unlink(path)
        return True

    def path(self, name: str) -> str:
        """The path of a name in the store."""
        return os.path.join(self.root, name)

    def place(self, folder: str, queue: str, uid: str) -> str:
        """The path of a message in one of the store's folders."""
        return self.path(layout.message_path(folder, queue, uid))

    def next_ids(self, now: int, count: int) -> list[str]:
        """New ids in the order of arrival, after every id that this process knows."""
        with self._lock:
            first = max(layout.first_order(now), self.order + 1)
            self.order = first + count - 1
        return [layout.make_id(order, self._sequence, self._node) for order in range(first, first + count)]

    def _next_order(self) -> int:
        with self._lock:
            self.order = max(layout.first_order(self._now()), self.order + 1)
            return self.order

    def follow_order(self, order: int) -> None:
        """Make later ids than this one from now on, unless it is more than a day ahead."""
        if order <= layout.first_order(self._now()) + layout.LONG_AHEAD:
            with self._lock:
                self.order = max(self.order, order)

    # Names

    def take(
        self, origin: str, queue: str, uid: str, until: int = 0, leased: bool = False, redriven: bool = True
    ) -> str | None:
        """Rename a message into the private folder; its path there, or None if another process took it first."""
        held = self.private(origin, queue, uid, until, leased, redriven)
        source = self.place(origin, queue, uid)
        if self.move(source, held):
            return held
        if not self.disk.exists(self.path(self.held)):  # another host took this process for dead
            with suppress(FileExistsError):
                self.disk.mkdir(self.path(self.held))
            self.sync(layout.HELD)
            return held if self.move(source, held) else None
        return None

    def private(
        self, origin: str, queue: str, uid: str, until: int = 0, leased: bool = False, redriven: bool = True
    ) -> str:
        """A new path in the private folder; a failed operation puts back what is there."""
        name = layout.held_name(origin, until, self._next_order(), queue, uid, leased, redriven)
        held = self.path(f"{self.held}/{name}")
        self._operation.held.append(held)
        return held

    def put_back(self, held: str, origin: str, queue: str, uid: str) -> bool:
        """Rename a taken message back, as recovery would; False if another process already has."""
        self._unsynced.add(home(origin, queue))
        return self.move(held, self.place(origin, queue, uid))

    def move(self, source: str, target: str) -> bool:
        """Rename; False if the source or the target's folder is gone."""
        try:
            self.disk.rename(source, target)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it is gone."""
        try:
            return self.disk.listdir(self.path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def messages(self, folder: str) -> list[tuple[str, str]]:
        """Queue and id of each message in one of the folders that all queues share."""
        return [parsed for name in self.names(folder) if (parsed := layout.parse_flat(name)) is not None]

    def ids(self, folder: str, queue: str) -> list[str]:
        """The ids of a queue's messages in a folder; files that people added and that have no id are left out."""
        if folder == layout.QUEUES:
            return [name for name in self.names(f"{folder}/{queue}") if layout.is_id(name)]
        return [uid for file, uid in self.messages(folder) if file == queue]

    def queue_folders(self) -> list[str]:
        """The folders in queues/, without files and links."""
        names = self.names(layout.QUEUES)
        return [file for file in names if self.kind(f"{layout.QUEUES}/{file}") == "folder"]

    def skip(self, path: str, why: str) -> None:
        """Log once that a file of people or other programs is left alone."""
        if path not in self._strays and len(self._strays) < _MOST_STRAYS:
            self._strays.add(path)
            _log.warning("%s is skipped: %s", path, why)

    def kind(self, name: str) -> str | None:
        """What a name stands for: "file", "folder", "link" or "other"; None if it does not exist."""
        return self.disk.kind(self.path(name))

    def is_message(self, path: str) -> bool:
        """Whether a path is a regular file; anything else is logged as skipped."""
        kind = self.disk.kind(path)
        if kind is not None and kind != "file":
            self.skip(path, _STRAYS[kind])
        return kind == "file"

    def is_ours(self, path: str, times: bool = True) -> bool:
        """Whether this user may change a message, and set its times; logged if not. FileNotFoundError."""
        if self.disk.may_change(path, times=times):
            return True
        if self.disk.exists(path):
            self.skip(path, OTHERS)
        return False

    def exists(self, folder: str, queue: str, uid: str) -> bool:
        """Whether a folder has the message."""
        return self.disk.exists(self.place(folder, queue, uid))

    # Attributes and times

    def stamp_of(self, path: str, uid: str) -> Stamp:
        """A message's attributes; FileNotFoundError."""
        if self.has_attributes:
            return stamps.parse(uid, self.disk.attributes(path))
        stamp = stamps.parse(uid, {})
        if (secret := secret_in(self.disk.status(path).changed)) is not None:
            stamp.holder = Holder(secret, 1, 0, "")
        return stamp

    def status(self, path: str) -> Status | None:
        """A file's status; None if it does not exist."""
        return status_if_there(self.disk, path)

    def until(self, path: str) -> int:
        """A file's mtime in milliseconds: end of its time in delay/, or when it was settled. FileNotFoundError."""
        return self.disk.status(path).changed // MILLISECOND

    def settled_at(self, path: str, stamp: Stamp) -> int:
        """When a message in done/ was settled; FileNotFoundError."""
        return self.until(path) if stamp.settled_at is None else stamp.settled_at

    def set_until(self, path: str, time: int, nonce: int = 0) -> None:
        """Set a file's mtime. Without attributes, its part below the millisecond holds the lease's nonce."""
        self.disk.set_changed(path, time * MILLISECOND + nonce)

    def stamp(self, path: str, values: Mapping[str, bytes]) -> None:
        """Set attributes of a file."""
        for name, value in values.items():
            self.disk.set_attribute(path, stamps.PREFIX + name, value)

    def secret_of(self, path: str, uid: str) -> str | None:
        """The secret of the lease on a message in delay/; None if there is no lease. FileNotFoundError."""
        found = self.stamp_of(path, uid)
        return found.holder.secret if found.is_held and found.holder else None

    def need_attributes(self, what: str) -> None:
        """Raise NotSupported if the file system has no extended attributes."""
        if not self.has_attributes:
            raise NotSupported(
                f"{what}: the file system of {self.root!r} has no user extended attributes to keep it in; leave "
                "it out, or move the store to ext4, XFS or btrfs"
            )

    # Contents

    def read(self, path: str) -> bytes:
        """The payload; FileNotFoundError."""
        with self.disk.open(path) as file:
            return file.read(0, file.size())

    def write_new(self, path: str, payload: bytes) -> None:
        """Make a file; FileExistsError."""
        with self.disk.open(path, exclusive=True) as file:
            if payload:
                file.write(0, payload)

    def keep_value(self, value: object, longest: int = stamps.LONGEST) -> str:
        """The attribute for a value: its JSON, or if that is long the name of a file in long/, written durably."""
        text = stamps.to_json(value)
        if len(text.encode()) <= longest:
            return text
        name = f"{self.process}.{next(self._numbers)}-{zlib.crc32(text.encode()):08x}"
        path = self.path(f"{layout.LONG}/{name}")
        self.write_new(path, text.encode())
        self.sync_files([path])
        self.sync(layout.LONG)
        return f"@{name}"

    def drop_values(self, *values: str | None) -> None:
        """Remove the files of long values."""
        for value in values:
            if value is not None and (path := self._long(value)) is not None:
                with suppress(OSError):
                    self.disk.unlink(path)

    def _long(self, value: str) -> str | None:
        """The file of a long value; None if the value is not long, or names a path outside of long/."""
        if not value.startswith("@") or "/" in value or "\0" in value:
            return None
        return self.path(f"{layout.LONG}/{value[1:]}")

    def details(self, stamp: Stamp, state: str) -> Details:
        """The headers, the reason and the history of a message in that state."""
        reason = None if state == "done" else stamp.reason
        if state == "in_flight" and stamp.holder is not None:
            reason = stamp.holder.reason
        headers = {name: str(value) for name, value in self._value(stamp.headers, {}).items()}
        return Details(headers, self._value(reason, None), self.history(stamp))

    def history(self, stamp: Stamp) -> list[list[Any]]:
        """The attempts that have ended, oldest first."""
        return stamps.sound_history(self._value(stamp.history, []))

    def _value(self, value: str | None, otherwise: Any) -> Any:
        if value is None:
            return otherwise
        if value.startswith("@"):
            path = self._long(value)
            if path is None or self.disk.kind(path) != "file":
                return otherwise
            checked = _CHECKED.search(path)  # files of older versions have no checksum in their name
            value = read_text(self.disk, path) or ""
            if checked is not None and int(checked[1], 16) != zlib.crc32(value.encode()):
                return otherwise
        found = read_json(value, otherwise)
        return found if otherwise is None or isinstance(found, type(otherwise)) else otherwise

    def damage(self, stamp: Stamp, payload: bytes) -> str | None:
        """How a message differs from its checksums; None if it does not."""
        if self._value(stamp.headers, None) is None and stamp.headers is not None:
            return "its headers are lost"
        return stamps.damage(stamp, payload)

    def quarantine(self, held: str, queue: str, uid: str, wrong: str) -> None:
        """Move a damaged message to damaged/, for people to look at."""
        target = self.place(layout.DAMAGED, queue, uid)
        if self.move(held, target):
            self.sync(layout.DAMAGED, home(layout.QUEUES, queue))
            _log.error(
                "message %s of %s is damaged (%s) and set aside as %s: look at it; to queue it as it is, copy "
                "it to %s", uid, queue, wrong, target, self.path(home(layout.QUEUES, queue)),
            )  # fmt: skip

    # Durability

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make files and their attributes durable."""
        if self._synced and paths:
            self.disk.sync_files(paths)

    def sync(self, *folders: str) -> None:
        """Make the names in folders durable, in this order: targets of moves come before their sources."""
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError):  # a deleted queue; a stray file
                self._sync_folder(self.path(folder))

    def _sync_folder(self, path: str) -> None:
        if self._synced:
            self.disk.sync_folder(path)

    def discard(self, held: str, queue: str, uid: str) -> None:
        """Move a taken message to remove/, for the reaper."""
        self.move(held, self.place(layout.REMOVE, queue, uid))

    def date_removed(self, queue: str, ids: Iterable[str], now: int) -> None:
        """Set the time of removal, for the reaper.

        Only after the folders were synced: in delay/ and failed/ the time means something else, and a machine
        that stops may keep the time and lose the move.
        """
        for uid in ids:
            with suppress(FileNotFoundError, PermissionError):  # reaped already; a file of another user
                self.set_until(self.place(layout.REMOVE, queue, uid), now)


def home(folder: str, queue: str) -> str:
    """The name of the folder with a queue's messages: queues/QUEUE, or the folder that all queues share."""
    return f"{layout.QUEUES}/{queue}" if folder == layout.QUEUES else folder


def is_full(error: OSError) -> bool:
    """Whether the disk, a quota or this process's limit has no space left."""
    return error.errno == errno.EFBIG or files.is_full(error)


def secret_in(changed: int) -> str | None:
    """The secret of a lease in an mtime, on file systems without attributes; None if there is none."""
    nonce = changed % MILLISECOND
    return f"{nonce:016x}" if nonce else None


def folders_of(moves: Iterable[tuple[str, str]]) -> list[str]:
    """The folders to sync after moves, (source, target) each: targets, then sources, without repeats."""
    moves = list(moves)
    return list(dict.fromkeys([*(target for _, target in moves), *(source for source, _ in moves)]))


def read_text(disk: Disk, path: str) -> str | None:
    """The text of a file; None if there is no such file."""
    try:
        with disk.open(path) as file:
            return file.read(0, file.size()).decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return None


def read_json(text: str | None, otherwise: Any = None) -> Any:
    """The value of a JSON text; `otherwise` if it is not JSON, as after a crash."""
    try:
        return json.loads(text or "")
    except ValueError:
        return otherwise
