"""Bodies of many messages as Arrow columns, from journal files that are mapped into memory.

A body is an item, one byte or an xid, and perhaps a control item with headers and created_at (bodies.py). NumPy
computes for all rows together where payloads begin and end; only control items are decoded one by one. The
checksum of every body is compared first.

One crc32 call checks a run of adjacent bodies: the crc32 of a and then b is that of a, moved by the length of b,
xor that of b. To move a crc by a number of bytes is to multiply it by a power of x modulo the polynomial, which is
linear. So there is a table per digit of that number, in base 256, with the result for each byte of a crc, and
NumPy moves the crcs of all bodies at once.
"""

import functools
import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from penstock.engine.arrow_columns import times
from penstock.errors import PenstockError, StoreCorrupt
from penstock.stores.journal import bodies
from penstock.stores.journal.groups import joined

_SPAN = 30  # bits: offsets of bodies that agree above them fit into 32 bits
_TIMES = 16
Column = Any  # of numpy


class _Bodies(NamedTuple):
    """Columns of some bodies."""

    payload: pa.Array | None
    received_at: Column
    created_at: Column
    headers: dict[int, dict[str, str]]  # of rows that have any


class Scan:
    """Reads bodies from the pinned files of a plan."""

    def __init__(self, folder: str, queues: Sequence[str], files: Sequence[tuple[str, str]]) -> None:
        self._folder = folder
        self._queues = queues
        self._files = files
        self._number = -1

    def columns(self, rows: pa.RecordBatch, wanted: frozenset[str]) -> dict[str, pa.Array]:
        """The wanted columns that are in bodies."""
        file, offset = rows["file"].to_numpy(), rows["offset"].to_numpy()
        near = (file.astype(np.int64) << (62 - _SPAN)) | (offset >> _SPAN)
        starts = [0, *(np.flatnonzero(np.diff(near)) + 1).tolist()]
        parts = []
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            parts.append(self._decode(int(file[start]), rows.slice(start, end - start), wanted))
        columns: dict[str, pa.Array] = {}
        if "payload" in wanted:
            payloads = [part.payload for part in parts]
            columns["payload"] = payloads[0] if len(parts) == 1 else pa.concat_arrays(payloads)
        for name in wanted & {"received_at", "created_at"}:
            columns[name] = times(np.concatenate([getattr(part, name) for part in parts]))
        if "headers" in wanted:
            columns["headers"] = _maps([(len(part.received_at), part.headers) for part in parts])
        return columns

    def _decode(self, number: int, rows: pa.RecordBatch, wanted: frozenset[str]) -> _Bodies:
        """Decode bodies of one file whose offsets fit into 32 bits."""
        self._open(number)
        data = self._data
        offset, size = rows["offset"].to_numpy(), rows["size"].to_numpy().astype(np.int64)
        end = offset + size
        self._check(rows, offset, end)
        head = np.where(data[offset] == bodies.ADD_XID, bodies.XID_ITEM_HEAD, bodies.ITEM_HEAD)
        start = offset + head
        stop = start + _integers(data, start - 20, "<i4") - _TIMES
        received_at = _integers(data, start - 16, "<i8")
        created_at = received_at
        headers: dict[int, dict[str, str]] = {}
        if "headers" in wanted or "created_at" in wanted:
            rest = stop + np.where(data[stop] == bodies.RESERVE_XID, bodies.XID_END, 1)
            with_meta = np.flatnonzero(rest < end).tolist()
            if with_meta:
                created_at = received_at.copy()
            for row in with_meta:
                headers[row], created_at[row] = bodies.decode_meta(self._map[rest[row] : end[row]])
        payload = _payloads(self._buffer, start, stop) if "payload" in wanted else None
        return _Bodies(payload, received_at, created_at, headers)

    def _open(self, number: int) -> None:
        if number == self._number:
            return
        path = os.path.join(self._folder, self._files[number][0])
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise PenstockError(
                f"{self._files[number][1]!r} cannot be read as it was when this DataFrame was planned ({error}): "
                "load() it again"
            ) from None
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        self._number = number
        self._view = memoryview(self._map)
        self._data = np.frombuffer(self._map, np.uint8)
        self._buffer = pa.py_buffer(self._map)

    def _check(self, rows: pa.RecordBatch, offset: Column, end: Column) -> None:
        """Compare the checksums of bodies; those of adjacent bodies as a whole."""
        crcs, view = rows["crc"].to_numpy(), self._view
        runs = np.append(0, np.flatnonzero(offset[1:] != end[:-1]) + 1)
        lasts = np.append(runs[1:], len(crcs)) - 1
        places = zip(offset[runs].tolist(), end[lasts].tolist(), strict=True)
        found = np.array([crc32(view[first:last]) for first, last in places], np.uint32)
        expected = crcs if len(runs) == len(crcs) else joined_crcs(crcs, end, runs)
        for run in np.flatnonzero(found != expected).tolist():
            self._name_damage(rows, int(runs[run]), int(lasts[run]) + 1, offset, end)

    def _name_damage(self, rows: pa.RecordBatch, start: int, stop: int, offset: Column, end: Column) -> None:
        """Raise StoreCorrupt for the first damaged body of a run."""
        for row in range(start, stop):
            if crc32(self._view[offset[row] : end[row]]) == rows["crc"][row].as_py():
                continue
            queue = self._queues[rows["queue"][row].as_py()]
            raise StoreCorrupt(
                f"message {rows['seq'][row]} of queue {queue!r} is damaged, at offset {offset[row]} of "
                f"{self._files[self._number][1]!r}: its checksum is wrong. Put that file back from a copy, or "
                "remove the message; `penstock doctor` finds all that are damaged"
            )


