"""The log of a slate store as Arrow columns."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.slate import entries
from penstock.slate.format import Metadata, decode_metadata, decode_payload, log_prefix, payload_key
from penstock.slate.primitives import key_u64
from penstock.slate.view import View
from penstock.spark.columns import column_of

if TYPE_CHECKING:
    from penstock.spark.slate.planning import Work

_MOST_BYTES = 12 << 20  # of payloads in a batch


def log_batches(view: View, work: "Work", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of a part of the log, in batches of the schema that Spark wants."""
    prefix = log_prefix(work.log)
    wanted, sizes = "payload" in schema.names, "size" in schema.names
    payloads = Payloads(view, work.first, work.end, wanted)
    for some in view.batches(prefix + key_u64(work.first), prefix + key_u64(work.end)):
        found = [decode_metadata(value) for _, value in some]
        if not (wanted or sizes):
            yield _batch(found, [], [], schema)
        else:
            yield from _with_payloads(found, payloads, wanted, schema)


def _with_payloads(
    found: list[Metadata], payloads: "Payloads", wanted: bool, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    there: list[Metadata] = []
    contents: list[bytes] = []
    sizes: list[int] = []
    total = 0
    for each in found:
        content, size = b"", None if wanted else entries.size_of(each)
        if size is None:  # only its payload says
            payload = payloads.next(each.id)
            if payload is None:
                continue  # it was removed, and this was about to be
            content, size = payload
        there.append(each)
        contents.append(content)
        sizes.append(size)
        total += len(content)
        if total > _MOST_BYTES:
            yield _batch(there, contents, sizes, schema)
            there, contents, sizes, total = [], [], [], 0
    if there:
        yield _batch(there, contents, sizes, schema)


class Payloads:
    """Payloads of a range, asked for in the order of their numbers."""

    def __init__(self, view: View, first: int, end: int, wanted: bool) -> None:
        self._view = view
        self._wanted = wanted
        self._rows = (row for some in view.batches(payload_key(first), payload_key(end)) for row in some)
        self._at, self._value = -1, b""

    def next(self, seq: int) -> tuple[bytes, int] | None:
        """A payload, if it is wanted, and its size; None if there is none."""
        while self._at < seq:
            row = next(self._rows, None)
            if row is None:
                return None
            self._at, self._value = int.from_bytes(row[0][-8:]), row[1]
        if self._at != seq:
            return None
        value = self._value
        if value[0] == 1 and not self._wanted:
            return b"", len(value) - 3
        content = decode_payload(value)
        if isinstance(content, str):
            try:
                content = self._view.get_object(content.removeprefix("objects/"))
            except FileNotFoundError:
                return None
        return content if self._wanted else b"", len(content)


def _batch(found: list[Metadata], payloads: list[bytes], sizes: list[int], schema: pa.Schema) -> pa.RecordBatch:
    columns = [column_of(_values(field.name, found, payloads, sizes), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(name: str, found: list[Metadata], payloads: list[bytes], sizes: list[int]) -> list[Any]:
    match name:
        case "sequence":
            return [each.id for each in found]
        case "id":
            return [str(each.id) for each in found]
        case "queue":
            return [each.headers.get(entries.QUEUE_HEADER) for each in found]
        case "payload":
            return payloads
        case "size":
            return sizes
        case "headers":
            return [entries.headers_of(each) for each in found]
        case "priority":
            return [entries.priority_of(each) for each in found]
        case "retention":
            return [_retention(each) for each in found]
        case "expires_at":
            return [entries.expires_at_of(each) or None for each in found]
    return [getattr(each, name) for each in found]


def _retention(metadata: Metadata) -> float | None:
    expires_at = entries.expires_at_of(metadata)
    return (expires_at - metadata.received_at) / 1000 if expires_at else expires_at
