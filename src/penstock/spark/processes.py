"""The Spark process that the data source runs in: its driver, its task, and the errors it reports."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark import TaskContext

from penstock.errors import PenstockError
from penstock.system import processes

_LEVELS = 4  # of parent processes that may be the driver


@contextmanager
def in_one_line() -> Iterator[None]:
    """Report a PenstockError without a traceback: its message is enough.

    The Spark process ends with the error, so the setting hides no other traceback.
    """
    try:
        yield
    except PenstockError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def driver() -> int:
    """The pid of Spark's driver: the Java process above this one, else this process."""
    pid = os.getpid()
    with suppress(ProcessLookupError):
        for _ in range(_LEVELS):
            pid = processes.parent_of(pid)
            if pid and processes.program_of(pid) == "java":
                return pid
    return os.getpid()


def task() -> tuple[int, int]:
    """The partition and the unique attempt id of this task; zeros outside of a task."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
