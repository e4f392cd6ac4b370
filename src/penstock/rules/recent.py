"""Recently settled receipts and keys (five minutes), and the history of attempts.

A busy queue settles millions of receipts in five minutes. They are kept as numbers, 11 bytes each, by minute and
by page of 1,024 neighbouring messages, so that a lookup reads a few small arrays. Ended attempts exist only for
messages that came back or failed; they are packed in one dict, and dropped with the message.
"""

import struct
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.contract.message import OUTCOMES, Attempt
from penstock.contract.settings import FIVE_MINUTES

ACKED, FAILED_ATTEMPT, RELEASED = 1, 2, 3  # how a receipt was settled
_MINUTE = 60_000
_BITS = 10
_MASK = (1 << _BITS) - 1
_FIXED = struct.Struct("<IIqqBHH")  # length of the record, attempt, claimed_at, ended_at, outcome, two lengths
_MOST = 100  # attempts kept per message, which may come back for ever
_ROOM = 2 * _MOST * 64  # bytes of one message's attempts; beyond that the older half is dropped
_NONE = 0xFFFF


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
        self.minutes: deque[tuple[int, dict[int, _Settled]]] = deque()  # by when each began

    def add(self, seqs: Sequence[int], nonces: Sequence[int], outcome: int, now: int) -> None:
        """Remember receipts that were settled now."""
        if not self.minutes or now >= self.minutes[-1][0] + _MINUTE:
            self.minutes.append((now, {}))
        pages = self.minutes[-1][1]
        if len(seqs) == 1:
            settled = pages.get(seqs[0] >> _BITS)
            if settled is None:
                settled = pages[seqs[0] >> _BITS] = _Settled()
            settled.positions.append(seqs[0] & _MASK)
            settled.nonces.append(nonces[0])
            settled.outcomes.append(outcome)
            return
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
        """A copy for a snapshot."""
        copy = RecentReceipts()
        copy.minutes.extend(
            (began, {page: settled.copy() for page, settled in pages.items()}) for began, pages in self.minutes
        )
        return copy

    def dump(self) -> list[SettledMinute]:
        """All receipts by minute, for a snapshot on disk."""
        minutes = []
        for began, pages in self.minutes:
            seqs, nonces, outcomes = array("q"), array("Q"), bytearray()
            for page, settled in pages.items():
                seqs.extend([(page << _BITS) + position for position in settled.positions])
                nonces.extend(settled.nonces)
                outcomes += settled.outcomes
            minutes.append(SettledMinute(began, seqs, nonces, bytes(outcomes)))
        return minutes

    def load(self, minute: SettledMinute) -> None:
        """Restore a dumped minute; minutes come in order."""
        pages: dict[int, _Settled] = {}
        for seq, nonce, outcome in zip(minute.seqs, minute.nonces, minute.outcomes, strict=True):
            settled = pages.get(seq >> _BITS)
            if settled is None:
                settled = pages[seq >> _BITS] = _Settled()
            settled.positions.append(seq & _MASK)
            settled.nonces.append(nonce)
            settled.outcomes.append(outcome)
        self.minutes.append((minute.began, pages))

    def __len__(self) -> int:
        return sum(len(settled.outcomes) for _, pages in self.minutes for settled in pages.values())

    def outcome(self, seq: int, nonce: int) -> int | None:
        """How a receipt was settled; None if it was not, or longer ago."""
        for _, pages in self.minutes:
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
        """Drop minutes that ended over five minutes ago."""
        while self.minutes and self.minutes[0][0] + _MINUTE + FIVE_MINUTES < now:
            self.minutes.popleft()


class RecentKeys:
    """The messages that were put under a key in the last five minutes."""

    def __init__(self) -> None:
        self._seqs: dict[str, int] = {}
        self.ends: deque[tuple[int, str]] = deque()

    def add(self, key: str, seq: int, now: int) -> None:
        """Remember the message that was put under a key now."""
        self._seqs[key] = seq
        self.ends.append((now + FIVE_MINUTES, key))

    def get(self, key: str) -> int | None:
        """The message that was put under a key."""
        return self._seqs.get(key)

    def dump(self) -> list[tuple[int, str, int]]:
        """(end, key, message) of all keys."""
        return [(end, key, self._seqs[key]) for end, key in self.ends]

    def load(self, end: int, key: str, seq: int) -> None:
        """Restore a dumped key; keys come in order."""
        self._seqs[key] = seq
        self.ends.append((end, key))

    def forget(self, now: int) -> None:
        """Drop keys older than five minutes."""
        while self.ends and self.ends[0][0] <= now:
            del self._seqs[self.ends.popleft()[1]]


class History:
    """The ended attempts of a queue's messages, oldest first."""

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}

    def add(self, seq: int, attempt: Attempt) -> None:
        """Keep an attempt that has ended."""
        packed = self._packed.get(seq, b"") + pack(attempt)
        self._packed[seq] = packed if len(packed) <= _ROOM else _newest(packed)

    def of(self, seq: int) -> list[Attempt]:
        """The attempts of a message."""
        return list(_unpack(self._packed.get(seq, b"")))[-_MOST:]

    def packed(self, seq: int) -> bytes:
        """The attempts of a message, packed as load() takes them."""
        return self._packed.get(seq, b"")

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget messages."""
        if self._packed:
            for seq in seqs:
                self._packed.pop(seq, None)

    def dump(self) -> dict[int, bytes]:
        """Packed attempts by message."""
        return dict(self._packed)

    def load(self, packed: dict[int, bytes]) -> None:
        """Restore dumped attempts."""
        self._packed.update(packed)


def pack(attempt: Attempt) -> bytes:
    """An ended attempt as bytes."""
    number, consumer, claimed_at, ended_at, outcome, reason = attempt
    who = None if consumer is None else consumer.encode()
    why = None if reason is None else reason.encode()
    texts = (who or b"") + (why or b"")
    return (
        _FIXED.pack(
            _FIXED.size + len(texts),
            number,
            claimed_at,
            ended_at,
            OUTCOMES.index(outcome or ""),
            _NONE if who is None else len(who),
            _NONE if why is None else len(why),
        )
        + texts
    )


def _unpack(packed: bytes) -> Iterable[Attempt]:
    start = 0
    while start < len(packed):
        length, number, claimed_at, ended_at, outcome, who, why = _FIXED.unpack_from(packed, start)
        text = start + _FIXED.size
        consumer = None if who == _NONE else packed[text : text + who].decode()
        text += 0 if who == _NONE else who
        reason = None if why == _NONE else packed[text : text + why].decode()
        yield Attempt(number, consumer, claimed_at, ended_at, OUTCOMES[outcome], reason)
        start += length


def _newest(packed: bytes) -> bytes:
    starts, start = [], 0
    while start < len(packed):
        starts.append(start)
        start += _FIXED.unpack_from(packed, start)[0]
    return packed[starts[max(len(starts) // 2, len(starts) - _MOST)] :]
