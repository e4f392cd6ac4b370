"""The tables that Spark can read, and their columns. A column has the name of what it shows in Penstock itself."""

from dataclasses import asdict, fields
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.errors import InvalidArgument

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
}


def _table(**columns: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in columns.items()])


TABLES = {
    "messages": _table(
        id=_TEXT,
        queue=_TEXT,
        payload=BinaryType(),
        headers=MapType(_TEXT, _TEXT),
        priority=_NUMBER,
        created_at=_TIME,
        received_at=_TIME,
        visible_at=_TIME,
        expires_at=_TIME,
        attempts=IntegerType(),
        state=_TEXT,
        receipt=_TEXT,  # always NULL: it is a secret of who holds the message
        claimed_at=_TIME,
        lease_until=_TIME,
        consumer=_TEXT,
        settled_at=_TIME,
        reason=_TEXT,
    ),
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
        queue=_TEXT,  # that it was put into; NULL: it was published
        payload=BinaryType(),
        size=_NUMBER,
        headers=MapType(_TEXT, _TEXT),
        priority=_NUMBER,
        created_at=_TIME,
        received_at=_TIME,
        visible_at=_TIME,
        expires_at=_TIME,
        retention=DoubleType(),  # as it was asked for: 0 for ever, NULL as each queue says
    ),
}
BODY = frozenset(("payload", "headers", "created_at", "received_at"))  # what is not in the index of a queue
_NEVER_NULL = {
    "messages": BODY | {"id", "queue", "priority", "visible_at", "attempts", "state"},
    "queues": {"name", "max_size", "max_attempts", "start", "max_payload", "max_lease", "retention", *STATES},
    "attempts": {"queue", "id", "attempt", "claimed_at"},
    "log": BODY | {"sequence", "id", "size", "priority", "visible_at"},
}


def schema_of(table: str, payload: bool = True) -> StructType:
    """All columns of a table; of messages perhaps without the payload."""
    return StructType([each for each in TABLES[table] if payload or each.name != "payload"])


def queue_row(name: str, settings: Settings) -> dict[str, Any]:
    """A row of the table of queues, but for the counts."""
    row = {"name": name, **asdict(settings)}
    row["start"] = str(row["start"])
    return row


def attempt_row(
    queue: str,
    id: str,  # noqa: A002 - the column's name
    attempt: int,
    consumer: str | None,
    claimed_at: int,
    ended_at: int | None,
    outcome: str | None,
    reason: str | None,
) -> dict[str, Any]:
    """A row of the table of attempts; times are microseconds there."""
    ended_at = None if ended_at is None else ended_at * 1000
    return {
        "queue": queue, "id": id, "attempt": attempt, "consumer": consumer, "claimed_at": claimed_at * 1000,
        "ended_at": ended_at, "outcome": outcome, "reason": reason,
    }  # fmt: skip


def check_schema(table: str, schema: StructType) -> None:
    """Refuse columns that the table does not have, or not like that."""
    known = {each.name: each.dataType for each in TABLES[table]}
    for column in schema:
        if column.name not in known:
            raise InvalidArgument(
                f"table {table!r} has no column {column.name!r}; its columns are {', '.join(known)}"
            )
        # Where it says that no value is NULL Spark would believe it.
        given, has = column.dataType.simpleString(), known[column.name].simpleString()
        if given != has:
            raise InvalidArgument(f"column {column.name!r} of table {table!r} is {has}, not {given}")
        if not column.nullable and column.name not in _NEVER_NULL[table]:
            raise InvalidArgument(f"column {column.name!r} of table {table!r} may be NULL: leave out NOT NULL")
