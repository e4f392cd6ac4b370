"""The daemons of a folder store: mover, reaper."""

import signal
import threading
from collections.abc import Callable

import click

from penstock.cli.app import cli, json_option, say, seconds

_FOLDER = click.Path(file_okay=False)


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
