"""The charts of README and docs, from the results of runs.

python -m benchmarks.chart peers benchmarks/out/journal.json docs/images/peers.svg
python -m benchmarks.chart workers benchmarks/out/workers.json docs/images/workers.svg
python -m benchmarks.chart growth benchmarks/out/growth.json docs/images/growth.svg
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.growth import MESSAGES, QUEUES
from benchmarks.jobs.systems import EMBEDDED, PEERS, SERVED

STEPS = {
    "put": "put",
    "pop": "pop",
    "claim and ack": "claim and ack",
    "put, 16 threads": "put by 16 threads",
}
EMBEDDED_PEERS = {"persist-queue": "#8aa39f", "litequeue": "#b9a26a", "huey": "#9a86b0", "diskcache": "#b58378"}
OURS, SAFE, LOST = "#0f766e", "#8aa39f", "#c9b8b4"

# Panels of the chart of growth, with the lines in each and their colours.
GROWTH = {
    "embedded, µs of CPU": {"put": OURS, "claim": "#b9a26a", "ack": "#9a86b0"},
    "over HTTP, µs of the server's CPU": {"HTTP put": OURS, "HTTP claim": "#b9a26a", "HTTP ack": "#9a86b0"},
    "seconds": {"open": OURS, "pack": "#8aa39f", "report": "#b58378", "Spark, count by state": "#9a86b0"},
    "memory, MB": {"memory": OURS},
}

Bars = Mapping[str, tuple[float, str]]  # value and colour by name


def medians(results: Path) -> dict[str, float]:
    """The median of each cell, by its name."""
    cells = json.loads(results.read_text())["cells"]
    return {cell["name"]: cell["value"]["median"] for cell in cells if cell["value"]}


def peers(measured: Mapping[str, float]) -> Figure:
    """Bars of each step: ours, and every embedded peer that offers it."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(STEPS))
    for axis, (step, title) in zip(axes, STEPS.items(), strict=True):
        bars = {"Penstock": (measured[f"journal, {step}"], OURS)}
        bars |= {
            name: (measured[f"{name}, {step}"], colour)
            for name, colour in EMBEDDED_PEERS.items()
            if f"{name}, {step}" in measured
        }
        _draw(axis, title, bars, lambda value: f" {value:,.0f}")
    _say(figure, "durable operations a second, payloads of 1 KiB; longer is better")
    return figure


def workers(measured: Mapping[str, float]) -> Figure:
    """Bars of jobs a second and of the time from put to start: ours, durable peers, and those that are not."""
    colours = {EMBEDDED.name: OURS, SERVED.name: OURS}
    colours |= {peer.name: SAFE if peer.durable else LOST for peer in PEERS}
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    rates, starts = figure.subplots(1, 2)
    for axis, title, what, form in (
        (rates, "jobs a second, put one by one", "jobs", lambda value: f" {value:,.0f}"),
        (starts, "put to start, 99 % (logarithmic)", "put to start, 99%", lambda value: f" {value * 1e3:,.1f} ms"),
    ):
        bars = {
            name: (measured[f"{name}, {what}"], colour)
            for name, colour in colours.items()
            if f"{name}, {what}" in measured
        }
        _draw(axis, title, bars, form)
    starts.set_xscale("log")  # from milliseconds to seconds
    starts.set_xticks([])
    starts.minorticks_off()
    starts.set_xlim(1e-4, starts.get_xlim()[1] * 10)
    _say(figure, "eight jobs at a time; pale: a job that was put may be lost when the power fails")
    return figure


def _draw(axis: Axes, title: str, bars: Bars, form: Callable[[float], str]) -> None:
    names = list(bars)[::-1]
    values = [bars[name][0] for name in names]
    drawn = axis.barh(names, values, color=[bars[name][1] for name in names])
    axis.bar_label(drawn, [form(value) for value in values], fontsize=8, color="#5b666e")
    axis.set_title(title, fontsize=11, color="#3b4a48")
    axis.set_xlim(0, max(values) * 1.35)
    axis.set_xticks([])
    axis.tick_params(length=0, labelsize=9, labelcolor="#5b666e")
    axis.spines[:].set_visible(False)
    axis.patch.set_alpha(0)


def growth(measured: Mapping[str, float]) -> Figure:
    """A line for each operation: by the messages of a queue above, by the queues of a store below."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    rows = figure.subplots(2, len(GROWTH))
    for row, (word, points) in zip(rows, (("messages", MESSAGES), ("queues", QUEUES)), strict=True):
        for axis, (title, lines) in zip(row, GROWTH.items(), strict=True):
            for kind, colour in lines.items():
                found = {at: measured.get(f"{kind}, {at:,} {word}") for at in points}
                known = {at: value for at, value in found.items() if value is not None}
                axis.plot(list(known), list(known.values()), "o-", color=colour, label=kind, markersize=4)
            axis.set_title(title, fontsize=10, color="#3b4a48")
            _scale(axis, points, word)
    return figure


def _scale(axis: Axes, points: Sequence[int], word: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low / 2, high * 6)  # a line that is flat must look flat; the legend is above
    axis.set_xticks(points, [f"{at:,}" for at in points])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(word, fontsize=9, color="#5b666e")
    axis.tick_params(labelsize=8, labelcolor="#5b666e")
    axis.spines[["top", "right"]].set_visible(False)
    axis.patch.set_alpha(0)
    axis.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)


def _say(figure: Figure, text: str) -> None:
    figure.supxlabel(text, fontsize=9, color="#5b666e")


CHARTS: dict[str, Callable[[Mapping[str, float]], Figure]] = {
    "peers": peers,
    "workers": workers,
    "growth": growth,
}


def main(chart: str, results: Path, out: Path) -> None:
    """Draw a chart."""
    # Texts stay texts, and the same numbers give the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.family": "sans-serif"}
    CHARTS[chart](medians(results)).savefig(out, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
