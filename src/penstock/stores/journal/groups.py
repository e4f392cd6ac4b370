"""Commit groups: the bytes of one commit, as entries that any reader of Kestrel's format replays.

    SAVE_XID            xids do not depend on earlier bytes
    head, a control item: the magic, "h", u32 length of the group, u32 where its tail starts, u64 its number,
        u32 crc32 of the bytes so far
    bodies and the ends of transactions, see bodies.py
    tail, a control item: the magic, "t", the records of records.py, u32 crc32 of all bytes of the group before it

A control item is ADDX followed by REMOVE: added and removed at once. The tail's add time is the latest recorded
time. A group counts only as a whole: its length and its checksum must be right. Groups are numbered without gaps,
so that a lost one is noticed. To change a control item, give it a new letter and keep reading the old one.

The xid of a message follows from its sequence number, and is not stored. It has 32 bits, is signed and never 0,
and counts 1, 2, ... 2**31-1, -2**31, ... -1 and then 1 again. Two messages share one only if they are
PERIOD numbers apart; a number whose xid is still open is left out.
"""

import struct
from functools import cache
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32  # zlib's, with the processor's help: five to ten times as fast

MAGIC = b"\x89PSTK\r\n\x1a"  # no payload begins with it by chance
HEAD = struct.Struct("<Bi Biqq 8scIIQI B")
_HEAD_ITEM = 16 + 8 + 1 + 4 + 4 + 8 + 4  # the size field of the head
_HEAD_CRC = HEAD.size - 5  # the offset of its checksum
TAIL = struct.Struct("<Biqq 8sc")
END = struct.Struct("<IB")
_SAVE_XID, _ADDX, _REMOVE = 4, 2, 1
HEAD_SIZE = HEAD.size
OVERHEAD = HEAD.size + TAIL.size + END.size
MAX_SIZE = 2**31 - 1
PERIOD = 2**32 - 1  # numbers after which xids repeat
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # the bits of a crc are powers of x, the lowest power first


class Group(NamedTuple):
    """A whole group."""

    number: int
    at: int
    records: memoryview
    length: int


class Head(NamedTuple):
    """The fields of a group's head."""

    length: int
    tail: int
    number: int


def seal(buffer: bytearray, records: bytes | bytearray, xid: int, number: int, at: int) -> None:
    """Complete the group in a buffer that has HEAD_SIZE free bytes and then the group's entries."""
    buffer[: HEAD.size], tail, _ = ends(len(buffer), records, xid, number, at)
    buffer += tail
    buffer += END.pack(crc32(buffer), _REMOVE)


def ends(tail: int, records: bytes | bytearray, xid: int, number: int, at: int) -> tuple[bytes, bytes, int]:
    """The head, the tail without its end, and the length of a group whose tail starts at `tail`."""
    length = tail + TAIL.size + len(records) + END.size
    head = HEAD.pack(_SAVE_XID, xid, _ADDX, _HEAD_ITEM, at, 0, MAGIC, b"h", length, tail, number, 0, _REMOVE)
    return (
        head[:_HEAD_CRC] + END.pack(crc32(head[:_HEAD_CRC]), _REMOVE),
        TAIL.pack(_ADDX, 16 + 8 + 1 + len(records) + 4, at, 0, MAGIC, b"t") + records,
        length,
    )


def end(crc: int) -> bytes:
    """The last bytes of a group with this checksum."""
    return END.pack(crc, _REMOVE)


def head(data: bytes | memoryview, offset: int) -> Head | None:
    """The head at offset, if a group seems to start there."""
    if len(data) - offset < HEAD.size:
        return None
    fields = HEAD.unpack_from(data, offset)
    save_xid, _, addx, size, _, expiry, magic, kind, length, tail, number, _, remove = fields
    if (save_xid, addx, size, expiry, magic, kind, remove) != (
        _SAVE_XID,
        _ADDX,
        _HEAD_ITEM,
        0,
        MAGIC,
        b"h",
        _REMOVE,
    ):
        return None
    if not HEAD_SIZE <= tail <= length - TAIL.size - END.size:
        return None
    return Head(length, tail, number)


def is_sound(data: bytes, offset: int) -> bool:
    """Whether the checksum of the head at offset is right."""
    crc, _ = END.unpack_from(data, offset + _HEAD_CRC)
    return crc32(data[offset : offset + _HEAD_CRC]) == int(crc)


def read(data: memoryview, offset: int, found: Head) -> Group | None:
    """The group that starts at offset with this head; None if it is cut off or damaged."""
    end = offset + found.length
    if end > len(data):
        return None
    crc, remove = END.unpack_from(data, end - END.size)
    if remove != _REMOVE or crc32(data[offset : end - END.size]) != crc:
        return None
    tail = offset + found.tail
    return Group(
        found.number, TAIL.unpack_from(data, tail)[2], data[tail + TAIL.size : end - END.size], found.length
    )


def next_head(data: bytes | memoryview, offset: int) -> int | None:
    """The offset of the next head, from `offset` on."""
    raw = bytes(data[offset:])
    at = raw.find(MAGIC + b"h")
    while at >= 0:
        start = at - 26
        if start >= 0 and head(raw, start) is not None:
            return offset + start
        at = raw.find(MAGIC + b"h", at + 1)
    return None


def xid_of(seq: int) -> int:
    """The xid of a message."""
    xid = (seq - 1) % PERIOD + 1
    return xid if xid < 2**31 else xid - 2**32


def xid_before(seq: int) -> int:
    """The last used xid after which this message gets its own."""
    xid = (seq - 1) % PERIOD
    return xid if xid < 2**31 else xid - 2**32


def last_xid(next_seq: int) -> int:
    """The xid of the message before this one."""
    return xid_of(next_seq - 1) if next_seq > 1 else 0


def joined(first: int, second: int, length: int) -> int:
    """The crc32 of two byte strings joined, from the crc32 of each and the length of the second."""
    moved, power = first, 3  # a byte has 2**3 bits
    while length:
        if length & 1:
            moved = _product(_x_to_2_to(power), moved)
        length >>= 1
        power += 1
    return moved ^ second


@cache
def _x_to_2_to(power: int) -> int:
    """x to the power of 2**power, modulo the polynomial."""
    if not power:
        return _ONE >> 1
    root = _x_to_2_to(power - 1)
    return _product(root, root)


def _product(left: int, right: int) -> int:
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
