"""The file of a text queue as `show --entries` prints it: coloured by state."""

from typing import Any

import click

from penstock.cli import output
from penstock.contract.store import Store
from penstock.errors import NotSupported
from penstock.stores.text.view import Shown

_STYLES: dict[str, dict[str, Any]] = {
    "available": {"fg": "green"},
    "delayed": {"fg": "blue"},
    "in_flight": {"fg": "yellow"},
    "done": {"dim": True},
    "expired": {"dim": True},
    "failed": {"fg": "red"},
    "comment": {"fg": "cyan", "dim": True},
    "skipped": {"fg": "magenta"},
    "blank": {},
}


def entries_of(store: Store, queue: str) -> list[Shown]:
    """The pieces of a queue's file; NotSupported if it is kept otherwise."""
    shown = getattr(store.backend, "shown", None)
    if shown is None:
        raise NotSupported(f"store {store.url!r} has no entries to show: --entries is for text stores")
    pieces: list[Shown] = shown(queue)
    return pieces


def print_entries(pieces: list[Shown]) -> None:
    """The file as it is, each piece in the colour of its state; a terminal gets nothing that could harm it."""
    for piece in pieces:
        for line in piece.raw.decode(errors="replace").removesuffix("\n").split("\n"):
            click.echo(click.style(output.printable(line), **_STYLES[piece.state]))


def entry_as_json(piece: Shown) -> dict[str, Any]:
    """An entry for programs."""
    said: dict[str, Any] = {"state": piece.state, "text": piece.raw.decode(errors="replace")}
    if piece.entry is not None:
        entry = piece.entry
        said = {
            "state": piece.state,
            "id": piece.id,
            "control": entry.control,
            "offset": entry.offset,
            "length": entry.length,
            "text": entry.content.decode(errors="replace"),
            "variables": [each.raw.decode(errors="replace") for each in entry.variables],
        }
    return said
