"""Commands on messages: put, publish, peek, claim, pop, ack, fail, release."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import click

from penstock.cli import output
from penstock.cli.app import (
    Command,
    Failure,
    cli,
    json_option,
    nothing_there,
    open_store,
    pairs_option,
    queue_argument,
    say,
    seconds,
)
from penstock.cli.times import relative
from penstock.contract.kinds import kind_of
from penstock.contract.message import MESSAGE_FIELDS, STATES, Draft, Message, State
from penstock.contract.names import DEFAULT
from penstock.contract.operations import PAGE, Messages
from penstock.contract.settings import MAX_COUNT, MAX_PAYLOAD
from penstock.contract.store import Queue, Store
from penstock.errors import PenstockError
from penstock.system.clock import SystemClock

_WITHOUT_PAYLOAD = tuple(name for name in MESSAGE_FIELDS if name != "payload")
_BATCH = 1000  # lines put in one step
_receipts_argument = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")


def _draft_options(command: Command) -> Command:
    """The payload argument and the options that put and publish have in common."""
    for option in (
        json_option,
        pairs_option("-H", "--header", "headers", metavar="NAME=VALUE", help="A header"),
        click.option("--retention", type=seconds, help="Drop the message after this time; 0 = never."),
        click.option("--delay", type=seconds, help="Make the message available after this time."),
        click.option(
            "-p", "--priority", type=int, default=0, show_default=True, help="Lower numbers are claimed first."
        ),
        click.argument("payload", required=False, metavar="[PAYLOAD|@FILE|-]"),
    ):
        command = option(command)
    return command


@cli.command(
    epilog="""\b
Examples:
  penstock put jobs 'resize cat.jpg' -H kind=image --priority 5
  penstock put jobs @photo.jpg
  date | penstock put jobs -
  penstock put jobs 'charge order 17' --group customer-4
  penstock put jobs --lines @urls.txt"""
)
@queue_argument(required=False)
@click.option("--key", help="Make a repeated put safe: within five minutes a key is put once.")
@click.option("--group", help="Hand out the messages of a group one at a time, in this order.")
@click.option("--lines", is_flag=True, help="Put each line of the input as a message, a thousand at a time.")
@_draft_options
@click.pass_context
def put(
    ctx: click.Context,
    queue: str,
    payload: str | None,
    priority: int,
    delay: float | None,
    retention: float | None,
    key: str | None,
    group: str | None,
    lines: bool,
    headers: dict[str, str],
    as_json: bool,
) -> None:
    """Put a message into QUEUE and print its id.

    The payload is the argument, the content of @FILE, or stdin (-, or no argument at all in a pipe). For an empty
    payload give ''. The store is created if it does not exist, and with it the queue `default`; create makes
    others.
    """
    if lines and key is not None:
        raise click.UsageError("--key names one message and --lines puts many; leave one of them out")
    body = b"" if lines else read_payload(payload)  # before the store is created
    # A new store has the queue `default` only, and a new .tq file the queue of its name.
    url = ctx.find_root().params["store"]
    make = queue in ("", DEFAULT) or kind_of(url).only_queue(url) is not None
    handle = open_store(ctx, make=make).queue(queue)
    if lines:
        count = 0
        for batch in output.counted(_batches(read_lines(payload)), f"putting into {handle.name}"):
            try:
                drafts = [Draft(line, priority, headers, delay, retention, group=group) for line in batch]
                handle.put_many(drafts)
            except PenstockError as error:
                raise Failure(
                    error, f"\n{output.plural(count, 'line')} before that were put, none after"
                ) from error
            count += len(batch)
        say(as_json, {"count": count}, f"put {output.plural(count, 'message')} into {handle.name}")
    else:
        put_id = handle.put(body, priority, headers, delay, retention, key, group=group)
        say(as_json, {"id": put_id}, put_id)


@cli.command(
    epilog="""\b
