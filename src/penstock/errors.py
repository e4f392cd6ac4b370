"""Errors: one class per thing that a caller can act on. Each message says what happened and what to do next."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple


class Advice(NamedTuple):
    """What to do about an error, in the words of each caller."""

    python: str
    command: str
    http: str


class PenstockError(Exception):
    """The base of every error that Penstock raises on purpose. Its text is for Python programs.

    Attributes:
        what: what happened
        advice: what to do, where that depends on the caller; else None, and `what` says it
    """

    def __init__(self, what: str = "", advice: Advice | None = None) -> None:
        super().__init__(what if advice is None else joined(what, advice.python))
        self.what = what
        self.advice = advice


def joined(what: str, advice: str) -> str:
    """What happened and what to do as one text."""
    return f"{what}{'' if what.endswith('.') else ':'} {advice}"


class InvalidArgument(PenstockError, ValueError):
    """An argument is out of range; the message names the accepted values."""


class InvalidName(PenstockError, ValueError):
    """A queue name is not 1 to 255 characters of ASCII 33 to 126."""


class InvalidPriority(PenstockError, ValueError):
    """A priority is outside the queue's range; narrow the producer or widen the queue."""


class InvalidFilter(PenstockError, ValueError):
    """A filter does not parse; the message points at the place."""


class PayloadTooLarge(PenstockError, ValueError):
    """A payload is larger than the queue's max_payload; store it elsewhere and queue its address."""


class QueueNotFound(PenstockError, LookupError):
    """There is no queue of that name; create it first."""


class QueueExists(PenstockError):
    """A queue of that name exists already; open it with store.queue(name)."""


class QueueFull(PenstockError):
    """The queue holds max_size messages; retry once consumers have caught up."""


class DiskFull(QueueFull):
    """The disk has no room for more messages; settling or removing stored messages still works, and makes room."""


class QueueProtected(PenstockError):
    """The queue "default" always exists; purge it instead of deleting it."""


class LeaseExpired(PenstockError):
    """Receipts that no longer hold their message: its lease ended, or it was settled or removed.

    The other receipts of the same call were settled. `receipts` names the lost ones.
    """

    def __init__(self, queue: str, receipts: Sequence[str]) -> None:
        self.queue = queue
        self.receipts = list(receipts)
        shown = ", ".join(self.receipts[:3]) + (", ..." if len(self.receipts) > 3 else "")
        drop = "Drop this work; another consumer may have the message. For longer work"
        super().__init__(
            f"{len(self.receipts)} receipt(s) of queue {queue!r} no longer hold their message ({shown}): the "
            "lease ended, the message was settled or removed meanwhile, or they never were receipts.",
            Advice(
                f"{drop} claim with a longer lease, or extend() in time",
                f"{drop} claim with a longer --lease, as in `penstock claim {shlex.quote(queue)} --lease 5m`",
                f"{drop} claim with a longer lease, or extend it in time",
            ),
        )

    def __reduce__(self) -> tuple[type["LeaseExpired"], tuple[str, list[str]]]:
        return type(self), (self.queue, self.receipts)


class StreamNotFound(PenstockError, LookupError):
    """The queue has no stream of that name; `penstock streams` lists the streams."""


class StreamInUse(PenstockError):
    """Another process reads the stream; stop it first, or use another name for this one."""


class StreamMismatch(PenstockError):
    """A checkpoint and the stream disagree on the last batch read; the message says how to go on."""


class LoadNotFound(PenstockError, LookupError):
    """The load is not open on this store and was never committed; begin a new load."""


class StoreLocked(PenstockError):
    """Another process holds the store and does not share it; close it there, or wait until that process ends."""


class StoreCorrupt(PenstockError):
    """Stored bytes are damaged; the message says where and what can be saved."""


class StoreClosed(PenstockError):
    """The store was closed; open it again."""


class StoreUnavailable(PenstockError):
    """The operating system refuses access to a file of the store; the message says why, and what to do."""


class StoreUnreachable(PenstockError, ConnectionError):
    """The server did not answer; the message says whether the operation may have happened, and what to do."""


class Unauthorized(PenstockError):
    """The server accepts only known tokens; give token=, or set PENSTOCK_TOKEN."""


class Forbidden(Unauthorized):
    """The token lacks the role for this operation; ask for a token that has it."""


class NotSupported(PenstockError):
    """This kind of store lacks the feature; the message names a kind that has it."""