def _integers(data: Column, at: Column, kind: str) -> Column:
    """The integers at these offsets, which need not be aligned."""
    size = np.dtype(kind).itemsize
    anywhere = np.ndarray((max(0, len(data) - size + 1),), kind, data, strides=(1,))
    return anywhere[at].astype(np.int64)


def _payloads(buffer: pa.Buffer, start: Column, stop: Column) -> pa.Array:
    """The bytes from each start to its stop: every other value of an array that also has the bytes between."""
    base = int(start[0])
    offsets = np.empty(2 * len(start), np.int32)
    offsets[0::2] = start - base
    offsets[1::2] = stop - base
    every = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer.slice(base, int(stop[-1]) - base)]
    )
    return every.take(pa.array(np.arange(0, len(offsets), 2)))


def _maps(parts: Sequence[tuple[int, dict[int, dict[str, str]]]]) -> pa.Array:
    """The headers of all rows; most have none."""
    counts = np.zeros(sum(count for count, _ in parts) + 1, np.int32)
    names: list[str] = []
    values: list[str] = []
    first = 1
    for count, headers in parts:
        for row, each in headers.items():
            counts[first + row] = len(each)
            names += each
            values += each.values()
        first += count
    offsets = pa.array(np.cumsum(counts, dtype=np.int32))
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.string()))


# The crc32 of many pieces as that of the whole


def joined_crcs(crcs: Column, ends: Column, runs: Column) -> Column:
    """The crc32 of each run of adjacent pieces. `runs` has the index of the first piece of each run."""
    lasts = np.append(runs[1:], len(crcs)) - 1
    after = np.repeat(ends[lasts], lasts - runs + 1) - ends  # bytes of the run that follow each piece
    return np.bitwise_xor.reduceat(_moved(crcs, after), runs)


def _moved(crcs: Column, by: Column) -> Column:
    """Each crc moved by its number of bytes."""
    digit = 0
    while (left := by >> 8 * digit).any():
        table, row = _table(digit), (left & 255) << 10
        crcs = (
            table[row + (crcs & 255)]
            ^ table[row + (256 + (crcs >> 8 & 255))]
            ^ table[row + (512 + (crcs >> 16 & 255))]
            ^ table[row + (768 + (crcs >> 24))]
        )
        digit += 1
    return crcs


@functools.cache
def _table(digit: int) -> Column:
    """For each value of a digit: the moved value of each of the four bytes of a crc."""
    moved = np.empty((256, 32), np.uint32)  # crcs with a single bit
    moved[0] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    moved[1] = [joined(1 << bit, 0, 256**digit) for bit in range(32)]
    for value in range(2, 256):
        moved[value] = _apply(_bytes(moved[1][None])[0], moved[value - 1])
    return _bytes(moved).ravel()


def _bytes(bits: Column) -> Column:
    """From the moved values of bits to those of bytes, for many tables at once."""
    table = np.zeros((len(bits), 4, 256), np.uint32)
    for byte in range(4):
        for bit in range(8):
            size = 1 << bit
            table[:, byte, size : 2 * size] = table[:, byte, :size] ^ bits[:, 8 * byte + bit, None]
    return table


def _apply(table: Column, crcs: Column) -> Column:
    return table[0][crcs & 255] ^ table[1][crcs >> 8 & 255] ^ table[2][crcs >> 16 & 255] ^ table[3][crcs >> 24]
