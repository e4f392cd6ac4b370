"""The charts of README and docs, from the results of the parts `journal` and `growth`.

python -m benchmarks.chart benchmarks/out docs/images
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.growth import MESSAGES, QUEUES

STEPS = {
    "put": "put",
    "pop": "pop",
    "claim and ack": "claim and ack",
    "put, 16 threads": "put by 16 threads",
}
PEERS = {"persist-queue": "#8aa39f", "litequeue": "#b9a26a", "huey": "#9a86b0", "diskcache": "#b58378"}
OURS = "#0f766e"
INK, SOFT = "#3b4a48", "#5b666e"
# Panels of the chart of growth: what is drawn, on which scale, and the lines with their colours.
GROWTH = {
    "embedded, µs of CPU": {"put": OURS, "claim": "#b9a26a", "ack": "#9a86b0"},
    "over HTTP, µs of the server's CPU": {"HTTP put": OURS, "HTTP claim": "#b9a26a", "HTTP ack": "#9a86b0"},
    "whole stores, seconds": {
        "open": OURS,
        "pack": "#8aa39f",
        "report": "#b58378",
        "Spark, count by state": "#9a86b0",
    },
    "memory, MB": {"memory": OURS},
}


def values(results: Path) -> dict[str, float]:
    """The median of each cell, by its name."""
    cells = json.loads(results.read_text())["cells"]
    return {cell["name"]: cell["value"]["median"] for cell in cells if cell["value"]}


def draw_peers(measured: dict[str, float], out: Path) -> None:
    """Bars of each step: ours, and every peer that offers it."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(STEPS))
    for axis, (step, title) in zip(axes, STEPS.items(), strict=True):
        bars = {"Penstock": (measured[f"journal, {step}"], OURS)}
        bars |= {
            name: (measured[f"{name}, {step}"], colour)
            for name, colour in PEERS.items()
            if f"{name}, {step}" in measured
        }
        names = list(bars)[::-1]
        values = [bars[name][0] for name in names]
        drawn = axis.barh(names, values, color=[bars[name][1] for name in names])
        axis.bar_label(drawn, [f" {value:,.0f}" for value in values], fontsize=8, color="#5b666e")
        axis.set_title(title, fontsize=11, color="#3b4a48")
        axis.set_xlim(0, max(values) * 1.35)
        axis.set_xticks([])
        axis.tick_params(length=0, labelsize=9, labelcolor="#5b666e")
        axis.spines[:].set_visible(False)
        axis.patch.set_alpha(0)
    figure.supxlabel(
        "durable operations a second, payloads of 1 KiB; longer is better", fontsize=9, color="#5b666e"
    )
    figure.savefig(out, transparent=True, metadata={"Date": None})


def draw_growth(measured: dict[str, float], out: Path) -> None:
    """A line for each operation: by the messages of a queue above, by the queues of a store below."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    rows = figure.subplots(2, len(GROWTH))
    for row, (word, points) in zip(rows, (("messages", MESSAGES), ("queues", QUEUES)), strict=True):
        for axis, (title, lines) in zip(row, GROWTH.items(), strict=True):
            for kind, colour in lines.items():
                found = {at: measured.get(f"{kind}, {at:,} {word}") for at in points}
                known = {at: value for at, value in found.items() if value is not None}
                axis.plot(list(known), list(known.values()), "o-", color=colour, label=kind, markersize=4)
            axis.set_title(title, fontsize=10, color=INK)
            _style(axis, points, word)
    figure.savefig(out, transparent=True, metadata={"Date": None})


def _style(axis: Axes, points: tuple[int, ...], word: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low / 2, high * 2)  # a line that is flat must look flat
    axis.set_xticks(points, [f"{at:,}" for at in points])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(word, fontsize=9, color=SOFT)
    axis.tick_params(labelsize=8, labelcolor=SOFT)
    axis.spines[["top", "right"]].set_visible(False)
    axis.patch.set_alpha(0)
    axis.legend(fontsize=7, frameon=False)


if __name__ == "__main__":
    # Texts stay texts, and the same numbers give the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.family": "sans-serif"}
    folder, images = Path(sys.argv[1]), Path(sys.argv[2])
    draw_peers(values(folder / "journal.json"), images / "peers.svg")
    draw_growth(values(folder / "growth.json"), images / "growth.svg")
