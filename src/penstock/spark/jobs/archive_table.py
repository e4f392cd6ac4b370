"""The archive on disk: a Parquet table in a folder, its atomic commit, and the queries that fill it.

    queue=NAME/day=YYYY-MM-DD/part-*.parquet    the table; the day is that of settled_at, in UTC
    _penstock/lock                              locked by the run that writes; contains its process
    _penstock/staging/                          files of a run before its commit
    _penstock/pending.json                      a committed run: files to move into the table, files to delete
    _penstock/runs/ID.json                      a finished run

A run is committed once pending.json exists. If it is interrupted then, the next run carries pending.json out.

A message is identified by its queue, its id, received_at, and a checksum of its unchanging fields: several stores
may have a message of the same queue and id. A message may be settled again after it was archived (redriven, and
failed again): its later row replaces the earlier one.
"""

import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from penstock.contract import names
from penstock.contract.kinds import kind_of
from penstock.errors import InvalidArgument, PenstockError, StoreLocked
from penstock.spark.jobs.runs import own_session, table
from penstock.spark.tables import HISTORY, TABLES
from penstock.system import processes
from penstock.system.files import SystemDisk, replace_file

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OWN = "_penstock"
_LONGEST = 200  # bytes of a folder's name; file systems allow 255
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_NULL = "__HIVE_DEFAULT_PARTITION__"  # Spark reads this folder name as NULL
_STORED = StructType(
    [
        StructField("queue_name", StringType()),
        *(each for each in TABLES["messages"] if each.name not in ("queue", "receipt")),
        HISTORY,
        StructField("checksum", LongType()),
    ]
)
_READ = StructType([*(each for each in TABLES["messages"] if each.name != "receipt"), HISTORY])
DAY = 86_400_000  # milliseconds
IDENTITY = ("queue_name", "id", "received_at", "checksum")
_GLOB = "{}[]*?\\"
_ROWS = 10_000  # per batch


class Move(NamedTuple):
    """A staged file and its place in the table, relative to the archive's folder."""

    source: str
    target: str


Rewritten = tuple[list[Move], list[str], int]  # rewritten files, files to delete, number of deleted rows


class Folder:
    """The folder of an archive. locked() creates it."""

    def __init__(self, path: str | os.PathLike[str], store: str | None) -> None:
        text = os.fspath(path)
        if not text or _SCHEME.match(text):
            raise InvalidArgument(f"archive {text!r}: give a folder of this machine, or one that is mounted on it")
        self.path = Path(os.path.abspath(text))
        if store is not None and self.path.is_relative_to(os.path.abspath(store)):
            raise InvalidArgument(f"the archive {text!r} would be inside of the store: give a folder beside it")
        self.staging = self.path / _OWN / "staging"
        self._pending = self.path / _OWN / "pending.json"
        self._disk = SystemDisk()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the archive, and recover from an interrupted run; StoreLocked if another run has the lock."""
        (self.path / _OWN / "runs").mkdir(parents=True, exist_ok=True)
        for folder in (self.path / _OWN, self.path, self.path.parent):
            self._disk.sync_folder(folder)
        with self._disk.open(self.path / _OWN / "lock", create=True) as file:
            # The kernel releases the lock when the process ends. The name in the file is for the error below.
            if not file.lock():
                holder = file.read(0, 100).decode(errors="replace").partition("-")[0]
                raise StoreLocked(
                    f"another run writes to the archive {str(self.path)!r} (process {holder or 'unknown'}): wait "
                    "until it has ended, then run this again"
                )
            try:
                file.truncate(0)
                file.write(0, processes.name_of(os.getpid()).encode())
                self._recover()
                yield
            finally:
                file.unlock()

    def _recover(self) -> None:
        if self._pending.exists():
            self._finish(json.loads(self._pending.read_text()))
        shutil.rmtree(self.staging, ignore_errors=True)

    def run(self, run: str) -> dict[str, Any] | None:
        """The record of a finished run; None if there is none."""
        with suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.path / _OWN / "runs" / f"{run}.json").read_text())
            return found
        return None

    def keep(self, run: dict[str, Any]) -> None:
        """Store the record of a run, durably."""
        path = self.path / _OWN / "runs" / f"{run['id']}.json"
        replace_file(self._disk, path, json.dumps(run, indent=1).encode())

    def commit(self, run: dict[str, Any], moves: Sequence[Move], gone: Sequence[str]) -> None:
        """Commit a run: atomic in a crash, file by file for readers."""
        for move in moves:
            with self._disk.open(self.path / move.source) as file:
                file.sync()  # Spark does not sync, and archived messages may be removed from the store
        pending = {"run": run, "moves": moves, "gone": gone}
        replace_file(self._disk, self._pending, json.dumps(pending).encode())
        self._finish(pending)

    def _finish(self, pending: dict[str, Any]) -> None:
        changed: set[Path] = set()
        for source, target in pending["moves"]:
            to = self.path / target
            if not to.parent.is_dir():
                to.parent.mkdir(parents=True)
                changed |= {to.parent.parent, self.path}
            with suppress(FileNotFoundError):  # moved before an interruption
                self._disk.rename(self.path / source, to)
            changed.add(to.parent)
        for path in pending["gone"]:
            with suppress(FileNotFoundError):
                self._disk.unlink(self.path / path)
            changed.add((self.path / path).parent)
        for folder in sorted(changed, reverse=True):  # a folder's entries before the folder's own entry
            self._disk.sync_folder(folder)
        self.keep(pending["run"])
        self._pending.unlink()
        self._disk.sync_folder(self._pending.parent)

    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return not any(name.startswith("queue=") for name in os.listdir(self.path))

    def places(self, queues: Sequence[str]) -> dict[str, str]:
        """The folder of each queue. Spark reads its name as the queue's name, unless that is very long."""
        taken = {each.casefold(): each for each in os.listdir(self.path)}
        found = {}
        for queue in queues:
            name = f"queue={_encoded(queue)}"
            # Two queues must not share a folder where file systems fold case: the second has its letters encoded.
            if taken.setdefault(name.casefold(), name) != name:
                name = f"queue={_encoded(queue, letters=False)}"
            found[queue] = name
        return found


