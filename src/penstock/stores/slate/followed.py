"""What followers of a queue have still to read: bodies of messages that have gone from the queue stay for them.

    followed    01 18 | queue ID                    -> since u64 | put u64 | published u64
    held back   01 19 | queue ID | message ID u64   -> bytes, about u32 | flags u8, as in sizes

The first is there once a queue was followed: `since` is the highest number there was then; `put` and `published`
are the highest of messages that are gone for good: of those put there, and of those published that have left the
queue. Under the empty name `published` is the highest of those that have left the log. So who has read up to a
number knows whether anything after it is lost. Of what was published up to `since` only the queue itself can tell
what it was offered; so that is held back, too, but for the body, which is the log's.
"""

import struct
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.engine import following
from penstock.rules.index.streams import Stream
from penstock.rules.stream_state import StreamState
from penstock.stores.slate.binding import Row
from penstock.stores.slate.format import FOLLOWED, HELD_BACK, queue_key
from penstock.stores.slate.ids import Ids
from penstock.stores.slate.own import LARGE, PUBLISHED
from penstock.stores.slate.primitives import Reader

_FOLLOWED = struct.Struct("<QQQ")
_HELD = struct.Struct("<IB")
BEFORE = "before "  # stands for those who followed when the store was closed; no stream has such a name
_BESIDE = 200  # bytes that a message takes beside its payload


class Marks(NamedTuple):
    """The numbers of a followed queue."""

    since: int
    put: int
    published: int


class Held(NamedTuple):
    """A message that is held back."""

    size: int
    flags: int


def encode_marks(marks: Marks) -> bytes:
    """The numbers of a followed queue."""
    return _FOLLOWED.pack(*marks)


def decode_marks(value: bytes) -> Marks:
    """The numbers of a followed queue."""
    reader = Reader(value, "a followed record")
    marks = Marks(*reader.fields(_FOLLOWED))
    reader.end()
    return marks


def encode_held(held: Held) -> bytes:
    """A message that is held back."""
    return _HELD.pack(min(held.size, 2**32 - 1), held.flags)


def decode_held(value: bytes) -> Held:
    """A message that is held back."""
    reader = Reader(value, "a held back record")
    held = Held(*reader.fields(_HELD))
    reader.end()
    return held


class Followed:
    """The followers of one queue, and what is held back for them; under its lock."""

    def __init__(self, state: StreamState, ids: Ids) -> None:
        self._state = state
        self._ids = ids
        self.marks: Marks | None = None  # None: the queue was never followed, and nothing here matters
        self.held: dict[int, Held] = {}
        self._order: list[int] = []  # of those, a heap
        self._size = 0  # of those
        self._stored = 0  # bytes of payloads that are in the queue, or kept by streams
        self._followers: dict[Hashable, tuple[int, int]] = {}  # what each read before the last batch, and with it
        self._lowest: int | None = None  # that all have read, the last batches left out; None: there is nobody
        self._marked = False
        self._changed: dict[int, bytes | None] = {}

    # Who follows

    def begin(self) -> bool:
        """Be followed from now on; whether that is new."""
        if self.marks is not None:
            return False
        last = self._ids.next - 1
        self.marks, self._marked, self._stored = Marks(last, last, last), True, self._state.stored
        return True

    def load(self, marks: Marks, held: Mapping[int, Held], streams: Mapping[str, Stream]) -> None:
        """As it was found: followed by these streams, and maybe by others who may come back."""
        self.marks, self.held, self._stored = marks, dict(held), self._state.stored
        self._order = list(held)
        heapify(self._order)
        self._size = sum(each.size + _BESIDE for each in held.values())
        self.add(BEFORE, 0, 0)
        for name, stream in streams.items():
            if stream.position is not None:
                self.add(name, 0, stream.position)

    def add(self, follower: Hashable, before: int, position: int) -> None:
        """One of whom is known how far it has come."""
        self._followers[follower] = before, position
        self._look()

    def move(self, follower: Hashable, position: int) -> None:
        """One has read all up to a number. What it read last may be asked for again."""
        before = self._followers.get(follower, (position, position))[1]
        self.add(follower, min(before, position), position)

    def leave(self, follower: Hashable) -> None:
        """One follows no longer."""
        self._followers.pop(follower, None)
        self._look()

    def _look(self) -> None:
        self._lowest = min((before for before, _ in self._followers.values()), default=None)

    # What goes

    def placed(self, size: int) -> None:
        """So many bytes of payloads have come into the queue."""
        self._stored += size

    def let_go(self, seqs: Sequence[int], large: Container[int]) -> list[int]:
        """Messages that were put into the queue are not needed there any more; those whose bodies can go."""
        if self.marks is None:
            return list(seqs)
        freed, self._stored = self._stored - self._state.stored, self._state.stored
        size, gone = max(0, freed) // max(1, len(seqs)), []
        for seq in seqs:
            if not self._holds(seq, Held(size, LARGE if seq in large else 0)):
                self._mark(seq, 0)
                gone.append(seq)
        return gone + self.released()

    def left(self, seq: int) -> None:
        """A published message has left the queue; its body is in the log. Above `since` the filter knows it."""
        if self.marks is not None and (seq > self.marks.since or not self._holds(seq, Held(0, PUBLISHED))):
            self._mark(seq, PUBLISHED)

    def _holds(self, seq: int, held: Held) -> bool:
        if self._lowest is None or seq <= self._lowest:
            return False
        if seq not in self.held:
            self.held[seq] = held
            heappush(self._order, seq)
            self._size += held.size + _BESIDE
            self._changed[seq] = encode_held(held)
        return True

    def _mark(self, seq: int, flags: int) -> None:
        """A message is gone for good, from the queue at least."""
        if self.marks is None:
            return
        name = "published" if flags & PUBLISHED else "put"
        if seq > getattr(self.marks, name):
            self.marks = self.marks._replace(**{name: seq})
            self._marked = True

    def is_due(self) -> bool:
        """Whether there is anything to be let go of."""
        if not self._order:
            return False
        return self._lowest is None or self._order[0] <= self._lowest or self._size > following.HELD_BACK

    def released(self) -> list[int]:
        """Messages that nobody waits for, or that are too many; those of them whose bodies can go."""
        gone = []
        while self.is_due():
            seq = heappop(self._order)
            held = self.held.pop(seq)
            self._size -= held.size + _BESIDE
            self._changed[seq] = None
            self._mark(seq, held.flags)
            if not held.flags & PUBLISHED:
                gone.append(seq)
        return gone

    # What is known

    def lost_up_to(self, log: int) -> int:
        """The highest number that may be missing; `log` is the highest that has left the log."""
        return 0 if self.marks is None else max(self.marks.put, min(self.marks.published, log))

    def rows(self) -> Iterator[Row]:
        """What has changed since the last time."""
        queue = self._state.name
        if self._marked and self.marks is not None:
            yield queue_key(FOLLOWED, queue), encode_marks(self.marks)
        for seq, value in self._changed.items():
            yield queue_key(HELD_BACK, queue, seq), value
        self._marked, self._changed = False, {}

    def deletions(self) -> Iterator[Row]:
        """Deletions of all records, the bodies not included."""
        queue = self._state.name
        yield queue_key(FOLLOWED, queue), None
        for seq in [*self.held, *self._changed]:
            yield queue_key(HELD_BACK, queue, seq), None

    def bodies(self) -> list[int]:
        """Messages whose bodies are there for followers alone."""
        return [seq for seq, held in self.held.items() if not held.flags & PUBLISHED]
