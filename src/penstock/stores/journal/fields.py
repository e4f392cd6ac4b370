"""The fields of records as bytes: numbers, texts, lists and columns.

text        u32 length (2**32-1: None) and UTF-8
list        u32 count and, if that is not 0, a column of integers
integers    u8 form, then   0: i64 or u64, the value of all
                            1: the first value as above and u64, the step
                            2: every value, as wide as the column's type
texts       u32 number of distinct texts, each u32 length and UTF-8, then a column of u32 numbers, 0 = None

Most columns of a batch are constant (9 bytes) or count up (17). The reader knows their type and length.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.rules.rows import PAGE, is_constant

Column = Sequence[int]
COUNTING = array("I", range(PAGE))
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
MOST = 2**31 // 22  # messages that fit into a group: an item and its entry have at least 22 bytes
LAST = 2**62  # numbers of messages, groups and batches, and times, are far below it
_CONSTANT, _STEPS, _LISTED = 0, 1, 2
_NONE = 2**32 - 1
_SHORT_LIST = struct.Struct("<IBQ")  # a list of one


class Bodies(NamedTuple):
    """Where the bodies of new messages are: columns with one element per message."""

    offset: Column
    size: Column
    crc: Column


def encode_column(typecode: str, values: Column) -> bytes:
    """A column of integers, not empty."""
    column = values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)
    first, last, count = column[0], column[-1], len(column)
    if first == last and is_constant(column):
        return bytes([_CONSTANT]) + _word(typecode, first)
    step = column[1] - first
    if step > 0 and last == first + step * (count - 1) and column == array(typecode, range(first, last + 1, step)):
        return bytes([_STEPS]) + _word(typecode, first) + _word("Q", step)
    return bytes([_LISTED]) + _little_endian(column).tobytes()


def encode_texts(texts: Sequence[str | None]) -> bytes:
    """A column of texts."""
    numbers: dict[str, int] = {}
    column = [0 if text is None else numbers.setdefault(text, len(numbers) + 1) for text in texts]
    return b"".join([U32.pack(len(numbers)), *map(encode_text, numbers), encode_column("I", column)])


def encode_list(values: Sequence[int]) -> bytes:
    """A list of numbers that are not negative."""
    if len(values) == 1:
        return _SHORT_LIST.pack(1, 0, values[0])
    return U32.pack(len(values)) + (encode_column("Q", values) if values else b"")


def encode_text(text: str | None) -> bytes:
    """A text, or None."""
    if text is None:
        return U32.pack(_NONE)
    encoded = text.encode()
    return U32.pack(len(encoded)) + encoded


def check_count(count: int, most: int) -> int:
    """Refuse an impossible number of elements before memory is allocated: a constant column has few bytes."""
    if not 0 <= count <= most:
        raise ValueError(f"{count} elements, of at most {most}")
    return count


class Reader:
    """Reads fields one after the other; lists have at most `most` numbers. ValueError if a field is impossible."""

    __slots__ = ("data", "most", "offset")

    def __init__(self, data: memoryview, most: int = MOST) -> None:
        self.data = data
        self.most = most
        self.offset = 0

    def fields(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self.data, self.offset)
        self.offset += form.size
        return found

    def u8(self) -> int:
        self.offset += 1
        return self.data[self.offset - 1]

    def u32(self) -> int:
        return int(self.fields(U32)[0])

    def u64(self) -> int:
        return int(self.fields(U64)[0])

    def raw(self, count: int) -> bytes:
        """Bytes as they are; fewer than `count` at the end of the data."""
        self.offset += count
        return bytes(self.data[self.offset - count : self.offset])

    def text(self) -> str | None:
        length = self.u32()
        return None if length == _NONE else self.raw(length).decode()

    def name(self) -> str:
        """A text that is never None."""
        return self.text() or ""

    def numbers(self) -> list[int]:
        count = check_count(self.u32(), self.most)
        return self.column("Q", count).tolist() if count else []

    def column(self, typecode: str, count: int) -> "array[int]":
        form = self.u8()
        if form == _LISTED:
            column = array(typecode)
            end = self.offset + column.itemsize * count
            if end > len(self.data):
                raise ValueError("a column is cut off")
            column.frombytes(self.data[self.offset : end])
            self.offset = end
            return _little_endian(column)
        first = int.from_bytes(self.raw(8), "little", signed=typecode == "q")
        if form == _CONSTANT:
            return array(typecode, [first]) * count
        if form != _STEPS:
            raise ValueError(f"a column of form {form}")
        step = int.from_bytes(self.raw(8), "little")
        if typecode == "I" and (first, step) == (0, 1) and count <= PAGE:  # the positions of a page without gaps
            return COUNTING[:count]
        return array(typecode, range(first, first + step * count, step))

    def texts(self, count: int) -> "list[str | None]":
        distinct = self.u32()
        texts = [None, *[self.text() for _ in range(distinct)]]
        return [texts[number] for number in self.column("I", count)]


def _word(typecode: str, value: int) -> bytes:
    return value.to_bytes(8, "little", signed=typecode == "q")


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
