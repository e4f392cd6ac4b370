"""A queue's storage in a slate store: collects the records that change, for the next commit."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, cast

from penstock.contract.message import Entry, Plain
from penstock.contract.settings import FIVE_MINUTES, Settings
from penstock.engine.storage import Body
from penstock.errors import NotSupported, QueueFull, StoreClosed
from penstock.rules.recent import RecentReceipts
from penstock.rules.records import (
    Claim,
    Pop,
    Put,
    Record,
    Restore,
    StreamClaim,
    StreamDelete,
    StreamFollow,
    StreamRecord,
    Update,
)
from penstock.rules.state import State
from penstock.rules.streams import CONSUMER
from penstock.stores.slate import extensions, pages
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import Row
from penstock.stores.slate.bodies import Bodies, Wanted
from penstock.stores.slate.entries import metadata_of_put, seconds
from penstock.stores.slate.format import BUCKET_BITS, MAX_ARRAY, MAX_INLINE, METADATA, encode_metadata, key_u64
from penstock.stores.slate.retained import KeptForStreams, RetainedForFollowers
from penstock.stores.slate.writing import Changes, Ids, Writer
from penstock.system.threads import Lock

if TYPE_CHECKING:
    from penstock.rules.ledger import Ledger


_KEPT = FIVE_MINUTES + 2 * 60_000  # milliseconds


class NotedReceipts(RecentReceipts):
    """Settled receipts; `noted` are those that are not written yet."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[extensions.Receipt] = []

    def add(self, seqs: Sequence[int], nonces: Sequence[int], outcome: int, now: int) -> None:
        super().add(seqs, nonces, outcome, now)
        self.noted += map(extensions.Receipt, seqs, nonces, repeat(outcome))


class RecentRecords:
    """A queue's recent records: settled receipts, and keys that messages were put under.

    Each commit adds one record, or more if its arrays are too long. A record is deleted when it is too old.
    """

    def __init__(self, queue: str, receipts: NotedReceipts) -> None:
        self.keys: list[tuple[int, str]] = []  # messages and their keys, not written yet
        self.written: list[tuple[int, int]] = []  # numbers and times of the records in the database
        self._queue = queue
        self.receipts = receipts

    def rows(self, at: int) -> Iterator[Row]:
        """Records of noted receipts and keys, and deletions of records that are too old."""
        receipts, keys = self.receipts.noted, self.keys
        while receipts or keys:
            number = self.written[-1][0] + 1 if self.written else 1
            recent = extensions.Recent(at, receipts[:MAX_ARRAY], keys[:MAX_ARRAY])
            yield records.queue_key(records.RECENT, self._queue, number), extensions.encode_recent(recent)
            self.written.append((number, at))
            receipts, keys = receipts[MAX_ARRAY:], keys[MAX_ARRAY:]
        self.receipts.noted, self.keys = [], []
        while self.written and self.written[0][1] < at - _KEPT:
            number, _ = self.written.pop(0)
            yield records.queue_key(records.RECENT, self._queue, number), None

    def deletions(self) -> Iterator[Row]:
        """Deletions of all recent records."""
        for number, _ in self.written:
            yield records.queue_key(records.RECENT, self._queue, number), None


_NO_HEADERS: dict[str, str] = {}
_IN_BUCKET = (1 << BUCKET_BITS) - 1
_NOTHING, _ALONE = pages.kinds_of(()), pages.kinds_of((records.ACTIVE,))


