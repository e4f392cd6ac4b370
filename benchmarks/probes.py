"""What this machine is, and what its disk can do at this moment: the limit that cells are held against.

Both probes write random bytes, so that a compressing file system cannot cheat, to a file of their own in
the folder they are given, without preallocation:

    raw append       1 KiB appended, then fdatasync, over and over             -> appends per second
    raw sequential   1 MiB appended, then fdatasync, for a fixed amount        -> bytes per second
"""

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIB = 1024
MIB = 1024 * KIB

# Not every Unix has fdatasync; fsync promises at least as much.
_datasync = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True)
class Raw:
    """What the disk could do at one moment."""

    append: float  # 1 KiB appends per second, each with its own fdatasync
    sequential: float  # bytes per second, one fdatasync per MiB


@dataclass(frozen=True)
class Machine:
    """Where a run took place."""

    cores: int
    python: str
    system: str
    filesystem: str


def probe(folder: Path, seconds: float = 0.15, appends: int = 20_000, mebibytes: int = 16) -> Raw:
    """Measure both limits in this folder, now; appends end at whichever bound comes first."""
    return Raw(append_rate(folder, seconds, appends), sequential_rate(folder, mebibytes))


def append_rate(folder: Path, seconds: float, appends: int) -> float:
    """1 KiB appends per second, each with its own fdatasync."""
    body, count = os.urandom(KIB), 0
    with _scratch_file(folder) as file:
        started = time.perf_counter()
        while True:
            os.write(file, body)
            _datasync(file)
            count += 1
            elapsed = time.perf_counter() - started
            if elapsed >= seconds or count >= appends:
                return count / elapsed


def sequential_rate(folder: Path, mebibytes: int) -> float:
    """Bytes per second of a sequential write with one fdatasync per MiB."""
    block, written = os.urandom(MIB), 0
    with _scratch_file(folder) as file:
        started = time.perf_counter()
        for _ in range(mebibytes):
            written += os.write(file, block)
            _datasync(file)
        return written / (time.perf_counter() - started)


@contextlib.contextmanager
def _scratch_file(folder: Path) -> Iterator[int]:
    path = folder / "probe"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        # Creating the file, and what ran before, may leave the file system's journal something to commit;
        # that is not part of the limit.
        os.fsync(file)
        yield file
    finally:
        os.close(file)
        path.unlink()


def machine(folder: Path) -> Machine:
    """This machine, with the file system that holds the folder."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:  # not Linux
        mounts = ""
    return Machine(
        cores=os.cpu_count() or 1,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.machine()}",
        filesystem=filesystem(folder.resolve(), mounts),
    )


def filesystem(folder: Path, mounts: str) -> str:
    """The type of the file system that holds the folder, by the text of /proc/self/mountinfo."""
    kind, depth = "unknown", 0
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4].replace("\\040", " "))
        # Of two mounts at the same place the later one hides the earlier.
        if folder.is_relative_to(mount) and len(mount.parts) >= depth:
            kind, depth = after.split()[0], len(mount.parts)
    return kind
