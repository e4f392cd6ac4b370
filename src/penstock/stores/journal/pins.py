"""Pins: second names for the files of journals, so that packing cannot take them from readers.

    .penstock/pins/OWNER/PLAN/    the pins of one read, and files that the reader adds

A reader without the store's lock makes pins for the owner, a process that outlives the read. When the owner has
ended, the next reader, or the next process that opens the store, drops them.
"""

import os
import secrets
from contextlib import suppress

from penstock.errors import PenstockError
from penstock.stores.journal.catalog import FOLDER
from penstock.system.files import Disk, SystemDisk
from penstock.system.processes import checked_process, is_gone, name_of

_TRIES = 10


class Pins:
    """The pins of one plan. `folder` is made with the first pin, or by make()."""

    def __init__(self, store: str, owner: int | str, disk: Disk | None = None) -> None:
        """`owner` is the pid of a process, or its name."""
        self._disk = disk or SystemDisk()
        self._store = store
        name = checked_process(owner) if isinstance(owner, str) else name_of(owner)
        self.owner = os.path.join(store, FOLDER, "pins", name)
        self.folder = os.path.join(self.owner, secrets.token_hex(8))
        self._count = 0
        self._made = False

    def make(self) -> None:
        if self._made:
            return
        for last in (False,) * _TRIES + (True,):
            try:
                pins = os.path.dirname(self.owner)
                for path in (os.path.dirname(pins), pins, self.owner):  # the first, in a Kestrel's folder
                    with suppress(FileExistsError):
                        self._disk.mkdir(path)
                self._disk.mkdir(self.folder)
                break
            except OSError as error:
                # Dropping the owner's last plan drops the owner's folder, perhaps at this moment.
                if last or not isinstance(error, FileNotFoundError):
                    raise _impossible(self._store, error) from error
        self._made = True

    def pin(self, path: str) -> str:
        """Give a file a second name; FileNotFoundError if it was renamed or removed meanwhile."""
        self.make()
        pinned = os.path.join(self.folder, str(self._count))
        try:
            self._disk.link(path, pinned)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _impossible(self._store, error) from error
        self._count += 1
        return pinned

    def unpin(self, pinned: str) -> None:
        """Remove a second name."""
        with suppress(FileNotFoundError):
            self._disk.unlink(pinned)

    def drop(self) -> None:
        """Drop the plan."""
        drop_plan(self.folder, self._disk)
        with suppress(OSError):  # other plans are there
            self._disk.rmdir(self.owner)


def sweep(store: str, disk: Disk) -> None:
    """Drop the pins of all owners that have ended. Failures only cost space, and are not raised."""
    pins = os.path.join(store, FOLDER, "pins")
    with suppress(OSError):
        for owner in disk.listdir(pins) if disk.exists(pins) else []:
            if is_gone(owner):
                path = os.path.join(pins, owner)
                with suppress(OSError):  # another process drops them
                    for plan in disk.listdir(path):
                        drop_plan(os.path.join(path, plan), disk)
                    disk.rmdir(path)


def drop_plan(folder: str, disk: Disk) -> None:
    """Drop a plan's files; readers that have them open can still read them."""
    with suppress(OSError):
        for name in disk.listdir(folder):
            with suppress(FileNotFoundError):
                disk.unlink(os.path.join(folder, name))
        disk.rmdir(folder)


def _impossible(store: str, error: OSError) -> PenstockError:
    pins = os.path.join(store, FOLDER, "pins")
    return PenstockError(
        f"the files of the store {store!r} cannot be held for reading: {error.strerror} ({pins!r}). Reading needs "
        "the right to write to that folder and to the journals, on a file system with hard links"
    )
