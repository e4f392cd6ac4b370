"""When something is next due to happen to a message: a heap of (time, sequence number).

An entry that no longer fits its message (settled, extended) stays until its time comes or until such entries are
the majority; whoever takes entries out checks each against the message itself.
"""

import heapq
from collections.abc import Callable, Iterable

_SEQ_BITS = 64
_SEQ_MASK = (1 << _SEQ_BITS) - 1
_SLACK = 1024


class Deadlines:
    """Times at which messages must be looked at."""

    def __init__(self) -> None:
        self._latest = 0  # no entry is above it
        self._heap: list[int] = []  # time << 64 | seq: half the memory of tuples

    def add(self, at: int, seq: int) -> None:
        """Look at the message at that time."""
        entry = (at << _SEQ_BITS) | seq
        heapq.heappush(self._heap, entry)
        if entry > self._latest:
            self._latest = entry

    def add_many(self, at: int, seqs: Iterable[int]) -> None:
        """Look at these messages at that time."""
        heap, time = self._heap, at << _SEQ_BITS
        entries = sorted([time | seq for seq in seqs])
        if not heap:
            self._latest = 0
        if entries and entries[0] >= self._latest:
            heap += entries  # none is below any other, so it stays a heap
            self._latest = entries[-1]
            return
        for entry in entries:
            heapq.heappush(heap, entry)
        self._latest = max(self._latest, entries[-1] if entries else 0)

    def next(self) -> int | None:
        """The next time to look at a message."""
        return self._heap[0] >> _SEQ_BITS if self._heap else None

    def pop(self, now: int) -> tuple[int, int] | None:
        """Take out the earliest (time, sequence number) that is due by now."""
        if not self._heap or self._heap[0] >> _SEQ_BITS > now:
            return None
        entry = heapq.heappop(self._heap)
        return entry >> _SEQ_BITS, entry & _SEQ_MASK

    def tidy(self, valid: int, is_valid: Callable[[int, int], bool]) -> None:
        """Drop what no longer fits, if far more than the `valid` entries there can be are kept."""
        if len(self._heap) > 2 * valid + _SLACK:
            self._heap = [entry for entry in set(self._heap) if is_valid(entry >> _SEQ_BITS, entry & _SEQ_MASK)]
            heapq.heapify(self._heap)
