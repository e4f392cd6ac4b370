"""Values of Spark rows as JSON and as table cells: times in UTC, binary values as text if they are UTF-8."""

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
    """A row as a JSON object. A binary value that is not UTF-8 becomes NAME_base64, like a message's payload."""
    plain: dict[str, Any] = {}
    for name, kind, value in zip(columns, kinds, row, strict=True):
        plain[name] = _plain(value, kind)
        if isinstance(value, bytes | bytearray) and _text(value) is None:
            plain[name], plain[f"{name}_base64"] = None, _encoded(value)
    return plain


def as_text(value: Any, kind: DataType) -> str:
    """A value that is not binary, as a table cell."""
    return _written(_plain(value, kind))


def is_number(kind: DataType) -> bool:
    """Whether values of a type are numbers, which tables align to the right."""
    return isinstance(kind, NumericType)


def _plain(value: Any, kind: DataType | None) -> Any:
    """A value of a type that JSON has."""
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


def _time(value: datetime, has_zone: bool) -> str:
    """A TIMESTAMP in UTC (PySpark gives it as a naive datetime in local time), or a TIMESTAMP_NTZ as it is."""
    if not has_zone:
        return value.isoformat()
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: bytes | bytearray) -> str | None:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return None


def _encoded(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()
