"""How messages come in: written in new/, made durable, renamed into their queue; many of them all or none.

Of one message the rename is what counts. Of several it is a manifest: once it is on disk, any process that finds
it rolls the batch forward; before that its files are thrown away. For messages under a key it is a line in the log
of keys: a crc32, then JSON with the time, the keys and the messages of that put. The process that takes the lock
next finds a last line whose messages are still in new/ and rolls it forward.

Where admission must be exact among processes, in queues with a max_size and for messages under a key, it needs the
queue's lock, a file in `locks/`. The file holds a number that goes up with each admission, so that the process
that was the last to admit knows that nobody came since.
"""

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.contract.message import Moved
from penstock.contract.settings import FIVE_MINUTES
from penstock.stores.folder.layout import BATCHES, DELAY, DONE, FAILED, KEYS, LOCKS, NEW, QUEUES, SEEN, is_id
from penstock.stores.folder.stamps import Holder, Stamp, checksum
from penstock.stores.folder.tree import Tree, folders_of, home, is_full, read_json, read_text
from penstock.system.files import File, replace_file
from penstock.system.threads import Threads


@dataclass(slots=True)
class Newcomer:
    """A message that is about to be put."""

    uid: str
    payload: bytes
    stamp: Stamp
    headers: dict[str, str] | None
    now: int
    past: Moved | None = None  # what became of it in another store

    @property
    def folder(self) -> str:
        """Where it goes."""
        if self.past is not None and not self.past.waits:
            return DONE if self.past.state == "done" else FAILED
        return DELAY if self.stamp.visible > self.now else QUEUES

    @property
    def until(self) -> int:
        """When its time in delay/ is over, or when it was settled."""
        if self.folder == QUEUES:
            return 0
        settled = self.now if self.past is None or self.past.settled_at is None else self.past.settled_at
        return self.stamp.visible if self.folder == DELAY else settled


def write_new(tree: Tree, queue: str, newcomers: Sequence[Newcomer]) -> None:
    """Write messages in new/ and make their files durable; a failure leaves nothing."""
    written: list[str] = []
    try:
        for each in newcomers:
            path = tree.place(NEW, queue, each.uid)
            if each.headers:
                each.stamp.headers = tree.keep(each.headers)
            if each.past is not None:
                _stamp_past(tree, each.stamp, each.past)
            written.append(path)
            tree.write_new(path, each.payload)
            if tree.has_attributes:
                values = each.stamp.to_attributes()
                tree.stamp(path, {**values, "sum": checksum(each.payload, values)})
            if each.folder != QUEUES:
                tree.set_until(path, each.until)
        tree.sync_files(written)
    except BaseException:
        discard(tree, queue, newcomers)
        raise


def _stamp_past(tree: Tree, stamp: Stamp, past: Moved) -> None:
    """Say what became of a message in another store; its holder there has lost it."""
    stamp.attempts = past.attempts
    if past.reason is not None:
        stamp.reason = tree.keep(past.reason)
    # Without secrets: no receipt of the other store is good here. What was acknowledged is the holder's.
    ended = [[*each, False, ""] for each in past.history if each.outcome != "acked"]
    if ended:
        stamp.history = tree.keep(ended)
    if past.waits:
        return
    if past.claimed_at is not None:
        secret = os.urandom(8).hex()
        stamp.holder = Holder(secret, past.attempts, past.claimed_at, past.consumer or "")
        stamp.ended = secret if past.state == "failed" else None
    if past.state == "done":
        stamp.settled_at = past.settled_at


def discard(tree: Tree, queue: str, newcomers: Sequence[Newcomer]) -> None:
    """Throw away what was written of a put that failed."""
    for each in newcomers:
        with suppress(OSError):
            tree.disk.unlink(tree.place(NEW, queue, each.uid))
        tree.forget(each.stamp.headers, each.stamp.reason, each.stamp.history)
    with suppress(OSError):
        tree.sync(NEW)  # else a machine that stops could bring them back, for nobody


def deliver(tree: Tree, queue: str, items: Sequence[tuple[str, str]]) -> list[str]:
    """Move messages, (id, folder) each, from new/ to where they go; those that were still there."""
    moved = []
    for each, folder in items:
        if tree.move(tree.place(NEW, queue, each), tree.place(folder, queue, each)):
            tree.count()
            moved.append((each, folder))
    tree.sync(*folders_of((NEW, home(folder, queue)) for _, folder in moved))
    return [each for each, _ in moved]


def write_manifest(tree: Tree, queue: str, newcomers: Sequence[Newcomer]) -> str:
    """Say which messages belong together: from here on they are put, whatever happens."""
    tree.sync(NEW)  # before the manifest: it must never name a file that is not there
    path = tree.path(f"{BATCHES}/{newcomers[0].uid}")
    items = [[each.uid, each.folder] for each in newcomers]
    try:
        replace_file(tree.disk, path, json.dumps({"queue": queue, "messages": items}).encode())
    except OSError:
        if tree.disk.exists(path):  # it may count, unless it is gone for good
            tree.disk.unlink(path)
            tree.sync(BATCHES)
        raise
    return path


