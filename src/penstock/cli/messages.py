"""Commands that move messages: put, publish, peek, claim, pop, ack, fail, release."""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import click

from penstock.cli import output
from penstock.cli.app import (
    Failure,
    cli,
    header_option,
    json_option,
    nothing_there,
    open_store,
    queue_argument,
    say,
    seconds,
)
from penstock.contract.message import STATES, Draft, Message
from penstock.contract.names import DEFAULT
from penstock.contract.settings import MAX_COUNT, MAX_PAYLOAD
from penstock.errors import PenstockError

_BATCH = 1000


@cli.command(
    epilog="""\b
Examples:
  penstock put jobs 'resize cat.jpg' -H kind=image --priority 5
  penstock put jobs @photo.jpg
  date | penstock put jobs -
  penstock put jobs --lines @urls.txt"""
)
@queue_argument(required=False)
@click.argument("payload", required=False, metavar="[PAYLOAD|@FILE|-]")
@click.option("-p", "--priority", type=int, default=0, show_default=True, help="Lower numbers are claimed first.")
@click.option("--delay", type=seconds, default=0, help="Available only after so long.")
@click.option("--retention", type=seconds, help="Dropped after so long; 0 = never.")
@click.option("--key", help="Safe to repeat: within five minutes the same key is put once.")
@click.option(
    "--lines", is_flag=True, help="Put each line of the input as a message of its own, a thousand at a time."
)
@header_option
@json_option
@click.pass_context
def put(
    ctx: click.Context,
    queue: str,
    payload: str | None,
    priority: int,
    delay: float,
    retention: float | None,
    key: str | None,
    lines: bool,
    headers: dict[str, str],
    as_json: bool,
) -> None:
    """Put a message into QUEUE and print its id.

    The payload is the argument, the content of @FILE, or stdin (-, or nothing at all when something is piped in).
    An empty one is given as '' or -.
    """
    if lines and key is not None:
        raise click.UsageError("--key names one message and --lines puts many; leave one of them out")
    body = b"" if lines else read_payload(payload)  # before a store is made
    # Other queues are not in a store that is made now; a file of the text store is its queue.
    make = queue in ("", DEFAULT) or ctx.find_root().params["store"].endswith(".tq")
    handle = open_store(ctx, make=make).queue(queue)
    if lines:
        count = 0
        for batch in output.counted(_batches(read_lines(payload)), f"putting into {handle.name}"):
            try:
                handle.put_many([Draft(line, priority, headers, delay, retention) for line in batch])
            except PenstockError as error:
                raise Failure(
                    error, f"\n{output.plural(count, 'line')} before that were put, none after"
                ) from error
            count += len(batch)
        say(as_json, {"count": count}, f"put {output.plural(count, 'message')} into {handle.name}")
    else:
        put_id = handle.put(body, priority, headers, delay, retention, key)
        say(as_json, {"id": put_id}, put_id)


@cli.command(
    epilog="""\b
Example:
  penstock publish '{"order": 17}' -H type=order"""
)
@click.argument("payload", required=False, metavar="[PAYLOAD|@FILE|-]")
@click.option("-p", "--priority", type=int, default=0, show_default=True, help="Lower numbers are claimed first.")
@click.option("--delay", type=seconds, default=0, help="Available only after so long.")
@click.option("--retention", type=seconds, help="Dropped after so long; 0 = never.")
@header_option
@json_option
@click.pass_context
def publish(
    ctx: click.Context,
    payload: str | None,
    priority: int,
    delay: float,
    retention: float | None,
    headers: dict[str, str],
    as_json: bool,
) -> None:
    """Put a message into every queue that wants it.

    Those are the queues whose filter matches. Prints the id that the copies carry in the header penstock.publish.
    The payload is the argument, the content of @FILE, or stdin (-, or nothing at all when something is piped in).
    An empty one is given as '' or -.
    """
    body = read_payload(payload)  # before a store is made
    published = open_store(ctx, make=True).publish(body, headers, priority, delay, retention)
    say(as_json, {"id": published}, published)


