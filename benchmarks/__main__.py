"""Measure Penstock against the raw limit of this machine: `python -m benchmarks --help`.

A new cell goes into one of the modules that `all_cells` lists, a new module of cells into that list.
"""

import random
import signal
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import report
from benchmarks.brokers import missing
from benchmarks.harness import RAW_APPEND, RAW_SEQUENTIAL, Cell, Sample, schedule, summarise, take
from benchmarks.probes import machine, probe


def all_cells() -> list[Cell]:
    """Every cell there is."""
    # Imported here because cells bring what they measure along, and --help should not wait for that.
    from benchmarks import (
        backlog,
        folder,
        journal,
        ledger,
        server,
        sharing,
        slate,
        spark,
        spark_slate,
        sqs,
        streams,
        text,
        workers,
    )

    return [
        *ledger.CELLS,
        *journal.CELLS,
        *text.CELLS,
        *folder.CELLS,
        *slate.CELLS,
        *backlog.CELLS,
        *server.CELLS,
        *sharing.CELLS,
        *sqs.CELLS,
        *spark.CELLS,
        *spark_slate.CELLS,
        *streams.CELLS,
        *workers.CELLS,
    ]


EXAMPLES = """\b
Examples:
  python -m benchmarks                               everything, seven rounds
  python -m benchmarks --list                        what there is to measure
  python -m benchmarks --only ledger --rounds 3      a first impression of one part
  python -m benchmarks --only claim --out /data/b    on another disk

Each round visits every cell once, in shuffled order, and probes the raw limit of the disk right before and
after each. Compare ratios, not times: only what was measured within one round saw the same machine.
Ctrl-C ends a run early and reports what was measured so far. Missed targets do not change the exit code,
cells that raise do."""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Visits to each cell.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only cells with this in group or name; repeatable.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("benchmarks/out"),
    show_default=True,
    help="Where results.json, results.png and the scratch folder go.",
)
@click.option("--seed", type=int, help="Visit the cells in the order of an earlier run.")
@click.option("--list", "list_only", is_flag=True, help="List the cells and measure nothing.")
def main(rounds: int, only: Sequence[str], out: Path, seed: int | None, list_only: bool) -> None:
    """Measure Penstock against the raw limit of this machine: table, JSON and plot."""
    cells = select(all_cells(), only)
    if not cells:
        raise click.UsageError(f"no cell has {' or '.join(only)} in group or name; --list shows them all")
    if list_only:
        for cell in cells:
            click.echo(f"{cell.group}: {cell.name} ({cell.unit})")
        return

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that brokers are stopped then too
    for line in missing() if any(cell.group.startswith("server") for cell in cells) else ():
        click.echo(line, err=True)
    if any(cell.group.startswith("workers") for cell in cells):
        from benchmarks import workers

        cells, left_out = workers.prepared(cells)
        for line in (*workers.missing(), *left_out):
            click.echo(line, err=True)
    seed = random.randrange(1_000_000) if seed is None else seed
    click.echo(f"{len(cells)} cells, {rounds} rounds, --seed {seed}", err=True)
    scratch = out / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    samples = visit(schedule(cells, rounds, seed), scratch)

    results = summarise(cells, samples, machine(scratch), rounds, seed)
    # Into a file or a pipe a table need not be as narrow as the terminal that nobody sees.
    console = Console(highlight=False)
    report.show(results, console if console.is_terminal else Console(highlight=False, width=160))
    report.write_json(results, out / "results.json")
    report.write_plot(results, out / "results.png")
    click.echo(f"\n{out / 'results.json'}\n{out / 'results.png'}")
    if any(sample.error for sample in samples):
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


def visit(visits: Sequence[tuple[int, Cell]], scratch: Path) -> list[Sample]:
    """Take every sample, or those until Ctrl-C, behind a progress bar that only a terminal sees."""
    samples = []
    stderr = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=len(visits))
        try:
            for number, cell in visits:
                progress.update(task, description=f"round {number}: {cell.name}")
                samples.append(take(cell, number, scratch, probe))
                progress.advance(task)
        except KeyboardInterrupt:
            stderr.print("interrupted: this is what was measured so far")
    return samples


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
