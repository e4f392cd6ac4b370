"""Staging: a load's messages as commit groups, written beside the journals.

    .penstock/staged/LOAD/PART    commit groups, one after the other, of any queues
    .penstock/staged/LOAD/load    the manifest: to write it commits the load
    .penstock/loads/RUN           manifests of named loads that were committed

A staged group is as groups.py has it, without fields that only the journal can know: number, time and xid in its
head, the numbers of its messages in its records, and its checksum. `number_group` fills them in. The messages of a
group are of one queue, and all done or all not (done messages have no xids). Its records begin with the name of
the load and the part, so that the journal has the names of the loads that have arrived.
"""

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from penstock.contract.message import Entry, Plain
from penstock.engine.loads import Restored, began_at, restore
from penstock.errors import InvalidArgument, NotSupported
from penstock.rules.records import Put
from penstock.stores.journal import bodies, groups
from penstock.stores.journal.catalog import FOLDER
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.groups import joined, xid_before
from penstock.stores.journal.records import Recorded, encode_load, encode_put, encode_record, renumber
from penstock.system.clock import at_least_one
from penstock.system.files import Disk, File
from penstock.system.processes import is_gone, name_of

MANIFEST = "load"
GROUP = 8 << 20  # bytes of bodies in one group, about
_NAME = re.compile(r"[0-9]+-[0-9]+-[0-9]+\.[0-9a-f]{16}", re.ASCII)


class Piece(NamedTuple):
    """A staged group: where it is, and the numbers that the queue's rules check."""

    queue: str
    file: str
    offset: int
    length: int
    tail: int  # the offset of its tail in the group
    crc: int  # of the bytes between head and tail
    messages: int
    done: bool
    payloads: int  # bytes of all payloads
    longest: int  # bytes of a payload
    lowest: int  # priority
    highest: int  # priority


class Numbered(NamedTuple):
    """The parts of a staged group that are replaced when it joins a journal."""

    head: bytes
    tail: bytes
    records: list[Recorded]
    load: str  # name of the load and the part


def new_name(owner: int) -> str:
    """A new load's name. The load counts as abandoned when the process `owner` ends."""
    return f"{name_of(owner)}.{secrets.token_hex(8)}"


def check_dialect(dialect: Dialect) -> None:
    """NotSupported for a store that Kestrel 2.x is to read: xids are not known while rows are staged."""
    if dialect != "doc":
        raise NotSupported('loads are staged for dialect="doc": open the store without dialect= or ?dialect=')


def folder_of(store: str, load: str) -> str:
    """The folder of a staged load."""
    if not _NAME.fullmatch(load):
        raise InvalidArgument(f"{load!r} is not the name of a load")
    return os.path.join(store, FOLDER, "staged", load)


def is_abandoned(load: str) -> bool:
    """Whether nobody stages a load any more; for the process that has just opened the store."""
    return began_at(load) is not None or (bool(_NAME.fullmatch(load)) and is_gone(load.partition(".")[0]))


