"""The streams of an engine's queues: batches that readers claim and settle, and sessions of followers.

Followers read the messages that enter a queue, without claiming them. Every request of a follower names its
cursor, so that a restarted server can find it in the store. A session saves that search, and retains messages
that the follower has not read yet; it ends when the follower stops asking.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from penstock.contract.message import Message
from penstock.contract.streams import HEARTBEAT, Ahead, FollowerInfo, Start, StreamInfo, is_reader_gone
from penstock.engine.queue import LiveQueue
from penstock.engine.storage import Storage
from penstock.engine.views import fill, parse_ids, row_as_seen
from penstock.errors import PenstockError, StreamInUse
from penstock.rules.ledger import Ledger
from penstock.rules.records import Record
from penstock.rules.rows import AVAILABLE, Page, Rows
from penstock.rules.streams import Run
from penstock.system.clock import Clock, at_least_one

UNHEARD = int(3 * HEARTBEAT * 1000)  # milliseconds without a heartbeat after which a reader counts as gone
HELD_BACK = 1 << 30  # bytes that are retained for one follower
PAGE = 8 << 20  # bytes of one page of messages
_PART, _PART_MESSAGES = 16 << 20, 20_000  # bytes and messages that one task reads, about
_TEND_EVERY = 1_000  # milliseconds
_MOST = 1_000  # followers at the same time
Result = TypeVar("Result")
OneStorage = TypeVar("OneStorage", bound=Storage)


class Feed(Protocol):
    """The source of a follower's messages; one thread at a time."""

    @property
    def begin(self) -> int:
        """The lowest cursor that can be read from."""

    def start(self, starting: str | int) -> tuple[int, int]:
        """The first cursor, see Streams.start."""

    def follow(self, after: int) -> None:
        """Move the cursor to a number."""

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int) -> Ahead:
        """Messages after the cursor, see Streams.ahead."""

    def messages(self, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered."""

    def look(self) -> None:
        """Retain all messages, before some of them are removed."""

    def held_back(self) -> int:
        """Bytes that are stored for this follower alone."""

    def close(self) -> None:
        """Release everything that is retained."""


class _Session:
    """The session of a follower."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.feed: Feed | None = None
        self.users = 0
        self.heard = 0
        self.position = 0  # the last message that was read


class Feeds:
    """The sessions of all followers of a store, safe for threads."""

    def __init__(self, clock: Clock, make: Callable[[str], Feed]) -> None:
        self._clock = clock
        self._make = make
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._tended = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, queue: str, follower: str, starting: str | int) -> tuple[int, int]:
        """Where a follower begins."""
        with self._session(queue, follower) as session:
            feed = self._make(queue)
            try:
                after, gaps = feed.start(starting)
            except BaseException:
                feed.close()
                raise
            if session.feed is None or after < session.feed.begin:
                _read_from(session, feed, after)
                session.position = after
            else:
                feed.close()
            return after, gaps

    def all(self, next_seq: Callable[[str], int]) -> list[FollowerInfo]:
        """Every follower, by queue and name. `next_seq`: the number above all messages of a queue."""
        with self._lock:
            sessions = sorted(self._sessions.items(), key=itemgetter(0))
        found = []
        for (queue, follower), each in sessions:
            held = None
            if each.lock.acquire(blocking=False):
                held = 0 if each.feed is None else each.feed.held_back()
                each.lock.release()
            with suppress(PenstockError):  # the queue was deleted
                lag = max(0, next_seq(queue) - 1 - each.position)
                found.append(FollowerInfo(queue, follower, each.heard, each.position, lag, held))
        return found

    @contextmanager
    def feed(self, queue: str, follower: str, after: int) -> Iterator[Feed]:
        """The feed of a follower that asks for messages that entered after a number."""
        with self._session(queue, follower) as session:
            feed = session.feed
            if feed is None or after < feed.begin:
                feed = _read_from(session, self._make(queue), after)
            session.position = after
            yield feed

    def leave(self, queue: str, follower: str) -> None:
        """End a follower's session."""
        with self._lock:
            session = self._sessions.pop((queue, follower), None)
        if session is not None:
            _close(session)

    def look(self, queue: str) -> None:
        """Retain all messages of a queue for its followers, as far as possible."""
        with self._lock:
            sessions = [each for (name, _), each in self._sessions.items() if name == queue]
        for session in sessions:
            with session.lock, suppress(PenstockError, OSError):
                if session.feed is not None:
                    session.feed.look()

    def tend(self) -> None:
        """End sessions whose followers are gone, or that retain too many bytes."""
        now = self._tended = self._clock.now()
        with self._lock:
            idle = [(key, each) for key, each in self._sessions.items() if not each.users]
            over = [key for key, each in idle if now > each.heard + UNHEARD or _holds_too_much(each)]
            ended = [self._sessions.pop(key) for key in over]
        for each in ended:
            _close(each)

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            ended, self._sessions = list(self._sessions.values()), {}
        for each in ended:
            _close(each)

    @contextmanager
    def _session(self, queue: str, follower: str) -> Iterator[_Session]:
        if self._clock.now() > self._tended + _TEND_EVERY:
            self.tend()
        with self._lock:
            session = self._sessions.get((queue, follower))
            if session is None:
                self._make_room()
                session = self._sessions[queue, follower] = _Session()
            session.users += 1
        try:
            with session.lock:
                yield session
        finally:
            with self._lock:
                session.users -= 1
                session.heard = self._clock.now()
                if session.feed is None and self._sessions.get((queue, follower)) is session:
                    del self._sessions[queue, follower]

    def _make_room(self) -> None:
        """Under the lock: end the session with the oldest heartbeat, to make room for a new one."""
        if len(self._sessions) >= _MOST:
            idle = [(each.heard, key) for key, each in self._sessions.items() if not each.users]
            if idle:
                _close(self._sessions.pop(min(idle)[1]))


