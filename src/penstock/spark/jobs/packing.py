"""The jobs pack and expire: free disk space that a store no longer needs, in Spark tasks."""

import os
from collections.abc import Sequence

from penstock.contract import names
from penstock.contract.kinds import check_exists, kind_of
from penstock.contract.tables import Packer
from penstock.spark.jobs.runs import Cell, Session, SparkTasks, Summary, check_queues, run_id

_PACKED = ("queue", "before", "after", "freed")
_EXPIRED = ("queue", "expired", "done", "bytes", "freed")


def pack(
    spark: Session,
    store: str | os.PathLike[str],
    queues: Sequence[str] = (),
    id: str | None = None,  # noqa: A002 - the word of all jobs
    dry_run: bool = False,
) -> Summary:
    """Pack the journals of queues, by default of all: rewrite the messages that are left and free the rest.

        penstock.spark.jobs.pack(spark, "data")

    Tasks build the packed files, of many queues each. This process opens the store and swaps them in. If another
    process has the store open, that process packs, without tasks. A queue that cannot be packed, as one with a
    damaged message, raises its error after all others are packed.
    A dry run estimates the bytes to be freed, also while another process has the store open.
    """
    packer, url = _packer(store)
    wanted = sorted({names.checked(queue) for queue in queues})
    check_queues(url, wanted)
    run = run_id(id, "pack", store=url, queues=wanted)
    packed = sorted(packer.pack(url, wanted, dry_run, SparkTasks(spark)))
    rows: list[list[Cell]] = [[*each, max(0, each.before - each.after)] for each in packed]
    return Summary("pack", run, _PACKED, rows, dry_run, notes=[packer.note] if packer.note else [])


def expire(
    spark: Session,
    store: str | os.PathLike[str],
    id: str | None = None,  # noqa: A002 - the word of all jobs
    dry_run: bool = False,
) -> Summary:
    """Free the space of expired messages, and of done ones whose keep_done is over.

        penstock.spark.jobs.expire(spark, "data")

    Such messages disappear from their queue at once; their bytes stay in its files until it is packed. This packs
    each queue that has some. A second run finds nothing. A dry run counts them, also while another process has the
    store open.
    """
    packer, url = _packer(store)
    run = run_id(id, "expire", store=url)
    found, looked_at = packer.expire(url, dry_run, SparkTasks(spark))
    rows = [list(each) for each in found]
    notes = [f"{looked_at:,} queues were looked at, {len(rows):,} of them had something to let go"]
    return Summary("expire", run, _EXPIRED, rows, dry_run, notes=notes)


def _packer(store: str | os.PathLike[str]) -> tuple[Packer, str]:
    """The packer of a store, and its absolute URL; NotSupported if stores of its kind are not packed."""
    url = os.fspath(store)
    packer = kind_of(url).packer(url)
    check_exists(url)
    return packer, kind_of(url).absolute(url)