def _encoded(queue: str, letters: bool = True) -> str:
    encoded = names.file_name(queue)
    if not letters:
        encoded = "".join(f"%{ord(each):02X}" if each.isalpha() else names.file_name(each) for each in queue)
    if queue == _NULL:
        encoded = encoded.replace("_", "%5F", 1)
    if len(encoded) <= _LONGEST:
        return encoded
    return f"{encoded[:150].rstrip('%')}-{hashlib.md5(queue.encode(), usedforsecurity=False).hexdigest()}"


# The table


def check_archive(path: str | os.PathLike[str]) -> None:
    """PenstockError if there is no archive in a folder."""
    if not os.path.isdir(path):
        raise PenstockError(f"there is no archive {os.fspath(path)!r}: no such folder")


def archived(spark: "SparkSession", path: str | os.PathLike[str]) -> "DataFrame":
    """The messages of an archive: the columns of the table messages without `receipt`, and `history` and `day`.

    `history` has the attempts at each message, oldest first. Queues have their own names here, unlike in
    spark.read.parquet(path), where Spark reads a queue 007 as the number 7.
    """
    check_archive(path)
    return named(parquet(own_session(spark), path))


def named(messages: "DataFrame") -> "DataFrame":
    """Archived messages with the column names of the table messages."""
    shown = messages.drop("queue", "checksum").withColumnRenamed("queue_name", "queue")
    first = ("id", "queue")
    return shown.select(*first, *(name for name in shown.columns if name not in first))


def parquet(session: "SparkSession", path: str | os.PathLike[str], since: date | None = None) -> "DataFrame":
    """The table as stored, or its rows settled since a day; empty if there is no archive yet."""
    schema = StructType([*_STORED, StructField("queue", StringType()), StructField("day", DateType())])
    if not os.path.isdir(path):
        return session.createDataFrame([], schema)
    table = session.read.schema(schema).parquet(local(path, glob=True))
    return table if since is None else table.where(F.col("day") >= F.lit(since))


def local(path: str | os.PathLike[str], glob: bool = False) -> str:
    """A path of this machine as a file: URL for Spark, whose default file system may be a cluster's."""
    text = os.path.abspath(path)
    return "file:" + ("".join("\\" + each if each in _GLOB else each for each in text) if glob else text)


def day_of(time: str) -> "Column":
    """The day of a time in UTC, independent of the session's time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(time) / DAY).cast("int"))


def settled(session: "SparkSession", store: str, schema: str | StructType = "") -> "DataFrame":
    """The done and failed messages of a store."""
    return table(session, store, "messages", schema, state="done,failed")


def summed(messages: "DataFrame") -> "DataFrame":
    """Messages of a store with the archive's columns queue_name and checksum."""
    return messages.withColumnRenamed("queue", "queue_name").withColumn("checksum", checksum())


def checksum() -> "Column":
    """A checksum of the fields that never change in a message's life."""
    headers = F.sort_array(F.map_entries("headers"))
    return F.xxhash64("queue_name", "id", "payload", headers, "priority", "created_at", "received_at")


