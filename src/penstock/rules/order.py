"""The order of claiming, and deadlines of messages.

Available messages are claimed by priority and then by sequence number. Those that arrive in order, which is nearly
all of them, stand in lanes: one per priority, an array of ascending sequence numbers, 8 bytes each, constant time
at both ends. Messages that arrive out of order (they came back, or their delay ended) and priorities beyond the
first 256 lanes go to one heap of strays.

A stale entry (its message was removed, settled or extended) is dropped when it is taken out and checked against
the message, or when stale entries are the majority and are swept out.
"""

import heapq
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

_MAX_LANES = 256
SEQ_BITS = 64
_SEQ_MASK = (1 << SEQ_BITS) - 1
NEVER = 1 << 63  # the time of a message that does not change by itself
SLACK = 1024  # stale entries that are never worth a rebuild
_LONG = 64  # a longer range is kept as one until it is needed: it takes less memory than its numbers


class _Lane:
    """The messages of one priority in the order of their arrival."""

    __slots__ = ("head", "later", "seqs")

    def __init__(self) -> None:
        self.seqs = array("q")
        self.head = 0
        # Those that follow the ones in the array, into which they come when they are needed.
        self.later: deque[range | array[int]] = deque()

    def gather(self, most: int | None = None) -> None:
        """Bring all messages into the array, or enough to take so many."""
        while self.later and (most is None or len(self.seqs) - self.head < most):
            self.seqs.extend(self.later.popleft())

    def take(self, n: int, below: int | None) -> list[int]:
        if self.later:
            self.gather(n)
        end = min(self.head + n, len(self.seqs))
        if below is not None:
            end = bisect_left(self.seqs, below, self.head, end)
        taken = self.seqs[self.head : end].tolist()
        self._go_on(end)
        return taken

    def next(self) -> int:
        """Take out the first message."""
        if self.later:
            self.gather(1)
        seq = self.seqs[self.head]
        self._go_on(self.head + 1)
        return seq

    def _go_on(self, head: int) -> None:
        self.head = head
        if head > SLACK and head * 2 > len(self.seqs):
            del self.seqs[:head]
            self.head = 0


