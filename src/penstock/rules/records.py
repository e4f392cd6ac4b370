"""Records: decisions of a ledger, one type per operation. Replaying stored records restores the state."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.contract.settings import Settings

BY_BACKOFF = -1  # instead of the time at which a failed message comes back


class Taken(NamedTuple):
    """Messages that a put takes from another queue of the store."""

    queue: str
    seqs: Sequence[int]


class Put(NamedTuple):
    """New messages: sequence numbers from `first` on, one element per message in each column."""

    at: int
    first: int
    priority: Sequence[int]
    visible_at: Sequence[int]
    expires_at: Sequence[int]  # 0 = never
    keys: dict[str, int]
    groups: Sequence[str | None] = ()  # empty: no message has one
    taken: Taken | None = None


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
    visible_at: int  # or BY_BACKOFF
    reason: str | None


class Release(NamedTuple):
    """Messages given back."""

    at: int
    seqs: list[int]


class Extend(NamedTuple):
    """Messages whose lease ends at another time."""

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
    """Changed settings."""

    at: int
    settings: Settings


class Restore(NamedTuple):
    """State and attempts in another store, of messages that were put here from number `first` on."""

    at: int
    first: int
    states: bytes  # AVAILABLE: the state after the put stays
    attempts: Sequence[int]
    claimed_at: Sequence[int]  # 0 = never
    settled_at: Sequence[int]
    consumers: Sequence[str | None]
    reasons: Sequence[str | None]
    history: dict[int, bytes]  # ended attempts by number, packed by recent.py


class StreamBegin(NamedTuple):
    """A process becomes the reader of a stream, which is created if it does not exist."""

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
    """Messages of a stream's batch that will fail when the batch is settled."""

    at: int
    stream: str
    batch: int
    seqs: list[int]
    reason: str | None
    delay: int = 0  # milliseconds after the batch is settled; 0: by the queue's backoff


class StreamReplay(NamedTuple):
    """A batch is read again: its recorded failures are dropped."""

    at: int
    stream: str
    batch: int


class StreamSettle(NamedTuple):
    """A stream's batch is settled: its messages are done, or failed."""

    at: int
    stream: str
    batch: int


class StreamRelease(NamedTuple):
    """The messages of a stream's batch are released; the batch is empty from now on."""

    at: int
    stream: str
    batch: int


class StreamDelete(NamedTuple):
    """A stream that holds no messages is deleted."""

    at: int
    stream: str


class StreamFollow(NamedTuple):
    """A named follower has read all messages up to `position`."""

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
