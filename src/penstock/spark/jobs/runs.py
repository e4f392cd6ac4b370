"""A run of a job: its id, its store and session, its Spark tasks, and its summary."""

import hashlib
import heapq
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

import penstock
from penstock.contract import names
from penstock.contract.kinds import check_exists, kind_of
from penstock.contract.store import Store
from penstock.errors import InvalidArgument, PenstockError, QueueNotFound
from penstock.sharing.backend import engine_of
from penstock.spark.options import located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Session = Union["SparkSession", Callable[[], "SparkSession"]]  # a session, or a function that starts one
Cell = str | int | float | None
Item = TypeVar("Item")
Answer = TypeVar("Answer")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # all readers of Parquet know it, unlike INT96
}
_TASK = 8 << 20  # bytes that are worth a task
_BESIDE = 32 << 10  # cost of an item besides its size, in bytes
_PER_CORE = 4  # tasks per core, so that a slow one does not leave the others idle for long


@dataclass(frozen=True)
class Summary:
    """The result of a run, or of a dry run: a table, and notes.

    Attributes:
        job: the name of the job
        id: the name of the run
        columns: the names of the table's columns
        rows: the table
        dry_run: whether nothing was to be changed
        repeated: whether the run had taken effect before, so that this one did nothing
        notes: sentences for people
    """

    job: str
    id: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    dry_run: bool = False
    repeated: bool = False
    notes: Sequence[str] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """The summary for --json."""
        return {
            "job": self.job,
            "id": self.id,
            "dry_run": self.dry_run,
            "repeated": self.repeated,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
        }


def run_id(given: str | None, job: str, **what: Any) -> str:
    """The id of a run: the given one, or a hash of the job, its input and its arguments."""
    if given is None:
        text = json.dumps([job, what], sort_keys=True, default=str)
        return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not _NAME.fullmatch(given):
        raise InvalidArgument(f"id {given!r}: give 1 to 100 letters, digits and any of _ . : -")
    return given


# Stores


def check_store(url: str) -> None:
    """PenstockError if there is no such store, before Spark is asked: its error would be long."""
    located(url)
    check_exists(url)
    kind_of(url).tables(url).check(url)


def check_queues(url: str, queues: Iterable[str]) -> None:
    """QueueNotFound if a store lacks one of these queues."""
    wanted = [names.checked(queue) for queue in queues]
    known = kind_of(url).tables(url).settings(url, penstock.open) if wanted else {}
    for queue in wanted:
        if queue not in known:
            close = get_close_matches(queue, known, 1)
            hint = f"; is it {close[0]!r}?" if close else ""
            raise QueueNotFound(f"there is no queue {queue!r} in {url!r}{hint}")


def check_folder(what: str, path: str | os.PathLike[str]) -> None:
    """InvalidArgument if a folder of this machine cannot be written to, or made."""
    folder = Path(path).absolute()
    there = next(each for each in (folder, *folder.parents) if each.exists() or each.is_symlink())
    if not there.is_dir():
        raise InvalidArgument(f"{what} {os.fspath(path)!r}: {str(there)!r} is a file: give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidArgument(f"{what} {os.fspath(path)!r}: {str(there)!r} may not be written to")


def place_of(url: str) -> str:
    """A store's place, equal for all spellings of its URL; part of a run's id."""
    located(url)
    return kind_of(url).place(url)


def already_loaded(url: str, run: str) -> list[list[Any]] | None:
    """The messages and bytes that a run has loaded into each queue; None if it has not taken effect."""
    return kind_of(url).tables(url).brought(url, run, penstock.open)


def started(spark: Session) -> "SparkSession":
    """The session; a job calls this after its checks, because Spark takes seconds to start."""
    return spark() if callable(spark) else spark


def own_session(spark: Session) -> "SparkSession":
    """A new session on the same Spark, so that a job's settings do not change the caller's."""
    own = started(spark).newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


def table(
    session: "SparkSession", url: str, name: str, schema: "str | StructType" = "", **options: str
) -> "DataFrame":
    """A table of a store, or the columns of it that `schema` names."""
    reader = session.read.format("penstock").options(store=kind_of(url).absolute(url), table=name, **options)
    return (reader.schema(schema) if schema else reader).load()


# Tasks


class SparkTasks:
    """Spark as the executor of a packer: spreads many small items over few tasks."""

    def __init__(self, spark: Session) -> None:
        self._spark = spark

    def open(self, url: str) -> tuple[Store, Any]:
        store = penstock.open(url)
        return store, engine_of(store)

    def run(
        self,
        work: Callable[[list[Item], int], Iterable[Answer]],
        items: Sequence[Item],
        sizes: Sequence[int],
        what: str,
    ) -> list[Answer]:
        if not items:
            return []
        context = started(self._spark).sparkContext
        tasks = spread(items, sizes, context.defaultParallelism)
        try:
            return list(context.parallelize(tasks, len(tasks)).flatMap(partial(_work, work)).collect())
        except Exception as error:  # Java's, PySpark's, or of the connection between them
            raise PenstockError(
                f"{what} failed in a task of Spark, which changed nothing: {_reason(str(error))}. Tasks need "
                "Penstock, and the store's folder under the same path"
            ) from error


def _work(work: Callable[[list[Item], int], Iterable[Answer]], items: list[Item]) -> Iterator[Answer]:
    from penstock.spark.processes import task

    yield from work(items, task()[1])


def spread(items: Sequence[Item], sizes: Sequence[int], cores: int) -> list[list[Item]]:
    """Items in lists of about equal weight, one for each task."""
    weights = [_BESIDE + size for size in sizes]
    count = max(1, min(len(items), _PER_CORE * cores, max(cores, sum(weights) // _TASK)))
    tasks: list[list[Item]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]
    for at in sorted(range(len(items)), key=weights.__getitem__, reverse=True):
        weight, number = lightest[0]
        tasks[number].append(items[at])
        heapq.heapreplace(lightest, (weight + weights[at], number))
    return tasks


def _reason(text: str) -> str:
    """The last line before the stack trace: the message."""
    said = text.split("\n\tat ")[0].split("\n\n")[0].strip().splitlines()
    return said[-1].strip() if said else "it does not say why"
