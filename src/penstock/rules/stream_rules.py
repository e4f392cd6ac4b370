"""The rules of streams: which batch a reader is offered, what may be settled, given back, forgotten.

A reader says how far it has certainly come, in the number of a batch, and that is settled then. It is offered the
batch that the stream holds, if there is one, and only otherwise a new one is claimed. So whatever is lost between
the store and the reader, the same messages are offered again under the same number.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

from penstock.contract.streams import StreamInfo
from penstock.errors import StreamInUse, StreamMismatch, StreamNotFound
from penstock.rules.index.rows import Rows
from penstock.rules.index.streams import Batch, Run, Seqs, Stream
from penstock.rules.records import (
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
from penstock.rules.stream_state import StreamState

_Record = TypeVar("_Record", bound=StreamRecord)


class StreamRules(StreamState):
    """The rules of streams. Operations return what to record, or None if nothing changed."""

    def streams(self) -> list[StreamInfo]:
        """Every stream, by name."""
        return [self.stream_info(name) for name in sorted(self._streams)]

    def stream_info(self, stream: str) -> StreamInfo:
        """One stream."""
        found = self._known(stream)
        held = found.held or Batch(0, 0, ())
        if found.position is not None:
            lag = max(0, self.next_seq - 1 - found.position)
            return StreamInfo(self.name, stream, "follow", found.last, 0, 0, None, 0, found.reader, lag)
        return StreamInfo(
            self.name, stream, "consume", found.last, found.settled, len(held.seqs),
            held.at if held.seqs else None, len(held.failures), found.reader, self.available(),
        )  # fmt: skip

    def stream_reader(self, stream: str) -> str | None:
        """Who reads it, or did so last; None if there is no such stream."""
        found = self._streams.get(stream)
        return None if found is None else found.reader

    def stream_begin(self, stream: str, reader: str, now: int) -> StreamBegin | None:
        """Read a stream from now on. Whether its last reader is gone is for others to find out."""
        self.advance(now)
        self._check_mode(stream, follows=False)
        if self.stream_reader(stream) == reader:
            return None
        return self._do(StreamBegin(now, stream, reader))

    def stream_follow(self, stream: str, reader: str, position: int, now: int) -> StreamFollow | None:
        """Follow the queue under a name: all up to a message was read."""
        self.advance(now)
        self._check_mode(stream, follows=True)
        found = self._streams.get(stream)
        if found is not None and (found.reader, found.position) == (reader, position):
            return None
        return self._do(StreamFollow(now, stream, reader, position))

    def stream_offer(
        self, stream: str, reader: str, start: int, now: int
    ) -> tuple[StreamSettle | None, int | None]:
        """Settle what the reader has certainly read; the batch that it is offered, None if one must be claimed."""
        self.advance(now)
        found = self._read_by(stream, reader)
        if start and start == found.before and start < found.settled:
            return None, found.settled  # the last one, again
        settled = None
        if found.held is not None and start == found.held.number:
            settled = self._do(StreamSettle(now, stream, start))
        elif start != found.settled:
            raise self._mismatch(stream, found, start)
        return settled, None if found.held is None else found.held.number

    def stream_due(self, stream: str, n: int, run: Run) -> list[int]:
        """Up to n messages that a run has still to read, in the order of claiming."""
        return list(islice((seq for seq in self._ready if self.is_due_in(run, stream, seq)), n))

    def stream_claim(
        self, stream: str, n: int, nonce: int, now: int, run: Run | None = None
    ) -> StreamClaim | None:
        """Let a stream that holds nothing claim a batch of up to n messages; in a run only those due in it."""
        self.advance(now)
        if run is not None:
            seqs = self._take(n, lambda seq: self.is_due_in(run, stream, seq))
        else:
            seqs = self._ready.take(n, self.available()) if n else []
        return self._do(StreamClaim(now, stream, self._last_batch + 1, seqs, nonce)) if seqs else None

    def stream_fail(
        self, stream: str, batch: int, seqs: Iterable[int], reason: str | None, now: int, delay: int = 0
    ) -> StreamFail | None:
        """Messages of a batch are to fail when it is settled; of one that is settled nothing changes any more."""
        self.advance(now)
        found = self._consuming(stream)
        if found.held is None or found.held.number != batch:
            self._check_settled(stream, found, batch)
            return None
        there = set(found.held.seqs)
        failed = sorted({seq for seq in seqs if seq in there})
        return self._do(StreamFail(now, stream, batch, failed, reason, delay)) if failed else None

    def stream_read(self, stream: str, batch: int, now: int) -> StreamReplay | None:
        """A batch is about to be read; StreamMismatch if it cannot be, any more or yet."""
        self.advance(now)
        found = self._consuming(stream)
        if found.held is None or found.held.number != batch:
            self._check_readable(stream, found, batch)
            return None
        return self._do(StreamReplay(now, stream, batch)) if found.held.failures else None

    def stream_batch(self, stream: str, batch: int) -> tuple[Rows, Seqs]:
        """The messages of a batch that can be read: rows among which they are, and their numbers, ascending."""
        found = self._consuming(stream)
        if found.held is not None and found.held.number == batch:
            return self._rows, found.held.seqs
        self._check_readable(stream, found, batch)
        return found.kept, list(found.kept.with_state(None))

    def stream_settle(self, stream: str, batch: int, now: int) -> StreamSettle | None:
        """Settle the batch of that number, if it still has to be."""
        self.advance(now)
        found = self._consuming(stream)
        if found.held is not None and found.held.number == batch:
            return self._do(StreamSettle(now, stream, batch))
        self._check_settled(stream, found, batch)
        return None

    def stream_release(self, stream: str, now: int) -> StreamRelease | None:
        """Give back what a stream holds."""
        self.advance(now)
        held = self._consuming(stream).held
        return self._do(StreamRelease(now, stream, held.number)) if held is not None and held.seqs else None

    def stream_delete(self, stream: str, now: int) -> Sequence[StreamRecord]:
        """Forget a stream that holds nothing."""
        self.advance(now)
        held, records = self._known(stream).held, list[StreamRecord]()
        if held is not None and held.seqs:
            raise StreamInUse(
                f"stream {stream!r} of queue {self.name!r} holds {len(held.seqs)} messages: settle them first "
                "(penstock streams settle CHECKPOINT), or give them back (penstock streams release)"
            )
        if held is not None:
            records.append(self._do(StreamSettle(now, stream, held.number)))
        return [*records, self._do(StreamDelete(now, stream))]

    def _do(self, record: _Record) -> _Record:
        self._apply(record)
        return record

    def _known(self, stream: str) -> Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise StreamNotFound(
                f"queue {self.name!r} has no stream {stream!r}: `penstock streams` lists those there are"
            ) from None

    def _consuming(self, stream: str) -> Stream:
        found = self._known(stream)
        self._check_mode(stream, follows=False)
        return found

    def _read_by(self, stream: str, reader: str) -> Stream:
        found = self._consuming(stream)
        if found.reader != reader:
            raise StreamInUse(
                f"stream {stream!r} of queue {self.name!r} was taken over by another process ({found.reader}): "
                "stop one of the two queries, or give each a stream name of its own"
            )
        return found

    def _check_mode(self, stream: str, follows: bool) -> None:
        found = self._streams.get(stream)
        if found is not None and (found.position is not None) != follows:
            mode = "follows" if found.position is not None else "consumes"
            raise StreamInUse(
                f"stream {stream!r} of queue {self.name!r} is one that {mode}: give this one another name, or "
                f"forget the other with `penstock streams delete {stream}`"
            )

    def _check_settled(self, stream: str, found: Stream, batch: int) -> None:
        if batch > found.settled:
            raise self._mismatch(stream, found, batch)

    def _check_readable(self, stream: str, found: Stream, batch: int) -> None:
        if batch != found.settled or not batch:
            raise self._mismatch(stream, found, batch)

    def _mismatch(self, stream: str, found: Stream, start: int) -> StreamMismatch:
        known, batch = f"stream {stream!r} of queue {self.name!r}", f"the checkpoint is at batch {start}"
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
