"""Message bodies of a slate store: a buffer of unwritten bodies, a cache of recent ones, and reads of the rest.

A body that was listed or claimed can be read even after its message is deleted. So pending readers are registered
until they have their bodies, and a deletion first reads the bodies that they still miss.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from penstock.engine.storage import Body
from penstock.errors import StoreCorrupt
from penstock.stores.slate import entries
from penstock.stores.slate.binding import Database
from penstock.stores.slate.format import (
    PAYLOADS,
    decode_metadata,
    decode_payload,
    key_u64,
    log_prefix,
    object_of,
)
from penstock.stores.slate.place import Place

_KEPT = 32 << 20  # bytes of written bodies that are cached
_OVERHEAD = 500  # bytes of memory that a body takes beside its payload
_NEAR = 8  # a scan reads across gaps of up to so many ids
_MANY = 3  # so many rows are read by a scan, fewer one by one: a get is much cheaper than to begin a scan


class Wanted:
    """The bodies that one reader asks for, and those found so far."""

    __slots__ = ("__weakref__", "found", "seqs")

    def __init__(self, seqs: Sequence[int], found: dict[int, Body]) -> None:
        self.seqs = seqs
        self.found = found


class Bodies:
    """All bodies of a store; for any thread."""

    def __init__(self, database: Database, objects: Place, log: str, what: str) -> None:
        self._database = database
        self._objects = objects
        self._log = log_prefix(log)
        self._what = what
        self._lock = threading.Lock()
        self._unwritten: dict[int, Body] = {}
        self._written: OrderedDict[int, Body] = OrderedDict()
        self._size = 0  # bytes of `_written`
        self._wanted: weakref.WeakSet[Wanted] = weakref.WeakSet()

    def add(self, seqs: Iterable[int], new: Iterable[Body]) -> None:
        """Buffer the bodies of new messages until they are written."""
        with self._lock:
            self._unwritten.update(zip(seqs, new, strict=True))

    def is_unwritten(self, seq: int) -> bool:
        return seq in self._unwritten

    def wrote(self, seqs: Iterable[int]) -> None:
        """Move bodies from the buffer to the cache: they are in the database now."""
        with self._lock:
            for seq in seqs:
                body = self._unwritten.pop(seq, None)
                if body is not None:
                    self._written[seq] = body
                    self._size += len(body[0]) + _OVERHEAD
            while self._size > _KEPT:
                _, (payload, *_) = self._written.popitem(last=False)
                self._size -= len(payload) + _OVERHEAD

    def find(self, seqs: Sequence[int]) -> Wanted:
        """Register a reader; bodies in memory are found at once, read() gets the others."""
        with self._lock:
            found = {}
            for seq in seqs:
                body = self._unwritten.get(seq) or self._written.get(seq)
                if body is not None:
                    found[seq] = body
            wanted = Wanted(seqs, found)
            if len(found) < len(seqs):
                self._wanted.add(wanted)
            return wanted

    def read(self, wanted: Wanted) -> list[Body]:
        """The bodies that a reader asked for; StoreCorrupt if one is missing."""
        missing = [seq for seq in wanted.seqs if seq not in wanted.found]
        if missing:
            try:
                read = self._read(missing)
            finally:
                with self._lock:
                    self._wanted.discard(wanted)
            for seq in missing:
                body = read.get(seq) or wanted.found.get(seq)  # forget() has read it, if it was deleted meanwhile
                if body is None:
                    raise StoreCorrupt(
                        f"message {seq} of {self._what} has no payload: the database has lost it, or another "
                        "program has removed it"
                    )
                wanted.found[seq] = body
        return [wanted.found[seq] for seq in wanted.seqs]

    def look(self, seqs: Sequence[int]) -> dict[int, Body]:
        """The bodies that still exist, by message."""
        wanted = self.find(seqs)
        missing = [seq for seq in seqs if seq not in wanted.found]
        read = self._read(missing) if missing else {}
        with self._lock:
            self._wanted.discard(wanted)
        return {**wanted.found, **read}

    def forget(self, seqs: Iterable[int]) -> None:
        """Before messages are deleted: read their bodies for registered readers, and clear buffer and cache."""
        going = set(seqs)
        with self._lock:
            for seq in going:
                self._unwritten.pop(seq, None)
                body = self._written.pop(seq, None)
                if body is not None:
                    self._size -= len(body[0]) + _OVERHEAD
            looking = list(self._wanted)
        for wanted in looking:
            if rescued := [seq for seq in wanted.seqs if seq in going and seq not in wanted.found]:
                wanted.found.update(self._read(rescued))

    def _read(self, seqs: Sequence[int]) -> dict[int, Body]:
        """The bodies that the database has."""
        wanted = sorted(set(seqs))
        payloads = dict(numbered_rows(self._database, PAYLOADS, wanted))
        found = numbered_rows(self._database, self._log, wanted)
        return {seq: self._body(payloads[seq], entry) for seq, entry in found if seq in payloads}

    def _body(self, payload: bytes, entry: bytes) -> Body:
        content, metadata = decode_payload(payload), decode_metadata(entry)
        if isinstance(content, str):
            name = content
            try:
                content = self._objects.get_object(object_of(name))
            except FileNotFoundError:
                raise StoreCorrupt(
                    f"{self._what} has lost the payload {name}: put that file back from a backup"
                ) from None
            entries.check_object(name, content, metadata.headers.get(entries.CHECKSUM_HEADER), self._what)
        return entries.body_of(metadata, content)


def runs_of(seqs: list[int], near: int = _NEAR) -> Iterator[list[int]]:
    """Split sorted numbers where the gap is larger than `near`."""
    start = 0
    for at, (before, after) in enumerate(pairwise(seqs), 1):
        if after - before > near:
            yield seqs[start:at]
            start = at
    if seqs:
        yield seqs[start:]


def numbered_rows(
    database: Database, prefix: bytes, seqs: list[int], near: int = _NEAR
) -> Iterator[tuple[int, bytes]]:
    """The rows whose keys are a prefix and one of these sorted numbers; numbers without a row are left out."""
    for run in runs_of(seqs, near):
        if len(run) < _MANY:
            for seq in run:
                if (value := database.get(prefix + key_u64(seq))) is not None:
                    yield seq, value
        else:
            wanted = set(run)
            for key, value in database.scan(prefix + key_u64(run[0]), prefix + key_u64(run[-1] + 1)):
                if (seq := int.from_bytes(key[-8:])) in wanted:
                    yield seq, value
