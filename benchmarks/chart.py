"""The chart of the README, from the results of a run.

python -m benchmarks.chart benchmarks/out/journal.json docs/images/peers.svg
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

STEPS = {
    "put": "put",
    "pop": "pop",
    "claim and ack": "claim and ack",
    "put, 16 threads": "put by 16 threads",
}
PEERS = {"persist-queue": "#8aa39f", "litequeue": "#b9a26a", "huey": "#9a86b0", "diskcache": "#b58378"}
OURS = "#0f766e"


def rates(results: Path) -> dict[str, float]:
    """Operations per second of each cell, by its name."""
    cells = json.loads(results.read_text())["cells"]
    return {cell["name"]: cell["value"]["median"] for cell in cells if cell["value"]}


def draw(measured: dict[str, float], out: Path) -> None:
    """Bars of each step: ours, and every peer that offers it."""
    # Texts stay texts, and the same numbers give the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.family": "sans-serif"}
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


if __name__ == "__main__":
    draw(rates(Path(sys.argv[1])), Path(sys.argv[2]))
