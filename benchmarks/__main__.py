"""Measure Penstock against the raw limit of this machine: `python -m benchmarks --help`.

A new cell goes into a module that `PARTS` names, a new module of cells into `PARTS`.
"""

import importlib
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import page, report, workers
from benchmarks.brokers import missing
from benchmarks.harness import RAW_APPEND, RAW_SEQUENTIAL, Cell, Sample, schedule, summarise, take
from benchmarks.probes import machine, probe

# Each part is a run of its own, in the order of the summary page; cells are compared within their part.
PARTS = {
    "rules": ("ledger",),
    "journal": ("journal", "backlog"),
    "text": ("text",),
    "folder": ("folder",),
    "slate": ("slate",),
    "server": ("server",),
    "sharing": ("sharing",),
    "sqs": ("sqs",),
    "spark": ("spark",),
    "routing": ("spark_slate",),
    "streams": ("streams",),
    "workers": ("workers",),
    "growth": ("growth",),
}


def cells_of(part: str) -> list[Cell]:
    """The cells of a part."""
    # Imported here because cells bring what they measure along, and --help should not wait for that.
    modules = [importlib.import_module(f"benchmarks.{module}") for module in PARTS[part]]
    return [cell for module in modules for cell in module.CELLS]


EXAMPLES = """\b
Examples:
  python -m benchmarks                               every part, up to ten minutes each
  python -m benchmarks --list                        what there is to measure
  python -m benchmarks rules journal --rounds 3      a first impression of two parts
  python -m benchmarks --only claim --out /data/b    on another disk

Each round visits every cell of a part once, in shuffled order, and probes the raw limit of the disk right before
and after each. Compare ratios, not times: only what was measured within one round saw the same machine. A part
whose minutes are over ends after its first round, and its last round may be incomplete.
Each part leaves PART.json and PART.svg, and index.html shows all of them, those of earlier runs too.
Ctrl-C ends a run early and reports what was measured so far. Missed targets do not change the exit code,
cells that raise do."""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)), metavar="[PART]...")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Visits to each cell.")
@click.option("--minutes", type=float, default=10, show_default=True, help="How long a part may take.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only cells with this in group or name; repeatable.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path, resolve_path=True),  # brokers run in folders of their own
    default=Path("benchmarks/out"),
    show_default=True,
    help="Where results, plots, the page and the scratch folder go.",
)
@click.option("--seed", type=int, help="Visit the cells in the order of an earlier run.")
@click.option("--list", "list_only", is_flag=True, help="List the cells and measure nothing.")
def main(
    parts: Sequence[str],
    rounds: int,
    minutes: float,
    only: Sequence[str],
    out: Path,
    seed: int | None,
    list_only: bool,
) -> None:
    """Measure Penstock against the raw limit of this machine and against peers: tables, JSON, plots and a page.

    Without a PART it measures all of them.
    """
    chosen = {part: select(cells_of(part), only) for part in parts or PARTS}
    chosen = {part: cells for part, cells in chosen.items() if cells}
    if not chosen:
        raise click.UsageError(f"no cell has {' or '.join(only)} in group or name; --list shows them all")
    if list_only:
        for part, cells in chosen.items():
            for cell in cells:
                click.echo(f"{part}: {cell.group}: {cell.name} ({cell.unit})")
        return

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that brokers are stopped then too
    for line in missing() if "server" in chosen else ():
        click.echo(line, err=True)
    if "workers" in chosen:
        chosen["workers"], left_out = workers.prepared(chosen["workers"])
        for line in (*workers.missing(), *left_out):
            click.echo(line, err=True)
    seed = random.randrange(1_000_000) if seed is None else seed
    scratch = out / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    # Into a file or a pipe a table need not be as narrow as the terminal that nobody sees.
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=160)
    failed = interrupted = False
    for part, cells in chosen.items():
        click.echo(f"{part}: {len(cells)} cells, {rounds} rounds, {minutes:g} minutes, --seed {seed}", err=True)
        samples, interrupted = visit(schedule(cells, rounds, seed), scratch, minutes * 60)
        results = summarise(cells, samples, machine(scratch), rounds, seed)
        report.show(results, console)
        report.write_json(results, out / f"{part}.json")
        report.write_plot(results, out / f"{part}.svg")
        if part == "workers":
            click.echo(f"\n{workers.table(out / 'workers.json')}")
        failed = failed or any(sample.error for sample in samples)
        if interrupted:
            break
    page.write(out, PARTS)
    click.echo(f"\n{out / 'index.html'}")
    if failed:
        raise SystemExit(1)


def select(cells: Sequence[Cell], only: Sequence[str] = ()) -> list[Cell]:
    """The cells with any of these texts in group or name, and all that they are compared with."""
    named = {cell.name: cell for cell in cells}
    if len(named) < len(cells):
        raise ValueError("two cells have the same name; give each its own, comparisons go by name")
    wanted = [cell for cell in cells if not only or any(_matches(cell, text) for text in only)]
    for cell in wanted:  # grows while it is walked, so that what a compared cell needs comes too
        for name in cell.against.keys() - {RAW_APPEND, RAW_SEQUENTIAL}:
            if name not in named or named[name].unit != cell.unit:
                raise ValueError(f"{cell.name!r} is compared with {name!r}, which is no cell in {cell.unit}")
            if named[name] not in wanted:
                wanted.append(named[name])
    return [cell for cell in cells if cell in wanted]


def _matches(cell: Cell, text: str) -> bool:
    return text.casefold() in cell.group.casefold() or text.casefold() in cell.name.casefold()


def visit(visits: Sequence[tuple[int, Cell]], scratch: Path, seconds: float) -> tuple[list[Sample], bool]:
    """Take every sample, or those until Ctrl-C, behind a progress bar that only a terminal sees.

    From the second round on, a visit that would not end in time, going by the one before, ends the part. The
    second value says whether Ctrl-C came.
    """
    samples: list[Sample] = []
    took: dict[str, float] = {}
    end = time.monotonic() + seconds
    stderr = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=len(visits))
        try:
            for number, cell in visits:
                if number > 1 and time.monotonic() + took[cell.name] > end:
                    break
                progress.update(task, description=f"round {number}: {cell.name}")
                samples.append(take(cell, number, scratch, probe))
                took[cell.name] = samples[-1].seconds
                progress.advance(task)
        except KeyboardInterrupt:
            stderr.print("interrupted: this is what was measured so far")
            return samples, True
    return samples, False


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
