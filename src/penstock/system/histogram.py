"""How values are spread: counted in buckets, as Prometheus wants them."""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts values by bounds; a value that is a bound is below it. Safe for threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        at = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """How many values are below each bound, the last being all there are; and their sum."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum
