"""A store read through its server: tasks list parts of queues page by page, and make Arrow columns of the pages.

The server goes on meanwhile, so that what is read is not of one moment. Parts end where the queues ended when the
read was planned, and in a part ids only grow: so no message is there twice, and none that was put later.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.message import STATES
from penstock.contract.operations import PAGE, AllAttempts, Messages, Parts, Queues, Show
from penstock.contract.settings import QueueInfo
from penstock.errors import QueueNotFound
from penstock.http.client.backend import RemoteBackend, open_remote
from penstock.http.client.calls import columns_of
from penstock.spark.columns import column_of
from penstock.spark.options import Options
from penstock.spark.tables import attempt_row, queue_row

Range = tuple[str, str, str]  # a queue, after which id to begin, and with which to end
_PART = 50_000  # messages that one task reads, about
_SMALL_PART = 5_000  # and at least, where there are tasks for all processors


def plan(options: Options) -> list[list[Range]]:
    """What each task reads, as of now; of the table of queues there is only one."""
    backend = open_remote(options.store, None, None)
    try:
        infos = backend.run(Queues()) if options.queue is None else [backend.run(Show(options.queue))]
        if options.table == "queues":
            return [[]]
        states = options.states if options.table == "messages" else STATES
        counted = [(info, sum(info.counts.get(state, 0) for state in states)) for info in infos]
        total = sum(count for _, count in counted)
        size = max(_SMALL_PART, min(_PART, total // (os.cpu_count() or 1)))
        return _grouped(_ranges(backend, counted, size), size)
    finally:
        backend.close()


def _ranges(
    backend: RemoteBackend, counted: Sequence[tuple[QueueInfo, int]], size: int
) -> Iterator[tuple[Range, int]]:
    """Parts of queues, each with about how many messages it has."""
    for info, count in counted:
        if not count:
            continue
        n, after = -(-count // size), ""
        with suppress(QueueNotFound):  # it was deleted meanwhile
            for until in backend.run(Parts(info.name, n)):
                yield (info.name, after, until), count // n
                after = until


def _grouped(ranges: Iterator[tuple[Range, int]], size: int) -> list[list[Range]]:
    """Small ones together, so that not every queue is a task of its own."""
    groups: list[list[Range]] = []
    room = 0
    for each, count in ranges:
        if room < count or not groups:
            groups.append([])
            room = size
        groups[-1].append(each)
        room -= count
    return groups


def read(options: Options, ranges: Sequence[Range], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of the schema that Spark wants."""
    backend = RemoteBackend(options.store)
    try:
        if options.table == "queues":
            yield _queues(backend, options.queue, schema)
        for each in ranges:
            with suppress(QueueNotFound):  # it was deleted meanwhile, and its messages with it
                pages = _messages if options.table == "messages" else _attempts
                yield from pages(backend, each, options, schema)
    finally:
        backend.close()


def _messages(
    backend: RemoteBackend, part: Range, options: Options, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    queue, after, until = part
    fields = list(dict.fromkeys(["id", "state", *schema.names]))
    some = len(options.states) < len(STATES)
    state = options.states[0] if len(options.states) == 1 else None
    while True:
        columns, payloads = backend.ask(columns_of(Messages(queue, PAGE, fields, state, after, until)))
        if not payloads:
            return
        ids = columns["id"]
        after = ids[-1] if isinstance(ids, list) else ids
        columns["queue"], columns["payload"] = queue, payloads
        arrays = [_array(columns.get(field.name), field.type, len(payloads)) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if some:  # also of one state, as a message may be listed while it changes
            states = _array(columns["state"], pa.string(), len(payloads))
            batch = batch.filter(pc.is_in(states, value_set=pa.array(options.states)))
        yield batch


def _array(column: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A column of a frame, which has a value for each message or one for all, as Spark wants it."""
    return column_of(column if isinstance(column, list) else [column] * count, kind)


def _attempts(
    backend: RemoteBackend, part: Range, options: Options, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    queue, after, until = part
    goes_on: str | None = after
    while goes_on is not None:
        page, goes_on = backend.run(AllAttempts(queue, goes_on, until))
        rows = [attempt_row(queue, id_, **attempt._asdict()) for id_, attempt in page]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _queues(backend: RemoteBackend, queue: str | None, schema: pa.Schema) -> pa.RecordBatch:
    infos = backend.run(Queues()) if queue is None else [backend.run(Show(queue))]
    rows = [queue_row(info.name, info.settings) | info.counts for info in infos]
    return pa.RecordBatch.from_pylist(rows, schema=schema)
