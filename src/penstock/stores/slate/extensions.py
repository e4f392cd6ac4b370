"""Extension records of slate stores, byte for byte: data that OpenData-Queue has no record for. Pure.

    settings   01 07 | queue ID                    -> JSON: what `create` was given and the config has no room for
    sizes      01 08 | queue ID [| bucket u64]     -> Array<Size>: every message of the bucket. A single published
                                                      message has no record: its log entry has the size
    claims     01 09 | queue ID [| bucket u64]     -> Array<Claimed>: messages that were ever claimed
    recent     01 0A | queue ID | number u64       -> at i64 | Array<Settled receipt> | Array<Put under a key>
    position   01 0B | queue ID                    -> first log entry not yet offered to the queue u64 | held u8
    expiry     01 0C | time u64 | message ID u64   -> nothing: the published message is removed at that time
    clock      01 0D                               -> i64: the latest recorded time
    log end    01 0E                               -> u64: no entry with a lower number will be added
    load       01 0F | name                        -> JSON, as are run and sink: see loads.py
    run        01 10 | name
    sink       01 11 | name
    instance   01 12                               -> Utf8: the name of the instance, empty without one

    batches    01 14 | queue ID                          -> u64: the highest batch number given so far
    stream     01 15 | queue ID | stream                 -> reader Utf8 | settled u64 | before u64 | position i64
                                                            | held: 00, or 01 | number u64 | claimed at i64
    failures   01 16 | queue ID | stream | bucket u64    -> Array<Failure>: messages to fail when the batch is
                                                            settled | Array<Delay>, absent if it is empty
    kept       01 17 | queue ID | stream | bucket u64    -> claimed at i64 | Array<Kept> | Array<Reason>
    followed   01 18 | queue ID                          -> since u64 | put u64 | published u64
    held back  01 19 | queue ID | message ID u64         -> bytes, estimated u32 | flags u8, as in sizes
    groups     01 1A | queue ID                          -> nothing: a message of the queue has, or had, a group;
                                                            versions that know no groups refuse the database

    Size               message ID u64 | bytes of the payload u32 | flags u8: 1 = published, 2 = the payload is an
                       object, 4 = the log entry has a group
    Claimed            message ID u64 | priority u8 | visible at i64 | retention deadline i64 | claimed at i64
                       | receipt's secret u64 | consumer | reason (each 00, or 01 and Utf8)
                       | ended attempts: length u32 and bytes, as rules/recent.py packs them
    Settled receipt    message ID u64 | secret u64 | outcome u8: 1 acked, 2 failed, 3 released
    Put under a key    message ID u64 | key Utf8
    Failure            message ID u64 | reason (00, or 01 and Utf8)
    Delay              message ID u64 | milliseconds u64 from the settling to the next attempt
    Kept               message ID u64 | priority u8 | visible at i64 | retention deadline i64 | attempts u32
                       | bytes of the payload u32 | flags u8, as in sizes
    Reason             message ID u64 | Utf8: why the attempt before that batch failed

A recent record has the receipts that one commit settled and the keys that it put messages under. It is removed
after five minutes. The position under the empty name is that of all queues with a filter that are not held: such a
queue is at its own position or at the common one, whichever is later. A held queue (1) is at its own.

A stream's name is TerminatedBytes. `settled` is the number of its last settled batch, `before` the number of the
batch before that, 0 for none. `position` is the last message that a following stream has read, -1 if the stream
consumes. The messages of its held batch are in flight without a lease deadline, and their consumer is
`stream:NAME`. The messages of the last settled batch are kept with their payloads until the next batch is settled.

A queue that was ever followed has a followed record. `since` is the highest message number when that began. `put`
and `published` are the highest numbers of messages that are lost to followers: of messages put into the queue, and
of published ones that have left it. Under the empty name, `published` is the highest number that has left the log.
So a follower knows whether messages after its position are lost. Up to `since` only the queue knows which
published messages it was offered: these are held back too, without bodies, which are in the log.
"""

# ruff: noqa: D103 - encode_X() and decode_X() are named after their record

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.contract.settings import Settings
from penstock.rules.streams import Failure
from penstock.stores.slate.format import (
    CLOCK,
    EXPIRY,
    INSTANCE,
    LOG_END,
    VERSION,
    Config,
    Reader,
    Undecodable,
    array,
    blob,
    columns,
    decode_array,
    decode_fields,
    key_u64,
    optional,
    queue_key,
    terminated,
    utf8,
)

