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

An expiry of 0 is never. There is no header, checksum or padding; an empty file is a journal. The format is frozen:
Kestrel's servers are out there. What Penstock adds rides inside it, see `groups.py`.
"""

import struct
from typing import Literal, NamedTuple, TypeAlias

Dialect: TypeAlias = Literal["doc", "2.x"]
DIALECTS: tuple[Dialect, ...] = ("doc", "2.x")

_ADD, _REMOVE, _ADDX, _REMOVE_TENTATIVE, _SAVE_XID, _UNREMOVE, _CONFIRM, _ADD_XID, _OPCODE_8, _RESERVE_XID = range(
    10
)
_XID = struct.Struct("<Bi")
_ITEM = struct.Struct("<Biqq")
_XID_ITEM = struct.Struct("<Biiqq")
_OLD_ITEM = struct.Struct("<Bii")
_TIMES = 16  # bytes of an item's size that its two times take


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
    """Set the last used xid; so many ADD_XID follow. Dialect "doc"."""

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


def encode(entry: Entry) -> bytes:
    """The bytes of an entry."""
    match entry:
        case Add(expiry, data):
            return _OLD_ITEM.pack(_ADD, 4 + len(data), expiry) + data
        case Remove():
            return bytes([_REMOVE])
        case AddX(added, expiry, data):
            return _ITEM.pack(_ADDX, _TIMES + len(data), added, expiry) + data
        case RemoveTentative():
            return bytes([_REMOVE_TENTATIVE])
        case SaveXid(xid):
            return _XID.pack(_SAVE_XID, xid)
        case Unremove(xid):
            return _XID.pack(_UNREMOVE, xid)
        case ConfirmRemove(xid):
            return _XID.pack(_CONFIRM, xid)
        case AddXid(xid, added, expiry, data):
            return _XID_ITEM.pack(_ADD_XID, xid, _TIMES + len(data), added, expiry) + data
        case StateDump(xid, following):
            return _OLD_ITEM.pack(_OPCODE_8, xid, following)
        case Continue(xid, added, expiry, data):
            return _XID_ITEM.pack(_OPCODE_8, xid, _TIMES + len(data), added, expiry) + data
        case RemoveTentativeXid(xid):
            return _XID.pack(_RESERVE_XID, xid)


def decode(data: bytes | memoryview, offset: int, dialect: Dialect = "doc") -> tuple[Entry, int]:
    """The entry at offset and where the next one starts; Broken if it cannot be read."""
    opcode = data[offset]
    if opcode == _ADDX:
        (added, expiry), payload, end = _item(data, offset, 1)
        return AddX(added, expiry, payload), end
    if opcode == _REMOVE:
        return Remove(), offset + 1
    if opcode == _REMOVE_TENTATIVE:
        return RemoveTentative(), offset + 1
    if opcode in _WITH_XID:
        _, xid = _unpack(_XID, data, offset)
        return _WITH_XID[opcode](xid), offset + _XID.size
    if opcode == _ADD_XID or (opcode == _OPCODE_8 and dialect == "2.x"):
        _, xid = _unpack(_XID, data, offset)
        (added, expiry), payload, end = _item(data, offset, _XID.size)
        kind = AddXid if opcode == _ADD_XID else Continue
        return kind(xid, added, expiry, payload), end
    if opcode == _OPCODE_8:
        _, xid, following = _unpack(_OLD_ITEM, data, offset)
        return StateDump(xid, following), offset + _OLD_ITEM.size
    if opcode == _ADD:
        _, size, expiry = _unpack(_OLD_ITEM, data, offset)
        payload, end = _data(data, offset, offset + _OLD_ITEM.size, size - 4)
        return Add(expiry, payload), end
    raise Broken(offset, f"unknown opcode {opcode}")


def added(data: bytes, offset: int, dialect: Dialect) -> tuple[int, int] | None:
    """Where an item ends that the entry at offset adds, by its size, and its add time; None: it adds none."""
    opcode = data[offset]
    with_xid = opcode == _ADD_XID or (opcode == _OPCODE_8 and dialect == "2.x")
    if not with_xid and opcode not in (_ADD, _ADDX):
        return None
    start = offset + (_XID.size if with_xid else 1)
    fields = _SIZE if opcode == _ADD else _SIZE_AND_TIMES
    size, time = _unpack(fields, data, offset, start - offset)[:2]
    if size < (4 if opcode == _ADD else _TIMES):
        raise Broken(offset, "impossible size")
    return start + _SIZE_FIELD + size, 0 if opcode == _ADD else time


_SIZE = struct.Struct("<ii")
_SIZE_FIELD = 4
_WITH_XID: dict[int, type[SaveXid] | type[Unremove] | type[ConfirmRemove] | type[RemoveTentativeXid]] = {
    _SAVE_XID: SaveXid,
    _UNREMOVE: Unremove,
    _CONFIRM: ConfirmRemove,
    _RESERVE_XID: RemoveTentativeXid,
}
_SIZE_AND_TIMES = struct.Struct("<iqq")


def _item(data: bytes | memoryview, offset: int, skip: int) -> tuple[tuple[int, int], bytes, int]:
    """Times and data of the item whose size field is `skip` bytes after its opcode, and where it ends."""
    size, added, expiry = _unpack(_SIZE_AND_TIMES, data, offset, skip)
    payload, end = _data(data, offset, offset + skip + _SIZE_AND_TIMES.size, size - _TIMES)
    return (added, expiry), payload, end


def _unpack(fields: struct.Struct, data: bytes | memoryview, offset: int, skip: int = 0) -> tuple[int, ...]:
    try:
        return fields.unpack_from(data, offset + skip)
    except struct.error:
        raise Broken(offset, "entry cut off") from None


def _data(data: bytes | memoryview, offset: int, start: int, size: int) -> tuple[bytes, int]:
    if size < 0:
        raise Broken(offset, "impossible size")
    if start + size > len(data):
        raise Broken(offset, "entry cut off")
    return bytes(data[start : start + size]), start + size
