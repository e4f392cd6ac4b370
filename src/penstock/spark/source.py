"""The data source format("penstock"): a store's messages, queues and attempts as Spark tables and streams."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.contract.kinds import check_exists, kind_of
from penstock.errors import PenstockError
from penstock.spark.options import ONLY_STREAMS, LogOptions, Options, is_log, parse, parse_log, parse_stream
from penstock.spark.processes import driver, in_one_line
from penstock.spark.tables import PartsReader, check_schema, partitions, schema_of
from penstock.spark.versions import check_has_streams


class DefaultSource(DataSource):
    """The tables of a store.

        spark.read.format("penstock").option("store", "data").load()
        spark.read.format("penstock").option("store", "data").option("queue", "jobs").load()

    store: a folder or journal:DIR, slate:DIR, slate:s3://bucket/prefix, text:DIR, NAME.tq, folder:DIR, or
        http://host:port to read through a server. Another process may have the store open and use it
    queue: the rows of one queue; default: of all queues
    state: messages in these states, as in "done,failed"; default: in all
    table: "messages" (the default), "queues" or "attempts"; of a slate store also "log"
    payload: "false" leaves the column payload out
    numPartitions: the number of tasks; without it as many as the rows are worth

    A DataFrame is a snapshot of the store when Spark planned the query, and keeps its files until Spark ends.
    Reads through a server, and of text and folder stores, are no snapshot: rows may be of different moments. With
    .schema("id string, state string") only these columns are read, and no message bodies unless a column needs
    them. Of journal and slate stores a schema may also name `history`, the attempts at each message as an array.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = options

    def schema(self) -> StructType:
        """The columns of the table; Spark does not ask if .schema() names them."""
        with in_one_line():
            if is_log(self._given):
                return _log_schema(parse_log(self._given))
            if any(name.lower() in ONLY_STREAMS for name in self._given):
                return schema_of("messages", parse_stream(self._given).payload)
            options = parse(self._given)
            check_exists(options.store)
        return schema_of(options.table, options.payload)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of these columns."""
        with in_one_line():
            options = parse(self._given)
            check_exists(options.store)
            check_schema(options.table, schema, kind_of(options.store).tables(options.store).has_history)
        return Reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream reader of a queue, or of the log of a slate store."""
        try:
            check_has_streams()
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
        from penstock.spark.streaming.following import LogReader

        options = parse_log(self._given)
        check_exists(options.read.store)
        if not options.route:
            check_schema("log", schema)
        return LogReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer that puts every batch of a query into queues, once."""
        from penstock.spark.sink import stream_writer_for

        with in_one_line():
            return stream_writer_for(self._given, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer that puts the rows of a DataFrame into queues."""
        from penstock.spark.sink import writer_for

        with in_one_line():
            return writer_for(self._given, schema, overwrite)


class RefusedReader(DataSourceStreamReader):
    """A stream reader that raises an error at the first call.

    PySpark 4.3 would replace an error of streamReader() itself by an UnboundLocalError.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        with in_one_line():
            raise self._error

    initialOffset = latestOffset = partitions = read = getDefaultReadLimit = _refuse  # noqa: N815 - Spark's names


class Reader(PartsReader, DataSourceReader):
    """A batch reader: one process plans the parts, tasks read them.

    No filter pushdown: Spark 4.3 reuses the partitions planned for one filter of a DataFrame for every other use
    of that DataFrame, so rows would be missing. The options queue and state take its place.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of a snapshot, one for each task."""
        store = self._options.store
        with in_one_line():
            parts = kind_of(store).tables(store).parts(self._options, self._arrow(), driver())
            return partitions(parts, self._options.split)


def _log_schema(options: LogOptions) -> StructType:
    if not options.route:
        return schema_of("log", options.read.payload)
    store = options.read.store
    return from_arrow_schema(kind_of(store).tables(store).match_schema())
