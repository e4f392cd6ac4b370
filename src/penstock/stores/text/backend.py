"""The backend of text stores: finds the queues' files, creates and deletes them, runs operations, publishes.

`text:DIR` is a folder of queues, `NAME.tq` a store of that one queue. Any number of processes may have it open. A
file is named after its queue, percent-encoded. A queue whose name is too long, or differs from another's in case
only, has a file name with `%_`, and the comment at the top of the file has the queue's name.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from penstock.contract import names
from penstock.contract.message import PUBLISH_HEADER, Entry, Moved
from penstock.contract.operation import Operation
from penstock.contract.refusals import exists_already, not_found, protected
from penstock.contract.settings import QueueInfo, Settings
from penstock.engine.backend import check_start, closed
from penstock.engine.unowned import Result, Unowned, stopped
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
from penstock.rules.moves import check_target
from penstock.stores.text.catalog import (
    SUFFIX,
    errors_of_the_disk,
    files_of_queues,
    has_file,
    is_text_file,
    path_of,
    queue_of,
    stem_of,
)
from penstock.stores.text.files import MutexLock, Sync, mutex_of
from penstock.stores.text.locking import Poller
from penstock.stores.text.moves import Moves, lock_order
from penstock.stores.text.queue import TextFileQueue
from penstock.stores.text.variables import write_head
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
    unavailable,
)
from penstock.system.threads import SystemThreads, Threads

if TYPE_CHECKING:
    from penstock.filters import Subject
    from penstock.stores.text.snapshot import Snapshot

_LONGEST = 200  # bytes of a file name
_log = logging.getLogger("penstock")


class TextBackend(Unowned):
    """Queues in the text files of a folder."""

    kind = "a text store"
    part = 4 << 20  # bytes

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
        self.moves = Moves(self, disk, self._clock, self._threads)
        self._closed = self._is_open = False
        self._broken: Callable[[], StoreClosed] | None = None
        self.failure: OSError | None = None  # the error that stopped the store
        self._skipped: set[str] = set()  # paths that were logged
        self._prepare()
        self._is_open = True
        processes.watch_forks(self)

    def _prepare(self) -> None:
        """Make the folder and the queue `default`, if they are missing."""
        self._make_folder()
        if names.DEFAULT not in self._files():
            with suppress(QueueExists):  # another process has just made it
                self.create(names.DEFAULT, Settings())

    def _make_folder(self) -> None:
        try:
            make_folder(self._disk, self._folder)
            self._disk.sync_folder(self._folder)  # the process that made it may have died before this sync
        except OSError as error:
            raise unavailable(self._folder, error) from error

    def _files(self) -> dict[str, str]:
        """The names of all queues, and the path of each."""
        return files_of_queues(self._folder, self._disk, self._skip)

    def _skip(self, path: str, error: OSError | StoreUnavailable) -> None:
        """Log once that a file is not a queue, or may not be read."""
        if path not in self._skipped:
            self._skipped.add(path)
            _log.warning("skipped: %s", refusal(path, error) if isinstance(error, OSError) else error)

    def run(self, operation: Operation[Result]) -> Result:
        """Run an operation; a queue that takes dead letters gets them first."""
        if operation.on_queue is not None:
            self.moves.pull(operation.queue)
        return super().run(operation)

    # Queues

    def create(self, queue: str, settings: Settings) -> None:
        check_start(settings)
        self._check_open()
        if queue in self._files():
            raise exists_already(queue)
        self.moves.check(queue, settings)
        with self._lock:
            self._check_open()
            if queue in self._files():
                raise exists_already(queue)
            with errors_of_the_disk(self._folder):
                file = names.new_file(queue, self._disk.listdir(self._folder), _LONGEST, 2, SUFFIX)
            path = os.path.join(self._folder, file)
            self._create(queue, path, write_head(settings, queue if names.CHOSEN in file else None))
            self._queues[queue] = self.working(queue, path)
        if settings.dead_letter is not None:
            self.moves.forget()

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        """Change settings; the resulting settings."""
        working = self.find(queue)
        before = working.settings
        wanted = before.changed(changes)
        if wanted.dead_letter != before.dead_letter:  # else it may be gone
            self.moves.check(working.name, wanted)
        settings = working.update(changes)
        if "dead_letter" in changes:
            self.moves.forget()
            if settings.dead_letter is not None:
                self.moves.bury(working)  # what has failed before
        return settings

    def _create(self, queue: str, path: str, head: bytes) -> None:
        lock = MutexLock(path, self._disk)
        try:
            lock.acquire()
            try:
                if self._disk.exists(path):
                    raise exists_already(queue)
                lock.file.truncate(0)  # the mutex file of an earlier queue of that name
                lock.file.sync()
                replace_file(self._disk, path, head)
                mutex_of(path, self._disk)  # sets the file's attribute, before anyone can link to the file
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
        """Delete a queue's file, or the symbolic link to it."""
        working, path = self.find(queue), self._files().get(queue)
        with errors_of_the_disk(working.path):
            link = path if path is not None and self._disk.kind(path) == "link" else None
        working.delete(link)
        with self._lock:
            self._queues.pop(queue, None)

    def queues(self) -> list[QueueInfo]:
        infos = []
        self.moves.pull_all()
        for name in sorted(self.files()):
            with suppress(QueueNotFound):  # just removed
                queue = self.find(name)
                try:
                    infos.append(queue.show())
                except StoreUnavailable as error:
                    self._skip(queue.path, error)
        return infos

    def check(self) -> None:
        """Raise if none of the queues can be written."""
        refused: StoreUnavailable | None = None
        for name in sorted(self.files()):
            with suppress(QueueNotFound):  # just removed
                try:
                    self.find(name).probe()
                    return
                except StoreUnavailable as error:  # maybe of this queue alone
                    refused = error
        if refused is not None:
            raise refused

    def files(self) -> dict[str, str]:
        """The names of all queues, and the path of each; StoreClosed."""
        self._check_open()
        return self._files()

    def find(self, queue: str) -> TextFileQueue:
        """A queue; QueueNotFound."""
        self._check_open()
        working = self._queues.get(queue)
        if working is not None:
            return working
        with self._lock:
            path = self._files().get(queue)
            if path is None:
                raise not_found(queue)
            return self._queues.setdefault(queue, self.working(queue, path))

    def working(self, queue: str, path: str) -> TextFileQueue:
        """The queue in a file."""
        with errors_of_the_disk(path):
            path = self._disk.real(path)
        return TextFileQueue(
            queue,
            path,
            self._disk,
            self._clock,
            self._threads,
            self._sync,
            self._poller.watch,
            self._fail,
            self.moves,
        )

    def in_use(self, path: str) -> TextFileQueue | None:
        """The queue in a file, if this process uses it."""
        return next((queue for queue in list(self._queues.values()) if queue.path == path), None)

    def _fail(self, path: str, error: OSError) -> PenstockError:
        """Stop the store in this process after an error that leaves the state of the disk unknown."""
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
        wanting = self._wanting(subject)
        with ExitStack() as locks:
            matching: list[TextFileQueue] = []
            for queue in wanting:
                with suppress(QueueNotFound, StoreUnavailable):  # queues() logs those
                    locks.enter_context(queue.locked())
                    matching.append(queue)
            for queue in matching:
                queue.check(copy)
            self._put_into_all(matching, copy)

    def _wanting(self, subject: "Subject") -> list[TextFileQueue]:
        """The queues whose filter matches, each file once, in the order in which all processes lock them."""
        found: dict[str, TextFileQueue] = {}
        for name in sorted(self.files()):
            with suppress(QueueNotFound, StoreUnavailable):  # queues() logs those
                queue = self.find(name)
                place = lock_order(queue.path, self._disk)
                if place not in found and self._matches(queue.settings.filter, subject):
                    found[place] = queue
        return [found[place] for place in sorted(found)]

    def _put_into_all(self, queues: Sequence[TextFileQueue], copy: Entry) -> None:
        """Put into all queues, or into none if the disk is full."""
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
                        f"no space left: {len(put)} of {len(queues)} queues have their copy, and there is no "
                        "space to take it back. Free some, and remove messages with the header penstock.publish "
                        f"{(copy.headers or {}).get(PUBLISH_HEADER)!r}, or publish again"
                    ) from error
                raise

    def move(self, queue: str, target: str, ids: Sequence[str] | None) -> int:
        """Move messages to another queue; how many."""
        check_target(queue, target)
        return self.moves.move(self.find(queue), self.find(target), ids)

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Redrive failed messages; dead letters go back to the queues that they come from."""
        working, sent = self.find(queue), 0
        if working.name in self.moves.sources():
            sent = self.moves.redrive(working, ids)
        return sent + working.redrive(ids)

    def restore(self, queue: str, moved: Sequence[Moved]) -> None:
        self.find(queue).restore(moved)

    def pack(self, queue: str) -> int:
        """Rewrite a queue's file without done and removed messages; how many bytes that frees."""
        return self.find(queue).pack()

    def stored(self, queue: str) -> int:
        """The bytes of a queue's file."""
        return self.find(queue).run(lambda view, now: view.end)

    def sizes(self, queue: str | None) -> dict[str, int]:
        files = self.files()
        names = list(files) if queue is None else [self.find(queue).name]
        return {name: self._disk.status(files[name]).size for name in names if self._disk.exists(files[name])}

    def snapshot(self, queue: str) -> "Snapshot | None":
        """A snapshot of a queue's messages; None if they have to be listed one by one."""
        from penstock.stores.text import snapshot  # here, as it needs NumPy

        self.moves.pull(queue)
        try:
            files = snapshot.read(self.find(queue).path, self._disk)
        except FileNotFoundError:
            return None  # the listing raises QueueNotFound
        return None if files is None else snapshot.snapshot(queue, files, self.clock.now())

    def shown(self, queue: str) -> list[Shown]:
        """The entries and other lines of a queue's file, with the states of the messages."""
        working = self.find(queue)
        return working.run(lambda view, now: shown(working.storage.read_all(), view))

    def forked(self) -> None:
        """In a forked child: use the files as any other process does."""
        self._lock = self._threads.rlock()
        self._clock.forked()
        self._poller.forked()
        self.moves.forked()
        for queue in self._queues.values():
            queue.forked()

    def close(self) -> None:
        """Close all files; waiting consumers get StoreClosed."""
        with self._lock:
            self._closed = True
            self._poller.stop()
            for queue in self._queues.values():
                queue.stop(closed)
                queue.storage.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed()
        if self._broken is not None:
            raise self._broken()


