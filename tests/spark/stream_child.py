"""A process that reads a queue as a stream and writes down every batch it is given, until it is killed.

    python -m tests.spark.stream_child STORE CHECKPOINT OUT [POINT]

OUT gets a file for each time that a batch is processed. Some messages are rejected at their first attempt
(streams.py). Tasks fail at their first attempt now and then. With
POINT it kills itself, and Spark's Java: "before" the sink has the third batch of this run, "after" that, or at the
"end", when all is committed. Without one it says on stdout which process its Java is, and what it has done.
"""

import json
import os
import random
import signal
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

import penstock.spark
from tests.spark.streams import reject


def main(store: str, checkpoint: str, out: str, point: str = "") -> None:
    spark = penstock.spark.session("local[2,4]")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    seen = 0

    def die() -> None:
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def process(rows: DataFrame, number: int) -> None:
        nonlocal seen
        seen += 1
        if (point, seen) == ("before", 3):
            die()
        reject(rows)
        write(Path(out), number, rows.select("id").rdd.mapPartitions(sometimes_fails).collect())
        if (point, seen) == ("after", 3):
            die()
        if not point:
            tell(f"batch {number}")

    stream = spark.readStream.format("penstock").option("store", store).option("queue", "jobs")
    stream = stream.options(mode="consume", stream="s", maxRowsPerBatch="20")
    writer = stream.load().writeStream.foreachBatch(process).option("checkpointLocation", checkpoint)
    tell(f"java {java}")
    if point:
        writer.trigger(availableNow=True).start().awaitTermination()
        assert point == "end"
        die()
    writer.trigger(processingTime="20 milliseconds").start().awaitTermination()


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def sometimes_fails(rows: Iterable[Row]) -> Iterator[str]:
    context = TaskContext.get()
    yield from [row.id for row in rows]
    if context is not None and context.attemptNumber() == 0 and random.random() < 0.2:
        raise RuntimeError("a task that fails once")


def write(out: Path, number: int, ids: list[str]) -> None:
    """Durably, under a name of its own: nothing hides that a batch came twice."""
    path = out / f"{number}.{uuid.uuid4().hex}"
    with open(f"{path}.new", "w") as file:
        json.dump(sorted(ids, key=int), file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", f"{path}.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
