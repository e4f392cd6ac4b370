"""Other programs that have a file open to append to it, such as a shell's `>>`, as far as Linux tells."""

import os
from pathlib import Path

from penstock.system.files.door import StrPath

_PROCESSES = Path("/proc")


def identity(path: StrPath) -> tuple[int, int] | None:
    """What tells a file from every other one, whatever its name is by then; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def appenders(file: tuple[int, int] | None) -> list[int]:
    """The ids of processes that have a file open to append, or for writing alone; without /proc there are none."""
    try:
        processes = [each for each in _PROCESSES.iterdir() if each.name.isdigit()] if file else []
    except OSError:
        return []
    return sorted(int(each.name) for each in processes if _appends(each, file))


def _appends(process: Path, file: tuple[int, int] | None) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            if identity(descriptor) == file:
                flags = int((process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0], 8)
                if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_APPEND:
                    return True
    except OSError:  # it has ended, or is another user's
        pass
    return False