class FileBackend(TextBackend):
    """A store of one queue, `NAME.tq`; the queue has the name of the file."""

    def __init__(self, path: str, clock: Clock, sync: str, disk: Disk, threads: Threads | None = None) -> None:
        self._path = path
        self.only = queue_of(os.path.basename(path)) or stem_of(os.path.basename(path))
        super().__init__(os.path.dirname(path) or ".", clock, sync, disk, threads)

    def _prepare(self) -> None:
        self._make_folder()
        with errors_of_the_disk(self._path):
            is_there, real = has_file(self._path, self._disk), self._disk.real(self._path)
        if not is_there:
            with suppress(QueueExists):
                self._create(self.only, real, b"")

    def _files(self) -> dict[str, str]:
        with errors_of_the_disk(self._path):
            return {self.only: self._path} if self._disk.exists(self._path) else {}

    def find(self, queue: str) -> TextFileQueue:
        if queue not in (self.only, names.DEFAULT):
            raise QueueNotFound(f"there is no queue {queue!r}: {self._single}")
        return super().find(self.only)

    def create(self, queue: str, settings: Settings) -> None:
        if queue == self.only:
            raise exists_already(queue)
        raise NotSupported(self._single)

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        if changes.get("dead_letter") is not None:
            raise self._alone("takes no dead_letter")
        return self.find(queue).update(changes)

    def move(self, queue: str, target: str, ids: Sequence[str] | None) -> int:
        raise self._alone("cannot move messages to another")

    @property
    def _single(self) -> str:
        """Why there is no other queue."""
        return f"the store {self._path!r} is a single queue, {self.only!r}: open text:{self._folder} for several"

    def _alone(self, what: str) -> NotSupported:
        return NotSupported(
            f"the store {self._path!r} is a single queue, {self.only!r}, and {what}: open text:{self._folder} for "
            "several"
        )

    def delete(self, queue: str) -> None:
        self.find(queue)
        what = f"queue {queue!r} is the store, the file {self._path!r}, and cannot be deleted"
        raise QueueProtected(what, protected(queue).advice)


def open_text(
    url: str,
    *,
    clock: Clock | None = None,
    sync: str = "always",
    disk: Disk | None = None,
    threads: Threads | None = None,
) -> TextBackend:
    """Open or make `text:DIR`, or a path that ends in `.tq`."""
    path = path_of(url)
    if not path:
        raise InvalidArgument("text: without a folder; give text:DIR, or NAME.tq")
    kind = FileBackend if is_text_file(path) else TextBackend
    return kind(path, clock or SystemClock(), sync, disk or SystemDisk(), threads)
