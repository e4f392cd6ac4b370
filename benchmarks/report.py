"""What a run of a part found, as a table, as PART.json and as PART.svg.

PART.json holds the fields of `harness.Results`, and these names stay:

    machine        cores, python, system, filesystem (of the scratch folder)
    date           of the run's end, in UTC
    rounds, seed   as given; the seed replays the order of visits
    raw_append     median, low, high of every append probe of the run, in appends per second
    raw_sequential the same of the sequential probes, in bytes per second
    cells          one each: name, group, unit, better ("higher" or "lower"), bytes_per_op, of ("penstock", "peer"
                   or "limit"), and
      value          median, low, high over the rounds; null if every visit failed
      comparisons    against (a cell, "raw append", "raw sequential", or null for the value itself), target,
                     per_round (the ratios), median (of these), reached (null without target or ratio)
      samples        in visiting order: cell, round, seconds (with both probes), value, before and after
                     (append, sequential), and error and traceback in place of these if the visit failed
"""

import dataclasses
import json
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.harness import RAW_APPEND, RAW_SEQUENTIAL, Comparison, Result, Results, Spread

GOOD, BAD, PLAIN = "#1b7f79", "#d1495b", "#6b7280"  # a mark always says the same


def number(value: float) -> str:
    """Three digits that matter: 0.0123, 4.56, 789, 12,300, 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return number(value / size) + letter
    return f"{value:.3g}" if value < 999.5 else f"{round(value, 3 - len(str(int(value)))):,.0f}"


def scale(value: float, unit: str) -> tuple[float, str]:
    """What to multiply by, and the unit after that: short times read better in ms or µs."""
    if unit == "s" and value < 1:
        return (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
    return 1, unit


def quantity(value: float, unit: str) -> str:
    """A number with its unit."""
    factor, unit = scale(value, unit)
    return f"{number(value * factor)} {unit}"


def limits(value: Spread, unit: str) -> str:
    """The extremes, on the scale of the median that stands beside them."""
    factor, _ = scale(value.median, unit)
    return f"{number(value.low * factor)} .. {number(value.high * factor)}"


def median(result: Result) -> str:
    """The median, or why there is none."""
    if result.value:
        return quantity(result.value.median, result.unit)
    return "failed" if result.samples else "not visited"


def words(result: Result, comparison: Comparison) -> tuple[str, str, str, str]:
    """A comparison as people read it: what was found, the target, the verdict, and its colour."""

    def amount(value: float) -> str:
        return quantity(value, result.unit) if comparison.against is None else f"{number(value)}x"

    sign = "≥" if result.better == "higher" else "≤"
    target = "" if comparison.target is None else f"{sign} {amount(comparison.target)}"
    if comparison.median is None:
        return "no result", target, "✗", BAD
    found = amount(comparison.median) + (f" {comparison.against}" if comparison.against else "")
    if comparison.reached is None:
        return found, target, "", PLAIN
    return found, target, *(("✓ reached", GOOD) if comparison.reached else ("✗ missed", BAD))


def failures(result: Result) -> dict[str, list[int]]:
    """Each error that visits raised, with the rounds in which they did."""
    found: dict[str, list[int]] = {}
    for sample in result.samples:
        if sample.error:
            found.setdefault(sample.error, []).append(sample.round)
    return found


def by_group(results: Results) -> dict[str, list[Result]]:
    """Cells under their group, both in the order in which they were listed."""
    groups: dict[str, list[Result]] = {}
    for result in results.cells:
        groups.setdefault(result.group, []).append(result)
    return groups


def headline(results: Results) -> str:
    """How many targets were reached; one without a result was not."""
    targets = [each for cell in results.cells for each in cell.comparisons if each.target is not None]
    if not targets:
        return "no targets"
    return f"{sum(each.reached is True for each in targets)} of {len(targets)} targets reached"


def surroundings(results: Results) -> str:
    """The machine and its raw limits, in two lines."""
    machine, append, sequential = results.machine, results.raw_append, results.raw_sequential
    text = f"{machine.cores} cores, {machine.python}, {machine.system}, {machine.filesystem}; "
    text += f"{results.rounds} rounds, seed {results.seed}"
    if append and sequential:
        text += f"\n{RAW_APPEND} {quantity(append.median, 'ops/s')} ({limits(append, 'ops/s')}), "
        text += f"{RAW_SEQUENTIAL} {quantity(sequential.median, 'bytes/s')} ({limits(sequential, 'bytes/s')})"
    return text


def show(results: Results, console: Console) -> None:
    """Print a table per group, then the machine, then what was missed and what failed."""
    for group, cells in by_group(results).items():
        table = Table(box=SIMPLE_HEAD, title=Text(group, style="bold"), title_justify="left", expand=True)
        table.add_column("cell", overflow="fold")
        table.add_column("median", justify="right")
        table.add_column("min .. max", justify="right")
        table.add_column("compared", overflow="fold")
        table.add_column("target")
        table.add_column("", width=9)
        for result in cells:
            for row in _rows(result):
                table.add_row(*row)
        console.print(table)
    console.print(Text(surroundings(results)))
    console.print(Text(f"\n{headline(results)}", style="bold"))
    for result in results.cells:
        for comparison in result.comparisons:
            found, target, verdict, colour = words(result, comparison)
            if comparison.reached is False:
                console.print(Text(f"{verdict}: {result.name}: {found}, target {target}", style=colour))
        for error, rounds in failures(result).items():
            where = ", ".join(map(str, rounds))
            console.print(Text(f"✗ failed: {result.name}, round {where}: {error}", style=BAD))


def _rows(result: Result) -> list[list[Text]]:
    extremes = limits(result.value, result.unit) if result.value else ""
    start, rows = [Text(result.name), Text(median(result)), Text(extremes)], []
    for comparison in result.comparisons:
        found, target, verdict, colour = words(result, comparison)
        rows.append([*start, Text(found), Text(target), Text(verdict, style=colour)])
        start = [Text()] * 3
    return rows or [start]


def write_json(results: Results, path: Path) -> None:
    """Everything, for later comparison by machines."""
    document = dataclasses.asdict(results)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_plot(results: Results, path: Path) -> None:
    """A panel per group, a bar per comparison: to the right of the line its target is reached."""
    groups = by_group(results)
    lines = [sum(max(1, len(cell.comparisons)) for cell in cells) for cells in groups.values()]
    with matplotlib.rc_context(
        # Texts stay texts in the plot: the page that shows it has a font of its own.
        {
            "svg.fonttype": "none",
            "text.parse_math": False,
            "axes.spines.right": False,
            "axes.spines.top": False,
        }
    ):
        # As wide as the longest words on both sides ask for, so that the bars always keep their room.
        letters = max(len(_left(cell)) for cell in results.cells)
        letters += max((len(_right(cell, each)) for cell in results.cells for each in cell.comparisons), default=0)
        figure = Figure(figsize=(6 + letters / 13, 1.9 + 0.34 * sum(lines) + 0.5 * len(groups)))
        figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
        figure.suptitle(f"Penstock: {headline(results)}", fontsize=15, fontweight="bold")
        panels = figure.subplots(len(groups), sharex=True, squeeze=False, height_ratios=lines)[:, 0]
        for axes, (group, cells) in zip(panels, groups.items(), strict=True):
            axes.set_title(group, loc="left", fontweight="bold")
            _panel(axes, cells)
        last: Axes = panels[-1]
        last.set_xscale("log")
        low, high = last.get_xlim()
        # Wide enough that a hair beside the target looks like one; beyond ten times the number must do, or
        # one outlier would flatten every other bar.
        last.set_xlim(max(0.08, min(low, 0.4)), min(12.5, max(high, 2.5)))
        last.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        last.xaxis.set_major_formatter(FuncFormatter(lambda score, _: f"{score:g}x"))
        last.xaxis.set_minor_locator(NullLocator())
        last.set_xlabel("times as good as its target; dots are single rounds\n\n" + surroundings(results))
        figure.savefig(path, metadata={"Date": None})


def _left(result: Result) -> str:
    return f"{result.name}   {median(result)}"


def _right(result: Result, comparison: Comparison) -> str:
    found, target, verdict, _ = words(result, comparison)
    return f"{verdict[:1]} {found}" + (f", target {target}" if target else "")


def _panel(axes: Axes, cells: list[Result]) -> None:
    labels: list[str] = []
    for index, result in enumerate(cells):
        first = len(labels)
        labels += [_left(result)] + [""] * (len(result.comparisons) - 1)
        for line, comparison in enumerate(result.comparisons, first):
            _bar(axes, line, result, comparison)
        if index % 2:
            axes.axhspan(first - 0.5, len(labels) - 0.5, color="#f3f4f6", zorder=0)
    axes.axvline(1, color="black", linewidth=1.2)
    axes.grid(axis="x", color="#e5e7eb")
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)  # the first cell on top
    axes.tick_params(length=0)


def _bar(axes: Axes, line: int, result: Result, comparison: Comparison) -> None:
    *_, colour = words(result, comparison)
    beside = axes.get_yaxis_transform()  # x in widths of the panel, y in lines
    axes.text(1.01, line, _right(result, comparison), color=colour, va="center", transform=beside)
    if comparison.median is None or comparison.target is None:
        return
    scores = [score(value, comparison.target, result.better) for value in comparison.per_round]
    middle = score(comparison.median, comparison.target, result.better)
    axes.barh(line, middle - 1, left=1, height=0.55, color=colour, alpha=0.75)
    axes.plot(scores, [line] * len(scores), "o", color="black", markersize=3, alpha=0.45)


def score(value: float, target: float, better: str) -> float:
    """How far beyond its target a value is: 2 is twice as good, 0.5 half as good."""
    return value / target if better == "higher" else target / value
