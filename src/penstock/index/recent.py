"""What was settled lately: receipts that may be repeated, and idempotency keys, each for five minutes.

Receipts are kept as numbers in chunks, 17 bytes each, because a busy queue settles millions in five minutes; they
are looked up only when a receipt does not hold its message any more, so a chunk that may have it is searched.
"""

from array import array
from collections import deque
from collections.abc import Sequence

from penstock.settings import FIVE_MINUTES

_CHUNK = 4096


class _Chunk:
    __slots__ = ("high", "last_at", "low", "nonces", "outcomes", "seqs")

    def __init__(self) -> None:
        self.seqs = array("q")
        self.nonces = array("Q")
        self.outcomes = bytearray()
        self.low = self.high = self.last_at = 0


class RecentReceipts:
    """Receipts that were settled in the last five minutes, and how."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()

    def add(self, seqs: Sequence[int], nonces: Sequence[int], outcome: int, now: int) -> None:
        """Remember receipts that were settled now."""
        if not seqs:
            return
        if not self._chunks or len(self._chunks[-1].seqs) >= _CHUNK:
            self._chunks.append(_Chunk())
            self._chunks[-1].low = seqs[0]
        chunk = self._chunks[-1]
        chunk.seqs.extend(seqs)
        chunk.nonces.extend(nonces)
        chunk.outcomes += bytes([outcome]) * len(seqs)
        chunk.low = min(chunk.low, min(seqs))
        chunk.high = max(chunk.high, max(seqs))
        chunk.last_at = now

    def outcome(self, seq: int, nonce: int) -> int | None:
        """How that receipt was settled; None if it was not, or too long ago."""
        for chunk in self._chunks:
            at = 0
            while chunk.low <= seq <= chunk.high:
                try:
                    at = chunk.seqs.index(seq, at)
                except ValueError:
                    break
                if chunk.nonces[at] == nonce:
                    return chunk.outcomes[at]
                at += 1
        return None

    def forget(self, now: int) -> None:
        """Drop what is older than five minutes."""
        while self._chunks and self._chunks[0].last_at + FIVE_MINUTES < now:
            self._chunks.popleft()


class RecentKeys:
    """The messages that were put under a key in the last five minutes."""

    def __init__(self) -> None:
        self._seqs: dict[str, int] = {}
        self._ends: deque[tuple[int, str]] = deque()

    def add(self, key: str, seq: int, now: int) -> None:
        """Remember what was put under a key now."""
        self._seqs[key] = seq
        self._ends.append((now + FIVE_MINUTES, key))

    def get(self, key: str) -> int | None:
        """What was put under that key."""
        return self._seqs.get(key)

    def forget(self, now: int) -> None:
        """Drop what is older than five minutes."""
        while self._ends and self._ends[0][0] <= now:
            del self._seqs[self._ends.popleft()[1]]
