"""Durations and times on the command line: `5m`, `1h30m`, `90` as arguments; `3 m ago`, `in 12 s` in tables."""

import math
import re
from datetime import UTC, datetime
from typing import Any

import click

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PARTS = re.compile(r"".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS), re.ASCII | re.IGNORECASE)
FORMS = "give seconds (90, 0.5), or a number with a unit: 90s, 5m, 2h, 1d, 1h30m"


class Duration(click.ParamType[Any]):
    """An option in seconds: a number, or `5m`, `2h`, `1d`, `1h30m`.

    least, most: limits, beyond those that the store has
    words: further values by their text, as in {"forever": None}
    """

    name = "duration"

    def __init__(self, least: float = 0, most: float = math.inf, **words: Any) -> None:
        self._least = least
        self._most = most
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The seconds of a text, or of a number from a TOML file."""
        if isinstance(value, str) and value in self._words:
            return self._words[value]
        try:
            seconds = parse(value)
        except ValueError:
            forms = "; ".join([FORMS, *(f"or {word}" for word in self._words)])
            self.fail(f"{value!r} is not a duration: {forms}", param, ctx)
        if not self._least <= seconds <= self._most:
            limits = f"at least {length(self._least)}"
            if self._most < math.inf:
                limits = f"{length(self._least)} to {length(self._most)}"
            self.fail(f"{value!r} is out of range: give {limits}", param, ctx)
        return seconds

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As help texts show the value."""
        return "|".join(["DURATION", *self._words])


def parse(value: Any) -> float:
    """The seconds of a number, or of a text such as "90", "5m" or "1h30m"; ValueError.

    Whole seconds are an int, so that 60 is not shown as 60.0.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(value)
    if isinstance(value, str) and value.strip() and (matched := _PARTS.fullmatch(value.strip())):
        parts = zip(matched.groups(), _UNITS.values(), strict=True)
        seconds = sum((float(part or 0) * unit for part, unit in parts), 0.0)
    else:
        seconds = float(value)
    return int(seconds) if seconds.is_integer() else seconds


def length(seconds: float) -> str:
    """A duration in one unit, of which there are at least two: 90 s, 3 m, 5 h, 2 d."""
    for unit, size in _UNITS.items():
        if seconds >= 2 * size:
            return f"{round(seconds / size):,} {unit}"
    return f"{seconds:.1g} s"


def relative(time: int, now: int) -> str:
    """A time as people say it: "3 m ago", "in 12 s", "now"."""
    seconds = (time - now) / 1000
    if abs(seconds) < 1:
        return "now"
    return f"in {length(seconds)}" if seconds > 0 else f"{length(-seconds)} ago"


def when(time: int) -> str:
    """A time in milliseconds since the epoch, in UTC."""
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def exactly(time: int) -> str:
    """A time to the millisecond; as it is, if no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{time % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return str(time)
