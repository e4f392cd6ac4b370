"""The files of a put: messages in new/, manifests of batches, the log of idempotency keys, the admission lock.

A put writes its messages in new/, syncs them and renames them into their queue. The rename commits a single
message. A manifest commits a batch: once the manifest is on disk, any process that finds it delivers the batch; a
batch without one is dropped. A line in the log of keys commits a put with keys: a crc32, then JSON with the time,
the keys and the messages. The next holder of the lock delivers messages of the last line that are still in new/.

Queues with a max_size, and puts with keys, need the queue's lock, a file in `locks/`. The file holds a number that
goes up with each admission: a process that finds its own last number knows that no other process has put since.
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
class NewMessage:
    """A message of a put."""

    uid: str
    payload: bytes
    stamp: Stamp
    headers: dict[str, str] | None
    now: int
    past: Moved | None = None  # what became of it in another store

    @property
    def folder(self) -> str:
        """The folder that it is delivered to."""
        if self.past is not None and not self.past.waits:
            return DONE if self.past.state == "done" else FAILED
        return DELAY if self.stamp.visible > self.now else QUEUES

    @property
    def until(self) -> int:
        """The mtime of its file: end of the delay, or when it was settled; 0 if it is available."""
        if self.folder == QUEUES:
            return 0
        settled = self.now if self.past is None or self.past.settled_at is None else self.past.settled_at
        return self.stamp.visible if self.folder == DELAY else settled


def write_new(tree: Tree, queue: str, messages: Sequence[NewMessage]) -> None:
    """Write messages in new/ and sync their files; a failure removes them."""
    written: list[str] = []
    try:
        for each in messages:
            path = tree.place(NEW, queue, each.uid)
            if each.headers:
                each.stamp.headers = tree.keep_value(each.headers)
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
        discard(tree, queue, messages)
        raise


def _stamp_past(tree: Tree, stamp: Stamp, past: Moved) -> None:
    """Add a message's past in another store to its attributes; a lease that it had there is over."""
    stamp.attempts = past.attempts
    if past.reason is not None:
        stamp.reason = tree.keep_value(past.reason)
    # Without secrets: no receipt of the other store is valid here. The attempt that was acked is in the holder.
    ended = [[*each, False, ""] for each in past.history if each.outcome != "acked"]
    if ended:
        stamp.history = tree.keep_value(ended)
    if past.waits:
        return
    if past.claimed_at is not None:
        secret = os.urandom(8).hex()
        stamp.holder = Holder(secret, past.attempts, past.claimed_at, past.consumer or "")
        stamp.ended = secret if past.state == "failed" else None
    if past.state == "done":
        stamp.settled_at = past.settled_at


def discard(tree: Tree, queue: str, messages: Sequence[NewMessage]) -> None:
    """Remove the files of a put that failed."""
    for each in messages:
        with suppress(OSError):
            tree.disk.unlink(tree.place(NEW, queue, each.uid))
        tree.drop_values(each.stamp.headers, each.stamp.reason, each.stamp.history)
    with suppress(OSError):
        tree.sync(NEW)  # or else the files may be back after a power failure


def deliver(tree: Tree, queue: str, items: Sequence[tuple[str, str]]) -> list[str]:
    """Move messages from new/ to their folders, (id, folder) each; the ids that were still in new/."""
    moved = []
    for each, folder in items:
        if tree.move(tree.place(NEW, queue, each), tree.place(folder, queue, each)):
            tree.take_effect()
            moved.append((each, folder))
    tree.sync(*folders_of((NEW, home(folder, queue)) for _, folder in moved))
    return [each for each, _ in moved]


def write_manifest(tree: Tree, queue: str, messages: Sequence[NewMessage]) -> str:
    """Commit a batch: durably write the list of its messages."""
    tree.sync(NEW)  # before the manifest, which must never name a missing file
    path = tree.path(f"{BATCHES}/{messages[0].uid}")
    items = [[each.uid, each.folder] for each in messages]
    try:
        replace_file(tree.disk, path, json.dumps({"queue": queue, "messages": items}).encode())
    except OSError:
        if tree.disk.exists(path):  # as long as it exists, recovery may deliver the batch
            tree.disk.unlink(path)
            tree.sync(BATCHES)
        raise
    return path


def read_manifest(tree: Tree, path: str) -> tuple[str, list[tuple[str, str]]] | None:
    """The queue and the messages of a batch; None if the file is not a manifest."""
    if tree.disk.kind(path) != "file":
        return None
    found = read_json(read_text(tree.disk, path))
    try:
        queue = found["queue"]
        return None if "/" in queue else (queue, _checked_places(found["messages"]))
    except (TypeError, KeyError, ValueError):
        return None


def _checked_places(found: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """(id, folder) of messages as a file lists them; ValueError if one would lead out of the store's folders."""
    places = [(each, folder) for each, folder in found]
    if not all(is_id(each) and folder in SEEN for each, folder in places):
        raise ValueError("not an id and a folder of the store")
    return places


_LARGE = 65_536  # bytes of the log of keys below which it is never rewritten


class Admission:
    """The admission lock, the message count and the idempotency keys of one queue."""

    def __init__(self, tree: Tree, queue: str, threads: Threads) -> None:
        self._tree, self._queue = tree, queue
        self._mutex = threads.lock()  # flock does not exclude threads of one process
        self._file: File | None = None
        self._keys: dict[str, tuple[int, str]] = {}  # time of expiry and message id
        self._read = 0  # bytes of the log that were read
        self._inode = 0  # of the log
        self._compact = 0  # bytes of the log after it was last rewritten
        self._number = -1  # of the admission after which `_most` holds
        self._most = 0  # upper bound of the number of messages

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

    # The number of messages

    def room(self, more: int, limit: int) -> bool:
        """Whether the messages surely fit; False means that the caller has to count."""
        return self._admitted() == self._number and self._most + more <= limit

    def counted(self, count: int) -> None:
        """Take over an exact count."""
        self._number, self._most = self._admitted(), count

    def admit(self, more: int) -> None:
        """Count messages that are about to be put."""
        number = self._admitted()
        self._lock_file.write(0, (number + 1).to_bytes(8, "little"))
        if number == self._number:
            self._number, self._most = number + 1, self._most + more

    def _admitted(self) -> int:
        return int.from_bytes(self._lock_file.read(0, 8), "little")

    # Keys

    def known(self, now: int) -> dict[str, str]:
        """The keys of the last five minutes and their message ids."""
        self.catch_up()
        self._keys = {key: (until, uid) for key, (until, uid) in self._keys.items() if until > now}
        return {key: uid for key, (_, uid) in self._keys.items()}

    def record(self, keys: dict[str, str], messages: Sequence[NewMessage], now: int) -> None:
        """Commit a put with keys: durably append its line to the log.

        After an error of `is_full` the put has not happened; after any other error it may have.
        """
        tree = self._tree
        tree.sync(NEW)
        items = [[each.uid, each.folder] for each in messages]
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
                    file.truncate(self._read)  # a torn line after a crash
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
        """Read lines of other processes, and deliver the last put if its process died; the lock is held."""
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
                break  # torn: that put was not acknowledged
            self._read += len(line)
            at, keys, last = entry
            self._keys |= {key: (at + FIVE_MINUTES, uid) for key, uid in keys.items()}
        if any(tree.exists(NEW, self._queue, uid) for uid, _ in last):
            deliver(tree, self._queue, last)


def _take_back(file: File, size: int) -> None:
    """Durably cut off a line that did not fit; EIO if that fails, as the line may then be on the disk or not."""
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
