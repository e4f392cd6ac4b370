"""Records of ours for streams. Pure, as format.py.

    batches    01 14 | queue ID                          -> u64: the highest number that a batch ever had
    stream     01 15 | queue ID | stream                 -> reader Utf8 | settled u64 | before u64 | position i64
                                                            | held: 00, or 01 | number u64 | claimed at i64
    failures   01 16 | queue ID | stream | bucket u64    -> Array<Failure>: messages to fail when it is settled
                                                            | Array<Delay>, left out if no message has one
    kept       01 17 | queue ID | stream | bucket u64    -> claimed at i64 | Array<Kept> | Array<Reason>

    Failure    message ID u64 | reason (00, or 01 and Utf8)
    Delay      message ID u64 | milliseconds u64, from the settling on until it is tried again
    Kept       message ID u64 | priority u8 | visible at i64 | retention deadline i64 | attempts u32
               | bytes of the payload u32 | flags u8, as in sizes
    Reason     message ID u64 | Utf8: why the attempt before that batch has failed

A stream's name is TerminatedBytes; `settled` is the number of the last batch that it has settled, `before` that of
the one before, 0 if there was none; `position` is the message up to which one that follows has read, and -1 of one
that consumes. The messages of the batch that it holds are those of the queue that are in flight without a lease
deadline and whose consumer is `stream:NAME`. Those of the last settled batch are kept as they were read, with
their payloads, until the next is settled.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.rules.index.streams import Failure
from penstock.stores.slate.format import BATCHES, FAILURES, KEPT, STREAM, VERSION, queue_key
from penstock.stores.slate.primitives import Reader, Undecodable, array, count, key_u64, optional, terminated, utf8

_NUMBER = struct.Struct("<Q")
_LATER = struct.Struct("<QQ")
_BATCHES = struct.Struct("<QQq")
_HELD = struct.Struct("<Qq")
_CONSUMES = -1
_TIME = struct.Struct("<q")
_KEPT = struct.Struct("<QBqqIIB")


class StreamRow(NamedTuple):
    """A stream but for its messages."""

    reader: str
    settled: int
    before: int
    position: int | None
    held: tuple[int, int] | None  # number of the batch, when it was claimed


class Kept(NamedTuple):
    """A message of the last batch that was settled, as it was read."""

    id: int
    priority: int
    visible_at: int
    expires_at: int
    attempts: int
    size: int
    flags: int


class KeptPage(NamedTuple):
    """Those of them that one bucket has."""

    claimed_at: int
    messages: list[Kept]
    reasons: dict[int, str]


def batches_key(queue: str) -> bytes:
    """Of the number that all streams of a queue share."""
    return queue_key(BATCHES, queue)


def stream_key(queue: str, stream: str) -> bytes:
    """Of a stream."""
    return queue_key(STREAM, queue) + terminated(stream.encode())


def failures_key(queue: str, stream: str, bucket: int) -> bytes:
    """Of messages of a bucket that are to fail."""
    return _bucket_key(FAILURES, queue, stream, bucket)


def kept_key(queue: str, stream: str, bucket: int) -> bytes:
    """Of messages of a bucket that are kept."""
    return _bucket_key(KEPT, queue, stream, bucket)


def _bucket_key(kind: int, queue: str, stream: str, bucket: int) -> bytes:
    name = terminated(queue.encode()) + terminated(stream.encode())
    return bytes((VERSION, kind)) + name + key_u64(bucket)


def encode_last_batch(number: int) -> bytes:
    """The highest number that a batch ever had."""
    return _NUMBER.pack(number)


def decode_last_batch(value: bytes) -> int:
    """The highest number that a batch ever had."""
    reader = Reader(value, "a batches record")
    (number,) = reader.fields(_NUMBER)
    reader.end()
    return number


def encode_stream(row: StreamRow) -> bytes:
    """A stream but for its messages."""
    held = b"\x00" if row.held is None else b"\x01" + _HELD.pack(*row.held)
    position = _CONSUMES if row.position is None else row.position
    return utf8(row.reader) + _BATCHES.pack(row.settled, row.before, position) + held


def decode_stream(value: bytes) -> StreamRow:
    """A stream but for its messages."""
    reader = Reader(value, "a stream record")
    name, (settled, before, position) = reader.utf8(), reader.fields(_BATCHES)
    held = None
    if reader.take(1) == b"\x01":
        number, at = reader.fields(_HELD)
        held = number, at
    reader.end()
    return StreamRow(name, settled, before, None if position == _CONSUMES else position, held)


def encode_failures(failures: Mapping[int, Failure]) -> bytes:
    """Messages of a bucket that are to fail, and why; then the delays of those that have one, if any has."""
    why = array([_NUMBER.pack(message) + optional(failure.reason) for message, failure in failures.items()])
    later = [(message, failure.delay) for message, failure in failures.items() if failure.delay]
    return why + (array([_LATER.pack(*each) for each in later]) if later else b"")


def decode_failures(value: bytes) -> dict[int, Failure]:
    """Messages of a bucket that are to fail."""
    reader = Reader(value, "a failures record")
    failures = {reader.fields(_NUMBER)[0]: Failure(reader.optional()) for _ in range(reader.count())}
    for _ in range(reader.count() if reader.left else 0):
        message, delay = reader.fields(_LATER)
        if message not in failures:
            raise Undecodable(f"a failures record has a delay of message {message}, which is not to fail")
        failures[message] = Failure(failures[message].reason, delay)
    reader.end()
    return failures


def encode_kept(
    claimed_at: int, number: int, columns: Iterable[Iterable[int]], reasons: Sequence[tuple[int, str]]
) -> bytes:
    """Messages of a bucket that are kept, so many of them, by columns."""
    texts = array([_NUMBER.pack(message) + utf8(reason) for message, reason in reasons])
    return b"".join(
        (_TIME.pack(claimed_at), count(number), *map(_KEPT.pack, *(columns if number else [()])), texts)
    )


def decode_kept(value: bytes) -> KeptPage:
    """Messages of a bucket that are kept."""
    reader = Reader(value, "a kept record")
    (claimed_at,) = reader.fields(_TIME)
    messages = list(map(Kept._make, reader.array(_KEPT)))
    reasons = {reader.fields(_NUMBER)[0]: reader.utf8() for _ in range(reader.count())}
    reader.end()
    return KeptPage(claimed_at, messages, reasons)
