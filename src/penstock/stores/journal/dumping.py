"""A journal file entry by entry, for `penstock dump`: read only, without the store's lock, and never refused.

A whole commit group is shown as a group, its entries inside of it, and the records of its tail inside of that.
Entries outside of groups are another program's. Bytes that cannot be read are shown as damage, with their offset
and the reason; the dump goes on at the next whole group.
"""

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from penstock.contract.dumps import Piece, damaged, reading
from penstock.contract.message import STATES
from penstock.rules.records import Put
from penstock.stores.journal import groups
from penstock.stores.journal.format import (
    Add,
    AddX,
    AddXid,
    Broken,
    Continue,
    Dialect,
    Entry,
    RemoveTentative,
    RemoveTentativeXid,
    check_dialect,
    decode,
)
from penstock.stores.journal.groups import MAGIC, Group, xid_of
from penstock.stores.journal.reading import IMPOSSIBLE, Window
from penstock.stores.journal.records import (
    Image,
    Item,
    KeptImage,
    LoadName,
    PageImage,
    RestImage,
    SettingsImage,
    StreamsImage,
    decode_all,
)
from penstock.system.files import File

_CHUNK = 1 << 20
_SMALL = 4_096
_REMOVE = b"\x01"
_ITEMS = (Add, AddX, AddXid, Continue)
_NAMES = {"AddX": "ADDX"}  # other names of opcodes follow from their classes


def dump(path: str, dialect: Dialect = "doc") -> Iterator[Piece]:
    """Every piece of the journal file at a path, in its order.

    >>> list(dump("data/jobs"))
    """
    check_dialect(dialect)
    with reading(path) as file:
        yield from _pieces(file, dialect)


class _Buffer:
    """A part of a file in memory, for entries that are mostly small."""

    def __init__(self, file: File, size: int) -> None:
        self._file, self._size = file, size
        self._data, self._base = b"", 0

    def at(self, offset: int, least: int) -> tuple[bytes, int]:
        """Bytes, and where in them that offset is: at least so many follow, or all to the end of the file."""
        end = self._base + len(self._data)
        if offset < self._base or (end < self._size and offset + least > end):
            self._data, self._base = self._file.read(offset, max(least, _CHUNK)), offset
        return self._data, offset - self._base

    def is_at_end(self) -> bool:
        """Whether no bytes follow."""
        return self._base + len(self._data) >= self._size


def _pieces(file: File, dialect: Dialect = "doc") -> Iterator[Piece]:
    size, offset = file.size(), 0
    window, buffer = Window(file, size), _Buffer(file, size)
    while offset < size:
        data, at = buffer.at(offset, groups.HEAD_SIZE)
        head = groups.head(data, at)
        if head is None:
            piece, offset = _foreign(file, size, buffer, offset, dialect)
            yield piece
            continue
        group = window.group(offset)
        if group is not None:
            whole = bytes(window.data[offset - window.base : offset - window.base + group.length])
            yield from _group(group, whole, offset)
            offset += group.length
            continue
        left = size - offset
        why = f"group {head.number} is cut off: it has {head.length:,} bytes, of which {left:,} are there"
        if head.length <= left:
            why = f"the checksum of group {head.number} is wrong"
        # A group inside of a payload is no group of this file.
        skipped = head.length if head.length <= left and groups.is_sound(data, at) else 1
        end = _next_group(file, size, offset + skipped)
        yield damaged(offset, why, end - offset)
        offset = end


def _foreign(file: File, size: int, buffer: _Buffer, offset: int, dialect: Dialect) -> tuple[Piece, int]:
    """An entry of another program, a run of REMOVE, or damage; and where the next piece begins."""
    least = _SMALL
    data, at = buffer.at(offset, least)
    if data[at : at + 2] == _REMOVE * 2:
        data, at = buffer.at(offset, _CHUNK)
        run = len(data) - at - len(data[at:].lstrip(_REMOVE))
        return Piece("REMOVE", {"count": run, "size": run}, offset), offset + run
    while True:
        try:
            entry, end = decode(data, at, dialect)
            if isinstance(entry, AddX) and entry.data[: len(MAGIC)] == MAGIC:
                end = _next_group(file, size, offset + 1)
                return damaged(offset, "a control item outside of a whole group", end - offset), end
            return _entry(entry, offset, end - at), offset + end - at
        except Broken as broken:
            why = str(broken).partition(" at offset ")[0]
            if buffer.is_at_end() or not why.startswith("entry cut off"):
                end = _next_group(file, size, offset + 1)
                return damaged(offset, why, end - offset), end
            least *= 8
            data, at = buffer.at(offset, least)


def _next_group(file: File, size: int, start: int) -> int:
    """The offset of the next whole group; the end of the file if there is none."""
    window = Window(file, size)
    while start < size:
        data = file.read(start, _CHUNK)
        at = groups.next_head(data, 0)
        if at is not None:
            if window.group(start + at) is not None:
                return start + at
            start += at + 1
        else:
            start += max(1, len(data) - groups.HEAD_SIZE)
    return size


