"""df.write and df.writeStream with format("penstock"): tasks stage messages, and one commit makes all visible.

A write with the option id takes effect once. A batch of a stream takes effect once, however often Spark writes it:
tasks stage its rows, the commit names the batch to the store, and the store remembers the last batch of each sink.
Spark creates one writer for the tasks and another for the commit: tasks return what they have staged as their
commit message.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import penstock
from penstock.contract.kinds import check_exists, kind_of
from penstock.contract.loads import SinkCommit
from penstock.contract.settings import Settings
from penstock.contract.tables import Staged, Target
from penstock.errors import InvalidArgument
from penstock.spark.options import check_streams, parse_sink, parse_writing
from penstock.spark.processes import driver, in_one_line, task
from penstock.spark.streaming.settling import query_id
from penstock.spark.tables import check_columns

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as ArrowStreamWriter
except ImportError:  # PySpark 4.0, which gives batches to everything that is an Arrow writer

    class ArrowStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore
        """A writer of a stream that gets Arrow batches."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one task has staged."""

    staged: Staged


class _Staging:
    """What a write and a batch of a stream have in common: a loader, which stages the rows of tasks."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema, target.restore, target.queue)
        self._loader = kind_of(target.store).tables(target.store).loader(target, driver(), penstock.open)

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage the rows of one task."""
        with in_one_line():
            return StagedRows(Staged("", []) if self._loader.repeated else self._loader.stage(iterator, *task()))


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [each.staged for each in messages if isinstance(each, StagedRows)]


class Writer(_Staging, DataSourceArrowWriter):
    """Writes the rows of a DataFrame, all of them or none."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the staged rows of all tasks visible."""
        if not self._loader.repeated:
            with in_one_line():
                self._loader.commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows."""
        if not self._loader.repeated:
            with in_one_line():
                self._loader.abort(_staged(messages))


class _Sink(NamedTuple):
    """The name under which the store remembers the batches of a query."""

    id: str | None  # None: the query's own id
    checkpoint: str | None

    def commit_of(self, batch: int) -> SinkCommit:
        """The commit of one batch of the query."""
        if self.checkpoint is None:
            raise InvalidArgument(
                'where is the checkpoint? Give .option("checkpointLocation", ...) to the query itself: it has the '
                "query's id, which tells a replayed batch from a new one"
            )
        query = query_id(self.checkpoint)
        return SinkCommit(self.id or query, query, batch)


class StreamWriter(_Staging, ArrowStreamWriter):
    """Writes the batches of a query, each once."""

    def __init__(self, target: Target, sink: _Sink, schema: StructType) -> None:
        super().__init__(target, schema)
        self._sink = sink

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the staged rows of a batch visible, unless the batch was committed before."""
        with in_one_line():
            self._loader.commit(_staged(messages), lambda: self._sink.commit_of(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard staged rows; a committed batch stays."""
        with in_one_line():
            self._loader.abort(_staged(messages))


def writer_for(given: Mapping[str, str], schema: StructType, overwrite: bool) -> Writer:
    """The writer for the options of df.write."""
    store, queue, run = parse_writing(given)
    if overwrite:
        raise InvalidArgument('a queue is never overwritten: write with .mode("append")')
    check_exists(store)
    made = json.loads(given.get("_create", "{}"))  # the job convert gives _create and _restore
    create = {name: Settings(**settings) for name, settings in made.items()}
    return Writer(Target(store, queue, run, create, given.get("_restore") == "true"), schema)


def stream_writer_for(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer for the options of df.writeStream."""
    if overwrite:
        raise InvalidArgument(
            'output mode "complete" writes the whole result with every batch, and a queue is never overwritten: '
            'use outputMode("append") or "update"'
        )
    if any(name.lower() == "id" for name in given):
        raise InvalidArgument("option id is for df.write; a stream's batches are told apart by query and number")
    store, queue, sink, checkpoint = parse_sink(given)
    check_streams(store)
    check_exists(store)
    return StreamWriter(Target(store, queue, streams=True), _Sink(sink, checkpoint), schema)
