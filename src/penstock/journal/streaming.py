"""The streams of a journal store, for whoever has it open: rules, records, and where the bodies of a batch are."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from penstock.clock import Clock
from penstock.errors import PenstockError, StreamInUse
from penstock.files import Disk
from penstock.index.rows import Page, Rows
from penstock.journal.files import PLACE_BITS, Segment
from penstock.journal.pins import Pins
from penstock.journal.places import Found
from penstock.journal.shelf import JournalShelf
from penstock.journal.upkeep import Upkeep
from penstock.ledger import Ledger
from penstock.live.queue import LiveQueue
from penstock.live.receipts import parse_ids
from penstock.live.taken import fill, row_as_seen
from penstock.message import Message
from penstock.processes import is_gone
from penstock.records import Record
from penstock.streams import HEARTBEAT, BatchPlan, StreamInfo, boot, is_reader_gone

_UNHEARD = int(3 * HEARTBEAT * 1000)  # milliseconds after which a reader of another machine counts as gone
_TRIES = 100
_PAUSE = 0.01  # seconds between two tries to see files that are just being renamed
_PAGE = 8 << 20  # bytes of messages that are listed at once
Result = TypeVar("Result")


class _Queue(NamedTuple):
    live: LiveQueue
    ledger: Ledger
    shelf: JournalShelf


class JournalStreams:
    """The streams of one store."""

    def __init__(
        self, folder: str, disk: Disk, clock: Clock, find: Callable[[str], LiveQueue], upkeep: Mapping[str, Upkeep]
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._find = find
        self._upkeep = upkeep
        self._heard: dict[tuple[str, str], int] = {}  # when the reader of a stream was last heard
        self._opened = clock.now()

    def all(self) -> list[StreamInfo]:
        """Every stream of every queue."""
        found: list[StreamInfo] = []
        for name in sorted(self._upkeep):
            with suppress(LookupError):  # deleted meanwhile
                found += self._change(name, lambda now, known: known.ledger.streams())
        return found

    def begin(self, queue: str, stream: str, reader: str) -> StreamInfo:
        """Be the one process that reads a stream, and say again that one is."""

        def begin(now: int, known: _Queue) -> StreamInfo:
            current = known.ledger.stream_reader(stream)
            if current not in (None, reader):
                self._check_gone(queue, stream, current or "")
            known.shelf.make_room(claims=1)
            _keep(known, known.ledger.stream_begin(stream, reader, now))
            self._heard[queue, stream] = now
            return known.ledger.stream_info(stream)

        return self._change(queue, begin)

    def next(self, queue: str, stream: str, reader: str, start: int, rows: int, size: int) -> int | None:
        """Settle a batch that was certainly read; the number of the next, claimed if none is held."""

        def go_on(now: int, known: _Queue) -> int | None:
            ledger, count = known.ledger, min(rows, known.ledger.available())
            known.shelf.make_room(claims=count)
            settled, offered = ledger.stream_offer(stream, reader, start, now)
            _keep(known, settled)
            if offered is None and count:
                count = known.live.fitting(ledger.peek(count), size)
                claimed = ledger.stream_claim(stream, count, int.from_bytes(os.urandom(8)), now)
                _keep(known, claimed)
                offered = claimed and claimed.batch
            self._heard[queue, stream] = now
            return offered

        return self._change(queue, go_on)

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Where the messages of a batch are, with files pinned for a process."""

        def look(now: int, known: _Queue) -> tuple[list[tuple[int, Page]], dict[int, Segment]]:
            _keep(known, known.ledger.stream_read(stream, batch, now))
            rows = known.ledger.batch_rows(stream, batch) or Rows(0)
            return list(rows.copy().pages()), known.shelf.segments

        for _ in range(_TRIES):
            pages, segments = self._change(queue, look)
            used = sorted({place >> PLACE_BITS for _, page in pages for place in page.place if place})
            files = self._pin([segments[number] for number in used if number in segments], pins)
            if files is not None:
                return BatchPlan(pages, files)
            time.sleep(_PAUSE)
        raise PenstockError(f"the files of queue {queue!r} change faster than they can be pinned: try again")

    def _pin(self, segments: Sequence[Segment], process: str | None) -> list[tuple[int, str, str]] | None:
        """Pin files; None if one of them has another name by now."""
        name, _, machine = (process or "").partition("@")
        if machine != boot() or is_gone(name):
            return []  # who is elsewhere could not say when it ends
        pins = Pins(self._folder, name)
        try:
            return [(each.number, each.name, pins.pin(os.path.join(self._folder, each.name))) for each in segments]
        except FileNotFoundError:
            pins.drop()
            return None

    def messages(self, queue: str, stream: str, batch: int, after: str, until: str, limit: int) -> list[Message]:
        """Some messages of a batch by ascending id."""
        known = self._queue(queue)
        first, last = [next(iter(parse_ids([text])), None) for text in (after, until)]

        def look(now: int) -> tuple[list[Message], list[Found]]:
            rows, seqs = known.ledger.stream_batch(stream, batch)
            start = 0 if first is None else bisect_right(seqs, first)
            end = len(seqs) if last is None else bisect_right(seqs, last)
            some = list(islice(seqs, start, min(end, start + limit)))
            sizes = accumulate(page.size[at] for page, at in map(rows.locate, some))
            some = some[: max(1, bisect_right(list(sizes), _PAGE))]
            seen = [row_as_seen(seq, queue, *rows.locate(seq)) for seq in some]
            return seen, known.shelf.find(some, rows)

        seen, found = known.live.run(look)[0]
        return fill(seen, known.shelf.read(found))

    def fail(self, queue: str, stream: str, batch: int, ids: Sequence[str], reason: str | None) -> None:
        """Let these messages fail when the batch is settled."""

        def fail(now: int, known: _Queue) -> None:
            known.shelf.make_room(claims=len(ids))
            _keep(known, known.ledger.stream_fail(stream, batch, parse_ids(ids), reason, now))

        self._change(queue, fail)

    def settle(self, queue: str, stream: str, batch: int) -> bool:
        """Settle a batch; False if that was done before."""
        return self._change(queue, lambda now, known: _keep(known, known.ledger.stream_settle(stream, batch, now)))

    def release(self, queue: str, stream: str) -> int:
        """Give back what a stream holds, whose reader must be gone; how many messages."""

        def release(now: int, known: _Queue) -> int:
            info = known.ledger.stream_info(stream)
            self._check_gone(queue, stream, info.reader)
            _keep(known, known.ledger.stream_release(stream, now))
            return info.messages

        return self._change(queue, release)

    def delete(self, queue: str, stream: str) -> None:
        """Forget a stream that holds nothing, and whose reader is gone."""

        def delete(now: int, known: _Queue) -> None:
            self._check_gone(queue, stream, known.ledger.stream_info(stream).reader)
            for record in known.ledger.stream_delete(stream, now):
                _keep(known, record)

        self._change(queue, delete)

    def _check_gone(self, queue: str, stream: str, reader: str) -> None:
        gone = is_reader_gone(reader)
        if gone is None:
            gone = self._clock.now() - self._heard.get((queue, stream), self._opened) > _UNHEARD
        if not gone:
            raise StreamInUse(
                f"stream {stream!r} of queue {queue!r} is read by another process ({reader}): stop that query, or "
                "give this one a stream name of its own"
            )

    def _queue(self, queue: str) -> _Queue:
        live = self._find(queue)
        upkeep = self._upkeep[queue]
        return _Queue(live, upkeep.journal.ledger, upkeep.shelf)

    def _change(self, queue: str, change: Callable[[int, _Queue], Result]) -> Result:
        known = self._queue(queue)
        result, written = known.live.run(lambda now: change(now, known))
        known.live.commit(written)
        return result


def _keep(known: _Queue, record: Record | None) -> bool:
    """Keep what a rule has decided; whether that was anything."""
    if record is not None:
        known.live.write(record)
    return record is not None
