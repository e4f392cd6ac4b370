"""The command top: the queues of a store, refreshed while you watch."""

import json
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import penstock
from penstock.cli import output, times
from penstock.cli.app import cli, json_option, open_store, seconds
from penstock.contract.kinds import kind_of
from penstock.contract.monitoring import MOST, Overview
from penstock.contract.operations import Figures
from penstock.errors import PenstockError, StoreUnreachable
from penstock.system.clock import SystemClock

_SHORTEST = 0.1  # seconds between two refreshes
_STATES = ("available", "delayed", "in_flight", "failed")
_SORTS = ("queue", *_STATES, "in", "out", "oldest")
_OUT = ("acked", "popped")
_ROOM = 8  # lines of a terminal that are no queues


@dataclass
class Row:
    """A queue at one moment, and what has happened since the refresh before it."""

    figures: Figures
    into: float | None = None  # messages a second; None: not known
    out: float | None = None

    def key(self, sort: str) -> Any:
        """Sorts names upwards and numbers downwards."""
        value = {"in": self.into, "out": self.out, "oldest": self.figures.waiting_seconds}.get(sort)
        number = self.figures.counts.get(sort, 0) if sort in _STATES else value or 0
        return self.figures.queue if sort == "queue" else (-number, self.figures.queue)

    def as_json(self) -> dict[str, Any]:
        """The queue for --json; a stopped one has no counts."""
        figures = self.figures
        known = {**figures.counts, "oldest": round(figures.waiting_seconds, 3)} if figures.up else {}
        rates = {name: None if rate is None else round(rate, 3) for name, rate in self._rates()}
        return {"queue": figures.queue, "up": figures.up, **known, **rates}

    def cells(self) -> list[str]:
        """The queue for people."""
        if not self.figures.up:
            return [self.figures.queue, "stopped", *[""] * (len(_STATES) + 2)]
        counts = [f"{self.figures.counts.get(state, 0):,}" for state in _STATES]
        rates = [
            "" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}" for _, rate in self._rates()
        ]
        waiting = self.figures.waiting_seconds
        return [self.figures.queue, *counts, *rates, times.length(waiting) if waiting >= 1 else ""]

    def _rates(self) -> list[tuple[str, float | None]]:
        return [("in", self.into), ("out", self.out)]


class Watch:
    """Looks at a store again and again, and compares each look with the one before."""

    def __init__(self, store: penstock.Store, sort: str, remembers: bool = False) -> None:
        """`remembers`: the first look has the rates of the last minute, if a server has the store."""
        self._store = store
        self._sort = sort
        self._remembers = remembers and kind_of(store.url).remote
        self._clock = SystemClock()
        self._before: dict[str, Figures] = {}
        self._looked = 0.0
        self.at = 0
        self.rows: list[Row] = []
        self.problem: str | None = None  # why the rows are old

    def look(self) -> None:
        """Look at every queue."""
        figures = self._figures()
        self.at, now = self._clock.now(), self._clock.monotonic()
        passed, self._looked = now - self._looked, now
        rows = [_row(each, self._before.get(each.queue), passed) for each in figures]
        if self._remembers and not self._before:
            remembered = self._remembered()
            rows = [Row(each, *remembered.get(each.queue, (None, None))) for each in figures]
        self._before = {each.queue: each for each in figures}
        self.rows, self.problem = sorted(rows, key=lambda row: row.key(self._sort)), None

    def _remembered(self) -> dict[str, tuple[float, float]]:
        """The rates of the last minute by queue, as a server remembers them; none of an earlier version."""
        rates: dict[str, tuple[float, float]] = {}
        with suppress(PenstockError):
            found = 1
            while len(rates) < found:
                page = self._store.run(Overview(skip=len(rates), limit=MOST, points=1))
                rates |= {each["queue"]: (each["in"], each["out"]) for each in page["queues"]}
                found = page["found"] if page["queues"] else 0
        return rates

    def look_again(self) -> None:
        """Look at every queue; while a server does not answer, the queues stay as they were."""
        try:
            self.look()
        except StoreUnreachable as error:
            self.problem = str(error)

    def _figures(self) -> list[Figures]:
        try:
            return self._store.figures()
        except PenstockError as error:
            if type(error) is not PenstockError:
                raise
            # The path is unknown to a server of an earlier version.
            return [Figures(each.name, True, each.counts, 0, 0, {}, 0, 0, 0) for each in self._store.queues()]


def _row(now: Figures, before: Figures | None, passed: float) -> Row:
    """Counters tell both rates; without them, how the number of unsettled messages has changed."""
    if before is None or not now.up or not before.up or not passed:
        return Row(now)
    if now.events:
        put = now.events["put"] - before.events.get("put", 0)
        gone = sum(now.events.get(name, 0) - before.events.get(name, 0) for name in _OUT)
        if put < 0 or gone < 0:  # another process has opened the store, and counts from 0
            return Row(now)
    else:
        change = _unsettled(now) - _unsettled(before)
        put, gone = max(change, 0), max(-change, 0)
    return Row(now, put / passed, gone / passed)


def _unsettled(figures: Figures) -> int:
    return sum(figures.counts.get(state, 0) for state in ("available", "delayed", "in_flight"))


_COLUMNS = ("queue", "available", "delayed", "in flight", "failed", "in/s", "out/s", "oldest")