# Flags of a message: other queues may have it as well; its payload is an object; its log entry has its group.
PUBLISHED, LARGE, GROUPED = 1, 2, 4
CLOCK_KEY = bytes((VERSION, CLOCK))
LOG_END_KEY = bytes((VERSION, LOG_END))
INSTANCE_KEY = bytes((VERSION, INSTANCE))
SIZE = struct.Struct("<QIB")
_CLAIMED = struct.Struct("<QBqqqQ")
_TIME = struct.Struct("<q")
_POSITION = struct.Struct("<QB")
_RECEIPT = struct.Struct("<QQB")
_NUMBER = struct.Struct("<Q")
encode_clock: Callable[[int], bytes] = _TIME.pack
encode_log_end: Callable[[int], bytes] = _NUMBER.pack
encode_last_batch: Callable[[int], bytes] = _NUMBER.pack
_FOREVER = 0
_DELAY = struct.Struct("<QQ")
_STREAM = struct.Struct("<QQq")
_HELD = struct.Struct("<Qq")
_CONSUMES = -1
_KEPT = struct.Struct("<QBqqIIB")
_MARKS = struct.Struct("<QQQ")
_RETAINED = struct.Struct("<IB")


class Size(NamedTuple):
    """A message of a queue, and the size of its payload."""

    id: int
    size: int
    flags: int


class Claimed(NamedTuple):
    """Values of a claimed message that the document's records have no room for, whatever its state."""

    id: int
    priority: int
    visible_at: int
    expires_at: int
    claimed_at: int
    nonce: int
    consumer: str | None
    reason: str | None
    history: bytes


class Receipt(NamedTuple):
    """A receipt that was settled."""

    id: int
    nonce: int
    outcome: int


class Recent(NamedTuple):
    """The receipts that one commit settled, and the keys that it put messages under."""

    at: int
    receipts: Sequence[Receipt]
    keys: Sequence[tuple[int, str]]  # the message, the key


class StreamRow(NamedTuple):
    """A stream without its messages."""

    reader: str
    settled: int
    before: int
    position: int | None
    held: tuple[int, int] | None  # number of the batch, when it was claimed


class Kept(NamedTuple):
    """A message of a stream's last settled batch, as the stream read it."""

    id: int
    priority: int
    visible_at: int
    expires_at: int
    attempts: int
    size: int
    flags: int


class KeptPage(NamedTuple):
    """The messages of a stream's last settled batch that are in one bucket."""

    claimed_at: int
    messages: list[Kept]
    reasons: dict[int, str]


class Marks(NamedTuple):
    """A followed record: see above."""

    since: int
    put: int
    published: int


class Retained(NamedTuple):
    """A message that has left its queue and is held back for followers."""

    size: int
    flags: int


# Queues


