"""Where plans are kept, and for how long.

A plan is a folder with the pins of a read and one file of Arrow with what its tasks need. It belongs to the
process that drives Spark, because the one that makes it ends before the tasks begin. Spark does not say when a
DataFrame is no longer used: so plans go when their process does, and earlier those that were not used for long.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from penstock.stores.journal.pins import Pins, drop_plan, sweep
from penstock.system import processes
from penstock.system.files import SystemDisk

ROWS = "rows.arrow"
_UNUSED = 24 * 3600  # seconds after which a plan that no task has read may go
_IN_USE = 600  # seconds for which one is kept in any case
_MOST = 1_000  # plans of one process
_MOST_BYTES = 1 << 30  # that the rows of its plans take
_LEVELS = 4  # at which the driver is looked for above this process


def driver() -> int:
    """The process that drives Spark: the Java above this one, or this one."""
    pid = os.getpid()
    with suppress(ProcessLookupError):
        for _ in range(_LEVELS):
            pid = processes.parent_of(pid)
            if pid and processes.program_of(pid) == "java":
                return pid
    return os.getpid()


def new_plan(store: str) -> Pins:
    """A place for a plan, after those that no one needs any more are dropped."""
    sweep(store, SystemDisk())
    pins = Pins(store, driver())
    _drop_unused(pins.owner)
    return pins


def _drop_unused(owner: str) -> None:
    disk, now, total = SystemDisk(), time.time(), 0
    plans: list[tuple[float, str]] = []
    with suppress(FileNotFoundError), os.scandir(owner) as found:
        for each in found:
            with suppress(FileNotFoundError):
                plans.append((each.stat().st_mtime, each.path))
    for number, (used, path) in enumerate(sorted(plans, reverse=True)):
        with suppress(FileNotFoundError):
            total += os.stat(os.path.join(path, ROWS)).st_size
        many = number >= _MOST or total > _MOST_BYTES
        if now - used > _UNUSED or (many and now - used > _IN_USE):
            drop_plan(path, disk)


def write(pins: Pins, parts: Sequence[pa.RecordBatch], names: bytes) -> str:
    """Write the parts of a plan, one for each task; where they are."""
    pins.make()
    return write_to(pins.folder, parts, names)


def write_to(folder: str, parts: Sequence[pa.RecordBatch], names: bytes, file_name: str = ROWS) -> str:
    """Write the parts of a plan beside the pins that are in this folder."""
    path = os.path.join(folder, file_name)
    with (
        pa.OSFile(path, "wb") as file,
        pa.ipc.new_file(file, parts[0].schema.with_metadata({"penstock": names})) as to,
    ):
        for part in parts:
            to.write_batch(part)
    return path
