"""Packing many journals with Spark: tasks build packed files, and the store's owner swaps them in."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from penstock.contract import names
from penstock.contract.operations import Counts, Lookup, Queues
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.contract.tables import Expired, Packed, Tasks
from penstock.errors import DiskFull, PenstockError
from penstock.rules.ledger import Ledger
from penstock.rules.state import Witness
from penstock.stores.journal.files import journals
from penstock.stores.journal.kind import folder_of
from penstock.stores.journal.packing import Order, Result, Round, build_order, packed_size
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.journal.store import JournalBackend
from penstock.stores.owner_operations import Pack, Stored
from penstock.system.clock import SystemClock
from penstock.system.files import Disk, File, ReadingDisk, SystemDisk

_MESSAGES = 2_000_000  # in one round: tasks are sent their index, and send back their places
_BYTES = 4 << 30  # of journals in one round, which may take their space twice meanwhile


class Surveyed(NamedTuple):
    """Sizes of a queue's journal."""

    queue: str
    bytes: int
    packed: int  # bytes after packing, about
    expired: int = 0  # expired messages that are still in the files
    done: int = 0  # done messages past keep_done that are still in the files
    let_go: int = 0  # bytes of both


class JournalPacker:
    """Packs journals: the messages that still exist are written anew."""

    note = ""

    def pack(self, url: str, queues: Sequence[str], dry_run: bool, tasks: Tasks) -> list[Packed]:
        if dry_run:
            surveyed = survey_queues(tasks, folder_of(url), queues)
            return [Packed(each.queue, each.bytes, each.packed) for each in surveyed]
        store, engine = tasks.open(url)
        with closing(store):
            for queue in queues:
                store.run(Lookup(queue))
            return pack_queues(tasks, store, engine, queues or [info.name for info in store.run(Queues())])

    def expire(self, url: str, dry_run: bool, tasks: Tasks) -> tuple[list[Expired], int]:
        if dry_run:
            surveyed = survey_queues(tasks, folder_of(url), (), let_go=True)
            freed = {each.queue: max(0, each.bytes - each.packed) for each in surveyed}
        else:
            store, engine = tasks.open(url)
            with closing(store):
                store.run(Queues())  # ends retentions that are over
                surveyed = survey_queues(tasks, folder_of(url), (), let_go=True)
                due = [each.queue for each in surveyed if each.expired or each.done]
                packed = pack_queues(tasks, store, engine, due)
            freed = {each.queue: max(0, each.before - each.after) for each in packed}
        rows = [
            Expired(each.queue, each.expired, each.done, each.let_go, freed.get(each.queue, 0))
            for each in surveyed
            if each.expired or each.done
        ]
        return rows, len(surveyed)


def pack_queues(tasks: Tasks, store: Store, engine: Any, queues: Iterable[str]) -> list[Packed]:
    """Pack these queues of an open store; the first error is raised after all other queues are packed.

    If another process owns the store, that one packs, queue by queue: only the owner may remove files.
    """
    packed: list[Packed] = []
    problems: list[PenstockError] = []
    for together, alone in _rounds(engine, queues) if engine is not None else [([], list(queues))]:
        if together:
            packed += _pack_together(tasks, engine, together, alone, problems)
        for queue in sorted(alone):
            try:
                before = store.run(Stored(queue))
                store.run(Pack(queue))
                packed.append(Packed(queue, before, store.run(Stored(queue))))
            except PenstockError as error:
                problems.append(error)
    if problems:
        first, others = problems[0], f"{len(packed):,} were packed and {len(problems) - 1:,} were not"
        raise type(first)(f"{first}. Of the other queues {others}") from first
    return packed


def _pack_together(
    tasks: Tasks, engine: JournalBackend, together: list[str], alone: list[str], problems: list[PenstockError]
) -> list[Packed]:
    """Pack a round of queues by tasks; queues for which the disk is too full are appended to `alone`."""
    with Round(engine, together) as packing:
        orders = packing.begin()
        answers = tasks.run(build, orders, [order.size for order in orders], "packing")
        for journal, answer in sorted(answers, key=lambda each: each[0]):
            if isinstance(answer, DiskFull):  # one packed file may fit where many do not
                alone.append(packing.queue(journal))
            elif isinstance(answer, PenstockError):
                problems.append(type(answer)(f"queue {packing.queue(journal)!r}: {answer}"))
        return packing.swap([answer for _, answer in answers if isinstance(answer, Result)])


