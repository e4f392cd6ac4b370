"""Disks that fail as long as they are told, and what a server answers meanwhile."""

import errno
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.system.files import Data, StrPath, SystemDisk, SystemFile
from tests.stores.slate.loop_disk import missing


class FailingFile(SystemFile):
    """A file of a FailingDisk: writes and syncs fail."""

    disk: "FailingDisk"

    def sync(self) -> None:
        self.disk.check(self.path)
        super().sync()

    def write(self, offset: int, data: Data) -> None:
        self.disk.check(self.path)
        super().write(offset, data)


class FailingDisk(SystemDisk):
    """Lets what changes a path of this kind fail, as long as there is an error."""

    def __init__(self) -> None:
        self.error = 0
        self.pattern = "."

    def check(self, path: StrPath) -> None:
        if self.error and re.search(self.pattern, os.fspath(path)):
            raise OSError(self.error, os.strerror(self.error), os.fspath(path))

    def open(self, path: StrPath, **how: Any) -> SystemFile:
        if how.get("create") or how.get("exclusive"):
            self.check(path)
        file = super().open(path, **how)
        failing = FailingFile(file.path, os.dup(file._descriptor))
        failing.disk = self
        file.close()
        return failing

    def rename(self, source: StrPath, target: StrPath) -> None:
        self.check(target)
        super().rename(source, target)

    def unlink(self, path: StrPath) -> None:
        self.check(path)
        super().unlink(path)

    def sync_files(self, paths: Any) -> None:
        for path in paths if self.error == errno.EIO else ():
            self.check(path)
        super().sync_files(paths)


def ask(url: str, body: bytes | None = None, method: str | None = None) -> tuple[int, bytes]:
    """The status and the body that a server answers with."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, method=method)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextmanager
def ext4(folder: Path, size: int, *options: str) -> Iterator[Path]:
    """An ext4 file system of that size, mounted in a folder."""
    if missing():
        pytest.skip(missing())
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", *options, image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


def fill(folder: Path) -> None:
    """Take all the space that is left on a file system."""
    with open(folder / "others", "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1_000)):
            pass