@cli.command(
    epilog="""\b
Examples:
  penstock peek jobs -n 20
  penstock peek jobs -n 20 --state failed"""
)
@queue_argument(required=False)
@click.option(
    "-n", "n", type=click.IntRange(1, MAX_COUNT), default=1, show_default=True, help="How many, at most."
)
@click.option(
    "--state", type=click.Choice(STATES), help="Those in this state, oldest first, instead of the next ones."
)
@click.option("--raw", is_flag=True, help="Write the payloads and nothing else.")
@json_option
@click.pass_context
def peek(ctx: click.Context, queue: str, n: int, state: str | None, raw: bool, as_json: bool) -> None:
    """Show the next messages of QUEUE and leave them where they are.

    Exits with 3 if there is none.
    """
    _raw_or_json(raw, as_json)
    handle = open_store(ctx).queue(queue)
    messages = list(handle.peek(n) if state is None else islice(handle.messages(state), n))
    if raw and messages:
        sys.stdout.buffer.write(b"".join(message.payload for message in messages))
    else:
        _show_messages(ctx, messages, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock claim jobs
  penstock claim jobs -n 10 --lease 300 --wait 20 --json"""
)
@queue_argument(required=False)
@click.option("-n", "n", type=int, default=1, show_default=True, help="How many, at most.")
@click.option("--lease", type=seconds, default=30.0, show_default=True, help="How long to hold them.")
@click.option("--wait", type=seconds, default=0.0, help="How long to wait for the first one.")
@click.option("--consumer", help="Who holds them.  [default: host:pid]")
@json_option
@click.pass_context
def claim(
    ctx: click.Context, queue: str, n: int, lease: float, wait: float, consumer: str | None, as_json: bool
) -> None:
    """Take messages from QUEUE on a lease.

    Settle each with its receipt (ack, fail or release) before the lease ends; otherwise it goes to another
    consumer. Exits with 3 if there was none.
    """
    _show_messages(ctx, open_store(ctx).queue(queue).claim(n, lease, wait, consumer), as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock pop jobs
  penstock pop jobs --raw > photo.jpg"""
)
@queue_argument(required=False)
@click.option("--wait", type=seconds, default=0.0, help="How long to wait for one.")
@click.option("--raw", is_flag=True, help="Write the payload and nothing else.")
@json_option
@click.pass_context
def pop(ctx: click.Context, queue: str, wait: float, raw: bool, as_json: bool) -> None:
    """Take the next message out of QUEUE for good.

    Exits with 3 if there was none. Use claim and ack where a message must survive a crash, or a Ctrl-C, of its
    consumer.
    """
    _raw_or_json(raw, as_json)
    message = open_store(ctx).queue(queue).pop(wait)
    if raw and message is not None:
        sys.stdout.buffer.write(message.payload)
    else:
        _show_messages(ctx, [] if message is None else [message], as_json)


@cli.command(
    epilog="""\b
Example:
  penstock ack jobs 17.3f2a9c55d0e81b46"""
)
@queue_argument()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@json_option
@click.pass_context
def ack(ctx: click.Context, queue: str, receipts: tuple[str, ...], as_json: bool) -> None:
    """Acknowledge messages of QUEUE: their work is done."""
    open_store(ctx).queue(queue).ack(*receipts)
    say(as_json, {"acked": len(receipts)}, f"acknowledged {output.plural(len(receipts), 'message')}")


@cli.command(
    epilog="""\b
Example:
  penstock fail jobs 17.3f2a9c55d0e81b46 --delay 60 --reason 'no route to host'"""
)
@queue_argument()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--delay", type=seconds, default=0.0, help="Try again only after so long.")
@click.option("--reason", help="Why; shown by peek.")
@json_option
@click.pass_context
def fail(
    ctx: click.Context, queue: str, receipts: tuple[str, ...], delay: float, reason: str | None, as_json: bool
) -> None:
    """Report that the work on messages of QUEUE failed.

    They are available again, after the delay, or failed for good if this was their last attempt.
    """
    open_store(ctx).queue(queue).fail(*receipts, delay=delay, reason=reason)
    say(as_json, {"failed": len(receipts)}, f"failed {output.plural(len(receipts), 'attempt')}")


@cli.command(
    epilog="""\b
Example:
  penstock release jobs 17.3f2a9c55d0e81b46"""
)
@queue_argument()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@json_option
@click.pass_context
def release(ctx: click.Context, queue: str, receipts: tuple[str, ...], as_json: bool) -> None:
    """Give messages back to QUEUE unworked."""
    open_store(ctx).queue(queue).release(*receipts)
    say(as_json, {"released": len(receipts)}, f"released {output.plural(len(receipts), 'message')}")


def _raw_or_json(raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise click.UsageError("--raw writes bare payloads and --json wraps them; leave one of them out")


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    lines = iter(lines)
    while batch := list(islice(lines, _BATCH)):
        yield batch


def _show_messages(ctx: click.Context, messages: list[Message], as_json: bool) -> None:
    if as_json:
        output.print_json([output.message_as_json(message) for message in messages])
    elif messages:
        output.print_messages(messages)
    if not messages:
        nothing_there(ctx)


def read_payload(argument: str | None) -> bytes:
    """The payload that an argument means; without one, what is piped in.

    Nothing piped in is a mistake, as of a cron job: who wants an empty payload gives '' or -.
    """
    if argument is None:
        payload = b"" if sys.stdin is None or sys.stdin.isatty() else _read_stdin()
        if not payload:
            raise click.UsageError("no payload: give it as an argument ('' is empty), as @FILE, or pipe it in")
        return payload
    if argument == "-":
        return _read_stdin()
    if argument.startswith("@"):
        with _open(argument) as file:
            return file.read(MAX_PAYLOAD + 1)
    return os.fsencode(argument)  # the very bytes that were typed


def read_lines(argument: str | None) -> Iterator[bytes]:
    """The lines of a file (@file) or of stdin, each without its newline."""
    if argument not in (None, "-") and not argument.startswith("@"):
        raise click.UsageError("--lines reads a file (@FILE) or stdin (-), not the payload argument")
    if argument in (None, "-"):
        check_stdin()
        yield from (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        return
    with _open(argument) as file:
        yield from (line.removesuffix(b"\n") for line in file)


def check_stdin() -> None:
    """Refuse to read from a stdin that the caller has closed."""
    if sys.stdin is None:
        raise click.UsageError("stdin is closed: pipe something in, or give it as an argument")


def _read_stdin() -> bytes:
    check_stdin()
    return sys.stdin.buffer.read(MAX_PAYLOAD + 1)  # enough to be refused


def _open(argument: str) -> BinaryIO:
    try:
        return Path(argument[1:]).open("rb")
    except OSError as error:
        raise click.UsageError(f"cannot read {argument[1:]!r}: {error.strerror}") from error
