"""The charts of a report as inline SVG, drawn by matplotlib; and numbers formatted for people.

matplotlib draws with placeholder colours, which are then replaced by CSS variables of the page: a chart is light
or dark like the page. Labels stay text, in the page's font; no label contains text of a user.
"""

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from itertools import count as counter
from itertools import pairwise
from math import floor, log10
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from penstock.spark.jobs.reporting.numbers import STEPS, Slice, Windows

_COLOURS = {
    "ink": "#010001", "soft": "#020002", "line": "#030003",
    "put": "#040004", "done": "#050005", "failed": "#060006", "waits": "#0a000a",
    "p50": "#070007", "p90": "#080008", "p99": "#090009",
}  # fmt: skip
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 12, "text.parse_math": False,
    "text.color": _COLOURS["ink"], "axes.edgecolor": _COLOURS["line"], "axes.linewidth": 1,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": _COLOURS["line"], "axes.axisbelow": True,
    "xtick.color": _COLOURS["line"], "ytick.color": _COLOURS["line"],
    "xtick.labelcolor": _COLOURS["soft"], "ytick.labelcolor": _COLOURS["soft"],
    "ytick.major.size": 0, "lines.solid_capstyle": "round",
}  # fmt: skip
_LINES = {"p50": "-", "p90": (0, (5, 2)), "p99": (0, (1.5, 2))}  # dashes, for readers who cannot tell the colours
_TICKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000)
_DAY = 86_400_000  # milliseconds
_FEW = 12  # up to so many windows get a dot each
_TIPS = 240  # up to so many windows get a tooltip each
_SCALES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))
_number = counter()


def throughput(slices: Sequence[Slice], windows: Windows, width: int, height: int, tips: bool = True) -> str:
    """Messages put as a line, over done and failed messages as areas."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(width, height)
        edges = _days([*windows.starts(), windows.first + windows.count * windows.length])
        done = [each.done for each in slices]
        settled = [each.done + each.failed for each in slices]
        put = [each.put for each in slices]
        axes.stairs(done, edges, fill=True, color=_COLOURS["done"], alpha=0.8, linewidth=0)
        axes.stairs(settled, edges, baseline=done, fill=True, color=_COLOURS["failed"], linewidth=0)
        axes.stairs(put, edges, color=_COLOURS["put"], linewidth=2, baseline=None)
        _count_axis(axes, max(1, *put, *settled))
        _time_axis(axes, windows, width)
        said = [f"put {each.put:,}, done {each.done:,}, failed {each.failed:,}" for each in slices]
        return _svg(figure, axes, width, height, edges, _tips(slices, windows, said) if tips else [])


def percentiles(
    slices: Sequence[Slice], windows: Windows, what: str, width: int, height: int, tips: bool = True
) -> str:
    """The percentiles of the waiting or the processing time; `what` is its name."""
    times = [getattr(each, what) for each in slices]
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(width, height)
        edges = _days([*windows.starts(), windows.first + windows.count * windows.length])
        middles = [(start + end) / 2 for start, end in pairwise(edges)]
        for name, line in _LINES.items():
            values = [getattr(each, name) for each in times]
            shown = [float("nan") if value is None else value for value in values]
            axes.plot(middles, shown, linestyle=line, color=_COLOURS[name], linewidth=2, clip_on=False)
            dots = [place for place in range(len(values)) if len(values) <= _FEW or _alone(values, place)]
            axes.plot(
                [middles[place] for place in dots], [shown[place] for place in dots], "o", markersize=5,
                color=_COLOURS[name], clip_on=False,
            )  # fmt: skip
        _duration_axis(
            axes, [value for each in times for value in (each.p50, each.p90, each.p99) if value is not None]
        )
        _time_axis(axes, windows, width)
        said = [
            f"{each.count:,} messages, p50 {duration(each.p50)}, p90 {duration(each.p90)}, "
            f"p99 {duration(each.p99)}"
            if each.count
            else "none"
            for each in times
        ]
        return _svg(figure, axes, width, height, edges, _tips(slices, windows, said) if tips else [])


def _alone(values: Sequence[float | None], place: int) -> bool:
    """Whether a value has no neighbours: a line alone would not show it."""
    around = values[max(0, place - 1) : place + 2]
    return values[place] is not None and sum(value is not None for value in around) == 1


def depth(slices: Sequence[Slice], windows: Windows, width: int, height: int, tips: bool = True) -> str:
    """Messages that wait or are in flight at the end of each window, as an area."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(width, height)
        edges = _days([*windows.starts(), windows.first + windows.count * windows.length])
        values = [each.depth for each in slices]
        axes.stairs(values, edges, fill=True, color=_COLOURS["waits"], alpha=0.25, linewidth=0)
        axes.stairs(values, edges, color=_COLOURS["waits"], linewidth=2, baseline=None)
        _count_axis(axes, max(1, *values))
        _time_axis(axes, windows, width)
        said = [f"{each.depth:,} unsettled at the end" for each in slices]
        return _svg(figure, axes, width, height, edges, _tips(slices, windows, said) if tips else [])


