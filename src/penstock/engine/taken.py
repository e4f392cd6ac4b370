"""Messages as their claimer and as anyone else sees them, put together from rows and bodies."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.contract.message import STATES, Message
from penstock.engine.storage import Body, Storage
from penstock.rules.index.rows import DONE, FAILED, IN_FLIGHT, Page
from penstock.rules.ledger import Ledger
from penstock.rules.records import Claim


class Taken(NamedTuple):
    """Messages of which only the bodies are still to be read: where those are, and how to put both together."""

    size: int
    places: Any
    build: Callable[[Sequence[Body]], list[Message]]
    receipts: list[str]
    bytes: int = 0  # of bodies that are still to be read


NOTHING = Taken(0, (), lambda bodies: [], [])


def claimed(record: Claim, ledger: Ledger, storage: Storage) -> Taken:
    """What a claim gave."""
    now, seqs, lease_until, consumer, nonce = record
    count, name, secret = len(seqs), ledger.name, f".{nonce:016x}"
    places, runs, size = storage.find(seqs), ledger.runs(seqs), sum(storage.sizes(seqs))
    if runs is None:
        messages = [as_seen(seq, ledger) for seq in seqs]
        for message in messages:
            message.receipt = message.id + secret
        receipts = [message.id + secret for message in messages]
        return Taken(count, places, lambda bodies: fill(messages, bodies), receipts, size)
    priority, visible_at, expires_at, attempts = array("q"), array("q"), array("q"), array("I")
    reason: list[str | None] = []
    for page, start, end in runs:  # the same by slices
        priority += page.priority[start:end]
        visible_at += page.visible_at[start:end]
        expires_at += page.expires_at[start:end]
        attempts += page.attempts[start:end]
        reason += page.for_claims(end - 1).reason[start:end]
    ids = list(map(str, seqs))
    receipts = [each + secret for each in ids]

    def build(bodies: Sequence[Body]) -> list[Message]:
        columns = zip(ids, receipts, bodies, priority, visible_at, expires_at, attempts, reason, strict=True)
        return [
            Message(
                each, name, body[0], dict(body[1]), rank, body[2], body[3], visible, expires or None, attempt,
                "in_flight", receipt, now, lease_until, consumer, None, why,
            )
            for each, receipt, body, rank, visible, expires, attempt, why in columns
        ]  # fmt: skip

    return Taken(count, places, build, receipts, size)


def as_seen(seq: int, ledger: Ledger) -> Message:
    """A message as anyone may see it but for its body: only who claims it is given the receipt."""
    return row_as_seen(seq, ledger.name, *ledger.locate(seq))


def row_as_seen(seq: int, queue: str, page: Page, at: int) -> Message:
    """The same of a row, wherever it is."""
    state = page.state[at]
    message = Message(
        str(seq),
        queue,
        b"",
        {},
        page.priority[at],
        0,
        0,
        page.visible_at[at],
        page.expires_at[at] or None,
        page.attempts[at],
        STATES[state - 1],
    )
    if page.claims is not None:
        claims = page.for_claims(at)
        message.reason = claims.reason[at]
        if state in (IN_FLIGHT, DONE, FAILED):
            message.claimed_at = claims.claimed_at[at]
            message.consumer = claims.consumer[at]
            if state == IN_FLIGHT:
                message.lease_until = claims.ends_at[at] or None  # None: a stream holds it
            else:
                message.settled_at = claims.ends_at[at]
    return message


def fill(messages: list[Message], bodies: Sequence[Body]) -> list[Message]:
    """Give messages their bodies."""
    for message, body in zip(messages, bodies, strict=True):
        message.payload, headers, message.created_at, message.received_at = body
        message.headers = dict(headers)
    return messages
