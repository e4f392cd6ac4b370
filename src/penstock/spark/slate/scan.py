"""What tasks do with a slate store: bodies for rows, or the log, from ranges of keys to Arrow columns."""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.spark.columns import column_of
from penstock.spark.rows import shown
from penstock.spark.slate.log import log_batches
from penstock.spark.slate.planning import Work
from penstock.spark.slate.routing import match
from penstock.spark.tables import BODY
from penstock.stores.slate import entries, snapshot
from penstock.stores.slate.format import (
    decode_metadata,
    decode_payload,
    key_u64,
    log_prefix,
    object_of,
    payload_key,
)
from penstock.stores.slate.view import View

_MOST_ROWS, _MOST_BYTES = 10_000, 12 << 20  # of a batch with bodies
_MOST_INDEX_ROWS = 50_000  # of one without
_NEAR = 128  # messages that a scan rather skips than begins again


def read(work: Work, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of the schema that Spark wants."""
    if work.rows is None and work.moment is not None:
        with closing(snapshot.opened(work.moment)) as view:
            yield from log_batches(view, work, schema) if work.filters is None else match(view, work)
        return
    with pa.ipc.open_stream(work.rows) as stream:
        rows = stream.read_next_batch()
    if not work.queues:
        yield rows
        return
    queues = pa.array(work.queues, pa.string())
    if work.moment is None:
        for start in range(0, len(rows), _MOST_INDEX_ROWS):
            part = rows.slice(start, _MOST_INDEX_ROWS)
            yield _batch({}, part, queues, schema)
        return
    with closing(snapshot.opened(work.moment)) as view:
        bodies = Bodies(view, work.log, "payload" in schema.names)
        for start, end in _cuts(rows):
            part = rows.slice(start, end - start)
            yield _batch(bodies.columns(part["seq"].to_pylist(), schema), part, queues, schema)


def _batch(
    found: dict[str, pa.Array], rows: pa.RecordBatch, queues: pa.Array, schema: pa.Schema
) -> pa.RecordBatch:
    columns = [found[name] if name in found else shown(name, rows, queues) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cuts(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """From where to where each batch goes."""
    ends = np.cumsum(rows["size"].to_numpy(), dtype=np.int64)
    start, before = 0, 0
    while start < len(rows):
        end = int(np.searchsorted(ends, before + _MOST_BYTES, side="right"))
        end = min(max(end, start + 1), start + _MOST_ROWS, len(rows))
        yield start, end
        start, before = end, int(ends[end - 1])


class Bodies:
    """Finds bodies, of messages in the order of their numbers."""

    def __init__(self, view: View, log: str, payloads: bool) -> None:
        self._view = view
        self._prefix = log_prefix(log)
        self._payloads = payloads

    def columns(self, seqs: list[int], schema: pa.Schema) -> dict[str, pa.Array]:
        """What bodies say of these messages, of which one may be there several times."""
        found: dict[int, tuple[Any, ...]] = {}
        for run in _runs(sorted(set(seqs))):
            self._find(run, found)
        missing = [seq for seq in seqs if seq not in found]
        if missing:
            raise PenstockError(
                f"message {missing[0]} has no payload or no entry in the log: the store has lost it"
            )
        bodies = [found[seq] for seq in seqs]
        values = dict(
            zip(("payload", "headers", "created_at", "received_at"), zip(*bodies, strict=True), strict=True)
        )
        return {
            field.name: column_of(list(values[field.name]), field.type) for field in schema if field.name in BODY
        }

    def _find(self, run: list[int], found: dict[int, tuple[Any, ...]]) -> None:
        view, prefix, first, end = self._view, self._prefix, run[0], run[-1] + 1
        wanted = set(run)
        payloads: dict[int, bytes] = {}
        if self._payloads:
            for some in view.batches(payload_key(first), payload_key(end)):
                for key, value in some:
                    seq = int.from_bytes(key[-8:])
                    if seq in wanted:
                        payloads[seq] = payload_of(view, seq, value)
        for some in view.batches(prefix + key_u64(first), prefix + key_u64(end)):
            for key, value in some:
                seq = int.from_bytes(key[-8:])
                if seq in wanted and (not self._payloads or seq in payloads):
                    metadata, payload = decode_metadata(value), payloads.get(seq, b"")
                    if seq in payloads:
                        checksum = metadata.headers.get(entries.CHECKSUM_HEADER)
                        entries.check_object(f"objects/{seq}", payload, checksum, view.what)
                    found[seq] = entries.body_of(metadata, payload)


def payload_of(view: View, seq: int, value: bytes) -> bytes:
    """A payload, wherever it is kept."""
    content = decode_payload(value)
    if isinstance(content, bytes):
        return content
    try:
        return view.get_object(object_of(content))
    except FileNotFoundError:
        raise PenstockError(
            f"message {seq} was settled after this DataFrame was planned, and its payload is gone: load() it again"
        ) from None


def _runs(seqs: list[int]) -> Iterator[list[int]]:
    """Numbers that lie near together."""
    start = 0
    for at, (before, after) in enumerate(pairwise(seqs), 1):
        if after - before > _NEAR:
            yield seqs[start:at]
            start = at
    yield seqs[start:]