class Part:
    """A file of staged groups, which one task fills. Added groups are durable after close(); more may follow."""

    def __init__(self, disk: Disk, folder: str, load: str, name: str) -> None:
        self._disk = disk
        self._folder = folder
        self._load = encode_load(f"{load}/{name}")
        self._name = name
        self._file: File | None = None
        self._end = 0
        self.pieces: list[Piece] = []

    def add(
        self,
        queue: str,
        content: Sequence[bytes | memoryview],
        records: bytes,
        messages: int,
        *,
        done: bool = False,
        payloads: int = 0,
        longest: int = 0,
        lowest: int = 0,
        highest: int = 0,
    ) -> None:
        """Add a group: bodies, and records whose offsets count from the start of the group."""
        if self._file is None:
            path = os.path.join(self._folder, self._name)
            self._file = self._disk.open(path, exclusive=not self.pieces)
        size, crc = groups.HEAD_SIZE, 0
        for part in content:
            self._file.write(self._end + size, part)
            crc = crc32(part, crc)
            size += len(part)
        head, tail, length = groups.ends(size, self._load + records, 0, 0, 0)
        self._file.write(self._end, head)
        self._file.write(self._end + size, tail + groups.end(0))
        where = (queue, self._name, self._end, length, size, crc)
        self.pieces.append(Piece(*where, messages, done, payloads, longest, lowest, highest))
        self._end += length

    def add_entries(
        self,
        queue: str,
        entries: Sequence[Entry],
        retention: float,
        now: int,
        visible_at: Sequence[int | None] | None = None,
        expires_at: Sequence[int | None] | None = None,
        restored: Restored | None = None,
    ) -> None:
        """Add a group of messages; `retention` is the queue's. Given times win; 0 is never."""
        count = len(entries)
        if isinstance(entries, Plain):
            priority, visible = [0] * count, [now] * count
            expires = [now + at_least_one(retention) if retention else 0] * count
            lengths = list(map(len, entries.payloads))
        else:
            priority = [entry.priority for entry in entries]
            visible = [now + at_least_one(entry.delay) if entry.delay else now for entry in entries]
            kept = [retention if entry.retention is None else entry.retention for entry in entries]
            expires = [now + at_least_one(seconds) if seconds else 0 for seconds in kept]
            lengths = [len(entry.payload) for entry in entries]
        visible, expires = _given(visible, visible_at), _given(expires, expires_at)
        if restored is not None:
            parts, sizes, crcs = bodies.encode_restored(entries, restored.received_at, expires, restored.done)
        else:
            # encode() takes the first expiry for all plain entries.
            alike = entries if expires_at is None else list(entries)
            parts, sizes, crcs = bodies.encode(alike, 1, now, expires, "doc")
        offsets = list(accumulate(sizes[:-1], initial=groups.HEAD_SIZE))
        records = encode_put(Put(0, 0, priority, visible, expires, {}), Bodies(offsets, sizes, crcs))
        if restored is not None:
            records += encode_record(restore(restored))
        self.add(
            queue,
            [b"".join(parts)],
            records,
            count,
            done=restored is not None and restored.done,
            payloads=sum(lengths),
            longest=max(lengths),
            lowest=min(priority),
            highest=max(priority),
        )

    def close(self) -> None:
        """Sync and close the file. Its name is durable once the folder is synced."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                file.sync()

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
        with suppress(FileNotFoundError):
            self._disk.unlink(os.path.join(self._folder, self._name))


def _given(usual: list[int], given: Sequence[int | None] | None) -> list[int]:
    if given is None:
        return usual
    return [each if time is None else time for each, time in zip(usual, given, strict=True)]


def number_group(piece: Piece, file: File, first: int, number: int, at: int) -> Numbered:
    """The head, tail and records of a staged group that gets a number, with messages from `first` on."""
    start = piece.offset + piece.tail + groups.TAIL.size
    records = bytearray(file.read(start, piece.length - piece.tail - groups.TAIL.size - groups.END.size))
    load, numbered = renumber(records, at, first)
    head, tail, _ = groups.ends(piece.tail, records, xid_before(first), number, at)
    crc = joined(crc32(head), piece.crc, piece.tail - groups.HEAD_SIZE)
    return Numbered(head, tail + groups.end(crc32(tail, crc)), numbered, load)


def bodies_of(piece: Piece, file: File) -> bytes:
    """The bytes between the head and the tail of a staged group."""
    return file.read(piece.offset + groups.HEAD_SIZE, piece.tail - groups.HEAD_SIZE)


def manifests(disk: Disk, store: str) -> Iterator[str]:
    """The manifests of committed loads that may not have arrived in all of their queues."""
    for load in staged_loads(disk, store):
        path = os.path.join(folder_of(store, load), MANIFEST)
        if disk.exists(path):
            yield path


def staged_loads(disk: Disk, store: str) -> Iterator[str]:
    """The names of all staged loads."""
    folder = os.path.join(store, FOLDER, "staged")
    for name in sorted(disk.listdir(folder)) if disk.exists(folder) else []:
        if _NAME.fullmatch(name):
            yield name
