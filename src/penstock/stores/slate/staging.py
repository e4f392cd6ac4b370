"""Where messages wait that are to be taken in by the million: frames (wire/frames.py) beside the database.

    .penstock/staged/LOAD/NAME      of a store in a folder
    PREFIX/staged/LOAD/NAME         of one in a bucket

A load has the name of the process that it belongs to. What was staged is removed once it was taken in. If that
process is gone it is set aside when the store is opened, for a week.
"""

import os
import secrets
import shutil
import socket
from contextlib import suppress
from typing import Protocol

from penstock.engine.loads import began_at
from penstock.stores.slate import s3
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.folder import SUBFOLDER, Folder
from penstock.system.files import SystemDisk, make_folder
from penstock.system.processes import is_gone, name_of

STAGED = "staged"


class Staging(Protocol):
    """The frames of all loads."""

    def put(self, load: str, name: str, frame: bytes) -> None:
        """Keep a frame, on stable storage."""

    def get(self, load: str, name: str) -> bytes:
        """A frame; FileNotFoundError."""

    def has(self, load: str) -> bool:
        """Whether anything of a load is there."""

    def remove(self, load: str) -> None:
        """A load is not needed any more."""

    def set_aside(self, load: str) -> None:
        """A load will never be taken in: keep it where people find it, for a week."""

    def loads(self) -> list[str]:
        """All that are there."""


def new_name(owner: int) -> str:
    """A name for a load of a process."""
    return f"{socket.gethostname()}~{name_of(owner)}~{secrets.token_hex(8)}"


def is_given_up(load: str) -> bool:
    """Of a load that has no record, when a store is opened: whether its process, of this machine, is gone.

    So are those that clients have sent to the process that had the store open before.
    """
    host, _, rest = load.partition("~")
    return began_at(load) is not None or (host == socket.gethostname() and is_gone(rest.partition("~")[0]))


class FolderStaging:
    """In the folder of a store."""

    def __init__(self, folder: str) -> None:
        self._place = Folder(folder, "never")
        self._folder = os.path.join(folder, SUBFOLDER, STAGED)

    def put(self, load: str, name: str, frame: bytes) -> None:
        """Keep a frame, on stable storage."""
        disk, folder = SystemDisk(), os.path.join(self._folder, load)
        make_folder(disk, folder)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        disk.sync_folder(folder)

    def get(self, load: str, name: str) -> bytes:
        """A frame; FileNotFoundError."""
        with open(os.path.join(self._folder, load, name), "rb") as file:
            return file.read()

    def has(self, load: str) -> bool:
        """Whether anything of a load is there."""
        return os.path.isdir(os.path.join(self._folder, load))

    def remove(self, load: str) -> None:
        """A load is not needed any more."""
        shutil.rmtree(os.path.join(self._folder, load), ignore_errors=True)

    def set_aside(self, load: str) -> None:
        """A load will never be taken in."""
        self._place.set_aside([os.path.join(self._place.subfolder, STAGED, load)])

    def loads(self) -> list[str]:
        """All that are there."""
        with suppress(FileNotFoundError):
            return os.listdir(self._folder)
        return []


class BucketStaging:
    """Beside a database in a bucket."""

    def __init__(self, place: BucketPlace, timeout: float) -> None:
        self._place = place
        self._bucket = s3.Bucket(place._account, place._bucket, f"{place._prefix}{STAGED}/", timeout)

    def put(self, load: str, name: str, frame: bytes) -> None:
        """Keep a frame, on stable storage."""
        self._bucket.put(f"{load}/{name}", frame)

    def get(self, load: str, name: str) -> bytes:
        """A frame; FileNotFoundError."""
        return self._bucket.get(f"{load}/{name}")

    def has(self, load: str) -> bool:
        """Whether anything of a load is there."""
        return self._bucket.check(f"{load}/")

    def remove(self, load: str) -> None:
        """A load is not needed any more."""
        for name in self._bucket.list(f"{load}/"):
            self._bucket.delete(name)

    def set_aside(self, load: str) -> None:
        """A load will never be taken in."""
        self._place.set_aside([f"{STAGED}/{name}" for name in self._bucket.list(f"{load}/")])

    def loads(self) -> list[str]:
        """All that are there."""
        return sorted({name.partition("/")[0] for name in self._bucket.list()})


def staging_of(place: Folder | BucketPlace, timeout: float) -> Staging:
    """Where the frames of a store are staged."""
    return BucketStaging(place, timeout) if isinstance(place, BucketPlace) else FolderStaging(place.folder)
