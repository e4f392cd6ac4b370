"""Pages of a queue's rows (rules/rows.py) as the records of a bucket, encoded and decoded. Pure.

A bucket has the messages of one page: those with the same ID >> 10. A message is in one of the document's records,
by its state. Values that these records have no room for are in extension records.
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.rules.rows import (
    AVAILABLE,
    CLAIM_COLUMNS,
    COLUMNS,
    DELAYED,
    DONE,
    FAILED,
    IN_FLIGHT,
    PAGE,
    Lone,
    Page,
)
from penstock.stores.slate import extensions
from penstock.stores.slate import format as records
from penstock.stores.slate.extensions import SIZE, Claimed
from penstock.stores.slate.format import (
    AVAILABLE_MESSAGE,
    BUCKET_BITS,
    IN_FLIGHT_MESSAGE,
    MAX_ATTEMPTS,
    MAX_ID,
    NONE,
    Undecodable,
    columns,
)

_WAITING = (DELAYED, AVAILABLE)
_NOTHING = (records.encode_active([], []), records.encode_settled([]))
KINDS = (records.ACTIVE, records.DONE, records.FAILED, records.SIZES, records.CLAIMS)
OF_THE_DOCUMENT = {records.ACTIVE: _NOTHING[0], records.DONE: _NOTHING[1], records.FAILED: _NOTHING[1]}
_UNTOUCHED = bytes((AVAILABLE, DELAYED))
_SHRINK = 8  # a page is stored sparsely if at most one in this many of its rows is used
_kinds: dict[frozenset[int], frozenset[int]] = {}


def kinds_of(values: Iterable[int]) -> frozenset[int]:
    """A set of record types, one shared object for equal sets: a store may have a million buckets."""
    found = frozenset(values)
    return _kinds.setdefault(found, found)


class Thawed(NamedTuple):
    """A decoded page, with the ended attempts of its messages."""

    first: int
    page: Page
    history: dict[int, bytes]


def encode(number: int, page: Page, history: Callable[[int], bytes]) -> dict[int, bytes]:
    """The values of a bucket's records except sizes, by type, without empty ones.

    history: gives a message's ended attempts
    """
    states, first = page.state, number << BUCKET_BITS
    start = len(states) - len(states.lstrip(b"\0"))
    if page.claims is None and not states[start:].strip(_UNTOUCHED):  # no message was ever claimed
        values = (page.priority[start:], page.visible_at[start:], page.expires_at[start:], page.attempts[start:])
        ids = _ids(first, page, start)
        return {records.ACTIVE: columns(AVAILABLE_MESSAGE, len(ids), (ids, *values)) + NONE}
    keys = page.keys()
    by_state: dict[int, list[int]] = {state: [] for state in (AVAILABLE, IN_FLIGHT, DONE, FAILED)}
    for at in _there(states):
        state = states[at]
        by_state[AVAILABLE if state == DELAYED else state].append(at)
    waiting, held = by_state[AVAILABLE], by_state[IN_FLIGHT]
    found = {}
    if waiting or held:
        found[records.ACTIVE] = _encode_active(first, page, keys, waiting, held)
    for kind, state in ((records.DONE, DONE), (records.FAILED, FAILED)):
        if settled := by_state[state]:
            ends_at = page.for_claims(len(states) - 1).ends_at
            found[kind] = records.encode_settled(
                [(first + keys[at], ends_at[at], min(page.attempts[at], MAX_ATTEMPTS)) for at in settled]
            )
    if claims := _claims(first, page, keys, history):
        found[records.CLAIMS] = extensions.encode_claims(claims)
    return found


def encode_lone(number: int, lone: Lone) -> bytes | None:
    """The active record of a bucket with one published, unclaimed message; None if the message was put.

    Queues that match few published messages have mostly such buckets. This record is all that is written of them:
    a message in no sizes record has its size in its log entry.
    """
    position, _, priority, visible_at, expires_at, _, _, flags = lone
    if flags != extensions.PUBLISHED:
        return None
    return records.encode_one_available((number << BUCKET_BITS) + position, priority, visible_at, expires_at, 0)


def _there(states: bytearray) -> list[int]:
    """The positions of a page's messages. Leading empty positions, which are often many, are skipped at once."""
    start = len(states) - len(states.lstrip(b"\0"))
    return [at for at, state in enumerate(states[start:], start) if state]