class Ready:
    """The available messages of a queue in the order in which they are claimed."""

    def __init__(self, is_available: Callable[[int], bool]) -> None:
        self._is_available = is_available
        self._lanes: dict[int, _Lane] = {}
        self._priorities: list[int] = []  # of the lanes, ascending
        self._strays: list[int] = []  # a heap of priority << 64 | seq
        self._withdrawn: set[int] = set()  # messages whose entries do not count
        self.entries = 0  # without those of withdrawn messages

    def arrive(self, seqs: Sequence[int], priority: int) -> None:
        """Add messages of one priority, later than any that arrived before."""
        lane = self._lanes.get(priority)
        if lane is None:
            if len(self._lanes) >= _MAX_LANES:
                for seq in seqs:
                    self.come_back(seq, priority)
                return
            lane = self._lanes[priority] = _Lane()
            insort(self._priorities, priority)
        if len(seqs) > _LONG and isinstance(seqs, range):
            lane.later.append(seqs)
        elif not lane.later:
            lane.seqs.extend(seqs)
        elif isinstance(last := lane.later[-1], array):
            last.extend(seqs)
        else:
            lane.later.append(array("q", seqs))
        self.entries += len(seqs)

    def come_back(self, seq: int, priority: int) -> None:
        """Add a message at its place by sequence number."""
        self.entries += 1
        if seq in self._withdrawn:
            self._withdrawn.remove(seq)  # its entry is still there
            return
        heapq.heappush(self._strays, (priority << SEQ_BITS) | seq)

    def withdraw(self, seq: int) -> None:
        """Take out a message until it comes back."""
        self._withdrawn.add(seq)
        self.entries -= 1

    @property
    def stale(self) -> int:
        """How many entries of withdrawn messages there are."""
        return len(self._withdrawn)

    def take(self, n: int, available: int) -> list[int]:
        """Take out up to n next messages; `available` is how many there are."""
        lane = self._first_lane(available)
        if lane is not None and n == 1:  # nearly all claims
            taken = [lane.next()]
            self.entries -= 1
            if lane.head == len(lane.seqs) and not lane.later:
                del self._lanes[self._priorities.pop(0)]
            return taken
        clean = self.entries == available  # no stale entries
        taken = []
        while len(taken) < n and self.entries:
            run = self._next_run(n - len(taken))
            if self._withdrawn:
                run = self._without_withdrawn(run)
            taken += run if clean else filter(self._is_available, run)
        return taken

    def peek(self, n: int, available: int) -> list[int]:
        """Up to n next messages, without taking them out; `available` is how many there are."""
        lane = self._first_lane(available)
        if lane is not None:
            lane.gather(n)
            if lane.head + n <= len(lane.seqs):
                return lane.seqs[lane.head : lane.head + n].tolist()
        return list(islice(self, n))

    def _first_lane(self, available: int) -> _Lane | None:
        """The lane with the next messages, if all its entries count and no stray comes between."""
        if self.entries != available or not available or self._strays or self._withdrawn:
            return None
        return self._lanes[self._priorities[0]]

    def _without_withdrawn(self, run: list[int]) -> list[int]:
        """The entries that count, of entries that were taken out."""
        left = [seq for seq in run if seq not in self._withdrawn]
        if len(left) < len(run):
            self._withdrawn.difference_update(run)
            self.entries += len(run) - len(left)
        return left

    def __iter__(self) -> Iterator[int]:
        """The available messages in order, without taking them out."""
        keys = heapq.merge(self._lane_keys(), _in_order(self._strays))
        return filter(self._stands, (key & _SEQ_MASK for key in keys))

    def _stands(self, seq: int) -> bool:
        return seq not in self._withdrawn and self._is_available(seq)

    def _next_run(self, n: int) -> list[int]:
        """Take out up to n next entries of one lane, or one stray."""
        stray = self._strays[0] if self._strays else None
        first = self._priorities[0] if self._priorities else None
        if first is None or (stray is not None and stray >> SEQ_BITS < first):
            run = [heapq.heappop(self._strays) & _SEQ_MASK]
        else:
            lane = self._lanes[first]
            same = stray is not None and stray >> SEQ_BITS == first
            run = lane.take(n, stray & _SEQ_MASK if same and stray is not None else None)
            if lane.head == len(lane.seqs) and not lane.later:
                del self._lanes[first], self._priorities[0]
            if not run:  # the stray comes before the lane's first
                run = [heapq.heappop(self._strays) & _SEQ_MASK]
        self.entries -= len(run)
        return run

    def rebuild(self) -> None:
        """Remove stale entries."""
        self._strays = [key for key in self._strays if self._stands(key & _SEQ_MASK)]
        heapq.heapify(self._strays)
        self.entries = len(self._strays)
        for priority, lane in list(self._lanes.items()):
            lane.gather()
            lane.seqs = array("q", filter(self._stands, lane.seqs[lane.head :]))
            lane.head = 0
            self.entries += len(lane.seqs)
            if not lane.seqs:
                del self._lanes[priority]
        self._priorities = sorted(self._lanes)
        self._withdrawn.clear()

    def _lane_keys(self) -> Iterator[int]:
        for priority in self._priorities:
            lane = self._lanes[priority]
            lane.gather()
            for at in range(lane.head, len(lane.seqs)):
                yield (priority << SEQ_BITS) | lane.seqs[at]


def _in_order(heap: list[int]) -> Iterator[int]:
    """A heap's entries in ascending order, lazily."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        key, at = heapq.heappop(ahead)
        yield key
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(ahead, (heap[child], child))


class Deadlines:
    """Deadlines of messages: a heap of (time, sequence number)."""

    def __init__(self) -> None:
        self._latest = 0  # an upper bound of the entries
        self.heap: list[int] = []  # time << 64 | seq: half the memory of tuples

    def add(self, at: int, seq: int) -> None:
        """Add a deadline of a message."""
        entry = (at << SEQ_BITS) | seq
        heapq.heappush(self.heap, entry)
        if entry > self._latest:
            self._latest = entry

    def add_many(self, at: int, seqs: Iterable[int]) -> None:
        """Add the same deadline for many messages."""
        heap, time = self.heap, at << SEQ_BITS
        entries = sorted(map(time.__or__, seqs))
        if not heap:
            self._latest = 0
        if entries and entries[0] >= self._latest:
            heap += entries  # ascending entries above all others keep it a heap
            self._latest = entries[-1]
            return
        for entry in entries:
            heapq.heappush(heap, entry)
        self._latest = max(self._latest, entries[-1] if entries else 0)

    def next(self) -> int | None:
        """The earliest deadline."""
        return self.heap[0] >> SEQ_BITS if self.heap else None

    def pop(self, now: int) -> tuple[int, int] | None:
        """Take out the earliest (time, sequence number) up to now."""
        if not self.heap or self.heap[0] >> SEQ_BITS > now:
            return None
        entry = heapq.heappop(self.heap)
        return entry >> SEQ_BITS, entry & _SEQ_MASK

    def sweep(self, is_valid: Callable[[int, int], bool]) -> None:
        """Remove stale entries."""
        self.heap = [entry for entry in set(self.heap) if is_valid(entry >> SEQ_BITS, entry & _SEQ_MASK)]
        heapq.heapify(self.heap)
