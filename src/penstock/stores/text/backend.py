"""The text store: each queue is a file that people read and edit. There is no owner: any process may have it open.

`text:DIR` is a folder of such files, `NAME.tq` a store of that one queue. A file is named after its queue,
percent-encoded. A name that is too long for that, or that some file system would take for another's, gets a name
of its own with `%_` in it, and the file itself says which queue it is.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.contract import names
from penstock.contract import names as queue_names
from penstock.contract.message import PUBLISH_HEADER, Attempt, Entry, Message, Moved, checked_headers
from penstock.contract.operations import Held
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import not_supported
from penstock.engine.backend import check_start
from penstock.engine.unowned import Unowned
from penstock.errors import (
    DiskFull,
    InvalidArgument,
    NotSupported,
    PenstockError,
    QueueExists,
    QueueNotFound,
    QueueProtected,
    StoreClosed,
    StoreUnavailable,
)
from penstock.stores.text.files import FULL, MutexLock, Sync, mutex_of
from penstock.stores.text.format import parse
from penstock.stores.text.queue import TextFileQueue
from penstock.stores.text.turns import Poller
from penstock.stores.text.variables import read_head, write_head
from penstock.stores.text.view import Shown, shown
from penstock.system import forks
from penstock.system.clock import Clock, SteadyClock, SystemClock
from penstock.system.files import (
    Disk,
    SystemDisk,
    is_refused,
    make_folder,
    refusal,
    replace_file,
    status_if_there,
    unavailable,
)
from penstock.system.threads import SystemThreads, Threads

if TYPE_CHECKING:
    from penstock.filters import Filter


_log = logging.getLogger("penstock")
_STRAY = (errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ELOOP)


class TextBackend(Unowned):
    """Keeps queues in the text files of a folder."""

    def __init__(self, folder: str, clock: Clock, sync: str, disk: Disk, threads: Threads | None = None) -> None:
        self.clock = clock
        self._folder = folder
        self._disk = disk
        self._threads = threads or SystemThreads()
        self._clock = SteadyClock(clock)
        self._sync = Sync(sync, clock.monotonic)
        self._poller = Poller(self._threads)
        self._lock = self._threads.rlock()
        self._queues: dict[str, TextFileQueue] = {}
        self._filters: dict[str, Filter] = {}  # by their text
        self._closed = self._is_open = False
        self._broken: Callable[[], StoreClosed] | None = None
        self.failure: OSError | None = None  # what has stopped the store
        self._skipped: set[str] = set()
        self._prepare()
        self._is_open = True
        forks.watch(self)

    def _prepare(self) -> None:
        """Make the folder and the queue `default`, if they are not there."""
        self._make_folder()
        if queue_names.DEFAULT not in self._files():
            with suppress(QueueExists):  # another process was quicker
                self.create(queue_names.DEFAULT, Settings())

    def _make_folder(self) -> None:
        try:
            make_folder(self._disk, self._folder)
            self._disk.sync_folder(self._folder)  # who made or removed a queue may have stopped before this
        except OSError as error:
            raise unavailable(self._folder, error) from error

    def _files(self) -> dict[str, str]:
        """The queues there are, and the path of each."""
        found: dict[str, str] = {}
        with _errors_of_the_disk(self._folder):
            files = sorted(self._disk.listdir(self._folder))
        for file in files:
            if not file.endswith(SUFFIX) or file == SUFFIX:
                continue
            path = os.path.join(self._folder, file)
            name = queue_of(file)
            try:
                there = status_if_there(self._disk, path)
                if there is None:
                    continue  # removed in this moment, or a link that leads nowhere
                if not there.is_file or there.is_folder:
                    raise OSError(errno.EISDIR if there.is_folder else errno.ENXIO, "", path)
                self._disk.real(path)
                if name is None:
                    name = self._said_name(path) or file.removesuffix(SUFFIX)[:255]
            except OSError as error:
                if error.errno not in _STRAY:  # it may well be a queue
                    raise unavailable(path, error) from error
                self._skip(path, error)
                continue
            found.setdefault(name, path)
        return found

    def _skip(self, path: str, error: OSError | StoreUnavailable) -> None:
        """Leave a file alone that is no queue, or not ours to read, and say so once."""
        if path not in self._skipped:
            self._skipped.add(path)
            _log.warning("skipped: %s", refusal(path, error) if isinstance(error, OSError) else error)

    def _said_name(self, path: str) -> str | None:
        with suppress(FileNotFoundError), self._disk.open(path, follow=True) as file:
            return read_head(parse(file.read(0, 100_000)).entries)[1]
        return None

    # Queues

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        check_start(settings)
        with self._lock:
            self._check_open()
            if queue in self._files():
                raise _exists(queue)
            with _errors_of_the_disk(self._folder):
                file = file_for(queue, self._disk.listdir(self._folder))
            path = os.path.join(self._folder, file)
            self._create(queue, path, write_head(settings, queue if CHOSEN in file else None))
            self._queues[queue] = self._working(queue, path)

    def _create(self, queue: str, path: str, head: bytes) -> None:
        lock = MutexLock(path, self._disk)
        try:
            lock.acquire()
            try:
                if self._disk.exists(path):
                    raise _exists(queue)
                lock.file.truncate(0)  # what an earlier queue of that name has left
                lock.file.sync()
                replace_file(self._disk, path, head)
                mutex_of(path, self._disk)  # which says so in the file, before anyone can link to it
            except OSError:
                with suppress(OSError):
                    self._disk.unlink(path)  # its name may not be durable
                raise
            finally:
                lock.close()
        except FileNotFoundError:
            raise
        except OSError as error:
            if is_refused(error) or error.errno in FULL:
                raise unavailable(path, error) from error
            raise self._fail(path, error) from error

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages; of one that is a symbolic link, the link."""
        working, path = self.find(queue), self._files().get(queue)
        with _errors_of_the_disk(working.path):
            link = path if path is not None and self._disk.kind(path) == "link" else None
        working.delete(link)
        with self._lock:
            self._queues.pop(queue, None)

    def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        infos = []
        for name in sorted(self.files()):
            with suppress(QueueNotFound):  # removed in this moment
                queue = self.find(name)
                try:
                    infos.append(QueueInfo(name, queue.settings, queue.counts()))
                except StoreUnavailable as error:
                    self._skip(queue.path, error)
        return infos

    def check(self) -> None:
        """Raise what keeps the store from working: none of its queues can be written."""
        refused: StoreUnavailable | None = None
        for name in sorted(self.files()):
            with suppress(QueueNotFound):  # removed in this moment
                try:
                    self.find(name).probe()
                    return
                except StoreUnavailable as error:  # it may be this one alone
                    refused = error
        if refused is not None:
            raise refused

    def files(self) -> dict[str, str]:
        """The queues there are, and the file of each."""
        self._check_open()
        return self._files()

    def find(self, queue: str) -> TextFileQueue:
        """The queue at work; QueueNotFound."""
        self._check_open()
        working = self._queues.get(queue)
        if working is not None:
            return working
        with self._lock:
            path = self._files().get(queue)
            if path is None:
                raise QueueNotFound(f"there is no queue {queue!r}: create it with store.create({queue!r})")
            return self._queues.setdefault(queue, self._working(queue, path))

    def _working(self, queue: str, path: str) -> TextFileQueue:
        with _errors_of_the_disk(path):
            path = self._disk.real(path)
        return TextFileQueue(
            queue, path, self._disk, self._clock, self._threads, self._sync, self._poller.watch, self._fail
        )

    def _fail(self, path: str, error: OSError) -> PenstockError:
        """Stop the store in this process: nobody knows what the disk has after such an error."""
        if not self._is_open:
            return unavailable(error.filename or path, error)
        why = refusal(error.filename or path, error)

        def broken() -> StoreClosed:
            return StoreClosed(
                f"the store in {self._folder!r} was stopped in this process, as nobody knows what is on the disk "
                f"after {why}; then open the store again, which checks and completes what was begun"
            )

        with self._lock:
            if self.failure is None:
                self.failure, self._broken = error, broken
                _log.error("%s", broken())
                for queue in self._queues.values():
                    queue.stop(broken)
        return broken()

    def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return self.find(queue).settings

    def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return self.find(queue).counts()

    # Messages

    def publish(self, entry: Entry) -> str:
        """Put a copy into every queue whose filter matches, or into none if one of them refuses it."""
        published = os.urandom(16).hex()
        copy = replace(entry, headers=checked_headers({**(entry.headers or {}), PUBLISH_HEADER: published}))
        with ExitStack() as turns:
            matching: list[TextFileQueue] = []
            paths: set[str] = set()
            for name in sorted(self.files()):  # in the same order for everyone, so that nobody waits in a circle
                queue = self.find(name)
                with suppress(QueueNotFound, StoreUnavailable):  # of those, listing the queues tells
                    with _errors_of_the_disk(queue.path):
                        mutex = mutex_of(queue.path, self._disk)
                    if mutex in paths:
                        continue  # another name of the same file
                    paths.add(mutex)
                    if self._matches(queue.settings.filter, entry):
                        turns.enter_context(queue.turn())
                        matching.append(queue)
            for queue in matching:
                queue.check(copy)
            self._put_into_all(matching, copy)
        return published

    def _put_into_all(self, queues: Sequence[TextFileQueue], copy: Entry) -> None:
        """All of them, or none if the disk is full."""
        put: list[tuple[TextFileQueue, list[str]]] = []
        for queue in queues:
            try:
                put.append((queue, queue.put([copy])))
            except DiskFull as error:
                try:
                    for earlier, ids in put:
                        earlier.remove(ids)
                except DiskFull:
                    raise StoreClosed(
                        f"no space left: {len(put)} of {len(queues)} queues have their copy, and not even "
                        "taking it back has any. Free some, and remove what has the header penstock.publish "
                        f"{(copy.headers or {}).get(PUBLISH_HEADER)!r}, or publish again"
                    ) from error
                raise

    def _matches(self, text: str | None, entry: Entry) -> bool:
        if text is None:
            return False
        from penstock import filters  # here, because most processes need none

        if text not in self._filters:
            self._filters[text] = filters.parse(text)
        return self._filters[text].matches(filters.Subject.of(entry, self._clock.now()))

    def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        return self.find(queue).put(entries)

    def restore(self, queue: str, moved: Sequence[Moved]) -> None:
        """Take in messages as they were in another store, all or none."""
        self.find(queue).restore(moved)

    def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages, and if `most` is given not many more bytes than that."""
        working = self.find(queue)
        return working.take(working.claiming(n, lease, consumer, most), wait)

    def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        working = self.find(queue)
        return next(iter(working.take(working.popping(consumer), wait)), None)

    def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self.find(queue).ack(receipts)

    def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self.find(queue).fail(receipts, delay, reason)

    def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        self.find(queue).release(receipts)

    def extend(self, queue: str, receipts: Sequence[str], lease: float) -> Held:
        """Hold from now on."""
        return Held(*self.find(queue).extend(receipts, lease))

    def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state: they are commented out."""
        return self.find(queue).remove(ids)

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        return self.find(queue).redrive(ids)

    def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        return self.find(queue).purge()

    def peek(self, queue: str, n: int, skip: int = 0) -> Iterator[Message]:
        """What claim would give, after some that are skipped."""
        return islice(self.find(queue).peek(n + skip), skip, None)

    def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self.find(queue).attempts(id)

    def messages(
        self, queue: str, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""
        return self.find(queue).messages(state, after, until)

    def pack(self, queue: str) -> int:
        """Write a queue's file anew without what is done, while no person edits it; how many bytes that frees."""
        return self.find(queue).pack()

    def stored(self, queue: str) -> int:
        """How many bytes the queue's file has."""
        return self.find(queue).run(lambda view, now: view.end)

    def shown(self, queue: str) -> list[Shown]:
        """The queue's file, piece by piece."""
        working = self.find(queue)
        return working.run(lambda view, now: shown(working.files.read_all(), view))

    def streams(self) -> Streams:
        """The streams that read queues of this store: there are none."""
        raise not_supported("a text store")

    def forked(self) -> None:
        """In a child: use the same files, as any other process does."""
        self._lock = self._threads.rlock()
        self._clock.forked()
        self._poller.forked()
        for queue in self._queues.values():
            queue.forked()

    def close(self) -> None:
        """Let go of everything; waiting consumers get StoreClosed."""
        with self._lock:
            self._closed = True
            self._poller.stop()
            for queue in self._queues.values():
                queue.stop(_closed)
                queue.files.close()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()
        if self._broken is not None:
            raise self._broken()


class FileBackend(TextBackend):
    """Keeps the one queue that is a file, under the file's name."""

    def __init__(self, path: str, clock: Clock, sync: str, disk: Disk, threads: Threads | None = None) -> None:
        self._path = path
        self.only = queue_of(os.path.basename(path)) or os.path.basename(path).removesuffix(SUFFIX)
        super().__init__(os.path.dirname(path) or ".", clock, sync, disk, threads)

    def _prepare(self) -> None:
        self._make_folder()
        with _errors_of_the_disk(self._path):
            there = status_if_there(self._disk, self._path)
            if there is not None and (there.is_folder or not there.is_file):
                raise OSError(errno.EISDIR if there.is_folder else errno.ENXIO, "", self._path)
            real = self._disk.real(self._path)
        if there is None:
            with suppress(QueueExists):
                self._create(self.only, real, b"")

    def _files(self) -> dict[str, str]:
        with _errors_of_the_disk(self._path):
            return {self.only: self._path} if self._disk.exists(self._path) else {}

    def find(self, queue: str) -> TextFileQueue:
        """The queue at work, also under the name `default`."""
        return super().find(self.only if queue == queue_names.DEFAULT else queue)

    def create(self, queue: str, settings: Settings) -> None:
        """Refuse: there is one queue, and it is there."""
        if queue == self.only:
            raise _exists(queue)
        raise NotSupported(
            f"the store {self._path!r} is a single queue, {self.only!r}: open text:{self._folder} for several"
        )

    def delete(self, queue: str) -> None:
        """Refuse: the store is this queue."""
        self.find(queue)
        raise QueueProtected(f"queue {queue!r} is the store: empty it with purge(), or remove {self._path!r}")


def open_text(
    url: str,
    *,
    clock: Clock | None = None,
    sync: str = "always",
    disk: Disk | None = None,
    threads: Threads | None = None,
) -> TextBackend:
    """Open `text:DIR`, or a path that ends in `.tq`; what is not there is made."""
    path = url[len("text:") :] if url[:5].lower() == "text:" else url
    if not path:
        raise InvalidArgument("text: without a folder; give text:DIR, or NAME.tq")
    kind = FileBackend if path.endswith(SUFFIX) else TextBackend
    return kind(path, clock or SystemClock(), sync, disk or SystemDisk(), threads)


@contextmanager
def _errors_of_the_disk(path: str) -> Iterator[None]:
    """An error of the disk leaves open what has happened."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unavailable(path, error) from error


def _exists(queue: str) -> QueueExists:
    return QueueExists(f"queue {queue!r} exists already: open it with store.queue({queue!r})")


def _closed() -> StoreClosed:
    return StoreClosed("the store was closed: open it again with penstock.open()")


SUFFIX = ".tq"
_LONGEST = 200
CHOSEN = "%_"  # no encoded name has a % that no two digits follow


def file_for(queue: str, taken: Iterable[str]) -> str:
    """A file name for a new queue, on any file system unlike those that are taken."""
    folded = {file.casefold() for file in taken}
    encoded = names.file_name(queue)
    if len(encoded) <= _LONGEST and (encoded + SUFFIX).casefold() not in folded:
        return encoded + SUFFIX
    number = 2
    while (short := f"{encoded[:150]}{CHOSEN}{number}{SUFFIX}").casefold() in folded:
        number += 1
    return short


def queue_of(file: str) -> str | None:
    """The queue that a file is named after; None if it was named otherwise."""
    stem = file.removesuffix(SUFFIX)
    if CHOSEN in stem:
        return None
    decoded, at = "", 0
    while at < len(stem):
        digits = stem[at + 1 : at + 3]
        if stem[at] == "%" and len(digits) == 2 and all(digit in "0123456789ABCDEFabcdef" for digit in digits):
            decoded, at = decoded + chr(int(digits, 16)), at + 3
        else:
            decoded, at = decoded + stem[at], at + 1
    legal = decoded.isascii() and decoded.isprintable() and " " not in decoded and 0 < len(decoded) <= 255
    return (
        decoded if legal else "".join(each if "!" <= each <= "~" else f"%{ord(each):02X}" for each in stem)[:255]
    )
