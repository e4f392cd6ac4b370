"""What a database must have: files that were synced, what its manifest needs.

In a folder this tells damage from an end of the log that was never synced.

    .penstock/synced   JSON: "manifest", "compactions": the newest that were synced, as numbers; "checksums": of
                       these two files; "log": the last file of the log at that time; "checksum": of all of this
    db/wal/synced#N    an empty file whose name says what of the log is synced: N is 70 digits, 20 for the last
                       file that is in tables, 20 for the last one that is synced, 20 for the bytes of the files
                       after the first of these, up to the second, 10 for the checksum of these bytes

A commit gives the empty file its new name after the files of the commit are synced, and before it syncs the folder
that holds all of these names: so the record costs no sync of its own, and no acknowledged file is without it.
SlateDB and versions before this one take a name that ends with # and digits for a file that was being written.

Checksums are CRC-32. Changing it: `synced` of a version before has the two numbers alone, and says nothing of the
log; other keys than these are refused.
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
name_of: Callable[..., str] = "synced#{:020}{:020}{:020}{:010}".format  # the file name that records an extent
_MARKED = re.compile(r"synced#([0-9]{20})([0-9]{20})([0-9]{20})([0-9]{10})")


class Extent(NamedTuple):
    """A part of the log: the files after one, up to and with another."""

    after: int
    last: int
    length: int = 0
    checksum: int = 0

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What a file name records; None: it is another file's name."""
        matched = _MARKED.fullmatch(name)
        return None if matched is None else cls(*map(int, matched.groups()))

    def and_next(self, descriptor: int) -> "Extent":
        """The record with the next file."""
        length, checksum = summed(descriptor, self.checksum)
        return Extent(self.after, self.last + 1, self.length + length, checksum)

    def up_to(self, last: int, wal: str) -> "Extent":
        """The record with all files up to one; OSError."""
        extent = self
        while extent.last < last:
            with open(log_file(wal, extent.last + 1), "rb") as file:
                extent = extent.and_next(file.fileno())
        return extent


class Record(NamedTuple):
    """What `.penstock/synced` says; of a version before without what is None here."""

    manifest: int
    compactions: int
    checksums: list[int] | None = None
    log: int | None = None

    def number(self, kind: str) -> int:
        """The newest manifest or compactions."""
        return self.manifest if kind == "manifest" else self.compactions

    def to_text(self) -> str:
        """As it is written."""
        content = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps(content if self.log is None else {**content, "checksum": _checksum(content)})

    @classmethod
    def from_text(cls, text: bytes) -> Self:
        """As it was written; ValueError."""
        content = json.loads(text)
        try:
            checksum = content.pop("checksum", None)
            record = cls(**content)
            sums = [] if record.log is None and checksum is None else [*(record.checksums or ()), checksum]
            numbers = [record.manifest, record.compactions, record.log or 0, *sums]
        except (AttributeError, TypeError) as error:
            raise ValueError(str(error)) from error
        if len(sums) not in (0, 3) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("not what a store writes")
        if checksum is not None and checksum != _checksum(content):
            raise ValueError("its checksum is another one")
        return record


def _checksum(content: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def summed(descriptor: int, checksum: int = 0) -> tuple[int, int]:
    """The length and the checksum of a file, perhaps after others; OSError."""
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
    """The first of what is lost."""
    return "; ".join(lost[:_SHOWN]) + ("; and more" if len(lost) > _SHOWN else "")


def number_of(name: str) -> int | None:
    """The number that a file or an object has as its name."""
    matched = _NUMBERED.fullmatch(name.rpartition("/")[2])
    return None if matched is None else int(matched[1])


def names_in(folder: str) -> list[str]:
    """The names in a folder, none if it is not there; OSError."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def numbered(folder: str) -> Iterator[tuple[int, str]]:
    """The files of a folder that have a number as their name; OSError."""
    for name in names_in(folder):
        if matched := _NUMBERED.fullmatch(name):
            yield int(matched[1]), os.path.join(folder, name)


class Needed(NamedTuple):
    """What a database cannot do without."""

    after: int = 0  # the last file of the log that is in tables
    tables: dict[str, int] = {}  # noqa: RUF012 - names in db/compacted, and how long each of them is at least

    def lost(self, sizes: dict[str, int]) -> list[str]:
        """In words: the tables that are missing or too short, of those that are there with their sizes."""
        missing = [f"db/compacted/{name} is missing" for name in self.tables if name not in sizes]
        cut_off = [
            f"db/compacted/{name} is cut off"
            for name, least in self.tables.items()
            if sizes.get(name, least) < least
        ]
        return missing + cut_off


def read_manifest(store: Any, path: str, number: int, what: str, seconds: float) -> Needed:
    """What a manifest says; StoreCorrupt, StoreUnreachable."""
    ffi = load()
    with told(ffi, what, seconds, opening=True):
        found = blocking(ffi.AdminBuilder(path, store).build().read_manifest(number), seconds)
    if found is None:
        raise StoreCorrupt(f"{what} has lost its manifest {number:020}: put it back from a backup")
    tables = {} if found.external_dbs else dict(_tables(found))  # those of a clone are in another database
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
