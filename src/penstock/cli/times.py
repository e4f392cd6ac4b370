"""Times and durations as people read them."""

from datetime import UTC, datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def when(time: int) -> str:
    """A time in milliseconds since the epoch, in UTC."""
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def exactly(time: int) -> str:
    """A time to the millisecond; as it is, if no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{time % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return str(time)


def duration(seconds: float) -> str:
    """A duration in its largest unit: 12 s, 3 m, 5 h, 2 d."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def age(time: int, now: int) -> str:
    """How long ago a time was; in how long it comes, if it is ahead."""
    if time > now:
        return f"in {duration((time - now) / 1000)}"
    return f"{duration((now - time) / 1000)} ago"
