"""format("penstock"): a store's messages, queues and attempts as tables of Spark."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.contract.kinds import check_exists
from penstock.errors import PenstockError
from penstock.spark.errors import in_one_line
from penstock.spark.options import Options, parse
from penstock.spark.slate.options import is_log, log_schema, parse_log
from penstock.spark.slate.part import SlatePart
from penstock.spark.streaming.options import ONLY_STREAMS, parse_stream
from penstock.spark.tables import check_schema, schema_of

if TYPE_CHECKING:
    from penstock.spark.remote import Range


class DefaultSource(DataSource):
    """The tables of a store.

        spark.read.format("penstock").option("store", "data").load()
        spark.read.format("penstock").option("store", "data").option("queue", "jobs").load()

    store: the folder of a journal store, or journal:DIR, which may be open in another process that goes on; or
        http://host:port, to read through a server; or slate:DIR, slate:s3://bucket/prefix; or text:DIR, NAME.tq,
        folder:DIR
    queue: of which queue; without it, of all
    state: only messages in this state, or in these, as in "done,failed"
    table: "messages" (the default), "queues" or "attempts"; of a slate store "log" as well
    payload: "false" leaves the payload out

    A DataFrame shows the store as it was when Spark planned the query, and its files are held until Spark ends;
    what comes through a server, or from a text or folder store, is of no single moment.
    With .schema("id string, state string") only these columns are read, and no message's body if none of them
    needs it.
    """

    @classmethod
    def name(cls) -> str:
        """What format() calls it."""
        return "penstock"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = options

    def schema(self) -> StructType:
        """The columns, unless .schema() names some of them."""
        with in_one_line():
            if is_log(self._given):
                return log_schema(parse_log(self._given))
            if ONLY_STREAMS.intersection(name.lower() for name in self._given):
                return schema_of("messages", parse_stream(self._given).payload)
            options = parse(self._given)
            check_exists(options.store)
        return schema_of(options.table, options.payload)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns that are wanted."""
        with in_one_line():
            options = parse(self._given)
            check_exists(options.store)
            check_schema(options.table, schema)
        return Reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Reads a queue, or the log of a slate store, as a stream."""
        try:
            return self._log_reader(schema) if is_log(self._given) else self._queue_reader(schema)
        except PenstockError as error:
            return RefusedReader(error)

    def _queue_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_stream(self._given)
        check_exists(options.store)
        check_schema("messages", schema)
        if options.consumes:
            from penstock.spark.streaming.consuming import ConsumingReader

            return ConsumingReader(options, schema)
        from penstock.spark.streaming.following import FollowingReader

        return FollowingReader(options, schema)

    def _log_reader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.slate.following import LogReader

        options = parse_log(self._given)
        check_exists(options.read.store)
        if not options.route:
            check_schema("log", schema)
        return LogReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Puts every batch of a query into queues, once."""
        from penstock.spark.streaming.sink import stream_writer_for

        with in_one_line():
            return stream_writer_for(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Puts the rows of a DataFrame into queues."""
        from penstock.spark.sink import writer_for

        with in_one_line():
            return writer_for(self._given, schema, overwrite)


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says why a stream cannot be read, when it is first asked.

    PySpark 4.3 replaces what streamReader() itself raises by an UnboundLocalError of its own.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        with in_one_line():
            raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815 - Spark's names
    getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__(number)
        self.path = path
        self.number = number


class RemotePart(InputPartition):
    """What one task reads through a server."""

    def __init__(self, number: int, ranges: "list[Range]") -> None:
        super().__init__(number)
        self.ranges = ranges


class SharedPart(InputPartition):
    """The queues that one task reads, of a store that it opens itself."""

    def __init__(self, number: int, queues: list[str]) -> None:
        super().__init__(number)
        self.queues = queues


class Reader(DataSourceReader):
    """Plans in one process what it reads in others.

    It takes no filters from Spark, whose 4.3 gives the plan that was made for one filter of a DataFrame to all
    other uses of the same DataFrame, filtered or not: rows would be missing. Hence the options queue and state.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Take the view that all tasks read, and cut it up."""
        with in_one_line():
            if self._options.is_remote:
                from penstock.spark import remote

                return [RemotePart(number, each) for number, each in enumerate(remote.plan(self._options))]
            if self._options.is_shared:
                from penstock.spark import shared

                return [SharedPart(number, each) for number, each in enumerate(shared.plan(self._options))]
            if self._options.is_slate:
                from penstock.spark.slate import planning

                found = planning.plan(self._options, self._arrow())
                return [SlatePart(number, each) for number, each in enumerate(found)]
            from penstock.spark.planning import plan

            return [Part(path, number) for path, number in plan(self._options, self._arrow())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one part."""
        with in_one_line():
            if isinstance(partition, RemotePart):
                from penstock.spark import remote

                yield from remote.read(self._options, partition.ranges, self._arrow())
            elif isinstance(partition, SharedPart):
                from penstock.spark import shared

                yield from shared.read(self._options, partition.queues, self._arrow())
            elif isinstance(partition, SlatePart):
                from penstock.spark.slate import scan

                yield from scan.read(partition.work, self._arrow())
            elif isinstance(partition, Part):  # else there is nothing to read at all
                from penstock.spark.scan import read_plan

                yield from read_plan(partition.path, partition.number, self._arrow())

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")
