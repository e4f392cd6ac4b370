"""What a ledger decides, one type per operation: all that a store must keep to get the same state again."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.contract.settings import Settings


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


class Update(NamedTuple):
    """The settings from now on."""

    at: int
    settings: Settings


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
    history: dict[int, bytes]  # attempts that ended, as recent.py packs them, by number


class StreamBegin(NamedTuple):
    """A process reads a stream from now on, which is made if it is not there."""

    at: int
    stream: str
    reader: str


class StreamClaim(NamedTuple):
    """Messages that a stream holds as a batch until it is settled."""

    at: int
    stream: str
    batch: int
    seqs: list[int]
    nonce: int


class StreamFail(NamedTuple):
    """Messages of a stream's batch that are to fail when it is settled."""

    at: int
    stream: str
    batch: int
    seqs: list[int]
    reason: str | None
    delay: int = 0  # milliseconds from when it is settled


class StreamReplay(NamedTuple):
    """A batch is read once more: what was said of its messages is forgotten."""

    at: int
    stream: str
    batch: int


class StreamSettle(NamedTuple):
    """A stream's batch is settled: its messages are done, or failed."""

    at: int
    stream: str
    batch: int


class StreamRelease(NamedTuple):
    """The messages of a stream's batch are given back; it has none from now on."""

    at: int
    stream: str
    batch: int


class StreamDelete(NamedTuple):
    """A stream that holds nothing is forgotten."""

    at: int
    stream: str


class StreamFollow(NamedTuple):
    """A process follows the queue under a name, and has read all up to a message."""

    at: int
    stream: str
    reader: str
    position: int


StreamRecord = (
    StreamBegin
    | StreamClaim
    | StreamFail
    | StreamReplay
    | StreamSettle
    | StreamRelease
    | StreamDelete
    | StreamFollow
)
Record = StreamRecord | Put | Claim | Pop | Ack | Fail | Release | Extend | Remove | Redrive | Update | Restore
