"""A queue's state as bytes, in parts: what a packed journal or a snapshot begins with, among the records.

   11 page      u64 first, u32 count, column of positions, the columns of index/rows.py (with the place as offset),
                u8 whether they follow: the columns of claims
   12 rest      u64 number of the next group, u64 next_seq, receipts, keys and attempts: a state but its pages
   22 streams   see stream_records.py
   23 kept      text stream, a page as 11 has it: messages of the last batch that it has settled

As records, which see for how they stand.
"""

import operator
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from penstock.contract.message import STATES
from penstock.rules.contents import Frozen
from penstock.rules.index.pages import PAGE as PAGE_SIZE
from penstock.rules.index.recent import RecentReceipts, SettledMinute
from penstock.rules.index.rows import Page
from penstock.rules.index.streams import FrozenStreams
from penstock.stores.journal.columns import decode, decode_texts, encode, encode_texts
from penstock.stores.journal.fields import (
    LAST,
    U32,
    U64,
    Bodies,
    check_count,
    decode_text,
    decode_u32,
    encode_text,
)
from penstock.stores.journal.stream_records import decode_streams

PAGE, REST, KEPT = 11, 12, 23
_STATES = set(range(1, len(STATES) + 1))
_MOST_ATTEMPTS = 2**31
_PAGE_FIELDS = struct.Struct("<BQI")
_REST_FIELDS = struct.Struct("<BQQI")
_MINUTE = struct.Struct("<qI")


class PageImage(NamedTuple):
    """A page of rows as it was when it was packed."""

    first: int
    page: Page


class RestImage(NamedTuple):
    """A state without its pages, and which number the next group has."""

    frozen: Frozen
    next_group: int


class StreamsImage(NamedTuple):
    """All streams, but for the messages that they keep."""

    frozen: FrozenStreams


class KeptImage(NamedTuple):
    """A page of messages that a stream keeps."""

    stream: str
    first: int
    page: Page


Image = PageImage | RestImage | StreamsImage | KeptImage


def encode_page(first: int, page: Page, positions: Sequence[int], rows: Sequence[int], bodies: Bodies) -> bytes:
    """Some rows of a page: their positions within it, where they are in its columns, where their bodies are."""
    whole = len(rows) == len(page.state)

    def picked(typecode: str, column: "array[int]") -> bytes:
        return encode(typecode, column if whole else array(typecode, [column[row] for row in rows]))

    parts = [
        _PAGE_FIELDS.pack(PAGE, first, len(rows)),
        encode("I", positions),
        bytes(page.state) if whole else bytes(page.state[row] for row in rows),
        picked("q", page.priority),
        picked("q", page.visible_at),
        picked("q", page.expires_at),
        picked("I", page.attempts),
        encode("Q", bodies.offset),
        encode("I", bodies.size),
        encode("I", bodies.crc),
        bytes([page.claims is not None]),
    ]
    if page.claims is not None:
        claims = page.for_claims(rows[-1])
        parts += [
            encode("q", [claims.claimed_at[row] for row in rows]),
            encode("q", [claims.ends_at[row] for row in rows]),
            encode("Q", [claims.nonce[row] for row in rows]),
            encode_texts([claims.consumer[row] for row in rows]),
            encode_texts([claims.reason[row] for row in rows]),
        ]
    return b"".join(parts)


def encode_kept(
    stream: str, first: int, page: Page, positions: Sequence[int], rows: Sequence[int], bodies: Bodies
) -> bytes:
    """Some rows of a page that a stream keeps."""
    return bytes([KEPT]) + encode_text(stream) + encode_page(first, page, positions, rows, bodies)


def encode_rest(frozen: Frozen, next_group: int) -> bytes:
    """A state without its pages, and which number the next group has."""
    minutes = [minute for minute in frozen.receipts.dump() if minute.seqs]
    parts = [_REST_FIELDS.pack(REST, next_group, frozen.next_seq, len(minutes))]
    for began, seqs, nonces, outcomes in minutes:
        parts += [_MINUTE.pack(began, len(seqs)), encode("q", seqs), encode("Q", nonces), outcomes]
    parts.append(U32.pack(len(frozen.keys)))
    if frozen.keys:
        parts += [encode("q", [end for end, _, _ in frozen.keys]), encode("Q", [seq for _, _, seq in frozen.keys])]
        parts.append(encode_texts([key for _, key, _ in frozen.keys]))
    parts.append(U32.pack(len(frozen.history)))
    for seq, attempts in frozen.history.items():
        parts += [U64.pack(seq), U32.pack(len(attempts)), attempts]
    return b"".join(parts)


