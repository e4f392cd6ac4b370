"""Results of commands: tables for people, JSON for programs, and progress bars on stderr."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from penstock.cli.times import relative
from penstock.contract.message import STATES, Message
from penstock.contract.settings import QueueInfo
from penstock.system.clock import SystemClock

_PREVIEW = 60  # characters of a payload
_LEAST = 12  # characters of a column that may be cut; a narrower one shows too little
_WIDE = 400  # characters of a line in a file or a pipe
# Cells that may end in an ellipsis; those of names, ids and receipts never do.
_CUT = ("consumer", "headers", "group", "reason", "description", "payload")
Item = TypeVar("Item")


def print_json(value: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=not _is_unicode()))


def print_json_list(values: Iterable[Any]) -> None:
    """A JSON list with one value per line, printed while the values arrive."""
    separator, ascii_only = "[\n", not _is_unicode()
    for value in values:
        click.echo(separator + json.dumps(value, ensure_ascii=ascii_only), nl=False)
        separator = ",\n"
    click.echo("[]" if separator == "[\n" else "\n]")


def _is_unicode() -> bool:
    return sys.stdout is not None and (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")


def message_as_json(message: Message) -> dict[str, Any]:
    """A message's fields; a payload that is not text comes as payload_base64 instead of payload."""
    result = {
        field.name: getattr(message, field.name) for field in fields(message) if not field.name.startswith("_")
    }
    try:
        result["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        result["payload"] = None
        result["payload_base64"] = base64.b64encode(message.payload).decode()
    return result


def queue_as_json(info: QueueInfo) -> dict[str, Any]:
    """A queue's name, settings and counts; the lag of a slate queue; the problem of an invalid filter."""
    more = {"lag": info.lag, "filter_problem": _filter_problem(info)}
    known = {name: value for name, value in more.items() if value is not None}
    return {"name": info.name, "settings": dict(info.settings), "counts": info.counts, **known}


def _filter_problem(info: QueueInfo) -> str | None:
    """Why the filter matches no message: another program may have stored one that is invalid here."""
    if info.settings.filter is None:
        return None
    from penstock.filters import reason_against  # imported late: few commands need it

    return reason_against(info.settings.filter)


def print_messages(messages: Sequence[Message]) -> None:
    """Messages as a table, without columns that say nothing of these."""
    now = SystemClock().now()
    cells = [_cells(message, now) for message in messages]
    columns = [name for name in cells[0] if name == "payload" or not {each[name] for each in cells} <= {"", "0"}]
    if len({message.state for message in messages}) == 1 and "state" in columns:
        columns.remove("state")
    # A receipt begins with the message's id.
    redundant = ["id"] if "receipt" in columns else []
    spare = ["created", "settled", "priority", "consumer", *redundant, "headers", "group", "reason", "attempts"]
    rows = [[each[name] for name in columns] for each in cells]
    print_table(columns, rows, right={"priority", "attempts"}, spare=spare)


def _cells(message: Message, now: int) -> dict[str, str]:
    """What a table says of a message; a cell that does not apply to its state is empty."""
    held, state = message.state == "in_flight", message.state

    def time(name: str, when: bool = True) -> str:
        value = getattr(message, name)
        return relative(value, now) if when and value is not None else ""

    return {
        "id": message.id,
        "state": state,
        "priority": str(message.priority),
        "attempts": str(message.attempts),
        "created": time("created_at"),
        "due": time("visible_at", state == "delayed"),
        "lease": time("lease_until", held),
        "consumer": (message.consumer or "") if held else "",
        "settled": time("settled_at", state in ("done", "failed")),
        "headers": ", ".join(f"{name}={text}" for name, text in message.headers.items()),
        "group": message.group or "",
        "receipt": message.receipt or "",
        "reason": message.reason or "",
        "payload": preview(message.payload),
    }


def print_queues(infos: Sequence[QueueInfo]) -> None:
    """Queues as a table of counts."""
    columns = ["queue", *STATES]
    rows = [[info.name, *(f"{info.counts[state]:,}" for state in STATES)] for info in infos]
    if any(info.settings.description for info in infos):
        columns.append("description")
        rows = [[*row, info.settings.description] for row, info in zip(rows, infos, strict=True)]
    print_table(columns, rows, right=set(STATES), spare=["description"])


def print_queue(info: QueueInfo) -> None:
    """One queue: its counts and its settings."""
    rows = [[state, f"{info.counts[state]:,}"] for state in STATES]
    if info.lag is not None:
        rows.append(["lag", f"{info.lag:,}"])
    if (problem := _filter_problem(info)) is not None:
        rows.append(["filter problem", f"nothing is routed here: {problem}"])
    rows += [[name, _setting(name, value)] for name, value in dict(info.settings).items()]
    console = _console(_WIDE)
    if console is not None:
        table = _table(["queue", printable(info.name)])
        for name, value in rows:
            table.add_row(name, Text(printable(value)))
        console.print(table)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """A table on stdout, or a line per cell if the terminal is too narrow. Cells are escaped for the terminal.

    spare: columns that a narrow terminal goes without, the first of them first
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = {name: max(map(cell_len, column)) + 3 for name, *column in zip(columns, columns, *cells, strict=True)}
    console = _console(sum(widths.values()))
    if console is None:
        return
    least = {name: min(width, _LEAST) if name in _CUT else width for name, width in widths.items()}
    gone: set[str] = set()
    for name in spare:
        if name in least and sum(least.values()) > console.width:
            gone.add(name)
            del least[name]
    if sum(least.values()) > console.width:
        for row in cells:
            for name, cell in zip(columns, row, strict=True):
                if cell:
                    console.print(Text(f"{name}: {cell}"), soft_wrap=True)
            console.print()
        return
    cells = [[cell for name, cell in zip(columns, row, strict=True) if name not in gone] for row in cells]
    columns = list(least)
    room = console.width - sum(widths[name] for name in columns if name not in _CUT)
    table = _table(columns, right)
    for column in table.columns:
        column.no_wrap = True
    cut = sorted((name for name in columns if name in _CUT), key=widths.__getitem__)
    for left, name in zip(range(len(cut), 0, -1), cut, strict=True):  # short columns leave room to longer ones
        width = min(widths[name], room // left)
        room -= width
        column = table.columns[columns.index(name)]
        column.overflow, column.max_width = "ellipsis", width - 3
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def idle(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The columns after the first that are 0 or empty in every row, the last first: print_table may spare them."""
    return [name for name, *cells in [*zip(columns, *rows, strict=True)][:0:-1] if {*cells} <= {"", "0"}]


def _console(wide: int) -> Console | None:
    """Stdout, `wide` characters in a file or a pipe; None if the caller has closed it."""
    if sys.stdout is None:
        return None
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else wide)