Example:
  penstock publish '{"order": 17}' -H type=order"""
)
@_draft_options
@click.pass_context
def publish(
    ctx: click.Context,
    payload: str | None,
    priority: int,
    delay: float | None,
    retention: float | None,
    headers: dict[str, str],
    as_json: bool,
) -> None:
    """Put a message into every queue whose filter matches.

    `create --filter` gives a queue its filter. Prints an id; each copy has it in the header penstock.publish. The
    payload is the argument, the content of @FILE, or stdin (-, or no argument at all in a pipe). For an empty
    payload give ''.
    """
    body = read_payload(payload)  # before the store is created
    published = open_store(ctx, make=True).publish(body, headers, priority, delay or 0, retention)
    say(as_json, {"id": published}, published)


@cli.command(
    epilog="""\b
Examples:
  penstock peek jobs -n 20
  penstock peek jobs -n 20 --state failed"""
)
@queue_argument(required=False)
@click.option(
    "-n", "n", type=click.IntRange(1, MAX_COUNT), default=1, show_default=True, help="Number of messages, at most."
)
@click.option(
    "--state", type=click.Choice(STATES), help="Show messages in this state, oldest first, instead of the next."
)
@click.option("--raw", is_flag=True, help="Write the payloads and nothing else.")
@json_option
@click.pass_context
def peek(ctx: click.Context, queue: str, n: int, state: State | None, raw: bool, as_json: bool) -> None:
    """Show the next messages of QUEUE without claiming them.

    Exits with 3 if there is none.
    """
    _raw_or_json(raw, as_json)
    store = open_store(ctx)
    handle = store.queue(queue)
    messages = list(handle.peek(n) if state is None else islice(handle.messages(state), n))
    if raw and messages:
        sys.stdout.buffer.write(b"".join(message.payload for message in messages))
        return
    _show_messages(messages, as_json)
    if not messages and state in (None, "available"):
        nothing_there(ctx, _why_empty(store, handle))
    if not messages:
        nothing_there(ctx, f"queue {handle.name!r} has no {state} messages")


@cli.command(
    epilog="""\b
Examples:
  penstock claim jobs
  penstock claim jobs -n 10 --lease 300 --wait 20 --json"""
)
@queue_argument(required=False)
@click.option("-n", "n", type=int, default=1, show_default=True, help="Number of messages, at most.")
@click.option("--lease", type=seconds, help="How long the messages are yours.  [default: the queue's lease]")
@click.option("--wait", type=seconds, default=0, help="How long to wait for the first message.")
@click.option("--consumer", help="Your name, as holder of the messages.  [default: host:pid]")
@json_option
@click.pass_context
def claim(
    ctx: click.Context, queue: str, n: int, lease: float | None, wait: float, consumer: str | None, as_json: bool
) -> None:
    """Claim messages of QUEUE on a lease.

    Settle each message by its receipt (ack, fail or release) before the lease ends. A lease that ends counts as a
    failed attempt, and the message goes to another consumer. Exits with 3 if there was none.
    """
    store = open_store(ctx)
    handle = store.queue(queue)
    messages = handle.claim(n, lease, wait, consumer)
    _show_messages(messages, as_json)
    if not messages:
        nothing_there(ctx, _why_empty(store, handle))


@cli.command(
    epilog="""\b
Examples:
  penstock pop jobs
  penstock pop jobs --raw > photo.jpg"""
)
@queue_argument(required=False)
@click.option("--wait", type=seconds, default=0, help="How long to wait for a message.")
@click.option("--raw", is_flag=True, help="Write the payload and nothing else.")
@json_option
@click.pass_context
def pop(ctx: click.Context, queue: str, wait: float, raw: bool, as_json: bool) -> None:
    """Take the next message out of QUEUE for good.

    Exits with 3 if there was none. Use claim and ack if a message must survive a crash, or a Ctrl-C, of its
    consumer.
    """
    _raw_or_json(raw, as_json)
    store = open_store(ctx)
    handle = store.queue(queue)
    message = handle.pop(wait)
    if raw and message is not None:
        sys.stdout.buffer.write(message.payload)
    else:
        _show_messages([] if message is None else [message], as_json)
    if message is None:
        nothing_there(ctx, _why_empty(store, handle))


@cli.command(
    epilog="""\b
Example:
  penstock ack jobs 17.3f2a9c55d0e81b46"""
)
@queue_argument()
@_receipts_argument
@json_option
@click.pass_context
def ack(ctx: click.Context, queue: str, receipts: tuple[str, ...], as_json: bool) -> None:
    """Acknowledge claimed messages of QUEUE: their work is done."""
    open_store(ctx).queue(queue).ack(*receipts)
    say(as_json, {"acked": len(receipts)}, f"acknowledged {output.plural(len(receipts), 'message')}")


@cli.command(
    epilog="""\b
