"""A moment of a database in a folder: links to all its files, which keep them whatever its writer removes.

    .penstock/pins/OWNER/NAME/db/...      the files of SlateDB, of which none ever changes
    .penstock/pins/OWNER/NAME/objects/    payloads that are too large for a record

SlateDB names a file when it is whole, and what its log holds beyond the tables a reader replays: so the links are
all that was committed. They belong to a process that outlives the reading, and are dropped when it is gone.
"""

import os
import secrets
import shutil
import time
from contextlib import suppress

from penstock.errors import PenstockError, StoreCorrupt
from penstock.stores.slate.binding import load
from penstock.stores.slate.folder import SUBFOLDER, Folder
from penstock.stores.slate.synced import names_in, numbered
from penstock.stores.slate.view import Moment, View
from penstock.system.files import SystemDisk
from penstock.system.processes import is_gone, name_of

_TRIES = 50
_SYNCED = 16  # files at the end of the log that its writer may still be about to sync
_UNUSED = 24 * 3600  # seconds after which a moment that nobody has opened may go
_IN_USE = 600  # seconds for which one is kept in any case
_MOST = 200  # moments of one process


def exists(folder: str) -> bool:
    """Whether there is such a store, or what is left of one."""
    return any(names_in(os.path.join(folder, "db", name)) for name in ("manifest", "wal", "compacted"))


def tail(folder: str) -> int:
    """The number of the last file of the log: it grows with every commit."""
    return max([number for number, _ in numbered(os.path.join(folder, "db", "wal"))], default=0)


def freeze(folder: str, owner: int, objects: bool) -> Moment:
    """Take a moment, for a process; perhaps with large payloads."""
    if not exists(folder):
        raise PenstockError(f"there is no store {folder!r}: nothing of one is there")
    sweep(folder)
    owned = os.path.join(folder, SUBFOLDER, "pins", name_of(owner))
    held = os.path.join(owned, secrets.token_hex(8))
    try:
        _drop_unused(owned)
        payloads = (os.path.join(folder, "objects"), os.path.join(held, "objects"))
        if objects:
            _link_all(*payloads)
        last = _linked(folder, held)
        if objects:  # those of messages that were put meanwhile; those of messages that went were linked before
            _link_all(*payloads)
        _sync(os.path.join(held, "db", "wal"), last)
    except OSError as error:
        drop(held)
        raise PenstockError(
            f"the files of the store {folder!r} cannot be held for reading: {error.strerror} ({held!r}). Reading "
            "needs the right to write to that folder, on a file system with hard links"
        ) from error
    except BaseException:
        drop(held)
        raise
    return Moment(folder, held, {}, last)


def _linked(folder: str, held: str) -> int:
    """Link the files of a database that goes on; the last number of its log."""
    source, target = os.path.join(folder, "db"), os.path.join(held, "db")
    for _ in range(_TRIES):
        newest = _newest(source)
        for name in ("manifest", "compacted", "wal"):
            _link_all(os.path.join(source, name), os.path.join(target, name))
        last = _link_between(os.path.join(source, "wal"), os.path.join(target, "wal"))
        if _newest(source) == newest:  # nothing that it names can have gone before it was linked
            return last
        shutil.rmtree(target)
    raise StoreCorrupt(f"the files of {folder!r} change faster than they can be read: try again")


def _link_between(source: str, target: str) -> int:
    """Link what a listing has left out because it was just then made, before what it has; the last number."""
    found = {number for number, _ in numbered(target)}
    for number in range(min(found, default=0), max(found, default=0)):
        if number not in found:
            with suppress(FileNotFoundError):
                name = f"{number:020}.sst"
                os.link(os.path.join(source, name), os.path.join(target, name))
    return max(found, default=0)


def _newest(db: str) -> int:
    return max([number for number, _ in numbered(os.path.join(db, "manifest"))], default=0)


def _link_all(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    if not os.path.isdir(source):
        return
    for name in os.listdir(source):
        if "#" not in name:  # it is still being written
            with suppress(FileNotFoundError, FileExistsError):
                os.link(os.path.join(source, name), os.path.join(target, name))


def _sync(wal: str, last: int) -> None:
    """What is read must not be lost, even if its writer has not been told yet that it was committed."""
    disk = SystemDisk()
    for number in range(max(1, last - _SYNCED), last + 1):
        with suppress(FileNotFoundError):
            file = disk.open(os.path.join(wal, f"{number:020}.sst"))
            file.sync()
            file.close()
    disk.sync_folder(wal)


def opened(moment: Moment, timeout: float) -> View:
    """Look at a moment."""
    place = Folder(moment.held, "never")
    place.what = f"the store {moment.url!r}"
    with suppress(FileNotFoundError):
        os.utime(moment.held)  # it is in use
        return View(
            place.object_store(), "db", load().ReaderMode.FOLLOW_LATEST(), moment, place, place.what, timeout
        )
    raise PenstockError(
        f"what this DataFrame reads is gone ({moment.held!r}), as it was not used for long: load() it again"
    )


def drop(held: str) -> None:
    """A moment is not needed any more."""
    shutil.rmtree(held, ignore_errors=True)
    with suppress(OSError):  # its process has others
        os.rmdir(os.path.dirname(held))


def sweep(folder: str) -> None:
    """Drop the moments of processes that are gone."""
    pins = os.path.join(folder, SUBFOLDER, "pins")
    with suppress(OSError):
        for owner in os.listdir(pins):
            if is_gone(owner):
                shutil.rmtree(os.path.join(pins, owner), ignore_errors=True)


def _drop_unused(owned: str) -> None:
    now = time.time()
    found: list[tuple[float, str]] = []
    with suppress(FileNotFoundError), os.scandir(owned) as there:
        for each in there:
            with suppress(FileNotFoundError):
                found.append((each.stat().st_mtime, each.path))
    for number, (used, path) in enumerate(sorted(found, reverse=True)):
        if now - used > _UNUSED or (number >= _MOST and now - used > _IN_USE):
            drop(path)
