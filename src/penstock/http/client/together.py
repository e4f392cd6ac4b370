"""Calls of one process that go as one request: which ones can, and each caller's share of the result. Pure.

What is called while a request is under way goes with the next one. Puts, claims, acks and the like of one queue
make one operation of that kind, so every server understands it. A server refuses a put as a whole and settles
receipts one by one; a caller whose share cannot be told from that asks again.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

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

MOST = 1_000  # messages or receipts of a request
_FEW = 100  # of a call: longer ones go alone
MOST_BYTES = 1 << 20  # of payloads in a request
_SMALL = 1 << 17  # of payloads in a call: larger ones go alone
_REFUSALS = (InvalidArgument, InvalidPriority, PayloadTooLarge, QueueFull, QueueNotFound, DiskFull)  # did nothing


class Share:
    """What a caller does whose result is none: ask again, together with others or alone."""


AGAIN, ALONE = Share(), Share()


def _key_of_put(put: Put) -> Hashable | None:
    entries = put.entries
    if len(entries) > _FEW or sum([len(entry.payload) for entry in entries]) > _SMALL:
        return None
    return Put, put.queue


def _key_of_claim(claim: Claim) -> Hashable | None:
    if claim.n + len(claim.ack) > _FEW or claim.wait > 0:
        return None
    return Claim, claim.queue, claim.lease, claim.consumer


def _key_of_settling(operation: Any) -> Hashable | None:
    if len(operation.receipts) > _FEW:
        return None
    kind = type(operation)
    if kind is Fail:
        return Fail, operation.queue, operation.delay, operation.reason
    return (kind, operation.queue, operation.lease) if kind is Extend else (kind, operation.queue)


_KEYS: dict[type[Operation[Any]], Callable[[Any], Hashable | None]] = {
    Put: _key_of_put,
    Claim: _key_of_claim,
    **dict.fromkeys((Ack, Fail, Release, Extend), _key_of_settling),
}


def key_of(operation: Operation[Any]) -> Hashable | None:
    """Operations with the same key can go together; None: this one goes alone."""
    key = _KEYS.get(type(operation))
    return None if key is None else key(operation)


def fitting(operations: Sequence[Any]) -> int:
    """How many of these operations, at least one, go as one request."""
    count = size = 0
    for at, each in enumerate(operations):
        if type(each) is Put:
            count += len(each.entries)
            size += sum([len(entry.payload) for entry in each.entries])
        else:
            count += each.n + len(each.ack) if type(each) is Claim else len(each.receipts)
        if at and (count > MOST or size > MOST_BYTES):
            return at
    return len(operations)


def joined(operations: Sequence[Any]) -> Any:
    """Operations of one key as one."""
    first = operations[0]
    if len(operations) == 1:
        return first
    if type(first) is Put:
        return Put(first.queue, [entry for each in operations for entry in each.entries])
    if type(first) is Claim:
        acks = [receipt for each in operations for receipt in each.ack]
        return first.changed(n=sum([each.n for each in operations]), ack=acks or ())
    return first.changed(receipts=[receipt for each in operations for receipt in each.receipts])


def shares(operations: Sequence[Any], result: Any) -> list[Any]:
    """Each operation's share of the result of all."""
    kind = type(operations[0])
    if len(operations) == 1:
        return [result]
    if kind is Put:
        return _cut(result, [len(each.entries) for each in operations])
    if kind is Claim:
        given: list[Any] = _cut(result, [each.n for each in operations])
        # Fewer than were wanted may be due to the size of the messages, so that there may be more.
        return [share or AGAIN for share in given] if result else given
    if kind is Extend:
        return [Held(result.lease_until, _among(result.lost, each.receipts)) for each in operations]
    return [None] * len(operations)


def shares_of(operations: Sequence[Any], error: Exception) -> list[Any]:
    """Each operation's share of an error of all: an error to be raised, or another result."""
    if len(operations) == 1 or not isinstance(error, PenstockError):
        return [error] * len(operations)
    if isinstance(error, LeaseExpired):
        found = []
        for each in operations:
            claims = type(each) is Claim
            lost = _among(error.receipts, each.ack if claims else each.receipts)
            found.append(LeaseExpired(error.queue, lost) if lost else AGAIN if claims else None)
        return found
    return [ALONE if each.is_repeatable() or isinstance(error, _REFUSALS) else error for each in operations]


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
