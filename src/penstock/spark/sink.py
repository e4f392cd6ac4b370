"""df.write and df.writeStream with format("penstock"): tasks stage messages, and one commit makes all visible.

A write with a run's id takes effect once. Every batch of a stream lands once, however often Spark writes it: tasks
stage its rows without knowing the batch's number; the commit knows it, and names it to the store, which remembers
the last one of each sink. Spark makes a new writer for each of the two, so tasks tell the commit where they have
staged.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import penstock
from penstock.contract.kinds import check_exists, kind_of
from penstock.contract.loads import MAX_SINK, SinkCommit
from penstock.contract.settings import Settings
from penstock.contract.tables import Loader, Staged, Target
from penstock.errors import InvalidArgument
from penstock.spark.options import check_streams, parse_writing
from penstock.spark.processes import driver, in_one_line, task
from penstock.spark.streaming.settling import query_id
from penstock.spark.tables import check_columns

_OWN = ("checkpointlocation", "queryname", "sinkid")  # and what Spark passes on of its own


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one task has staged."""

    staged: Staged


def _loader(target: Target, schema: StructType) -> Loader:
    check_columns(schema, target.restore, target.queue)
    return kind_of(target.store).tables(target.store).loader(target, driver(), penstock.open)


def _write(loader: Loader, batches: Iterator[Any]) -> StagedRows:
    with in_one_line():
        return StagedRows(Staged("", []) if loader.repeated else loader.stage(batches, *task()))


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [each.staged for each in messages if isinstance(each, StagedRows)]


class Writer(DataSourceArrowWriter):
    """Writes the rows of a DataFrame, all of them or none."""

    def __init__(self, target: Target, schema: StructType) -> None:
        self._loader = _loader(target, schema)

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage the rows of one task."""
        return _write(self._loader, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make everything visible that the tasks have staged."""
        if not self._loader.repeated:
            with in_one_line():
                self._loader.commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing."""
        if not self._loader.repeated:
            with in_one_line():
                self._loader.abort(_staged(messages))


class _Sink(NamedTuple):
    """The name under which the batches of a query are remembered."""

    id: str | None  # None: the query's own id
    checkpoint: str | None

    def landing(self, batch: int) -> SinkCommit:
        """A batch of the query."""
        if self.checkpoint is None:
            raise InvalidArgument(
                'where is the checkpoint? Give .option("checkpointLocation", ...) to the query itself: what it '
                "says of the query tells a batch that is written again from a new one"
            )
        query = query_id(self.checkpoint)
        return SinkCommit(self.id or query, query, batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, target: Target, sink: _Sink, schema: StructType) -> None:
        self._loader = _loader(target, schema)
        self._sink = sink

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage the rows of one task."""
        return _write(self._loader, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let what the tasks have staged land, if it has not before."""
        with in_one_line():
            self._loader.commit(_staged(messages), lambda: self._sink.landing(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave nothing of what does not count; what has landed stays."""
        with in_one_line():
            self._loader.abort(_staged(messages))


def writer_for(given: Mapping[str, str], schema: StructType, overwrite: bool) -> Writer:
    """The writer into the store that the options name."""
    store, queue, run = parse_writing(given)
    if overwrite:
        raise InvalidArgument('a queue is never overwritten: write with .mode("append")')
    check_exists(store)
    made = json.loads(given.get("_create", "{}"))  # by the job that converts stores, as is the next
    create = {name: Settings(**settings) for name, settings in made.items()}
    return Writer(Target(store, queue, run, create, given.get("_restore") == "true"), schema)


def stream_writer_for(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of a stream into the store that the options name."""
    options = {name.lower(): value for name, value in given.items()}
    sink = _Sink(options.get("sinkid"), options.get("checkpointlocation"))
    if sink.id is not None and not 1 <= len(sink.id) <= MAX_SINK:
        raise InvalidArgument(f"option sinkId has {len(sink.id)} characters; give 1 to {MAX_SINK}")
    store, queue, run = parse_writing({name: value for name, value in options.items() if name not in _OWN})
    if run is not None:
        raise InvalidArgument("option id is for df.write; a stream's batches are told apart by query and number")
    check_streams(store)
    check_exists(store)
    return StreamWriter(Target(store, queue, streams=True), sink, schema)