def _rounds(engine: JournalBackend, queues: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Rounds of queues that tasks pack together, and queues that the owner packs alone."""
    together: list[str] = []
    alone: list[str] = []
    messages = size = 0
    for queue in queues:
        count, stored = sum(engine.run(Counts(queue)).values()), engine.stored(queue)
        if count > _MESSAGES or not engine.shrinks(queue):  # the owner leaves those as they are
            alone.append(queue)
            continue
        if together and (messages + count > _MESSAGES or size + stored > _BYTES):
            yield together, []
            together, messages, size = [], 0, 0
        together.append(queue)
        messages, size = messages + count, size + stored
    yield together, alone


def build(orders: list[Order], attempt: int) -> Iterator[tuple[str, Result | PenstockError]]:
    """Build packed files, in a task."""
    for order in orders:
        yield order.journal, build_order(order, SystemDisk(), attempt)


def survey_queues(tasks: Tasks, folder: str, queues: Sequence[str], let_go: bool = False) -> list[Surveyed]:
    """Survey queues, by default all, with tasks and without the store's lock; sorted by name."""
    now = SystemClock().now()
    store = StoreSnapshot(folder, ReadingDisk(), now)
    chosen = [name for queue in queues for name in store.settings(queue)] or list(store.settings())
    sizes = _sizes(folder)
    weights = [sizes.get(names.file_name(queue), 0) for queue in chosen]
    found = tasks.run(partial(_survey, folder, now, let_go), chosen, weights, "looking at queues")
    for _, answer in sorted(found, key=lambda each: each[0]):
        if isinstance(answer, PenstockError):
            raise answer
    return sorted(answer for _, answer in found if isinstance(answer, Surveyed))


def _survey(
    folder: str, now: int, let_go: bool, queues: list[str], attempt: int
) -> Iterator[tuple[str, Surveyed | PenstockError]]:
    return survey(folder, queues, ReadingDisk(), now, let_go)


def _sizes(folder: str) -> dict[str, int]:
    """Bytes of each journal, by which work is spread over tasks."""
    sizes: dict[str, int] = {}
    with os.scandir(folder) as found:
        for each in found:
            for journal in journals([each.name]):
                try:
                    sizes[journal] = sizes.get(journal, 0) + each.stat().st_size
                except FileNotFoundError:  # packed away meanwhile
                    continue
    return sizes


def _witnessed(name: str, settings: Settings) -> Ledger:
    """A ledger that counts messages that expire, or pass keep_done."""
    ledger = Ledger(name, settings)
    ledger.state.witness = Witness()
    return ledger


def survey(
    folder: str, queues: Iterable[str], disk: Disk, now: int, let_go: bool = False
) -> Iterator[tuple[str, Surveyed | PenstockError]]:
    """Survey queues, without deleted ones: sizes, or the error of a queue that cannot be read.

    With `let_go` journals are read from their beginning, to count messages that expired or passed keep_done.
    """
    store = StoreSnapshot(folder, disk, now, _witnessed if let_go else None)
    store.settings()  # reads all entries once, instead of one by one
    for queue in queues:
        try:
            surveyed = _look(store, queue, disk)
        except PenstockError as error:
            yield queue, error
        else:
            if surveyed is not None:
                yield queue, surveyed


def _look(store: StoreSnapshot, queue: str, disk: Disk) -> Surveyed | None:
    sizes: dict[str, int] = {}

    def open_file(path: str) -> File:
        file = disk.open(path)
        sizes[path] = file.size()
        return file

    view = store.view(queue, open_file, lambda path: None)
    if view is None:
        return None
    contents = view.contents
    snapshot = contents.snapshot()
    size = sum(sizes[each.path] for each in view.files)
    found = Surveyed(queue, size, min(size, packed_size(snapshot, 0)))
    if (seen := contents.witness) is not None:
        return found._replace(expired=seen.expired, done=seen.done, let_go=seen.bytes)
    return found
