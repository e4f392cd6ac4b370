"""What a queue has settled, or put under a key, of late: noted as it happens, and the records that say so.

Each commit adds one such record, or as many as its arrays need; a record goes once all of it is too old to matter.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat

from penstock.contract.settings import FIVE_MINUTES
from penstock.rules.index.recent import RecentReceipts
from penstock.stores.slate import format as records
from penstock.stores.slate import own
from penstock.stores.slate.binding import Row
from penstock.stores.slate.primitives import MAX_ARRAY

_KEPT = FIVE_MINUTES + 2 * 60_000  # milliseconds


class NotedReceipts(RecentReceipts):
    """Settled receipts, of which the latest are still to be written."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[own.Receipt] = []

    def add(self, seqs: Sequence[int], nonces: Sequence[int], outcome: int, now: int) -> None:
        """Remember receipts that were settled now."""
        super().add(seqs, nonces, outcome, now)
        self.noted += map(own.Receipt, seqs, nonces, repeat(outcome))


class Lately:
    """The recent records of one queue."""

    def __init__(self, queue: str, receipts: NotedReceipts) -> None:
        self.keys: list[tuple[int, str]] = []  # messages that were put under keys, still to be written
        self.written: list[tuple[int, int]] = []  # numbers of records, and when they were written
        self._queue = queue
        self._receipts = receipts

    def rows(self, at: int) -> Iterator[Row]:
        """Records of what was noted, and deletions of those that are too old."""
        receipts, keys = self._receipts.noted, self.keys
        while receipts or keys:
            number = self.written[-1][0] + 1 if self.written else 1
            recent = own.Recent(at, receipts[:MAX_ARRAY], keys[:MAX_ARRAY])
            yield records.queue_key(records.RECENT, self._queue, number), own.encode_recent(recent)
            self.written.append((number, at))
            receipts, keys = receipts[MAX_ARRAY:], keys[MAX_ARRAY:]
        self._receipts.noted, self.keys = [], []
        while self.written and self.written[0][1] < at - _KEPT:
            number, _ = self.written.pop(0)
            yield records.queue_key(records.RECENT, self._queue, number), None

    def deletions(self) -> Iterator[Row]:
        """Deletions of all of them."""
        for number, _ in self.written:
            yield records.queue_key(records.RECENT, self._queue, number), None
