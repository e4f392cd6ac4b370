"""The job load: puts the rows of a file, or of another source that Spark reads, into queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import penstock
from penstock.contract import names
from penstock.contract.kinds import absolute, kind_of
from penstock.errors import InvalidArgument
from penstock.spark.jobs.files import columns_of
from penstock.spark.jobs.runs import (
    Session,
    Summary,
    already_loaded,
    check_queues,
    check_store,
    place_of,
    run_id,
    started,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = {
    "parquet": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "tsv": "csv",
    "txt": "text",
    "text": "text",
    "log": "text",
    "orc": "orc",
}
_COMPRESSED = ("gz", "bz2", "zst", "snappy", "lz4")
_COLUMNS = ("queue", "messages", "bytes")


def load(
    spark: Session,
    source: str,
    store: str,
    queue: str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - Spark's word
    payload_column: str | None = None,
    payload_json: bool = False,
    priority: str | int | None = None,
    headers: Mapping[str, str] | None = None,
    queue_column: str | None = None,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
    id: str | None = None,  # noqa: A002 - the word of the command line
    dry_run: bool = False,
) -> Summary:
    """Put the rows of a source into a queue, or by a column into several: all or none.

    Args:
        spark: a session
        source: a path or URL that Spark reads
        store: the URL of the store
        queue: the queue of rows that `queue_column` does not send elsewhere
        format: of the source, as Spark names it; default: by the ending of its name
        payload_column: the payload; default: the column `payload`, the lines of a text, or the only column
        payload_json: make the whole row the payload, as JSON
        priority: a number, or the name of a column
        headers: columns by the names of the headers that they become
        queue_column: the column that names the queue of each row
        group: the column with the group of each row; none where it is NULL
        options: Spark's options for reading the source
        id: the name of the run; a run takes effect once
        dry_run: change nothing
    """
    if queue is None and queue_column is None:
        raise InvalidArgument("into which queue? Name one, or the column that does")
    check_store(store)
    if id is not None and (before := already_loaded(store, run_id(id, "load"))) is not None:
        return Summary("load", id, _COLUMNS, before, dry_run, repeated=True)
    check_queues(store, [] if queue is None else [queue])
    kind = format or _kind(source)
    usual = {"header": "true", "sep": "\t" if source.endswith(".tsv") else ","} if kind == "csv" else {}
    reading = {**usual, **(options or {})}  # the usual dialect; the options override it
    chosen = _Chosen(payload_column, payload_json, priority, headers or {}, queue_column, group)
    if (columns := columns_of(source, kind, reading)) is not None:
        chosen.check(columns)
    spark = started(spark)
    arguments = {
        "queue": queue, "payload_column": payload_column, "payload_json": payload_json, "priority": priority,
        "headers": dict(headers or {}), "queue_column": queue_column, "options": dict(options or {}),
    }  # fmt: skip
    if group is not None:  # else the run has the name that the versions before gave it
        arguments["group"] = group
    rows = spark.read.format(kind).options(**reading).load(source)
    chosen.check(rows.columns)
    run = run_id(id, "load", store=place_of(store), files=_files(spark, rows), **arguments)
    if (before := already_loaded(store, run)) is not None:
        return Summary("load", run, _COLUMNS, before, dry_run, repeated=True)
    messages = chosen.messages(rows)
    if dry_run:
        return Summary("load", run, _COLUMNS, _would_load(messages, store, queue), dry_run=True)
    writer = messages.write.format("penstock").mode("append").option("store", absolute(store)).option("id", run)
    (writer if queue is None else writer.option("queue", queue)).save()
    return Summary("load", run, _COLUMNS, already_loaded(store, run) or [])


def _kind(source: str) -> str:
    endings = source.rstrip("/*").rsplit("/", 1)[-1].lower().split(".")[1:]
    while endings and endings[-1] in _COMPRESSED:
        endings.pop()
    if not endings or endings[-1] not in FORMATS:
        raise InvalidArgument(
            f"what is in {source!r}? Say so with --format: {', '.join(dict.fromkeys(FORMATS.values()))}"
        )
    return FORMATS[endings[-1]]


def _files(spark: "SparkSession", rows: "DataFrame") -> list[tuple[str, int, int]]:
    """The files of a source with their lengths and modification times."""
    jvm: Any = spark._jvm
    conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
    found = []
    for name in sorted(rows.inputFiles()):
        path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(name))
        status = path.getFileSystem(conf).getFileStatus(path)
        found.append((name, status.getLen(), status.getModificationTime()))
    return found


@dataclass(frozen=True)
class _Chosen:
    """Which columns become what of a message."""

    payload: str | None
    payload_json: bool
    priority: str | int | None
    headers: Mapping[str, str]
    queue: str | None
    group: str | None

    def check(self, columns: Sequence[str]) -> None:
        """InvalidArgument if a column is missing, or the payload is not certain."""
        if self.payload_json and self.payload is not None:
            raise InvalidArgument("is the payload a column, or the row as JSON? Say one")
        for name in (self.payload, self.priority, *self.headers.values(), self.queue, self.group):
            if isinstance(name, str) and name not in columns:
                raise InvalidArgument(f"there is no column {name!r}; there are {_list(columns)}")
        if not self.payload_json:
            self.payload_of(columns)

    def payload_of(self, columns: Sequence[str]) -> str:
        """The column that is the payload."""
        wanted = (self.payload,) if self.payload is not None else ("payload", "value")
        usual = [name for name in wanted if name in columns]
        if not usual and len(columns) > 1:
            raise InvalidArgument(
                f"which of the columns {_list(columns)} is the payload? Name it, or let the row become JSON"
            )
        return (usual or columns)[0]

    def messages(self, rows: "DataFrame") -> "DataFrame":
        """The rows as messages."""
        from pyspark.sql import functions as f

        columns: list[Column] = [self._payload(rows).alias("payload")]
        if isinstance(self.priority, int):
            columns.append(f.lit(self.priority).cast("bigint").alias("priority"))
        elif self.priority is not None:
            columns.append(_column(rows, self.priority).cast("bigint").alias("priority"))
        if self.headers:
            pairs = [
                each
                for name, column in self.headers.items()
                for each in (f.lit(name), _column(rows, column).cast("string"))
            ]
            given = f.create_map(*pairs)
            columns.append(f.map_filter(given, lambda _, value: value.isNotNull()).alias("headers"))
        for name, column in (("queue", self.queue), ("group", self.group)):
            if column is not None:
                columns.append(_column(rows, column).cast("string").alias(name))
        return rows.select(*columns)

    def _payload(self, rows: "DataFrame") -> "Column":
        from pyspark.sql import functions as f

        if self.payload_json:
            return f.to_json(f.struct("*"))
        column = _column(rows, self.payload_of(rows.columns))
        kind = rows.select(column).schema[0].dataType.simpleString()
        if kind in ("binary", "string"):
            return column
        nested = kind.startswith(("struct", "map", "array"))
        return f.to_json(column) if nested else column.cast("string")


def _column(rows: "DataFrame", name: str) -> "Column":
    return rows[f"`{name}`"]


def _list(columns: Sequence[str]) -> str:
    return ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")


def _would_load(messages: "DataFrame", store: str, queue: str | None) -> list[list[Any]]:
    """Messages and bytes for each queue; InvalidArgument for rows that the load would refuse."""
    from pyspark.sql import functions as f

    named = f.lit(queue).cast("string")
    target = f.coalesce("queue", named) if "queue" in messages.columns else named
    size = f.length("payload")
    found = messages.groupBy(target.alias("queue")).agg(
        f.count("*").alias("messages"), f.sum(size).alias("bytes"), f.max(size).alias("longest"),
        f.count_if(f.col("payload").isNull()).alias("missing"),
    ).orderBy("queue").collect()  # fmt: skip
    known = kind_of(store).tables(store).settings(store, penstock.open)
    for row in found:
        if row["queue"] is None:
            raise InvalidArgument(f"{row['messages']} rows name no queue")
        if names.checked(row["queue"]) not in known:
            raise InvalidArgument(f"there is no queue {row['queue']!r} in {store!r}: create it")
        if row["missing"]:
            raise InvalidArgument(f"{row['missing']} rows for queue {row['queue']!r} have no payload")
        most = known[row["queue"]].max_payload
        if row["longest"] > most:
            raise InvalidArgument(
                f"a payload of {row['longest']} bytes; queue {row['queue']!r} takes at most {most}"
            )
    return [[row[name] for name in _COLUMNS] for row in found]
