"""Messages made of rows and bodies: for their claimer, and for listings; parsing of receipts and ids."""

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.contract.message import STATES, Message
from penstock.engine.storage import Body, Storage
from penstock.rules.ledger import Ledger, Receipt
from penstock.rules.records import Claim
from penstock.rules.rows import DONE, FAILED, IN_FLIGHT, MANY, Page

_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_RECEIPT = re.compile(r"(0|[1-9][0-9]{0,18})\.[0-9a-f]{16}", re.ASCII)
_SECRET = re.compile(r"\.[0-9a-f]{16}", re.ASCII)


class Taken(NamedTuple):
    """Messages that a consumer took: where their bodies are, and a function from bodies to messages."""

    size: int
    places: Any
    build: Callable[[Sequence[Body]], list[Message]]
    receipts: list[str]
    bytes: int = 0  # of bodies that lie in files


NOTHING = Taken(0, (), lambda bodies: [], [])


def claimed(record: Claim, ledger: Ledger, storage: Storage) -> Taken:
    """The messages of a claim."""
    if len(record.seqs) == 1:
        return _claimed_one(record, ledger, storage)
    now, seqs, lease_until, consumer, nonce = record
    name, secret, size = ledger.name, f".{nonce:016x}", 0
    priority, visible_at, expires_at, attempts = array("q"), array("q"), array("q"), array("I")
    reason: list[str | None] = []
    groups: list[str | None] = []
    rows = ledger.state.rows
    runs = rows.runs(seqs) if len(seqs) >= MANY else None
    for page, start, end in runs or [(page, at, at + 1) for page, at in map(rows.locate, seqs)]:
        size += sum(page.size[start:end])
        priority += page.priority[start:end]
        visible_at += page.visible_at[start:end]
        expires_at += page.expires_at[start:end]
        attempts += page.attempts[start:end]
        reason += page.for_claims(end - 1).reason[start:end]
        groups += page.groups_of(start, end) if page.groups else [None] * (end - start)
    ids = list(map(str, seqs))
    receipts = [each + secret for each in ids]

    def build(bodies: Sequence[Body]) -> list[Message]:
        columns = zip(
            ids, receipts, bodies, priority, visible_at, expires_at, attempts, reason, groups, strict=True
        )
        return [
            Message(
                each, name, body[0], dict(body[1]), rank, body[2], body[3], visible, expires or None, attempt,
                "in_flight", receipt, now, lease_until, consumer, None, why, group,
            )
            for each, receipt, body, rank, visible, expires, attempt, why, group in columns
        ]  # fmt: skip

    return Taken(len(seqs), storage.find(seqs), build, receipts, size)


def _claimed_one(record: Claim, ledger: Ledger, storage: Storage) -> Taken:
    """The message of a claim: nearly all have one, which needs no columns."""
    now, seqs, lease_until, consumer, nonce = record
    [seq] = seqs
    page, at = ledger.state.rows[seq]
    name, receipt = ledger.name, f"{seq}.{nonce:016x}"
    priority, visible_at, expires_at = page.priority[at], page.visible_at[at], page.expires_at[at] or None
    attempts, reason, group = page.attempts[at], page.for_claims(at).reason[at], page.group(at)

    def build(bodies: Sequence[Body]) -> list[Message]:
        [(payload, headers, created_at, received_at)] = bodies
        return [
            Message(
                str(seq), name, payload, dict(headers), priority, created_at, received_at, visible_at,
                expires_at, attempts, "in_flight", receipt, now, lease_until, consumer, None, reason, group,
            )
        ]  # fmt: skip

    return Taken(1, storage.find(seqs), build, [receipt], page.size[at])


def as_seen(seq: int, ledger: Ledger) -> Message:
    """A message without its body, as in listings: the receipt is its claimer's alone."""
    return row_as_seen(seq, ledger.name, *ledger.state.rows.locate(seq))


def row_as_seen(seq: int, queue: str, page: Page, at: int) -> Message:
    """A message without its body, from its row in any page."""
    state = page.state[at]
    message = Message(
        str(seq), queue, b"", {}, page.priority[at], 0, 0, page.visible_at[at], page.expires_at[at] or None,
        page.attempts[at], STATES[state - 1],
    )  # fmt: skip
    message.group = page.group(at)
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


def parse_receipts(receipts: Sequence[str]) -> Sequence[Receipt | None]:
    """Receipts from their texts; None for a text that was never one."""
    secret = receipts[0][-17:] if len(receipts) > 1 else ""
    if secret and _SECRET.fullmatch(secret) and {receipt[-17:] for receipt in receipts} == {secret}:
        seqs = [receipt[:-17] for receipt in receipts]  # of one claim, most likely
        digits = "".join(seqs).isascii() and all(map(str.isdigit, seqs))
        if digits and min(seqs) >= "1" and max(map(len, seqs)) < 20:  # no zero leads
            nonce = int(secret[1:], 16)
            return [(int(seq), nonce) for seq in seqs]
    return [
        (int(text[:-17]), int(text[-16:], 16)) if _RECEIPT.fullmatch(text) is not None else None
        for text in receipts
    ]


def parse_ids(ids: Iterable[str]) -> list[int]:
    """Sequence numbers from ids; a text that was never an id is left out."""
    return [int(text) for text in ids if _ID.fullmatch(text)]
