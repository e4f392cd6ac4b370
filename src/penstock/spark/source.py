"""format("penstock"): a store's messages, queues and attempts as tables of Spark."""

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
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.contract.kinds import check_exists, kind_of
from penstock.errors import PenstockError
from penstock.spark.options import ONLY_STREAMS, LogOptions, Options, is_log, parse, parse_log, parse_stream
from penstock.spark.processes import driver, in_one_line
from penstock.spark.tables import PartsReader, check_schema, partitions, schema_of


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
                return _log_schema(parse_log(self._given))
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
        from penstock.spark.streaming.following import LogReader

        options = parse_log(self._given)
        check_exists(options.read.store)
        if not options.route:
            check_schema("log", schema)
        return LogReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Puts every batch of a query into queues, once."""
        from penstock.spark.sink import stream_writer_for

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


class Reader(PartsReader, DataSourceReader):
    """Plans in one process the parts that others read.

    It takes no filters from Spark, whose 4.3 gives the plan that was made for one filter of a DataFrame to all
    other uses of the same DataFrame, filtered or not: rows would be missing. Hence the options queue and state.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Take the view that all tasks read, and cut it up."""
        store = self._options.store
        with in_one_line():
            return partitions(kind_of(store).tables(store).parts(self._options, self._arrow(), driver()))


def _log_schema(options: LogOptions) -> StructType:
    if not options.route:
        return schema_of("log", options.read.payload)
    store = options.read.store
    return from_arrow_schema(kind_of(store).tables(store).match_schema())