def _ids(first: int, page: Page, start: int) -> Sequence[int]:
    """The IDs of a page's messages from a position on; every position has one."""
    if page.positions is None:
        return range(first + start, first + len(page.state))
    return [first + key for key in page.keys()[start:]]


def encode_sizes(number: int, page: Page) -> bytes:
    """The sizes record of a bucket."""
    states, first, size, flags = page.state, number << BUCKET_BITS, page.size, page.crc
    start = len(states) - len(states.lstrip(b"\0"))
    if page.live == len(states) - start:
        return columns(SIZE, page.live, (_ids(first, page, start), size[start:], flags[start:]))
    there, keys = _there(states), page.keys()
    values = ([first + keys[at] for at in there], [size[at] for at in there], [flags[at] for at in there])
    return columns(SIZE, len(there), values)


def _encode_active(first: int, page: Page, keys: Sequence[int], waiting: list[int], held: list[int]) -> bytes:
    def listed(layout: struct.Struct, there: list[int], *times: "Sequence[int]") -> bytes:
        ids, attempts = [first + keys[at] for at in there], [min(page.attempts[at], MAX_ATTEMPTS) for at in there]
        values = [[column[at] for at in there] for column in (page.priority, *times)]
        return columns(layout, len(there), (ids, *values, attempts))

    encoded = listed(AVAILABLE_MESSAGE, waiting, page.visible_at, page.expires_at)
    if not held:
        return encoded + NONE
    claims = page.for_claims(len(page.state) - 1)
    return encoded + listed(IN_FLIGHT_MESSAGE, held, claims.claimed_at, claims.ends_at)


def _claims(first: int, page: Page, keys: Sequence[int], history: Callable[[int], bytes]) -> list[Claimed]:
    """The contents of the claims record. A waiting message without past attempts needs no entry."""
    if page.claims is None:
        return []
    claims = page.for_claims(len(page.state) - 1)
    found = []
    for at in [at for at, claimed_at in enumerate(claims.claimed_at) if claimed_at and page.state[at]]:
        seq = first + keys[at]
        past = history(seq)
        if page.state[at] in _WAITING and not past and claims.reason[at] is None:
            continue
        of_page = page.priority[at], page.visible_at[at], page.expires_at[at]
        of_claim = claims.claimed_at[at], claims.nonce[at], claims.consumer[at], claims.reason[at]
        found.append(Claimed._make([seq, *of_page, *of_claim, past]))
    return found


def of_others(values: dict[int, bytes]) -> set[int]:
    """The messages that another program has listed under the document's key (bucket 0), whatever their IDs.

    Messages that Penstock lists there are in the sizes record as well.
    """
    if all(len(value) <= len(_NOTHING[0]) for kind, value in values.items() if kind in OF_THE_DOCUMENT):
        return set()
    known = extensions.decode_size_columns(values[records.SIZES])[:1] if records.SIZES in values else []
    return {each.id for group in _documented(values) for each in group}.difference(*known)


def spread(values: dict[int, bytes], others: set[int]) -> dict[int, dict[int, bytes]]:
    """Move messages that another program has listed under the document's key to the buckets of their IDs."""
    if max(others) > MAX_ID:
        raise Undecodable(f"message {max(others)}: Penstock knows those with IDs below 2^62")
    found: dict[int, tuple[list[Any], list[Any], list[Any], list[Any]]] = {}
    for kind, group in enumerate(_documented(values)):
        for each in group:
            found.setdefault(each.id >> BUCKET_BITS, ([], [], [], []))[kind].append(each)
    split: dict[int, dict[int, bytes]] = {}
    for number, (available, in_flight, done, failed) in sorted(found.items()):
        active = {records.ACTIVE: records.encode_active(available, in_flight)} if available or in_flight else {}
        settled = {records.DONE: done, records.FAILED: failed}
        split[number] = active | {kind: records.encode_settled(each) for kind, each in settled.items() if each}
    ours = {kind: values[kind] for kind in (records.SIZES, records.CLAIMS) if kind in values}
    split[0] = split.get(0, {}) | ours
    return split


