"""The ledger's records as bytes, as they stand in the tail of a commit group.

Each begins with a byte that names its kind and is followed by the next. To change one, give it a new kind and keep
reading the old. Integers are little-endian; `column` and `texts` are as in columns.py, `list` and `text` as in
fields.py. A message's `offset` counts from where its group starts.

    1 put one   i64 at, u64 seq, i64 priority, i64 visible_at, i64 expires_at, u32 offset, u32 size, u32 crc32
    2 put       i64 at, u64 first, u32 count, columns as above from priority on, list of those with a key, texts
    3 claim     i64 at, i64 lease_until, u64 nonce, text consumer, list of seqs
    4 pop       i64 at, text consumer, list          5 ack       i64 at, list
    6 fail      i64 at, i64 visible_at, text, list   7 release   i64 at, list
    8 extend    i64 at, i64 lease_until, list        9 remove    i64 at, list
   10 redrive   i64 at, list
   11, 12       images of a state, see images.py
   13 restore   i64 at, u64 first, u32 count, u8 state each, columns of attempts, claimed_at, settled_at, texts
                consumers and reasons, u32 count of those with earlier attempts: u32 position, u32 length, attempts
   14 load      text name of the load that this group's messages came with, see intake.py
   15 to 21, 24, 25 streams, see stream_records.py
   22, 23, 26   images of streams, see there and images.py
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.rules.records import (
    Ack,
    Claim,
    Extend,
    Fail,
    Pop,
    Put,
    Record,
    Redrive,
    Release,
    Remove,
    Restore,
    StreamRecord,
    Update,
)
from penstock.stores.journal.columns import decode, decode_texts, encode, encode_texts
from penstock.stores.journal.fields import (
    MOST,
    U32,
    Bodies,
    check_count,
    decode_list,
    decode_text,
    decode_u32,
    encode_list,
    encode_text,
)
from penstock.stores.journal.images import (
    KEPT,
    PAGE,
    REST,
    Image,
    KeptImage,
    PageImage,
    RestImage,
    StreamsImage,
    decode_kept,
    decode_page,
    decode_rest,
    decode_streams_image,
)
from penstock.stores.journal.stream_records import (
    BEGIN,
    FAIL_LATER,
    FOLLOW,
    STREAMS,
    STREAMS_LATER,
    decode_stream,
    encode_stream,
)

__all__ = [  # all that stands in the tail of a group
    "PUT_ONE", "PUT_ONE_FIELDS", "Bodies", "Image", "Item", "KeptImage", "LoadName", "PageImage", "Recorded",
    "RestImage", "StreamsImage", "decode_all", "encode_load", "encode_put", "encode_record", "renumber",
]  # fmt: skip
PUT_ONE = 1
_PUT, _CLAIM, _POP, _ACK, _FAIL, _RELEASE, _EXTEND, _REMOVE, _REDRIVE = range(2, 11)
_RESTORE, _LOAD = 13, 14
PUT_ONE_FIELDS = struct.Struct("<BqQqqqIII")
_PUT_FIELDS = struct.Struct("<BqQI")
_NUMBERING = struct.Struct("<qQ")  # what follows the kind of a put or a restore
_CLAIM_FIELDS = struct.Struct("<BqqQ")
_AT = struct.Struct("<Bq")
_AT_AND_TIME = struct.Struct("<Bqq")
_KINDS: dict[type[Ack] | type[Release] | type[Remove] | type[Redrive], int] = {
    Ack: _ACK, Release: _RELEASE, Remove: _REMOVE, Redrive: _REDRIVE,
}  # fmt: skip
_SIMPLE = {kind: record for record, kind in _KINDS.items()}


class LoadName(NamedTuple):
    """The load that messages came with."""

    name: str


Recorded = tuple[Record, Bodies | None]
Item = Recorded | Image | LoadName


def encode_put(record: Put, bodies: Bodies) -> bytes:
    """New messages and where their bodies are."""
    at, first, priority, visible_at, expires_at, keys = record
    if len(priority) == 1 and not keys:
        return PUT_ONE_FIELDS.pack(
            PUT_ONE, at, first, priority[0], visible_at[0], expires_at[0],
            bodies.offset[0], bodies.size[0], bodies.crc[0],
        )  # fmt: skip
    return b"".join(
        (
            _PUT_FIELDS.pack(_PUT, at, first, len(priority)),
            encode("q", priority),
            encode("q", visible_at),
            encode("q", expires_at),
            encode("I", bodies.offset),
            encode("I", bodies.size),
            encode("I", bodies.crc),
            encode_list(list(keys.values())),
            encode_texts(list(keys)) if keys else b"",
        )
    )


def encode_record(record: Record) -> bytes:
    """Any record but a put."""
    if isinstance(record, StreamRecord):
        return encode_stream(record)
    match record:
        case Claim(at, seqs, lease_until, consumer, nonce):
            return _CLAIM_FIELDS.pack(_CLAIM, at, lease_until, nonce) + encode_text(consumer) + encode_list(seqs)
        case Pop(at, seqs, consumer):
            return _AT.pack(_POP, at) + encode_text(consumer) + encode_list(seqs)
        case Fail(at, seqs, visible_at, reason):
            return _AT_AND_TIME.pack(_FAIL, at, visible_at) + encode_text(reason) + encode_list(seqs)
        case Extend(at, seqs, lease_until):
            return _AT_AND_TIME.pack(_EXTEND, at, lease_until) + encode_list(seqs)
        case Ack(at, seqs) | Release(at, seqs) | Remove(at, seqs) | Redrive(at, seqs):
            return _AT.pack(_KINDS[type(record)], at) + encode_list(seqs)
        case Restore():
            return _encode_restore(record)
        case Update():
            raise NotImplementedError
        case Put():
            raise TypeError("a put is encoded with where its bodies are")


def _encode_restore(record: Restore) -> bytes:
    at, first, states, attempts, claimed_at, settled_at, consumers, reasons, history = record
    parts = [
        _PUT_FIELDS.pack(_RESTORE, at, first, len(states)),
        states,
        encode("I", attempts),
        encode("q", claimed_at),
        encode("q", settled_at),
        encode_texts(consumers),
        encode_texts(reasons),
        U32.pack(len(history)),
    ]
    for seq, packed in history.items():
        parts += [U32.pack(seq - first), U32.pack(len(packed)), packed]
    return b"".join(parts)


def encode_load(name: str) -> bytes:
    """The load that the messages of a group came with."""
    return bytes([_LOAD]) + encode_text(name)


def decode_all(data: memoryview, most: int = MOST) -> Iterator[Item]:
    """Everything that stands in the tail of a group, in order; `most` messages are in any record of it."""
    offset = 0
    while offset < len(data):
        item, offset = _DECODE[data[offset]](data, offset, most)
        yield item
    if offset > len(data):
        raise ValueError("the last record is cut off")


def renumber(data: bytearray, at: int, first: int) -> tuple[str, list[Recorded]]:
    """Give staged records their time and numbers, in place; which load they are of, and what they are then."""
    load, records = "", []
    view, offset = memoryview(data), 0
    while offset < len(data):
        if data[offset] != _LOAD:
            _NUMBERING.pack_into(data, offset + 1, at, first)
        item, offset = _DECODE[data[offset]](view, offset, MOST)
        if isinstance(item, LoadName):
            load = item.name
        elif not isinstance(item, Image):
            records.append(item)
    return load, records


def _decode_put_one(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at, seq, priority, visible_at, expires_at, start, size, crc = PUT_ONE_FIELDS.unpack_from(data, offset)
    record = Put(at, seq, [priority], [visible_at], [expires_at], {})
    return (record, Bodies([start], [size], [crc])), offset + PUT_ONE_FIELDS.size


def _decode_put(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at, first, count = _PUT_FIELDS.unpack_from(data, offset)
    check_count(count, most)
    priority, offset = decode("q", data, offset + _PUT_FIELDS.size, count)
    visible_at, offset = decode("q", data, offset, count)
    expires_at, offset = decode("q", data, offset, count)
    starts, offset = decode("I", data, offset, count)
    sizes, offset = decode("I", data, offset, count)
    crcs, offset = decode("I", data, offset, count)
    keyed, offset = decode_list(data, offset, most)
    keys: dict[str, int] = {}
    if keyed:
        texts, offset = decode_texts(data, offset, len(keyed))
        keys = {text or "": seq for text, seq in zip(texts, keyed, strict=True)}
    return (Put(at, first, priority, visible_at, expires_at, keys), Bodies(starts, sizes, crcs)), offset


def _decode_claim(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at, lease_until, nonce = _CLAIM_FIELDS.unpack_from(data, offset)
    consumer, offset = decode_text(data, offset + _CLAIM_FIELDS.size)
    seqs, offset = decode_list(data, offset, most)
    return (Claim(at, seqs, lease_until, consumer or "", nonce), None), offset


def _decode_pop(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at = _AT.unpack_from(data, offset)
    consumer, offset = decode_text(data, offset + _AT.size)
    seqs, offset = decode_list(data, offset, most)
    return (Pop(at, seqs, consumer or ""), None), offset


def _decode_fail(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at, visible_at = _AT_AND_TIME.unpack_from(data, offset)
    reason, offset = decode_text(data, offset + _AT_AND_TIME.size)
    seqs, offset = decode_list(data, offset, most)
    return (Fail(at, seqs, visible_at, reason), None), offset


def _decode_extend(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at, lease_until = _AT_AND_TIME.unpack_from(data, offset)
    seqs, offset = decode_list(data, offset + _AT_AND_TIME.size, most)
    return (Extend(at, seqs, lease_until), None), offset


def _decode_simple(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    kind, at = _AT.unpack_from(data, offset)
    seqs, offset = decode_list(data, offset + _AT.size, most)
    return (_SIMPLE[kind](at, seqs), None), offset


def _decode_restore(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    _, at, first, count = _PUT_FIELDS.unpack_from(data, offset)
    check_count(count, most)
    offset += _PUT_FIELDS.size
    states = bytes(data[offset : offset + count])
    attempts, offset = decode("I", data, offset + count, count)
    claimed_at, offset = decode("q", data, offset, count)
    settled_at, offset = decode("q", data, offset, count)
    consumers, offset = decode_texts(data, offset, count)
    reasons, offset = decode_texts(data, offset, count)
    history: dict[int, bytes] = {}
    told, offset = decode_u32(data, offset)
    for _ in range(told):
        position, offset = decode_u32(data, offset)
        length, offset = decode_u32(data, offset)
        history[first + position] = bytes(data[offset : offset + length])
        offset += length
    return (
        Restore(at, first, states, attempts, claimed_at, settled_at, consumers, reasons, history),
        None,
    ), offset


def _decode_load(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    name, offset = decode_text(data, offset + 1)
    return LoadName(name or ""), offset


def _decode_stream(data: memoryview, offset: int, most: int) -> tuple[Item, int]:
    record, offset = decode_stream(data, offset, most)
    return (record, None), offset


_DECODE: dict[int, Callable[[memoryview, int, int], tuple[Item, int]]] = {
    PUT_ONE: _decode_put_one,
    _PUT: _decode_put,
    _CLAIM: _decode_claim,
    _POP: _decode_pop,
    _ACK: _decode_simple,
    _FAIL: _decode_fail,
    _RELEASE: _decode_simple,
    _EXTEND: _decode_extend,
    _REMOVE: _decode_simple,
    _REDRIVE: _decode_simple,
    PAGE: decode_page,
    REST: decode_rest,
    _RESTORE: _decode_restore,
    _LOAD: _decode_load,
    **dict.fromkeys(range(BEGIN, STREAMS), _decode_stream),
    STREAMS: decode_streams_image,
    STREAMS_LATER: decode_streams_image,
    FOLLOW: _decode_stream,
    FAIL_LATER: _decode_stream,
    KEPT: decode_kept,
}
