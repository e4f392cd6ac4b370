"""The job convert: copies all queues and messages of a store into another store, of any kind."""

import hashlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import penstock
from penstock.contract.kinds import absolute, exists, kind_of
from penstock.contract.message import STATES
from penstock.contract.names import DEFAULT
from penstock.contract.settings import Settings
from penstock.contract.tables import Tables
from penstock.errors import InvalidArgument, NotSupported, PenstockError, QueueNotFound
from penstock.rules.moves import check_dead_letter, sources_of
from penstock.spark.jobs.runs import (
    Session,
    Summary,
    already_loaded,
    check_folder,
    check_store,
    place_of,
    run_id,
    started,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("queue", "made", *STATES, "messages")
_DROPPED = ("id", "receipt", "lease_until")
_CHANGING = ("payload", "priority", "created_at", "expires_at", "settled_at", "reason", "group")
_Queues = dict[str, tuple[Settings, dict[str, int]]]  # settings, and how many messages are in each state
_HISTORY = ("attempt", "consumer", "claimed_at", "ended_at", "outcome", "reason")


def convert(
    spark: Session,
    source: str,
    target: str,
    *,
    id: str | None = None,  # noqa: A002 - the word of the command line
    dry_run: bool = False,
) -> Summary:
    """Copy all queues of a store, with their settings, into another store: all or nothing.

    Messages get new ids and keep everything else: payload, headers, times, priority, attempts, state. Messages in
    flight arrive as available. A queue that exists in the target must have the same settings, and keeps its
    messages. A second run of the same copy does nothing; if the source has changed it is an error. A run with an
    `id` of its own copies everything again.
    """
    check_store(source)
    run = run_id(id, "convert", source=place_of(source), target=place_of(target))
    if _real(place_of(source)) == _real(place_of(target)):
        raise InvalidArgument(f"{source!r} and {target!r} are the same store")
    _check_target(target)
    spark = started(spark)
    queues = _queues(spark, source)
    before = already_loaded(target, run) if exists(target) else None
    if before is not None:
        if id is None and already_loaded(target, _seen(spark, source, run, queues)) is None:
            raise _changed(source, target, before, queues)
        return Summary("convert", run, _COLUMNS, [], dry_run, repeated=True)
    made = _to_be_made(target, {name: settings for name, (settings, _) in _kept(target, queues).items()})
    rows = [
        [name, "yes" if name in made else "", *(counts[state] for state in STATES), sum(counts.values())]
        for name, (_, counts) in sorted(queues.items())
    ]
    if not dry_run:
        if not exists(target):
            penstock.open(target).close()
        if id is None:  # before the copy, so that a change during the copy counts as a change since
            nothing = spark.createDataFrame([], "queue string, payload binary").write.format("penstock")
            nothing.mode("append").options(store=absolute(target), id=_seen(spark, source, run, queues)).save()
        create = json.dumps({name: settings.stored() for name, settings in made.items()})
        writer = _messages(spark, source).write.format("penstock").mode("append")
        writer.options(store=absolute(target), id=run, _restore="true", _create=create).save()
    notes = ["messages in flight arrive as available"] if any(row[4] for row in rows) else []
    return Summary("convert", run, _COLUMNS, rows, dry_run, notes=notes)


def _check_target(target: str) -> None:
    """PenstockError if the target is no store and cannot be made one."""
    if "://" not in target:
        _, _, path = _real(place_of(target)).partition("/")
        check_folder("store", os.path.dirname(f"/{path}") if path.endswith(".tq") else f"/{path}")
    if exists(target):
        check_store(target)


def _real(place: str) -> str:
    """A place with symbolic links resolved."""
    if "://" in place:
        return place
    kind, slash, path = place.partition("/")
    return kind + os.path.realpath(slash + path)


def _queues(spark: "SparkSession", source: str) -> _Queues:
    """The settings of every queue, and its number of messages by state."""
    found = {}
    for row in table(spark, source, "queues").collect():
        settings = {name: row[name] for name in Settings().keys()}  # noqa: SIM118 - no dict
        for name in ("keep_done", "max_lease", "retention", "lease", "delay"):
            if settings[name] is not None and settings[name].is_integer():
                settings[name] = int(settings[name])
        found[row["name"]] = (Settings(**settings), {state: row[state] for state in STATES})
    return found


def _seen(spark: "SparkSession", source: str, run: str, queues: _Queues) -> str:
    """A run name with a hash of the source's messages and settings: the target remembers it, to detect changes.

    A delay that ends, a claim, and a change of the holder are no changes.
    """
    from pyspark.sql import functions as f

    settled = f.when(f.col("state").isin("done", "failed"), f.col("state")).otherwise("")
    headers = f.sort_array(f.map_entries("headers"))
    each = f.xxhash64("queue", "id", settled, "attempts", headers, *_CHANGING).cast("decimal(38,0)")
    messages = table(spark, source, "messages").agg(f.sum(each).alias("all")).collect()[0]["all"]
    settings = {name: settings.stored() for name, (settings, _) in queues.items()}
    text = json.dumps([str(messages), settings], sort_keys=True)
    return f"{run}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _changed(source: str, target: str, before: list[list[Any]], queues: _Queues) -> PenstockError:
    """The error for a source that has changed since it was copied."""
    then = {queue: messages for queue, messages, _ in before}
    now = {queue: sum(counts.values()) for queue, (_, counts) in queues.items()}
    what = (
        "as many messages, but what they say, attempts, what is done or failed, or settings are others, or a "
        "version copied it that noted less"
    )
    for queue in sorted({*now, *then}):
        if then.get(queue, 0) not in (None, now.get(queue, 0)):
            what = f"queue {queue!r}: {then.get(queue, 0):,} messages then, {now.get(queue, 0):,} now"
            break
    return PenstockError(
        f"{source!r} was copied into {target!r} before, and has changed since ({what}). What is new cannot be "
        "told from what was copied, so nothing was done: convert into another store, or copy all of it again "
        "with an --id of your own"
    )


def _kept(target: str, queues: _Queues) -> _Queues:
    """The queues to copy: without an empty `default`, if the target is a file, which holds one queue."""
    settings, counts = queues.get(DEFAULT, (None, {}))
    if (
        kind_of(target).only_queue(target) is None
        or len(queues) == 1
        or settings != Settings()
        or any(counts.values())
    ):
        return queues
    return {name: each for name, each in queues.items() if name != DEFAULT}


def _to_be_made(target: str, wanted: dict[str, Settings]) -> dict[str, Settings]:
    """The queues that the target lacks; NotSupported if it cannot hold one of them."""
    kind = kind_of(target)
    tables = kind.tables(target)
    known = tables.settings(target, penstock.open) if exists(target) else {DEFAULT: Settings()}
    refused = []
    if (only := kind.only_queue(target)) is not None:
        known = {only: known.get(only, Settings()), DEFAULT: known.get(only, Settings())}
        if len(wanted) > 1 or not known.keys() >= wanted.keys():
            refused = [f"a file is the queue {only!r} alone, and these are {', '.join(wanted)} (give text:DIR)"]
    refused += [
        f"queue {name!r} is there with other settings ({', '.join(_differing(settings, known[name]))})"
        for name, settings in wanted.items()
        if name in known and settings != known[name]
    ]
    made = {name: settings for name, settings in wanted.items() if name not in known}
    if not refused:
        refused = [f"queue {name!r}: {why}" for name, why in _not_kept(tables, made, known).items()]
    if refused:
        raise NotSupported(f"{target!r} cannot hold this, and nothing was written: {'; '.join(refused)}")
    return made


def _not_kept(tables: Tables, made: dict[str, Settings], known: dict[str, Settings]) -> dict[str, PenstockError]:
    """Why a store cannot make some of these queues beside those that it has."""
    there = {**made, **known}
    sources, found = sources_of(there.items()), dict[str, PenstockError]()

    def settings_of(queue: str) -> Settings:
        if queue not in there:
            raise QueueNotFound(f"its dead_letter {queue!r} is not there: create it, or set dead_letter to None")
        return there[queue]

    for name, settings in made.items():
        try:
            tables.check_settings(settings)
            check_dead_letter(name, settings, settings_of, sources)
        except (InvalidArgument, NotSupported, QueueNotFound) as error:
            found[name] = error
    return found


def _differing(one: Settings, other: Settings) -> list[str]:
    left, right = asdict(one), asdict(other)
    return [f"{name}={left[name]!r}, there {right[name]!r}" for name in left if left[name] != right[name]]


def _messages(spark: "SparkSession", source: str) -> "DataFrame":
    """All messages, each with its attempts as the column history."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    from penstock.spark.tables import HISTORY, TABLES

    # Messages arrive in the order of their puts: that of their numbers, or of a listing if ids are no numbers.
    if kind_of(source).tables(source).has_history:
        found = table(spark, source, "messages", StructType([*TABLES["messages"], HISTORY]))
        found = found.withColumn("place", f.col("id").cast("bigint"))
    else:
        place = f.col("id").cast("bigint") if kind_of(source).owned else f.monotonically_increasing_id()
        attempts = table(spark, source, "attempts").groupBy("queue", "id")
        history = attempts.agg(f.sort_array(f.collect_list(f.struct(*_HISTORY))).alias("history"))
        messages = table(spark, source, "messages").withColumn("place", place)
        found = messages.join(history, ["queue", "id"], "left")
    return found.orderBy("queue", "place").drop("place", *_DROPPED)
