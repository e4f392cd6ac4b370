"""What the streams of a queue have in the database, and which messages' bodies they still need.

What a stream has settled can be read again until it settles the next: its messages are kept as they were, and
their bodies stay, whatever has become of them in the queue.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from penstock.rules.index.rows import Rows
from penstock.rules.index.streams import Failure, Stream
from penstock.rules.records import (
    StreamClaim,
    StreamDelete,
    StreamFail,
    StreamRecord,
    StreamRelease,
    StreamReplay,
    StreamSettle,
)
from penstock.rules.stream_state import StreamState
from penstock.stores.slate import buckets
from penstock.stores.slate import stream_records as records
from penstock.stores.slate.binding import Row
from penstock.stores.slate.format import BUCKET_BITS
from penstock.stores.slate.own import PUBLISHED
from penstock.stores.slate.stream_records import StreamRow

_NOTHING = Rows(0)


class Keeping:
    """The streams of one queue; under its lock."""

    def __init__(self, state: StreamState) -> None:
        self._state = state
        self._held: dict[str, set[int]] = {}  # buckets of the messages that each stream holds
        self._failures: dict[str, dict[int, dict[int, Failure]]] = {}  # by stream, bucket and message
        self._kept: dict[str, Rows] = {}  # of each stream, as the state had them when it was last told
        self._changed: set[str] = set()  # streams
        self._written: set[str] = set()  # those that the database has
        self._buckets_changed: dict[Callable[[str, str, int], bytes], set[tuple[str, int]]] = {
            records.failures_key: set(),
            records.kept_key: set(),
        }

    def load(self, streams: Mapping[str, Stream]) -> None:
        """The streams as they were found in the database, with all that they hold and keep."""
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
        """A record was applied: which buckets it has changed, and which bodies nobody needs any more."""
        name, changed, gone = record.stream, set[int](), list[int]()
        if isinstance(record, StreamFail):
            failures = dict.fromkeys(record.seqs, Failure(record.reason, record.delay)).items()
            self._buckets_changed[records.failures_key] |= self._add_failures(name, failures)
            return changed, gone
        if isinstance(record, StreamReplay | StreamSettle | StreamRelease):
            failed = self._failures.pop(name, {})
            self._buckets_changed[records.failures_key] |= {(name, bucket) for bucket in failed}
        if isinstance(record, StreamClaim):
            changed = self._held[name] = {seq >> BUCKET_BITS for seq in record.seqs}
        elif isinstance(record, StreamSettle | StreamRelease):
            changed = self._held.pop(name, set())
        if isinstance(record, StreamSettle | StreamDelete):
            gone = self._keep_other(name)
        self._changed.add(name)
        return changed, gone

    def _keep_other(self, name: str) -> list[int]:
        """A stream keeps other messages now, or none; those of which the bodies can go."""
        stream, before = self._state.stream(name), self._kept.pop(name, _NOTHING)
        if stream is not None:
            self._kept[name] = stream.kept
        self._buckets_changed[records.kept_key] |= {
            (name, first >> BUCKET_BITS)
            for rows in (before, self._kept.get(name, _NOTHING))
            for first, _ in rows.pages()
        }
        return [seq for seq in put_here(before) if not self._state.has(seq) and not self.keeps(seq)]

    def keeps(self, seq: int) -> bool:
        """Whether a message is one of the last batch that a stream has settled."""
        for rows in self._kept.values():  # noqa: SIM110 - any() takes twice as long, for each message of a batch
            if rows.find(seq) is not None:
                return True
        return False

    def needed(self, seqs: Sequence[int]) -> set[int]:
        """Those of the messages that streams hold or keep."""
        if not self._written and not self._changed:
            return set()
        return {seq for seq in seqs if self.keeps(seq) or self._state.is_held_by_stream(seq)}

    def rows(self) -> Iterator[Row]:
        """What has changed since the last time."""
        if not self._changed and not any(self._buckets_changed.values()):
            return
        queue = self._state.name
        if self._changed:
            yield records.batches_key(queue), records.encode_last_batch(self._state.last_batch)
        for name in sorted(self._changed):
            stream = self._state.stream(name)
            yield records.stream_key(queue, name), None if stream is None else records.encode_stream(_row(stream))
            (self._written.discard if stream is None else self._written.add)(name)
        for key, encoded in (
            (records.failures_key, self._encoded_failures),
            (records.kept_key, self._encoded_kept),
        ):
            for name, bucket in sorted(self._buckets_changed[key]):
                yield key(queue, name, bucket), encoded(name, bucket)
            self._buckets_changed[key].clear()
        self._changed.clear()

    def _encoded_failures(self, name: str, bucket: int) -> bytes | None:
        failures = self._failures.get(name, {}).get(bucket)
        return records.encode_failures(failures) if failures else None

    def _encoded_kept(self, name: str, bucket: int) -> bytes | None:
        page = self._kept.get(name, _NOTHING).page(bucket)
        return None if page is None else buckets.encode_kept(bucket, page)

    def deletions(self) -> Iterator[Row]:
        """Deletions of all that the streams have in the database, the bodies not included."""
        queue = self._state.name
        yield records.batches_key(queue), None
        for name in self._written | self._changed:
            yield records.stream_key(queue, name), None
            yield from [
                (records.failures_key(queue, name, bucket), None) for bucket in self._failures.get(name, {})
            ]
            for first, _ in self._kept.get(name, _NOTHING).pages():
                yield records.kept_key(queue, name, first >> BUCKET_BITS), None

    def kept_alone(self) -> Iterator[int]:
        """Messages that are kept by streams, and are no longer in the queue."""
        for rows in self._kept.values():
            yield from [seq for seq in put_here(rows) if not self._state.has(seq)]


def _row(stream: Stream) -> StreamRow:
    held = None if stream.held is None else (stream.held.number, stream.held.at)
    return StreamRow(stream.reader, stream.settled, stream.before, stream.position, held)


def put_here(rows: Rows) -> Iterator[int]:
    """The messages that were put into the queue; the bodies of published ones are not its own."""
    for first, page in rows.pages():
        keys = page.keys()
        for at, state in enumerate(page.state):
            if state and not page.crc[at] & PUBLISHED:
                yield first + keys[at]
