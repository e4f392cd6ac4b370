"""Stores that any number of processes may open, as text and folder stores: each task opens one and lists a part.

Others go on meanwhile, so what is read is not of one moment: a message is listed as it is when its turn comes.
Queues of a text store are read at one moment each, unless something is to be put right in them first (text.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa

import penstock
from penstock.contract.message import STATES
from penstock.errors import QueueNotFound
from penstock.spark import text
from penstock.spark.columns import messages_as_batch
from penstock.spark.options import Options
from penstock.spark.tables import attempt_row, queue_row

_BATCH = 2_000


def plan(options: Options) -> list[list[str]]:
    """The queues that each task reads; of the table of queues there is only one task."""
    with penstock.open(options.store) as store:
        backend: Any = store.backend
        sizes, part = backend.sizes(options.queue), backend.part
    if options.table == "queues":
        return [[]]
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size and (room < size or not groups):
            groups.append([])
            room = max(part, size)
        if size:
            groups[-1].append(name)
            room -= size
    return groups


def read(options: Options, queues: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of the schema that Spark wants."""
    with penstock.open(options.store) as store:
        backend: Any = store.backend
        if options.table == "queues":
            infos = [info for info in store.queues() if options.queue in (None, info.name)]
            rows = [queue_row(info.name, info.settings) | info.counts for info in infos]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
        for name in queues:
            with suppress(QueueNotFound):  # it was deleted meanwhile
                if options.table == "attempts":
                    yield from _attempts(store.queue(name), schema)
                elif (snapshot := backend.snapshot(name)) is not None:
                    yield from text.batches(snapshot, name, options.states, schema)
                else:
                    yield from _messages(store.queue(name), options, schema)


def _messages(queue: penstock.Queue, options: Options, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    listed = queue.messages(options.states[0] if len(options.states) == 1 else None)
    while some := list(islice(listed, _BATCH)):
        if len(options.states) < len(STATES):
            some = [message for message in some if message.state in options.states]
        yield messages_as_batch(some, schema)


def _attempts(queue: penstock.Queue, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    listed = queue.messages()
    while some := list(islice(listed, _BATCH)):
        rows = [
            attempt_row(queue.name, id=message.id, **attempt._asdict())
            for message in some
            for attempt in queue.attempts(message.id)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