def _table(columns: Sequence[str], right: Iterable[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    return table


def preview(payload: bytes) -> str:
    """The first characters of a payload, on one line."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"({plural(len(payload), 'byte')}, not text)"
    shown = printable(text[: _PREVIEW + 1])
    return shown if len(shown) <= _PREVIEW else shown[: _PREVIEW - 3] + "..."


def printable(text: str) -> str:
    """Text with control characters escaped: a payload must not move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def plural(count: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_MEANS_NOTHING = {
    "max_size": "no limit",
    "max_attempts": "no limit",
    "keep_done": "not kept",
    "retention": "for ever",
    "description": "",
    "delay": "none",
}
_SECONDS = {"keep_done", "max_lease", "retention", "lease", "delay"}


def _setting(name: str, value: Any) -> str:
    if value is None:
        return {"keep_done": "for ever", "priorities": "all"}.get(name, "none")
    if not value and name in _MEANS_NOTHING:
        return _MEANS_NOTHING[name]
    if name == "priorities":
        return f"{value[0]} to {value[1]}"
    if name == "backoff":
        return f"{value[0]:,} s, times {value[1]:,}, {value[2]:,} s at most"
    if name == "labels":
        return ", ".join(f"{label}={text}" for label, text in value.items())
    if name in _SECONDS:
        return f"{value:,} s"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Bar:
    """One line of progress on stderr."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None)

    def update(self, **fields: Any) -> None:
        """Set any of description, completed, total and advance."""
        self._progress.update(self._task, **fields)


@contextmanager
def progress(what: str, *columns: ProgressColumn, wanted: bool = True) -> Iterator[Bar | None]:
    """A progress bar that disappears at the end; None if stderr is no terminal."""
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    description = SpinnerColumn(), TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*description, *columns, console=console, transient=True, redirect_stdout=False) as shown:
        yield Bar(shown, what)


def counted(items: Iterable[list[Item]], what: str) -> Iterator[list[Item]]:
    """Pass batches on, and count their items in a progress bar."""
    with progress(what, MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        for batch in items:
            yield batch
            if bar:
                bar.update(advance=len(batch))
