"""The small parts that records are made of: numbers, texts, lists of numbers.

A `list` is u32 count and a column as in columns.py; a `text` is u32 length (2**32-1: None) and UTF-8.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.stores.journal.columns import Column, decode, encode

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
MOST = 2**31 // 22  # messages that can be in a group: an item is at least so long, and is opened
LAST = 2**62  # no number of a message, a group or a batch, and no time, comes near it
_NONE = 2**32 - 1
_SHORT_LIST = struct.Struct("<IBQ")  # a list of one


class Bodies(NamedTuple):
    """Where the bodies of new messages are: one element per message in each column."""

    offset: Column
    size: Column
    crc: Column


def encode_list(values: Sequence[int]) -> bytes:
    """Numbers from 0 on."""
    if len(values) == 1:
        return _SHORT_LIST.pack(1, 0, values[0])
    return U32.pack(len(values)) + (encode("Q", values) if values else b"")


def decode_list(data: memoryview, offset: int, most: int) -> tuple[list[int], int]:
    """The list at offset, and where it ends; ValueError if it has more numbers than there can be."""
    count, offset = decode_u32(data, offset)
    check_count(count, most)
    if not count:
        return [], offset
    column, offset = decode("Q", data, offset, count)
    return column.tolist(), offset


def check_count(count: int, most: int) -> None:
    """Refuse a number of elements that cannot be, before anything is made of it: a column may be very short."""
    if not 0 <= count <= most:
        raise ValueError(f"{count} of what can be {most} at most")


def encode_text(text: str | None) -> bytes:
    """A text, or None."""
    if text is None:
        return U32.pack(_NONE)
    encoded = text.encode()
    return U32.pack(len(encoded)) + encoded


def decode_text(data: memoryview, offset: int) -> tuple[str | None, int]:
    """The text at offset, and where it ends."""
    length, offset = decode_u32(data, offset)
    if length == _NONE:
        return None, offset
    return bytes(data[offset : offset + length]).decode(), offset + length


def decode_u32(data: memoryview, offset: int) -> tuple[int, int]:
    """The number at offset, and where it ends."""
    return U32.unpack_from(data, offset)[0], offset + 4


def decode_u64(data: memoryview, offset: int) -> tuple[int, int]:
    """The number at offset, and where it ends."""
    return U64.unpack_from(data, offset)[0], offset + 8
