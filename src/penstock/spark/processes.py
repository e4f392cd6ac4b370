"""Spark's own processes, in which the data source runs: the driver's, the tasks', and errors on their way out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark import TaskContext

from penstock.errors import PenstockError
from penstock.system import processes

_LEVELS = 4  # at which the driver is looked for above this process


@contextmanager
def in_one_line() -> Iterator[None]:
    """An error of ours says all that there is to say: Spark need not show the calls that led to it.

    The process of Spark in which it happens ends with it, so that nothing else is hidden.
    """
    try:
        yield
    except PenstockError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def driver() -> int:
    """The process that drives Spark: the Java above this one, or this one."""
    pid = os.getpid()
    with suppress(ProcessLookupError):
        for _ in range(_LEVELS):
            pid = processes.parent_of(pid)
            if pid and processes.program_of(pid) == "java":
                return pid
    return os.getpid()


def task() -> tuple[int, int]:
    """The partition that this task works on, and the number of the attempt, which no other has."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