def _read_from(session: _Session, feed: Feed, after: int) -> Feed:
    """Change to another feed: the new one retains its messages before the old one is released."""
    try:
        feed.follow(after)
    except BaseException:
        feed.close()
        raise
    before, session.feed = session.feed, feed
    if before is not None:
        before.close()
    return feed


def _close(session: _Session) -> None:
    with session.lock:
        feed, session.feed = session.feed, None
        if feed is not None:
            feed.close()


def _holds_too_much(session: _Session) -> bool:
    return session.feed is not None and session.feed.held_back() > HELD_BACK


def fitting(sizes: Sequence[int], rows: int, size: int) -> int:
    """How many of these messages make a batch: as many as the limits allow, at least one."""
    count = min(len(sizes), rows)
    return min(count, max(1, bisect_right(list(accumulate(sizes[:count])), size)))


def parts_of(seqs: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Messages cut into parts: the last number and the count of each."""
    parts, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > _PART or at - start >= _PART_MESSAGES):
            parts.append((seqs[at - 1], at - start))
            start, total = at, 0
        total += size
    return [*parts, (seqs[-1], len(seqs) - start)] if seqs else []


@dataclass(frozen=True, slots=True)
class Known(Generic[OneStorage]):
    """A queue with its ledger and storage."""

    live: LiveQueue
    ledger: Ledger
    storage: OneStorage


class LiveStreams(Generic[OneStorage]):
    """The streams of one store. A subclass per kind of store reads the bodies."""

    def __init__(
        self, clock: Clock, find: Callable[[str], Known[OneStorage]], names: Callable[[], Iterable[str]]
    ) -> None:
        self._clock = clock
        self._find = find
        self._names = names
        self._heard: dict[tuple[str, str], int] = {}  # the last heartbeat of a stream's reader
        self._runs: dict[tuple[str, str], Run] = {}  # the latest run of each stream
        self._read: dict[
            tuple[str, str], tuple[str | None, int]
        ] = {}  # the reader, and the last batch that it read
        self._opened = clock.now()
        self._feeds = Feeds(clock, self._feed)

    def all(self) -> list[StreamInfo]:
        """Every stream of every queue."""
        found: list[StreamInfo] = []
        for name in sorted(self._names()):
            with suppress(LookupError):  # deleted meanwhile
                found += self._change(name, lambda now, known: known.ledger.streams.all())
        return found

    def begin(self, queue: str, stream: str, reader: str) -> StreamInfo:
        """Become a stream's only reader, or renew that by a heartbeat."""

        def begin(now: int, known: Known[OneStorage]) -> StreamInfo:
            current = known.ledger.streams.reader(stream)
            if current not in (None, reader):
                self._check_gone(queue, stream, current or "")
            known.storage.make_room(claims=1)
            _keep(known, known.ledger.streams.begin(stream, reader, now))
            self._heard[queue, stream] = now
            return known.ledger.streams.info(stream)

        return self._change(queue, begin)

    def next(
        self, queue: str, stream: str, reader: str, start: int, rows: int, size: int, run: str | None = None
    ) -> int | None:
        """Settle the batch before, which the reader has committed; the next batch, claimed unless one is held."""

        def go_on(now: int, known: Known[OneStorage]) -> int | None:
            ledger = known.ledger
            info = ledger.streams.info(stream)
            current = self._run(info, run, start, now, ledger)
            coming = info.failures  # messages that are available again once the batch is settled
            known.storage.make_room(claims=min(rows, ledger.state.by_state[AVAILABLE] + coming))
            settled, offered = ledger.streams.offer(stream, reader, start, now)
            _keep(known, settled)
            # All available messages: those behind the head of their group can be in the same batch.
            count = min(rows, ledger.state.by_state[AVAILABLE])
            if offered is None and count and ledger.state.available():
                if ledger.state.stored > size:  # else all of it fits
                    count = known.live.fitting(ledger.streams.due(stream, count, current), size)
                claimed = ledger.streams.claim(stream, count, int.from_bytes(os.urandom(8)), now, current)
                _keep(known, claimed)
                offered = claimed and claimed.batch
            self._heard[queue, stream] = now
            return offered

        return self._change(queue, go_on)

    def messages(self, queue: str, stream: str, batch: int, after: str, until: str, limit: int) -> list[Message]:
        """Some messages of a batch by ascending id."""
        known = self._find(queue)
        first, last = [next(iter(parse_ids([text])), None) for text in (after, until)]

        def look(now: int) -> tuple[list[Message], Any]:
            rows, seqs = known.ledger.streams.batch(stream, batch)
            start = 0 if first is None else bisect_right(seqs, first)
            end = len(seqs) if last is None else bisect_right(seqs, last)
            some = list(islice(seqs, start, min(end, start + limit)))
            sizes = accumulate(page.size[at] for page, at in map(rows.locate, some))
            some = some[: max(1, bisect_right(list(sizes), PAGE))]
            seen = [row_as_seen(seq, queue, *rows.locate(seq)) for seq in some]
            return seen, self._bodies(known.storage, some, rows)

        seen, found = known.live.run(look)[0]
        return fill(seen, known.storage.read(found))

    def follow(self, queue: str, stream: str, reader: str, position: int) -> None:
        """Open a follower's session that has read up to a message."""

        def follow(now: int, known: Known[OneStorage]) -> None:
            current = known.ledger.streams.reader(stream)
            if current not in (None, reader):
                self._check_gone(queue, stream, current or "")
            known.storage.make_room(claims=1)
            _keep(known, known.ledger.streams.follow(stream, reader, position, now))
            self._heard[queue, stream] = now

        self._change(queue, follow)

    def start(self, queue: str, follower: str, starting: str | int) -> Start:
        """Where a follower begins."""
        self._find(queue)
        return Start(*self._feeds.start(queue, follower, starting))

    def ahead(
        self, queue: str, follower: str, after: int, gaps: int, rows: int, size: int, until: int = 0
    ) -> Ahead:
        """Messages after a number."""
        self._find(queue)
        with self._feeds.feed(queue, follower, after) as feed:
            return feed.ahead(after, gaps, rows, size, until)

    def entered(self, queue: str, follower: str, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered."""
        self._find(queue)
        with self._feeds.feed(queue, follower, after) as feed:
            return feed.messages(after, until, limit)

    def leave(self, queue: str, follower: str) -> None:
        """End a follower's session."""
        self._find(queue)
        self._feeds.leave(queue, follower)

    def followers(self) -> list[FollowerInfo]:
        """Every follower."""
        return self._feeds.all(lambda queue: self._find(queue).live.next_seq)

    def tend(self) -> None:
        """End sessions whose followers are gone."""
        self._feeds.tend()

    def is_followed(self) -> bool:
        """Whether there are followers."""
        return bool(self._feeds)

    def close(self) -> None:
        """End all sessions of followers."""
        self._feeds.close()

    def fail(
        self,
        queue: str,
        stream: str,
        batch: int,
        ids: Sequence[str],
        reason: str | None,
        delay: float | None = None,
    ) -> None:
        """Mark messages of a batch as failed; they fail when the batch is settled."""

        def fail(now: int, known: Known[OneStorage]) -> None:
            # 0 means by the backoff, which is at once if the queue has none.
            is_by_backoff = delay is None or (delay == 0 and known.ledger.settings.backoff is None)
            milliseconds = 0 if delay is None or is_by_backoff else at_least_one(delay)
            known.storage.make_room(claims=len(ids))
            _keep(known, known.ledger.streams.fail(stream, batch, parse_ids(ids), reason, now, milliseconds))

        self._change(queue, fail)

    def settle(self, queue: str, stream: str, batch: int) -> bool:
        """Settle a batch; False if that was done before."""
        return self._change(
            queue, lambda now, known: _keep(known, known.ledger.streams.settle(stream, batch, now))
        )

    def release(self, queue: str, stream: str) -> int:
        """Release the batch of a stream whose reader is gone; the number of its messages."""

        def release(now: int, known: Known[OneStorage]) -> int:
            info = known.ledger.streams.info(stream)
            self._check_gone(queue, stream, info.reader)
            _keep(known, known.ledger.streams.release(stream, now))
            return info.messages

        return self._change(queue, release)

    def delete(self, queue: str, stream: str) -> None:
        """Forget a stream that holds nothing, and whose reader is gone."""

        def delete(now: int, known: Known[OneStorage]) -> None:
            self._check_gone(queue, stream, known.ledger.streams.info(stream).reader)
            for record in known.ledger.streams.delete(stream, now):
                _keep(known, record)

        self._change(queue, delete)

    def _reading(
        self, queue: str, stream: str, batch: int, beside: Callable[[OneStorage], Result]
    ) -> tuple[list[tuple[int, Page]], Result]:
        """The rows of a batch that is about to be read, and the storage's snapshot of that moment."""

        def look(now: int, known: Known[OneStorage]) -> tuple[list[tuple[int, Page]], Result]:
            _keep(known, known.ledger.streams.read(stream, batch, now))
            self._read[queue, stream] = known.ledger.streams.reader(stream), batch
            rows = known.ledger.streams.rows_of(stream, batch) or Rows(0)
            return list(rows.copy().pages()), beside(known.storage)

        return self._change(queue, look)

    def _bodies(self, storage: OneStorage, seqs: Sequence[int], rows: Rows) -> Any:
        """The places of a batch's bodies, for the storage to read."""
        raise NotImplementedError

    def _feed(self, queue: str) -> Feed:
        """A feed for a follower."""
        raise NotImplementedError

    def _run(self, info: StreamInfo, name: str | None, start: int, now: int, ledger: Ledger) -> Run | None:
        """The stream's run of that name; a new one unless it is the latest."""
        if name is None:
            return None
        at = info.queue, info.stream
        known = self._runs.get(at)
        if known is None or known.name != name:
            # A batch held since before the run is the run's if its reader has read it, or is offered it now.
            again = start != info.batch or self._read.get(at) == (info.reader, start)
            since = info.since if again and info.since is not None else now
            known = self._runs[at] = Run(name, since, ledger.state.next_seq)
        return known

    def _check_gone(self, queue: str, stream: str, reader: str) -> None:
        gone = is_reader_gone(reader)
        if gone is None:
            gone = self._clock.now() - self._heard.get((queue, stream), self._opened) > UNHEARD
        if not gone:
            raise StreamInUse(
                f"stream {stream!r} of queue {queue!r} is read by another process ({reader}): stop that query, or "
                "give this one a stream name of its own"
            )

    def _change(self, queue: str, change: Callable[[int, Known[OneStorage]], Result]) -> Result:
        known = self._find(queue)
        result, written = known.live.run(lambda now: change(now, known))
        known.live.commit(written)
        return result


def _keep(known: Known[Any], record: Record | None) -> bool:
    """Write a rule's record; False if there is none."""
    if record is not None:
        known.live.write(record)
    return record is not None