def _count_axis(axes: Axes, top: int) -> None:
    axes.set_ylim(0, top * 1.08)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))


def _figure(width: int, height: int) -> tuple[Figure, Axes]:
    """A figure of this size in points, which are pixels in the page."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.04)
    axes = figure.subplots()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    return figure, axes


def _days(times: Sequence[int]) -> list[float]:
    """Milliseconds as matplotlib's days since the epoch."""
    return [time / _DAY for time in times]


def _time_axis(axes: Axes, windows: Windows, width: int) -> None:
    first, last = windows.first, windows.first + windows.count * windows.length
    axes.set_xlim(*_days([first, last]))
    step = next((each for each in STEPS if (last - first) / each <= width / 80), STEPS[-1])
    start = windows.origin if step % (7 * _DAY) == 0 else 0
    ticks = list(range(start - (start - first) // step * step, last + 1, step))
    labels = [_tick(tick, step, first=number == 0) for number, tick in enumerate(ticks)]
    axes.set_xticks(_days(ticks), labels)


def _tick(time: int, step: int, first: bool) -> str:
    """The label of a time: the time of day, with the date below where it changes."""
    shown = datetime.fromtimestamp(time / 1000, UTC)
    date = f"{shown:%b} {shown.day}" + (f"\n{shown.year}" if step >= _DAY and first else "")
    if step >= _DAY:
        return date
    clock = f"{shown:%H:%M:%S}" if step < 60_000 else f"{shown:%H:%M}"
    return f"{clock}\n{date}" if first or time % _DAY == 0 else clock


def _duration_axis(axes: Axes, values: Sequence[float]) -> None:
    """A linear axis, or a logarithmic one if the slowest times are far above the others."""
    top = max(values, default=0)
    usual = sorted(value for value in values if value > 0)
    if not usual:
        axes.set_ylim(0, 1)
        axes.set_yticks([0], ["0"])
        return
    if top > 40 * usual[len(usual) // 4]:
        least = max(0.001, 10 ** floor(log10(usual[0])))
        axes.set_yscale("symlog", linthresh=least, linscale=0.3)
        ticks = [0.0, *(each for each in _TICKS if least < each <= top * 1.5)]
        axes.set_yticks(ticks, [duration(each) if each else "0" for each in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, top * 1.4)
        return
    size, unit = scale(top)
    axes.set_ylim(0, top * 1.1)
    nice = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top / size)
    ticks = [float(tick) for tick in nice if tick * size <= top * 1.1]
    axes.set_yticks([tick * size for tick in ticks], [f"{tick:g} {unit}" if tick else "0" for tick in ticks])


def _tips(slices: Sequence[Slice], windows: Windows, said: Sequence[str]) -> list[str]:
    """The tooltip of each window."""
    if len(slices) > _TIPS:
        return []
    seconds = windows.length < 60_000
    return [f"{moment(each.start, seconds)} UTC: {text}" for each, text in zip(slices, said, strict=True)]


def _svg(figure: Figure, axes: Axes, width: int, height: int, edges: Sequence[float], tips: Sequence[str]) -> str:
    """The figure as an SVG element, hidden from screen readers: the page has a description in words."""
    prefix = f"c{next(_number)}"
    for number, (start, end) in enumerate(pairwise(edges) if tips else ()):
        axes.axvspan(start, end, facecolor="none", gid=f"tip-{number}")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text[text.index("<svg") :]
    text = re.sub(r"^<svg[^>]*>", f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">', text)
    for number, tip in enumerate(tips):
        text = text.replace(f'<g id="tip-{number}">', f'<g class="tip"><title>{escape(tip)}</title>')
    # Ids must be unique in the page, which has many charts.
    text = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", text).replace("xlink:href", "href")
    for name, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", text).strip()


# Numbers as people read them


def duration(seconds: float | None) -> str:
    """12 ms, 3.4 s, 5.6 min, 7.8 h."""
    if seconds is None:
        return "-"
    size, unit = scale(seconds)
    return f"{short(seconds / size)} {unit}"


def scale(seconds: float) -> tuple[float, str]:
    """The seconds and the name of the largest unit that a duration fills."""
    if seconds <= 0:
        return 1.0, "s"
    return next((each for each in _SCALES if seconds >= each[0]), _SCALES[-1])


def short(number: float) -> str:
    """Two significant digits, or all digits before the point."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def count(number: int) -> str:
    """1,234."""
    return f"{number:,}"


def brief(number: float) -> str:
    """12k, 3.4M: for axes."""
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
