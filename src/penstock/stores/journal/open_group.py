"""A commit group that is being filled, or waits to be written: bodies first, then the records about them."""

from collections.abc import Sequence
from itertools import accumulate

from penstock.contract.message import Entry
from penstock.rules.records import Put
from penstock.stores.journal import bodies, groups
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.files import PLACE_BITS
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.records import encode_put
from penstock.stores.journal.xids import before, xid_of

_TAIL = groups.OVERHEAD - groups.HEAD_SIZE


class OpenGroup:
    """The group of a number, which goes to a segment at an offset. Whoever fills it holds the queue's lock."""

    __slots__ = ("at", "buffer", "next_seq", "number", "place", "records", "segment", "start", "written", "xid")

    def __init__(self, segment: int, start: int, number: int) -> None:
        self.segment = segment
        self.start = start
        self.place = (segment << PLACE_BITS) + start  # of its first byte, among those of all segments
        self.number = number
        self.buffer = bytearray(groups.HEAD_SIZE)
        self.records = bytearray()
        self.xid: int | None = None  # before its first message
        self.next_seq = 0
        self.at = 0
        self.written = 0

    @property
    def size(self) -> int:
        """Bytes that it takes, if it is sealed now."""
        return len(self.buffer) + len(self.records) + _TAIL

    def __bool__(self) -> bool:
        return bool(self.records) or len(self.buffer) > groups.HEAD_SIZE

    def put(
        self, record: Put, entries: Sequence[Entry], dialect: Dialect
    ) -> tuple[Sequence[int], list[int], list[int]]:
        """Take in new messages; the places, sizes and checksums of their bodies."""
        first = record.first
        self.number_next(first, len(entries))
        parts, sizes, crcs = bodies.encode(entries, first, record.at, record.expires_at, dialect)
        offset, base = len(self.buffer), self.place
        if len(parts) == 1:
            self.buffer += parts[0]
            self.records += encode_put(record, Bodies((offset,), sizes, crcs))
            return (base + offset,), sizes, crcs
        offsets = list(accumulate(sizes[:-1], initial=offset))
        if offsets[-1] > 2 * offset:  # most of it is new
            self.buffer = bytearray().join([self.buffer, *parts])  # one large object is made, not two
        else:
            self.buffer += b"".join(parts)
        self.records += encode_put(record, Bodies(offsets, sizes, crcs))
        return [base + each for each in offsets], sizes, crcs

    def number_next(self, first: int, count: int) -> None:
        """See to it that the next so many messages have the xids that go with their numbers."""
        if self.xid is None:
            self.xid = before(xid_of(first))
        elif first != self.next_seq:
            self.buffer += bodies.save_xid(before(xid_of(first)))
        self.next_seq = first + count

    def read(self, place: int, size: int) -> bytes:
        """A body that is in here."""
        start = place - self.place
        return bytes(self.buffer[start : start + size])

    def seal(self) -> None:
        """Put bodies and records together, to be written."""
        groups.seal(self.buffer, self.records, self.xid or 0, self.number, self.at)
