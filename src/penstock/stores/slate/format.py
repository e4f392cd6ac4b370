"""OpenData-Queue's records, byte for byte: keys and values of the database, as pure functions.

    payload       01 01 | message ID u64              -> type u8: 01 Array<Byte>, 02 URI Utf8
    active        01 02 | queue ID [| bucket u64]     -> Array<AvailableMessage> Array<InFlightMessage>
    done          01 03 | queue ID [| bucket u64]     -> Array<DoneMessage>
    failed        01 04 | queue ID [| bucket u64]     -> Array<FailedMessage>
    attempts      01 05 | message ID u64              -> Array<ConsumerID>, a ConsumerID is Utf8
    config        01 06 | queue ID                    -> filters Utf8 | max attempts u16 | done kept, seconds u32
    log entry     01 01 | log key | sequence u64      -> the metadata of a message
    SeqBlock      01 02                               -> base u64 | size u64, both big endian

    AvailableMessage   message ID u64 | priority u8 | visible at i64 | retention deadline i64 | attempts u16
    InFlightMessage    message ID u64 | priority u8 | claimed at i64 | lease deadline i64 | attempts u16
    DoneMessage        message ID u64 | done at i64 | attempts u16
    FailedMessage      message ID u64 | failed at i64 | attempts u16
    metadata           message ID u64 | created at i64 | received at i64 | visible at i64
                       | retention in seconds u32 | number of headers u8 | key Utf8 value Utf8 ...

    Array<T>           count u16, then the elements back to back
    Utf8               length in bytes u16, then UTF-8
    TerminatedBytes    00 -> 01 01, 01 -> 01 02, FF -> 01 03, then 00: the order of keys is that of the bytes

Integers are big endian in keys, so that keys sort as numbers do, and little endian in values. `Reader` refuses a
value that is too short or too long: unknown bytes are never guessed at.

Queue IDs and the log key are TerminatedBytes, times milliseconds since the epoch. A deadline or a retention of 0
is none. A bucket holds the messages whose ID >> 10 is its number. Bucket 0 is the document's key and always
exists, other buckets exist while they hold messages. No filter is an empty text. Types 07 and up: extensions.py.

A message's ID is its sequence in the log. IDs are below 2^62, so that payload keys (01 01 00..3F) and log keys
(01 01 6F, "o") never collide; a SeqBlock's key is shorter than that of any queue.

Changing it: a new layout gets a new version byte, and a reader of the old one stays beside it, with its tests.
Released types keep their meaning; unknown versions and types are refused.
"""

# ruff: noqa: D103 - encode_X() and decode_X() are named after their record

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from penstock.errors import StoreCorrupt

MAX_ARRAY = MAX_UTF8 = 65_535
VERSION = 1
PAYLOAD, ACTIVE, DONE, FAILED, ATTEMPTS, CONFIG = range(1, 7)
SETTINGS, SIZES, CLAIMS, RECENT, POSITION, EXPIRY, CLOCK, LOG_END, LOAD, RUN, SINK = range(7, 18)  # extensions
INSTANCE, BATCHES, STREAM, FAILURES, KEPT, FOLLOWED, HELD_BACK, GROUPS = 18, *range(20, 27)
LOG, SEQ_BLOCK = -1, -2  # OpenData-Log's types are 1 and 2 as well; the rest of the key tells them apart

BUCKET_BITS = 10
MAX_ID = (1 << 62) - 1
MAX_ATTEMPTS = 65_535
MAX_INLINE = MAX_ARRAY  # bytes of the largest payload that is in its record, not an object
LOG_KEY = "opendata-queue/messages/metadata"
SEQ_BLOCK_KEY = bytes([VERSION, 2])
PAYLOADS, ALL_ATTEMPTS = bytes((VERSION, PAYLOAD)), bytes((VERSION, ATTEMPTS))  # prefixes of keys

