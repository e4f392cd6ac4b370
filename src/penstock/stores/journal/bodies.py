"""A message's body in a journal as bytes, and how bodies are found in files and read.

ADDX (ADD_XID in a packed file)     added = received_at, expiry = expires_at, data = payload
REMOVE_TENTATIVE or its cousin 9    the message is an open transaction, until CONFIRM_REMOVE
  or REMOVE                         in a packed file, for one that is done and still listed
a control item, only if needed:     the magic, "m", JSON with created_at and headers

An extent is a run of bodies in one file, read at once. Extents are found under the queue's lock and read without
it. They stay readable when the message is settled or the file removed meanwhile: an open file outlives its name,
and bodies that are still to be written are copied.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from zlib_ng.zlib_ng import crc32

from penstock.contract.message import Entry, Plain
from penstock.engine.storage import Body
from penstock.errors import StoreClosed, StoreCorrupt
from penstock.rules.rows import MANY, Page
from penstock.stores.journal.files import OFFSET, PLACE_BITS, Segment
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.groups import MAGIC, xid_of
from penstock.system.files import File

_READ_AHEAD = 4 << 20  # bytes of an extent, about
_FEW = 64 << 10  # bytes: copying more takes longer than handing the read to a thread
_REMOVE, ADDX, _RESERVE_OPCODE, _SAVE_XID, _CONFIRM, ADD_XID, RESERVE_XID = 1, 2, 3, 4, 6, 7, 9
ITEM = struct.Struct("<Biqq")
_XID_ITEM = struct.Struct("<Biiqq")
_XID = struct.Struct("<Bi")
TIMES = 16
RESERVE = bytes([_RESERVE_OPCODE])
_REMOVE_BYTE = bytes([_REMOVE])
_META = MAGIC + b"m"
_NO_HEADERS: dict[str, str] = {}
checksum = crc32  # that decode() compares
ITEM_HEAD, XID_ITEM_HEAD = ITEM.size, _XID_ITEM.size  # bytes before the payload; the last 20 are alike
XID_END = _XID.size  # bytes after the payload, if they begin with RESERVE_XID; else 1
OVERHEAD = _XID_ITEM.size + _XID.size  # the most bytes that a body without meta adds to its payload


class Damaged(ValueError):
    """The bytes of a body are not those that were written."""


class Encoded(NamedTuple):
    """Bodies of new messages, as parts that are still to be joined."""

    parts: Sequence[bytes]
    sizes: list[int]
    crcs: list[int]


def encode(entries: Sequence[Entry], first: int, at: int, expires_at: Sequence[int], dialect: Dialect) -> Encoded:
    """The bodies of new messages."""
    if dialect == "2.x":
        ends = [_XID.pack(RESERVE_XID, xid_of(seq)) for seq in range(first, first + len(entries))]
    else:
        ends = [RESERVE] * len(entries)
    if isinstance(entries, Plain):
        return _encode_plain(entries.payloads, ends, at, expires_at[0])
    pack = ITEM.pack
    bodies = [
        pack(ADDX, TIMES + len(entry.payload), at, expiry) + entry.payload + end
        if entry.headers is None and entry.created_at is None
        else pack(ADDX, TIMES + len(entry.payload), at, expiry) + entry.payload + end + _meta(entry, at)
        for entry, expiry, end in zip(entries, expires_at, ends, strict=True)
    ]
    return Encoded(bodies, list(map(len, bodies)), list(map(checksum, bodies)))


def _encode_plain(payloads: list[bytes], ends: list[bytes], at: int, expires_at: int) -> Encoded:
    """Bodies of payloads alone. Payloads are not copied here: a second copy costs as much as all the rest."""
    lengths = list(map(len, payloads))
    heads = {length: ITEM.pack(ADDX, TIMES + length, at, expires_at) for length in set(lengths)}
    crcs = {length: checksum(head) for length, head in heads.items()}
    more = ITEM.size + len(ends[0])
    return Encoded(
        [*chain.from_iterable(zip(map(heads.__getitem__, lengths), payloads, ends, strict=True))],
        [length + more for length in lengths],
        list(map(checksum, ends, map(checksum, payloads, map(crcs.__getitem__, lengths)))),
    )


def encode_restored(
    entries: Sequence[Entry], received_at: Sequence[int], expires_at: Sequence[int], done: bool
) -> Encoded:
    """The bodies of messages that another store has received, in dialect "doc"."""
    end = end_of(done)
    bodies = []
    for entry, at, expiry in zip(entries, received_at, expires_at, strict=True):
        body = ITEM.pack(ADDX, TIMES + len(entry.payload), at, expiry) + entry.payload + end
        bodies.append(body + _meta(entry, at) if entry.headers or entry.created_at not in (None, at) else body)
    return Encoded(bodies, list(map(len, bodies)), list(map(checksum, bodies)))


def decode(data: bytes, starts: Iterable[int], sizes: Iterable[int], crcs: Iterable[int]) -> list[Body]:
    """Decode bodies; Damaged if a checksum is wrong."""
    decoded: list[Body] = []
    unpack, view = ITEM.unpack_from, memoryview(data)
    for start, size, crc in zip(starts, sizes, crcs, strict=True):
        end = start + size
        if crc32(view[start:end]) != crc:
            raise Damaged("a body's checksum does not match")
        opcode, length, added, _ = unpack(data, start)
        if opcode == ADDX and length + 6 == size:  # nearly all: an item and one byte
            decoded.append((data[start + 21 : end - 1], _NO_HEADERS, added, added))
        else:
            decoded.append(_decode_other(data[start:end]))
    return decoded


def _decode_other(body: bytes) -> Body:
    """A body that is packed, has headers, or was written for Kestrel 2.x."""
    added, start, end, rest = _parts(body)
    if rest == len(body):
        return body[start:end], _NO_HEADERS, added, added
    headers, created_at = decode_meta(body[rest:])
    return body[start:end], headers, created_at, added


def decode_meta(meta: bytes) -> tuple[dict[str, str], int]:
    """The headers and created_at in the control item that ends a body."""
    content = json.loads(meta[ITEM.size + len(_META) : -1])
    return content["headers"], content["created_at"]


def added_at(head: bytes) -> int:
    """When a message was received, by the first bytes of its body."""
    return int(ITEM.unpack_from(head)[2] if head[0] == ADDX else _XID_ITEM.unpack_from(head)[3])


def repack(data: bytes | memoryview, seq: int, done: bool, dialect: Dialect) -> bytes:
    """A body as a packed file has it: under its xid or, if the message is done, added and removed at once."""
    added, start, end, rest = _parts(data)
    expiry = struct.unpack_from("<q", data, start - 8)[0]
    size = TIMES + end - start
    payload, meta = bytes(data[start:end]), bytes(data[rest:])
    if done:
        return ITEM.pack(ADDX, size, added, expiry) + payload + _REMOVE_BYTE + meta
    if dialect == "2.x":
        return ITEM.pack(ADDX, size, added, expiry) + payload + _XID.pack(RESERVE_XID, xid_of(seq)) + meta
    return _XID_ITEM.pack(ADD_XID, xid_of(seq), size, added, expiry) + payload + RESERVE + meta


def save_xid(xid: int) -> bytes:
    """A SAVE_XID entry."""
    return _XID.pack(_SAVE_XID, xid)


def confirm(seqs: Sequence[int]) -> bytes:
    """CONFIRM_REMOVE entries of messages."""
    if not seqs:
        return b""
    if len(seqs) == 1:
        return _XID.pack(_CONFIRM, xid_of(seqs[0]))
    entries = bytearray(bytes([_CONFIRM])) * (_XID.size * len(seqs))
    xids = struct.pack(f"<{len(seqs)}i", *map(xid_of, seqs))
    for byte in range(4):
        entries[1 + byte :: _XID.size] = xids[byte::4]
    return bytes(entries)


def meta_size(entry: Entry) -> int:
    """The most bytes that an entry's headers, created_at and key take."""
    key = 4 * len(entry.key) if entry.key else 0
    if entry.headers is None and entry.created_at is None:
        return key
    return len(_meta(entry, 0)) + 16 + key  # the time may have more digits


