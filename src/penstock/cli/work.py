"""The command work: a worker that runs a program for each message of a queue."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

import click
from rich.progress import TimeElapsedColumn

import penstock
from penstock.cli import output
from penstock.cli.app import cli, json_option, open_store, queue_argument, seconds
from penstock.contract.message import Message
from penstock.workers import Result
from penstock.workers.commands import Commands
from penstock.workers.options import MAX_CONCURRENCY, usual_delay


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
    help="Number of commands that run at once.",
)  # fmt: skip
@click.option(
    "--lease", type=seconds,
    help="Extended while a command runs. If this process crashes, other consumers get its messages when it ends.  "
    "[default: the queue's lease]",
)  # fmt: skip
@click.option(
    "--backoff",
    type=seconds,
    help="Time until a retry.  [default: the queue's backoff, else 1, 2, 4, ... up to 300]",
)
@click.option("--timeout", type=seconds, help="End a command that runs longer, and fail its message.")
@click.option(
    "--grace", type=seconds, default=8, show_default=True, help="Time for commands to finish after a stop."
)
@click.option("--until-empty", is_flag=True, help="End when no message is available or delayed.")
@json_option
@click.pass_context
def work(
    ctx: click.Context,
    queue: str,
    command: tuple[str, ...],
    concurrency: int,
    lease: float | None,
    backoff: float | None,
    timeout: float | None,
    grace: float,
    until_empty: bool,
    as_json: bool,
) -> None:
    """Run COMMAND for each message of QUEUE, until Ctrl-C or SIGTERM.

    The command reads the payload from stdin. Its environment has PENSTOCK_ID, PENSTOCK_QUEUE, PENSTOCK_ATTEMPTS,
    PENSTOCK_PRIORITY, PENSTOCK_CREATED_AT, PENSTOCK_RECEIPT, PENSTOCK_STORE, PENSTOCK_GROUP for a message that has
    one, and PENSTOCK_HEADER_NAME for each header (the name in capitals, with _ for all but letters and digits).
    TRACEPARENT is the trace of a message that was put by a traced program.

    \b
    Its exit code decides:
      0       the message is acknowledged
      75      not now: the message is held for --backoff, then released; it has not failed
      others  the message fails, with the code and the last line of stderr as the reason; it is
              tried again after --backoff until the queue's max_attempts are used up

    After Ctrl-C or SIGTERM no more messages are claimed, and running commands have --grace seconds to finish; a
    second signal ends them at once. Commands that still run are killed with their child processes, and their
    messages released.

    With --json, stdout has one line for each message and one for the totals; the commands' own output goes to
    stderr.
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}")
    store = open_store(ctx)
    handle = store.queue(queue)
    settings = handle.settings
    stop = threading.Event()

    def pause(message: Message) -> float:
        nonlocal settings
        if backoff is not None:
            return backoff
        with suppress(penstock.PenstockError):
            settings = handle.settings
        return usual_delay(message, settings)

    commands = Commands(
        command,
        store.url,
        stop,
        pause,
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
    """Outcomes of messages as they happen: JSON lines on stdout, or failures and a progress bar on stderr."""

    def __init__(self, as_json: bool, queue: str) -> None:
        self._as_json = as_json
        self._queue = queue
        self._lock = threading.Lock()
        self._counts = {"ack": 0, "fail": 0, "release": 0, "lost": 0}
        self._bar: output.Bar | None = None

    @contextmanager
    def shown(self) -> Iterator["_Reporting"]:
        """Show a progress bar, unless --json was given."""
        what = f"working on {self._queue}"
        with output.progress(what, TimeElapsedColumn(), wanted=not self._as_json) as self._bar:
            yield self

    def result(self, result: Result) -> None:
        """Report the outcome of one message."""
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
            if self._bar is not None:
                counts = ", ".join(f"{count:,} {name}" for name, count in self._counts.items() if count)
                self._bar.update(description=f"working on {self._queue}: {counts}")


def _print_line(value: dict[str, object]) -> None:
    click.echo(json.dumps(value))
    if sys.stdout is not None:
        sys.stdout.flush()  # a program at the other end of the pipe acts on each line
