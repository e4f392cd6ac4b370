"""Retention for streams and followers: bodies that stay in the database after their messages have left the queue.

A stream can read its last settled batch again until it settles the next: the batch's messages are kept as they
were, with their bodies, whatever becomes of them in the queue. A message that has left its queue is held back
until all followers have read it. extensions.py describes the records.
"""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from penstock.engine import streams
from penstock.rules.records import (
    StreamClaim,
    StreamDelete,
    StreamFail,
    StreamRecord,
    StreamRelease,
    StreamReplay,
    StreamSettle,
)
from penstock.rules.rows import Rows
from penstock.rules.state import State
from penstock.rules.streams import Failure, Stream
from penstock.stores.slate import extensions, pages
from penstock.stores.slate.binding import Row
from penstock.stores.slate.extensions import (
    LARGE,
    PUBLISHED,
    Marks,
    Retained,
    StreamRow,
    encode_marks,
    encode_retained,
    stream_key,
)
from penstock.stores.slate.format import (
    BATCHES,
    BUCKET_BITS,
    FAILURES,
    FOLLOWED,
    HELD_BACK,
    KEPT,
    STREAM,
    queue_key,
)
from penstock.stores.slate.writing import Ids

BEFORE = "before "  # stands for the followers before the store was opened; no legal stream name
_BESIDE = 200  # bytes that a message takes beside its payload


class RetainedForFollowers:
    """The followers of one queue, and the messages held back for them; under the queue's lock."""

    def __init__(self, state: State, ids: Ids) -> None:
        self._state = state
        self._ids = ids
        self.marks: Marks | None = None  # None: the queue was never followed
        self.held: dict[int, Retained] = {}
        self._order: list[int] = []  # a heap of their numbers
        self._size = 0  # their bytes
        self.stored = 0  # bytes of payloads that are in the queue, or kept by streams
        self._followers: dict[Hashable, tuple[int, int]] = {}  # positions before and after each one's last batch
        self._lowest: int | None = None  # the lowest position before a last batch; None: no followers
        self._marked = False
        self._changed: dict[int, bytes | None] = {}

    # Followers

    def begin(self) -> bool:
        """Mark the queue as followed; whether that is new."""
        if self.marks is not None:
            return False
        last = self._ids.next - 1
        self.marks, self._marked, self.stored = Marks(last, last, last), True, self._state.stored
        return True

    def load(self, marks: Marks, held: Mapping[int, Retained], streams: Mapping[str, Stream]) -> None:
        """Recover: these streams follow, and for a while also any follower from before, under BEFORE."""
        self.marks, self.held, self.stored = marks, dict(held), self._state.stored
        self._order = list(held)
        heapify(self._order)
        self._size = sum(each.size + _BESIDE for each in held.values())
        self.add(BEFORE, 0, 0)
        for name, stream in streams.items():
            if stream.position is not None:
                self.add(name, 0, stream.position)

    def add(self, follower: Hashable, before: int, position: int) -> None:
        """Add a follower, or set its positions."""
        self._followers[follower] = before, position
        self._look()

    def move(self, follower: Hashable, position: int) -> None:
        """Note that a follower has read up to a number. It may ask for its last batch again."""
        before = self._followers.get(follower, (position, position))[1]
        self.add(follower, min(before, position), position)

    def leave(self, follower: Hashable) -> None:
        """Remove a follower."""
        self._followers.pop(follower, None)
        self._look()

    def _look(self) -> None:
        self._lowest = min((before for before, _ in self._followers.values()), default=None)

    # Messages that leave

    def let_go(self, seqs: Sequence[int], large: Container[int]) -> list[int]:
        """Hold back messages that leave the queue they were put into; returns those whose bodies can go."""
        if self.marks is None:
            return list(seqs)
        freed, self.stored = self.stored - self._state.stored, self._state.stored
        size, gone = max(0, freed) // max(1, len(seqs)), []
        for seq in seqs:
            if not self._holds(seq, Retained(size, LARGE if seq in large else 0)):
                self._mark(seq, 0)
                gone.append(seq)
        return gone + self.released()

    def left(self, seq: int) -> None:
        """A published message has left the queue. Its body is in the log; above `since` the filter finds it."""
        if self.marks is not None and (seq > self.marks.since or not self._holds(seq, Retained(0, PUBLISHED))):
            self._mark(seq, PUBLISHED)

    @property
    def lowest(self) -> int | None:
        """The number up to which every follower has read; None if there are none."""
        return self._lowest

    def note_entered(self, left: Iterable[int], last: int) -> None:
        """Raise `since` to `last`, as the filter is about to change.

        left: published messages that entered and left the queue, and that a follower has still to read
        """
        if self.marks is None:
            return
        for seq in left:
            self._holds(seq, Retained(0, PUBLISHED))
        # A follower that begins later cannot know which of these messages it has missed.
        unknown = last if self._lowest is None else min(self._lowest, last)
        self.marks = self.marks._replace(since=max(self.marks.since, last), put=max(self.marks.put, unknown))
        self._marked = True

    def _holds(self, seq: int, held: Retained) -> bool:
        if self._lowest is None or seq <= self._lowest:
            return False
        if seq not in self.held:
            self.held[seq] = held
            heappush(self._order, seq)
            self._size += held.size + _BESIDE
            self._changed[seq] = encode_retained(held)
        return True

    def _mark(self, seq: int, flags: int) -> None:
        """Record that a message is lost to followers."""
        if self.marks is None:
            return
        name = "published" if flags & PUBLISHED else "put"
        if seq > getattr(self.marks, name):
            self.marks = self.marks._replace(**{name: seq})
            self._marked = True

    def is_due(self) -> bool:
        """Whether a message need not be held back any longer, or too many bytes are."""
        if not self._order:
            return False
        return self._lowest is None or self._order[0] <= self._lowest or self._size > streams.HELD_BACK

    def released(self) -> list[int]:
        """Release messages while is_due() holds; returns those whose bodies can go."""
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

    # Records

    def lost_up_to(self, log: int) -> int:
        """The highest number that a follower may have lost; `log` is the highest that has left the log."""
        return 0 if self.marks is None else max(self.marks.put, min(self.marks.published, log))

    def rows(self) -> Iterator[Row]:
        """The rows that have changed since the last call."""
        queue = self._state.name
        if self._marked and self.marks is not None:
            yield queue_key(FOLLOWED, queue), encode_marks(self.marks)
        for seq, value in self._changed.items():
            yield queue_key(HELD_BACK, queue, seq), value
        self._marked, self._changed = False, {}

    def deletions(self) -> Iterator[Row]:
        """Deletions of all records, without bodies."""
        queue = self._state.name
        yield queue_key(FOLLOWED, queue), None
        for seq in [*self.held, *self._changed]:
            yield queue_key(HELD_BACK, queue, seq), None

    def bodies(self) -> list[int]:
        """The messages whose bodies only followers need."""
        return [seq for seq, held in self.held.items() if not held.flags & PUBLISHED]


