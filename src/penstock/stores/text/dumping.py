"""A text queue's file entry by entry, for `penstock dump`: read only, and without the queue's lock."""

import os
from collections.abc import Iterator
from contextlib import suppress

from penstock.contract.dumps import Piece, damaged, reading
from penstock.stores.text import mutex
from penstock.stores.text.catalog import stem_of
from penstock.stores.text.files import SUFFIX as MUTEX
from penstock.stores.text.format import parse
from penstock.stores.text.mutex import HEAD, seal_of
from penstock.stores.text.view import View, load, shown
from penstock.system.clock import FOLLOWED, SystemClock
from penstock.system.files import ReadingDisk


def dump(path: str) -> Iterator[Piece]:
    """Every entry and skipped line of a file, in its order, with the states of the messages.

    >>> list(dump("jobs.tq"))
    """
    noted = b""
    with reading(path) as file:
        data, there = file.read(0, file.size()), file.status()
    with suppress(FileNotFoundError), ReadingDisk().open(os.path.realpath(path) + MUTEX) as file:
        noted = file.read(0, file.size())
    document, now = parse(data), SystemClock().now()
    memory = mutex.read(noted[HEAD:], HEAD)
    intact = mutex.read_seal(noted) == seal_of(there)
    name, changed = stem_of(os.path.basename(path)), there.changed // 1_000_000
    view: View = load(name, document, len(data), memory, intact, changed, now, now + FOLLOWED).view
    view.ledger.state.advance(max(now, view.at))
    reasons = {problem.offset: problem.what for problem in document.problems}
    offset = 0
    for piece in shown(data, view):
        size = len(piece.raw)
        if piece.entry is not None:
            fields = {
                "id": piece.id,
                "control": piece.entry.control,
                "size": size,
                "text": piece.entry.content,
                "variables": [each.raw.decode(errors="replace").rstrip() for each in piece.entry.variables],
            }
            yield Piece("comment" if piece.state == "comment" else "message", fields, offset, state=piece.state)
        elif piece.state == "skipped":
            yield damaged(offset, reasons.get(offset, "it belongs to no message"), size)
        offset += size
    if len(noted) > HEAD and memory.end != len(noted):
        yield damaged(
            None, f"{path + MUTEX!r} is torn at offset {memory.end}: what it says from there on is not shown"
        )
