"""The options of the log of a slate store, read at once or as a stream; checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from penstock.errors import InvalidArgument
from penstock.spark.options import Options, parse
from penstock.spark.tables import schema_of

_ROWS = 500_000
_STREAM = ("startingoffset", "maxrowsperbatch", "_route")
_MOST = 2**62


@dataclass(frozen=True)
class LogOptions:
    """What is to be read of a log, and how much of it at a time."""

    read: Options
    starting: int | None  # a sequence; None: where the log ends when the stream begins
    rows: int
    route: bool  # who wants what of it, instead of the entries


def is_log(given: Mapping[str, str]) -> bool:
    """Whether the options are about a log."""
    return any(name.lower() == "table" and value == "log" for name, value in given.items())


def parse_log(given: Mapping[str, str]) -> LogOptions:
    """What the options say; InvalidArgument names the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    read = parse({name: value for name, value in options.items() if name not in _STREAM})
    return LogOptions(
        read,
        _starting(options.get("startingoffset", "earliest")),
        _number("maxRowsPerBatch", options.get("maxrowsperbatch", str(_ROWS)), 1),
        options.get("_route") == "true",
    )


def log_schema(options: LogOptions) -> StructType:
    """The columns of what is read."""
    if not options.route:
        return schema_of("log", options.read.payload)
    from penstock.spark.slate.routing import MATCHED

    return MATCHED


def _starting(text: str) -> int | None:
    if text in ("earliest", "latest"):
        return 1 if text == "earliest" else None
    return _number("startingOffset (of a log also earliest or latest)", text, 0)


def _number(name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= _MOST:
        raise InvalidArgument(f"option {name} is a whole number from {least} on, not {text!r}")
    return int(text)