_OF_MESSAGES = (PAYLOAD, ATTEMPTS)
_OF_LOADS = (LOAD, RUN, SINK)  # their keys have a name where others have a queue
_BUCKETS = (ACTIVE, DONE, FAILED, SIZES, CLAIMS)
_OF_QUEUES = (*_BUCKETS, CONFIG, SETTINGS, RECENT, POSITION, BATCHES, FOLLOWED, HELD_BACK, GROUPS)
AVAILABLE_MESSAGE = struct.Struct("<QBqqH")
IN_FLIGHT_MESSAGE = struct.Struct("<QBqqH")
_SETTLED = struct.Struct("<QqH")
METADATA = struct.Struct("<QqqqIB")
_CONFIG = struct.Struct("<HI")
_SEQ_BLOCK = struct.Struct(">QQ")
_U16 = struct.Struct("<H")
_ONE, NONE = _U16.pack(1), _U16.pack(0)
_U32 = struct.Struct("<I")
key_u64: Callable[[int], bytes] = struct.Struct(">Q").pack  # an integer in a key
_ESCAPED = {0x00: b"\x01\x01", 0x01: b"\x01\x02", 0xFF: b"\x01\x03"}
_TO_ESCAPE = re.compile(rb"[\x00\x01\xff]")
_UNESCAPED = {0x01: 0x00, 0x02: 0x01, 0x03: 0xFF}


class Undecodable(StoreCorrupt):
    """Bytes in a slate store that no record of this version has."""


def array(elements: Sequence[bytes]) -> bytes:
    """An Array<T> of encoded elements."""
    return count(len(elements)) + b"".join(elements)


def count(number: int) -> bytes:
    """The count of an Array<T>; ValueError if it is too high."""
    if number > MAX_ARRAY:
        raise ValueError(f"{number} elements; an array holds at most {MAX_ARRAY}")
    return _U16.pack(number)


def columns(layout: struct.Struct, number: int, values: Iterable[Iterable[int]]) -> bytes:
    """An Array<T> of `number` elements of fixed size, given by columns."""
    return b"".join((_U16.pack(number), *map(layout.pack, *(values if number else [()]))))


def utf8(text: str) -> bytes:
    """A text; ValueError if it is too long."""
    data = text.encode()
    if len(data) > MAX_UTF8:
        raise ValueError(f"a text of {len(data)} bytes; the most is {MAX_UTF8}")
    return _U16.pack(len(data)) + data


def blob(data: bytes) -> bytes:
    """Bytes after their length (u32); an extension."""
    return _U32.pack(len(data)) + data


def optional(text: str | None) -> bytes:
    """A text that may be missing: 00, or 01 and the text; an extension."""
    return b"\x00" if text is None else b"\x01" + utf8(text)


def terminated(data: bytes) -> bytes:
    """TerminatedBytes."""
    if _TO_ESCAPE.search(data):  # most names need no escape
        data = b"".join([_ESCAPED.get(byte) or bytes((byte,)) for byte in data])
    return data + b"\x00"


def unterminated(data: bytes, start: int) -> tuple[bytes, int]:
    """TerminatedBytes from a position on, decoded, and the position after them."""
    end = data.find(b"\x00", start)
    if end < 0:
        raise Undecodable(f"the key {data.hex(' ')} has no end of its name")
    raw = data[start:end]
    if not set(raw) & _ESCAPED.keys():
        return raw, end + 1
    found, bytes_left = bytearray(), iter(raw)
    for byte in bytes_left:
        if byte == 0x01:
            escaped = _UNESCAPED.get(next(bytes_left, -1))
            if escaped is None:
                raise Undecodable(f"the key {data.hex(' ')} has an invalid escape")
            found.append(escaped)
        elif byte == 0xFF:
            raise Undecodable(f"the key {data.hex(' ')} has an FF that is not escaped")
        else:
            found.append(byte)
    return bytes(found), end + 1


