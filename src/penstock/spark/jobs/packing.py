"""The jobs `pack` and `expire`: space that a store no longer needs is freed, by tasks of Spark."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.contract import names
from penstock.contract.kinds import check_exists, kind_of
from penstock.spark.jobs.runs import Cell, SparkTasks, Summary, run_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKED = ("queue", "before", "after", "freed")
_EXPIRED = ("queue", "expired", "done", "bytes", "freed")


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
    url = os.fspath(store)
    packer = kind_of(url).packer(url)
    check_exists(url)
    url, wanted = kind_of(url).absolute(url), sorted({names.checked(queue) for queue in queues})
    run = run_id(id, "pack", store=url, queues=wanted)
    packed = sorted(packer.pack(url, wanted, dry_run, SparkTasks(spark)))
    rows: list[list[Cell]] = [[*each, max(0, each.before - each.after)] for each in packed]
    return Summary("pack", run, _PACKED, rows, dry_run, notes=[packer.note] if packer.note else [])


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
    url = os.fspath(store)
    packer = kind_of(url).packer(url)
    check_exists(url)
    url = kind_of(url).absolute(url)
    run = run_id(id, "expire", store=url)
    found, looked_at = packer.expire(url, dry_run, SparkTasks(spark))
    rows = [list(each) for each in found]
    notes = [f"{looked_at:,} queues were looked at, {len(rows):,} of them had something to let go"]
    return Summary("expire", run, _EXPIRED, rows, dry_run, notes=notes)
