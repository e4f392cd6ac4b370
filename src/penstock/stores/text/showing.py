"""A queue's file piece by piece, each with what became of it: for people who look at it. Pure."""

from typing import NamedTuple

from penstock.stores.text.format import COMMENT, FAILED, PROCESSED, Entry, parse
from penstock.stores.text.view import View

_STATES = {COMMENT: "comment", PROCESSED: "done", FAILED: "failed"}


class Shown(NamedTuple):
    """Bytes of the file; an entry, or lines that belong to none."""

    state: str  # a message's; or "comment", "skipped", "blank"
    raw: bytes
    id: str | None = None
    entry: Entry | None = None


def shown(data: bytes, view: View) -> list[Shown]:
    """All of the file, in its order."""
    pieces: list[Shown] = []
    at = 0
    states = {
        message: state for state in view.ledger.counts() for message in view.ledger.listed(state, 0, 1 << 62)
    }
    for entry in parse(data).entries:
        pieces += _between(data[at : entry.offset])
        at = entry.offset + entry.length
        seq = view.table.at(entry.offset)
        state = _STATES.get(entry.control) or states.get(seq or 0, "expired")
        name = view.table.ids[seq] if seq is not None and entry.control != COMMENT else None
        pieces.append(Shown(state, data[entry.offset : at], name, entry))
    return pieces + _between(data[at:])


def _between(data: bytes) -> list[Shown]:
    return [Shown("skipped" if line.strip(b"\n") else "blank", line) for line in data.splitlines(keepends=True)]