def joined(ours: dict[int, bytes], others: dict[int, bytes]) -> dict[int, bytes]:
    """Add messages that another program has listed under the document's key to their bucket; our records win."""
    known = {each.id for group in _documented(ours) for each in group}
    groups = zip(_documented(ours), _documented(others), strict=True)
    available, in_flight, done, failed = (
        [*here, *[each for each in more if each.id not in known]] for here, more in groups
    )
    active = records.encode_active(available, in_flight)
    settled = {records.DONE: records.encode_settled(done), records.FAILED: records.encode_settled(failed)}
    return {**ours, records.ACTIVE: active, **settled}


def _documented(values: dict[int, bytes]) -> list[list[Any]]:
    """The messages of a bucket in the document's records: available, in flight, done, failed."""
    done, failed = (
        records.decode_settled(values.get(kind, _NOTHING[1])) for kind in (records.DONE, records.FAILED)
    )
    return [*records.decode_active(values.get(records.ACTIVE, _NOTHING[0])), done, failed]


def decode(number: int, values: dict[int, bytes], now: int) -> Thawed | None:
    """The page of a bucket's records at a time; None if the bucket is empty."""
    if (lone := _lone(values, now)) is not None:
        return Thawed(number << BUCKET_BITS, lone, {})
    if (plain := _plain(values, now)) is not None:
        return Thawed(number << BUCKET_BITS, plain, {})
    available, in_flight, done, failed = _documented(values)
    # Messages of another program have no sizes: they count as published, so that their payloads are not deleted.
    sizes = {each.id: each for each in extensions.decode_sizes(values.get(records.SIZES, _NOTHING[1]))}
    claims = {each.id: each for each in extensions.decode_claims(values.get(records.CLAIMS, _NOTHING[1]))}
    if not (available or in_flight or done or failed):
        return None
    page = _empty([each.id for group in (available, in_flight, done, failed) for each in group])
    for waiting in available:
        at = waiting.id & (PAGE - 1)
        page.state[at] = DELAYED if waiting.visible_at > now else AVAILABLE
        page.priority[at], page.visible_at[at] = waiting.priority, waiting.visible_at
        page.expires_at[at], page.attempts[at] = waiting.expires_at, waiting.attempts
    for held in in_flight:
        at = _settle(page, held.id, IN_FLIGHT, held.lease_until, held.attempts, claims)
        page.priority[at] = held.priority
        page.for_claims(at).claimed_at[at] = held.claimed_at
    for settled, state in [*[(each, DONE) for each in done], *[(each, FAILED) for each in failed]]:
        _settle(page, settled.id, state, settled.at, settled.attempts, claims)
    for waiting in available if claims else ():
        _claim(page, waiting.id & (PAGE - 1), claims.get(waiting.id))
    for at, state in enumerate(page.state):
        if state:
            known = sizes.get((number << BUCKET_BITS) + at)
            page.size[at], page.crc[at] = (known.size, known.flags) if known else (0, extensions.PUBLISHED)
    if page.live * _SHRINK <= len(page.state):
        page.shrink()
    history = {each.id: each.history for each in claims.values() if each.history}
    return Thawed(number << BUCKET_BITS, page, history)


def _lone(values: dict[int, bytes], now: int) -> Page | None:
    """The page of a bucket that encode_lone() has written; None if it is another one."""
    if len(values) != 1 or records.ACTIVE not in values:
        return None
    if (message := records.decode_one_available(values[records.ACTIVE])) is None or message.attempts:
        return None
    state = DELAYED if message.visible_at > now else AVAILABLE
    position, times = message.id & (PAGE - 1), (message.visible_at, message.expires_at)
    return Page.of_one((position, state, message.priority, *times, 0, 0, extensions.PUBLISHED))


