"""The saved index of a queue, so that opening need not read the whole journal. It is only a hint.

    the magic, "i", u32 length and JSON (which files it stands for, how far), records as in records.py, u32 crc32

It is valid while the files that it names exist with at least their recorded size and, at that size, end with the
recorded bytes. Later groups are replayed on top of it. An invalid index is ignored.
"""

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from zlib_ng.zlib_ng import crc32

from penstock.rules.rows import Page, is_constant
from penstock.rules.state import State, StateSnapshot
from penstock.stores.journal.fields import LAST
from penstock.stores.journal.files import PLACE_BITS, ROTATED, Segment
from penstock.stores.journal.groups import MAGIC
from penstock.stores.journal.reading import IMPOSSIBLE, impossible, load_image
from penstock.stores.journal.records import (
    Image,
    KeptImage,
    PageImage,
    RestImage,
    decode_all,
    encode_rest,
    encode_rows,
    encode_settings_image,
    encode_streams,
    encode_taken_images,
)
from penstock.system.files import Disk, write_hint

_KIND = MAGIC + b"i"
_U32 = struct.Struct("<I")
_ENDING = 5  # bytes at the end of a group: its checksum and an opcode


def write_index(
    disk: Disk, path: str, snapshot: StateSnapshot, segments: Sequence[Segment], next_group: int, at: int
) -> None:
    """Save an index. Not synced: a torn one has the wrong checksum."""
    files = [
        {"number": each.number, "name": each.name, "size": each.size, "ending": _ending(each, each.size)}
        for each in segments
    ]
    header = json.dumps({"files": files, "at": at}).encode()
    parts = [_KIND, _U32.pack(len(header)), header, encode_settings_image(snapshot), encode_taken_images(snapshot)]
    parts += [encode_rows(first, page) for first, page in snapshot.pages]
    parts.append(encode_streams(snapshot.streams))
    for name, stream in snapshot.streams.streams.items():
        parts += [encode_rows(first, page, name) for first, page in stream.kept.pages()]
    parts.append(encode_rest(snapshot, next_group))
    data = b"".join(parts)
    write_hint(disk, path, data + _U32.pack(crc32(data)))


class SavedIndex:
    """A saved index whose checksum is right."""

    def __init__(self, header: dict[str, Any], records: memoryview, size: int) -> None:
        self.files: list[dict[str, Any]] = header["files"]
        self.at: int = header["at"]
        self.size = size
        self._records = records

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether it is an index of the beginning of this journal."""
        if not 0 < len(self.files) <= len(segments) or not any(known["size"] for known in self.files):
            return False
        for number, (known, segment) in enumerate(zip(self.files, segments, strict=False), 1):
            last = number == len(self.files)
            if known["name"] != segment.name or known["size"] > segment.size:
                return False
            if known["size"] < segment.size and not (last and number == len(segments)):
                return False
            if known["ending"] != _ending(segment, known["size"]):
                return False
        return True

    def number(self, segments: Sequence[Segment]) -> None:
        """Give segments the numbers that they have in the index, and later ones higher numbers."""
        numbers = [each["number"] for each in self.files]
        following = max(ROTATED, numbers[-1]) + 1
        numbers += range(following, following + len(segments) - len(numbers))
        for number, segment in zip(numbers, segments, strict=True):
            segment.number = number

    def next_seq(self) -> int:
        """The number of the next message when the index was saved; 0 if it cannot be read."""
        try:
            rest = [item for item in decode_all(self._records, len(self._records)) if isinstance(item, RestImage)]
        except IMPOSSIBLE:
            return 0
        return rest[-1].snapshot.next_seq if rest else 0

    def load(self, state: State) -> int:
        """Load an empty state; the number of the next group."""
        next_group = 1
        known = {each["number"]: each["size"] for each in self.files}
        try:
            for item in decode_all(self._records, len(self._records)):
                if isinstance(item, PageImage | KeptImage):
                    _check_places(item.page, known)
                if isinstance(item, Image):
                    next_group = load_image(state, item) or next_group
            state.streams.check()
        except IMPOSSIBLE as error:
            raise impossible("a saved index", error) from error
        return next_group


def read_index(disk: Disk, path: str) -> SavedIndex | None:
    """The saved index, if it can be read and is whole."""
    data = b""
    with suppress(OSError), disk.open(path) as file:
        data = file.read(0, file.size())
    if len(data) < len(_KIND) + 8 or not data.startswith(_KIND):
        return None
    if crc32(memoryview(data)[:-4]) != _U32.unpack_from(data, len(data) - 4)[0]:
        return None
    start = len(_KIND) + 4
    end = start + _U32.unpack_from(data, len(_KIND))[0]
    try:
        header = json.loads(data[start:end])
        numbers = [each[key] for each in header["files"] for key in ("number", "size")]
        named = all(each.keys() >= {"name", "ending"} for each in header["files"])
        if named and all(type(number) is int and 0 <= number < LAST for number in [*numbers, header["at"]]):
            return SavedIndex(header, memoryview(data)[end:-4], len(data))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # its checksum is right, and its content impossible
    return None


def _check_places(page: Page, known: dict[int, int]) -> None:
    """Refuse bodies outside of the files that the index names."""
    first, last = min(page.place) >> PLACE_BITS, max(page.place) >> PLACE_BITS
    files = {first} if first == last else {place >> PLACE_BITS for place in page.place}
    if not files <= known.keys():
        raise ValueError("a message in no file")
    sizes = page.size[:1] if is_constant(page.size) else page.size
    if max(sizes) > max(known.values()):
        raise ValueError("a message that is longer than any file")


def _ending(segment: Segment, size: int) -> str:
    return segment.file.read(max(0, size - _ENDING), min(size, _ENDING)).hex()
