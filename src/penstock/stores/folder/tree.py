"""The folders on disk: every operation on a message's file goes through here, one line of policy each."""

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
_MOST_STRAYS = 1_000  # that are said
_STRAYS = {
    "link": "a symbolic link, and links in a store are not followed: put the file itself there",
    "folder": "a folder, where messages lie: move it away",
    "other": "a pipe, a socket or a device, where messages lie: move it away",
}
OTHERS = "a file of another user, or one that may not be written: change its owner and mode"
_log = logging.getLogger("penstock")
_CHECKED = re.compile("-([0-9a-f]{8})$")
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS)


class _Doing(threading.local):
    """What the operation of a thread has done so far."""

    def __init__(self) -> None:
        self.held: list[str] = []  # private names that it gave
        self.counts = False  # whether it has had an effect


class Tree:
    """A store's folder, as one process uses it."""

    def __init__(self, root: str, disk: Disk, process: str, synced: bool, now: Callable[[], int]) -> None:
        self.root = root
        self.disk = disk
        self.process = process
        self.held = f"{layout.HELD}/{process}"
        self.has_attributes = True
        self.is_adopted = False  # whether this was a tree of MQ-Core until now
        self._synced, self._now = synced, now
        self._node, self._sequence = layout.node_of(process), int.from_bytes(os.urandom(2), "big") & 0x3FFF
        self.order = 0  # of the latest id
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._doing = _Doing()
        self._loose: set[str] = set()  # folders into which something was put back that nobody has synced
        self._strays: set[str] = set()  # those that were said

    def open(self) -> None:
        """Make the folders that are missing, and one for what this process holds."""
        make_folder(self.disk, self.root)
        self._check_root()
        for name in (*layout.FOLDERS, self.held):
            with suppress(FileExistsError):
                self.disk.mkdir(self.path(name))
            self._check_folder(name)
        for path in (self.root, *map(self.path, (layout.OWN, layout.HELD))):
            # Even if nothing is new there: a process that made something may have stopped before this.
            self._sync_folder(path)
        self.has_attributes = self._try_attributes()

    def _check_folder(self, name: str) -> None:
        if (kind := self.kind(name)) != "folder":  # what lies behind a link is not ours
            raise OSError(errno.ELOOP if kind == "link" else errno.ENOTDIR, "", self.path(name))

    def check_folders(self) -> None:
        """Make again what somebody has deleted meanwhile, and refuse a link in the place of a folder."""
        for name in layout.FOLDERS:
            if self.kind(name) is None:
                with suppress(FileExistsError):
                    self.disk.mkdir(self.path(name))
                self._sync_folder(os.path.dirname(self.path(name)))
                _log.warning("%s was gone, and was made again", self.path(name))
            self._check_folder(name)

    def _check_root(self) -> None:
        """Refuse a folder that holds something else: the reaper of a store unlinks what lies in remove/."""
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
        """Let go of the private folder; the next process that opens the store finds what is left in it."""
        try:
            if self._loose:  # else a machine that stops could keep the private name, and not its folder
                self.sync(*sorted(self._loose), self.held)
            self.disk.rmdir(self.path(self.held))
        except OSError:
            self.abandon()

    def abandon(self) -> None:
        """Leave what is held to others although this process lives."""
        with suppress(OSError):
            self.disk.open(self.path(f"{self.held}/{layout.ABANDONED}"), create=True).close()

    # What an operation does

    def begin(self) -> None:
        """From here on this thread does something new."""
        self._doing.held, self._doing.counts = [], False

    def count(self, counts: bool = True) -> None:
        """What this thread does has an effect now, whatever else happens; or what had one is whole in itself."""
        self._doing.counts = counts

    @property
    def counts(self) -> bool:
        """Whether it has."""
        return self._doing.counts

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done here is whole in itself: if it succeeds, the operation has had no effect by it."""
        counts = self._doing.counts
        yield
        self._doing.counts = counts

    def still_held(self) -> list[str]:
        """The private names that this thread has given, and that are still there."""
        return [path for path in self._doing.held if self.disk.exists(path)]

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
        """A path of the store."""
        return os.path.join(self.root, name)

    def place(self, folder: str, queue: str, uid: str) -> str:
        """Where a message lies."""
        return self.path(layout.message_path(folder, queue, uid))

    def next_ids(self, now: int, count: int) -> list[str]:
        """Ids for messages that arrive now, later than any before."""
        with self._lock:
            first = max(layout.first_order(now), self.order + 1)
            self.order = first + count - 1
        return [layout.make_id(order, self._sequence, self._node) for order in range(first, first + count)]

    def _next_order(self) -> int:
        with self._lock:
            self.order = max(layout.first_order(self._now()), self.order + 1)
            return self.order

    def saw(self, order: int) -> None:
        """Ids from now on are later than that, unless it is implausible."""
        if order <= layout.first_order(self._now()) + layout.LONG_AHEAD:
            with self._lock:
                self.order = max(self.order, order)

    # Names

    def take(self, origin: str, queue: str, uid: str, until: int = 0, leased: bool = False) -> str | None:
        """Win a message by giving it a private name; None if it is not there, as somebody else was quicker."""
        name = layout.held_name(origin, until, self._next_order(), queue, uid, leased)
        held = self.path(f"{self.held}/{name}")
        source = self.place(origin, queue, uid)
        self._doing.held.append(held)
        if self.move(source, held):
            return held
        if not self.disk.exists(self.path(self.held)):  # after a long silence another host took this one for dead
            with suppress(FileExistsError):
                self.disk.mkdir(self.path(self.held))
            self.sync(layout.HELD)
            return held if self.move(source, held) else None
        return None

    def put_back(self, held: str, origin: str, queue: str, uid: str) -> bool:
        """Let go of a message as if it had not been taken, which is what recovery would do."""
        self._loose.add(home(origin, queue))
        return self.move(held, self.place(origin, queue, uid))

    def move(self, source: str, target: str) -> bool:
        """Rename; False if there is nothing to rename, or no folder for it any more."""
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
        """The ids of a queue's messages in a folder; a file that was put there by hand has none yet."""
        if folder == layout.QUEUES:
            return [name for name in self.names(f"{folder}/{queue}") if layout.is_id(name)]
        return [uid for file, uid in self.messages(folder) if file == queue]

    def queue_folders(self) -> list[str]:
        """The folders in queues/; files and links among them are none."""
        names = self.names(layout.QUEUES)
        return [file for file in names if self.kind(f"{layout.QUEUES}/{file}") == "folder"]

    def skip(self, path: str, why: str) -> None:
        """Leave something alone that people or other programs put there, and say so once."""
        if path not in self._strays and len(self._strays) < _MOST_STRAYS:
            self._strays.add(path)
            _log.warning("%s is skipped: %s", path, why)

    def kind(self, name: str) -> str | None:
        """What has a name of the store: "file", "folder", "link" or "other"; None if nothing has."""
        return self.disk.kind(self.path(name))

    def is_message(self, path: str) -> bool:
        """Whether a name is that of a file itself; anything else is skipped."""
        kind = self.disk.kind(path)
        if kind is not None and kind != "file":
            self.skip(path, _STRAYS[kind])
        return kind == "file"

    def is_ours(self, path: str, times: bool = True) -> bool:
        """Whether this user may work on a message, and set its times; else it is skipped. FileNotFoundError."""
        if self.disk.may_change(path, times=times):
            return True
        if self.disk.exists(path):
            self.skip(path, OTHERS)
        return False

    def exists(self, folder: str, queue: str, uid: str) -> bool:
        """Whether a message lies there."""
        return self.disk.exists(self.place(folder, queue, uid))

    # What belongs to a file

    def stamp_of(self, path: str, uid: str) -> Stamp:
        """What is known of a message; FileNotFoundError."""
        if self.has_attributes:
            return stamps.parse(uid, self.disk.attributes(path))
        stamp = stamps.parse(uid, {})
        if (secret := secret_in(self.disk.status(path).changed)) is not None:
            stamp.holder = Holder(secret, 1, 0, "")
        return stamp

    def status(self, path: str) -> Status | None:
        """What a file is; None if it is gone."""
        return status_if_there(self.disk, path)

    def until(self, path: str) -> int:
        """When a file's time in delay/ is over, or when it was settled, in milliseconds; FileNotFoundError."""
        return self.disk.status(path).changed // MILLISECOND

    def settled_at(self, path: str, stamp: Stamp) -> int:
        """When a message in done/ was settled; FileNotFoundError."""
        return self.until(path) if stamp.settled_at is None else stamp.settled_at

    def set_until(self, path: str, time: int, nonce: int = 0) -> None:
        """Say so; below the millisecond there is room for a nonce, where there are no attributes for one."""
        self.disk.set_changed(path, time * MILLISECOND + nonce)

    def stamp(self, path: str, values: Mapping[str, bytes]) -> None:
        """Give a file attributes."""
        for name, value in values.items():
            self.disk.set_attribute(path, stamps.PREFIX + name, value)

    def secret_of(self, path: str, uid: str) -> str | None:
        """The secret that holds a message in delay/; None if none does. FileNotFoundError."""
        found = self.stamp_of(path, uid)
        return found.holder.secret if found.is_held and found.holder else None

    def need_attributes(self, what: str) -> None:
        """Refuse what cannot be kept here."""
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
        """A file that was not there."""
        with self.disk.open(path, exclusive=True) as file:
            if payload:
                file.write(0, payload)

    def keep(self, value: object) -> str:
        """A value as an attribute holds it; a long one goes to a file first, durably."""
        text = stamps.to_json(value)
        if len(text.encode()) <= stamps.LONGEST:
            return text
        name = f"{self.process}.{next(self._numbers)}-{zlib.crc32(text.encode()):08x}"
        path = self.path(f"{layout.LONG}/{name}")
        self.write_new(path, text.encode())
        self.sync_files([path])
        self.sync(layout.LONG)
        return f"@{name}"

    def forget(self, *values: str | None) -> None:
        """Long values that nobody needs any more."""
        for value in values:
            if value is not None and (path := self._long(value)) is not None:
                with suppress(OSError):
                    self.disk.unlink(path)

    def _long(self, value: str) -> str | None:
        """The file that a value lies in; None if it lies in none, or its name leads out of long/."""
        if not value.startswith("@") or "/" in value or "\0" in value:
            return None
        return self.path(f"{layout.LONG}/{value[1:]}")

    def details(self, stamp: Stamp, state: str) -> Details:
        """The long values of a message in that state."""
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
            checked = _CHECKED.search(path)  # older ones have no checksum
            value = read_text(self.disk, path) or ""
            if checked is not None and int(checked[1], 16) != zlib.crc32(value.encode()):
                return otherwise
        found = read_json(value, otherwise)
        return found if otherwise is None or isinstance(found, type(otherwise)) else otherwise

    def damage(self, stamp: Stamp, payload: bytes) -> str | None:
        """What is wrong with a message, as far as its checksums can tell; None: nothing."""
        if self._value(stamp.headers, None) is None and stamp.headers is not None:
            return "its headers are lost"
        return stamps.damage(stamp, payload)

    def set_aside(self, held: str, queue: str, uid: str, wrong: str) -> None:
        """Keep a damaged message for people to look at: nobody is given it, and nothing of it is lost."""
        target = self.place(layout.DAMAGED, queue, uid)
        if self.move(held, target):
            self.sync(layout.DAMAGED, home(layout.QUEUES, queue))
            _log.error(
                "message %s of %s is damaged (%s) and set aside as %s: look at it; to queue it as it is, copy "
                "it to %s", uid, queue, wrong, target, self.path(home(layout.QUEUES, queue)),
            )  # fmt: skip

    # Durability

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make files durable with all that belongs to them."""
        if self._synced and paths:
            self.disk.sync_files(paths)

    def sync(self, *folders: str) -> None:
        """Make names durable; folders into which something was moved come first."""
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError):  # a queue that was deleted meanwhile; a stray
                self._sync_folder(self.path(folder))

    def _sync_folder(self, path: str) -> None:
        if self._synced:
            self.disk.sync_folder(path)

    def discard(self, held: str, queue: str, uid: str) -> None:
        """Leave a held message to the reaper."""
        self.move(held, self.place(layout.REMOVE, queue, uid))

    def date_removed(self, queue: str, ids: Iterable[str], now: int) -> None:
        """Say for the reaper when messages were removed.

        Only after the folders were synced: in delay/ and failed/ the time means something else, and a machine
        that stops may keep it and forget the move.
        """
        for uid in ids:
            with suppress(FileNotFoundError, PermissionError):  # the reaper was quick; a file of another user
                self.set_until(self.place(layout.REMOVE, queue, uid), now)


def home(folder: str, queue: str) -> str:
    """The folder itself in which a queue's messages lie."""
    return f"{layout.QUEUES}/{queue}" if folder == layout.QUEUES else folder


def is_full(error: OSError) -> bool:
    """Whether there is no space for something, or none that this process may take."""
    return error.errno == errno.EFBIG or files.is_full(error)


def secret_in(changed: int) -> str | None:
    """The secret of a lease that nothing but a time holds."""
    nonce = changed % MILLISECOND
    return f"{nonce:016x}" if nonce else None


def folders_of(moves: Iterable[tuple[str, str]]) -> list[str]:
    """What to sync after moves from one folder to another: targets, then sources, each once."""
    moves = list(moves)
    return list(dict.fromkeys([*(target for _, target in moves), *(source for source, _ in moves)]))


def read_text(disk: Disk, path: str) -> str | None:
    """The text of a file; None if it is not there."""
    try:
        with disk.open(path) as file:
            return file.read(0, file.size()).decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return None


def read_json(text: str | None, otherwise: Any = None) -> Any:
    """What JSON says; something else if it is none, as a crash may have left it."""
    try:
        return json.loads(text or "")
    except ValueError:
        return otherwise
