"""What tests of journals share: stores on a simulated clock, readers of the document, damage."""

import json
import os
from pathlib import Path
from typing import Any

from penstock import Queue, SimulatedClock, Store
from penstock.stores.journal import replay
from penstock.stores.journal.format import AddX, Dialect, Entry, encode
from penstock.stores.journal.loads import make_folder
from penstock.stores.journal.staging import new_name
from penstock.stores.journal.store import JournalBackend, open_journal

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "kestrel.json").read_text())
NOW = SimulatedClock().now()


def journal(folder: Path, clock: SimulatedClock | None = None, sync: str = "never", **options: Any) -> Store:
    """A store in a folder, opened."""
    return Store(str(folder), open_journal(folder, clock=clock or SimulatedClock(), sync=sync, **options))


def begin_load(backend: JournalBackend) -> str:
    """The name of a load that this process stages; its folder is made."""
    load = new_name(os.getpid())
    make_folder(backend._disk, backend.folder, load)
    return load


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
