"""Commands on the files of a store: backup, mover, reaper."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from penstock.cli import output
from penstock.cli.app import cli, json_option, say, seconds, store_url
from penstock.contract.kinds import kind_of
from penstock.contract.message import STATES

_FOLDER = click.Path(file_okay=False)


@cli.command(
    epilog="""\b
Examples:
  penstock backup /backups/queues-2026-05-01
  penstock --store data backup "/backups/$(date +%F)" --json
  penstock --store /backups/2026-05-01 doctor
  cp -a /backups/2026-05-01 data        (that is how to restore: a backup is a store)"""
)
@click.argument("dest", type=click.Path())
@click.option("--no-verify", is_flag=True, help="Do not read the copy again.")
@json_option
@click.pass_context
def backup(ctx: click.Context, dest: str, no_verify: bool, as_json: bool) -> None:
    """Copy the store to DEST, while others go on using it.

    DEST is a folder that is empty or not there yet, and becomes a store like any other. It has everything that was
    acknowledged before the command began; of what happens meanwhile, each queue has all up to one moment. The copy
    is made in DEST.partial, synced, read once more from its first byte, and only then gets its name: a DEST that
    is there is whole. If the command is killed, the next one clears up.

    This is for journal stores, and for slate stores in folders, of which the copy is that of one moment (open it
    as slate:DEST), on the machine that has the folder; a server that keeps the store may go on.
    """
    url = store_url(ctx)
    began = time.monotonic()
    with _shown(dest) as progress:
        copy = kind_of(url).backup(url, dest, not no_verify, progress)
    took = time.monotonic() - began
    if as_json:
        output.print_json({"dest": dest, "bytes": copy.bytes, "seconds": round(took, 3), "queues": copy.queues})
        return
    sizes = [name for name in ("files", "bytes") if any(name in each for each in copy.queues)]
    rows = [
        [
            each["queue"],
            *(f"{each[name]:,}" for name in sizes),
            *(f"{each['counts'][state]:,}" for state in STATES),
        ]
        for each in copy.queues
    ]
    columns = [*sizes, *STATES]
    output.print_table(["queue", *columns], rows, right=columns)
    size = output.plural(copy.bytes, "byte")
    click.echo(f"{dest}: {output.plural(len(rows), 'queue')}, {size} in {took:,.1f} s")


@contextmanager
def _shown(dest: str) -> Iterator[Callable[[int, int], object] | None]:
    """A bar for people who watch."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"copying to {dest}", total=None)
        yield lambda copied, total: progress.update(task, completed=copied, total=total)


@cli.command(
    epilog="""\b
Examples:
  penstock mover --source data/delay --destination data/queues --delay 30
  penstock mover --source data/delay --destination data/queues --delay 0 --once"""
)
@click.option("--source", required=True, type=_FOLDER, metavar="DIR", help="The folder delay/ of a store.")
@click.option("--destination", required=True, type=_FOLDER, metavar="DIR", help="Its folder queues/.")
@click.option(
    "--delay", default="0", type=seconds, metavar="SECONDS", show_default=True,
    help="How long files stay that do not say so themselves.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Look once and end.")
@json_option
def mover(source: str, destination: str, delay: float, once: bool, as_json: bool) -> None:
    """Bring messages back whose lease or delay is over, until Ctrl-C or SIGTERM.

    A lease that ends counts as a failed attempt, and after the last one the message goes to failed/. Every process
    that uses a folder store does this for the queues it uses; the mover is for those that nobody uses just now.
    Any number of them may run. In folders that are no store's, files QUEUE:ID become QUEUE/ID after the delay, or
    when the time of their last change has come if that was ahead.
    """
    from penstock.stores.folder import daemons  # here, because no other command needs it

    _run(daemons.mover(source, destination, delay), "moved", once, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock reaper --source data/remove
  penstock reaper --source data/remove --once"""
)
@click.option("--source", required=True, type=_FOLDER, metavar="DIR", help="The folder remove/ of a store.")
@click.option("--once", is_flag=True, help="Look once and end.")
@click.option("--force", is_flag=True, help="Also in another folder of a store: every file in it goes.")
@json_option
def reaper(source: str, once: bool, force: bool, as_json: bool) -> None:
    """Unlink messages that were removed, until Ctrl-C or SIGTERM.

    In a folder store also those that are done and no longer listed. What consumers may still settle again stays
    for five minutes. In a folder that is no store's, every file goes; other folders of a store are refused.
    """
    from penstock.stores.folder import daemons

    _run(daemons.reaper(source, force), "unlinked", once, as_json)


def _run(work: Callable[[], int], what: str, once: bool, as_json: bool) -> None:
    from penstock.stores.folder import daemons

    if once:
        total = work()
    else:
        stopping = threading.Event()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, frame: stopping.set())
        total = daemons.repeat(work, stopping)
    say(as_json, {what: total}, f"{total} {what}")
