"""Columns of integers and of texts as bytes. Most columns of a batch are constant (9 bytes) or count up (17).

integers    u8 form, then   0: i64 or u64, the value of all
                            1: the first value as above and u64, the step
                            2: every value, as wide as the column's type
texts       u32 number of distinct texts, each u32 length and UTF-8, then a column of u32 numbers, 0 = None
"""

import struct
import sys
from array import array
from collections.abc import Sequence

Column = Sequence[int]
_CONSTANT, _STEPS, _LISTED = 0, 1, 2
_U32 = struct.Struct("<I")


def encode(typecode: str, values: Column) -> bytes:
    """A column that is not empty; the reader must know its type and its length."""
    column = values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)
    first, last, count = column[0], column[-1], len(column)
    if first == last and column.tobytes() == column[:1].tobytes() * count:  # ten times as fast as count()
        return bytes([_CONSTANT]) + _word(typecode, first)
    step = column[1] - first
    if step > 0 and last == first + step * (count - 1) and column == array(typecode, range(first, last + 1, step)):
        return bytes([_STEPS]) + _word(typecode, first) + _word("Q", step)
    return bytes([_LISTED]) + _little_endian(column).tobytes()


def decode(typecode: str, data: memoryview, offset: int, count: int) -> tuple["array[int]", int]:
    """The column at offset, and where it ends."""
    form, offset = data[offset], offset + 1
    if form == _LISTED:
        column = array(typecode)
        end = offset + column.itemsize * count
        if end > len(data):
            raise ValueError("a column is cut off")
        column.frombytes(data[offset:end])
        return _little_endian(column), end
    first = int.from_bytes(data[offset : offset + 8], "little", signed=typecode == "q")
    offset += 8
    if form == _CONSTANT:
        return array(typecode, [first]) * count, offset
    if form != _STEPS:
        raise ValueError(f"a column of form {form}")
    step = int.from_bytes(data[offset : offset + 8], "little")
    return array(typecode, range(first, first + step * count, step)), offset + 8


def encode_texts(texts: Sequence[str | None]) -> bytes:
    """A column of texts."""
    numbers: dict[str, int] = {}
    column = [0 if text is None else numbers.setdefault(text, len(numbers) + 1) for text in texts]
    parts = [_U32.pack(len(numbers))]
    for text in numbers:
        encoded = text.encode()
        parts += [_U32.pack(len(encoded)), encoded]
    return b"".join(parts) + encode("I", column)


def decode_texts(data: memoryview, offset: int, count: int) -> tuple[list[str | None], int]:
    """The column of texts at offset, and where it ends."""
    (distinct,) = _U32.unpack_from(data, offset)
    offset += 4
    texts: list[str | None] = [None]
    for _ in range(distinct):
        (length,) = _U32.unpack_from(data, offset)
        texts.append(bytes(data[offset + 4 : offset + 4 + length]).decode())
        offset += 4 + length
    column, offset = decode("I", data, offset, count)
    return [texts[number] for number in column], offset


def _word(typecode: str, value: int) -> bytes:
    return value.to_bytes(8, "little", signed=typecode == "q")


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
