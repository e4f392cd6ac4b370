"""A disk of this machine whose power can be cut: an ext4 image on a loop device, without its page cache."""

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SHUTDOWN, _WITHOUT_FLUSHING_THE_LOG = 0x8004587D, 2  # of linux/fs.h and ext4.h
_SIZE = 512 << 20


def missing() -> str:
    """Why there can be no such disk here; nothing if there can."""
    if os.geteuid() != 0:
        return "mounting a loop device needs root"
    for program in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    if not os.path.exists("/dev/loop-control"):
        return "this kernel, or this container, has no loop devices"
    return ""


class LoopDisk:
    """An ext4 file system in a file, mounted as long as the power is on."""

    def __init__(self, folder: Path) -> None:
        self.mounted = folder / "mounted"
        self.mounted.mkdir()
        self._image = folder / "image.0"
        self._cuts = 0
        with self._image.open("wb") as file:
            file.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self._mount()

    def cut_power(self) -> None:
        """From now on nothing reaches the disk any more, whatever is in the page cache."""
        descriptor = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount what has reached the disk, after everybody has let go of it."""
        self._cuts += 1
        copy = self._image.with_name(f"image.{self._cuts}")
        shutil.copyfile(self._image, copy)
        _run("umount", str(self.mounted))
        self._image.unlink()
        self._image = copy
        self._mount()

    def close(self) -> None:
        _run("umount", str(self.mounted))
        self._image.unlink()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mounted))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