def _plain(values: dict[int, bytes], now: int) -> Page | None:
    """Fast path by columns, for consecutive messages that are all available; None if the bucket is another one."""
    if any(len(values[kind]) > 2 for kind in (records.DONE, records.FAILED, records.CLAIMS) if kind in values):
        return None
    waiting = records.decode_available(values.get(records.ACTIVE, _NOTHING[0]))
    sizes = extensions.decode_size_columns(values.get(records.SIZES, _NOTHING[1]))
    if waiting is None or not sizes or waiting[0] != sizes[0]:
        return None
    ids, priority, visible_at, expires_at, attempts = waiting
    start = ids[0] & (PAGE - 1)
    if ids[-1] - ids[0] != len(ids) - 1 or any(attempts) or max(visible_at) > now:
        return None
    page, before = Page(), bytes(8 * start)
    page.live = len(ids)
    page.state = bytearray(start) + bytes([AVAILABLE]) * len(ids)
    for name, column in (
        ("priority", priority),
        ("visible_at", visible_at),
        ("expires_at", expires_at),
        ("attempts", attempts),
        ("place", (0,) * len(ids)),
        ("size", sizes[1]),
        ("crc", sizes[2]),
    ):
        filled: array[int] = getattr(page, name)
        filled.frombytes(before[: filled.itemsize * start])
        filled.extend(column)
    return page


def _empty(ids: list[int]) -> Page:
    """An empty page with room for these messages."""
    page, size = Page(), (max(ids) & (PAGE - 1)) + 1
    page.state = bytearray(size)
    for name in COLUMNS:
        column: array[int] = getattr(page, name)
        column.frombytes(bytes(column.itemsize * size))
    page.live = len(set(ids))
    return page


def _settle(page: Page, seq: int, state: int, ends_at: int, attempts: int, claims: dict[int, Claimed]) -> int:
    at = seq & (PAGE - 1)
    page.state[at], page.attempts[at] = state, attempts
    _claim(page, at, claims.get(seq))
    page.for_claims(at).ends_at[at] = ends_at
    return at


def _claim(page: Page, at: int, known: Claimed | None) -> None:
    if known is None:
        return
    claims = page.for_claims(at)
    page.priority[at], page.visible_at[at], page.expires_at[at] = known[1:4]
    for name in CLAIM_COLUMNS:
        if name != "ends_at":
            getattr(claims, name)[at] = getattr(known, name)


def encode_kept(number: int, page: Page) -> bytes:
    """The kept record of a stream's messages in one bucket."""
    first, keys, there = number << BUCKET_BITS, page.keys(), _there(page.state)
    claims = page.for_claims(len(page.state) - 1)
    kept = (page.priority, page.visible_at, page.expires_at, page.attempts, page.size, page.crc)
    values = [[first + keys[at] for at in there], *[[column[at] for at in there] for column in kept]]
    reasons = [(first + keys[at], reason) for at in there if (reason := claims.reason[at]) is not None]
    return extensions.encode_kept(claims.claimed_at[there[0]], len(there), values, reasons)


def decode_kept(value: bytes, consumer: str) -> Page:
    """The page of a kept record."""
    claimed_at, messages, reasons = extensions.decode_kept(value)
    page = _empty([each.id for each in messages])
    claims = page.for_claims(len(page.state) - 1)
    for each in messages:
        at = each.id & (PAGE - 1)
        page.state[at], page.priority[at] = IN_FLIGHT, each.priority
        page.visible_at[at], page.expires_at[at] = each.visible_at, each.expires_at
        page.attempts[at], page.size[at], page.crc[at] = each.attempts, each.size, each.flags
        claims.claimed_at[at], claims.consumer[at], claims.reason[at] = claimed_at, consumer, reasons.get(each.id)
    return page
