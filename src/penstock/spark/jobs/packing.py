"""pack: the journals of many queues packed at once, by tasks of Spark."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast

from penstock.contract import names
from penstock.contract.operations import Lookup, Queues
from penstock.contract.urls import is_slate
from penstock.errors import DiskFull, PenstockError
from penstock.sharing.backend import SharedBackend, open_shared
from penstock.spark.jobs import slates, tasks
from penstock.spark.jobs.runs import run_id
from penstock.spark.jobs.stores import folder_to_pack
from penstock.spark.jobs.summary import Summary
from penstock.spark.jobs.surveying import survey_queues
from penstock.stores.journal.packing import Order, Packed, Result, Round, build_order
from penstock.stores.journal.store import JournalBackend
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ("queue", "before", "after", "freed")
_MESSAGES = 2_000_000  # in one round: their index goes to tasks, and where they are comes back
_BYTES = 4 << 30  # of journals in one round: while it lasts, they may take their space twice


def pack(
    spark: "SparkSession",
    store: str | os.PathLike[str],
    queues: Sequence[str] = (),
    id: str | None = None,  # noqa: A002 - the word of all jobs
    dry_run: bool = False,
) -> Summary:
    """Pack the journals of queues, by default of all: write what is still there anew and free the rest.

        penstock.spark.jobs.pack(spark, "data")

    Tasks build the packed files, of many queues each; this process opens the store, and lets them take the place
    of the old ones. If another process has the store, that one packs, without tasks. What cannot be packed, as a
    queue with a damaged message, is raised after all others were.
    With `dry_run` it is said what that would free, about; the store may be open elsewhere then.
    """
    if is_slate(os.fspath(store)):
        return slates.pack(os.fspath(store), queues, id, dry_run)
    folder = folder_to_pack(store)
    wanted = sorted({names.checked(queue) for queue in queues})
    run = run_id(id, "pack", store=folder, queues=wanted)
    if dry_run:
        surveyed = survey_queues(spark, folder, wanted, SystemClock().now())
        packed = [Packed(each.queue, each.bytes, each.packed) for each in surveyed]
    else:
        with closing(open_shared(folder)) as backend:
            for queue in wanted:
                backend.run(Lookup(queue))
            packed = pack_queues(spark, backend, wanted or [info.name for info in backend.run(Queues())])
    rows = [(each.queue, each.before, each.after, max(0, each.before - each.after)) for each in sorted(packed)]
    return Summary("pack", run, _COLUMNS, rows, dry_run)


def pack_queues(spark: "SparkSession", store: SharedBackend, queues: Iterable[str]) -> list[Packed]:
    """Pack these queues of an open store; what cannot be packed is raised after all others were.

    Of a store that another process owns, that one packs, queue by queue: only it may take files away.
    """
    packed: list[Packed] = []
    problems: list[PenstockError] = []
    backend = cast("JournalBackend | None", store.owned)
    for together, alone in _rounds(backend, queues) if backend is not None else [([], list(queues))]:
        if backend is not None and together:
            packed += _pack_together(spark, backend, together, alone, problems)
        for queue in sorted(alone):
            try:
                packed.append(_pack_alone(store, queue))
            except PenstockError as error:
                problems.append(error)
    if problems:
        first, others = problems[0], f"{len(packed):,} were packed and {len(problems) - 1:,} were not"
        raise type(first)(f"{first}. Of the other queues {others}") from first
    return packed


def _pack_together(
    spark: "SparkSession",
    backend: JournalBackend,
    together: list[str],
    alone: list[str],
    problems: list[PenstockError],
) -> list[Packed]:
    """Pack a round of queues by tasks; those for which there is no space at once are left alone."""
    with Round(backend, together) as packing:
        orders = packing.begin()
        answers = tasks.run(spark, _build, orders, [order.size for order in orders], "packing")
        for journal, answer in sorted(answers, key=lambda each: each[0]):
            if isinstance(answer, DiskFull):  # there may be space for one where there is none for many
                alone.append(packing.queue(journal))
            elif isinstance(answer, PenstockError):
                problems.append(type(answer)(f"queue {packing.queue(journal)!r}: {answer}"))
        return packing.swap([answer for _, answer in answers if isinstance(answer, Result)])


def _rounds(backend: JournalBackend, queues: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The queues in parts: those that are packed at once, then those that are too large to be sent to a task."""
    together: list[str] = []
    alone: list[str] = []
    messages = size = 0
    for queue in queues:
        count, stored = sum(backend.find(queue).counts().values()), backend.stored(queue)
        if count > _MESSAGES or not backend.shrinks(queue):  # which is then left as it is
            alone.append(queue)
            continue
        if together and (messages + count > _MESSAGES or size + stored > _BYTES):
            yield together, []
            together, messages, size = [], 0, 0
        together.append(queue)
        messages, size = messages + count, size + stored
    yield together, alone


def _pack_alone(backend: SharedBackend, queue: str) -> Packed:
    before = backend.stored(queue)
    backend.pack(queue)
    return Packed(queue, before, backend.stored(queue))


def _build(orders: list[Order]) -> Iterator[tuple[str, Result | PenstockError]]:
    """What a task does."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    for order in orders:
        yield order.journal, build_order(order, SystemDisk(), attempt)
