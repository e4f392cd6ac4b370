"""Which message is next: the order of the available messages, by priority and then by sequence number.

Messages that arrive in order, which is nearly all of them, stand in lanes: one per priority, an array of
ascending sequence numbers, 8 bytes each, constant time at both ends. What arrives out of order (a message that
came back, a delay that ended) and priorities beyond the first 256 lanes go to one heap of strays.

A message that is no longer available (removed, expired) leaves its entry behind; entries are checked when they
are taken, and swept out once the dead outnumber the living.
"""

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

_MAX_LANES = 256
_SEQ_BITS = 64
_SEQ_MASK = (1 << _SEQ_BITS) - 1
_SLACK = 1024  # dead entries that are never worth a rebuild


class _Lane:
    """The messages of one priority in the order of their arrival."""

    __slots__ = ("head", "seqs")

    def __init__(self) -> None:
        self.seqs = array("q")
        self.head = 0

    def take(self, n: int, below: int | None) -> list[int]:
        end = min(self.head + n, len(self.seqs))
        if below is not None:
            end = bisect_left(self.seqs, below, self.head, end)
        taken = self.seqs[self.head : end].tolist()
        self.head = end
        if self.head > _SLACK and self.head * 2 > len(self.seqs):
            del self.seqs[: self.head]
            self.head = 0
        return taken


class Ready:
    """The available messages of a queue in the order in which they are claimed."""

    def __init__(self, is_available: Callable[[int], bool]) -> None:
        self._is_available = is_available
        self._lanes: dict[int, _Lane] = {}
        self._priorities: list[int] = []  # of the lanes, ascending
        self._strays: list[int] = []  # a heap of priority << 64 | seq
        self._entries = 0

    def arrive(self, seqs: range | list[int] | tuple[int, ...], priority: int) -> None:
        """Add messages of one priority, later than any that arrived before."""
        lane = self._lanes.get(priority)
        if lane is None:
            if len(self._lanes) >= _MAX_LANES:
                for seq in seqs:
                    self.come_back(seq, priority)
                return
            lane = self._lanes[priority] = _Lane()
            insort(self._priorities, priority)
        lane.seqs.extend(seqs)
        self._entries += len(seqs)

    def come_back(self, seq: int, priority: int) -> None:
        """Add a message at its place among its equals, wherever that is."""
        heapq.heappush(self._strays, (priority << _SEQ_BITS) | seq)
        self._entries += 1

    def take(self, n: int, available: int) -> list[int]:
        """Take out the next n messages (fewer if there are not so many); `available` is how many there are."""
        clean = self._entries == available
        taken: list[int] = []
        while len(taken) < n and self._entries:
            run = self._next_run(n - len(taken))
            taken += run if clean else filter(self._is_available, run)
        return taken

    def tidy(self, available: int) -> None:
        """Sweep out dead entries once they outnumber the messages that are available."""
        if self._entries > 2 * available + _SLACK:
            self._rebuild()

    def __iter__(self) -> Iterator[int]:
        """The available messages in order, without taking them out."""
        keys = heapq.merge(self._lane_keys(), _in_order(self._strays))
        return filter(self._is_available, (key & _SEQ_MASK for key in keys))

    def _next_run(self, n: int) -> list[int]:
        """Take out up to n next entries that stand together."""
        stray = self._strays[0] if self._strays else None
        first = self._priorities[0] if self._priorities else None
        if first is None or (stray is not None and stray >> _SEQ_BITS < first):
            run = [heapq.heappop(self._strays) & _SEQ_MASK]
        else:
            lane = self._lanes[first]
            same = stray is not None and stray >> _SEQ_BITS == first
            run = lane.take(n, stray & _SEQ_MASK if same and stray is not None else None)
            if lane.head == len(lane.seqs):
                del self._lanes[first], self._priorities[0]
            if not run:  # the stray comes before the lane's first
                run = [heapq.heappop(self._strays) & _SEQ_MASK]
        self._entries -= len(run)
        return run

    def _rebuild(self) -> None:
        self._strays = [key for key in self._strays if self._is_available(key & _SEQ_MASK)]
        heapq.heapify(self._strays)
        self._entries = len(self._strays)
        for priority, lane in list(self._lanes.items()):
            lane.seqs = array("q", filter(self._is_available, lane.seqs[lane.head :]))
            lane.head = 0
            self._entries += len(lane.seqs)
            if not lane.seqs:
                del self._lanes[priority]
        self._priorities = sorted(self._lanes)

    def _lane_keys(self) -> Iterator[int]:
        for priority in self._priorities:
            lane = self._lanes[priority]
            for at in range(lane.head, len(lane.seqs)):
                yield (priority << _SEQ_BITS) | lane.seqs[at]


def _in_order(heap: list[int]) -> Iterator[int]:
    """A heap's entries in ascending order, as far as they are asked for."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        key, at = heapq.heappop(ahead)
        yield key
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(ahead, (heap[child], child))
