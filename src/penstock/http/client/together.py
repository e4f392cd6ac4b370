"""Calls of one process that go as one request: which ones can, and each caller's share of the result. Pure.

What is called while a request is under way goes with the next one. Puts, claims, acks and the like of one queue
make one operation of that kind, so every server understands it. A server refuses a put as a whole and settles
receipts one by one; a caller whose share cannot be told from that asks again.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.contract.message import Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Ack, Claim, Extend, Fail, Held, Put, Release
from penstock.errors import (
    DiskFull,
    InvalidArgument,
    InvalidPriority,
    LeaseExpired,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    QueueNotFound,
)

PATIENCE = 0.5  # seconds after which a call goes alone, beside a request that is not answered
MOST = 1_000  # messages or receipts of a request
_FEW = 100  # of a call: longer ones go alone
MOST_BYTES = 1 << 20  # of payloads in a request
_SMALL = 1 << 17  # of payloads in a call: larger ones go alone
_REFUSALS = (InvalidArgument, InvalidPriority, PayloadTooLarge, QueueFull, QueueNotFound, DiskFull)  # did nothing


class Share:
    """What a caller does whose result is none: ask again, together with others or alone."""


AGAIN, ALONE = Share(), Share()


class Ride(Protocol):
    """A call that waits for the request under way."""

    @property
    def operation(self) -> Operation[Any]:
        """What it asks for."""


AnyRide = TypeVar("AnyRide", bound=Ride)


def _lane_of_put(put: Put) -> Hashable | None:
    entries = put.entries
    if len(entries) > _FEW or sum([len(entry.payload) for entry in entries]) > _SMALL:
        return None
    return Put, put.queue


def _lane_of_claim(claim: Claim) -> Hashable | None:
    if claim.n + len(claim.ack) > _FEW or claim.wait > 0:
        return None
    return Claim, claim.queue


def _lane_of_settling(operation: Any) -> Hashable | None:
    if len(operation.receipts) > _FEW:
        return None
    kind = type(operation)
    if kind is Ack:
        return Claim, operation.queue
    if kind is Fail:
        return Fail, operation.queue, operation.delay, operation.reason
    return (kind, operation.queue, operation.lease) if kind is Extend else (kind, operation.queue)


_LANES: dict[type[Operation[Any]], Callable[[Any], Hashable | None]] = {
    Put: _lane_of_put,
    Claim: _lane_of_claim,
    **dict.fromkeys((Ack, Fail, Release, Extend), _lane_of_settling),
}


def lane_of(operation: Operation[Any]) -> Hashable | None:
    """Operations of one lane wait for one another, and can go together; None: this one goes alone."""
    lane = _LANES.get(type(operation))
    return None if lane is None else lane(operation)


def lane_of_poll(operation: Operation[Any]) -> Hashable | None:
    """The lane of a claim that waits, if it did not."""
    return (Claim, operation.queue) if type(operation) is Claim else None


def chosen(waiting: Sequence[AnyRide], mixes: bool) -> tuple[list[AnyRide], list[AnyRide]]:
    """The calls of a lane that go as one request, and those that go on waiting.

    Claims go with claims alike, and take acks along if the server `mixes` the two.
    """
    riders: list[AnyRide] = []
    others: list[AnyRide] = []
    kind, like, count, size = type(waiting[0].operation), None, 0, 0
    for ride in waiting:
        operation: Any = ride.operation
        this = type(operation)
        if this is Put:
            more = len(operation.entries)
            size += sum([len(entry.payload) for entry in operation.entries])
        else:
            more = operation.n + len(operation.ack) if this is Claim else len(operation.receipts)
        wanted = (operation.lease, operation.consumer) if this is Claim else like
        if like is None:
            like = wanted
        full = riders and (count + more > MOST or size > MOST_BYTES)
        if full or wanted != like or (this is not kind and not mixes):
            others.append(ride)
        else:
            riders.append(ride)
            count += more
    return riders, others


def joined(operations: Sequence[Any]) -> Any:
    """Operations of one request as one."""
    first = operations[0]
    if len(operations) == 1:
        return first
    if type(first) is Put:
        return Put(first.queue, [entry for each in operations for entry in each.entries])
    if claims := [each for each in operations if type(each) is Claim]:
        acks = [receipt for each in operations for receipt in (each.ack if type(each) is Claim else each.receipts)]
        return claims[0].changed(n=sum([each.n for each in claims]), ack=acks or ())
    return first.changed(receipts=[receipt for each in operations for receipt in each.receipts])


def shares(operations: Sequence[Any], result: Any) -> list[Any]:
    """Each operation's share of the result of all."""
    if len(operations) == 1:
        return [result]
    kind = type(operations[0])
    if kind is Put:
        return _cut(result, [len(each.entries) for each in operations])
    if kind is Extend:
        return [Held(result.lease_until, _among(result.lost, each.receipts)) for each in operations]
    if not isinstance(result, list):
        return [None] * len(operations)
    given = iter(_cut(result, [each.n for each in operations if type(each) is Claim]))
    # Fewer than were wanted may be due to the size of the messages, so that there may be more.
    nothing: Any = AGAIN if result else []
    return [(next(given) or nothing) if type(each) is Claim else None for each in operations]


def shares_of(operations: Sequence[Any], error: Exception) -> list[Any]:
    """Each operation's share of an error of all: an error to be raised, or another result."""
    if len(operations) == 1 or not isinstance(error, PenstockError):
        return [error] * len(operations)
    if isinstance(error, LeaseExpired):
        found = []
        for each in operations:
            lost = _among(error.receipts, each.ack if type(each) is Claim else each.receipts)
            nothing = AGAIN if type(each) is Claim else None
            found.append(LeaseExpired(error.queue, lost) if lost else nothing)
        return found
    return [ALONE if each.is_repeatable() or isinstance(error, _REFUSALS) else error for each in operations]


def refuses_acks(operations: Sequence[Any], error: Exception) -> bool:
    """Whether the error may be that of an earlier server, which takes no acks in claims."""
    return isinstance(error, InvalidArgument) and type(operations[0]) in (Claim, Ack)


def receipts_of(share: Any) -> list[str]:
    """The receipts in a claim's share."""
    return [each.receipt or "" for each in share if isinstance(each, Message)] if isinstance(share, list) else []


def _cut(items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Pieces of a list, of these sizes, in order; the last ones may be shorter, or empty."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(items[start : start + size])
        start += size
    return pieces


def _among(lost: Sequence[str], own: Sequence[str]) -> list[str]:
    known = set(lost)
    return [each for each in own if each in known]