class Reader:
    """Reads a value from its start to its end."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise Undecodable(f"{self._what} ends after {len(self._data)} bytes, in the middle of a field")
        self._at += size
        return taken

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next fields of fixed size."""
        return layout.unpack(self.take(layout.size))

    def array(self, layout: struct.Struct) -> Iterable[tuple[int, ...]]:
        """An Array<T> of elements of fixed size."""
        return layout.iter_unpack(self.take(self.count() * layout.size))

    def count(self) -> int:
        """The count of an Array<T>."""
        number: int = _U16.unpack(self.take(2))[0]
        return number

    def utf8(self) -> str:
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"{self._what} has a text that is not UTF-8") from error

    def blob(self) -> bytes:
        return self.take(_U32.unpack(self.take(4))[0])

    def optional(self) -> str | None:
        return self.utf8() if self.take(1) == b"\x01" else None

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return len(self._data) - self._at

    def end(self) -> None:
        """Check that every byte was read."""
        if self._at != len(self._data):
            raise Undecodable(f"{self._what} has {len(self._data) - self._at} bytes more than its fields")


def decode_fields(layout: struct.Struct, value: bytes, what: str) -> tuple[int, ...]:
    """The fields of a value that has only fields of fixed size."""
    reader = Reader(value, what)
    fields = reader.fields(layout)
    reader.end()
    return fields


def decode_array(layout: struct.Struct, value: bytes, what: str) -> Iterable[tuple[int, ...]]:
    """The elements of a value that is one Array<T> of fixed-size elements."""
    reader = Reader(value, what)
    elements = reader.array(layout)
    reader.end()
    return elements


class Key(NamedTuple):
    """A parsed key: the record's type, and its queue, message or bucket, time and stream."""

    kind: int
    queue: str = ""
    number: int = 0  # a message's ID, a bucket, or the number of a recent record
    time: int = 0
    stream: str = ""


class Available(NamedTuple):
    """A message that consumers can claim once it is visible."""

    id: int
    priority: int
    visible_at: int
    expires_at: int  # the retention deadline; 0 = none
    attempts: int


class InFlight(NamedTuple):
    """A message that a consumer has claimed."""

    id: int
    priority: int
    claimed_at: int
    lease_until: int
    attempts: int


class Settled(NamedTuple):
    """A message that is done, or has failed."""

    id: int
    at: int
    attempts: int


class Metadata(NamedTuple):
    """A message's log entry."""

    id: int
    created_at: int
    received_at: int
    visible_at: int
    retention: int  # seconds from received_at on; 0 = for ever
    headers: dict[str, str]


class Config(NamedTuple):
    """The document's config of a queue."""

    filter: str | None
    max_attempts: int
    keep_done: int  # seconds; 0 = for ever


class SeqBlock(NamedTuple):
    """A range of IDs that a writer may give to messages; the next writer begins after it."""

    base: int
    size: int


# Keys


def payload_key(id: int) -> bytes:  # noqa: A002 - the document's word
    """The key of a message's payload."""
    return b"\x01\x01" + key_u64(id)


def attempts_key(id: int) -> bytes:  # noqa: A002
    """The key of the list of consumers that claimed a message."""
    return b"\x01\x05" + key_u64(id)


def queue_key(kind: int, queue: str, bucket: int = 0) -> bytes:
    """The key of a queue's record of a type, in a bucket; or of a load's, run's or sink's."""
    key = _of_queue(kind, queue)
    return key + key_u64(bucket) if bucket else key


@lru_cache(maxsize=65_536)
def _of_queue(kind: int, queue: str) -> bytes:
    return bytes((VERSION, kind)) + terminated(queue.encode())


def instance_of(log: str) -> str:
    """The name of a log's instance; empty for the unnamed one."""
    return log.removeprefix(LOG_KEY).removeprefix("/")


def log_prefix(log: str) -> bytes:
    """The prefix of the keys of a log's entries."""
    return b"\x01\x01" + terminated(log.encode())


def body_deletions(log: bytes, id: int) -> list[tuple[bytes, None]]:  # noqa: A002
    """Deletions of a message's payload, log entry (`log` is the log's prefix) and attempts."""
    return [(payload_key(id), None), (log + key_u64(id), None), (attempts_key(id), None)]


