"""The job archive: copies done and failed messages into a partitioned Parquet table, each once."""

import hashlib
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

import penstock
from penstock.contract.message import State
from penstock.contract.store import Queue, Store
from penstock.errors import QueueNotFound
from penstock.spark.jobs.archive_table import (
    Folder,
    Move,
    Rewritten,
    confirmed,
    day_of,
    local,
    parquet,
    settled,
    superseded,
    unarchived,
    without,
)
from penstock.spark.jobs.runs import (
    Cell,
    Session,
    Summary,
    check_folder,
    check_store,
    own_session,
    place_of,
    run_id,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_COLUMNS = ("queue", "done", "failed", "already_archived", "removed", "bytes")
_SETTLED = "queue string, id string, state string, settled_at timestamp"
_FEW = 4  # files that a task writes side by side
_GROUP = 32 << 20  # bytes of rows that each of them collects in memory
_BATCH = 500  # messages per removal: few, because a message may be redriven between the check and the removal
Counts = Counter[tuple[str, str]]  # messages by queue and state


def archive(
    spark: Session,
    store: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    remove: bool = False,
    id: str | None = None,  # noqa: A002 - the word of every job
    dry_run: bool = False,
) -> Summary:
    """Copy the done and failed messages of a store into the archive in the folder `dest`, each once.

    With `remove`, messages are read back from the archive, compared, and removed from the store; StoreLocked,
    before anything is copied, if another process has the store open and does not share it. One run at a time
    writes to an archive; a second gets StoreLocked. The next run finishes or clears an interrupted one.
    """
    url = os.fspath(store)
    check_store(url)
    place = place_of(url)
    folder = Folder(dest, place if os.path.isdir(place) else None)
    check_folder("archive", folder.path)
    if id is not None and (before := folder.run(run_id(id, "archive"))) and before["state"] == "done":
        return _repeated(before)
    session = own_session(spark)
    session.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(_FEW))
    there = _counts(settled(session, url, _SETTLED))
    since = min((row["day"] for row in there), default=None)  # older days of the archive need not be read
    inputs = {"store": place, "dest": str(folder.path), "remove": remove, "settled": _fingerprint(there)}
    run = run_id(id, "archive", **inputs)
    if dry_run:
        return _would_do(session, url, folder, run, there, remove)
    with ExitStack() as held:
        opened = held.enter_context(penstock.open(url)) if remove else None
        held.enter_context(folder.locked())
        record = folder.run(run)  # again: locked() may have finished an interrupted run
        if record is not None and record["state"] == "done":
            return _repeated(record)
        if record is None:
            record = _write(session, url, folder, run, remove, there, since)
        if opened is not None:
            removed = remove_archived(opened, confirmed(session, url, parquet(session, folder.path, since)))
            _note_removed(record, removed, _totals(there))
        record["state"] = "done"
        if record["rows"] or id is not None:
            folder.keep(record)
    return Summary("archive", run, _COLUMNS, record["rows"], notes=record["notes"])


def _repeated(record: dict[str, Any]) -> Summary:
    return Summary("archive", record["id"], _COLUMNS, record["rows"], repeated=True, notes=record["notes"])


# Counting


def _counts(messages: "DataFrame") -> "list[Row]":
    """The number of settled messages by queue and state, with a hash of their identities."""
    which = F.bit_xor(F.xxhash64("queue", "id", "state", "settled_at")).alias("which")
    counted = messages.groupBy("queue", "state").agg(
        F.count("*").alias("count"),
        which,
        F.min(day_of("settled_at")).alias("day"),
        F.max(day_of("settled_at")).alias("last"),
    )
    return counted.collect()


def _fingerprint(counts: "Sequence[Row]") -> str:
    text = repr(sorted((row["queue"], row["state"], row["count"], row["which"], row["day"]) for row in counts))
    return hashlib.sha256(text.encode()).hexdigest()


def _totals(counts: "Sequence[Row]") -> Counts:
    return Counter({(row["queue"], row["state"]): row["count"] for row in counts})


def _would_do(
    session: "SparkSession", url: str, folder: Folder, run: str, there: "Sequence[Row]", remove: bool
) -> Summary:
    totals = _totals(there)
    new = _new(unarchived(session, url, parquet(session, folder.path))) if totals else Counter()
    rows = _rows(totals, new, Counter())
    if remove:
        for row in rows:
            row[4] = totals[row[0], "done"] + totals[row[0], "failed"]
    return Summary("archive", run, _COLUMNS, [[*row[:5], None] for row in rows], dry_run=True)


def _files(counts: "Sequence[Row]") -> int:
    """How many pairs of a queue and a day there are at most."""
    days: dict[str, set[date]] = defaultdict(set)
    for row in counts:
        days[row["queue"]] |= {row["day"], row["last"]}
    return sum((max(each) - min(each)).days + 1 for each in days.values())


def _new(messages: "DataFrame") -> Counts:
    rows = messages.groupBy("queue_name", "state").agg(F.count("*").alias("count")).collect()
    return Counter({(row["queue_name"], row["state"]): row["count"] for row in rows})


