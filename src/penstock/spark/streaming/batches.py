"""From where the messages of a batch are to the parts that tasks read: from files where they are seen, else from
whoever has the store open.

Parts are ranges of ids, so that either way a part has the same messages.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import BatchPlan, boot
from penstock.contract.urls import is_slate
from penstock.errors import NotSupported, PenstockError
from penstock.spark import plans
from penstock.spark.columns import column_of
from penstock.spark.planning import ends_of_parts, sources_of
from penstock.spark.rows import rows_of
from penstock.spark.scan import read_plan
from penstock.spark.streaming.offsets import BatchName, receipt_ends

_PAGE = 1_000


@dataclass(frozen=True)
class BatchPart:
    """What one task reads of a batch."""

    batch: BatchName
    number: int
    path: str  # of the plan; empty if no file is to be seen
    after: str
    until: str
    machine: str  # on which the process is that has the store open


def parts_of(plan: BatchPlan, batch: BatchName, schema: pa.Schema) -> tuple[list[BatchPart], str | None]:
    """The parts of a batch, and the folder of its plan, if there is one."""
    if not plan.pages:
        return [], None
    wanted = list(dict.fromkeys(["seq", *sources_of([*schema.names, "payload"])]))
    numbers = sorted(number for number, _, _ in plan.files)
    rows = _in_order(rows_of(plan.pages, numbers, 0, 0, wanted), "seq")
    ends = ends_of_parts(rows, bodies=True)
    starts = [0, *ends[:-1]]
    slices = [rows.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
    seqs = [(int(part["seq"][0].as_py()) - 1, int(part["seq"][-1].as_py())) for part in slices]
    path, folder = _written(plan, batch, [_in_order(part, "file", "offset") for part in slices])
    here = boot()
    parts = [
        BatchPart(batch, number, path, str(first), str(last), here) for number, (first, last) in enumerate(seqs)
    ]
    return parts, folder


def _in_order(rows: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    columns = [rows[name].to_numpy() for name in names]
    order = np.lexsort(columns[::-1])
    return rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))


def _written(plan: BatchPlan, batch: BatchName, parts: Sequence[pa.RecordBatch]) -> tuple[str, str | None]:
    """Where the rows are for tasks that see the files."""
    if not plan.files:
        return "", None
    folder = os.path.dirname(plan.files[0][2])
    files = [(os.path.basename(path), name) for _, name, path in sorted(plan.files)]
    names = {"queues": [batch.queue], "files": files, "receipt": receipt_ends(batch)}
    try:
        return plans.write_to(folder, parts, json.dumps(names).encode()), folder
    except OSError:  # on another machine, or of another user: then the owner is asked for the messages
        return "", None


def read_part(part: BatchPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a part."""
    if part.path and os.path.exists(part.path):
        yield from read_plan(part.path, part.number, schema)
        return
    if is_slate(part.batch.store) and part.machine != boot():  # whoever opens it here would take it from its owner
        raise NotSupported(
            f"the process that has {part.batch.store!r} open is on another machine and cannot be asked from here: "
            "run `penstock serve` there, and give Spark its http://host:port"
        )
    with closing(penstock.open(part.batch.store)) as store:
        for page in _pages(Streams(store.run), part):
            arrays = [_column(page, field, part.batch) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pages(streams: Streams, part: BatchPart) -> Iterator[list[penstock.Message]]:
    batch, after = part.batch, part.after
    while int(after) < int(part.until):
        page = streams.messages(batch.queue, batch.stream, batch.batch, after, part.until, _PAGE)
        if not page:
            return
        yield page
        after = page[-1].id


def _column(page: Sequence[penstock.Message], field: pa.Field, batch: BatchName) -> pa.Array:
    if field.name == "receipt":
        before, end = receipt_ends(batch)
        return pa.array([f"{before}{message.id}{end}" for message in page], field.type)
    values: list[Any] = [getattr(message, field.name) for message in page]
    return column_of(values, field.type)


def drop(folder: str) -> None:
    """Let go of the files of a batch whose tasks have all ended."""
    from penstock.stores.journal.pins import drop_plan
    from penstock.system.files import SystemDisk

    with suppress(PenstockError):
        drop_plan(folder, SystemDisk())
