"""Commands on the files of a store: backup, mover, reaper."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

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
@click.option("--no-verify", is_flag=True, help="Do not read the copy back.")
@json_option
@click.pass_context
def backup(ctx: click.Context, dest: str, no_verify: bool, as_json: bool) -> None:
    """Copy the store to DEST, while other processes use it.

    DEST is a new or an empty folder, and becomes a store like any other. It contains every operation that was
    acknowledged before the command began. Of operations during the copy, each queue contains all up to one moment.
    The copy is written to DEST.partial, synced, read back from its first byte, and renamed to DEST: a folder DEST
    is always complete. The next backup removes what a killed one left.

    For journal stores, and for slate stores in folders (a snapshot of one moment; open it as slate:DEST), on the
    machine that has the folder. A server of the store can keep running.
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
    """A progress bar on stderr: a function that takes bytes copied and bytes in all; None without a terminal."""
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with output.progress(f"copying to {dest}", *columns) as bar:
        yield None if bar is None else lambda copied, total: bar.update(completed=copied, total=total)


@cli.command(
    epilog="""\b
Examples:
  penstock mover --source data/delay --destination data/queues --delay 30
  penstock mover --source data/delay --destination data/queues --delay 0 --once"""
)
@click.option("--source", required=True, type=_FOLDER, metavar="DIR", help="The folder delay/ of a store.")
@click.option("--destination", required=True, type=_FOLDER, metavar="DIR", help="Its folder queues/.")
@click.option(
    "--delay", default=0, type=seconds, show_default=True,
    help="In folders that belong to no store: how long a file stays.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Move what is due now, and end.")
@json_option
def mover(source: str, destination: str, delay: float, once: bool, as_json: bool) -> None:
    """Move messages whose lease or delay is over back to their queues, until Ctrl-C or SIGTERM.

    A lease that ends counts as a failed attempt; after the last attempt the message goes to failed/. Every process
    that uses a folder store does this for the queues it uses. The mover is for queues that no process uses at the
    moment. Several movers can run at once.

    In folders that belong to no store, a file QUEUE:ID becomes QUEUE/ID after --delay, or at its modification time
    if that is in the future.
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
@click.option("--once", is_flag=True, help="Unlink what is due now, and end.")
@click.option("--force", is_flag=True, help="Accept another folder of a store: every file in it is deleted.")
@json_option
def reaper(source: str, once: bool, force: bool, as_json: bool) -> None:
    """Unlink the files of removed messages, until Ctrl-C or SIGTERM.

    In a folder store also those of done messages that the queue no longer lists (keep_done). A file stays for five
    minutes, in which a consumer may repeat its ack. In a folder that belongs to no store every file is deleted;
    other folders of a store are refused.
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
