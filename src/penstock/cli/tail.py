"""The command tail: follow what enters a queue."""

import json
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

import click
from rich.text import Text

import penstock
from penstock.cli import output, times
from penstock.cli.app import cli, json_option, nothing_there, open_store, queue_argument, seconds
from penstock.contract.message import Message
from penstock.contract.operations import PAGE, Messages, Parts
from penstock.contract.settings import MAX_COUNT
from penstock.contract.stream_operations import Streams
from penstock.errors import NotSupported, PenstockError, StoreUnreachable
from penstock.system.clock import SystemClock

_SHORTEST = 0.1  # seconds between two looks
_MANY = 10_000  # parts that a queue is divided into; ids that are remembered before they are compared
_BYTES = 8 << 20  # of messages that are read at once
_WIDE = 400  # characters of a line in a file or a pipe
_HEADERS = 40  # characters


class Reader(Protocol):
    """Reads what enters a queue."""

    last: str | None  # the id of the last message before those of new(); None: there was none

    def new(self) -> Iterator[Message]:
        """The messages that have entered since the last call."""

    def close(self) -> None:
        """Stop reading."""


class Follower:
    """Reads as a follower: the store keeps messages for it until they are read. A message's number is its id."""

    def __init__(self, store: penstock.Store, queue: str) -> None:
        self._streams = Streams(store.run)
        self._queue = queue
        self._name = f"tail-{os.urandom(8).hex()}"
        self._after, self._gaps = self._streams.start(queue, self._name, "latest")
        self.last: str | None = str(self._after)

    def new(self) -> Iterator[Message]:
        while True:
            ahead = self._streams.ahead(self._queue, self._name, self._after, self._gaps, PAGE, _BYTES)
            if ahead.lost is not None:
                count = ahead.lost.messages
                lost = "messages" if count is None else output.plural(count, "message")
                _tell(f"{lost} entered and were gone before they could be read")
            if ahead.until <= self._after:
                return
            while page := self._streams.entered(self._queue, self._name, self._after, ahead.until, PAGE):
                for message in page:
                    yield message
                    self._after = int(message.id)
            self._after = ahead.until

    def close(self) -> None:
        self._streams.leave(self._queue, self._name)


class Lister:
    """Reads by listing the queue again and again: a message that comes and goes between two looks is not seen."""

    def __init__(self, store: penstock.Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        there = self._ids()
        self._seen = set(there)
        self.last = there[-1] if there else None
        self._after = self.last or ""

    def new(self) -> Iterator[Message]:
        # Where the message `after` is gone, a store may list all of them again.
        for message in self._store.run(Messages(self._queue, limit=PAGE, after=self._after)):
            if message.id not in self._seen:
                self._seen.add(message.id)
                self._after = message.id
                yield message
        if len(self._seen) > _MANY:
            self._seen &= set(self._ids())

    def _ids(self) -> list[str]:
        return [message.id for message in self._store.run(Messages(self._queue, limit=PAGE, fields=("id",)))]

    def close(self) -> None:
        """Nothing to do."""


@cli.command(
    epilog="""\b
Examples:
  penstock tail jobs
  penstock tail jobs -n 0 --json | jq -r .payload
  penstock tail jobs -n 100 --no-follow
  penstock --store http://queue:8390 tail jobs"""
)
@queue_argument(required=False)
@click.option("-n", "n", type=click.IntRange(0, MAX_COUNT), default=10, show_default=True,
              help="Messages that are there already, the last ones put.")  # fmt: skip
@click.option("--no-follow", is_flag=True, help="End after those.")
@click.option("--interval", type=seconds, default=0.5, show_default=True, help="Time between two looks.")
@json_option
@click.pass_context
def tail(ctx: click.Context, queue: str, n: int, no_follow: bool, interval: float, as_json: bool) -> None:
    """Print what enters QUEUE, until Ctrl-C.

    Nothing is claimed. Each message is a line. It has the message's id, age, priority and headers, and the
    beginning of its payload; with --json, all of the message as an object.

    Journal and slate stores, and servers of them, keep what has entered until it is read here, up to 1 GiB, so
    that no message is missed, however soon it is consumed. Other stores are listed at each look: a message that is
    put and consumed between two looks is not seen. If a server goes away, this is said, and the tail goes on when
    it is back.

    With --no-follow it exits with 3 if QUEUE has no message.
    """
    if interval < _SHORTEST:
        raise click.UsageError(f"--interval {interval}: give at least {_SHORTEST} seconds")
    store = open_store(ctx)
    name = store.queue(queue).name
    if no_follow:
        messages = _latest(store, name, n, "")
        for message in messages:
            _print(message, as_json)
        if not messages:
            nothing_there(ctx, f"queue {name!r} has no messages")
        return
    reader = _reader(store, name)
    with suppress(KeyboardInterrupt):
        try:
            for message in _latest(store, name, n, reader.last):
                _print(message, as_json)
            _follow(reader, interval, as_json)
        finally:
            with suppress(PenstockError):  # the store forgets it by itself in a minute
                reader.close()


def _reader(store: penstock.Store, queue: str) -> Reader:
    try:
        return Follower(store, queue)
    except NotSupported:
        return Lister(store, queue)


def _follow(reader: Reader, interval: float, as_json: bool) -> None:
    clock, away = SystemClock(), False
    while True:
        try:
            for message in reader.new():
                _print(message, as_json)
            if away:
                _tell("the server is back")
            away = False
        except StoreUnreachable as error:
            if not away:
                _tell(f"{error}. Waiting until it is back")
            away = True
        clock.wait(threading.Event(), interval)


def _latest(store: penstock.Store, queue: str, n: int, until: str | None) -> list[Message]:
    """The last n messages up to an id. It is not the whole queue that is listed, but its last two parts."""
    if not n or until is None:
        return []
    count = sum(store.queue(queue).counts().values())
    parts = store.run(Parts(queue, min(max(1, count // n), _MANY)))
    after = parts[-3] if len(parts) > 2 else ""
    listed: Iterator[Message] = store.run(Messages(queue, limit=PAGE, after=after, until=until))
    return list(deque(listed, n))


def _print(message: Message, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(output.message_as_json(message)))
    else:
        headers = ", ".join(f"{name}={text}" for name, text in message.headers.items())
        if len(headers) > _HEADERS:
            headers = headers[: _HEADERS - 3] + "..."
        age = times.relative(message.received_at, SystemClock().now())
        cells = [f"{message.id:<8}", f"{age:>9}", f"p{message.priority}", headers, output.preview(message.payload)]
        line = Text(output.printable("  ".join(filter(None, cells))))
        terminal = sys.stdout is not None and sys.stdout.isatty()
        line.truncate(shutil.get_terminal_size().columns if terminal else _WIDE, overflow="ellipsis")
        click.echo(line.plain)
    if sys.stdout is not None:
        sys.stdout.flush()  # a program at the other end of a pipe acts on each line


def _tell(text: str) -> None:
    click.echo(output.printable(f"penstock: {text}"), err=True)
