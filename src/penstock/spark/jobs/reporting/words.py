"""Numbers as people read them."""

from datetime import UTC, datetime

_SCALES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


def duration(seconds: float | None) -> str:
    """12 ms, 3.4 s, 5.6 min, 7.8 h."""
    if seconds is None:
        return "-"
    size, unit = scale(seconds)
    return f"{short(seconds / size)} {unit}"


def scale(seconds: float) -> tuple[float, str]:
    """The unit in which a duration reads best, and how long that is."""
    if seconds <= 0:
        return 1.0, "s"  # as good as any
    return next((each for each in _SCALES if seconds >= each[0]), _SCALES[-1])


def short(number: float) -> str:
    """Two digits that matter, or all of those before the point."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def count(number: int) -> str:
    """1,234."""
    return f"{number:,}"


def brief(number: float) -> str:
    """12k, 3.4M: for the axis of a chart."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:g}"


def share(part: int, whole: int) -> str:
    """12%, 0.3%; <0.1%."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%".replace(".0%", "%") if percent < 99.95 or part == whole else ">99.9%"


def moment(milliseconds: int, seconds: bool = False) -> str:
    """2026-03-01 14:00."""
    shown = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return shown.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
