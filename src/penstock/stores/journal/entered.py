"""Messages that have entered a queue, as columns: where they are, and how they were then."""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from penstock.rules.index.rows import Page


@dataclass
class Entries:
    """Messages that have entered, by ascending number."""

    seq: "array[int]" = field(default_factory=lambda: array("Q"))
    state: bytearray = field(default_factory=bytearray)
    priority: "array[int]" = field(default_factory=lambda: array("q"))
    visible_at: "array[int]" = field(default_factory=lambda: array("q"))
    expires_at: "array[int]" = field(default_factory=lambda: array("q"))
    place: "array[int]" = field(default_factory=lambda: array("Q"))
    size: "array[int]" = field(default_factory=lambda: array("I"))
    crc: "array[int]" = field(default_factory=lambda: array("I"))

    def between(self, after: int, until: int) -> tuple[int, int]:
        """Where those are from after one on until another: from, and before."""
        return bisect_right(self.seq, after), bisect_right(self.seq, until)

    def pages(self, after: int, until: int) -> list[tuple[int, Page]]:
        """Those from after one on until another, as rows: one page for each stretch without gaps."""
        start, end = self.between(after, until)
        pages = []
        while start < end:
            stop = start + self._run(start, end)
            page = Page()
            page.state = self.state[start:stop]
            page.attempts = array("I", bytes(4 * (stop - start)))
            for name in ("priority", "visible_at", "expires_at", "place", "size", "crc"):
                setattr(page, name, getattr(self, name)[start:stop])
            page.live = stop - start
            pages.append((self.seq[start], page))
            start = stop
        return pages

    def _run(self, start: int, end: int) -> int:
        """How many from there on are numbered one after the other."""
        first, count = self.seq[start], end - start
        if self.seq[end - 1] - first == count - 1:
            return count
        low, high = 1, count  # numbers only grow, so the first gap is found by halving
        while low < high:
            middle = (low + high + 1) // 2
            if self.seq[start + middle - 1] - first == middle - 1:
                low = middle
            else:
                high = middle - 1
        return low

    def forget(self, until: int) -> None:
        """They were read."""
        count = bisect_right(self.seq, until)
        if count:
            del self.state[:count]
            for name in ("seq", "priority", "visible_at", "expires_at", "place", "size", "crc"):
                del getattr(self, name)[:count]
