"""Rules of a queue's streams: readers, held batches, and the batch that a reader is offered.

A reader names the last batch that Spark has committed, and the stream settles that batch. The reader is offered
the batch that the stream holds; a new one is claimed only if there is none. So whatever is lost between store and
reader, the same messages are offered again under the same number.

The messages of a held batch are rows of the queue, in flight without a lease end: neither time nor other consumers
take them. When the batch is settled they are done or fail like any message, and expired ones are dropped. The rows
of the last settled batch are kept as a copy, so that it can be read again.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.contract.streams import StreamInfo
from penstock.errors import StreamInUse, StreamMismatch, StreamNotFound
from penstock.rules import effects
from penstock.rules.records import (
    BY_BACKOFF,
    Claim,
    StreamBegin,
    StreamClaim,
    StreamDelete,
    StreamFail,
    StreamFollow,
    StreamRecord,
    StreamRelease,
    StreamReplay,
    StreamSettle,
)
from penstock.rules.rows import DONE, IN_FLIGHT, PAGE, Page, Rows

if TYPE_CHECKING:
    from penstock.rules.state import State

CONSUMER = "stream:"  # prefix of the consumer of messages that a stream holds
_Record = TypeVar("_Record", bound=StreamRecord)
Seqs = Sequence[int]


class Failure(NamedTuple):
    """A message of a held batch that will fail when the batch is settled."""

    reason: str | None
    delay: int = 0  # milliseconds after the batch is settled; 0: by the queue's backoff


class Run(NamedTuple):
    """One run of a stream: it reads the messages that exist when it begins, each once."""

    name: str
    since: int  # when it began
    below: int  # the next message's number at that time


@dataclass(slots=True)
class Batch:
    """Messages that a stream holds under a number."""

    number: int
    at: int  # when it was claimed
    seqs: Seqs  # ascending; empty if the batch was released
    failures: dict[int, Failure] = field(default_factory=dict)  # messages that fail when the batch is settled

    def copy(self) -> "Batch":
        """A copy; `seqs` is shared, as it never changes."""
        return Batch(self.number, self.at, self.seqs, dict(self.failures))


@dataclass(slots=True)
class Stream:
    """One stream. It holds at most one batch: the next is claimed after that is settled."""

    reader: str  # the process that may claim batches
    held: Batch | None = None
    settled: int = 0  # the number of the last settled batch; 0: none yet
    before: int = 0  # the number of the batch settled before that
    kept: Rows = field(default_factory=lambda: Rows(0))  # rows of the last settled batch, when they were settled
    position: int | None = None  # of a follower: the last message that it has read

    @property
    def last(self) -> int:
        """The number of its latest batch, 0 if there was none; of a follower, its position."""
        if self.position is not None:
            return self.position
        return self.settled if self.held is None else self.held.number

    def copy(self) -> "Stream":
        """A copy of the stream."""
        held = None if self.held is None else self.held.copy()
        return Stream(self.reader, held, self.settled, self.before, self.kept.copy(), self.position)


class StreamsSnapshot(NamedTuple):
    """All streams of a queue at one moment."""

    last_batch: int = 0  # the highest number of any batch, also of deleted streams
    streams: dict[str, Stream] = {}  # noqa: RUF012 - never changed


class Streams:
    """The streams of one queue. Rules return the record of a change, or None if nothing changed."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self._queue = state.name
        self._streams: dict[str, Stream] = {}
        self.last_batch = 0  # the highest number of any batch, also of deleted streams

    def __bool__(self) -> bool:
        return bool(self._streams)

    def all(self) -> list[StreamInfo]:
        """Every stream, by name."""
        return [self.info(name) for name in sorted(self._streams)]

    def info(self, stream: str) -> StreamInfo:
        """One stream."""
        found, name = self._known(stream), self._queue
        held = found.held or Batch(0, 0, ())
        if found.position is not None:
            lag = max(0, self._state.next_seq - 1 - found.position)
            return StreamInfo(name, stream, "follow", found.last, 0, 0, None, 0, found.reader, lag)
        return StreamInfo(
            name, stream, "consume", found.last, found.settled, len(held.seqs),
            held.at if held.seqs else None, len(held.failures), found.reader, self._state.available(),
        )  # fmt: skip

    def reader(self, stream: str) -> str | None:
        """The reader, or the last one; None if there is no such stream."""
        found = self._streams.get(stream)
        return None if found is None else found.reader

    def begin(self, stream: str, reader: str, now: int) -> StreamBegin | None:
        """Set the reader of a stream. The caller checks that the last reader has ended."""
        self._state.advance(now)
        self._check_mode(stream, follows=False)
        if self.reader(stream) == reader:
            return None
        return self._do(StreamBegin(now, stream, reader))

    def follow(self, stream: str, reader: str, position: int, now: int) -> StreamFollow | None:
        """Record the position of a named follower."""
        self._state.advance(now)
        self._check_mode(stream, follows=True)
        found = self._streams.get(stream)
        if found is not None and (found.reader, found.position) == (reader, position):
            return None
        return self._do(StreamFollow(now, stream, reader, position))

    def offer(self, stream: str, reader: str, start: int, now: int) -> tuple[StreamSettle | None, int | None]:
        """Settle batch `start`, and return the batch to offer; None if one must be claimed."""
        self._state.advance(now)
        found = self._read_by(stream, reader)
        if start and start == found.before and start < found.settled:
            return None, found.settled  # the reader repeats its last call
        settled = None
        if found.held is not None and start == found.held.number:
            settled = self._do(StreamSettle(now, stream, start))
        elif start != found.settled:
            raise self._mismatch(stream, found, start)
        return settled, None if found.held is None else found.held.number

    def due(self, stream: str, n: int, run: Run | None = None) -> list[int]:
        """Up to n messages that claim() would give, in its order."""
        if run is None:
            return self._with_groups(self._state.peek(n), n)

        def is_due(seq: int) -> bool:
            return self.is_due_in(run, stream, seq)

        return self._with_groups(list(islice(filter(is_due, self._state.ready), n)), n, is_due)

    def claim(self, stream: str, n: int, nonce: int, now: int, run: Run | None = None) -> StreamClaim | None:
        """Claim a batch of up to n messages for a stream that holds none; in a run, of messages due in it.

        Unlike a consumer's claim, a batch has several messages of a group: they are read in order.
        """
        self._state.advance(now)
        if run is not None:

            def is_due(seq: int) -> bool:
                return self.is_due_in(run, stream, seq)

            seqs = self._with_groups(self._take(n, is_due), n, is_due)
        else:
            seqs = self._with_groups(self._state.ready.take(n, self._state.available()) if n else [], n)
        return self._do(StreamClaim(now, stream, self.last_batch + 1, seqs, nonce)) if seqs else None

    def fail(
        self, stream: str, batch: int, seqs: Iterable[int], reason: str | None, now: int, delay: int = 0
    ) -> StreamFail | None:
        """Mark messages to fail when their batch is settled; a settled batch does not change.

        `delay`: milliseconds from then; 0: by the queue's backoff.
        """
        self._state.advance(now)
        found = self._consuming(stream)
        if found.held is None or found.held.number != batch:
            self._check_settled(stream, found, batch)
            return None
        there = set(found.held.seqs)
        failed = sorted({seq for seq in seqs if seq in there})
        return self._do(StreamFail(now, stream, batch, failed, reason, delay)) if failed else None

    def read(self, stream: str, batch: int, now: int) -> StreamReplay | None:
        """Prepare to read a batch: drop its recorded failures. StreamMismatch if it is not readable."""
        self._state.advance(now)
        found = self._consuming(stream)
        if found.held is None or found.held.number != batch:
            self._check_readable(stream, found, batch)
            return None
        return self._do(StreamReplay(now, stream, batch)) if found.held.failures else None

    def batch(self, stream: str, batch: int) -> tuple[Rows, Seqs]:
        """The messages of a readable batch: the rows that contain them, and their numbers, ascending."""
        found = self._consuming(stream)
        if found.held is not None and found.held.number == batch:
            return self._state.rows, found.held.seqs
        self._check_readable(stream, found, batch)
        return found.kept, list(found.kept.with_state(None))

    def settle(self, stream: str, batch: int, now: int) -> StreamSettle | None:
        """Settle a batch, unless it is settled."""
        self._state.advance(now)
        found = self._consuming(stream)
        if found.held is not None and found.held.number == batch:
            return self._do(StreamSettle(now, stream, batch))
        self._check_settled(stream, found, batch)
        return None

    def release(self, stream: str, now: int) -> StreamRelease | None:
        """Release the messages that a stream holds."""
        self._state.advance(now)
        held = self._consuming(stream).held
        return self._do(StreamRelease(now, stream, held.number)) if held is not None and held.seqs else None

    def delete(self, stream: str, now: int) -> Sequence[StreamRecord]:
        """Delete a stream that holds no messages."""
        self._state.advance(now)
        held, records = self._known(stream).held, list[StreamRecord]()
        if held is not None and held.seqs:
            raise StreamInUse(
                f"stream {stream!r} of queue {self._queue!r} holds {len(held.seqs)} messages: settle them first "
                "(penstock streams settle CHECKPOINT), or give them back (penstock streams release)"
            )
        if held is not None:
            records.append(self._do(StreamSettle(now, stream, held.number)))
        return [*records, self._do(StreamDelete(now, stream))]

    def _do(self, record: _Record) -> _Record:
        self.apply(record)
        return record

    def _known(self, stream: str) -> Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise StreamNotFound(
                f"queue {self._queue!r} has no stream {stream!r}: `penstock streams` lists those there are"
            ) from None

    def _consuming(self, stream: str) -> Stream:
        found = self._known(stream)
        self._check_mode(stream, follows=False)
        return found

    def _read_by(self, stream: str, reader: str) -> Stream:
        found = self._consuming(stream)
        if found.reader != reader:
            raise StreamInUse(
                f"stream {stream!r} of queue {self._queue!r} was taken over by another process ({found.reader}): "
                "stop one of the two queries, or give each a stream name of its own"
            )
        return found

    def _check_mode(self, stream: str, follows: bool) -> None:
        found = self._streams.get(stream)
        if found is not None and (found.position is not None) != follows:
            mode = "follows" if found.position is not None else "consumes"
            raise StreamInUse(
                f"stream {stream!r} of queue {self._queue!r} is one that {mode}: give this one another name, or "
                f"forget the other with `penstock streams delete {stream}`"
            )

    def _check_settled(self, stream: str, found: Stream, batch: int) -> None:
        if batch > found.settled:
            raise self._mismatch(stream, found, batch)

    def _check_readable(self, stream: str, found: Stream, batch: int) -> None:
        if batch != found.settled or not batch:
            raise self._mismatch(stream, found, batch)

    def _mismatch(self, stream: str, found: Stream, start: int) -> StreamMismatch:
        known, batch = f"stream {stream!r} of queue {self._queue!r}", f"the checkpoint is at batch {start}"
        if start > found.last:
            why = f"{batch}, and {known} has come to {found.last} only: the store is older"
        elif start:
            why = f"{batch}, and {known} has settled {found.settled}: what is between is gone"
        else:
            why = f"the checkpoint is new, and {known} has settled batch {found.settled} for another"
        return StreamMismatch(
            f"{why}. Go on with the right checkpoint; or use another stream name; or forget this stream with "
            f"`penstock streams delete {stream}`, and begin with a new checkpoint"
        )

    # Queries

    def get(self, name: str) -> Stream | None:
        """The stream of that name, or None."""
        return self._streams.get(name)

    def is_followed(self) -> bool:
        """Whether a named follower has unread messages."""
        last = self._state.next_seq - 1
        return any(each.position is not None and each.position < last for each in self._streams.values())

    def kept(self, stream: str, batch: int) -> Rows | None:
        """The kept rows of a batch; None if it is not the last one that the stream settled."""
        found = self._streams.get(stream)
        return found.kept if found is not None and found.settled == batch else None

    def kept_of_page(self, number: int) -> list[Rows]:
        """The kept rows of all streams that have some of that page."""
        return [each.kept for each in self._streams.values() if each.kept.page(number) is not None]

    def kept_and_done(self, stream: str, batch: int) -> list[int]:
        """Messages of the stream's last settled batch that are done and still listed."""
        kept = self.kept(stream, batch)
        rows = [] if kept is None else [(seq, self._state.rows.find(seq)) for seq in kept.with_state(None)]
        return [seq for seq, found in rows if found is not None and found[0].state[found[1]] == DONE]

    def stored(self) -> int:
        """Bytes of bodies in batches that a stream may read again."""
        return sum([each.kept.stored for each in self._streams.values()])

    def snapshot(self) -> StreamsSnapshot:
        """A copy of all streams."""
        return StreamsSnapshot(self.last_batch, {name: each.copy() for name, each in self._streams.items()})

    def load(self, snapshot: StreamsSnapshot) -> None:
        """Restore a snapshot, without the kept rows."""
        self.last_batch = snapshot.last_batch
        self._streams = dict(snapshot.streams)

    def check(self) -> None:
        """ValueError if a stream holds messages that do not exist or are not in flight."""
        for name, stream in self._streams.items():
            held = () if stream.held is None else (*stream.held.seqs, *stream.held.failures)
            for seq in held:
                found = self._state.rows.find(seq)
                if found is None or found[0].state[found[1]] != IN_FLIGHT:
                    raise ValueError(f"stream {name!r} holds a message that is not there: {seq}")

    def load_kept(self, stream: str, first: int, page: Page) -> None:
        """Restore a page of kept rows. Pages come in order, after load()."""
        self._streams[stream].kept.adopt(first, page)

    # Records

    def lose(self, seqs: Sequence[int]) -> None:
        """Remove held messages from their batches: another program (Kestrel) took them from the journal."""
        lost = {seq for seq in seqs if self.holds(seq)} if self._streams else set()
        for stream in self._streams.values() if lost else ():
            if stream.held is not None:
                stream.held.seqs = compact([seq for seq in stream.held.seqs if seq not in lost])
                for seq in lost:
                    stream.held.failures.pop(seq, None)

    def apply(self, record: StreamRecord) -> None:
        """Apply a record."""
        _APPLY[type(record)](self, record)

    def follows(self, record: StreamRecord) -> bool:
        """Whether a record can come next. Messages that it claims leave the order of claiming."""
        stream = self._streams.get(record.stream)
        if isinstance(record, StreamBegin | StreamFollow):
            return stream is None or (stream.position is None) == isinstance(record, StreamBegin)
        if stream is None:
            return False
        if isinstance(record, StreamDelete):
            return stream.held is None
        if isinstance(record, StreamClaim):
            free = stream.held is None and record.batch > self.last_batch
            return free and self._take_batch(record.seqs) == record.seqs
        return stream.held is not None and stream.held.number == record.batch

    def _take(self, n: int, wanted: Callable[[int], bool]) -> list[int]:
        """Take up to n available messages that are wanted; the others keep their places."""
        taken: list[int] = []
        left: list[int] = []
        while len(taken) < n:
            some = self._state.ready.take(n - len(taken), self._state.available() - len(taken) - len(left))
            if not some:
                break
            for seq in some:
                (taken if wanted(seq) else left).append(seq)
        for seq in left:
            page, at = self._state.rows[seq]
            self._state.ready.come_back(seq, page.priority[at])
        return taken

    def _take_batch(self, seqs: Sequence[int]) -> list[int]:
        """Take the messages of a recorded batch."""
        wanted = set(seqs)
        n = len(seqs)
        if groups := self._state.groups:
            n = sum(map(groups.may_be_claimed, map(self._group_of, seqs), seqs))
        return self._with_groups(self._take(n, wanted.__contains__), len(seqs), wanted.__contains__)

    def _with_groups(self, seqs: list[int], n: int, wanted: Callable[[int], bool] = lambda seq: True) -> list[int]:
        """Messages that are claimed, with those behind them in their groups: up to n altogether."""
        groups = self._state.groups
        for seq in seqs[:] if groups else ():
            group = self._group_of(seq)
            if group is not None:
                seqs += islice(takewhile(wanted, groups.next_after(group, seq)), n - len(seqs))
        return seqs

    def _group_of(self, seq: int) -> str | None:
        found = self._state.rows.find(seq)
        return None if found is None else found[0].group(found[1])

    def is_due_in(self, run: Run, stream: str, seq: int) -> bool:
        """Whether a run has not read a message yet. A message that came back during the run waits for the next."""
        page, at = self._state.rows[seq]
        if seq >= run.below:
            return False
        if page.claims is None or page.for_claims(at).claimed_at[at] < run.since:
            return True
        consumer = CONSUMER + stream
        return not any(
            each.consumer == consumer and each.claimed_at >= run.since for each in self._state.history.of(seq)
        )

    def _begin(self, record: StreamBegin) -> None:
        stream = self._streams.get(record.stream)
        if stream is None:
            self._streams[record.stream] = Stream(record.reader)
        else:
            stream.reader = record.reader

    def _claim_batch(self, record: StreamClaim) -> None:
        effects.claim(self._state, Claim(record.at, record.seqs, 0, CONSUMER + record.stream, record.nonce))
        self._streams[record.stream].held = Batch(record.batch, record.at, compact(record.seqs))
        self.last_batch = record.batch

    def _fail_some(self, record: StreamFail) -> None:
        held = self._held_batch(record.stream)
        held.failures.update(dict.fromkeys(record.seqs, Failure(record.reason, record.delay)))

    def _replay_batch(self, record: StreamReplay) -> None:
        self._held_batch(record.stream).failures.clear()

    def _settle_batch(self, record: StreamSettle) -> None:
        stream, held = self._streams[record.stream], self._held_batch(record.stream)
        stream.kept = picked(self._state.rows, held.seqs)
        stream.before, stream.settled, stream.held = stream.settled, held.number, None
        seqs = [seq for seq in held.seqs if seq not in held.failures] if held.failures else list(held.seqs)
        runs = self._state.rows.runs(seqs) if self._state.settings.keep_done == 0 and seqs else None
        if runs is not None:
            self._state.drop_runs(seqs, runs)
        else:
            for seq in seqs:
                page, at = self._state.rows[seq]
                if not self._is_over(seq, page, at, record.at):
                    self._state.finish(seq, page, at, record.at)
        for seq, (reason, delay) in sorted(held.failures.items()):
            page, at = self._state.rows[seq]
            if not self._is_over(seq, page, at, record.at):
                visible_at = record.at + delay if delay else BY_BACKOFF
                self._state.end_attempt(seq, page, at, record.at, visible_at, reason)
        self._state.tidy()

    def _release_batch(self, record: StreamRelease) -> None:
        held = self._held_batch(record.stream)
        for seq in held.seqs:
            page, at = self._state.rows[seq]
            if not self._is_over(seq, page, at, record.at):
                self._state.remember(seq, page, at, record.at, "released", None)
                self._state.come_back(seq, page, at, record.at, record.at)
        held.seqs = ()
        held.failures.clear()
        self._state.tidy()

    def _follow(self, record: StreamFollow) -> None:
        stream = self._streams.setdefault(record.stream, Stream(record.reader))
        stream.reader, stream.position = record.reader, record.position

    def _delete_stream(self, record: StreamDelete) -> None:
        del self._streams[record.stream]

    def _is_over(self, seq: int, page: Page, at: int, now: int) -> bool:
        """Whether a message that leaves its stream has expired, and is dropped; else its deadline is set again."""
        expires_at = page.expires_at[at]
        if not expires_at:
            return False
        if expires_at <= now:
            self._state.expired += 1
            self._state.drop(seq, page, at)
            return True
        self._state.deadlines.add(expires_at, seq)
        return False

    def _held_batch(self, stream: str) -> Batch:
        held = self._streams[stream].held
        if held is None:
            raise LookupError(f"stream {stream!r} holds no batch")
        return held

    def holds(self, seq: int) -> bool:
        """Whether a stream holds the message."""
        found = self._state.rows.find(seq)
        if found is None:
            return False
        page, at = found
        return page.state[at] == IN_FLIGHT and not page.for_claims(at).ends_at[at]

    def rows_of(self, stream: str, batch: int) -> Rows | None:
        """A copy of a readable batch's rows: the held batch, or the last settled one."""
        found = self._streams.get(stream)
        if found is not None and found.held is not None and found.held.number == batch:
            return picked(self._state.rows, found.held.seqs)
        return self.kept(stream, batch)


_APPLY: dict[type[StreamRecord], Callable[[Streams, Any], None]] = {
    StreamBegin: Streams._begin,
    StreamClaim: Streams._claim_batch,
    StreamFail: Streams._fail_some,
    StreamReplay: Streams._replay_batch,
    StreamSettle: Streams._settle_batch,
    StreamRelease: Streams._release_batch,
    StreamDelete: Streams._delete_stream,
    StreamFollow: Streams._follow,
}


def compact(seqs: Sequence[int]) -> Seqs:
    """Numbers in ascending order, as a range or an array."""
    ordered = sorted(seqs)
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
        return range(ordered[0], ordered[-1] + 1)
    return array("Q", ordered)


def picked(rows: Rows, seqs: Seqs) -> Rows:
    """A copy of the rows of existing messages, by ascending number."""
    taken = Rows(0)
    start = 0
    while start < len(seqs):
        number = seqs[start] // PAGE
        end = bisect_left(seqs, (number + 1) * PAGE, start)
        page, _ = rows[seqs[start]]
        whole = page.positions is None and end - start == len(page.state) == PAGE
        taken.take_page(number, page.copy() if whole else page.part([seq % PAGE for seq in seqs[start:end]]))
        start = end
    return taken
