"""A database read without writing it, as it was at one moment, while its writer goes on.

A snapshot is taken once, and can be sent to other processes, which open it: of a folder it is links to all files,
of a bucket a checkpoint and the rows that were in no table yet (snapshot.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.stores.slate.binding import (
    AT_ONCE,
    LENGTH,
    READ_AHEAD,
    TAIL,
    Database,
    blocking,
    check_end,
    load,
    next_batch,
    rows_in,
    told,
)
from penstock.stores.slate.place import Place

_FETCHES = 4
_FOREVER = 10 * 365 * 86_400_000  # milliseconds in which a reader looks at the database again: it does not change
_MEMORY = 256 << 20


class Values(NamedTuple):
    """The values of many rows, as positions in the bytes that they came with: for columns."""

    data: bytes
    starts: list[int]
    ends: list[int]

    def each(self) -> list[bytes]:
        """The values, one by one."""
        return [self.data[start:end] for start, end in zip(self.starts, self.ends, strict=True)]


def joined(values: Sequence[bytes]) -> Values:
    """Values that were one by one."""
    ends = list(accumulate(map(len, values)))
    return Values(b"".join(values), [0, *ends[:-1]], ends)


@dataclass(frozen=True)
class Snapshot:
    """What is needed to see a database as it was. `rows` have the keys that no table had, or has lost by then."""

    url: str  # the folder or bucket
    held: str  # the folder with the links, or the name of the checkpoint
    rows: Mapping[bytes, bytes | None]
    tail: int  # the number of the last file of the database's own log

    def within(self, *ranges: tuple[bytes, bytes]) -> "Snapshot":
        """The snapshot for a reader of only these keys."""
        rows = {key: value for key, value in self.rows.items() if any(start <= key < end for start, end in ranges)}
        return replace(self, rows=rows)


class View(Database):
    """Reads a database; all that a writer has for reading is here as well."""

    def __init__(
        self, store: Any, path: str, mode: Any, snapshot: Snapshot, objects: Place, what: str, timeout: float
    ) -> None:
        self._ffi = ffi = load()
        self._store, self._path, self._what, self.timeout = store, path, what, timeout
        self.what = what
        self._latest = sorted(snapshot.rows.items())
        self._known = snapshot.rows
        self.get_object = objects.get_object
        builder = ffi.DbReaderBuilder(path, store)
        builder.with_reader_mode(mode)
        builder.with_options(
            ffi.ReaderOptions(
                manifest_poll_interval_ms=_FOREVER,
                checkpoint_lifetime_ms=3 * _FOREVER,
                max_memtable_bytes=_MEMORY,
                skip_wal_replay=False,
            )
        )
        with told(ffi, what, timeout, opening=True):
            self._db = blocking(builder.build(), timeout)
        self._scanning = ffi.ScanOptions(
            durability_filter=ffi.DurabilityLevel.MEMORY,
            dirty=False,
            read_ahead_bytes=READ_AHEAD,
            cache_blocks=False,
            max_fetch_tasks=_FETCHES,
        )

    def get(self, key: bytes) -> bytes | None:
        return self._known[key] if key in self._known else super().get(key)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        latest = [key for key, value in self._latest if value is not None and start <= key < end]
        return max([key for key in (super().last(start, end), *latest[-1:]) if key is not None], default=None)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for some in self.batches(start, end):
            yield from some

    def batches(self, start: bytes, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """The same, many at a time."""
        stored = map(rows_in, self._stored(start, end))
        latest = [row for row in self._latest if start <= row[0] < end]
        return _merged(stored, latest) if latest else stored

    def values(self, start: bytes, end: bytes) -> Iterator[Values]:
        """The values of the same rows, many at a time."""
        if any(start <= key < end for key, _ in self._latest):
            return (joined([value for _, value in some]) for some in self.batches(start, end))
        return map(_values, self._stored(start, end))

    def _stored(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The rows in tables, as the binding has them: many at a time, none of them understood."""
        iterator = self._iterator(start, end, self._scanning)
        while True:
            data = self._run(next_batch(self._ffi, iterator))
            (count,) = LENGTH.unpack_from(data)
            if count:
                yield data
            if count < AT_ONCE:
                return

    def close(self) -> None:
        self._run(self._db.shutdown())


def _merged(
    stored: Iterator[list[tuple[bytes, bytes]]], latest: Sequence[tuple[bytes, bytes | None]]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows of tables with those that came later, which take their place or are deletions."""
    at = 0
    for some in stored:
        last = some[-1][0]
        found: dict[bytes, bytes | None] = dict(some)
        while at < len(latest) and latest[at][0] <= last:
            found[latest[at][0]] = latest[at][1]
            at += 1
        yield sorted((key, value) for key, value in found.items() if value is not None)
    rest = [(key, value) for key, value in latest[at:] if value is not None]
    if rest:
        yield rest


def _values(data: bytes) -> Values:
    """Where the values of a batch are."""
    length = LENGTH.unpack_from
    starts, ends, at = [], [], 4
    for _ in range(length(data)[0]):
        start = at + 8 + length(data, at)[0]
        stop = start + length(data, start - 4)[0]
        starts.append(start)
        ends.append(stop)
        at = stop + TAIL[data[stop + 16]]
    check_end(data, at)
    return Values(data, starts, ends)
