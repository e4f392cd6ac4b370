"""The options of the log of a slate store, read at once or as a stream; checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import InvalidArgument
from penstock.spark.options import Options, parse

_ROWS = 500_000
_STREAM = ("startingoffset", "maxrowsperbatch", "_published")
_MOST = 2**62


@dataclass(frozen=True)
class LogOptions:
    """What is to be read of a log, and how much of it at a time."""

    read: Options
    starting: int | None  # a sequence; None: where the log ends when the stream begins
    rows: int
    published: bool  # leave out what was put into one queue: for those who route


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
        options.get("_published") == "true",
    )


def _starting(text: str) -> int | None:
    if text in ("earliest", "latest"):
        return 1 if text == "earliest" else None
    return _number("startingOffset (of a log also earliest or latest)", text, 0)


def _number(name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= _MOST:
        raise InvalidArgument(f"option {name} is a whole number from {least} on, not {text!r}")
    return int(text)
