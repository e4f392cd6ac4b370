"""What there is to pack and to let go, found out by tasks of Spark without the store's lock."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.contract import names
from penstock.errors import PenstockError
from penstock.spark.jobs import tasks
from penstock.stores.journal.doctor import Surveyed, survey
from penstock.stores.journal.files import journals
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.system.files import ReadingDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def survey_queues(
    spark: "SparkSession", folder: str, queues: Sequence[str], now: int, let_go: bool = False
) -> list[Surveyed]:
    """Look at queues, by default at all, by name."""
    store = StoreSnapshot(folder, ReadingDisk(), now)
    chosen = [name for queue in queues for name in store.settings(queue)] or list(store.settings())
    sizes = _sizes(folder)
    work = partial(_survey, folder, now, let_go)
    weights = [sizes.get(names.file_name(queue), 0) for queue in chosen]
    found = tasks.run(spark, work, chosen, weights, "looking at queues")
    for _, answer in sorted(found, key=lambda each: each[0]):
        if isinstance(answer, PenstockError):
            raise answer
    return sorted(answer for _, answer in found if isinstance(answer, Surveyed))


def _survey(
    folder: str, now: int, let_go: bool, queues: list[str]
) -> Iterator[tuple[str, Surveyed | PenstockError]]:
    """What a task does."""
    return survey(folder, queues, ReadingDisk(), now, let_go)


def _sizes(folder: str) -> dict[str, int]:
    """Bytes of all journals: how long tasks will take, about."""
    sizes: dict[str, int] = {}
    with os.scandir(folder) as found:
        for each in found:
            for journal in journals([each.name]):
                try:
                    sizes[journal] = sizes.get(journal, 0) + each.stat().st_size
                except FileNotFoundError:  # packed away meanwhile
                    continue
    return sizes
