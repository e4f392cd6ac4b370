"""Cells, the order in which rounds visit them, and the arithmetic that compares them.

Absolute times mean little on a shared machine. Therefore every round visits every cell once, in an order of its
own; the raw limit of the disk is probed right before and right after each cell; and the result is the median, over
the rounds, of a ratio that was formed within one round.
"""

import atexit
import gc
import math
import os
import random
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.probes import Machine, Raw, probe

RAW_APPEND = "raw append"
RAW_SEQUENTIAL = "raw sequential"

Of = Literal["penstock", "peer", "limit"]


@dataclass(frozen=True)
class Cell:
    """One measurement.

    `measure` is given an empty folder on a real disk and returns the value, in `unit`; it does its own
    timing, so that set-up goes untimed. `against` maps what the value is divided by to the target of that
    ratio (None: report it only). That is another cell of the same unit, by name, or a raw limit:

        unit     / RAW_APPEND                       / RAW_SEQUENTIAL
        ops/s    appends per second                 bytes per second; needs bytes_per_op
        MB/s                                        bytes per second
        s        how many appends take that long    the time that bytes_per_op bytes take

    `target` is for the value itself. Targets are minima, or with better="lower" maxima. `of` says whose value it
    is: Penstock's, that of a peer (what people use today), or a limit (the bare work, without a queue's promises).
    """

    name: str
    group: str
    unit: str
    measure: Callable[[Path], float]
    better: Literal["higher", "lower"]
    against: Mapping[str, float | None] = field(default_factory=dict)
    target: float | None = None
    bytes_per_op: float | None = None
    of: Of = "penstock"

    def __post_init__(self) -> None:
        # A comparison without meaning must fail when it is written, not after an hour of rounds.
        if RAW_APPEND in self.against and self.unit not in ("ops/s", "s"):
            raise ValueError(f"{self.name!r}: {self.unit} cannot be compared with {RAW_APPEND}; use ops/s or s")
        if RAW_SEQUENTIAL in self.against and self.unit not in ("ops/s", "s", "MB/s"):
            raise ValueError(f"{self.name!r}: {self.unit} cannot be compared with {RAW_SEQUENTIAL}; use MB/s")
        if RAW_SEQUENTIAL in self.against and self.unit != "MB/s" and not self.bytes_per_op:
            raise ValueError(f"{self.name!r}: {self.unit} against {RAW_SEQUENTIAL} needs bytes_per_op")
        if not all(target is None or target > 0 for target in (self.target, *self.against.values())):
            raise ValueError(f"{self.name!r}: a target must be more than 0")


@dataclass(frozen=True)
class Sample:
    """One visit to one cell: a value between two probes, or the error that took its place."""

    cell: str
    round: int
    seconds: float
    value: float | None = None
    before: Raw | None = None
    after: Raw | None = None
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True)
class Spread:
    """Median and extremes of samples."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A cell's ratio to something else, or its own value, held against a target."""

    against: str | None
    target: float | None
    per_round: list[float]
    median: float | None
    reached: bool | None


@dataclass(frozen=True)
class Result:
    """The result of one cell."""

    name: str
    group: str
    unit: str
    better: str
    bytes_per_op: float | None
    of: Of
    value: Spread | None
    comparisons: list[Comparison]
    samples: list[Sample]


@dataclass(frozen=True)
class Results:
    """The results of a run."""

    machine: Machine
    date: str
    rounds: int
    seed: int
    raw_append: Spread | None
    raw_sequential: Spread | None
    cells: list[Result]


def kept_folder(prefix: str, scratch: Path) -> Path:
    """A new folder for what several cells or rounds share, removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def schedule(cells: Sequence[Cell], rounds: int, seed: int) -> list[tuple[int, Cell]]:
    """Every round's cells in visiting order; the same seed gives the same order."""
    shuffler = random.Random(seed)
    return [(number, cell) for number in range(1, rounds + 1) for cell in shuffler.sample(cells, len(cells))]


def take(cell: Cell, number: int, scratch: Path, probe: Callable[[Path], Raw] = probe) -> Sample:
    """Visit one cell in round `number`. An error becomes part of the sample, so that the run goes on."""
    gc.collect()  # the garbage of the cell before is not this cell's cost
    os.sync()  # nor is what it has left to the disk, the files that were removed among it
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as temporary:
            parent = Path(temporary)
            folder = parent / "cell"
            folder.mkdir()
            before = probe(parent)
            value = cell.measure(folder)
            after = probe(parent)
        if not 0 < value < math.inf:
            raise ValueError(f"measured {value} {cell.unit}, which is no positive number")
    except Exception as error:
        message = "".join(traceback.format_exception_only(error)).strip()
        seconds = time.perf_counter() - started
        return Sample(cell.name, number, seconds, error=message, traceback=traceback.format_exc())
    return Sample(cell.name, number, time.perf_counter() - started, value, before, after)


def ratios(cell: Cell, against: str, samples: Sequence[Sample]) -> list[float]:
    """The ratio of each round in which both sides were measured."""
    values = {(sample.cell, sample.round): sample.value for sample in samples}
    found = []
    for sample in samples:
        if sample.cell != cell.name or sample.value is None:
            continue
        if against in (RAW_APPEND, RAW_SEQUENTIAL):
            assert sample.before is not None  # a value always comes with its probes
            assert sample.after is not None
            found.append(raw_ratio(cell, against, sample.value, sample.before, sample.after))
        elif other := values.get((against, sample.round)):
            found.append(sample.value / other)
    return found


def raw_ratio(cell: Cell, against: str, value: float, before: Raw, after: Raw) -> float:
    """A value over the mean of the probes around it; for seconds, over the time the disk alone would take."""
    if against == RAW_APPEND:
        limit = statistics.mean((before.append, after.append))
    else:
        limit = statistics.mean((before.sequential, after.sequential))
        size = 1e6 if cell.unit == "MB/s" else cell.bytes_per_op
        assert size is not None  # the cell has checked that
        limit /= size
    return value * limit if cell.unit == "s" else value / limit


def summarise(
    cells: Sequence[Cell], samples: Sequence[Sample], machine: Machine, rounds: int, seed: int
) -> Results:
    """Medians, ratios and verdicts of the samples; nothing is measured here."""
    raws = [raw for sample in samples for raw in (sample.before, sample.after) if raw]
    return Results(
        machine,
        time.strftime("%Y-%m-%d", time.gmtime()),
        rounds,
        seed,
        spread(raw.append for raw in raws),
        spread(raw.sequential for raw in raws),
        [_result(cell, samples) for cell in cells],
    )


def _result(cell: Cell, samples: Sequence[Sample]) -> Result:
    own = [sample for sample in samples if sample.cell == cell.name]
    values = [sample.value for sample in own if sample.value is not None]
    comparisons = [
        _compare(cell, against, target, ratios(cell, against, samples)) for against, target in cell.against.items()
    ]
    if cell.target is not None:
        comparisons.append(_compare(cell, None, cell.target, values))
    return Result(
        cell.name, cell.group, cell.unit, cell.better, cell.bytes_per_op, cell.of, spread(values), comparisons, own
    )


def _compare(cell: Cell, against: str | None, target: float | None, per_round: list[float]) -> Comparison:
    median = statistics.median(per_round) if per_round else None
    reached = None
    if median is not None and target is not None:
        reached = median >= target if cell.better == "higher" else median <= target
    return Comparison(against, target, per_round, median, reached)


def spread(values: Iterable[float]) -> Spread | None:
    """Median and extremes; None of nothing."""
    known = list(values)
    return Spread(statistics.median(known), min(known), max(known)) if known else None
