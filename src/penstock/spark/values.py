"""Values of Spark's rows as people and as JSON want them: times in UTC, binary values as text where they are."""

import base64
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NumericType,
    Row,
    StructType,
    TimestampType,
)


def as_json(columns: Sequence[str], kinds: Sequence[DataType], row: Row) -> dict[str, Any]:
    """A row as JSON has it. What is binary and no text comes as name_base64, as a message's payload does."""
    plain: dict[str, Any] = {}
    for name, kind, value in zip(columns, kinds, row, strict=True):
        plain[name] = _plain(value, kind)
        if isinstance(value, bytes | bytearray) and _text(value) is None:
            plain[name], plain[f"{name}_base64"] = None, _encoded(value)
    return plain


def as_text(value: Any, kind: DataType) -> str:
    """A value of a cell in a table, but for binary ones."""
    return _written(_plain(value, kind))


def is_number(kind: DataType) -> bool:
    """Whether values of a type are aligned to the right."""
    return isinstance(kind, NumericType)


def _plain(value: Any, kind: DataType | None) -> Any:
    """Something that JSON knows."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        text = _text(value)
        return _encoded(value) if text is None else text
    if isinstance(value, datetime):
        return _time(value, isinstance(kind, TimestampType))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Row) and isinstance(kind, StructType):
        return {field.name: _plain(each, field.dataType) for field, each in zip(kind, value, strict=True)}
    if isinstance(value, dict) and isinstance(kind, MapType):
        return {str(_plain(name, kind.keyType)): _plain(each, kind.valueType) for name, each in value.items()}
    if isinstance(value, list) and isinstance(kind, ArrayType):
        return [_plain(each, kind.elementType) for each in value]
    return str(value)


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_written(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(value: datetime, of_a_zone: bool) -> str:
    """PySpark gives times in the zone of this machine, but without saying so."""
    if not of_a_zone:
        return value.isoformat()
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: bytes | bytearray) -> str | None:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return None


def _encoded(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()
