"""Work for Spark's tasks: many small things in few tasks, and errors that say what was wrong."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_TASK = 8 << 20  # bytes that are worth a task
_BESIDE = 32 << 10  # what each thing costs by itself, in bytes
_PER_CORE = 4  # tasks, so that none is waited for long


def spread(items: Sequence[Item], sizes: Sequence[int], cores: int) -> list[list[Item]]:
    """Items in about equally heavy lists, one for each task."""
    weights = [_BESIDE + size for size in sizes]
    count = max(1, min(len(items), _PER_CORE * cores, max(cores, sum(weights) // _TASK)))
    tasks: list[list[Item]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]
    for at in sorted(range(len(items)), key=weights.__getitem__, reverse=True):
        weight, number = lightest[0]
        tasks[number].append(items[at])
        heapq.heapreplace(lightest, (weight + weights[at], number))
    return tasks


def run(
    spark: "SparkSession",
    work: Callable[[list[Item]], Iterable[Answer]],
    items: Sequence[Item],
    sizes: Sequence[int],
    what: str,
) -> list[Answer]:
    """The answers of tasks that each do some of the work, in no order. `what` was to be done, and is in errors."""
    if not items:
        return []
    context = spark.sparkContext
    tasks = spread(items, sizes, context.defaultParallelism)
    try:
        return list(context.parallelize(tasks, len(tasks)).flatMap(work).collect())
    except Exception as error:  # of Java, of PySpark, of their connection
        raise PenstockError(
            f"{what} failed in a task of Spark, which changed nothing: {_reason(str(error))}. Tasks need "
            "Penstock, and the store's folder under the same path"
        ) from error


def _reason(text: str) -> str:
    """The line that says what was wrong, among those that say where."""
    said = text.split("\n\tat ")[0].split("\n\n")[0].strip().splitlines()
    return said[-1].strip() if said else "it does not say why"
