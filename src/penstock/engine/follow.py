"""Those who follow queues from elsewhere: what each is read from, as long as it goes on asking.

Everything that is asked names a position, so that whoever has lost what it knew, as a server that was started
again, finds it in the store. What is known meanwhile saves that, and holds what was not read yet.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Protocol

from penstock.contract.message import Message
from penstock.contract.streams import HEARTBEAT, Ahead
from penstock.errors import PenstockError
from penstock.system.clock import Clock

UNHEARD = int(3 * HEARTBEAT * 1000)  # milliseconds after which one who is elsewhere counts as gone
HELD_BACK = 1 << 30  # bytes that are held for one who follows
PAGE = 8 << 20  # bytes of messages that are listed at once
_PART, _PART_MESSAGES = 16 << 20, 20_000  # what one task reads, about
_TEND_EVERY = 1_000  # milliseconds
_MOST = 1_000  # who follow at the same time


class Feed(Protocol):
    """What one who follows a queue is read from, by one thread at a time."""

    @property
    def begin(self) -> int:
        """What entered after this number can be asked for."""

    def start(self, starting: str | int) -> tuple[int, int]:
        """Where to begin, see Streams.start."""

    def follow(self, after: int) -> None:
        """Begin after a number."""

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int) -> Ahead:
        """What has entered, see Streams.ahead."""

    def messages(self, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered."""

    def look(self) -> None:
        """Hold all that is there, before some of it goes."""

    def held_back(self) -> int:
        """Bytes that are stored for its sake alone."""

    def close(self) -> None:
        """Let go of everything."""


class _Session:
    """One who follows."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.feed: Feed | None = None
        self.users = 0
        self.heard = 0


class Feeds:
    """Everyone who follows a queue of one store; for any thread."""

    def __init__(self, clock: Clock, make: Callable[[str], Feed]) -> None:
        self._clock = clock
        self._make = make
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._tended = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, queue: str, follower: str, starting: str | int) -> tuple[int, int]:
        """Where one begins."""
        with self._session(queue, follower) as session:
            feed = self._make(queue)
            try:
                after, gaps = feed.start(starting)
            except BaseException:
                feed.close()
                raise
            if session.feed is None or after < session.feed.begin:
                _read_from(session, feed, after)
            else:
                feed.close()
            return after, gaps

    @contextmanager
    def feed(self, queue: str, follower: str, after: int) -> Iterator[Feed]:
        """What is read by one who follows, and may ask for what entered after a number."""
        with self._session(queue, follower) as session:
            feed = session.feed
            if feed is None or after < feed.begin:
                feed = _read_from(session, self._make(queue), after)
            yield feed

    def leave(self, queue: str, follower: str) -> None:
        """Let go of what was held for one."""
        with self._lock:
            session = self._sessions.pop((queue, follower), None)
        if session is not None:
            _close(session)

    def look(self, queue: str) -> None:
        """Hold all that is there of a queue for those who follow it, as far as that can be done."""
        with self._lock:
            sessions = [each for (name, _), each in self._sessions.items() if name == queue]
        for session in sessions:
            with session.lock, suppress(PenstockError, OSError):
                if session.feed is not None:
                    session.feed.look()

    def tend(self) -> None:
        """Let go of those who have gone, or would have too much held for them."""
        now = self._tended = self._clock.now()
        with self._lock:
            idle = [(key, each) for key, each in self._sessions.items() if not each.users]
            over = [key for key, each in idle if now > each.heard + UNHEARD or _holds_too_much(each)]
            ended = [self._sessions.pop(key) for key in over]
        for each in ended:
            _close(each)

    def close(self) -> None:
        """Let go of all."""
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
        """Under the lock: who was not heard for longest makes room for one more."""
        if len(self._sessions) >= _MOST:
            idle = [(each.heard, key) for key, each in self._sessions.items() if not each.users]
            if idle:
                _close(self._sessions.pop(min(idle)[1]))


def _read_from(session: _Session, feed: Feed, after: int) -> Feed:
    """Read from another feed, which holds what it needs before the other lets go of that."""
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
    """How many of these messages make a batch: the first, and what is within the limits."""
    count = min(len(sizes), rows)
    return min(count, max(1, bisect_right(list(accumulate(sizes[:count])), size)))


def parts_of(seqs: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Messages in parts: the last number of each, and how many they are."""
    parts, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > _PART or at - start >= _PART_MESSAGES):
            parts.append((seqs[at - 1], at - start))
            start, total = at, 0
        total += size
    return [*parts, (seqs[-1], len(seqs) - start)] if seqs else []
