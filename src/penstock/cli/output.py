"""How results are shown: tables for people, JSON for programs."""

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.index.rows import STATES
from penstock.keeper import QueueInfo
from penstock.message import Message

_PREVIEW = 60
_WIDE = 200  # columns for a file or a pipe, so that nothing is folded there


def print_json(value: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


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
    """A queue's name, settings and counts."""
    return {"name": info.name, "settings": dict(info.settings), "counts": info.counts}


def print_messages(messages: Sequence[Message]) -> None:
    """Messages as a table, with the columns that say something."""
    columns = ["id", "state", "priority", "attempts"]
    if any(message.headers for message in messages):
        columns.append("headers")
    columns += [name for name in ("receipt", "reason") if any(getattr(message, name) for message in messages)]
    rows = [[_cell(message, column) for column in columns] + [preview(message.payload)] for message in messages]
    print_table([*columns, "payload"], rows, right={"priority", "attempts"})


def print_queues(infos: Sequence[QueueInfo]) -> None:
    """Queues as a table of counts."""
    rows = [
        [info.name, *(f"{info.counts[state]:,}" for state in STATES), info.settings.description] for info in infos
    ]
    print_table(["queue", *STATES, "description"], rows, right=set(STATES))


def print_queue(info: QueueInfo) -> None:
    """One queue: its counts and its settings."""
    rows = [[state, f"{info.counts[state]:,}"] for state in STATES]
    rows += [[name, _setting(name, value)] for name, value in dict(info.settings).items()]
    print_table(["queue", info.name], rows)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> None:
    """A table on stdout; cells are plain text, whatever they contain."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE).print(table)


def preview(payload: bytes) -> str:
    """The beginning of a payload on one line."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"({len(payload):,} bytes, not text)"
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[: _PREVIEW + 1])
    return shown if len(shown) <= _PREVIEW else shown[: _PREVIEW - 3] + "..."


def plural(count: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cell(message: Message, column: str) -> str:
    value = getattr(message, column)
    if column == "headers":
        return ", ".join(f"{name}={text}" for name, text in value.items())
    return "" if value is None else str(value)


_MEANS_NOTHING = {
    "max_size": "no limit",
    "max_attempts": "no limit",
    "keep_done": "not kept",
    "retention": "for ever",
    "description": "",
}
_SECONDS = {"keep_done", "max_lease", "retention"}


def _setting(name: str, value: Any) -> str:
    if value is None:
        return {"keep_done": "for ever", "priorities": "all"}.get(name, "none")
    if not value and name in _MEANS_NOTHING:
        return _MEANS_NOTHING[name]
    if name == "priorities":
        return f"{value[0]} to {value[1]}"
    if name in _SECONDS:
        return f"{value:,} s"
    return f"{value:,}" if isinstance(value, int) else str(value)
