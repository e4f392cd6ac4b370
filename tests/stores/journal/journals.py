"""What tests of journals share: stores on a simulated clock, readers of the document, damage."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Queue, SimulatedClock, Store
from penstock.contract.message import Entry as Draft
from penstock.contract.settings import Settings
from penstock.stores.journal import replay
from penstock.stores.journal.format import AddX, Dialect, Entry, encode
from penstock.stores.journal.loads import Load, make_folder
from penstock.stores.journal.staging import Part, Piece, new_name
from penstock.stores.journal.store import JournalBackend, open_journal

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "kestrel.json").read_text())
NOW = SimulatedClock().now()


def journal(folder: Path, clock: SimulatedClock | None = None, sync: str = "never", **options: Any) -> Store:
    """A store in a folder, opened."""
    return Store(str(folder), open_journal(folder, clock=clock or SimulatedClock(), sync=sync, **options))


def new_part(backend: JournalBackend) -> tuple[str, Callable[[str], Part]]:
    """The name of a load that this process stages, and a function that makes its parts."""
    load = new_name(os.getpid())
    folder = make_folder(backend._disk, backend.folder, load)
    return load, lambda file: Part(backend._disk, folder, load, file)


def staged(backend: JournalBackend, parts: dict[str, dict[str, list[Draft]]], group: int = 2, **more: Any) -> Load:
    """A load of files, each with groups of entries of some queues."""
    load, part_of = new_part(backend)
    pieces: list[Piece] = []
    for file, queues in parts.items():
        part = part_of(file)
        for queue, entries in queues.items():
            for start in range(0, len(entries), group):
                part.add_entries(queue, entries[start : start + group], Settings(), 1_700_000_000_000)
        part.close()
        pieces += part.pieces
    return Load(load, pieces, **more)


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.messages()]


def by_document(folder: Path, name: str = "jobs", dialect: Dialect = "doc") -> list[bytes]:
    """What a reader of the document sees in a journal of ours: nothing but open transactions."""
    state = replay(folder, name, dialect)
    assert (list(state.queue), state.broken) == ([], None)
    return sorted(state.open.values())


def written(*entries: Entry) -> bytes:
    return b"".join(map(encode, entries))


def item(payload: bytes, expiry: int = 0) -> AddX:
    return AddX(NOW - 60_000, expiry, payload)


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, but for the lock, which says who has it."""
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != "lock"]
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 4]))


def stray(path: Path, kind: str, elsewhere: Path) -> None:
    """Something that is no file."""
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            elsewhere.write_bytes(written(item(b"secret")))
            path.symlink_to(elsewhere)
        case "link to nothing":
            path.symlink_to(elsewhere)


STRAYS = ["folder", "pipe", "link", "link to nothing"]
