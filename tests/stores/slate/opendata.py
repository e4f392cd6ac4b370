"""OpenData-Queue's database, written and read by its document alone: nothing here knows Penstock's own code.

`Writer` makes what another program would: one record for all active messages of a queue, one for all that are
done, one for all that have failed, whatever their IDs. `read` knows of Penstock's rulings only that a queue's
records may continue under keys with a number, and that types from 07 on are not the document's.

    integers      little endian in values, big endian in keys; a SeqBlock's are big endian
    Array<T>      count u16, elements; Utf8: length u16, bytes
    queue ID      TerminatedBytes: 00 as 01 01, 01 as 01 02, FF as 01 03, then 00
"""

import asyncio
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.stores.slate.binding import _chosen_rows

LOG = b"opendata-queue/messages/metadata"
START = 1_700_000_000_000
_AVAILABLE = _IN_FLIGHT = struct.Struct("<QBqqH")
_SETTLED = struct.Struct("<QqH")
_METADATA = struct.Struct("<QqqqIB")


class Available(NamedTuple):
    id: int
    priority: int = 0
    visible_at: int = START
    deadline: int = 0
    attempts: int = 0


class InFlight(NamedTuple):
    id: int
    priority: int = 0
    claimed_at: int = START
    lease_until: int = START + 30_000
    attempts: int = 1


class Settled(NamedTuple):
    id: int
    at: int = START
    attempts: int = 1


class Entry(NamedTuple):
    """What the log says of a message."""

    id: int
    created_at: int
    received_at: int
    visible_at: int
    retention: int
    headers: Mapping[str, str]


