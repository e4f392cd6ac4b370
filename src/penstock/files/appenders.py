"""Other programs that have a file open to append to it, such as a shell's `>>`, as far as Linux tells."""

import os
from pathlib import Path

from penstock.files.door import StrPath

_PROCESSES = Path("/proc")


def appenders(path: StrPath) -> list[int]:
    """The ids of processes that have a file open for writing alone; without /proc there are none."""
    try:
        wanted = os.stat(path)
        processes = [each for each in _PROCESSES.iterdir() if each.name.isdigit()]
    except OSError:
        return []
    return sorted(int(each.name) for each in processes if _appends(each, wanted))


def _appends(process: Path, wanted: os.stat_result) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            found = descriptor.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE == os.O_WRONLY:
                    return True
    except OSError:  # it has ended, or is another user's
        pass
    return False
