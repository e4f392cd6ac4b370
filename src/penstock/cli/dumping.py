"""The command dump: the entries of a file, as they are on disk."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from penstock.cli import output, times
from penstock.cli.app import cli, json_option, nothing_there
from penstock.contract.dumps import DAMAGED, TIMES, Piece
from penstock.contract.kinds import kind_of

_SHOWN = 8  # values of a list
_STYLES: dict[str | None, dict[str, Any]] = {
    "available": {"fg": "green"},
    "delayed": {"fg": "blue"},
    "in_flight": {"fg": "yellow"},
    "done": {"dim": True},
    "expired": {"dim": True},
    "failed": {"fg": "red"},
    "comment": {"fg": "cyan", "dim": True},
}


@cli.command(
    epilog="""\b
Examples:
  penstock dump data/jobs
  penstock dump data/jobs --json | jq 'select(.entry == "damaged")'
  penstock dump jobs.tq
  penstock dump slate:data
  penstock dump --dialect 2.x /var/spool/kestrel/jobs"""
)
@click.argument("file")
@click.option(
    "--dialect", type=click.Choice(["doc", "2.x"]), default="doc", show_default=True,
    help="Of a journal: what opcode 8 is. A Kestrel 2.x writes CONTINUE, the document says STATE_DUMP.",
)  # fmt: skip
@json_option
@click.pass_context
def dump(ctx: click.Context, file: str, dialect: str, as_json: bool) -> None:
    """Show the entries of a store's FILE.

    \b
    a journal file   each entry with its offset in bytes, opcode, xid and size; commit groups, and
                     in them control items and records decoded
    a file NAME.tq   each message and comment with its offset, state, text and variables
    slate:DIR, slate:s3://BUCKET/PREFIX
                     each record of the database

    Nothing is changed and no lock is taken, so another process can have the store open; the end of a file that is
    just being written may then look torn. --store is not used. Damaged bytes are shown with their offset and the
    reason, and the dump goes on after them, at the next whole group; with damage it exits with 1, of an empty file
    with 3.

    With --json, a line for each piece: "entry" says what it is, "depth" how deep it is inside of others. Bytes
    that are not text come as NAME_base64. Times are milliseconds since the epoch. Without --json, long lists and
    payloads are cut.
    """
    count = damage = 0
    for piece in kind_of(file).dump(file, dialect):
        count += 1
        damage += piece.name == DAMAGED
        if as_json:
            click.echo(json.dumps(_as_json(piece)))
        else:
            _print(piece)
    if not count:
        nothing_there(ctx, f"{file} is empty")
    if damage:
        ctx.exit(1)


def _as_json(piece: Piece) -> dict[str, Any]:
    place = {} if piece.offset is None else {"offset": piece.offset}
    state = {} if piece.state is None else {"state": piece.state}
    return {"entry": piece.name, **place, "depth": piece.depth, **state, **_members(piece.fields)}


def _members(fields: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, bytes):
            try:
                members[str(name)] = value.decode()
            except UnicodeDecodeError:
                members[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            members[str(name)] = _plain(value)
    return members


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return _members({"": bytes(value)}).get("", bytes(value).hex())
    if hasattr(value, "_asdict"):
        return _members(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return _members(asdict(value))
    if isinstance(value, Mapping):
        return _members(value)
    return [_plain(each) for each in value]


def _print(piece: Piece) -> None:
    """A line; the message of a text file in the colour of its state."""
    place = "" if piece.offset is None else f"{piece.offset:>10}"
    known = {name: value for name, value in piece.fields.items() if value not in (None, [], {})}
    shown = [f"{name}={_shown(name, value)}" for name, value in known.items()]
    what = "  " * piece.depth + (piece.state or piece.name)
    line = output.printable(f"{place:>10}  {what:<20} {' '.join(shown)}".rstrip())
    style = {"fg": "red", "bold": True} if piece.name == DAMAGED else _STYLES.get(piece.state, {})
    click.echo(click.style(line, **style))


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return output.preview(value)
    if name in TIMES and isinstance(value, int):
        return _time(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and not hasattr(value, "_asdict"):
        if name in TIMES:
            value = [_time(each) for each in value]
        return _cut(value)
    return output.preview(json.dumps(_plain(value), ensure_ascii=False).encode())


def _time(value: int) -> str:
    return times.exactly(value) if value else "0"


def _cut(values: Sequence[Any]) -> str:
    """A list on one line: runs of the same value as one, the end left out if it is long."""
    if len(values) > 1 and all(each == values[0] for each in values):
        return f"{values[0]} x {len(values):,}"
    shown = ",".join(map(str, values[:_SHOWN]))
    return f"{shown},... ({len(values):,})" if len(values) > _SHOWN else shown