def _utf8(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<H", len(data)) + data


def _array(elements: Iterable[bytes]) -> bytes:
    listed = list(elements)
    return struct.pack("<H", len(listed)) + b"".join(listed)


def _terminated(name: bytes) -> bytes:
    escapes = {0x00: b"\x01\x01", 0x01: b"\x01\x02", 0xFF: b"\x01\x03"}
    return b"".join(escapes.get(byte, bytes([byte])) for byte in name) + b"\x00"


class Writer:
    """Another program."""

    def __init__(self, instance: str = "") -> None:
        self.rows: dict[bytes, bytes] = {}
        self._log = LOG + (b"/" + instance.encode() if instance else b"")
        self._sequence = 0

    def message(
        self,
        id: int,  # noqa: A002 - the document's word
        payload: bytes,
        sequence: int | None = None,
        *,
        received_at: int = START,
        visible_at: int = START,
        retention: int = 0,
        **headers: str,
    ) -> None:
        """A producer adds a message: its payload, and its metadata in the log, there under its ID or a number."""
        self.rows[b"\x01\x01" + struct.pack(">Q", id)] = b"\x01" + _utf8(payload)
        key = b"\x01\x01" + _terminated(self._log) + struct.pack(">Q", id if sequence is None else sequence)
        texts = b"".join(_utf8(name) + _utf8(value) for name, value in headers.items())
        head = _METADATA.pack(id, received_at - 1, received_at, visible_at, retention, len(headers))
        self.rows[key] = head + texts

    def queue(
        self,
        name: bytes,
        filter: str | bytes = "",  # noqa: A002
        *,
        max_attempts: int = 3,
        keep_done: int = 0,
        available: Iterable[Available] = (),
        in_flight: Iterable[InFlight] = (),
        done: Iterable[Settled] = (),
        failed: Iterable[Settled] = (),
        config: bool = True,
    ) -> None:
        """A queue; a filter that is bytes is encoded in another way than Utf8."""
        key = _terminated(name)
        wanted = _utf8(filter) if isinstance(filter, str) else filter
        if config:
            self.rows[b"\x01\x06" + key] = wanted + struct.pack("<HI", max_attempts, keep_done)
        claimable = _array(_AVAILABLE.pack(*each) for each in available)
        claimed = _array(_IN_FLIGHT.pack(*each) for each in in_flight)
        self.rows[b"\x01\x02" + key] = claimable + claimed
        self.rows[b"\x01\x03" + key] = _array(_SETTLED.pack(*each) for each in done)
        self.rows[b"\x01\x04" + key] = _array(_SETTLED.pack(*each) for each in failed)

    def attempts(self, id: int, *consumers: str) -> None:  # noqa: A002
        """Who claimed a message."""
        self.rows[b"\x01\x05" + struct.pack(">Q", id)] = _array(map(_utf8, consumers))

    def seq_block(self, base: int, size: int) -> None:
        """The numbers that a writer may give."""
        self.rows[b"\x01\x02"] = struct.pack(">QQ", base, size)

    def write(self, folder: Path) -> None:
        """Write the database, and let go of it."""
        asyncio.run(self._write(folder))

    async def _write(self, folder: Path) -> None:
        ffi = _binding()
        os.makedirs(folder, exist_ok=True)
        database = await ffi.DbBuilder("db", _local(ffi, folder)).build()
        rows = list(self.rows.items())
        for start in range(0, len(rows), 10_000):
            await database.write(_chosen_rows(ffi).batch(rows[start : start + 10_000]))  # in a tenth of the time
        await database.flush()
        await database.shutdown()


@dataclass
class Queue:
    """A queue's records, whatever keys they are under."""

    available: list[Available] = field(default_factory=list)
    in_flight: list[InFlight] = field(default_factory=list)
    done: list[Settled] = field(default_factory=list)
    failed: list[Settled] = field(default_factory=list)
    config: tuple[bytes, int, int] | None = None  # filter as it is stored, max attempts, seconds that done is kept

    def ids(self) -> dict[str, list[int]]:
        """The messages of each list, ascending."""
        names = ("available", "in_flight", "done", "failed")
        return {name: sorted(each[0] for each in getattr(self, name)) for name in names if getattr(self, name)}


@dataclass
class Database:
    """All that the document has records for."""

    queues: dict[bytes, Queue] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    log: dict[int, Entry] = field(default_factory=dict)  # by sequence
    attempts: dict[int, list[str]] = field(default_factory=dict)
    seq_block: tuple[int, int] | None = None


def read(folder: Path, instance: str = "", buckets: bool = True) -> Database:
    """Everything there is; AssertionError if a record is not as the document has it, and with buckets Penstock."""
    found = Database()
    for key, value in asyncio.run(_rows(folder)):
        assert key[0] == 1
        _take(found, key, value, LOG + (b"/" + instance.encode() if instance else b""), buckets)
    for queue in found.queues.values():
        listed = [each for group in queue.ids().values() for each in group]
        assert len(listed) == len(set(listed)), "a message is in a queue twice"
    return found


def rows_of(folder: Path, queue: bytes) -> dict[bytes, bytes]:
    """The records of one queue, as they are."""
    return {key: value for key, value in asyncio.run(_rows(folder)) if key[2:] == _terminated(queue)}


def _take(found: Database, key: bytes, value: bytes, log: bytes, buckets: bool) -> None:
    kind, cursor = key[1], _Cursor(value)
    if key == b"\x01\x02":
        found.seq_block = struct.unpack(">QQ", value)
        return
    if kind == 1 and len(key) == 10:
        assert value[0] == 1
        cursor.at = 1
        found.payloads[struct.unpack(">Q", key[2:])[0]] = cursor.utf8()
    elif kind == 1:
        assert key[2:-8] == _terminated(log)
        found.log[struct.unpack(">Q", key[-8:])[0]] = cursor.entry()
    elif kind == 5:
        found.attempts[struct.unpack(">Q", key[2:])[0]] = [cursor.utf8().decode() for _ in range(cursor.count())]
    elif kind <= 6:
        queue, number = _queue(found, key[2:])
        lists: list[list[Any]] = []
        if kind == 2:
            queue.available += (first := list(map(Available._make, cursor.array(_AVAILABLE))))
            queue.in_flight += (second := list(map(InFlight._make, cursor.array(_IN_FLIGHT))))
            lists = [first, second]
        elif kind in (3, 4):
            settled = list(map(Settled._make, cursor.array(_SETTLED)))
            (queue.done if kind == 3 else queue.failed).extend(settled)
            lists = [settled]
        else:
            queue.config = (value[:-6], *struct.unpack("<HI", value[-6:]))
            cursor.at = len(value)
        if buckets:
            assert all(each[0] >> 10 == number for listed in lists for each in listed), "it is another bucket's"
    else:
        return
    assert cursor.at == len(value), "a record goes on after its fields"


def _queue(found: Database, rest: bytes) -> tuple[Queue, int]:
    """A queue by its terminated ID, and the number of the bucket that follows."""
    end = rest.index(b"\x00")
    raw, after = rest[:end], rest[end + 1 :]
    name = raw.replace(b"\x01\x03", b"\xff").replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01")
    assert len(after) in (0, 8)
    return found.queues.setdefault(name, Queue()), struct.unpack(">Q", after)[0] if after else 0


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "a record ends in the middle of a field"
        self.at += size
        return self.data[self.at - size : self.at]

    def count(self) -> int:
        return int(struct.unpack("<H", self.take(2))[0])

    def utf8(self) -> bytes:
        return self.take(self.count())

    def array(self, layout: struct.Struct) -> Iterator[tuple[Any, ...]]:
        return layout.iter_unpack(self.take(self.count() * layout.size))

    def entry(self) -> Entry:
        *fields, headers = _METADATA.unpack(self.take(_METADATA.size))
        pairs = [(self.utf8().decode(), self.utf8().decode()) for _ in range(headers)]
        return Entry._make([*fields, dict(pairs)])


async def _rows(folder: Path) -> list[tuple[bytes, bytes]]:
    ffi = _binding()
    reader = await ffi.DbReaderBuilder("db", _local(ffi, folder)).build()
    bounds = ffi.KeyRange(start=b"\x00", start_inclusive=True, end=b"\xff", end_inclusive=True)
    found: list[tuple[bytes, bytes]] = []
    iterator = await reader.scan(bounds)
    while rows := await iterator.next_batch(1_000):
        found += [(row.key, row.value) for row in rows]
    await reader.shutdown()
    return found


def _local(ffi: Any, folder: Path) -> Any:
    builder = ffi.ObjectStoreBuilder(ffi.ObjectStoreType.LOCAL)
    builder.with_config("local_path", str(folder))
    return builder.build()


def _binding() -> Any:
    from slatedb.uniffi._slatedb_uniffi import slatedb

    return slatedb