Example:
  penstock fail jobs 17.3f2a9c55d0e81b46 --delay 60 --reason 'no route to host'"""
)
@queue_argument()
@_receipts_argument
@click.option("--delay", type=seconds, help="Time until the next attempt.  [default: by the queue's backoff]")
@click.option("--reason", help="Why the attempt failed; peek and reports show it.")
@json_option
@click.pass_context
def fail(
    ctx: click.Context,
    queue: str,
    receipts: tuple[str, ...],
    delay: float | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Report that the work on claimed messages of QUEUE failed.

    The messages are available again after --delay. After their last attempt (max_attempts) they are failed for
    good: peek --state failed shows them, redrive starts them over. A queue with a dead_letter sends them there.
    """
    open_store(ctx).queue(queue).fail(*receipts, delay=delay, reason=reason)
    say(as_json, {"failed": len(receipts)}, f"failed {output.plural(len(receipts), 'attempt')}")


@cli.command(
    epilog="""\b
Example:
  penstock release jobs 17.3f2a9c55d0e81b46"""
)
@queue_argument()
@_receipts_argument
@json_option
@click.pass_context
def release(ctx: click.Context, queue: str, receipts: tuple[str, ...], as_json: bool) -> None:
    """Give claimed messages back to QUEUE unworked: available at once, and not failed.

    Without the receipts, of a worker that died: penstock revoke.
    """
    open_store(ctx).queue(queue).release(*receipts)
    say(as_json, {"released": len(receipts)}, f"released {output.plural(len(receipts), 'message')}")


def _raw_or_json(raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise click.UsageError("--raw writes bare payloads and --json wraps them; leave one of them out")


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    lines = iter(lines)
    while batch := list(islice(lines, _BATCH)):
        yield batch


def _show_messages(messages: list[Message], as_json: bool) -> None:
    if as_json:
        output.print_json([output.message_as_json(message) for message in messages])
    elif messages:
        output.print_messages(messages)


def _why_empty(store: Store, queue: Queue) -> str:
    """Why no message of a queue is available: how many are held or delayed and until when, or have failed."""
    counts, now = queue.counts(), SystemClock().now()
    said = [f"queue {queue.name!r} has no available messages"]
    if counts["available"] and next(queue.peek(), None) is None:
        waiting = f"{counts['available']:,} wait for others of their group"
        said = [f"queue {queue.name!r} has no message to claim", waiting]
    for state, words, end, until in (
        ("in_flight", "in flight", "lease_until", "the next lease ends"),
        ("delayed", "delayed", "visible_at", "the next is due"),
    ):
        count = counts[state]
        if not count:
            continue
        said.append(f"{count:,} {'is' if count == 1 else 'are'} {words}")
        if count <= PAGE:  # else finding the next takes long
            listed = store.run(Messages(queue.name, PAGE, _WITHOUT_PAYLOAD, state))
            if ends := [each for message in islice(listed, PAGE) if (each := getattr(message, end)) is not None]:
                said[-1] += f", {until} {relative(min(ends), now)}"
    if counts["failed"]:
        said.append(f"{counts['failed']:,} failed: `penstock redrive {shlex.quote(queue.name)}` retries them")
    return "; ".join(said)


def read_payload(argument: str | None) -> bytes:
    """The payload of an argument, an @FILE or stdin.

    Without an argument an empty stdin is a UsageError: it is a mistake, as in a cron job. '' and - allow it.
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
    return os.fsencode(argument)  # the bytes that the shell passed, valid UTF-8 or not


def read_lines(argument: str | None) -> Iterator[bytes]:
    """The lines of an @FILE or of stdin, each without its newline."""
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
    return sys.stdin.buffer.read(MAX_PAYLOAD + 1)  # one byte too many, so that a longer input is refused


def _open(argument: str) -> BinaryIO:
    try:
        return Path(argument[1:]).open("rb")
    except OSError as error:
        raise click.UsageError(f"cannot read {argument[1:]!r}: {error.strerror}") from error
