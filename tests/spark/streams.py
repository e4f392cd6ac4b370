"""Helpers for stream tests: a recording sink, queries, checkpoints without their last commit, and groups."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import penstock.spark


class Recorder:
    """A sink for foreachBatch that records the ids of every run of every batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[list[str]]] = {}

    def __call__(self, rows: DataFrame, number: int) -> None:
        ids = [row.id for row in rows.select("id").collect()]
        self.batches.setdefault(number, []).append(sorted(ids, key=int))

    def ids(self) -> list[str]:
        """The ids of all batches, each batch once; asserts that all runs of a batch had the same messages."""
        for number, runs in self.batches.items():
            assert all(ids == runs[0] for ids in runs), number
        return [each for runs in self.batches.values() for each in runs[0]]


def consuming(spark: SparkSession, store: Path | str, queue: str = "jobs", **options: Any) -> DataStreamReader:
    given = {"mode": "consume", "stream": "nightly", **{name: str(value) for name, value in options.items()}}
    return spark.readStream.format("penstock").option("store", str(store)).option("queue", queue).options(**given)


def run(stream: DataFrame, sink: Any, checkpoint: Path) -> StreamingQuery:
    """Run a query over all available messages, without settling the last batch."""
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


# Groups, with messages that fail once


def reject(rows: DataFrame) -> None:
    """Fail odd messages of a batch at their first attempt."""
    penstock.spark.fail(rows.where("attempts = 1 AND cast(id AS bigint) % 9 = 4"), "not now")


def is_odd(id_: str) -> bool:
    return int(id_) % 9 == 4


def check_groups(batches: Sequence[Sequence[str]], groups: Mapping[str, str | None]) -> None:
    """Batches have all messages, and each the next ones of every group: those that were rejected come first."""
    left: dict[str | None, list[str]] = {}
    for id_ in sorted(groups, key=int):
        left.setdefault(groups[id_], []).append(id_)
    rejected: set[str] = set()
    for batch in batches:
        for group in {groups[id_] for id_ in batch}:
            members = sorted((id_ for id_ in batch if groups[id_] == group), key=int)
            waiting = left[group]
            if group is not None:
                assert members == waiting[: len(members)], (group, members, waiting)
            again = [id_ for id_ in members if is_odd(id_) and id_ not in rejected]
            left[group] = sorted(again + [id_ for id_ in waiting if id_ not in members], key=int)
            assert set(members) <= set(waiting)
            rejected.update(again)
    assert not any(left.values())