def unarchived(session: "SparkSession", store: str, archive: "DataFrame") -> "DataFrame":
    """The settled messages of a store that an archive lacks, with the archive's columns."""
    has_history = kind_of(store).tables(store).has_history
    messages = summed(settled(session, store, _READ if has_history else "")).alias("new")
    known = archive.select(*IDENTITY, "settled_at").alias("known")
    missing = messages.join(
        known, _same("new", "known", F.col("known.settled_at") >= F.col("new.settled_at")), "anti"
    )
    if has_history:
        return missing.select(*(each.name for each in _STORED))
    return _with_history(missing, table(session, store, "attempts").where("ended_at IS NOT NULL"))


def superseded(archive: "DataFrame", new: "DataFrame") -> "DataFrame":
    """Rows of an archive whose messages were settled again since, each with its file."""
    old = archive.select(*IDENTITY, "settled_at", F.col("_metadata.file_path").alias("file")).alias("old")
    later = new.select(*IDENTITY, "settled_at").alias("new")
    return old.join(later, _same("old", "new", F.col("old.settled_at") < F.col("new.settled_at")), "semi")


def confirmed(session: "SparkSession", store: str, archive: "DataFrame") -> "DataFrame":
    """The settled messages of a store that an archive has, with the same fields and settled_at."""
    there = archive.withColumn("checksum", checksum())  # of the rows as read back, not as computed for the write
    same = [*IDENTITY, "state", "settled_at"]
    return summed(settled(session, store)).join(there.select(same), same, "semi")


def _same(one: str, other: str, condition: "Column") -> "Column":
    for name in IDENTITY:
        condition = condition & (F.col(f"{one}.{name}") == F.col(f"{other}.{name}"))
    return condition


def _with_history(messages: "DataFrame", attempts: "DataFrame") -> "DataFrame":
    """Messages with their attempts up to settled_at: both tables may be read at different moments."""
    fields = [each.name for each in TABLES["attempts"] if each.name not in ("queue", "id")]
    in_order = F.sort_array(
        F.collect_list(F.struct("claimed_at", *(each for each in fields if each != "claimed_at")))
    )
    gathered = attempts.groupBy(F.col("queue").alias("queue_name"), "id").agg(in_order.alias("gathered"))
    until = F.filter("gathered", lambda each: each["ended_at"] <= F.col("settled_at"))
    history = F.transform(until, lambda each: F.struct(*(each[name].alias(name) for name in fields)))
    joined = messages.join(gathered, ["queue_name", "id"], "left")
    known = F.coalesce(history, F.array().cast(HISTORY.dataType))
    return joined.withColumn("history", known).select(*(each.name for each in _STORED))


# Deleting superseded rows


def without(folder: Folder, superseded: "DataFrame") -> Rewritten:
    """Rewrite, in staging, the files that have superseded rows; a file without other rows is to be deleted."""
    by_file: dict[Path, list[Any]] = defaultdict(list)
    for row in superseded.select("file", "id", "checksum").collect():
        by_file[Path(unquote(urlsplit(row["file"]).path))].append(row)
    moves, gone = [], []
    for number, (path, rows) in enumerate(by_file.items()):
        target = str(path.relative_to(folder.path))
        anew = folder.staging / f"anew-{number}.parquet"
        if _rewrite(path, anew, {(row["id"], row["checksum"]) for row in rows}):
            moves.append(Move(str(anew.relative_to(folder.path)), target))
        else:
            gone.append(target)
    return moves, gone, sum(map(len, by_file.values()))


def _rewrite(path: Path, anew: Path, without: set[tuple[str, int]]) -> int:
    left = 0
    with pq.ParquetFile(path) as file, pq.ParquetWriter(anew, file.schema_arrow) as to:
        for batch in file.iter_batches(_ROWS):
            kept = batch.filter(_mask(batch, without))
            left += len(kept)
            to.write_batch(kept)
    return left


def _mask(batch: pa.RecordBatch, without: Iterable[tuple[str, int]]) -> pa.Array:
    """True for rows to keep. An id may be in a file twice, of two stores; the checksum tells them apart."""
    suspects = pc.is_in(batch["checksum"], pa.array({checksum for _, checksum in without}, pa.int64()))
    if not pc.any(suspects).as_py():
        return pc.invert(suspects)
    pairs = zip(batch["id"].to_pylist(), batch["checksum"].to_pylist(), strict=True)
    gone = set(without)
    return pa.array([pair not in gone for pair in pairs])
