"""What was settled lately: receipts that may be repeated, and idempotency keys, each for five minutes.

A busy queue settles millions of receipts in five minutes. They are kept as numbers, 11 bytes each, by the minute
and by the page of a thousand neighbours that their message belongs to: one is found in a few small arrays.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.contract.settings import FIVE_MINUTES

_MINUTE = 60_000
_BITS = 10
_MASK = (1 << _BITS) - 1


class _Settled:
    """Receipts of neighbouring messages."""

    __slots__ = ("nonces", "outcomes", "positions")

    def __init__(self) -> None:
        self.positions = array("H")
        self.nonces = array("Q")
        self.outcomes = bytearray()

    def copy(self) -> "_Settled":
        copy = _Settled()
        copy.positions, copy.nonces, copy.outcomes = self.positions[:], self.nonces[:], self.outcomes[:]
        return copy


class SettledMinute(NamedTuple):
    """Receipts that were settled within one minute."""

    began: int
    seqs: Sequence[int]
    nonces: Sequence[int]
    outcomes: bytes


class RecentReceipts:
    """Receipts that were settled in the last five minutes, and how."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, dict[int, _Settled]]] = deque()  # by when each began

    def add(self, seqs: Sequence[int], nonces: Sequence[int], outcome: int, now: int) -> None:
        """Remember receipts that were settled now."""
        if not self._minutes or now >= self._minutes[-1][0] + _MINUTE:
            self._minutes.append((now, {}))
        pages = self._minutes[-1][1]
        start = 0
        while start < len(seqs):  # neighbours are mostly settled together
            page = seqs[start] >> _BITS
            end = start + 1
            while end < len(seqs) and seqs[end] >> _BITS == page:
                end += 1
            settled = pages.get(page)
            if settled is None:
                settled = pages[page] = _Settled()
            settled.positions.extend([seq & _MASK for seq in seqs[start:end]])
            settled.nonces.extend(nonces[start:end])
            settled.outcomes += bytes([outcome]) * (end - start)
            start = end

    def copy(self) -> "RecentReceipts":
        """What is known now."""
        copy = RecentReceipts()
        copy._minutes.extend(
            (began, {page: settled.copy() for page, settled in pages.items()}) for began, pages in self._minutes
        )
        return copy

    def dump(self) -> list[SettledMinute]:
        """All that is known, by the minute."""
        minutes = []
        for began, pages in self._minutes:
            seqs, nonces, outcomes = array("q"), array("Q"), bytearray()
            for page, settled in pages.items():
                seqs.extend([(page << _BITS) + position for position in settled.positions])
                nonces.extend(settled.nonces)
                outcomes += settled.outcomes
            minutes.append(SettledMinute(began, seqs, nonces, bytes(outcomes)))
        return minutes

    def load(self, minute: SettledMinute) -> None:
        """Know what was dumped; minutes come in their order."""
        pages: dict[int, _Settled] = {}
        for seq, nonce, outcome in zip(minute.seqs, minute.nonces, minute.outcomes, strict=True):
            settled = pages.get(seq >> _BITS)
            if settled is None:
                settled = pages[seq >> _BITS] = _Settled()
            settled.positions.append(seq & _MASK)
            settled.nonces.append(nonce)
            settled.outcomes.append(outcome)
        self._minutes.append((minute.began, pages))

    def __len__(self) -> int:
        return sum(len(settled.outcomes) for _, pages in self._minutes for settled in pages.values())

    def outcome(self, seq: int, nonce: int) -> int | None:
        """How that receipt was settled; None if it was not, or too long ago."""
        for _, pages in self._minutes:
            settled = pages.get(seq >> _BITS)
            at = 0
            while settled is not None:
                try:
                    at = settled.positions.index(seq & _MASK, at)
                except ValueError:
                    break
                if settled.nonces[at] == nonce:
                    return settled.outcomes[at]
                at += 1
        return None

    def forget(self, now: int) -> None:
        """Drop what is older than five minutes, by the minute."""
        while self._minutes and self._minutes[0][0] + _MINUTE + FIVE_MINUTES < now:
            self._minutes.popleft()


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

    def dump(self) -> list[tuple[int, str, int]]:
        """All that is known: when it ends, the key, the message."""
        return [(end, key, self._seqs[key]) for end, key in self._ends]

    def load(self, end: int, key: str, seq: int) -> None:
        """Know what was dumped; in its order."""
        self._seqs[key] = seq
        self._ends.append((end, key))

    def forget(self, now: int) -> None:
        """Drop what is older than five minutes."""
        while self._ends and self._ends[0][0] <= now:
            del self._seqs[self._ends.popleft()[1]]
