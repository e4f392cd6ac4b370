"""What a ledger decides, one type per operation: all that a store must keep to get the same state again."""

from collections.abc import Sequence
from typing import NamedTuple


class Put(NamedTuple):
    """New messages: sequence numbers from `first` on, one element per message in each column."""

    at: int
    first: int
    priority: Sequence[int]
    visible_at: Sequence[int]
    expires_at: Sequence[int]  # 0 = never
    keys: dict[str, int]


class Claim(NamedTuple):
    """Messages given to a consumer."""

    at: int
    seqs: list[int]
    lease_until: int
    consumer: str
    nonce: int


class Pop(NamedTuple):
    """Messages given to a consumer and done in the same step."""

    at: int
    seqs: list[int]
    consumer: str


class Ack(NamedTuple):
    """Messages that are done."""

    at: int
    seqs: list[int]


class Fail(NamedTuple):
    """Messages whose attempt failed."""

    at: int
    seqs: list[int]
    visible_at: int
    reason: str | None


class Release(NamedTuple):
    """Messages given back."""

    at: int
    seqs: list[int]


class Extend(NamedTuple):
    """Messages that are held until another time."""

    at: int
    seqs: list[int]
    lease_until: int


class Remove(NamedTuple):
    """Messages taken out."""

    at: int
    seqs: list[int]


class Redrive(NamedTuple):
    """Failed messages that start over."""

    at: int
    seqs: list[int]


class Restore(NamedTuple):
    """What became of messages elsewhere, before they were put here one after the other, from `first` on."""

    at: int
    first: int
    states: bytes  # AVAILABLE: whatever the put made of it
    attempts: Sequence[int]
    claimed_at: Sequence[int]  # 0 = never
    settled_at: Sequence[int]
    consumers: Sequence[str | None]
    reasons: Sequence[str | None]
    history: dict[int, bytes]  # attempts that ended, as history.py packs them, by number


Record = Put | Claim | Pop | Ack | Fail | Release | Extend | Remove | Redrive | Restore