def end_of(done: bool) -> bytes:
    """The entry after a payload: REMOVE_TENTATIVE, or REMOVE if the message is done."""
    return _REMOVE_BYTE if done else RESERVE


def _meta(entry: Entry, at: int) -> bytes:
    return encode_meta(entry.headers or _NO_HEADERS, at if entry.created_at is None else entry.created_at, at)


def encode_meta(headers: dict[str, str], created_at: int, at: int) -> bytes:
    """The control item that ends the body of a message with headers or a created_at of its own."""
    text = json.dumps({"created_at": created_at, "headers": headers}, ensure_ascii=False)
    data = _META + text.encode()
    return ITEM.pack(ADDX, TIMES + len(data), at, 0) + data + _REMOVE_BYTE


def _parts(data: bytes | memoryview) -> tuple[int, int, int, int]:
    """When a body was added, where its payload starts and ends, and where its meta starts."""
    if data[0] == ADDX:
        _, size, added, _ = ITEM.unpack_from(data)
        start = ITEM.size
    else:
        _, _, size, added, _ = _XID_ITEM.unpack_from(data)
        start = _XID_ITEM.size
    end = start + size - TIMES
    return added, start, end, end + (_XID.size if data[end] == RESERVE_XID else 1)


class Located(Protocol):
    """Rows of messages: those of a queue, or those that a stream keeps."""

    def runs(self, seqs: Sequence[int]) -> list[tuple[Page, int, int]] | None:
        """See Rows.runs."""

    def locate(self, seq: int) -> tuple[Page, int]:
        """See Rows.locate."""


