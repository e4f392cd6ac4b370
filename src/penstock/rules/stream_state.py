"""What the records of streams change in the state of a queue.

A batch's messages are in flight without an end: neither time nor anyone but the stream takes them from it. When it
is settled they go their usual ways, and what is past its time by then is gone.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.rules.index.rows import IN_FLIGHT, Page, Rows
from penstock.rules.index.streams import Batch, Failure, Run, Stream, compact, picked
from penstock.rules.records import (
    Claim,
    Record,
    Remove,
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
from penstock.rules.state import State

CONSUMER = "stream:"  # how the consumer of a message begins that a stream holds


class StreamState(State):
    """The state of one queue and its streams."""

    def _apply(self, record: Record) -> None:
        if isinstance(record, StreamRecord):
            _APPLY[type(record)](self, record)
        else:
            if isinstance(record, Remove) and self._streams:
                self._lose(record.seqs)
            super()._apply(record)

    def _lose(self, seqs: Sequence[int]) -> None:
        """Messages go that streams hold: only if another program, as Kestrel, took them from the journal."""
        lost = {seq for seq in seqs if self.is_held_by_stream(seq)}
        for stream in self._streams.values() if lost else ():
            if stream.held is not None:
                stream.held.seqs = compact([seq for seq in stream.held.seqs if seq not in lost])
                for seq in lost:
                    stream.held.failures.pop(seq, None)

    def _follows(self, record: Record) -> bool:
        if not isinstance(record, StreamRecord):
            return super()._follows(record)
        stream = self._streams.get(record.stream)
        if isinstance(record, StreamBegin | StreamFollow):
            return stream is None or (stream.position is None) == isinstance(record, StreamBegin)
        if stream is None:
            return False
        if isinstance(record, StreamDelete):
            return stream.held is None
        if isinstance(record, StreamClaim):
            free = stream.held is None and record.batch > self._last_batch
            return free and self._take(len(record.seqs), set(record.seqs).__contains__) == record.seqs
        return stream.held is not None and stream.held.number == record.batch

    def _take(self, n: int, wanted: Callable[[int], bool]) -> list[int]:
        """Take the next n available messages that are wanted; the others keep their places."""
        taken: list[int] = []
        left: list[int] = []
        while len(taken) < n:
            some = self._ready.take(n - len(taken), self.available() - len(taken) - len(left))
            if not some:
                break
            for seq in some:
                (taken if wanted(seq) else left).append(seq)
        for seq in left:
            page, at = self._rows[seq]
            self._ready.come_back(seq, page.priority[at])
        return taken

    def is_due_in(self, run: Run, stream: str, seq: int) -> bool:
        """Whether a run of a stream has still to read a message: one that came back since is for the next run."""
        page, at = self._rows[seq]
        if seq >= run.below:
            return False
        if page.claims is None or page.for_claims(at).claimed_at[at] < run.since:
            return True
        consumer = CONSUMER + stream
        return not any(
            each.consumer == consumer and each.claimed_at >= run.since for each in self._history.of(seq)
        )

    def _begin(self, record: StreamBegin) -> None:
        stream = self._streams.get(record.stream)
        if stream is None:
            self._streams[record.stream] = Stream(record.reader)
        else:
            stream.reader = record.reader

    def _claim_batch(self, record: StreamClaim) -> None:
        self._claim(Claim(record.at, record.seqs, 0, CONSUMER + record.stream, record.nonce))
        self._streams[record.stream].held = Batch(record.batch, record.at, compact(record.seqs))
        self._last_batch = record.batch

    def _fail_some(self, record: StreamFail) -> None:
        held = self._held_batch(record.stream)
        held.failures.update(dict.fromkeys(record.seqs, Failure(record.reason, record.delay)))

    def _replay_batch(self, record: StreamReplay) -> None:
        self._held_batch(record.stream).failures.clear()

    def _settle_batch(self, record: StreamSettle) -> None:
        stream, held = self._streams[record.stream], self._held_batch(record.stream)
        stream.kept = picked(self._rows, held.seqs)
        stream.before, stream.settled, stream.held = stream.settled, held.number, None
        seqs = [seq for seq in held.seqs if seq not in held.failures] if held.failures else list(held.seqs)
        runs = self._rows.runs(seqs) if self.settings.keep_done == 0 and seqs else None
        if runs is not None:
            self._drop_runs(seqs, runs)
        else:
            for seq in seqs:
                page, at = self._rows[seq]
                if not self._is_over(seq, page, at, record.at):
                    self._finish(seq, page, at, record.at)
        for seq, (reason, delay) in sorted(held.failures.items()):
            page, at = self._rows[seq]
            if not self._is_over(seq, page, at, record.at):
                self._end_attempt(seq, page, at, record.at, record.at + delay, reason)
        self._tidy()

    def _release_batch(self, record: StreamRelease) -> None:
        held = self._held_batch(record.stream)
        for seq in held.seqs:
            page, at = self._rows[seq]
            if not self._is_over(seq, page, at, record.at):
                self._remember(seq, page, at, record.at, "released", None)
                self._come_back(seq, page, at, record.at, record.at)
        held.seqs = ()
        held.failures.clear()
        self._tidy()

    def _follow(self, record: StreamFollow) -> None:
        stream = self._streams.setdefault(record.stream, Stream(record.reader))
        stream.reader, stream.position = record.reader, record.position

    def _delete_stream(self, record: StreamDelete) -> None:
        del self._streams[record.stream]

    def _is_over(self, seq: int, page: Page, at: int, now: int) -> bool:
        """Whether the time of a message is past that a stream lets go: then it is gone. Else it counts again."""
        expires_at = page.expires_at[at]
        if not expires_at:
            return False
        if expires_at <= now:
            self.expired += 1
            self._drop(seq, page, at)
            return True
        self._deadlines.add(expires_at, seq)
        return False

    def _held_batch(self, stream: str) -> Batch:
        held = self._streams[stream].held
        if held is None:
            raise LookupError(f"stream {stream!r} holds no batch")
        return held

    def is_held_by_stream(self, seq: int) -> bool:
        """Whether a stream has the message in its batch."""
        found = self._rows.find(seq)
        if found is None:
            return False
        page, at = found
        return page.state[at] == IN_FLIGHT and not page.for_claims(at).ends_at[at]

    def batch_rows(self, stream: str, batch: int) -> Rows | None:
        """The messages of a batch as they are read: the one that is held, or the last that was settled."""
        found = self._streams.get(stream)
        if found is not None and found.held is not None and found.held.number == batch:
            return picked(self._rows, found.held.seqs)
        return self.kept(stream, batch)


_APPLY: dict[type[StreamRecord], Callable[[StreamState, Any], None]] = {
    StreamBegin: StreamState._begin,
    StreamClaim: StreamState._claim_batch,
    StreamFail: StreamState._fail_some,
    StreamReplay: StreamState._replay_batch,
    StreamSettle: StreamState._settle_batch,
    StreamRelease: StreamState._release_batch,
    StreamDelete: StreamState._delete_stream,
    StreamFollow: StreamState._follow,
}
