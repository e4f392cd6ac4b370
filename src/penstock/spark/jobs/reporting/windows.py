"""Time in slices of the same length, in milliseconds since the epoch."""

import re
from dataclasses import dataclass

from penstock.errors import InvalidArgument

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS = {"second": _SECOND, "minute": _MINUTE, "hour": _HOUR, "day": _DAY, "week": 7 * _DAY}
_SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_ASKED = re.compile(r"(\d{1,6})\s*([a-z]+?)s?", re.ASCII)
STEPS = [  # that are easy to read
    *(count * _SECOND for count in (1, 5, 15, 30)),
    *(count * _MINUTE for count in (1, 5, 15, 30)),
    *(count * _HOUR for count in (1, 3, 6, 12)),
    *(count * _DAY for count in (1, 7, 28, 91, 364)),
]
_FEW = 60  # windows that are easy to look at
_MOST = 1_000
_MONDAY = 4 * _DAY  # the first one since the epoch: where weeks begin


@dataclass(frozen=True)
class Windows:
    """Slices from the one with the first moment to the one with the last."""

    length: int
    first: int  # where the first one starts
    count: int

    @property
    def origin(self) -> int:
        """Some start of a window: weeks begin on Mondays, all else at midnight, both in UTC."""
        return _MONDAY if self.length % (7 * _DAY) == 0 else 0

    def starts(self) -> list[int]:
        """Where each begins."""
        return [self.first + number * self.length for number in range(self.count)]

    def __str__(self) -> str:
        for name, size in reversed(_UNITS.items()):
            if self.length % size == 0:
                count = self.length // size
                return f"{count} {name}{'' if count == 1 else 's'}"
        return f"{self.length} ms"


def parse(text: str) -> int:
    """A length as people write it: `1 hour`, `15 min`, `7d`."""
    matched = _ASKED.fullmatch(text.strip().lower())
    unit = matched and (_SHORT.get(matched[2], matched[2]))
    if not matched or unit not in _UNITS or not int(matched[1]):
        raise InvalidArgument(f"window {text!r}: give a number and a unit, as in 15 minutes, 1 hour or 7 days")
    return int(matched[1]) * _UNITS[str(unit)]


def cut(first: int, last: int, length: int | None = None) -> Windows:
    """The windows of a time, of that length or of a sensible one."""
    if length is None:
        if first == last:
            return cut(first, last, _MINUTE)
        found = (cut(first, last, each) for each in STEPS)
        return next((each for each in found if each.count <= _FEW), cut(first, last, STEPS[-1]))
    origin = Windows(length, 0, 0).origin
    start = (first - origin) // length
    count = (last - origin) // length - start + 1
    return Windows(length, origin + start * length, count)


def check(windows: Windows) -> Windows:
    """Refuse more windows than anyone can look at."""
    if windows.count > _MOST:
        least = windows.count * windows.length // _MOST // _SECOND
        raise InvalidArgument(
            f"a window of {windows} makes {windows.count:,} of them; the most is {_MOST:,}: give {least:,} "
            "seconds or more"
        )
    return windows
