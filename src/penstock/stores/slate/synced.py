"""The record of synced files, and the files that a manifest needs: both tell damage from an unsynced log end.

    .penstock/synced   JSON: "manifest", "compactions": numbers of the newest synced ones; "checksums": of these
                       two files; "log": the last file of the log at that time; "checksum": of all of this
    db/wal/synced#N    an empty file whose name records the synced part of the log. N is 70 digits: 20 for the last
                       file whose rows are in tables, 20 for the last synced file, 20 for the total bytes of the
                       files after the first up to the second, 10 for the checksum of these bytes

A commit syncs its files, renames the empty file, and syncs the folder, which covers all of these names. So the
record costs no sync of its own, and covers every acknowledged file. SlateDB and earlier versions take a name that
ends with # and digits for an unfinished file.

Checksums are CRC-32. Changing it: `synced` of earlier versions has only the two numbers, and no record of the log;
unknown keys are refused.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

from penstock.errors import StoreCorrupt
from penstock.stores.slate.binding import blocking, load, told

KINDS = ("manifest", "compactions")
_SHOWN = 3
_CHUNK = 1 << 20
_NUMBERED = re.compile(r"([0-9]{20})\.(sst|manifest|compactions)")
name_of: Callable[..., str] = "synced#{:020}{:020}{:020}{:010}".format  # the name of the empty file
_MARKED = re.compile(r"synced#([0-9]{20})([0-9]{20})([0-9]{20})([0-9]{10})")


class Extent(NamedTuple):
    """A recorded part of the log: the files after `after`, up to and including `last`."""

    after: int
    last: int
    length: int = 0
    checksum: int = 0

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The extent that a file name records; None if it records none."""
        matched = _MARKED.fullmatch(name)
        return None if matched is None else cls(*map(int, matched.groups()))

    def and_next(self, descriptor: int) -> "Extent":
        """The extent with the next file."""
        length, checksum = summed(descriptor, self.checksum)
        return Extent(self.after, self.last + 1, self.length + length, checksum)

    def up_to(self, last: int, wal: str) -> "Extent":
        """The extent with all files up to `last`; OSError."""
        extent = self
        while extent.last < last:
            with open(log_file(wal, extent.last + 1), "rb") as file:
                extent = extent.and_next(file.fileno())
        return extent


class Record(NamedTuple):
    """The content of `.penstock/synced`; None: an earlier version wrote it."""

    manifest: int
    compactions: int
    checksums: list[int] | None = None
    log: int | None = None

    def number(self, kind: str) -> int:
        """The number of the newest manifest or compactions."""
        return self.manifest if kind == "manifest" else self.compactions

    def to_text(self) -> str:
        """The record as JSON."""
        content = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps(content if self.log is None else {**content, "checksum": _checksum(content)})

    @classmethod
    def from_text(cls, text: bytes) -> Self:
        """The record from JSON; ValueError."""
        content = json.loads(text)
        try:
            checksum = content.pop("checksum", None)
            record = cls(**content)
            sums = [] if record.log is None and checksum is None else [*(record.checksums or ()), checksum]
            numbers = [record.manifest, record.compactions, record.log or 0, *sums]
        except (AttributeError, TypeError) as error:
            raise ValueError(str(error)) from error
        if len(sums) not in (0, 3) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("unexpected values")
        if checksum is not None and checksum != _checksum(content):
            raise ValueError("wrong checksum")
        return record


def _checksum(content: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def summed(descriptor: int, checksum: int = 0) -> tuple[int, int]:
    """The length of a file, and its checksum, continued from `checksum`; OSError."""
    length, size = 0, os.fstat(descriptor).st_size
    while length < size and (data := os.pread(descriptor, min(size - length, _CHUNK), length)):
        length += len(data)
        checksum = zlib.crc32(data, checksum)
    return length, checksum


def checksum_of(path: str) -> int:
    """The checksum of a file; OSError."""
    with open(path, "rb") as file:
        return summed(file.fileno())[1]


def log_file(wal: str, number: int) -> str:
    """The path of a file of the log."""
    return os.path.join(wal, f"{number:020}.sst")


def in_words(lost: list[str]) -> str:
    """The first sentences on lost files."""
    return "; ".join(lost[:_SHOWN]) + ("; and more" if len(lost) > _SHOWN else "")


def number_of(name: str) -> int | None:
    """The number in the name of a file or object of SlateDB; None if it has none."""
    matched = _NUMBERED.fullmatch(name.rpartition("/")[2])
    return None if matched is None else int(matched[1])


def names_in(folder: str) -> list[str]:
    """The names in a folder, none if it does not exist; OSError."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def numbered(folder: str) -> Iterator[tuple[int, str]]:
    """The numbered files of a folder; OSError."""
    for name in names_in(folder):
        if matched := _NUMBERED.fullmatch(name):
            yield int(matched[1]), os.path.join(folder, name)


class Needed(NamedTuple):
    """The files that a manifest needs."""

    after: int = 0  # the last file of the log whose rows are in tables; later files are needed
    tables: dict[str, int] = {}  # noqa: RUF012 - names in db/compacted, and their least sizes

    def lost(self, sizes: dict[str, int]) -> list[str]:
        """Sentences on the tables that are missing or too short, by the sizes of the existing ones."""
        missing = [f"db/compacted/{name} is missing" for name in self.tables if name not in sizes]
        cut_off = [
            f"db/compacted/{name} is cut off"
            for name, least in self.tables.items()
            if sizes.get(name, least) < least
        ]
        return missing + cut_off


def read_manifest(store: Any, path: str, number: int, what: str, seconds: float) -> Needed:
    """The files that a manifest needs; StoreCorrupt, StoreUnreachable."""
    ffi = load()
    with told(ffi, what, seconds, opening=True):
        found = blocking(ffi.AdminBuilder(path, store).build().read_manifest(number), seconds)
    if found is None:
        raise StoreCorrupt(f"{what} has lost its manifest {number:020}: restore it from a backup")
    tables = {} if found.external_dbs else dict(_tables(found))  # a clone's tables are in another database
    return Needed(int(found.replay_after_wal_id), tables)


def _tables(manifest: Any) -> Iterator[tuple[str, int]]:
    for part in (manifest, *manifest.segments):
        for view in (*part.l0, *[each for run in part.compacted for each in run.sst_views]):
            info = view.sst.info
            ends = (
                info.index_offset + info.index_len,
                info.filter_offset + info.filter_len,
                info.stats_offset + info.stats_len,
            )
            yield f"{view.sst.id.value}.sst", max(ends)
