"""Which message of an edited file is which of those that something is noted about. Pure.

A message that Penstock has put is known by its id. A person's message has none: it is known by its text, and where
several read alike by its place among them, for as long as they are as many as before. What cannot be told apart is
not guessed: nobody may settle a message that is not the one he holds.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.stores.text.mutex import Note


class Known(NamedTuple):
    """How a message of the file is told from others."""

    offset: int
    crc: int
    id: str | None


def in_place(notes: Iterable[Note], entries: Sequence[Known]) -> dict[int, Note]:
    """The notes by the position of their entry, in a file that nobody has edited."""
    places = {entry.offset: at for at, entry in enumerate(entries)}
    found = {}
    for note in notes:
        at = places.get(note.offset)
        if at is not None and entries[at].crc == note.crc:
            found[at] = note
    return found


def by_content(notes: Iterable[Note], entries: Sequence[Known]) -> dict[int, Note]:
    """The same in a file that may have been edited."""
    ids: dict[str, list[int]] = {}
    texts: dict[int, list[int]] = {}
    for at, entry in enumerate(entries):
        if entry.id is None:
            texts.setdefault(entry.crc, []).append(at)
        else:
            ids.setdefault(entry.id, []).append(at)
    found = {}
    for note in notes:
        if note.id is not None:
            alike, number, count = ids.get(note.id, []), 0, 1
        else:
            alike, (number, count) = texts.get(note.crc, []), note.twin
        if len(alike) == count:
            found[alike[number]] = note
    return found


def twins(entries: Sequence[Known]) -> dict[int, tuple[int, int]]:
    """Of people's messages that read like others: which of how many they are, by position."""
    counts = Counter(entry.crc for entry in entries if entry.id is None)
    seen: Counter[int] = Counter()
    found = {}
    for at, entry in enumerate(entries):
        if entry.id is None and counts[entry.crc] > 1:
            found[at] = (seen[entry.crc], counts[entry.crc])
            seen[entry.crc] += 1
    return found
