"""The job that every system runs, and the table in which it notes its times: a file that all processes map.

The table has two numbers for each job: when it was put, which the producer sends along, and when it began; 0 is
not yet. Both are of CLOCK_MONOTONIC, which is the same in all processes of a machine. This module and `apps/` also
run where only the peers are installed: nothing else is imported here.
"""

import functools
import mmap
import os
import struct
import time
from pathlib import Path

FILE = "JOBS_TIMES"  # the variable of the environment that names the table
_ROW = struct.Struct("=QQ")


def create(path: Path, jobs: int) -> None:
    """An empty table."""
    path.write_bytes(bytes(jobs * _ROW.size))


@functools.cache
def table(path: str) -> mmap.mmap:
    """The table, mapped."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def job(number: int, put_at: int) -> None:
    """Do nothing but note the times."""
    _ROW.pack_into(table(os.environ[FILE]), number * _ROW.size, put_at, time.monotonic_ns())


def read(path: Path, first: int, count: int) -> list[tuple[int, int]]:
    """When jobs were put, and when they began."""
    rows = table(str(path))[first * _ROW.size : (first + count) * _ROW.size]
    return list(_ROW.iter_unpack(rows))
