"""Commands on single messages: extend a lease, look at a message and its attempts."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from penstock.cli import output, times
from penstock.cli.app import cli, json_option, nothing_there, open_store, queue_argument, say, seconds
from penstock.contract.arguments import checked_lease
from penstock.contract.message import Attempt, Message
from penstock.contract.operations import Extend
from penstock.errors import LeaseExpired
from penstock.system.clock import SystemClock

_MOST = 65_536  # bytes of a payload that are shown
_MOST_HEX = 4_096
_ROW = 16  # bytes of a line in hexadecimal
_TIMES = ("created_at", "received_at", "visible_at", "expires_at", "claimed_at", "lease_until", "settled_at")
_ATTEMPT = ("attempt", "consumer", "claimed", "took", "outcome", "reason")


@cli.command(
    epilog="""\b
Examples:
  penstock extend jobs 17.3f2a9c55d0e81b46 --lease 300
  penstock extend jobs 17.3f2a9c55d0e81b46 18.77c1e0a2b95d4f03 --json"""
)
@queue_argument()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--lease", type=seconds, default=30, show_default=True, help="How long the messages stay yours.")
@json_option
@click.pass_context
def extend(ctx: click.Context, queue: str, receipts: tuple[str, ...], lease: float, as_json: bool) -> None:
    """Extend the leases on claimed messages of QUEUE.

    The new lease counts from now, and may be shorter than the rest of the old one; the queue's max_lease is the
    most. Receipts stay the same. If some leases were lost the others are extended all the same; the error names
    the lost ones, and the command exits with 1.
    """
    store = open_store(ctx)
    name = store.queue(queue).name
    held = store.run(Extend(name, list(receipts), checked_lease(lease)))
    if held.lost:
        raise LeaseExpired(name, held.lost)
    say(
        as_json,
        {"extended": len(receipts), "lease_until": held.lease_until},
        f"extended {output.plural(len(receipts), 'lease')} until {times.when(held.lease_until)}",
    )


@cli.command(
    epilog="""\b
Examples:
  penstock message jobs 17
  penstock message jobs 17 --json | jq '.history[].reason'
  penstock message jobs 17 --payload > photo.jpg"""
)
@queue_argument()
@click.argument("id_", metavar="ID")
@click.option("--payload", "bare", is_flag=True, help="Write the payload, byte for byte, and nothing else.")
@json_option
@click.pass_context
def message(ctx: click.Context, queue: str, id_: str, bare: bool, as_json: bool) -> None:
    """Show one message of QUEUE with its attempts.

    The message is shown in any state, and not claimed: its fields, its attempts, and its payload as JSON with a
    line per member, as text, or in hexadecimal. Exits with 3 if there is no message of this ID: it was never
    there, is done and no longer listed (keep_done), has expired, or was removed.
    """
    if bare and as_json:
        raise click.UsageError("--payload writes bare bytes and --json wraps them; leave one of them out")
    handle = open_store(ctx).queue(queue)
    found = handle.message(id_)
    if found is None:
        nothing_there(ctx, f"queue {handle.name!r} has no message {id_!r}")
    if bare:
        sys.stdout.buffer.write(found.payload)
        return
    attempts = handle.attempts(id_)
    if as_json:
        output.print_json({**output.message_as_json(found), "history": [each._asdict() for each in attempts]})
    else:
        _print(found, attempts)


def _print(found: Message, attempts: list[Attempt]) -> None:
    now = SystemClock().now()
    for name, value in _fields(found, now):
        click.echo(output.printable(f"{name:<12} {value}"))
    if attempts:
        output.print_table(_ATTEMPT, [_attempt(each, now) for each in attempts], right=("attempt", "took"))
    else:
        click.echo()
    for line in _payload(found.payload):
        click.echo(output.printable(line))


def _fields(found: Message, now: int) -> Iterator[tuple[str, str]]:
    yield from [("id", found.id), ("queue", found.queue), ("state", found.state)]
    yield from [("priority", str(found.priority)), ("attempts", str(found.attempts))]
    for name in ("consumer", "reason"):
        if (text := getattr(found, name)) is not None:
            yield name, text
    for name in _TIMES:
        if (time := getattr(found, name)) is not None:
            yield name, f"{times.when(time)}, {times.relative(time, now)}"
    for name, text in found.headers.items():
        yield "header", f"{name}={text}"
    yield "payload", output.plural(len(found.payload), "byte")


def _attempt(attempt: Attempt, now: int) -> list[str]:
    took = "" if attempt.ended_at is None else f"{(attempt.ended_at - attempt.claimed_at) / 1000:,.1f} s"
    claimed, outcome = times.relative(attempt.claimed_at, now), attempt.outcome or "runs"
    return [str(attempt.attempt), attempt.consumer or "", claimed, took, outcome, attempt.reason or ""]


def _payload(payload: bytes) -> Iterator[str]:
    """A payload as lines: indented JSON, text, or hexadecimal."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        yield from _hexadecimal(payload[:_MOST_HEX])
        yield from _rest(len(payload) - _MOST_HEX)
        return
    value: Any = None
    with suppress(ValueError, RecursionError):
        value = json.loads(text) if len(payload) <= _MOST else None
    if isinstance(value, dict | list):
        text = json.dumps(value, indent=2, ensure_ascii=False)
    yield from text[:_MOST].splitlines()
    yield from _rest(len(text) - _MOST)


def _hexadecimal(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        yield f"{at:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {shown}"


def _rest(count: int) -> Iterator[str]:
    if count > 0:
        yield f"... and {count:,} more: --payload writes all of it"
