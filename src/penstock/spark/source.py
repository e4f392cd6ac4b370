"""format("penstock"): a store's messages, queues and attempts as tables of Spark."""

import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.errors import in_one_line
from penstock.spark.options import Options, parse
from penstock.spark.tables import check_schema, schema_of


class DefaultSource(DataSource):
    """The tables of a store.

        spark.read.format("penstock").option("store", "data").load()
        spark.read.format("penstock").option("store", "data").option("queue", "jobs").load()

    store: the folder of a journal store, or journal:DIR. It may be open in another process, which goes on
    queue: of which queue; without it, of all
    table: "messages" (the default), "queues" or "attempts"
    payload: "false" leaves the payload out

    A DataFrame shows the store as it was when Spark planned the query, and its files are held until Spark ends.
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
            options = parse(self._given)
        return schema_of(options.table, options.payload)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns that are wanted."""
        with in_one_line():
            options = parse(self._given)
            check_schema(options.table, schema)
        # Where the session does not let sources take filters, one that would take them fails the query. There this
        # process, which plans the query, is another one.
        takes_filters = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
        return (FilteringReader if takes_filters else Reader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Puts the rows of a DataFrame into queues."""
        from penstock.spark.sink import writer_for

        with in_one_line():
            return writer_for(self._given, schema, overwrite)


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__(number)
        self.path = path
        self.number = number


class Reader(DataSourceReader):
    """Plans in one process what it reads in others."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Take the view that all tasks read, and cut it up."""
        from penstock.spark.planning import plan
        from penstock.spark.pushdown import condition

        with in_one_line():
            arrow = self._arrow()
            conditions = [found for each in self._filters if (found := condition(each, arrow)) is not None]
            return [Part(path, number) for path, number in plan(self._options, arrow, conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one part."""
        from penstock.spark.scan import read_plan

        if isinstance(partition, Part):  # else there is nothing to read at all
            with in_one_line():
                yield from read_plan(partition.path, partition.number, self._arrow())

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")


class FilteringReader(Reader):
    """The same where Spark pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that planning can do; those that it cannot are for Spark."""
        from penstock.spark.pushdown import condition
        from penstock.spark.tables import BODY

        arrow = self._arrow()
        for each in filters:
            found = condition(each, arrow)
            if found is None or (self._options.table == "messages" and found.column in BODY):
                yield each
            else:
                self._filters.append(each)