class PutEntries:
    """Encodes log entries of one queue. Most messages have no headers: their entries end with the same bytes."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        empty = metadata_of_put(0, queue, 0, (b"", {}, 0, 0), 0, 0)
        self._end = encode_metadata(empty)[METADATA.size :]

    def encode(
        self, seq: int, priority: int, body: Body, visible_at: int, expires_at: int, group: str | None
    ) -> bytes:
        if priority or group is not None or body[1] or len(body[0]) > MAX_INLINE:
            return encode_metadata(
                metadata_of_put(seq, self._queue, priority, body, visible_at, expires_at, group)
            )
        retention = seconds(expires_at - body[3]) if expires_at else 0
        return METADATA.pack(seq, body[2], body[3], visible_at, retention, 1) + self._end


def held(storage: "SlateStorage") -> QueueFull | NotSupported:
    """The error of a put into a queue that has not caught up with published messages."""
    ledger = storage.ledger
    if not storage.is_understood:
        return NotSupported(
            f"queue {ledger.name!r} has a filter that is not understood ({ledger.settings.filter}): published "
            "messages may wait for it, which nothing may overtake. Drain it, delete it, and create it anew"
        )
    try:
        ledger.check_room(1)
    except QueueFull:
        return QueueFull(
            f"queue {ledger.name!r} is full, and published messages wait for it already: retry when consumers "
            "have caught up"
        )
    return QueueFull(
        f"queue {ledger.name!r} is catching up with published messages, which nothing may overtake: retry when "
        "its lag is 0"
    )


class SlateStorage:
    """The storage of one queue."""

    def __init__(
        self,
        ledger: "Ledger",
        lock: Lock,
        writer: Writer,
        bodies: Bodies,
        ids: Ids,
        log: str,
    ) -> None:
        self.lock = lock
        self.ledger = ledger
        self._state: State = ledger.state
        self._writer = writer
        self._bodies = bodies
        self._ids = ids
        self._log = records.log_prefix(log)
        self._entries = PutEntries(ledger.name)
        self._keys = {kind: records.queue_key(kind, ledger.name) for kind in pages.KINDS}
        self._failure: Callable[[], StoreClosed] | None = None
        self._retired = False
        self.present: dict[int, frozenset[int]] = {}  # by bucket: its record types in the database
        self._changed: set[int] = set()  # buckets to write
        self._resized: set[int] = set()  # those of them that gained or lost messages
        self._put: list[tuple[int, bytes, bytes]] = []  # new messages: number, payload, log entry
        self._objects: dict[int, bytes] = {}
        self._attempts: dict[int, bytes | None] = {}
        self._shared_claims: list[
            tuple[int, str]
        ] = []  # claims of published messages, which other queues may have as well
        self._gone: list[int] = []
        self.large: set[int] = set()  # messages that were put into this queue and whose payload is an object
        self.streams = KeptForStreams(ledger.state)
        self.followed = RetainedForFollowers(ledger.state, ids)
        self.published: dict[int, int] = {}  # by bucket: a bit for each published message
        self.recent = RecentRecords(ledger.name, cast("NotedReceipts", ledger.state.receipts))
        self.position = 0  # in the log, see extensions.py
        self.held = False  # whether published messages wait for this queue: no put may overtake them
        self.was_held = False  # `held` in the database
        self.is_understood = True  # whether the queue's filter is valid
        self._moved = False  # whether there is a new position to write
        self._updated = False  # whether there are new settings to write
        self.is_grouped = False  # whether the database has a groups record
        self._became_grouped = False  # whether to write it
        # Called when a held queue may have room: directly, without the lock, or by another thread.
        self.on_room: Callable[[], None] = lambda: None
        self.on_room_soon: Callable[[], None] = lambda: None
        self._at = 0

    # Under the queue's lock

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def durable(self) -> int:
        return self._writer.durable

    def make_room(self, entries: Sequence[Entry] = (), claims: int = 0, settings: Settings | None = None) -> None:
        if entries:
            if self.held:
                raise held(self)
            self._writer.check_space(entries)
            self._writer.changed(self)  # before it reserves numbers: see Writer._flush
            first = self._ids.reserve(len(entries))
            if first > self._state.next_seq:
                self._state.skip_to(first)

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        self._at = max(self._at, record.at)
        if isinstance(record, Put):
            at, bodies = record.at, list[Body]()
            if isinstance(entries, Plain):
                for payload in entries.payloads:
                    bodies.append((payload, _NO_HEADERS, at, at))
            else:
                for entry in entries:
                    created_at = at if entry.created_at is None else entry.created_at
                    bodies.append((entry.payload, entry.headers or _NO_HEADERS, created_at, at))
            self.take_in(record, bodies)
        elif isinstance(record, StreamRecord):
            changed, gone = self.streams.note(record)
            self._changed |= changed
            self._let_go(gone)
            if isinstance(record, StreamFollow):
                self.follow().move(record.stream, record.position)
                self.release()
            elif isinstance(record, StreamDelete):
                self.followed.leave(record.stream)
                self.release()
            if isinstance(record, StreamClaim):
                self._note_claim(record.seqs, CONSUMER + record.stream)
        elif isinstance(record, Update):
            self._updated = True
        elif not isinstance(record, Restore):
            self._changed.update({seq >> BUCKET_BITS for seq in record.seqs})
            if isinstance(record, Claim) or (isinstance(record, Pop) and self._state.settings.keep_done != 0):
                self._note_claim(record.seqs, record.consumer)
        self._writer.wrote(self)

    def deliver(self, record: Put, size: int, large: bool) -> None:
        """Note a delivered message, whose body is in the log; move() follows with the position."""
        self._at = max(self._at, record.at)
        seq = record.first
        bucket = seq >> BUCKET_BITS
        self.followed.stored += size
        self._state.rows.place(seq, (0,), (size,), (extensions.PUBLISHED | (extensions.LARGE if large else 0),))
        self.published[bucket] = self.published.get(bucket, 0) | 1 << (seq & _IN_BUCKET)
        self._changed.add(bucket)
        self._resized.add(bucket)

    def deliver_many(self, seqs: Sequence[int], sizes: Sequence[int], now: int) -> None:
        """Note delivered messages in ascending order, whose bodies are in the log; move() follows."""
        self._at = max(self._at, now)
        self.followed.stored += sum(sizes)
        start = 0
        while start < len(seqs):
            bucket = seqs[start] >> BUCKET_BITS
            end = bisect_left(seqs, (bucket + 1) << BUCKET_BITS, start)
            bits = sum(1 << (seq & _IN_BUCKET) for seq in seqs[start:end])
            self.published[bucket] = self.published.get(bucket, 0) | bits
            self._changed.add(bucket)
            self._resized.add(bucket)
            start = end

    def sort(self, unsorted: set[int]) -> None:
        """Write these buckets with the next commit: another program listed their messages under another key."""
        self._changed |= unsorted
        self._resized |= unsorted
        self._writer.wrote(self)

    def move(self, position: int, held: bool) -> None:
        """Set the queue's position in the log; held: the router does not move it any further."""
        self.position, self.held = position, held
        self._moved = True
        self._writer.wrote(self)

    def take_in(self, record: Put, bodies: list[Body]) -> None:
        """Note new messages and their bodies."""
        self._at = max(self._at, record.at)
        first, sizes, flags = record.first, list[int](), list[int]()
        seqs = range(first, first + len(bodies))
        encode, payload_of = self._entries.encode, records.encode_payload
        groups = record.groups or repeat(None, len(bodies))
        for seq, body, priority, visible_at, expires_at, group in zip(
            seqs, bodies, record.priority, record.visible_at, record.expires_at, groups, strict=True
        ):
            flags.append(0 if group is None else extensions.GROUPED)
            size = len(body[0])
            sizes.append(size)
            if size > MAX_INLINE:
                self._objects[seq] = body[0]
                self.large.add(seq)
                payload = records.encode_uri(f"objects/{seq}")
                flags[-1] |= extensions.LARGE
            else:
                payload = payload_of(body[0])
            self._put.append((seq, payload, encode(seq, priority, body, visible_at, expires_at, group)))
        self._bodies.add(seqs, bodies)
        self.followed.stored += sum(sizes)
        self._state.rows.place(first, [0] * len(bodies), sizes, flags)
        self._became_grouped |= bool(record.groups) and not self.is_grouped
        for key, seq in record.keys.items():
            self.recent.keys.append((seq, key))
        buckets = range(first >> BUCKET_BITS, (seqs[-1] >> BUCKET_BITS) + 1)
        self._changed.update(buckets)
        self._resized.update(buckets)

    def _note_claim(self, seqs: Sequence[int], consumer: str) -> None:
        """Update the document's list of the consumers that claimed each message."""
        state = self._state
        once = records.encode_attempts([consumer])
        for seq in seqs:
            if self.published.get(seq >> BUCKET_BITS, 0) >> (seq & _IN_BUCKET) & 1:
                self._shared_claims.append((seq, consumer))
                continue
            page, at = state.rows.locate(seq)
            if page.attempts[at] == 1 and not state.ended_attempts(seq):
                self._attempts[seq] = once
            else:
                self._attempts[seq] = records.encode_attempts(
                    [attempt.consumer or "" for attempt in state.attempts(seq)]
                )

    def drop(self, seqs: Sequence[int]) -> None:
        if not seqs:
            return
        going: list[int] = []
        for seq in seqs:
            bucket = seq >> BUCKET_BITS
            self._changed.add(bucket)
            self._resized.add(bucket)
            published = self.published.get(bucket, 0)
            if published >> (seq & _IN_BUCKET) & 1:
                self.published[bucket] = published ^ 1 << (seq & _IN_BUCKET)
                if not self.published[bucket]:
                    del self.published[bucket]
                self.large.discard(seq)
                self.followed.left(seq)
            elif not self.streams.keeps(seq):
                going.append(seq)
        self._let_go(going)
        self._writer.changed(self)
        if self.held:
            self.on_room_soon()

    def _let_go(self, seqs: Sequence[int]) -> None:
        """Delete the bodies of messages, unless followers need them."""
        self._gone += self.followed.let_go(seqs, self.large)

    def follow(self) -> RetainedForFollowers:
        """The queue's followers; marks the queue as followed."""
        if self.followed.begin():
            self._writer.wrote(self)
        return self.followed

    def release(self) -> None:
        """Delete the bodies that no follower needs any longer."""
        if self.followed.is_due():
            self._gone += self.followed.released()
            self._writer.changed(self)

    def find(self, seqs: Sequence[int]) -> Wanted:
        return self._bodies.find(seqs)

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        return [page.size[at] for page, at in map(self._state.rows.locate, seqs)]

    def refuse(self, failure: Callable[[], StoreClosed]) -> None:
        self._failure = failure
        self._writer.refused = True

    def retire(self) -> None:
        """Write nothing more: the queue is being deleted."""
        self._retired = True

    def rows(self) -> Iterator[Row]:
        """Deletions of all rows of a retired queue."""
        name = self._state.name
        for bucket, kinds in self.present.items():
            page = self._state.page(bucket)
            published = self.published.get(bucket, 0)
            for position, state in zip(page.keys(), page.state, strict=False) if page is not None else ():
                if state and not published >> position & 1:
                    yield from records.body_deletions(self._log, (bucket << BUCKET_BITS) + position)
            yield from [(records.queue_key(kind, name, bucket), None) for kind in kinds]
        for seq in self.streams.kept_alone():
            yield from records.body_deletions(self._log, seq)
        yield from self.streams.deletions()
        for seq in self.followed.bodies():
            yield from records.body_deletions(self._log, seq)
        yield from self.followed.deletions()
        yield from self.recent.deletions()
        for kind in (records.POSITION, *([records.GROUPS] if self.is_grouped else [])):
            yield records.queue_key(kind, name), None

    def collect(self, changes: Changes) -> None:
        if self._retired or self._failure is not None:
            return
        changes.at = at = max(changes.at, self._at, self._state.advanced)
        rows, name, prefix = changes.rows, self._state.name, self._log
        for seq, payload, metadata in self._put:
            rows.append((records.payload_key(seq), payload))
            rows.append((prefix + key_u64(seq), metadata))
            changes.written.append(seq)
        for seq, value in self._attempts.items():
            rows.append((records.attempts_key(seq), value))
        for seq in self._gone:
            rows += records.body_deletions(self._log, seq)
        changes.claims += self._shared_claims
        changes.gone += self._gone
        changes.objects |= self._objects
        changes.large += self.large.intersection(self._gone)
        self.large.difference_update(self._gone)
        for bucket in sorted(self._changed):
            self._collect_bucket(bucket, rows)
        recent = self.recent
        if recent.keys or recent.receipts.noted or (recent.written and recent.written[0][1] < at - _KEPT):
            rows += recent.rows(at)
        if self.streams.changed:
            rows += self.streams.rows()
        if self.followed.marks is not None:
            rows += self.followed.rows()
        if self._updated:
            settings = self._state.settings
            config = records.encode_config(extensions.config_of(settings))
            rows.append((records.queue_key(records.CONFIG, name), config))
            rows.append((records.queue_key(records.SETTINGS, name), extensions.encode_settings(settings)))
            self._updated = False
        if self._became_grouped:
            rows.append((records.queue_key(records.GROUPS, name), b""))
            self.is_grouped, self._became_grouped = True, False
        if self._moved:
            row = records.queue_key(records.POSITION, name), extensions.encode_position(self.position, self.held)
            if self.held or self.was_held:
                rows.append(row)
            else:
                changes.moved.append((self.position, row))
            self.was_held = self.held
            self._moved = False
        self._put, self._attempts, self._gone, self._objects, self._shared_claims = [], {}, [], {}, []
        self._changed.clear()
        self._resized.clear()

    def _collect_bucket(self, bucket: int, rows: list[Row]) -> None:
        before, resized = self.present.get(bucket, _NOTHING), bucket in self._resized
        number = key_u64(bucket) if bucket else b""
        lone = self._state.rows.lone(bucket) if before is _NOTHING and bucket else None
        if lone is not None and (active := pages.encode_lone(bucket, lone)) is not None:
            rows.append((self._keys[records.ACTIVE] + number, active))
            self.present[bucket] = _ALONE
            return
        page = self._state.page(bucket)
        values = {} if page is None else pages.encode(bucket, page, self._state.ended_attempts)
        if page is not None and (resized or records.SIZES in before):
            values[records.SIZES] = pages.encode_sizes(bucket, page) if resized else b""  # the stored value stays
        if bucket == 0:
            values = {**pages.OF_THE_DOCUMENT, **values}
        for kind, value in values.items():
            if value:
                rows.append((self._keys[kind] + number, value))
        for kind in before:
            if kind not in values:
                rows.append((self._keys[kind] + number, None))  # noqa: PERF401 - most have none
        if not values:
            self.present.pop(bucket, None)
        elif before != values.keys():
            self.present[bucket] = pages.kinds_of(values)

    def commit(self, written: int) -> None:
        self._writer.commit(written)
        if self._failure is not None:  # the queue was stopped: this commit wrote nothing of it
            raise self._failure()
        if self.held:
            self.on_room()

    # In any thread

    def at_hand(self, wanted: Wanted | tuple[()]) -> Wanted | tuple[()] | None:
        return wanted if not wanted or len(wanted.found) == len(wanted.seqs) else None

    def read(self, wanted: Wanted | tuple[()]) -> list[Body]:
        return self._bodies.read(wanted) if wanted else []