def _group(group: Group, data: bytes, base: int) -> Iterator[Piece]:
    """A whole group and all that is in it."""
    records: list[Item] = []
    wrong = ""
    try:
        records.extend(decode_all(group.records))
    except IMPOSSIBLE as error:
        wrong = f"impossible content, though its checksum is right: {error}"
    ids = _ids(records)
    yield Piece("group", {"number": group.number, "at": group.at, "size": group.length}, base)
    position, seq = 0, 0
    while position < len(data):
        try:
            entry, end = decode(data, position)
        except Broken as broken:
            yield damaged(base + position, str(broken).partition(" at offset ")[0], len(data) - position, 1)
            return
        known: dict[str, Any] = {}
        control = isinstance(entry, AddX) and entry.data[: len(MAGIC)] == MAGIC and position not in ids
        if isinstance(entry, AddX) and control:
            known = _control(entry.data, seq)
        elif isinstance(entry, AddX | AddXid | RemoveTentative | RemoveTentativeXid):
            seq = ids.get(position, seq)
            known = {"id": str(seq), "xid": xid_of(seq)} if seq else {}
        yield _entry(entry, base + position, end - position, 1, known, bare=control)
        if known.get("control") == "records":
            for item in records:
                yield _record(item, base)
            if wrong:
                yield damaged(None, wrong, depth=2)
        position = end


def _entry(
    entry: Entry,
    offset: int,
    size: int,
    depth: int = 0,
    known: Mapping[str, Any] = MappingProxyType({}),
    bare: bool = False,
) -> Piece:
    """An entry; `known` fields come from records. A `bare` one is shown without its data."""
    name = type(entry).__name__
    name = _NAMES.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    fields = {**known, **entry._asdict(), "size": size}
    if isinstance(entry, Add):
        fields["expiry"] = entry.expiry * 1000
    if bare:
        del fields["data"]
    elif isinstance(entry, _ITEMS):
        fields["data"] = fields.pop("data")  # last
    return Piece(name, fields, offset, depth)


def _control(data: bytes, seq: int) -> dict[str, Any]:
    """The fields of a control item after message `seq`; its letter if this version does not know it."""
    letter, rest = data[len(MAGIC) : len(MAGIC) + 1], data[len(MAGIC) + 1 :]
    try:
        if letter == b"h":
            length, tail = (int.from_bytes(rest[at : at + 4], "little") for at in (0, 4))
            number = int.from_bytes(rest[8:16], "little")
            return {"control": "head", "length": length, "tail": tail, "number": number}
        if letter == b"m":
            return {"control": "headers", "id": str(seq), **json.loads(rest)}
    except (ValueError, TypeError, RecursionError):
        pass
    return {"control": "records" if letter == b"t" else letter.decode(errors="replace")}


def _ids(records: list[Item]) -> dict[int, int]:
    """The numbers of the messages whose bodies are in a group, by their offsets in it."""
    ids: dict[int, int] = {}
    for item in records:
        if isinstance(item, PageImage | KeptImage):
            keys = item.page.keys()
            ids |= {place: item.first + key for place, key in zip(item.page.place, keys, strict=False)}
        elif not isinstance(item, Image | LoadName) and isinstance(item[0], Put) and item[1] is not None:
            ids |= {place: seq for seq, place in enumerate(item[1].offset, item[0].first)}
    return ids


def _record(item: Item, base: int) -> Piece:
    """A record of a group's tail; places are offsets in the file."""
    fields: dict[str, Any]
    match item:
        case PageImage(first, page) | KeptImage(_, first, page):
            name = "kept page" if isinstance(item, KeptImage) else "page"
            keys = page.keys()
            fields = {"stream": item.stream} if isinstance(item, KeptImage) else {}
            fields |= {
                "ids": [str(first + key) for key, _ in zip(keys, page.state, strict=False)],
                "states": [STATES[state - 1] for state in page.state],
                "places": [base + place for place in page.place],
                "sizes": list(page.size),
                "crcs": list(page.crc),
            }
        case RestImage(snapshot, next_group):
            name, fields = "rest", {
                "next_group": next_group,
                "next_id": snapshot.next_seq,
                "receipts": sum(len(minute.seqs) for minute in snapshot.receipts.dump()),
                "keys": len(snapshot.keys),
                "with_attempts": len(snapshot.history),
            }  # fmt: skip
        case StreamsImage(snapshot):
            streams = {
                name: {"reader": each.reader, "settled": each.settled} for name, each in snapshot.streams.items()
            }
            name, fields = "streams", {"last_batch": snapshot.last_batch, "streams": streams}
        case SettingsImage(settings):
            name, fields = "settings", {"settings": dict(settings)}
        case LoadName(load):
            name, fields = "load", {"load": load}
        case record, bodies:
            name, fields = _spoken(type(record).__name__), dict(record._asdict())
            if isinstance(record, Put) and bodies is not None:
                places = [base + offset for offset in bodies.offset]
                fields |= {"places": places, "sizes": bodies.size, "crcs": bodies.crc}
            if "settings" in fields:
                fields["settings"] = dict(fields["settings"])
            if "nonce" in fields:
                fields["nonce"] = f"{fields['nonce']:016x}"  # as receipts have it
    return Piece(name, fields, None, 2)


def _spoken(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
