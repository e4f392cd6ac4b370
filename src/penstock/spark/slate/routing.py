"""Which queues want which entries of the log, found out by tasks: with what routes in a process, of one moment.

A row is an entry and a queue that wants it. The rows of a batch, in the order of the log, are what the owner of
the store is given (slate/routing.py). Tasks match what they scan, so that nothing but matches goes through Spark.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock import filters
from penstock.filters.dispatch import Dispatcher
from penstock.spark.slate.log import Payloads
from penstock.stores.slate import entries, recovery
from penstock.stores.slate.format import decode_metadata, key_u64, log_prefix
from penstock.stores.slate.log import Published
from penstock.stores.slate.routing import COLUMNS, Matches, Wanted, subject_of
from penstock.stores.slate.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.slate.planning import Work

MATCHED = StructType([StructField("queue", StringType()), *(StructField(name, LongType()) for name in COLUMNS)])
_ARROW = pa.schema([("queue", pa.string()), *((name, pa.int64()) for name in COLUMNS)])


def filters_in(view: View) -> tuple[tuple[str, str], ...]:
    """The queues that have filters, with these; who has one that is not understood gets nothing."""
    found = [(queue, each.filter) for queue, each in sorted(recovery.settings_of(view).items()) if each.filter]
    return tuple((queue, text) for queue, text in found if filters.reason_against(text) is None)


@lru_cache(maxsize=4)
def _dispatcher(wanted: tuple[tuple[str, str], ...]) -> Dispatcher[str]:
    """A process of Spark has many tasks; filters are understood once."""
    return Dispatcher([(filters.parse(text), queue) for queue, text in wanted])


def match(view: View, work: "Work") -> Iterator[pa.RecordBatch]:
    """The matches in a part of the log; rows without a queue say from where to where entries were looked at."""
    prefix, find = log_prefix(work.log), _dispatcher(work.filters).matching
    payloads = Payloads(view, work.first, work.end, wanted=False)
    for some in view.batches(prefix + key_u64(work.first), prefix + key_u64(work.end)):
        rows: list[tuple[str | None, int, int, int, int, int, int]] = []
        looked_at: list[int] = []
        for _, value in some:
            metadata = decode_metadata(value)
            if not entries.is_published(metadata):
                continue
            size = entries.size_of(metadata)
            if size is None:
                size = (payloads.next(metadata.id) or (b"", 0))[1]
            looked_at.append(metadata.id)
            queues = find(subject_of(Published(metadata, size)))
            if queues:
                expires_at = entries.expires_at_of(metadata)
                told = (
                    metadata.id,
                    entries.priority_of(metadata),
                    metadata.visible_at,
                    metadata.received_at,
                    -1 if expires_at is None else expires_at,
                    size,
                )
                rows += [(queue, *told) for queue in queues]
        if looked_at:
            rows += [(None, each, 0, 0, 0, 0, 0) for each in (looked_at[0], looked_at[-1])]
            columns = [
                pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), _ARROW.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def collected(batch: "DataFrame") -> Matches | None:
    """What queues want of a batch of the log; None if there was nothing in it."""
    found = batch.toArrow()
    if not len(found):
        return None
    names = found["queue"].combine_chunks().dictionary_encode()
    queue = names.indices.fill_null(-1).to_numpy()
    columns = [found[name].to_numpy() for name in COLUMNS]
    sequence = columns[0]
    start, end = int(sequence.min()), int(sequence.max()) + 1
    order = np.lexsort((sequence, queue))
    order = order[np.searchsorted(queue[order], 0) :]
    rows: list[Wanted] = list(zip(*(column[order].tolist() for column in columns), strict=True))
    known = names.dictionary.to_pylist()
    cuts = np.searchsorted(queue[order], np.arange(len(known) + 1)).tolist()
    return Matches(start, end, {name: rows[cuts[at] : cuts[at + 1]] for at, name in enumerate(known)})
