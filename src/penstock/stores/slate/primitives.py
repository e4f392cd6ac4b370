"""What records are made of, as OpenData's documents define it.

    Array<T>          count (u16, little endian), then the elements back to back
    Utf8              length in bytes (u16, little endian), then UTF-8
    TerminatedBytes   00 -> 01 01, 01 -> 01 02, FF -> 01 03, then 00: the order of keys is that of the bytes
    integers          big endian in keys, so that their order is that of the numbers; little endian in values

`Reader` refuses what ends too early or goes on too long: bytes that are not understood are never guessed at.
"""

import re
import struct
from collections.abc import Iterable, Sequence

from penstock.errors import StoreCorrupt

MAX_ARRAY = MAX_UTF8 = 65_535
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64_KEY = struct.Struct(">Q")
_ESCAPED = {0x00: b"\x01\x01", 0x01: b"\x01\x02", 0xFF: b"\x01\x03"}
_TO_ESCAPE = re.compile(rb"[\x00\x01\xff]")
_UNESCAPED = {0x01: 0x00, 0x02: 0x01, 0x03: 0xFF}


class Undecodable(StoreCorrupt):
    """Bytes of a slate store that are not a record that this version knows."""


def array(elements: Sequence[bytes]) -> bytes:
    """An Array<T> of elements that are bytes already."""
    return count(len(elements)) + b"".join(elements)


def count(number: int) -> bytes:
    """How many elements an Array<T> has."""
    if number > MAX_ARRAY:
        raise ValueError(f"{number} elements; an array holds at most {MAX_ARRAY}")
    return _U16.pack(number)


def utf8(text: str) -> bytes:
    """A text."""
    data = text.encode()
    if len(data) > MAX_UTF8:
        raise ValueError(f"a text of {len(data)} bytes; the most is {MAX_UTF8}")
    return _U16.pack(len(data)) + data


def blob(data: bytes) -> bytes:
    """Bytes of any length, with it (u32); ours, OpenData has none."""
    return _U32.pack(len(data)) + data


def optional(text: str | None) -> bytes:
    """A text that may be missing: 00, or 01 and the text; ours."""
    return b"\x00" if text is None else b"\x01" + utf8(text)


def terminated(data: bytes) -> bytes:
    """TerminatedBytes."""
    if _TO_ESCAPE.search(data):  # most names have nothing of that kind
        data = b"".join([_ESCAPED.get(byte) or bytes((byte,)) for byte in data])
    return data + b"\x00"


def key_u64(number: int) -> bytes:
    """A number in a key."""
    return _U64_KEY.pack(number)


def unterminated(data: bytes, start: int) -> tuple[bytes, int]:
    """TerminatedBytes from a place on, and where they end."""
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
                raise Undecodable(f"the key {data.hex(' ')} has an escape that is none")
            found.append(escaped)
        elif byte == 0xFF:
            raise Undecodable(f"the key {data.hex(' ')} has FF where it would be escaped")
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
        """The next so many bytes."""
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
        """How many elements an Array<T> has."""
        number: int = _U16.unpack(self.take(2))[0]
        return number

    def utf8(self) -> str:
        """A text."""
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"{self._what} has a text that is not UTF-8") from error

    def blob(self) -> bytes:
        """Bytes with their length."""
        return self.take(_U32.unpack(self.take(4))[0])

    def optional(self) -> str | None:
        """A text that may be missing."""
        return self.utf8() if self.take(1) == b"\x01" else None

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._data) - self._at

    def end(self) -> None:
        """There is no more."""
        if self._at != len(self._data):
            raise Undecodable(f"{self._what} has {len(self._data) - self._at} bytes more than its fields")
