"""The charts of README and docs, from the results of runs.

python -m benchmarks.chart peers benchmarks/out/journal.json docs/images/peers.svg
python -m benchmarks.chart workers benchmarks/out/workers.json docs/images/workers.svg
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.jobs.systems import EMBEDDED, PEERS, SERVED

STEPS = {
    "put": "put",
    "pop": "pop",
    "claim and ack": "claim and ack",
    "put, 16 threads": "put by 16 threads",
}
EMBEDDED_PEERS = {"persist-queue": "#8aa39f", "litequeue": "#b9a26a", "huey": "#9a86b0", "diskcache": "#b58378"}
OURS, SAFE, LOST = "#0f766e", "#8aa39f", "#c9b8b4"

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
        (starts, "put to start, 99 %", "put to start, 99%", lambda value: f" {value * 1e3:,.1f} ms"),
    ):
        bars = {
            name: (measured[f"{name}, {what}"], colour)
            for name, colour in colours.items()
            if f"{name}, {what}" in measured
        }
        _draw(axis, title, bars, form)
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


def _say(figure: Figure, text: str) -> None:
    figure.supxlabel(text, fontsize=9, color="#5b666e")


CHARTS: dict[str, Callable[[Mapping[str, float]], Figure]] = {"peers": peers, "workers": workers}


def main(chart: str, results: Path, out: Path) -> None:
    """Draw a chart."""
    # Texts stay texts, and the same numbers give the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.family": "sans-serif"}
    CHARTS[chart](medians(results)).savefig(out, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