def read_manifest(tree: Tree, path: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Queue and messages of a batch; None if it is none."""
    if tree.disk.kind(path) != "file":
        return None
    found = read_json(read_text(tree.disk, path))
    try:
        queue = found["queue"]
        return None if "/" in queue else (queue, _checked_places(found["messages"]))
    except (TypeError, KeyError, ValueError):
        return None


def _checked_places(found: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Messages and where they go, as somebody has written; ValueError if that is no place for one."""
    places = [(each, folder) for each, folder in found]
    if not all(is_id(each) and folder in SEEN for each, folder in places):
        raise ValueError("no places of messages")
    return places


_LARGE = 65_536  # bytes of a log from which on it is worth writing anew


class Admission:
    """The lock and the keys of one queue."""

    def __init__(self, tree: Tree, queue: str, threads: Threads) -> None:
        self._tree, self._queue = tree, queue
        self._mutex = threads.lock()  # flock does not know threads apart that share a file
        self._file: File | None = None
        self._keys: dict[str, tuple[int, str]] = {}  # until when, which id
        self._read = 0
        self._inode = 0
        self._compact = 0  # bytes of the log when it was last written anew
        self._number = -1  # of admissions, when this process last looked at all messages
        self._most = 0  # messages there may be at most, as far as this process knows

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the queue's lock."""
        with self._mutex, self._tree.disk.open(self._tree.path(f"{LOCKS}/{self._queue}"), create=True) as file:
            file.lock(wait=True)
            self._file = file
            try:
                yield
            finally:
                self._file = None

    @property
    def _lock_file(self) -> File:
        if self._file is None:
            raise RuntimeError("the queue's lock is not held")
        return self._file

    # How many

    def room(self, more: int, limit: int) -> bool:
        """Whether so many fit for certain, by what is known without looking at all messages."""
        return self._admitted() == self._number and self._most + more <= limit

    def counted(self, count: int) -> None:
        """All messages were looked at: so many are there."""
        self._number, self._most = self._admitted(), count

    def admit(self, more: int) -> None:
        """So many come in."""
        number = self._admitted()
        self._lock_file.write(0, (number + 1).to_bytes(8, "little"))
        if number == self._number:
            self._number, self._most = number + 1, self._most + more

    def _admitted(self) -> int:
        return int.from_bytes(self._lock_file.read(0, 8), "little")

    # Under which keys

    def known(self, now: int) -> dict[str, str]:
        """The ids that were put under keys in the last five minutes."""
        self.catch_up()
        self._keys = {key: (until, uid) for key, (until, uid) in self._keys.items() if until > now}
        return {key: uid for key, (_, uid) in self._keys.items()}

    def record(self, keys: dict[str, str], newcomers: Sequence[Newcomer], now: int) -> None:
        """Put messages under keys: from here on they are put, whatever happens.

        If there is no space (`is_full`) they are not put; after any other error nobody knows.
        """
        tree = self._tree
        tree.sync(NEW)
        items = [[each.uid, each.folder] for each in newcomers]
        line = _line({"at": now, "keys": keys, "messages": items})
        path = tree.path(f"{KEYS}/{self._queue}")
        if self._read > max(_LARGE, 2 * self._compact):
            kept = [_line({"at": until - FIVE_MINUTES, "keys": {key: uid}, "messages": []})
                    for key, (until, uid) in self._keys.items()]  # fmt: skip
            data = b"".join([*kept, line])
            replace_file(tree.disk, path, data)
            self._read = self._compact = len(data)
            self._inode = tree.disk.status(path).inode
        else:
            created = not self._inode
            with tree.disk.open(path, create=True) as file:
                if file.size() > self._read:
                    file.truncate(self._read)  # a line that a crash has torn
                try:
                    file.write(self._read, line)
                    tree.sync_files([path])
                except OSError as error:
                    if is_full(error):
                        _take_back(file, self._read)
                    raise
            if created:
                tree.sync(KEYS)
                self._inode = tree.disk.status(path).inode
            self._read += len(line)
        self._keys |= {key: (now + FIVE_MINUTES, uid) for key, uid in keys.items()}

    def catch_up(self) -> None:
        """Read what others have put under keys, and finish what a process died over; the lock is held."""
        tree = self._tree
        path = tree.path(f"{KEYS}/{self._queue}")
        status = tree.status(path)
        if status is None:
            self._keys, self._read, self._inode = {}, 0, 0
            return
        if status.inode != self._inode or status.size < self._read:
            self._keys, self._read, self._inode = {}, 0, status.inode
        if status.size == self._read:
            return
        with tree.disk.open(path) as file:
            data = file.read(self._read, file.size() - self._read)
        last: list[tuple[str, str]] = []
        for line in data.splitlines(keepends=True):
            entry = _parse(line)
            if entry is None:
                break  # torn: nobody was told
            self._read += len(line)
            at, keys, last = entry
            self._keys |= {key: (at + FIVE_MINUTES, uid) for key, uid in keys.items()}
        if any(tree.exists(NEW, self._queue, uid) for uid, _ in last):
            deliver(tree, self._queue, last)


def _take_back(file: File, size: int) -> None:
    """Let a line never have been written; if that fails too, nobody knows."""
    try:
        file.truncate(size)
        file.sync()
    except OSError as error:
        raise OSError(errno.EIO, f"a line could not be taken back: {error}", file.path) from error


def _line(entry: dict[str, object]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> tuple[int, dict[str, str], list[tuple[str, str]]] | None:
    crc, _, text = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(text):
        return None
    try:
        entry = json.loads(text)
        return entry["at"], entry["keys"], _checked_places(entry["messages"])
    except (TypeError, KeyError, ValueError):
        return None
