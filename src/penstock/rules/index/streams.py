"""What a queue knows of streams: who reads each, the batch that it holds, and the last one that was settled.

The messages of a held batch are rows of the queue, in flight without an end. Those of the last settled batch were
copied when they were settled, so that it can be read again whatever has become of them since.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.rules.index.rows import CLAIM_COLUMNS, COLUMNS, PAGE, Claims, Page, Rows

Seqs = Sequence[int]


class Failure(NamedTuple):
    """What is to become of a message that fails when its batch is settled."""

    reason: str | None
    delay: int = 0  # milliseconds from then on until it is tried again


class Run(NamedTuple):
    """One run of a stream that reads what is there when it begins, each message once."""

    name: str
    since: int  # when it began
    below: int  # the number that the next message would have got


@dataclass(slots=True)
class Batch:
    """Messages that a stream holds under a number."""

    number: int
    at: int  # when it was claimed
    seqs: Seqs  # ascending; none if it was given back
    failures: dict[int, Failure] = field(default_factory=dict)  # what is to fail when it is settled

    def copy(self) -> "Batch":
        """The batch as it is now; the numbers of its messages never change."""
        return Batch(self.number, self.at, self.seqs, dict(self.failures))


@dataclass(slots=True)
class Stream:
    """One stream. It holds one batch at most: the next is claimed when that is settled."""

    reader: str  # the process that may claim batches
    held: Batch | None = None
    settled: int = 0  # the number of the last batch that was settled, 0 if none was
    before: int = 0  # and of the one before that
    kept: Rows = field(default_factory=lambda: Rows(0))  # its messages as they were read
    position: int | None = None  # of one that follows: the message up to which it has read

    @property
    def last(self) -> int:
        """The number of its latest batch, 0 if there was none; of one that follows, how far it has come."""
        if self.position is not None:
            return self.position
        return self.settled if self.held is None else self.held.number

    def copy(self) -> "Stream":
        """The stream as it is now."""
        held = None if self.held is None else self.held.copy()
        return Stream(self.reader, held, self.settled, self.before, self.kept.copy(), self.position)


class FrozenStreams(NamedTuple):
    """All streams of a queue at one moment."""

    last_batch: int = 0  # no batch of any stream, gone ones included, has a higher number
    streams: dict[str, Stream] = {}  # noqa: RUF012 - never changed


def compact(seqs: Sequence[int]) -> Seqs:
    """Ascending numbers in as little memory as may be."""
    ordered = sorted(seqs)
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
        return range(ordered[0], ordered[-1] + 1)
    return array("Q", ordered)


def picked(rows: Rows, seqs: Seqs) -> Rows:
    """A copy of the rows of these messages, which are there, by ascending number."""
    taken = Rows(0)
    start = 0
    while start < len(seqs):
        number = seqs[start] // PAGE
        end = bisect_left(seqs, (number + 1) * PAGE, start)
        page, _ = rows[seqs[start]]
        whole = page.positions is None and end - start == len(page.state) == PAGE
        taken.take_page(number, page.copy() if whole else _part(page, [seq % PAGE for seq in seqs[start:end]]))
        start = end
    return taken


def _part(page: Page, keys: Sequence[int]) -> Page:
    """Some rows of a page."""
    part = Page()
    at = list(keys) if page.positions is None else [page.positions[key] for key in keys]
    first, last = at[0], at[-1] + 1
    together = last - first == len(at)
    part.state = page.state[first:last] if together else bytearray(page.state[each] for each in at)
    for name in COLUMNS:
        column = getattr(page, name)
        part_of = column[first:last] if together else array(column.typecode, [column[each] for each in at])
        setattr(part, name, part_of)
    if page.claims is not None:
        claims, part.claims = page.for_claims(at[-1]), Claims()
        for name in CLAIM_COLUMNS:
            column = getattr(claims, name)
            values = column[first:last] if together else [column[each] for each in at]
            setattr(part.claims, name, array(column.typecode, values) if isinstance(column, array) else values)
    part.live = len(at)
    part.positions = {key: position for position, key in enumerate(keys)}
    return part
