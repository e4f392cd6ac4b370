"""expire: what retention and keep_done have let go is taken out of the files, too."""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.contract.operations import Queues
from penstock.contract.urls import is_slate
from penstock.sharing.backend import open_shared
from penstock.spark.jobs import slates
from penstock.spark.jobs.packing import pack_queues
from penstock.spark.jobs.runs import run_id
from penstock.spark.jobs.stores import folder_to_pack
from penstock.spark.jobs.summary import Cell, Summary
from penstock.spark.jobs.surveying import survey_queues
from penstock.stores.journal.doctor import Surveyed
from penstock.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ("queue", "expired", "done", "bytes", "freed")


def expire(
    spark: "SparkSession",
    store: str | os.PathLike[str],
    id: str | None = None,  # noqa: A002 - the word of all jobs
    dry_run: bool = False,
) -> Summary:
    """Take out of the files what time has let go: expired messages, and done ones that keep_done lists no longer.

        penstock.spark.jobs.expire(spark, "data")

    A queue shows them no more from the moment that their time is over; in its files they stay until it is packed.
    This packs each queue that has some. A second run finds nothing. With `dry_run` it is only said what there is;
    the store may be open elsewhere then.
    """
    if is_slate(os.fspath(store)):
        return slates.expire(os.fspath(store), id, dry_run)
    folder = folder_to_pack(store)
    run = run_id(id, "expire", store=folder)
    if dry_run:
        surveyed = survey_queues(spark, folder, (), SystemClock().now(), let_go=True)
        due = _due(surveyed)
        freed = {each.queue: max(0, each.bytes - each.packed) for each in due}
    else:
        with closing(open_shared(folder)) as backend:
            backend.run(Queues())  # lets time have passed
            surveyed = survey_queues(spark, folder, (), SystemClock().now(), let_go=True)
            due = _due(surveyed)
            packed = pack_queues(spark, backend, [each.queue for each in due])
            freed = {each.queue: max(0, each.before - each.after) for each in packed}
    rows: list[list[Cell]] = [
        [each.queue, each.expired, each.done, each.let_go, freed.get(each.queue, 0)] for each in due
    ]
    notes = [f"{len(surveyed):,} queues were looked at, {len(due):,} of them had something to let go"]
    return Summary("expire", run, _COLUMNS, rows, dry_run, notes=notes)


def _due(surveyed: list[Surveyed]) -> list[Surveyed]:
    return [each for each in surveyed if each.expired or each.done]
