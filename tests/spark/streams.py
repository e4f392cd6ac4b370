"""What tests of streams share: a sink that remembers what it was given, and checkpoints that lose their memory."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader


class Recorder:
    """Remembers the ids of every batch as often as it is given it, so that nothing is hidden."""

    def __init__(self) -> None:
        self.batches: dict[int, list[list[str]]] = {}

    def __call__(self, rows: DataFrame, number: int) -> None:
        """What foreachBatch calls."""
        ids = [row.id for row in rows.select("id").collect()]
        self.batches.setdefault(number, []).append(sorted(ids, key=int))

    def ids(self) -> list[str]:
        """Every id, with each batch counted once; of every batch all runs had the same messages."""
        for number, runs in self.batches.items():
            assert all(ids == runs[0] for ids in runs), number
        return [each for runs in self.batches.values() for each in runs[0]]


def consuming(spark: SparkSession, store: Path | str, queue: str = "jobs", **options: Any) -> DataStreamReader:
    """A stream that consumes."""
    given = {"mode": "consume", "stream": "nightly", **{name: str(value) for name, value in options.items()}}
    return spark.readStream.format("penstock").option("store", str(store)).option("queue", queue).options(**given)


def run(stream: DataFrame, sink: Any, checkpoint: Path) -> StreamingQuery:
    """Read all that is there, and settle nothing."""
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    started.stop()
    return started


def forget_last(checkpoint: Path, log: str = "commits") -> int:
    """Delete the last file of a log; its number."""
    last = max(int(each.name) for each in (checkpoint / log).iterdir() if each.name.isdigit())
    (checkpoint / log / str(last)).unlink()
    (checkpoint / log / f".{last}.crc").unlink(missing_ok=True)
    return last
