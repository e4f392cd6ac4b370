"""The records of streams as bytes, and all streams of a queue at one moment: see records.py for how they stand.

15 begin     i64 at, text stream, text reader
16 claim     i64 at, u64 batch, u64 nonce, text stream, list of seqs
17 fail      i64 at, u64 batch, text stream, text reason, list of seqs
18 replay    i64 at, u64 batch, text stream      19 settle, 20 release   likewise
21 delete    i64 at, text stream
22 streams   u64 number of the last batch, u32 count, each: text stream, text reader, u64 settled, u64 before,
             i64 position (-1: it does not follow), u8 whether it holds a batch, that: u64 number, i64 at, list of
             seqs, list of those to fail, texts why
24 follow    i64 at, u64 position, text stream, text reader
25 fail      as 17, with u64 delay in milliseconds after the batch
26 streams   as 22, with u64 delay of each that is to fail after the texts
"""

import struct

from penstock.rules.index.streams import Batch, Failure, FrozenStreams, Stream, compact
from penstock.rules.records import (
    StreamBegin,
    StreamClaim,
    StreamDelete,
    StreamFail,
    StreamFollow,
    StreamRecord,
    StreamRelease,
    StreamReplay,
    StreamSettle,
)
from penstock.stores.journal.columns import decode_texts, encode_texts
from penstock.stores.journal.fields import (
    U32,
    U64,
    decode_list,
    decode_text,
    decode_u32,
    decode_u64,
    encode_list,
    encode_text,
)

BEGIN, CLAIM, FAIL, REPLAY, SETTLE, RELEASE, DELETE, STREAMS = range(15, 23)
FOLLOW, FAIL_LATER, STREAMS_LATER = 24, 25, 26
_I64 = struct.Struct("<q")
_AT = struct.Struct("<Bq")
_BATCH = struct.Struct("<BqQ")
_CLAIM = struct.Struct("<BqQQ")
_HELD = struct.Struct("<Qq")
_KINDS: dict[type[StreamReplay] | type[StreamSettle] | type[StreamRelease], int] = {
    StreamReplay: REPLAY, StreamSettle: SETTLE, StreamRelease: RELEASE,
}  # fmt: skip
_SIMPLE = {kind: record for record, kind in _KINDS.items()}


def encode_stream(record: StreamRecord) -> bytes:
    """A record of a stream."""
    match record:
        case StreamBegin(at, stream, reader):
            return _AT.pack(BEGIN, at) + encode_text(stream) + encode_text(reader)
        case StreamClaim(at, stream, batch, seqs, nonce):
            return _CLAIM.pack(CLAIM, at, batch, nonce) + encode_text(stream) + encode_list(seqs)
        case StreamFail(at, stream, batch, seqs, reason, delay):
            start = _CLAIM.pack(FAIL_LATER, at, batch, delay) if delay else _BATCH.pack(FAIL, at, batch)
            return start + encode_text(stream) + encode_text(reason) + encode_list(seqs)
        case StreamReplay(at, stream, batch) | StreamSettle(at, stream, batch) | StreamRelease(at, stream, batch):
            return _BATCH.pack(_KINDS[type(record)], at, batch) + encode_text(stream)
        case StreamFollow(at, stream, reader, position):
            return _BATCH.pack(FOLLOW, at, position) + encode_text(stream) + encode_text(reader)
        case StreamDelete(at, stream):
            return _AT.pack(DELETE, at) + encode_text(stream)


def decode_stream(data: memoryview, offset: int, most: int) -> tuple[StreamRecord, int]:
    """The record at offset, and where it ends."""
    kind, at = _AT.unpack_from(data, offset)
    offset += _AT.size
    if kind in (BEGIN, DELETE):
        stream, offset = decode_text(data, offset)
        if kind == DELETE:
            return StreamDelete(at, stream or ""), offset
        reader, offset = decode_text(data, offset)
        return StreamBegin(at, stream or "", reader or ""), offset
    batch, offset = decode_u64(data, offset)
    if kind == CLAIM:
        nonce, offset = decode_u64(data, offset)
        stream, offset = decode_text(data, offset)
        seqs, offset = decode_list(data, offset, most)
        return StreamClaim(at, stream or "", batch, seqs, nonce), offset
    delay = 0
    if kind == FAIL_LATER:
        delay, offset = decode_u64(data, offset)
    stream, offset = decode_text(data, offset)
    if kind == FOLLOW:
        reader, offset = decode_text(data, offset)
        return StreamFollow(at, stream or "", reader or "", batch), offset
    if kind in (FAIL, FAIL_LATER):
        reason, offset = decode_text(data, offset)
        seqs, offset = decode_list(data, offset, most)
        return StreamFail(at, stream or "", batch, seqs, reason, delay), offset
    return _SIMPLE[kind](at, stream or "", batch), offset


def encode_streams(frozen: FrozenStreams) -> bytes:
    """All streams of a queue, but for the messages that they keep; nothing if there never was one."""
    if not frozen.last_batch and not frozen.streams:
        return b""
    held_now = [stream.held for stream in frozen.streams.values() if stream.held is not None]
    later = any(failure.delay for held in held_now for failure in held.failures.values())
    parts = [
        bytes([STREAMS_LATER if later else STREAMS]),
        U64.pack(frozen.last_batch),
        U32.pack(len(frozen.streams)),
    ]
    for name, stream in frozen.streams.items():
        parts += [encode_text(name), encode_text(stream.reader), U64.pack(stream.settled), U64.pack(stream.before)]
        held, position = stream.held, stream.position
        parts += [_I64.pack(-1 if position is None else position), bytes([held is not None])]
        if held is not None:
            failed = sorted(held.failures)
            parts += [_HELD.pack(held.number, held.at), encode_list(held.seqs), encode_list(failed)]
            parts.append(encode_texts([held.failures[seq].reason for seq in failed]) if failed else b"")
            parts += [U64.pack(held.failures[seq].delay) for seq in failed] if later else []
    return b"".join(parts)


def decode_streams(data: memoryview, offset: int, most: int) -> tuple[FrozenStreams, int]:
    """The streams at offset, and where they end."""
    later = data[offset] == STREAMS_LATER
    last_batch, offset = decode_u64(data, offset + 1)
    count, offset = decode_u32(data, offset)
    streams: dict[str, Stream] = {}
    for _ in range(count):
        name, offset = decode_text(data, offset)
        reader, offset = decode_text(data, offset)
        settled, offset = decode_u64(data, offset)
        before, offset = decode_u64(data, offset)
        stream = streams[name or ""] = Stream(reader or "", None, settled, before)
        (position,) = _I64.unpack_from(data, offset)
        stream.position = None if position < 0 else position
        offset += _I64.size
        holds, offset = data[offset], offset + 1
        if holds:
            number, at = _HELD.unpack_from(data, offset)
            seqs, offset = decode_list(data, offset + _HELD.size, most)
            failed, offset = decode_list(data, offset, most)
            reasons: list[str | None] = []
            if failed:
                reasons, offset = decode_texts(data, offset, len(failed))
            stream.held = Batch(number, at, compact(seqs))
            for seq, reason in zip(failed, reasons, strict=True):
                delay = 0
                if later:
                    delay, offset = decode_u64(data, offset)
                stream.held.failures[seq] = Failure(reason, delay)
    return FrozenStreams(last_batch, streams), offset
