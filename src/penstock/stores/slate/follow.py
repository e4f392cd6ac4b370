"""Followers and streams of slate stores: a queue's messages, read from the log in the order of their numbers.

A queue's messages are the log entries that were put into it, and the published ones that it was offered and that
match its filter. A follower reads up to a number below which no message can enter the queue any more.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from penstock.contract.message import Message
from penstock.contract.streams import Ahead, BatchPlan, Lost
from penstock.engine.streams import PAGE, Known, LiveStreams, fitting, parts_of
from penstock.engine.views import fill
from penstock.errors import InvalidPriority, PayloadTooLarge
from penstock.rules.rows import Rows
from penstock.stores.slate import entries
from penstock.stores.slate.bodies import Bodies, Wanted
from penstock.stores.slate.log import Log, Published
from penstock.stores.slate.routing import since_of, subject_of
from penstock.stores.slate.storage import SlateStorage
from penstock.system.clock import at_least_one

if TYPE_CHECKING:
    from penstock.filters import Filter
    from penstock.stores.slate.store import SlateBackend


_CHUNK = 1_000  # messages that are read from the log at a time


class SlateFeed:
    """One follower of a queue, in the process that owns the store."""

    def __init__(
        self,
        find: Callable[[], Known[SlateStorage]],
        reach: Callable[[], int],
        wanted: Callable[[], "Filter | None"],
        since: int,
        log: Log,
        bodies: Bodies,
    ) -> None:
        """reach: the highest number up to which no more messages can enter the queue
        since: messages that were received before this time are not wanted, as in Subscriber
        """
        self._find = find
        self._reach = reach
        self._wanted = wanted
        self._since = since
        self._log = log
        self._bodies = bodies
        self._storage: SlateStorage | None = None
        self.begin = 0
        self._last = 0  # the last number of the log that was read
        self._seqs, self._sizes = array("Q"), array("Q")

    def start(self, starting: str | int) -> tuple[int, int]:
        storage = self._known()
        with storage.lock:
            gaps = storage.follow().lost_up_to(self._log.gone or 0) + 1
            storage.follow().add(self, 0, 0)  # so that nothing is removed before the start is known
        after = end = self._reach()  # its commit also makes the followed record durable
        if starting != "latest":
            moment = starting if isinstance(starting, int) else 0
            for published in self._entered(0, end):
                if published.metadata.received_at >= moment:
                    after = published.metadata.id - 1
                    break
        return after, max(gaps, after + 1)

    def follow(self, after: int) -> None:
        """Begin after a number: from now on unread messages are not removed."""
        storage = self._known()
        with storage.lock:
            storage.follow().add(self, after, after)
        self.begin = self._last = after
        self._seqs, self._sizes = array("Q"), array("Q")

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int) -> Ahead:
        self._forget(after)
        if until:
            self._fill(min(until, self._reach()))
        elif rows:
            self._fill(self._reach(), rows, size)
            count = fitting(self._sizes, rows, size)
            until = self._seqs[count - 1] if count else after
        until = max(after, until)
        end = bisect_right(self._seqs, until)
        return Ahead(until, parts_of(self._seqs[:end], self._sizes[:end]), self._lost(max(after + 1, gaps)))

    def messages(self, after: int, until: int, limit: int) -> list[Message]:
        found = list(islice(self._entered(after, min(until, self._reach())), limit))
        found = found[: fitting([each.size for each in found], limit, PAGE)]
        bodies = self._bodies.look([each.metadata.id for each in found])
        there = [each for each in found if each.metadata.id in bodies]
        return fill([self._as_entered(each) for each in there], [bodies[each.metadata.id] for each in there])

    def look(self) -> None:
        """Nothing to do: unread messages are not removed."""

    def held_back(self) -> int:
        """0: RetainedForFollowers counts for all followers together."""
        return 0

    def close(self) -> None:
        """Let messages be removed that were held back for this follower."""
        storage, self._storage = self._storage, None
        if storage is not None:
            with storage.lock:
                storage.followed.leave(self)
                storage.release()

    def _known(self) -> SlateStorage:
        """The queue's storage; a queue that was deleted and created again has another one."""
        known = self._find()
        if known.storage is not self._storage:
            if known.ledger.settings.filter is not None:
                self._log.watch()
            self._storage = known.storage
        return known.storage

    def _forget(self, until: int) -> None:
        """Note that the follower has read up to a number."""
        before = self._storage
        storage = self._known()
        if storage is not before:
            self.follow(until)
        self.begin, self._last = max(self.begin, until), max(self._last, until)
        count = bisect_right(self._seqs, until)
        del self._seqs[:count], self._sizes[:count]
        with storage.lock:
            storage.follow().move(self, until)
            storage.release()

    def _fill(self, end: int, rows: int | None = None, size: int | None = None) -> None:
        """Read the log up to a number, or until so many messages or bytes are found."""
        entered, total = self._entered(self._last, end), sum(self._sizes)
        while (rows is None or len(self._seqs) < rows) and (size is None or total <= size):
            chunk = list(islice(entered, _CHUNK))
            if not chunk:
                self._last = max(self._last, end)
                return
            self._seqs.extend([each.metadata.id for each in chunk])
            self._sizes.extend([each.size for each in chunk])
            self._last = self._seqs[-1]
            total += sum([each.size for each in chunk])

    def _entered(self, after: int, until: int) -> Iterator[Published]:
        """The queue's messages in a range of the log, with their sizes."""
        storage = self._known()
        name, followed = storage.ledger.name, storage.followed
        since = 0 if followed.marks is None else followed.marks.since
        for metadata in self._log.scan(after, until):
            if entries.is_published(metadata):
                if metadata.id > since:
                    if (wanted := self._wanted()) is not None:
                        published = Published(metadata, self._log.size_of(metadata))
                        if self._takes(storage, published, wanted):
                            yield published
                    continue
                with storage.lock:
                    was_offered = storage.ledger.state.has(metadata.id) or metadata.id in followed.held
                if was_offered:
                    yield Published(metadata, self._log.size_of(metadata))
            elif metadata.headers[entries.QUEUE_HEADER] == name:
                yield Published(metadata, self._size(storage, metadata.id))

    def left(self, after: int, until: int) -> list[int]:
        """Published messages in a range of the log that entered the queue and have left it."""
        state = self._known().ledger.state
        found = [each.metadata for each in self._entered(after, until)]
        return [each.id for each in found if entries.is_published(each) and not state.has(each.id)]

    def _takes(self, storage: SlateStorage, published: Published, wanted: "Filter") -> bool:
        if published.metadata.received_at < self._since:
            return False
        try:
            storage.ledger.check_values(published.size, entries.priority_of(published.metadata))
        except (PayloadTooLarge, InvalidPriority):
            return False
        return wanted.matches(subject_of(published))

    def _size(self, storage: SlateStorage, seq: int) -> int:
        """The payload size of a message that was put into the queue; an estimate if it is held back."""
        with storage.lock:
            if storage.ledger.state.has(seq):
                return storage.sizes([seq])[0]
            held = storage.followed.held.get(seq)
        return 0 if held is None else held.size

    def _lost(self, lower: int) -> Lost | None:
        storage = self._known()
        with storage.lock:
            last = storage.followed.lost_up_to(self._log.gone or 0)
        return Lost(lower, last, None) if last >= lower else None

    def _as_entered(self, published: Published) -> Message:
        metadata, storage = published.metadata, self._known()
        expires_at: int | None
        if entries.is_published(metadata):
            expires_at, kept = entries.expires_at_of(metadata), storage.ledger.settings.retention
            if expires_at is None and kept:
                expires_at = metadata.received_at + at_least_one(kept)
        else:
            expires_at = metadata.received_at + 1000 * metadata.retention if metadata.retention else None
        return Message(
            str(metadata.id),
            storage.ledger.name,
            b"",
            {},
            entries.priority_of(metadata),
            0,
            0,
            metadata.visible_at,
            expires_at or None,
            0,
            "delayed" if metadata.visible_at > metadata.received_at else "available",
            group=entries.group_of(metadata),
        )