def config_of(settings: Settings) -> Config:
    """The document's config for these settings; keep_done in whole seconds, and at least one."""
    keep_done = settings.keep_done
    kept = _FOREVER if keep_done is None else max(1, -int(-keep_done // 1))
    return Config(settings.filter, settings.max_attempts, kept)


def encode_settings(settings: Settings) -> bytes:
    """The settings that the document's config has no room for."""
    content = settings.stored()
    del content["filter"], content["max_attempts"]
    return json.dumps(content, ensure_ascii=False).encode()


def decode_settings(value: bytes, config: Config) -> Settings:
    """The settings of a queue, from both records."""
    try:
        content = json.loads(value)
        return Settings(filter=config.filter, max_attempts=config.max_attempts, **content)
    except (ValueError, TypeError) as error:
        raise Undecodable(f"a settings record cannot be read: {error}") from error


def settings_from(config: Config) -> Settings:
    """The settings of a queue that another program made, without a settings record."""
    kept = None if config.keep_done == _FOREVER else config.keep_done
    return Settings(filter=config.filter, max_attempts=config.max_attempts, keep_done=kept)


def decode_size_columns(value: bytes) -> list[tuple[int, ...]]:
    """The columns of a sizes record: ids, sizes, flags."""
    return list(zip(*decode_array(SIZE, value, "a sizes record"), strict=True))


def decode_sizes(value: bytes) -> list[Size]:
    return list(map(Size._make, decode_array(SIZE, value, "a sizes record")))


def encode_claims(claims: Iterable[Claimed]) -> bytes:
    return array(
        [_CLAIMED.pack(*each[:6]) + optional(each[6]) + optional(each[7]) + blob(each[8]) for each in claims]
    )


def decode_claims(value: bytes) -> list[Claimed]:
    reader = Reader(value, "a claims record")
    claims = []
    for _ in range(reader.count()):
        fields = reader.fields(_CLAIMED)
        claims.append(Claimed._make([*fields, reader.optional(), reader.optional(), reader.blob()]))
    reader.end()
    return claims


def encode_recent(recent: Recent) -> bytes:
    receipts = array([_RECEIPT.pack(*each) for each in recent.receipts])
    keys = array([_NUMBER.pack(message) + utf8(key) for message, key in recent.keys])
    return _TIME.pack(recent.at) + receipts + keys


def decode_recent(value: bytes) -> Recent:
    reader = Reader(value, "a recent record")
    (at,) = reader.fields(_TIME)
    receipts = list(map(Receipt._make, reader.array(_RECEIPT)))
    keys = [(reader.fields(_NUMBER)[0], reader.utf8()) for _ in range(reader.count())]
    reader.end()
    return Recent(at, receipts, keys)


# The store


def encode_position(position: int, held: bool) -> bytes:
    """A queue's position in the log, and whether the queue is held there."""
    return _POSITION.pack(position, held)


def decode_position(value: bytes) -> tuple[int, bool]:
    position, held = decode_fields(_POSITION, value, "a position")
    return position, bool(held)


def expiry_key(time: int, id: int) -> bytes:  # noqa: A002 - the document's word
    """The key of a published message's expiry."""
    return bytes((VERSION, EXPIRY)) + key_u64(time) + key_u64(id)


def decode_clock(value: bytes) -> int:
    return decode_fields(_TIME, value, "the clock")[0]


def decode_log_end(value: bytes) -> int:
    return decode_fields(_NUMBER, value, "the end of the log")[0]


def encode_instance(name: str) -> bytes:
    return utf8(name)


def decode_instance(value: bytes) -> str:
    reader = Reader(value, "the instance")
    name = reader.utf8()
    reader.end()
    return name


# Streams and followers


def stream_key(kind: int, queue: str, stream: str, bucket: int | None = None) -> bytes:
    """The key of a record of a stream: of the stream itself, or of its messages in a bucket."""
    key = queue_key(kind, queue) + terminated(stream.encode())
    return key if bucket is None else key + key_u64(bucket)


def decode_last_batch(value: bytes) -> int:
    return decode_fields(_NUMBER, value, "a batches record")[0]


def encode_stream(row: StreamRow) -> bytes:
    held = b"\x00" if row.held is None else b"\x01" + _HELD.pack(*row.held)
    position = _CONSUMES if row.position is None else row.position
    return utf8(row.reader) + _STREAM.pack(row.settled, row.before, position) + held


def decode_stream(value: bytes) -> StreamRow:
    reader = Reader(value, "a stream record")
    name, (settled, before, position) = reader.utf8(), reader.fields(_STREAM)
    held = None
    if reader.take(1) == b"\x01":
        number, at = reader.fields(_HELD)
        held = number, at
    reader.end()
    return StreamRow(name, settled, before, None if position == _CONSUMES else position, held)


def encode_failures(failures: Mapping[int, Failure]) -> bytes:
    why = array([_NUMBER.pack(message) + optional(failure.reason) for message, failure in failures.items()])
    later = [(message, failure.delay) for message, failure in failures.items() if failure.delay]
    return why + (array([_DELAY.pack(*each) for each in later]) if later else b"")


def decode_failures(value: bytes) -> dict[int, Failure]:
    reader = Reader(value, "a failures record")
    failures = {reader.fields(_NUMBER)[0]: Failure(reader.optional()) for _ in range(reader.count())}
    for _ in range(reader.count() if reader.left else 0):
        message, delay = reader.fields(_DELAY)
        if message not in failures:
            raise Undecodable(f"a failures record has a delay of message {message}, which is not to fail")
        failures[message] = Failure(failures[message].reason, delay)
    reader.end()
    return failures


def encode_kept(
    claimed_at: int, number: int, values: Iterable[Iterable[int]], reasons: Sequence[tuple[int, str]]
) -> bytes:
    """A kept record of `number` messages, given by the columns of a `Kept`."""
    texts = array([_NUMBER.pack(message) + utf8(reason) for message, reason in reasons])
    return _TIME.pack(claimed_at) + columns(_KEPT, number, values) + texts


def decode_kept(value: bytes) -> KeptPage:
    reader = Reader(value, "a kept record")
    (claimed_at,) = reader.fields(_TIME)
    messages = list(map(Kept._make, reader.array(_KEPT)))
    reasons = {reader.fields(_NUMBER)[0]: reader.utf8() for _ in range(reader.count())}
    reader.end()
    return KeptPage(claimed_at, messages, reasons)


def encode_marks(marks: Marks) -> bytes:
    return _MARKS.pack(*marks)


def decode_marks(value: bytes) -> Marks:
    return Marks(*decode_fields(_MARKS, value, "a followed record"))


def encode_retained(retained: Retained) -> bytes:
    return _RETAINED.pack(min(retained.size, 2**32 - 1), retained.flags)


def decode_retained(value: bytes) -> Retained:
    return Retained(*decode_fields(_RETAINED, value, "a held back record"))
