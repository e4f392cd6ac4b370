"""Records of ours, for what OpenData-Queue has none. Pure, as format.py.

    settings   01 07 | queue ID                    -> JSON: what `create` was given and the config has no room for
    sizes      01 08 | queue ID [| bucket u64]     -> Array<Size>: every message of the bucket, unless there is
                                                      but one, published: its size is in its entry of the log
    claims     01 09 | queue ID [| bucket u64]     -> Array<Claimed>: those that were claimed, and are not gone
    recent     01 0A | queue ID | number u64       -> at i64 | Array<Settled receipt> | Array<Put under a key>
    position   01 0B | queue ID                    -> first log entry that it was not offered u64 | held u8
    expiry     01 0C | time u64 | message ID u64   -> nothing: a published message goes at that time
    clock      01 0D                               -> i64: the latest time that was recorded
    log end    01 0E                               -> u64: every lower number of the log is there, or never will be
    instance   01 12                               -> Utf8: the name of the instance, empty without one

    Size               message ID u64 | bytes of the payload u32 | flags u8: 1 = published
    Claimed            message ID u64 | priority u8 | visible at i64 | retention deadline i64 | claimed at i64
                       | receipt's secret u64 | consumer | reason (each 00, or 01 and Utf8)
                       | attempts that have ended u32 and bytes, as index/history.py packs them
    Settled receipt    message ID u64 | secret u64 | outcome u8: 1 acked, 2 failed, 3 released
    Put under a key    message ID u64 | key Utf8

A recent record holds what one commit settled or put under keys, and is removed once that is five minutes old. The
position under the empty name is that of all queues with a filter, but those that are held (1): a queue that is not
held is at its own position or at that one, whichever is later.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from penstock.contract.settings import Settings
from penstock.stores.slate.format import CLOCK, EXPIRY, INSTANCE, LOG_END, VERSION, Config
from penstock.stores.slate.primitives import Reader, Undecodable, array, blob, count, key_u64, optional, utf8

PUBLISHED, LARGE = 1, 2  # flags of a message: others may have it; its payload is an object
CLOCK_KEY = bytes((VERSION, CLOCK))
LOG_END_KEY = bytes((VERSION, LOG_END))
INSTANCE_KEY = bytes((VERSION, INSTANCE))
_SIZE = struct.Struct("<QIB")
_CLAIMED = struct.Struct("<QBqqqQ")
_TIME = struct.Struct("<q")
_POSITION = struct.Struct("<QB")
_RECEIPT = struct.Struct("<QQB")
_ID = struct.Struct("<Q")
_FOREVER = 0


class Size(NamedTuple):
    """A message of a queue, and how long its payload is."""

    id: int
    size: int
    flags: int


class Claimed(NamedTuple):
    """What else is known of a message that was claimed, whatever became of it."""

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
    """What one commit settled or put under keys."""

    at: int
    receipts: Sequence[Receipt]
    keys: Sequence[tuple[int, str]]  # the message, the key


def config_of(settings: Settings) -> Config:
    """What the document's config says of these settings; keep_done in whole seconds, and at least one."""
    keep_done = settings.keep_done
    kept = _FOREVER if keep_done is None else max(1, -int(-keep_done // 1))
    return Config(settings.filter, settings.max_attempts, kept)


def encode_settings(settings: Settings) -> bytes:
    """What the config has no room for."""
    content = asdict(settings)
    del content["filter"], content["max_attempts"]
    return json.dumps(content, ensure_ascii=False).encode()


def decode_settings(value: bytes, config: Config) -> Settings:
    """The settings of a queue, of which the config has a part."""
    try:
        content = json.loads(value)
        return Settings(filter=config.filter, max_attempts=config.max_attempts, **content)
    except (ValueError, TypeError) as error:
        raise Undecodable(f"a settings record cannot be read: {error}") from error


def settings_from(config: Config) -> Settings:
    """The settings of a queue that another program made, which wrote no record of ours."""
    kept = None if config.keep_done == _FOREVER else config.keep_done
    return Settings(filter=config.filter, max_attempts=config.max_attempts, keep_done=kept)


def encode_sizes(number: int, columns: Iterable[Iterable[int]]) -> bytes:
    """The messages of a bucket, so many of them, by columns."""
    return b"".join((count(number), *map(_SIZE.pack, *(columns if number else [()]))))


def decode_size_columns(value: bytes) -> list[tuple[int, ...]]:
    """The same by columns, for who has many."""
    reader = Reader(value, "a sizes record")
    columns = list(zip(*reader.array(_SIZE), strict=True))
    reader.end()
    return columns


def decode_sizes(value: bytes) -> list[Size]:
    """The messages of a bucket."""
    reader = Reader(value, "a sizes record")
    sizes = list(map(Size._make, reader.array(_SIZE)))
    reader.end()
    return sizes


def encode_claims(claims: Iterable[Claimed]) -> bytes:
    """The messages of a bucket that were claimed."""
    return array(
        [_CLAIMED.pack(*each[:6]) + optional(each[6]) + optional(each[7]) + blob(each[8]) for each in claims]
    )


def decode_claims(value: bytes) -> list[Claimed]:
    """The messages of a bucket that were claimed."""
    reader = Reader(value, "a claims record")
    claims = []
    for _ in range(reader.count()):
        fields = reader.fields(_CLAIMED)
        claims.append(Claimed._make([*fields, reader.optional(), reader.optional(), reader.blob()]))
    reader.end()
    return claims


def encode_recent(recent: Recent) -> bytes:
    """What one commit settled or put under keys."""
    receipts = array([_RECEIPT.pack(*each) for each in recent.receipts])
    keys = array([_ID.pack(message) + utf8(key) for message, key in recent.keys])
    return _TIME.pack(recent.at) + receipts + keys


def decode_recent(value: bytes) -> Recent:
    """What one commit settled or put under keys."""
    reader = Reader(value, "a recent record")
    (at,) = reader.fields(_TIME)
    receipts = list(map(Receipt._make, reader.array(_RECEIPT)))
    keys = [(reader.fields(_ID)[0], reader.utf8()) for _ in range(reader.count())]
    reader.end()
    return Recent(at, receipts, keys)


def encode_position(position: int, held: bool) -> bytes:
    """How far a queue has been looked after, and whether it stays behind the others."""
    return _POSITION.pack(position, held)


def decode_position(value: bytes) -> tuple[int, bool]:
    """How far a queue has been looked after, and whether it stays behind the others."""
    reader = Reader(value, "a position")
    position, held = reader.fields(_POSITION)
    reader.end()
    return position, bool(held)


def expiry_key(time: int, id: int) -> bytes:  # noqa: A002 - the document's word
    """Of the time at which a published message goes."""
    return bytes((VERSION, EXPIRY)) + key_u64(time) + key_u64(id)


def encode_clock(time: int) -> bytes:
    """The latest time that was recorded."""
    return _TIME.pack(time)


def decode_clock(value: bytes) -> int:
    """The latest time that was recorded."""
    reader = Reader(value, "the clock")
    (time,) = reader.fields(_TIME)
    reader.end()
    return time


def encode_log_end(end: int) -> bytes:
    """Up to where the log is complete."""
    return _ID.pack(end)


def decode_log_end(value: bytes) -> int:
    """Up to where the log is complete."""
    reader = Reader(value, "the end of the log")
    (end,) = reader.fields(_ID)
    reader.end()
    return end


def encode_instance(name: str) -> bytes:
    """The name of the instance."""
    return utf8(name)


def decode_instance(value: bytes) -> str:
    """The name of the instance."""
    reader = Reader(value, "the instance")
    name = reader.utf8()
    reader.end()
    return name