class SlateStreams(LiveStreams[SlateStorage]):
    """The streams of one store."""

    def __init__(self, backend: "SlateBackend") -> None:
        super().__init__(backend._clock, backend._known, lambda: list(backend._queues))
        self._backend = backend

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """The messages of a batch. No files are pinned: the reader asks the owner for bodies."""
        return BatchPlan(self._reading(queue, stream, batch, lambda storage: None)[0], [])

    def _feed(self, queue: str) -> SlateFeed:
        backend = self._backend
        backend.look_after_followers()
        since, wanted = since_of(backend.find(queue).settings.start), partial(backend._filters.get, queue)
        find, reach = partial(backend._known, queue), partial(self._reach, queue)
        return SlateFeed(find, reach, wanted, since, backend._log, backend._bodies)

    def note_entered(self, queue: str, last: int) -> None:
        """Before a queue's filter or limits change: record for followers what entered it up to a number."""
        storage = self._backend._storages[queue]
        followed = storage.followed
        if followed.marks is None:
            return
        lowest = followed.lowest
        left = [] if lowest is None else self._feed(queue).left(lowest, last)
        with storage.lock:
            followed.note_entered(left, last)
        self._backend._log.watch()

    def _reach(self, queue: str) -> int:
        """The number up to which no more messages can enter a queue; the messages up to it are durable."""
        backend, known = self._backend, self._backend._known(queue)

        def look(now: int) -> int:
            position = known.storage.position
            if known.storage.held:
                return position - 1
            if backend._deferred and queue in backend._filters:
                return max(position, backend._log.position, known.ledger.state.next_seq) - 1
            return max(known.ledger.state.next_seq, backend._log.opened_at) - 1

        with backend._log.lock:  # so that every published message was offered
            reached, written = known.live.run(look)
        known.live.commit(written)
        return reached

    def _bodies(self, storage: SlateStorage, seqs: Sequence[int], rows: Rows) -> Wanted:
        return storage.find(seqs)
