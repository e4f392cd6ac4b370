"""The attempts of messages that have ended: who had the message, from when to when, and how it went.

Only messages that came back or failed have any, so they lie in one dict, packed, and go with their message.
"""

import struct
from collections.abc import Iterable

from penstock.contract.message import OUTCOMES, Attempt

_FIXED = struct.Struct("<IIqqBHH")  # length of the record, attempt, claimed_at, ended_at, outcome, two lengths
_MOST = 100  # attempts that are kept of one message: it may come back for ever
_ROOM = 2 * _MOST * 64  # bytes of one message's attempts; when it is used up, the older half goes
_NONE = 0xFFFF


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
        """The attempts of a message as load() takes them."""
        return self._packed.get(seq, b"")

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget messages."""
        if self._packed:
            for seq in seqs:
                self._packed.pop(seq, None)

    def dump(self) -> dict[int, bytes]:
        """All that is known, by message."""
        return dict(self._packed)

    def load(self, packed: dict[int, bytes]) -> None:
        """Know what was dumped."""
        self._packed.update(packed)


def pack(attempt: Attempt) -> bytes:
    """An attempt that has ended as bytes."""
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