_NOTHING = Rows(0)


class KeptForStreams:
    """The streams of one queue, and the messages kept for them; under the queue's lock."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._held: dict[str, set[int]] = {}  # by stream: the buckets of the messages that it holds
        self._failures: dict[str, dict[int, dict[int, Failure]]] = {}  # by stream, bucket and message
        self._kept: dict[str, Rows] = {}  # by stream: its last settled batch
        self.changed = False  # whether there are rows to write
        self._changed: set[str] = set()  # streams whose record has changed
        self._written: set[str] = set()  # streams that have a record in the database
        self._buckets_changed: dict[int, set[tuple[str, int]]] = {
            FAILURES: set(),
            KEPT: set(),
        }  # by type of record

    def load(self, streams: Mapping[str, Stream]) -> None:
        """Recover the streams, with the messages that they hold and keep."""
        self._written.update(streams)
        for name, stream in streams.items():
            self._kept[name] = stream.kept
            if stream.held is not None:
                self._held[name] = {seq >> BUCKET_BITS for seq in stream.held.seqs}
                self._add_failures(name, stream.held.failures.items())

    def _add_failures(self, stream: str, failures: Iterable[tuple[int, Failure]]) -> set[tuple[str, int]]:
        of_stream, changed = self._failures.setdefault(stream, {}), set()
        for seq, failure in failures:
            of_stream.setdefault(seq >> BUCKET_BITS, {})[seq] = failure
            changed.add((stream, seq >> BUCKET_BITS))
        return changed

    def note(self, record: StreamRecord) -> tuple[set[int], list[int]]:
        """Note an applied record; returns the buckets that it changed, and the messages whose bodies can go."""
        self.changed = True
        name, changed, gone = record.stream, set[int](), list[int]()
        if isinstance(record, StreamFail):
            failures = dict.fromkeys(record.seqs, Failure(record.reason, record.delay)).items()
            self._buckets_changed[FAILURES] |= self._add_failures(name, failures)
            return changed, gone
        if isinstance(record, StreamReplay | StreamSettle | StreamRelease):
            failed = self._failures.pop(name, {})
            self._buckets_changed[FAILURES] |= {(name, bucket) for bucket in failed}
        if isinstance(record, StreamClaim):
            changed = self._held[name] = {seq >> BUCKET_BITS for seq in record.seqs}
        elif isinstance(record, StreamSettle | StreamRelease):
            changed = self._held.pop(name, set())
        if isinstance(record, StreamSettle | StreamDelete):
            gone = self._keep_other(name)
        self._changed.add(name)
        return changed, gone

    def _keep_other(self, name: str) -> list[int]:
        """Note the batch that a stream keeps now, if any; returns the messages whose bodies can go."""
        stream, before = self._state.streams.get(name), self._kept.pop(name, _NOTHING)
        if stream is not None:
            self._kept[name] = stream.kept
        self._buckets_changed[KEPT] |= {
            (name, first >> BUCKET_BITS)
            for rows in (before, self._kept.get(name, _NOTHING))
            for first, _ in rows.pages()
        }
        return [seq for seq in put_here(before) if not self._state.has(seq) and not self.keeps(seq)]

    def keeps(self, seq: int) -> bool:
        """Whether a message is in the last settled batch of a stream."""
        for rows in self._kept.values():  # noqa: SIM110 - any() takes twice as long, for each message of a batch
            if rows.find(seq) is not None:
                return True
        return False

    def needed(self, seqs: Sequence[int]) -> set[int]:
        """The messages among these that streams hold or keep."""
        if not self._written and not self._changed:
            return set()
        return {seq for seq in seqs if self.keeps(seq) or self._state.streams.holds(seq)}

    def rows(self) -> Iterator[Row]:
        """The rows that have changed since the last call."""
        queue, self.changed = self._state.name, False
        if self._changed:
            yield queue_key(BATCHES, queue), extensions.encode_last_batch(self._state.streams.last_batch)
        for name in sorted(self._changed):
            stream = self._state.streams.get(name)
            value = None if stream is None else extensions.encode_stream(_row(stream))
            yield stream_key(STREAM, queue, name), value
            (self._written.discard if stream is None else self._written.add)(name)
        for kind, encoded in ((FAILURES, self._encoded_failures), (KEPT, self._encoded_kept)):
            for name, bucket in sorted(self._buckets_changed[kind]):
                yield stream_key(kind, queue, name, bucket), encoded(name, bucket)
            self._buckets_changed[kind].clear()
        self._changed.clear()

    def _encoded_failures(self, name: str, bucket: int) -> bytes | None:
        failures = self._failures.get(name, {}).get(bucket)
        return extensions.encode_failures(failures) if failures else None

    def _encoded_kept(self, name: str, bucket: int) -> bytes | None:
        page = self._kept.get(name, _NOTHING).page(bucket)
        return None if page is None else pages.encode_kept(bucket, page)

    def deletions(self) -> Iterator[Row]:
        """Deletions of all records of the streams, without bodies."""
        queue = self._state.name
        yield queue_key(BATCHES, queue), None
        for name in self._written | self._changed:
            yield stream_key(STREAM, queue, name), None
            for bucket in self._failures.get(name, {}):
                yield stream_key(FAILURES, queue, name, bucket), None
            for first, _ in self._kept.get(name, _NOTHING).pages():
                yield stream_key(KEPT, queue, name, first >> BUCKET_BITS), None

    def kept_alone(self) -> Iterator[int]:
        """The messages that streams keep and that are no longer in the queue."""
        for rows in self._kept.values():
            yield from [seq for seq in put_here(rows) if not self._state.has(seq)]


def _row(stream: Stream) -> StreamRow:
    held = None if stream.held is None else (stream.held.number, stream.held.at)
    return StreamRow(stream.reader, stream.settled, stream.before, stream.position, held)


def put_here(rows: Rows) -> Iterator[int]:
    """The messages that were put into the queue, not published: the queue owns their bodies."""
    for first, page in rows.pages():
        keys = page.keys()
        for at, state in enumerate(page.state):
            if state and not page.crc[at] & PUBLISHED:
                yield first + keys[at]
