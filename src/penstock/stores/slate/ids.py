"""The numbers of a slate store: one counter for all messages, in blocks, as OpenData-Log numbers its entries."""

import threading

from penstock.errors import NotSupported
from penstock.stores.slate.binding import Row
from penstock.stores.slate.format import MAX_ID, SEQ_BLOCK_KEY, SeqBlock, decode_seq_block, encode_seq_block

_BLOCK = 4_096


class Ids:
    """Gives ids that nobody has. A block of them is written before, or with, the first message that has one."""

    def __init__(self, stored: bytes | None, highest: int) -> None:
        """`highest`: of all ids that are there; another program may have others than its block says."""
        block = SeqBlock(1, 0) if stored is None else decode_seq_block(stored)
        self._lock = threading.Lock()
        self._next = self._end = max(block.base + block.size, highest + 1)
        self._row: Row | None = None

    @property
    def next(self) -> int:
        """Above every id that was given."""
        return self._next

    def reserve(self, count: int) -> int:
        """The first of so many ids; NotSupported once there are no more."""
        with self._lock:
            first = self._next
            if first + count > MAX_ID + 1:
                raise NotSupported(
                    f"this store has no number left for another message: {first - 1} was given to one, and the "
                    f"highest is {MAX_ID}. What is there can be worked off; put new messages into another store"
                )
            self._next += count
            if self._next > self._end:
                block = SeqBlock(first, min(max(_BLOCK, count), MAX_ID + 1 - first))
                self._end = block.base + block.size
                self._row = (SEQ_BLOCK_KEY, encode_seq_block(block))
            return first

    def row(self) -> Row | None:
        """What is to be written; asked for after all that uses the ids, so that it covers them."""
        with self._lock:
            row, self._row = self._row, None
            return row