def _rows(totals: Counts, new: Counts, sizes: Counter[str]) -> list[list[Any]]:
    rows: list[list[Cell]] = []
    for queue in sorted({queue for queue, _ in [*totals, *new]}):
        done, failed = new[queue, "done"], new[queue, "failed"]
        # Messages settled between counting and copying are new, so the difference may be negative.
        before = max(0, totals[queue, "done"] + totals[queue, "failed"] - done - failed)
        rows.append([queue, done, failed, before, 0, sizes[queue]])
    return rows


# Copying


def _write(
    session: "SparkSession",
    url: str,
    folder: Folder,
    run: str,
    remove: bool,
    there: "Sequence[Row]",
    since: date | None,
) -> dict[str, Any]:
    """Copy messages that the archive lacks; the record of the run."""
    totals = _totals(there)
    record: dict[str, Any] = {"id": run, "job": "archive", "store": url, "state": "written" if remove else "done"}
    record |= {"at": datetime.now(UTC).isoformat(timespec="seconds"), "rows": [], "notes": []}
    if not totals:
        record["notes"].append("there are no done or failed messages in the store")
        return record
    new = unarchived(session, url, parquet(session, folder.path, since))
    new = new.withColumn("key", F.md5("queue_name")).withColumn("day", day_of("settled_at"))
    if _files(there) > _FEW:  # Spark merges small partitions and splits large ones, for files of a sensible size
        new = new.hint("rebalance", "key", "day")
    staged = folder.staging / "new"
    new.write.partitionBy("key", "day").option("parquet.block.size", _GROUP).parquet(local(staged))
    written = parquet(session, staged)
    counts = _new(written)
    moves, sizes = _moves(folder, staged.name, sorted({queue for queue, _ in counts}))
    anew, gone, again = _settled_again(session, folder, written) if counts else ([], [], 0)
    if again:
        record["notes"].append(
            f"{again:,} of them were archived before, and were redriven and settled again since"
        )
    record["rows"] = _rows(totals, counts, sizes)
    if moves:
        folder.commit(record, [*moves, *anew], gone)
    return record


def _settled_again(session: "SparkSession", folder: Folder, written: "DataFrame") -> Rewritten:
    """The archive's files without rows of messages that are written again now."""
    if folder.is_empty():
        return [], [], 0
    (first,) = written.agg(F.min(day_of("received_at"))).collect()
    return without(folder, superseded(parquet(session, folder.path, first[0]), written))


def _moves(folder: Folder, staged: str, queues: Sequence[str]) -> tuple[list[Move], Counter[str]]:
    """The place of each written file in the table, and the bytes of each queue."""
    keys = {hashlib.md5(queue.encode(), usedforsecurity=False).hexdigest(): queue for queue in queues}
    places = folder.places(queues)
    writing = secrets.token_hex(8)
    moves: list[Move] = []
    sizes: Counter[str] = Counter()
    for path in sorted((folder.staging / staged).glob("key=*/day=*/*.parquet")):
        queue = keys[path.parent.parent.name.removeprefix("key=")]
        name = f"part-{writing}-{len(moves):05}.parquet"
        target = os.path.join(places[queue], path.parent.name, name)
        moves.append(Move(str(path.relative_to(folder.path)), target))
        sizes[queue] += path.stat().st_size
    return moves, sizes


def _note_removed(record: dict[str, Any], removed: dict[str, int], totals: Counts) -> None:
    rows = {row[0]: row for row in record["rows"]}
    for queue, count in removed.items():
        row = rows.setdefault(queue, [queue, 0, 0, 0, 0, 0])
        row[4] += count
    record["rows"] = [rows[queue] for queue in sorted(rows)]
    left = sum(totals.values()) - sum(removed.values())
    if left > 0:
        record["notes"].append(
            f"{left:,} settled messages are not in the store any more, or were left there: they changed meanwhile"
        )


# Removing


class Settled(NamedTuple):
    """The state of a message when it was archived."""

    state: State
    settled_at: int
    received_at: int


def remove_archived(store: Store, confirmed: "DataFrame") -> dict[str, int]:
    """Remove messages that are confirmed to be in the archive and unchanged since; their number by queue."""
    rows = confirmed.select(
        "queue_name",
        "id",
        "state",
        F.unix_millis("settled_at").alias("settled_at"),
        F.unix_millis("received_at").alias("received_at"),
    )
    removed = {}
    # Sorting makes Spark read everything before the first removal, and lets each queue be listed once.
    found = rows.orderBy("queue_name").toLocalIterator(prefetchPartitions=True)
    for name, group in groupby(found, key=lambda row: row["queue_name"]):
        known = {row["id"]: Settled(row["state"], row["settled_at"], row["received_at"]) for row in group}
        try:
            queue = store.queue(name)
        except QueueNotFound:  # deleted meanwhile
            continue
        removed[name] = sum(queue.remove(*batch) for batch in _unchanged(queue, known))
    return removed


def _unchanged(queue: Queue, known: dict[str, Settled]) -> Iterator[list[str]]:
    """Batches of ids of known messages that are unchanged: a failed one may have been redriven."""
    batch: list[str] = []
    for state in dict.fromkeys(each.state for each in known.values()):
        for message in queue.messages(state):
            if known.get(message.id) == (message.state, message.settled_at, message.received_at):
                batch.append(message.id)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
    if batch:
        yield batch
