"""The text store: each queue is a file that people read and edit. There is no owner: any process may have it open.

`text:DIR` is a folder of such files, `NAME.tq` a store of that one queue. A file is named after its queue,
percent-encoded. A name that is too long for that, or that some file system would take for another's, gets a name
of its own with `%_` in it, and the file itself says which queue it is.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.contract import names
from penstock.contract.message import PUBLISH_HEADER, Entry, Moved
from penstock.contract.settings import QueueInfo, Settings
from penstock.engine.backend import check_start, closed, exists_already, not_found
from penstock.engine.unowned import Unowned, stopped
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
from penstock.stores.text.files import MutexLock, Sync, mutex_of
from penstock.stores.text.format import parse
from penstock.stores.text.queue import TextFileQueue
from penstock.stores.text.turns import Poller
from penstock.stores.text.variables import read_head, write_head
from penstock.stores.text.view import Shown, shown
from penstock.system import processes
from penstock.system.clock import Clock, SteadyClock, SystemClock
from penstock.system.files import (
    Disk,
    SystemDisk,
    is_full,
    is_refused,
    make_folder,
    refusal,
    replace_file,
    status_if_there,
    unavailable,
)
from penstock.system.threads import SystemThreads, Threads

if TYPE_CHECKING:
    pass


if TYPE_CHECKING:
    from penstock.stores.text.snapshot import Snapshot

SUFFIX = ".tq"
_LONGEST = 200  # bytes of a file name
_log = logging.getLogger("penstock")
_STRAY = (errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ELOOP)


class TextBackend(Unowned):
    """Keeps queues in the text files of a folder."""

    kind = "a text store"
    part = 4 << 20

    def __init__(self, folder: str, clock: Clock, sync: str, disk: Disk, threads: Threads | None = None) -> None:
        super().__init__()
        self.clock = clock
        self._folder = folder
        self._disk = disk
        self._threads = threads or SystemThreads()
        self._clock = SteadyClock(clock)
        self._sync = Sync(sync, clock.monotonic)
        self._poller = Poller(self._threads)
        self._lock = self._threads.rlock()
        self._queues: dict[str, TextFileQueue] = {}
        self._closed = self._is_open = False
        self._broken: Callable[[], StoreClosed] | None = None
        self.failure: OSError | None = None  # what has stopped the store
        self._skipped: set[str] = set()
        self._prepare()
        self._is_open = True
        processes.watch_forks(self)

    def _prepare(self) -> None:
        """Make the folder and the queue `default`, if they are not there."""
        self._make_folder()
        if names.DEFAULT not in self._files():
            with suppress(QueueExists):  # another process was quicker
                self.create(names.DEFAULT, Settings())

    def _make_folder(self) -> None:
        try:
            make_folder(self._disk, self._folder)
            self._disk.sync_folder(self._folder)  # its maker may have stopped before this
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
                if not self._has_file(path):
                    continue  # removed in this moment, or a link that leads nowhere
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

    def _has_file(self, path: str) -> bool:
        """Whether there is a file, or a link to one; OSError if it is a folder, a pipe or a device."""
        there = status_if_there(self._disk, path)
        if there is not None and (there.is_folder or not there.is_file):
            raise OSError(errno.EISDIR if there.is_folder else errno.ENXIO, "", path)
        return there is not None

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
                raise exists_already(queue)
            with _errors_of_the_disk(self._folder):
                file = names.new_file(queue, self._disk.listdir(self._folder), _LONGEST, 2, SUFFIX)
            path = os.path.join(self._folder, file)
            self._create(queue, path, write_head(settings, queue if names.CHOSEN in file else None))
            self._queues[queue] = self._working(queue, path)

    def _create(self, queue: str, path: str, head: bytes) -> None:
        lock = MutexLock(path, self._disk)
        try:
            lock.acquire()
            try:
                if self._disk.exists(path):
                    raise exists_already(queue)
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
            if is_refused(error) or is_full(error):
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
                    infos.append(queue.show())
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
                raise not_found(queue)
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
        broken = stopped(self._folder, path, error)
        with self._lock:
            if self.failure is None:
                self.failure, self._broken = error, broken
                _log.error("%s", broken())
                for queue in self._queues.values():
                    queue.stop(broken)
        return broken()

    # Messages, beyond what a queue does itself

    def _publish(self, entry: Entry, copy: Entry) -> None:
        from penstock.filters import Subject  # here, because most processes need none

        subject = Subject.of(entry, self._clock.now())
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
                    if self._matches(queue.settings.filter, subject):
                        turns.enter_context(queue.turn())
                        matching.append(queue)
            for queue in matching:
                queue.check(copy)
            self._put_into_all(matching, copy)

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

    def restore(self, queue: str, moved: Sequence[Moved]) -> None:
        """Take in messages as they were in another store, all or none."""
        self.find(queue).restore(moved)

    def pack(self, queue: str) -> int:
        """Write a queue's file anew without what is done, while no person edits it; how many bytes that frees."""
        return self.find(queue).pack()

    def stored(self, queue: str) -> int:
        """How many bytes the queue's file has."""
        return self.find(queue).run(lambda view, now: view.end)

    def sizes(self, queue: str | None) -> dict[str, int]:
        files = self.files()
        names = list(files) if queue is None else [self.find(queue).name]
        return {name: self._disk.status(files[name]).size for name in names if self._disk.exists(files[name])}

    def snapshot(self, queue: str) -> "Snapshot | None":
        """All messages of a queue at one moment; None: they have to be listed one by one."""
        from penstock.stores.text import snapshot  # here, as it needs NumPy

        try:
            files = snapshot.read(self.find(queue).path, self._disk)
        except FileNotFoundError:
            return None  # listing it says so
        return None if files is None else snapshot.snapshot(queue, files, self.clock.now())

    def shown(self, queue: str) -> list[Shown]:
        """The queue's file, piece by piece."""
        working = self.find(queue)
        return working.run(lambda view, now: shown(working.files.read_all(), view))

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
                queue.stop(closed)
                queue.files.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed()
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
            is_there, real = self._has_file(self._path), self._disk.real(self._path)
        if not is_there:
            with suppress(QueueExists):
                self._create(self.only, real, b"")

    def _files(self) -> dict[str, str]:
        with _errors_of_the_disk(self._path):
            return {self.only: self._path} if self._disk.exists(self._path) else {}

    def find(self, queue: str) -> TextFileQueue:
        return super().find(self.only if queue == names.DEFAULT else queue)

    def create(self, queue: str, settings: Settings) -> None:
        if queue == self.only:
            raise exists_already(queue)
        raise NotSupported(
            f"the store {self._path!r} is a single queue, {self.only!r}: open text:{self._folder} for several"
        )

    def delete(self, queue: str) -> None:
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


def queue_of(file: str) -> str | None:
    """The queue that a file is named after; None if it was named otherwise."""
    stem = file.removesuffix(SUFFIX)
    if names.CHOSEN in stem:
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