def parse_key(key: bytes) -> Key:
    """Parse a key; Undecodable if no record of this version has it."""
    if not key or key[0] != VERSION:
        raise Undecodable(
            f"the database has a record of version {key[0] if key else 'none'} (key {key.hex(' ')}), and this "
            f"version of Penstock knows {VERSION}: open it with the one that wrote it, or a later one"
        )
    kind = key[1] if len(key) > 1 else 0
    if key == SEQ_BLOCK_KEY:
        return Key(SEQ_BLOCK)
    if kind in _OF_MESSAGES and len(key) == 10 and key[2] < 0x40:
        return Key(kind, number=_number(key, 2))
    if kind == PAYLOAD:
        name, end = unterminated(key, 2)
        return Key(LOG, _text(name), _number(key, end))
    if kind in (*_OF_QUEUES, *_OF_LOADS):
        name, end = unterminated(key, 2)
        if end == len(key):
            return Key(kind, _text(name))
        if kind in (*_BUCKETS, RECENT, HELD_BACK):
            return Key(kind, _text(name), _number(key, end))
    if kind in (STREAM, FAILURES, KEPT) and (known := _parse_stream_key(kind, key)) is not None:
        return known
    if kind == EXPIRY and len(key) == 18:
        return Key(kind, number=_number(key, 10), time=_number(key[:10], 2))
    if kind in (CLOCK, LOG_END, INSTANCE) and len(key) == 2:
        return Key(kind)
    raise Undecodable(
        f"the database has a record of type {kind} with a key that this version of Penstock does not know "
        f"({key.hex(' ')}): open it with the version that wrote it, or a later one"
    )


def _parse_stream_key(kind: int, key: bytes) -> Key | None:
    name, end = unterminated(key, 2)
    stream, end = unterminated(key, end)
    if kind == STREAM:
        return Key(kind, _text(name), stream=_text(stream)) if end == len(key) else None
    return Key(kind, _text(name), _number(key, end), stream=_text(stream))


def _text(name: bytes) -> str:
    """A name. Bytes of another program that are not UTF-8 become no legal name, so they are never written."""
    return name.decode(errors="surrogateescape")


def _number(key: bytes, start: int) -> int:
    if len(key) != start + 8:
        raise Undecodable(f"the key {key.hex(' ')} does not end with a number")
    return int.from_bytes(key[start:])


# Values


def encode_payload(payload: bytes) -> bytes:
    """The record of a payload of at most MAX_INLINE bytes."""
    return b"\x01" + count(len(payload)) + payload


def encode_uri(uri: str) -> bytes:
    """The record of a payload that is an object beside the database."""
    return b"\x02" + utf8(uri)


def object_of(uri: str) -> str:
    """The name of the object that a payload's URI refers to; Undecodable if the object is elsewhere."""
    name = uri.removeprefix("objects/")
    if name == uri or not (name.isascii() and name.isdecimal()):
        raise Undecodable(
            f"a payload is at {uri!r}, and this version of Penstock reads payloads at objects/ID only"
        )
    return name


def decode_payload(value: bytes) -> bytes | str:
    """The payload, or its object's URI as str."""
    reader = Reader(value[1:], "a payload record")
    if value[:1] == b"\x01":
        payload: bytes | str = reader.take(reader.count())
    elif value[:1] == b"\x02":
        payload = reader.utf8()
    else:
        raise Undecodable(f"a payload of type {value[:1].hex() or 'none'}; known are 01, bytes, and 02, a URI")
    reader.end()
    return payload


def encode_active(available: Sequence[Available], in_flight: Sequence[InFlight]) -> bytes:
    """The active record of a bucket: messages that are available or delayed, and those in flight."""
    waiting = array([AVAILABLE_MESSAGE.pack(*each) for each in available])
    return waiting + array([IN_FLIGHT_MESSAGE.pack(*each) for each in in_flight])


def encode_one_available(*message: int) -> bytes:
    """The active record of a bucket with one available message, given by the fields of an `Available`."""
    return _ONE + AVAILABLE_MESSAGE.pack(*message) + NONE