class Extent(NamedTuple):
    """Neighbouring bodies in a file; with their bytes, if they are not yet written or were in the cache."""

    file: File | None
    offset: int
    starts: list[int]  # counted from the offset
    sizes: list[int]
    crcs: list[int]
    data: bytes = b""


def find(
    contents: Located,
    seqs: Sequence[int],
    segments: Mapping[int, Segment],
    first_unwritten: int,
    copy: Callable[[int, int], bytes],
) -> list[Extent]:
    """The extents of bodies; `copy` makes copies of bodies from the first unwritten place on."""
    if len(seqs) == 1:
        page, at = contents.locate(seqs[0])
        place, size, crc = page.place[at], page.size[at], page.crc[at]
        if place < first_unwritten:
            return [Extent(segments[place >> PLACE_BITS].file, place & OFFSET, [0], [size], [crc])]
        return [Extent(None, 0, [0], [size], [crc], copy(place, size))]
    found = []
    runs = contents.runs(seqs) if len(seqs) >= MANY else None
    if runs is None:
        runs = [(page, at, at + 1) for page, at in map(contents.locate, seqs)]
    for page, start, end in runs:
        places = page.place[start:end].tolist()
        sizes = page.size[start:end].tolist()
        crcs = page.crc[start:end].tolist()
        first, last = places[0], places[-1]
        together = last < first_unwritten and first >> PLACE_BITS == last >> PLACE_BITS
        parts = [(places, sizes, crcs)]
        if not (together and last - first <= _READ_AHEAD and (end - start == 1 or places == sorted(places))):
            parts = [([place], [size], [crc]) for place, size, crc in zip(places, sizes, crcs, strict=True)]
        for places, sizes, crcs in parts:
            first = places[0]
            if first < first_unwritten:
                file = segments[first >> PLACE_BITS].file
                starts = [place - first for place in places]
                found.append(Extent(file, first & OFFSET, starts, sizes, crcs))
            else:
                found.append(Extent(None, 0, [0], sizes, crcs, copy(first, sizes[0])))
    return found


def read(found: Sequence[Extent], queue: str, is_closed: Callable[[], bool]) -> list[Body]:
    """Read bodies and compare their checksums."""
    read: list[Body] = []
    for file, offset, starts, sizes, crcs, data in found:
        if file is not None and not data:
            data = _read(file, offset, starts[-1] + sizes[-1], is_closed)
        try:
            read += decode(data, starts, sizes, crcs)
        except Damaged:
            path = "memory" if file is None else file.path
            raise StoreCorrupt(
                f"a message of queue {queue!r} is damaged, at offset {offset} of {path!r} or little "
                "after: its checksum is wrong. Put that file back from a copy, or remove the message; "
                "`penstock doctor` finds all that are damaged"
            ) from None
    return read


def from_cache(found: Sequence[Extent]) -> list[Extent] | None:
    """Extents with their bytes, if those are few and in the page cache; else None."""
    fetched, total = [], 0
    for each in found:
        if not each.data and each.file is not None:
            size = each.starts[-1] + each.sizes[-1]
            total += size
            data = each.file.read_cached(each.offset, size) if total <= _FEW else None
            if data is None:
                return None
            each = each._replace(data=data)
        fetched.append(each)
    return fetched


def _read(file: File, offset: int, size: int, is_closed: Callable[[], bool]) -> bytes:
    try:
        return file.read(offset, size)
    except OSError as error:
        if is_closed():
            raise StoreClosed("the store was closed: open it again with penstock.open()") from None
        raise StoreCorrupt(f"{file.path!r} cannot be read at offset {offset}: {error}") from error
