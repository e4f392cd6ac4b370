"""The command that works: work."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import penstock
from penstock.cli import output
from penstock.cli.app import cli, json_option, open_store, queue_argument, seconds
from penstock.workers import Result, exponential
from penstock.workers.commands import NOT_NOW, Commands
from penstock.workers.options import MAX_CONCURRENCY


@cli.command(
    epilog="""\b
Examples:
  penstock work thumbnails -- convert - -resize 200x out.png
  penstock work mails -c 2 -- sh -c 'sendmail "$PENSTOCK_HEADER_TO"'
  penstock work jobs --until-empty --backoff 5 -- ./handle.py
  penstock --store http://queue:8390 work jobs --lease 300 -- ./handle.py
  penstock work jobs --json -- ./handle.py > results.jsonl"""
)
@queue_argument()
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, MAX_CONCURRENCY), default=8, show_default=True,
    help="How many commands run at once.",
)  # fmt: skip
@click.option(
    "--lease", type=seconds, default=30, show_default=True,
    help="Extended while a command runs; after a crash of this process others get its messages when it ends.",
)  # fmt: skip
@click.option("--backoff", type=seconds, help="Seconds until a retry.  [default: 1, 2, 4, ... up to 300]")
@click.option("--timeout", type=seconds, help="End a command that runs longer, and fail its message.")
@click.option(
    "--grace", type=seconds, default=8, show_default=True, help="Seconds that commands get to finish on a stop."
)
@click.option("--until-empty", is_flag=True, help="End once no message waits, available or delayed.")
@json_option
@click.pass_context
def work(
    ctx: click.Context,
    queue: str,
    command: tuple[str, ...],
    concurrency: int,
    lease: float,
    backoff: float | None,
    timeout: float | None,
    grace: float,
    until_empty: bool,
    as_json: bool,
) -> None:
    """Run COMMAND for each message of QUEUE, until Ctrl-C or SIGTERM.

    The payload is on its stdin. Its environment has PENSTOCK_ID, PENSTOCK_QUEUE, PENSTOCK_ATTEMPTS,
    PENSTOCK_PRIORITY, PENSTOCK_CREATED_AT, PENSTOCK_RECEIPT, PENSTOCK_STORE, and PENSTOCK_HEADER_NAME for each
    header: in capitals, with _ for all but letters and digits.

    \b
    Its exit code decides:
      0       the message is acknowledged
      75      not now: kept for the time of --backoff, then released; that is no fail
      others  the message fails, with the code and the last line of stderr as the reason; it is
              tried again after --backoff until the queue's max_attempts are used up

    After a Ctrl-C or SIGTERM nothing more is claimed, and commands have --grace seconds to finish; a second one
    does not wait. What still runs then is ended, with all that it started, and its messages are released.

    With --json, stdout has a line for each message that ended and one with the sum; what commands print goes to
    stderr.
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}")
    store = open_store(ctx)
    handle = store.queue(queue)
    stop = threading.Event()
    commands = Commands(
        command,
        store.url,
        stop,
        exponential if backoff is None else lambda message: backoff,
        timeout,
        2 if as_json else None,
        lambda line: click.echo(line, nl=False, err=True),
    )
    began = time.monotonic()
    with _Reporting(as_json, handle.name).shown() as report:
        try:
            worked = penstock.work(
                handle,
                commands,
                concurrency,
                lease=lease,
                backoff=backoff,
                grace=grace,
                stop=stop,
                until_empty=until_empty,
                on_drop=commands.drop,
                report=report.result,
            )
        finally:
            commands.close()
    took = time.monotonic() - began
    if as_json:
        _print_line({"queue": handle.name, **asdict(worked), "seconds": round(took, 3)})
        return
    click.echo(
        f"{handle.name}: {worked.acked:,} acknowledged, {output.plural(worked.failed, 'failed attempt')}, "
        f"{worked.released:,} released, {worked.lost:,} lost in {took:,.1f} s"
    )


class _Reporting:
    """Shows how messages end while they do."""

    def __init__(self, as_json: bool, queue: str) -> None:
        self._as_json = as_json
        self._queue = queue
        self._lock = threading.Lock()
        self._counts = {"ack": 0, "fail": 0, "release": 0, "lost": 0}
        self._progress: Progress | None = None

    @contextmanager
    def shown(self) -> Iterator["_Reporting"]:
        """While it is on the screen of a person who watches."""
        if sys.stderr is None or not sys.stderr.isatty() or self._as_json:
            yield self
            return
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as self._progress:
            self._task = self._progress.add_task(f"working on {self._queue}", total=None)
            yield self

    def result(self, result: Result) -> None:
        """The work on a message has ended."""
        with self._lock:
            self._counts[result.outcome] += 1
            message = result.message
            if self._as_json:
                line = {"id": message.id, "attempts": message.attempts, "outcome": result.outcome}
                _print_line({**line, "reason": result.reason, "seconds": round(result.seconds, 3)})
                return
            if result.outcome == "fail":
                text = f"message {message.id}, attempt {message.attempts}: {result.reason}"
                click.echo(output.printable(text), err=True)
            if self._progress is not None:
                counts = ", ".join(f"{count:,} {name}" for name, count in self._counts.items() if count)
                self._progress.update(self._task, description=f"working on {self._queue}: {counts}")


def _print_line(value: dict[str, object]) -> None:
    click.echo(json.dumps(value))
    if sys.stdout is not None:
        sys.stdout.flush()  # who reads it waits for whole lines


__all__ = ["NOT_NOW", "work"]
