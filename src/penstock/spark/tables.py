"""The tables messages, queues, attempts and log: their columns and types in Spark, and the parts that tasks read.

Columns have the names of the fields of Message and Settings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from inspect import signature
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.contract import arrow
from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.contract.tables import Part
from penstock.errors import InvalidArgument
from penstock.spark.processes import in_one_line

_UTC: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}  # always UTC before
_TEXT, _NUMBER, _TIME = StringType(), LongType(), TimestampType()
_SETTINGS: dict[str, DataType] = {
    "max_size": _NUMBER,
    "max_attempts": IntegerType(),
    "keep_done": DoubleType(),
    "filter": _TEXT,
    "start": _TEXT,
    "max_payload": _NUMBER,
    "priorities": ArrayType(_NUMBER),
    "max_lease": DoubleType(),
    "retention": DoubleType(),
    "description": _TEXT,
    "lease": DoubleType(),
    "delay": DoubleType(),
    "backoff": ArrayType(DoubleType()),
    "dead_letter": _TEXT,
    "labels": MapType(_TEXT, _TEXT),
}


def _table(**columns: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in columns.items()])


TABLES = {
    "messages": from_arrow_schema(arrow.MESSAGES),
    "queues": _table(
        name=_TEXT,
        **{each.name: _SETTINGS[each.name] for each in fields(Settings)},
        **dict.fromkeys(STATES, _NUMBER),
    ),
    "attempts": _table(
        queue=_TEXT,
        id=_TEXT,
        attempt=IntegerType(),
        consumer=_TEXT,
        claimed_at=_TIME,
        ended_at=_TIME,
        outcome=_TEXT,
        reason=_TEXT,
    ),
    "log": _table(  # of slate stores
        sequence=_NUMBER,
        id=_TEXT,
        queue=_TEXT,  # of a put; NULL for a published message
        payload=BinaryType(),
        size=_NUMBER,
        headers=MapType(_TEXT, _TEXT),
        priority=_NUMBER,
        created_at=_TIME,
        received_at=_TIME,
        visible_at=_TIME,
        expires_at=_TIME,
        retention=DoubleType(),  # as given by the producer: 0 for ever, NULL for the setting of each queue
    ),
}
(HISTORY,) = from_arrow_schema(pa.schema([arrow.HISTORY]))
_BODY = {"payload", "headers", "created_at", "received_at"}
_NEVER_NULL = {
    "messages": _BODY | {"id", "queue", "priority", "visible_at", "attempts", "state"},
    "queues": {"name", "max_size", "max_attempts", "start", "max_payload", "max_lease", "retention", *STATES},
    "attempts": {"queue", "id", "attempt", "claimed_at"},
    "log": _BODY | {"sequence", "id", "size", "priority", "visible_at"},
}
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_SETTABLE: dict[str, tuple[type[DataType], ...]] = {
    "payload": (BinaryType, StringType),
    "queue": (StringType,),
    "headers": (MapType,),
    "priority": _INTEGERS,
    "group": (StringType,),
    "created_at": (TimestampType,),
    "visible_at": (TimestampType,),
    "expires_at": (TimestampType,),
}
_RESTORED: dict[str, tuple[type[DataType], ...]] = {
    **_SETTABLE,
    "received_at": (TimestampType,),
    "attempts": _INTEGERS,
    "state": (StringType,),
    "claimed_at": (TimestampType,),
    "settled_at": (TimestampType,),
    "consumer": (StringType,),
    "reason": (StringType,),
    "history": (ArrayType,),
}


def schema_of(table: str, payload: bool = True) -> StructType:
    """All columns of a table, with or without the payload."""
    return StructType([each for each in TABLES[table] if payload or each.name != "payload"])


def check_schema(table: str, schema: StructType, has_history: bool = False) -> None:
    """InvalidArgument if the table lacks a column, or has it with another type."""
    known = {each.name: each.dataType for each in TABLES[table]}
    if has_history and table == "messages":
        known[HISTORY.name] = HISTORY.dataType
    for column in schema:
        if column.name not in known:
            raise InvalidArgument(
                f"table {table!r} has no column {column.name!r}; its columns are {', '.join(known)}"
            )
        given, has = column.dataType.simpleString(), known[column.name].simpleString()
        if given != has:
            raise InvalidArgument(f"column {column.name!r} of table {table!r} is {has}, not {given}")
        # Spark would trust a wrong NOT NULL, and read a NULL as a value.
        if not column.nullable and column.name not in _NEVER_NULL[table]:
            raise InvalidArgument(f"column {column.name!r} of table {table!r} may be NULL: leave out NOT NULL")


def check_columns(schema: StructType, restore: bool, queue: str | None) -> None:
    """InvalidArgument if rows with these columns cannot be written as messages, into `queue` or a column queue."""
    settable = _RESTORED if restore else _SETTABLE
    for column in schema:
        if column.name not in settable:
            known = column.name in TABLES["messages"].fieldNames()
            why = "is the queue's to set" if known else "is not one of a message"
            raise InvalidArgument(
                f"column {column.name!r} {why}: drop it. What can be written are {', '.join(_SETTABLE)}"
            )
        if not isinstance(column.dataType, settable[column.name]):
            kinds = " or ".join(kind().simpleString() for kind in settable[column.name] if kind is not MapType)
            wanted = kinds or "map<string,string>"
            raise InvalidArgument(
                f"column {column.name!r} is {column.dataType.simpleString()}, not {wanted}: cast it"
            )
        if isinstance(column.dataType, MapType) and column.dataType.simpleString() != "map<string,string>":
            raise InvalidArgument(
                f"column {column.name!r} is {column.dataType.simpleString()}, not map<string,string>"
            )
    given = schema.fieldNames()
    if "payload" not in given:
        raise InvalidArgument(f"there is no column 'payload' among {', '.join(given)}: name one of them so")
    if queue is None and "queue" not in given:
        raise InvalidArgument('into which queue? Give .option("queue", NAME), or a column queue')


class TablePart(InputPartition):
    """Parts of a table that one task reads."""

    def __init__(self, number: int, parts: Sequence[Part]) -> None:
        super().__init__(number)
        self.parts = parts


class PartsReader:
    """Reads parts of a table."""

    _schema: StructType

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The batches of one task."""
        with in_one_line():
            # Spark makes an empty partition of its own if there are no parts.
            for part in partition.parts if isinstance(partition, TablePart) else ():
                yield from part.read(self._arrow())

    def _arrow(self) -> Any:
        return to_arrow_schema(self._schema, **_UTC)


def partitions(parts: Sequence[Part], most: int | None = None) -> list[TablePart]:
    """One partition of Spark for each part, or `most` partitions with several parts each."""
    count, size = min(most or len(parts), len(parts)), len(parts)
    cuts = [size * number // count for number in range(count)] + [size]
    return [TablePart(number, parts[start:end]) for number, (start, end) in enumerate(pairwise(cuts))]