def decode_page(data: memoryview, offset: int, most: int) -> tuple[PageImage, int]:
    """The page at offset, and where it ends."""
    _, first, count = _PAGE_FIELDS.unpack_from(data, offset)
    check_count(count, PAGE_SIZE)
    positions, offset = decode("I", data, offset + _PAGE_FIELDS.size, count)
    page = Page()
    page.state = bytearray(data[offset : offset + count])
    page.priority, offset = decode("q", data, offset + count, count)
    page.visible_at, offset = decode("q", data, offset, count)
    page.expires_at, offset = decode("q", data, offset, count)
    page.attempts, offset = decode("I", data, offset, count)
    page.place, offset = decode("Q", data, offset, count)
    page.size, offset = decode("I", data, offset, count)
    page.crc, offset = decode("I", data, offset, count)
    page.live = count
    claimed, offset = data[offset], offset + 1
    if claimed:
        claims = page.for_claims(count - 1)
        claims.claimed_at, offset = decode("q", data, offset, count)
        claims.ends_at, offset = decode("q", data, offset, count)
        claims.nonce, offset = decode("Q", data, offset, count)
        claims.consumer, offset = decode_texts(data, offset, count)
        claims.reason, offset = decode_texts(data, offset, count)
    ascending = all(map(operator.lt, positions, positions[1:])) and positions[-1] < PAGE_SIZE
    possible = set(page.state) <= _STATES and max(page.attempts) < _MOST_ATTEMPTS
    if first % PAGE_SIZE or first > LAST or not ascending or not possible:
        raise ValueError("a page of what cannot be")
    if positions[0] or positions[-1] != count - 1:
        page.positions = {position: row for row, position in enumerate(positions)}
    return PageImage(first, page), offset


def decode_rest(data: memoryview, offset: int, most: int) -> tuple[RestImage, int]:
    """The rest at offset, and where it ends."""
    _, next_group, next_seq, minutes = _REST_FIELDS.unpack_from(data, offset)
    offset += _REST_FIELDS.size
    receipts = RecentReceipts()
    for _ in range(minutes):
        began, count = _MINUTE.unpack_from(data, offset)
        check_count(count, len(data) - offset)
        seqs, offset = decode("q", data, offset + _MINUTE.size, count)
        nonces, offset = decode("Q", data, offset, count)
        receipts.load(SettledMinute(began, seqs, nonces, bytes(data[offset : offset + count])))
        offset += count
    keys: list[tuple[int, str, int]] = []
    count, offset = decode_u32(data, offset)
    check_count(count, len(data) - offset)
    if count:
        ends, offset = decode("q", data, offset, count)
        numbers, offset = decode("Q", data, offset, count)
        texts, offset = decode_texts(data, offset, count)
        keys = [(end, text or "", seq) for end, text, seq in zip(ends, texts, numbers, strict=True)]
    history: dict[int, bytes] = {}
    count, offset = decode_u32(data, offset)
    for _ in range(count):
        (seq,) = U64.unpack_from(data, offset)
        length, offset = decode_u32(data, offset + 8)
        history[seq] = bytes(data[offset : offset + length])
        offset += length
    check_count(max(next_seq, next_group), LAST)
    return RestImage(Frozen(next_seq, [], receipts, keys, history), next_group), offset


def decode_streams_image(data: memoryview, offset: int, most: int) -> tuple[StreamsImage, int]:
    """The streams at offset, and where they end."""
    frozen, offset = decode_streams(data, offset, most)
    return StreamsImage(frozen), offset


def decode_kept(data: memoryview, offset: int, most: int) -> tuple[KeptImage, int]:
    """The page at offset that a stream keeps, and where it ends."""
    stream, offset = decode_text(data, offset + 1)
    image, offset = decode_page(data, offset, most)
    return KeptImage(stream or "", image.first, image.page), offset