@cli.command(
    epilog="""\b
Examples:
  penstock top
  penstock top --sort oldest --interval 5
  penstock --store http://queue:8390 top
  penstock top --once
  penstock top --json | jq '.queues[] | select(.oldest > 60)'"""
)
@click.option("--interval", type=seconds, default=1, show_default=True, help="Time between two refreshes.")
@click.option("--sort", type=click.Choice(_SORTS), default="queue", show_default=True,
              help="Names upwards; numbers downwards.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one table and end, as without a terminal.")
@json_option
@click.pass_context
def top(ctx: click.Context, interval: float, sort: str, once: bool, as_json: bool) -> None:
    """Watch all queues, until q or Ctrl-C.

    Shows messages by state, rates, and the longest wait, and refreshes them.

    \b
    in      messages a second that were put since the last refresh
    out     messages a second that were acknowledged or popped since the last refresh
    oldest  how long the available message has waited that has waited longest

    Rates come from counters of the process that has the store open. Text and folder stores, which many processes
    use at once, and servers of earlier versions have none: there, `in` is by how much the number of unsettled
    messages has grown, and `out` by how much it has shrunk. A rate is empty until it is known. A server remembers
    its queues, so at first its rates are those of the last minute.

    Without a terminal, or with --once, prints one table, with the rates of one --interval (0: no rates), and ends;
    of a server without --interval those of the last minute, at once.
    With --json a line for each refresh, an object with the time and all queues; with --once a single one.
    """
    if interval < _SHORTEST and (interval or not once):
        raise click.UsageError(f"--interval {interval}: give at least {_SHORTEST} seconds, or 0 with --once")
    ends = once or not (as_json or sys.stdout.isatty())
    is_asked = ctx.get_parameter_source("interval") is not ParameterSource.DEFAULT
    watch = Watch(open_store(ctx), sort, remembers=not (ends and is_asked))
    if ends:
        watch.look()
        if interval and any(row.into is None for row in watch.rows):
            _pause(interval)
            watch.look()
        if as_json:
            _print_line(watch)
        else:
            output.print_table(_COLUMNS, [row.cells() for row in watch.rows], right=_COLUMNS[1:])
        return
    with suppress(KeyboardInterrupt):
        if as_json:
            while True:
                watch.look_again()
                _print_line(watch)
                _pause(interval)
        else:
            _show(watch, interval, ctx.find_root().params["store"])
    if not as_json:
        click.echo(_summary(watch.rows))


def _print_line(watch: Watch) -> None:
    problem = {} if watch.problem is None else {"problem": watch.problem}
    click.echo(json.dumps({"time": watch.at, **problem, "queues": [row.as_json() for row in watch.rows]}))
    sys.stdout.flush()  # a program at the other end of a pipe acts on each line


def _pause(interval: float) -> None:
    SystemClock().wait(threading.Event(), interval)


def _show(watch: Watch, interval: float, store: str) -> None:
    """Refresh a table on the terminal until q is pressed."""
    console = Console()
    with _keys() as key, Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False) as live:
        while True:
            watch.look_again()
            live.update(_picture(watch, store, console.size.height - _ROOM, console.width), refresh=True)
            if key(interval) in ("q", "Q"):
                return


def _picture(watch: Watch, store: str, room: int, width: int) -> Group:
    shown = watch.rows[: max(room, 1)]
    cells = [row.cells() for row in shown]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = [max(map(len, column)) for column in list(zip(_COLUMNS, *cells, strict=True))[1:]]
    left = max(width - sum(numbers) - 3 * len(numbers) - 2, 1)  # a long name is cut, and no number
    for name in _COLUMNS:
        is_name = name == "queue"
        table.add_column(
            name, justify="left" if is_name else "right", no_wrap=True, overflow="ellipsis",
            max_width=left if is_name else None,
        )  # fmt: skip
    for row, texts in zip(shown, cells, strict=True):
        failing = bool(row.figures.counts.get("failed")) or not row.figures.up
        table.add_row(*map(Text, texts), style="red" if failing else "")
    head = f"{output.printable(store)}  {times.when(watch.at)}\n{_summary(watch.rows)}"
    lines: list[RenderableType] = [Text(head, no_wrap=True, overflow="ellipsis"), table]
    if (left := len(watch.rows) - max(room, 1)) > 0:
        lines.append(Text(f"and {output.plural(left, 'more queue')}"))
    lines.append(Text(output.printable(watch.problem), "red") if watch.problem else Text("q: quit", "dim"))
    return Group(*lines)


def _summary(rows: Sequence[Row]) -> str:
    counts = {state: sum(row.figures.counts.get(state, 0) for row in rows) for state in _STATES}
    told = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts.items())
    return f"{output.plural(len(rows), 'queue')}: {told}"


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key, if stdin is a terminal, and returns it, or ''."""
    if sys.stdin is None or not sys.stdin.isatty():

        def wait(interval: float) -> str:
            _pause(interval)
            return ""

        yield wait
        return
    terminal = sys.stdin.fileno()
    usual = termios.tcgetattr(terminal)

    def read(interval: float) -> str:
        ready, _, _ = select.select([terminal], [], [], interval)
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)  # a key without Enter; Ctrl-C still interrupts
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, usual)
