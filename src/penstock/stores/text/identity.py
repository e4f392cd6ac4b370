"""Identity of messages in a text queue's file: finds the entry of each note after the file was edited. Pure.

A message that Penstock has put is identified by its id. A person's message has none. It is identified by its text,
and among entries that read alike, its twins, by order:

- Are they as many as before, their numbers stay.
- Else the notes of other messages tell how far the bytes around a twin have moved; before the first of them they
  have not moved at all, and after the last one they have moved by what the file has grown. Of a line that was
  added or removed between two such places, the entries before it are still where they were, and those after it
  have moved with the next place.

Of twins that lie next to each other nobody can tell which one was removed. If there are as many left as were held,
the leases stay in their order; else those that may be meant lose theirs. A message that cannot be identified loses
its note and its lease: a consumer must never settle another message than its own.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.stores.text.mutex import Note


class Identity(NamedTuple):
    """The identity of a message in the file."""

    offset: int
    crc: int
    id: str | None


class Twins:
    """People's entries by their texts: how many read alike, and the number of each entry among those."""

    def __init__(self, entries: Iterable[Identity] = ()) -> None:
        self.counts: Counter[int] = Counter()
        self._numbers: dict[int, int] = {}  # by offset, but for the first of each text
        for entry in entries:
            if entry.id is None:
                self.add(entry.offset, entry.crc)

    def add(self, offset: int, crc: int) -> None:
        """Add an entry after all others."""
        if number := self.counts[crc]:
            self._numbers[offset] = number
        self.counts[crc] += 1

    def of(self, offset: int, crc: int) -> tuple[int, int]:
        """Note.twin of an entry."""
        return self._numbers.get(offset, 0), max(self.counts[crc], 1)


def in_place(notes: Iterable[Note], entries: Sequence[Identity]) -> dict[int, Note]:
    """The notes by the position of their entry, in a file that only Penstock has changed."""
    places = {entry.offset: at for at, entry in enumerate(entries)}
    found = {}
    for note in notes:
        at = places.get(note.offset)
        if at is not None and entries[at].crc == note.crc:
            found[at] = note
    return found


def by_content(notes: Iterable[Note], entries: Sequence[Identity], grown: int | None = None) -> dict[int, Note]:
    """The notes by the position of their entry, in a file that may have been edited.

    `grown`: by how many bytes the file has grown since the notes were true; None if that is unknown.
    """
    ids: dict[str, list[int]] = {}
    texts: dict[int, list[int]] = {}
    for at, entry in enumerate(entries):
        if entry.id is None:
            texts.setdefault(entry.crc, []).append(at)
        else:
            ids.setdefault(entry.id, []).append(at)
    found: dict[int, Note] = {}
    unsure: dict[int, list[Note]] = {}  # by text
    for note in notes:
        if note.id is not None:
            alike, number, count = ids.get(note.id, []), 0, 1
        else:
            alike, (number, count) = texts.get(note.crc, []), note.twin
        if len(alike) == count:
            found[alike[number]] = note
        elif alike and note.id is None:
            unsure.setdefault(note.crc, []).append(note)
    if unsure:
        moves = _Moves(
            [(note.offset, entries[at].offset) for at, note in found.items() if note.twin[1] == 1], grown
        )
        for crc, alike_notes in unsure.items():
            places = {entries[at].offset: at for at in texts[crc]}
            for held in (True, False):  # a lease is worth more than the attempts of a message that waits
                some = [note for note in alike_notes if (note.state == "in_flight") == held]
                for at, note in _by_order(some, places, moves):
                    found[at] = note
                    del places[entries[at].offset]
    return found


class _Moves:
    """How far the bytes of a file have moved by an edit, at messages that are known."""

    def __init__(self, known: list[tuple[int, int]], grown: int | None) -> None:
        known.sort()
        self._before = [before for before, _ in known]
        self._by = [0, *(after - before for before, after in known), grown]

    def gap(self, offset: int) -> int:
        """The number of the gap between known messages that an offset is in."""
        return bisect_right(self._before, offset)

    def around(self, gap: int) -> tuple[int, int]:
        """By how much the bytes at the start and at the end of a gap have moved."""
        start, end = self._by[gap : gap + 2]
        return start or 0, start or 0 if end is None else end


def _by_order(notes: Iterable[Note], places: Mapping[int, int], moves: _Moves) -> list[tuple[int, Note]]:
    """Positions and notes of twins, as far as their order tells; `places` are positions of entries by offset."""
    gaps: dict[int, list[Note]] = {}
    for note in sorted(notes, key=lambda each: each.offset):
        gaps.setdefault(moves.gap(note.offset), []).append(note)
    found = [each for gap, alike in gaps.items() for each in _aligned(alike, places, *moves.around(gap))]
    taken = Counter(offset for offset, _ in found)
    return [(places[offset], note) for offset, note in found if taken[offset] == 1]


def _aligned(notes: list[Note], places: Mapping[int, int], start: int, end: int) -> list[tuple[int, Note]]:
    """New offsets of the notes in one gap: the first ones have moved by `start`, the last ones by `end`.

    The notes between, as few as possible, were removed.
    """
    offsets = [note.offset for note in notes]
    first = next((at for at, each in enumerate(offsets) if each + start not in places), len(notes))
    last = len(notes) - next((at for at, each in enumerate(offsets[::-1]) if each + end not in places), len(notes))
    cuts = []  # notes before the first number have moved by `start`, from the second on by `end`
    for cut in range(first + 1):
        # No two notes at one entry, and none behind the next.
        beyond = bisect_right(offsets, offsets[cut - 1] + start - end) if cut else 0
        cuts.append((cut, max(cut, last, beyond)))
    fewest = min(stop - cut for cut, stop in cuts)
    best = [each for each in cuts if each[1] - each[0] == fewest]
    kept = best[-1] if not fewest else (best[0][0], best[-1][1])  # what all of them agree on
    return [(note.offset + start, note) for note in notes[: kept[0]]] + [
        (note.offset + end, note) for note in notes[kept[1] :]
    ]
