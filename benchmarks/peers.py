"""Embedded queues to compare with, each set to be durable: an operation is synced before it returns.

All of them keep a queue in SQLite with a write-ahead log, where synchronous=FULL syncs the log once per commit.
A peer is opened in an empty folder and may be shared by threads; its wrapper gives each thread what it needs.

    peer            syncs per put   per consume   a consumed message is
    persist-queue   1               2             claimed, then acknowledged
    litequeue       1               2             claimed, then acknowledged
    huey            1               1             gone
    diskcache       1               1             gone
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import diskcache
import huey.storage
import litequeue
import persistqueue


class Peer(ABC):
    """A queue to compare with. Payloads are ASCII, because litequeue keeps text only."""

    @abstractmethod
    def put(self, payload: bytes) -> object:
        """Add a message."""

    @abstractmethod
    def consume(self) -> bytes | None:
        """Take the next message and settle it; None if there is none."""

    def leave(self) -> None:  # noqa: B027 - most peers have nothing to do
        """Called by each thread that is done with the queue, while others may still use it."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


class PersistQueue(Peer):
    """persist-queue's SQLiteAckQueue; with multithreading=True threads may share it. Durable by default."""

    def __init__(self, folder: Path) -> None:
        self.queue = persistqueue.SQLiteAckQueue(str(folder), multithreading=True)

    def put(self, payload: bytes) -> object:
        return self.queue.put(payload)

    def consume(self) -> bytes | None:
        try:
            item = self.queue.get(block=False, raw=True)
        except persistqueue.Empty:
            return None
        self.queue.ack(item)
        payload: bytes = item["data"]
        return payload

    def close(self) -> None:
        self.queue.close()


class LiteQueue(Peer):
    """litequeue; it syncs only now and then unless told so. A queue for each thread: faster than sharing one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "queue.db"
        self.local = threading.local()
        self.opening = threading.Lock()  # SQLite refuses two threads that set up a database at once
        _ = self.queue  # creates the tables

    @property
    def queue(self) -> litequeue.LiteQueue:
        """The queue of this thread."""
        if not hasattr(self.local, "queue"):
            with self.opening:
                self.local.queue = litequeue.LiteQueue(self.path)
                self.local.queue.conn.execute("PRAGMA synchronous = FULL")
                self.local.queue.conn.execute("PRAGMA busy_timeout = 60000")
        return self.local.queue

    def put(self, payload: bytes) -> object:
        return self.queue.put(payload.decode("ascii"))

    def consume(self) -> bytes | None:
        queue = self.queue
        message = queue.pop()
        if message is None:
            return None
        queue.done(message.message_id)
        payload: bytes = message.data.encode("ascii")
        return payload

    def leave(self) -> None:
        self.queue.close()
        del self.local.queue

    def close(self) -> None:
        self.leave()


class Huey(Peer):
    """huey's storage without its tasks; threads share one connection behind a lock."""

    def __init__(self, folder: Path) -> None:
        self.storage = huey.storage.SqliteStorage("bench", filename=str(folder / "queue.db"), fsync=True)

    def put(self, payload: bytes) -> object:
        return self.storage.enqueue(payload)

    def consume(self) -> bytes | None:
        payload: bytes | None = self.storage.dequeue()
        return payload

    def close(self) -> None:
        self.storage.close()


class DiskCache(Peer):
    """diskcache's Deque; each thread has a connection of its own, which it must close."""

    def __init__(self, folder: Path) -> None:
        self.cache = diskcache.Cache(str(folder), sqlite_synchronous=2, eviction_policy="none")
        self.queue = diskcache.Deque.fromcache(self.cache)

    def put(self, payload: bytes) -> object:
        return self.queue.append(payload)

    def consume(self) -> bytes | None:
        try:
            payload: bytes = self.queue.popleft()
        except IndexError:
            return None
        return payload

    def leave(self) -> None:
        self.cache.close()

    def close(self) -> None:
        self.cache.close()


WITH_ACK: dict[str, Callable[[Path], Peer]] = {"persist-queue": PersistQueue, "litequeue": LiteQueue}
WITHOUT_ACK: dict[str, Callable[[Path], Peer]] = {"huey": Huey, "diskcache": DiskCache}
EVERY = WITH_ACK | WITHOUT_ACK
