"""Kestrel's journal format: bytes to entries and back. No files, no time.

A journal is a sequence of entries, each an opcode byte and what follows it; integers are little-endian and signed.
`size` counts the times and the data of an entry, not itself and not the xid.

    0 ADD                   i32 size, i32 expiry (seconds), data        starling, 2007; read only
    1 REMOVE                -
    2 ADDX                  i32 size, i64 added (ms), i64 expiry (ms), data
    3 REMOVE_TENTATIVE      -
    4 SAVE_XID              i32 xid
    5 UNREMOVE              i32 xid
    6 CONFIRM_REMOVE        i32 xid
    7 ADD_XID               i32 xid, i32 size, i64 added (ms), i64 expiry (ms), data
    8 STATE_DUMP            i32 xid, i32 count                           dialect "doc", as the document has it
    8 CONTINUE              as ADD_XID                                   dialect "2.x", as Kestrel 2.x has it
    9 REMOVE_TENTATIVE_XID  i32 xid                                      not in the document; Kestrel 2.1 and later

An expiry of 0 is never. There is no header, checksum or padding; an empty file is a journal. The format is frozen,
because Kestrel servers read it. What Penstock adds is inside of items, see `groups.py`.
"""

import struct
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from penstock.errors import InvalidArgument

Dialect: TypeAlias = Literal["doc", "2.x"]
DIALECTS: tuple[Dialect, ...] = ("doc", "2.x")


def check_dialect(dialect: str) -> Dialect:
    """The dialect; InvalidArgument if it does not exist."""
    if dialect not in DIALECTS:
        raise InvalidArgument(f"dialect={dialect!r} is none of {', '.join(DIALECTS)}")
    return dialect


class Broken(ValueError):
    """The entry at `offset` cannot be read: it is cut off, its opcode is unknown or its size impossible."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"{why} at offset {offset}")
        self.offset = offset


class Add(NamedTuple):
    """Add an item to the end of the queue, as starling wrote it."""

    expiry: int  # seconds since the epoch
    data: bytes


class Remove(NamedTuple):
    """Remove the head of the queue."""


class AddX(NamedTuple):
    """Add an item to the end of the queue."""

    added: int
    expiry: int
    data: bytes


class RemoveTentative(NamedTuple):
    """Open a transaction on the head of the queue under the next xid, or the item's own if it has one."""


class SaveXid(NamedTuple):
    """Set the last used xid."""

    xid: int


class Unremove(NamedTuple):
    """Cancel a transaction: its item goes back to the head of the queue."""

    xid: int


class ConfirmRemove(NamedTuple):
    """Finish a transaction: its item is gone."""

    xid: int


class AddXid(NamedTuple):
    """Add an item that will be opened under an xid of its own."""

    xid: int
    added: int
    expiry: int
    data: bytes


class StateDump(NamedTuple):
    """Set the last used xid; `following` entries ADD_XID follow. Dialect "doc"."""

    xid: int
    following: int


class Continue(NamedTuple):
    """Finish a transaction and add an item in one step. Dialect "2.x"."""

    xid: int
    added: int
    expiry: int
    data: bytes


class RemoveTentativeXid(NamedTuple):
    """Open a transaction on the head of the queue under this xid."""

    xid: int


Entry: TypeAlias = (
    Add | Remove | AddX | RemoveTentative | SaveXid | Unremove | ConfirmRemove | AddXid | StateDump | Continue
    | RemoveTentativeXid
)  # fmt: skip


class _Layout(NamedTuple):
    """The fields after an opcode: numbers and, of an item, size, times and data."""

    opcode: int
    kind: Callable[..., Entry]
    numbers: struct.Struct = struct.Struct("<")
    item: struct.Struct | None = None  # size and times


_XID, _TWO = struct.Struct("<i"), struct.Struct("<ii")
_SIZE = struct.Struct("<i")
_ITEM, _OLD_ITEM = struct.Struct("<iqq"), struct.Struct("<ii")
_CONTINUE = _Layout(8, Continue, _XID, _ITEM)
_LAYOUTS = [
    _Layout(0, Add, item=_OLD_ITEM),
    _Layout(1, Remove),
    _Layout(2, AddX, item=_ITEM),
    _Layout(3, RemoveTentative),
    _Layout(4, SaveXid, _XID),
    _Layout(5, Unremove, _XID),
    _Layout(6, ConfirmRemove, _XID),
    _Layout(7, AddXid, _XID, _ITEM),
    _Layout(8, StateDump, _TWO),
    _Layout(9, RemoveTentativeXid, _XID),
]
_DIALECTS = {"doc": _LAYOUTS, "2.x": [*_LAYOUTS[:8], _CONTINUE, *_LAYOUTS[9:]]}
_BY_KIND = {layout.kind: layout for layout in [*_LAYOUTS, _CONTINUE]}


def encode(entry: Entry) -> bytes:
    """The bytes of an entry."""
    opcode, _, numbers, item = _BY_KIND[type(entry)]
    if item is None:
        return bytes([opcode]) + numbers.pack(*entry)
    fields: list[int]
    data: bytes
    *fields, data = entry  # type: ignore[misc, assignment]
    xid, times = (fields[:1], fields[1:]) if numbers.size else ([], fields)
    size = item.size - _SIZE.size + len(data)
    return bytes([opcode]) + numbers.pack(*xid) + item.pack(size, *times) + data


def decode(data: bytes | memoryview, offset: int, dialect: Dialect = "doc") -> tuple[Entry, int]:
    """The entry at offset and where the next one starts; Broken if it cannot be read."""
    _, kind, numbers, item = layout = _layout(data, offset, dialect)
    fields = _unpack(numbers, data, offset, offset + 1)
    if item is None:
        return kind(*fields), offset + 1 + numbers.size
    start, end, times = _item(data, offset, layout)
    if end > len(data):
        raise Broken(offset, "entry cut off")
    return kind(*fields, *times, bytes(data[start:end])), end


def added(data: bytes, offset: int, dialect: Dialect) -> tuple[int, int] | None:
    """The end (by its size) and the add time of the item that the entry at offset adds; None: it adds none."""
    layout = _layout(data, offset, dialect)
    if layout.item is None:
        return None
    _, end, times = _item(data, offset, layout)
    return end, times[0] if len(times) == 2 else 0


def _layout(data: bytes | memoryview, offset: int, dialect: Dialect) -> _Layout:
    if data[offset] >= len(_LAYOUTS):
        raise Broken(offset, f"unknown opcode {data[offset]}")
    return _DIALECTS[dialect][data[offset]]


def _item(data: bytes | memoryview, offset: int, layout: _Layout) -> tuple[int, int, list[int]]:
    """The start and, by its size, the end of an item's data, and its times."""
    form = layout.item or _ITEM
    at = offset + 1 + layout.numbers.size
    size, *times = _unpack(form, data, offset, at)
    start, end = at + form.size, at + _SIZE.size + size
    if end < start:
        raise Broken(offset, "impossible size")
    return start, end, times


def _unpack(form: struct.Struct, data: bytes | memoryview, offset: int, at: int) -> tuple[int, ...]:
    try:
        return form.unpack_from(data, at)
    except struct.error:
        raise Broken(offset, "entry cut off") from None