def decode_one_available(value: bytes) -> Available | None:
    """The message of such a record; None if the record is not of that form."""
    if len(value) != AVAILABLE_MESSAGE.size + 4 or value[:2] != _ONE or value[-2:] != NONE:
        return None
    return Available(*AVAILABLE_MESSAGE.unpack_from(value, 2))


def decode_active(value: bytes) -> tuple[list[Available], list[InFlight]]:
    reader = Reader(value, "an active record")
    available = list(map(Available._make, reader.array(AVAILABLE_MESSAGE)))
    in_flight = list(map(InFlight._make, reader.array(IN_FLIGHT_MESSAGE)))
    reader.end()
    return available, in_flight


def decode_available(value: bytes) -> list[tuple[int, ...]] | None:
    """The columns of an active record's available messages; None if it has none, or messages in flight."""
    reader = Reader(value, "an active record")
    columns = list(zip(*reader.array(AVAILABLE_MESSAGE), strict=True))
    if reader.count():
        return None
    reader.end()
    return columns or None


def encode_settled(settled: Iterable[Sequence[int]]) -> bytes:
    """The done record or the failed record of a bucket."""
    return array([_SETTLED.pack(*each) for each in settled])


def decode_settled(value: bytes) -> list[Settled]:
    return list(map(Settled._make, decode_array(_SETTLED, value, "a done or failed record")))


def encode_attempts(consumers: Sequence[str]) -> bytes:
    """The consumers that claimed a message, oldest first."""
    return array(list(map(utf8, consumers)))


def decode_attempts(value: bytes) -> list[str]:
    reader = Reader(value, "an attempts record")
    consumers = [reader.utf8() for _ in range(reader.count())]
    reader.end()
    return consumers


def encode_metadata(metadata: Metadata) -> bytes:
    """A log entry."""
    headers = metadata.headers
    if not headers:
        return METADATA.pack(*metadata[:5], 0)
    texts = [utf8(text) for header in headers.items() for text in header]
    return METADATA.pack(*metadata[:5], len(headers)) + b"".join(texts)


def decode_metadata(value: bytes) -> Metadata:
    """A log entry, by a fast path that leaves errors to _decode_carefully()."""
    try:
        *fields, headers = METADATA.unpack_from(value)
        at, texts = METADATA.size, []
        for _ in range(2 * headers):
            start = at + 2
            at = start + value[at] + 256 * value[at + 1]
            texts.append(value[start:at].decode())
        if at == len(value):
            return Metadata._make([*fields, dict(zip(texts[::2], texts[1::2], strict=True))])
    except (struct.error, IndexError, UnicodeDecodeError):
        pass
    return _decode_carefully(value)


def _decode_carefully(value: bytes) -> Metadata:
    reader = Reader(value, "a log entry")
    *fields, headers = reader.fields(METADATA)
    found = {reader.utf8(): reader.utf8() for _ in range(headers)}
    reader.end()
    return Metadata._make([*fields, found])


def encode_config(config: Config) -> bytes:
    """The document's config of a queue."""
    return utf8(config.filter or "") + _CONFIG.pack(config.max_attempts, config.keep_done)


def decode_config(value: bytes) -> Config:
    reader = Reader(value, "a config record")
    wanted = reader.utf8() or None
    max_attempts, keep_done = reader.fields(_CONFIG)
    reader.end()
    return Config(wanted, max_attempts, keep_done)


def decode_others_config(value: bytes) -> Config:
    """A config that another program wrote. The document leaves filters' encoding open: other bytes become hex."""
    try:
        return decode_config(value)
    except Undecodable:
        if len(value) < _CONFIG.size:
            raise
    wanted = f"({value[: -_CONFIG.size].hex(' ')})"  # no valid filter of Penstock
    return Config(wanted, *_CONFIG.unpack(value[-_CONFIG.size :]))


def encode_seq_block(block: SeqBlock) -> bytes:
    return _SEQ_BLOCK.pack(*block)


def decode_seq_block(value: bytes) -> SeqBlock:
    return SeqBlock(*decode_fields(_SEQ_BLOCK, value, "a SeqBlock"))
