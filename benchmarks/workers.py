"""Jobs that do nothing, put by one process and worked off by workers, eight at a time: Penstock and its peers.

Each job is put by itself, or by the call for many if the system has one. A rate is that from the first put to the
start of the last job. A latency is that from before a put to the start of its job, at a rate at which most workers
wait. Penstock is measured with a producer and a worker that share a folder, and with both as clients of its
server. What a system promises about the jobs is in `jobs/systems.py`: what is fast may not be durable.

python -m benchmarks.workers benchmarks/out/workers.json    the table of docs/benchmarks.md
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import RAW_APPEND, Cell, Of
from benchmarks.jobs.environment import REQUIREMENTS, set_up
from benchmarks.jobs.run import Run
from benchmarks.jobs.systems import EMBEDDED, PEERS, SERVED, System
from benchmarks.report import number, quantity

SURVIVES = "survives power loss"
RATE, PACED = 200, 600  # jobs a second of which the latency is taken, and how many
TIMES = 10  # as many jobs a second as the best of them

Measure = Callable[[Path], float]
Targets = Mapping[str, float | None]
RATES, BULK, LATENCY = (
    "workers, jobs put one by one",
    "workers, jobs put in batches",
    f"workers, {RATE} jobs a second",
)


def _jobs(system: System, how: str, jobs: int) -> Measure:
    def measure(folder: Path) -> float:
        with Run(system, folder, jobs) as run:
            put, started = zip(*run.finish(run.put(how, jobs)), strict=True)
        return float(jobs / (max(started) - min(put)) * 1e9)

    return measure


class _Latency:
    """Seconds from put to start, by percentile: in each round of the same jobs, put at the first visit."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._rounds: dict[int, list[float]] = {}

    def at(self, percent: int) -> Measure:
        """What measures this percentile."""
        visits = 0

        def measure(folder: Path) -> float:
            nonlocal visits
            visits += 1
            if visits not in self._rounds:
                self._rounds[visits] = self._times(folder)
            return statistics.quantiles(self._rounds[visits], n=100)[percent - 1]

        return measure

    def _times(self, folder: Path) -> list[float]:
        with Run(self._system, folder, PACED) as run:
            return [(started - put) / 1e9 for put, started in run.finish(run.put("pace", PACED, RATE))]


ONE, MANY = "jobs", "jobs in batches"  # what cells are called, after their system


def _start(percent: int) -> str:
    return f"put to start, {percent}%"


def _measured(system: System, of: Of, against: Mapping[str, Targets]) -> Iterator[Cell]:
    """The cells of a system, with what they are compared with."""

    def cell(what: str, group: str, unit: str, better: Literal["higher", "lower"], measure: Measure) -> Cell:
        return Cell(f"{system.name}, {what}", group, unit, measure, better, against.get(what, {}), of=of)

    latency = _Latency(system)
    yield cell(ONE, RATES, "ops/s", "higher", _jobs(system, "one", system.library.jobs))
    if system.library.batches:
        yield cell(MANY, BULK, "ops/s", "higher", _jobs(system, "many", system.library.batches))
    for percent in (50, 99):
        yield cell(_start(percent), LATENCY, "s", "lower", latency.at(percent))


def _cells() -> Iterator[Cell]:
    peers = [peer for peer in PEERS if not peer.missing()]
    best = {peer: MANY if peer.library.batches else ONE for peer in peers}
    against: dict[str, Targets] = {
        ONE: {RAW_APPEND: None, **{f"{peer.name}, {ONE}": TIMES for peer in peers}},
        MANY: {RAW_APPEND: None, **{f"{peer.name}, {what}": TIMES for peer, what in best.items()}},
        _start(50): {f"{peer.name}, {_start(50)}": None for peer in peers},
        _start(99): {f"{peer.name}, {_start(99)}": 1 for peer in peers},
    }
    for ours in (EMBEDDED, SERVED):
        yield from _measured(ours, "penstock", against)
    for peer in peers:
        yield from _measured(peer, "peer", {})


CELLS = list(_cells())


def missing() -> list[str]:
    """A line for each peer whose server is not installed."""
    return [f"not compared with {peer.name}: {why}" for peer in PEERS if (why := peer.missing())]


def prepared(cells: Sequence[Cell], requirements: Path = REQUIREMENTS) -> tuple[list[Cell], list[str]]:
    """The cells whose programs pip could install, and a line for each peer that is left out."""
    failed = set_up(requirements)
    absent = {
        peer.name: failed.keys() & peer.library.packages for peer in PEERS if failed.keys() & peer.library.packages
    }
    gone = {cell.name for cell in CELLS if cell.name.startswith(tuple(f"{name}, " for name in absent))}
    left = [
        replace(cell, against={name: target for name, target in cell.against.items() if name not in gone})
        for cell in cells
        if cell.name not in gone
    ]
    return left, [f"not compared with {name}: {failed[min(why)]}" for name, why in absent.items()]


def table(results: Path) -> str:
    """The systems of a run as Markdown: rates, how many times those Penstock's are, and what they promise."""
    cells = {cell["name"]: cell for cell in json.loads(results.read_text())["cells"]}
    heads = ("system", "jobs/s", "Penstock", "in batches", "Penstock", "put to start, 50 % / 99 %", SURVIVES)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for system in (EMBEDDED, SERVED, *PEERS):
        one, many, half, most = (f"{system.name}, {what}" for what in (ONE, MANY, _start(50), _start(99)))
        rates = [_value(cells, one), _times(cells, ONE, one), _value(cells, many)]
        rates.append(_times(cells, MANY, many) or _times(cells, MANY, one))
        starts = [value for value in (_value(cells, half), _value(cells, most)) if value]
        if any(rates) or starts:
            lines.append(f"| {' | '.join([system.name, *rates, ' / '.join(starts), system.survives])} |")
    return "\n".join(lines)


def _value(cells: Mapping[str, Any], name: str) -> str:
    cell = cells.get(name)
    return quantity(cell["value"]["median"], cell["unit"]).removesuffix(" ops/s") if cell and cell["value"] else ""


def _times(cells: Mapping[str, Any], what: str, name: str) -> str:
    """How many times as fast Penstock is, within rounds."""
    ours = cells.get(f"{EMBEDDED.name}, {what}", {"comparisons": []})
    found = [each["median"] for each in ours["comparisons"] if each["against"] == name and each["median"]]
    return f"{number(found[0])} x" if found else ""


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
