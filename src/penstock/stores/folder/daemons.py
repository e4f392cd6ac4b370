"""MQ-Core's daemons `penstock mover`, which ends leases and delays, and `penstock reaper`, which unlinks.

In a folder store they do what every process that uses it does anyway, for times when no process does. In any other
folders, files of the source are named `QUEUE:ID`. The mover renames them to `QUEUE/ID` in the destination, a delay
after they came, or at their mtime if that was in the future when they came.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import InvalidArgument, PenstockError
from penstock.stores.folder import layout
from penstock.stores.folder.backend import FolderBackend, open_folder
from penstock.system.files import SystemDisk

EVERY = 1.0  # seconds between two rounds
_TEXT = ".tq"  # the end of a text store's files
_log = logging.getLogger("penstock")
Round = Callable[[], int]


def mover(source: str, destination: str, delay: float) -> Round:
    """One round of the mover, as a function; it returns how many files it moved."""
    _check_folder(source)
    _check_folder(destination)
    backend = _store_of(source, layout.DELAY)
    if backend is not None and _is(destination, backend, layout.QUEUES):
        return backend.move_due
    return lambda: _move_due(source, destination, delay)


def reaper(source: str, force: bool = False) -> Round:
    """One round of the reaper, as a function; it returns how many files it unlinked."""
    _check_folder(source)
    backend = _store_of(source, layout.REMOVE)
    if backend is not None:
        return backend.reap
    if not force and (root := _root_of(source)) is not None:
        raise InvalidArgument(
            f"{source!r} is part of the store in {root!r}, and every file in it would go: give the folder "
            f"{layout.REMOVE!r} of a folder store, or --force if that is what you want"
        )
    return lambda: _unlink_all(source)


def repeat(round_: Round, stopping: threading.Event, every: float = EVERY) -> int:
    """Repeat rounds until stopped; the sum of their files."""
    total = 0
    while not stopping.is_set():
        total += round_()
        stopping.wait(every)
    return total


@contextmanager
def tended(backend: FolderBackend) -> Iterator[None]:
    """Run mover and reaper in a thread while a folder store is served."""
    stopping = threading.Event()

    def tend() -> None:
        said = ""
        while backend.failure is None and not stopping.wait(EVERY):
            try:
                backend.tend()
                said = ""
            except (OSError, PenstockError) as error:
                if not stopping.is_set() and str(error) != said:  # log the same error once
                    said = str(error)
                    _log.error("moving and reaping in a folder store failed: %s", error)

    thread = threading.Thread(target=tend, name="penstock-tending", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _store_of(folder: str, name: str) -> FolderBackend | None:
    """The folder store whose folder of that name this is; None if it is not."""
    root, last = os.path.split(os.path.abspath(folder))
    if last != name or not os.path.isdir(os.path.join(root, layout.OWN)):
        return None
    return open_folder(root)


def _root_of(folder: str) -> str | None:
    """The store of any kind, or the tree of MQ-Core, around a folder; None for none, and for MQ-Core's remove/."""
    below, root = "", os.path.realpath(folder)
    while True:
        # Without listing the folder: a user who may not list it may still unlink files below it.
        is_tree = all(os.path.isdir(os.path.join(root, each)) for each in layout.MQ_CORE)
        if os.path.lexists(os.path.join(root, layout.OWN)) or (is_tree and below != layout.REMOVE):
            return root
        if not below and any(name.endswith(_TEXT) for name in os.listdir(root)):
            return root
        if root == os.path.dirname(root):
            return None
        root, below = os.path.split(root)


def _is(folder: str, backend: FolderBackend, name: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(backend.shared.tree.path(name))


def _check_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        raise InvalidArgument(f"there is no folder {folder!r}: give one that is there")


def _move_due(source: str, destination: str, delay: float) -> int:
    moved = 0
    now = time.time()
    for entry in os.scandir(source):
        queue, colon, name = entry.name.partition(":")
        if not colon or not name or queue in ("", ".", "..") or not entry.is_file(follow_symlinks=False):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            ahead = status.st_mtime > status.st_ctime
            if now < (status.st_mtime if ahead else status.st_ctime + delay):
                continue
            os.rename(entry.path, os.path.join(destination, queue, name))
            moved += 1
        except FileNotFoundError:  # another mover took it, or there is no such queue
            continue
    if moved:
        for folder in [*(entry.path for entry in os.scandir(destination) if entry.is_dir()), source]:
            SystemDisk().sync_folder(folder)
    return moved


def _unlink_all(source: str) -> int:
    unlinked = 0
    for entry in os.scandir(source):
        try:
            if entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
                unlinked += 1
        except FileNotFoundError:
            continue
    return unlinked
