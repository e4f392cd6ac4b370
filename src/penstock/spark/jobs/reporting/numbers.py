"""The numbers of a report, computed by Spark: the content of report.json.

    from, to         the first and the last event; window: the length of a time window, in seconds
    total, queues    of all messages, and of each queue: messages by state, numbers of put, done and failed ones,
                     times as below, attempts (settled messages by their number of attempts)
    windows          of each time window: numbers of put, done and failed messages, depth, times as below
    queue_windows    windows of the queues with the most messages
    reasons          reasons of failed attempts, the most frequent first: of all queues, and of these
    consumers        those with the most claims: messages, attempts, failures, last_seen (milliseconds)
    dead_letters     by origin (the queue where they failed for good) and queue (where they are now), the most
                     first: messages, states, and the most frequent reason
    remembered       of a server: its history of the last day (GET /-/api/history)

depth: messages that are neither done nor failed at the end of a window. Times are count, p50, p90, p99 and max in
seconds. waiting: from the moment when a message could first be claimed to its first claim; counts in the window of
that claim. processing: from the last claim to done or failed; counts in the window of its end.

The input is one row per message of a store and an archive, with its events in milliseconds since the epoch. A
message in both counts as the store has it, which may be later.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from penstock.contract.message import ORIGIN_HEADER, REASON_HEADER, STATES
from penstock.errors import InvalidArgument
from penstock.spark.jobs.archive_table import archived
from penstock.spark.jobs.runs import table

if TYPE_CHECKING:
    from pyspark.sql import Column, Row, SparkSession

MOST_ATTEMPTS = 10  # this many and more count as one number
_PERCENTILES = (0.5, 0.9, 0.99)
_ACCURACY = 10_000  # a percentile of a queue that is not among the largest is off by at most one rank in this many
_DIGITS = 4  # of percentiles of the largest, in milliseconds
_TOP = 12  # queues with windows of their own
_REASONS = 12
_CONSUMERS = 50
_LETTERS = 50
_ALL = ""  # the series of all queues; no queue has this name
_MESSAGES = (
    "queue string, id string, created_at timestamp, received_at timestamp, visible_at timestamp, attempts int, "
    "state string, claimed_at timestamp, settled_at timestamp, reason string, headers map<string,string>"
)
_ATTEMPT = ("queue", "id", "consumer", "claimed_at", "ended_at", "outcome", "reason")
_ATTEMPTS = ", ".join(f"{name} {'timestamp' if name.endswith('_at') else 'string'}" for name in _ATTEMPT)
_NAMES = [column.split()[0] for column in _MESSAGES.split(", ")]
_IDENTITY = ["queue", "id", "received_at", "created_at"]
_REASON = 300  # characters of a reason, which may contain a traceback
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS = {"second": _SECOND, "minute": _MINUTE, "hour": _HOUR, "day": _DAY, "week": 7 * _DAY}
_SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_ASKED = re.compile(r"(\d{1,6})\s*([a-z]+?)s?", re.ASCII)
STEPS = [  # window lengths that are easy to read
    *(count * _SECOND for count in (1, 5, 15, 30)),
    *(count * _MINUTE for count in (1, 5, 15, 30)),
    *(count * _HOUR for count in (1, 3, 6, 12)),
    *(count * _DAY for count in (1, 7, 28, 91, 364)),
]
_FEW = 60  # windows of a default length, at most
_MOST = 1_000
_MONDAY = 4 * _DAY  # the first Monday after the epoch: weeks begin on Mondays


# Time windows of equal length, in milliseconds since the epoch


@dataclass(frozen=True)
class Windows:
    """The windows from the first event to the last."""

    length: int
    first: int  # start of the first window
    count: int

    @property
    def origin(self) -> int:
        """A start to count windows from: a Monday for weeks, midnight for other lengths, in UTC."""
        return _MONDAY if self.length % (7 * _DAY) == 0 else 0

    def starts(self) -> list[int]:
        """The start of each window."""
        return [self.first + number * self.length for number in range(self.count)]

    def __str__(self) -> str:
        for name, size in reversed(_UNITS.items()):
            if self.length % size == 0:
                count = self.length // size
                return f"{count} {name}{'' if count == 1 else 's'}"
        return f"{self.length} ms"


def parse_window(text: str) -> int:
    """A length as people write it: `1 hour`, `15 min`, `7d`."""
    matched = _ASKED.fullmatch(text.strip().lower())
    unit = matched and (_SHORT.get(matched[2], matched[2]))
    if not matched or unit not in _UNITS or not int(matched[1]):
        raise InvalidArgument(f"window {text!r}: give a number and a unit, as in 15 minutes, 1 hour or 7 days")
    return int(matched[1]) * _UNITS[str(unit)]


def windows_of(first: int, last: int, length: int | None = None) -> Windows:
    """The windows from `first` to `last`, of this length or of the shortest default that gives few."""
    if length is None:
        if first == last:
            return windows_of(first, last, _MINUTE)
        found = (windows_of(first, last, each) for each in STEPS)
        return next((each for each in found if each.count <= _FEW), windows_of(first, last, STEPS[-1]))
    origin = Windows(length, 0, 0).origin
    start = (first - origin) // length
    count = (last - origin) // length - start + 1
    return Windows(length, origin + start * length, count)


def checked_windows(windows: Windows) -> Windows:
    """InvalidArgument if there are more windows than a page shows."""
    if windows.count > _MOST:
        least = windows.count * windows.length // _MOST // _SECOND
        raise InvalidArgument(
            f"a window of {windows} makes {windows.count:,} of them; the most is {_MOST:,}: give {least:,} "
            "seconds or more"
        )
    return windows


# One row per message


@contextmanager
def gathered(session: "SparkSession", store: str, archive: str | None) -> Iterator[tuple[DataFrame, DataFrame]]:
    """One row per message, and one row per attempt, kept for several queries."""
    attempts = stored_attempts = table(session, store, "attempts", _ATTEMPTS).persist()
    stored = table(session, store, "messages", _MESSAGES)
    # Most messages have one claim, which is in their own row. Spark learns here how few have more, and sends those
    # to all tasks instead of sorting all messages.
    more = (
        attempts.where("outcome <> 'acked'").groupBy("queue", "id").agg(F.min("claimed_at").alias("first_claim"))
    )
    more.persist().count()
    messages = stored.join(more, ["queue", "id"], "left")
    if archive is not None:
        old = archived(session, archive).join(stored.select(_IDENTITY), _IDENTITY, "anti")
        first_claim = F.array_min(F.transform("history", lambda each: each["claimed_at"]))
        messages = messages.unionByName(old.select(*_NAMES, first_claim.alias("first_claim")))
        each = old.select("queue", "id", F.explode("history").alias("attempt"))
        of_attempt = [name for name in _ATTEMPT if name not in ("queue", "id")]
        each = each.select("queue", "id", *(F.col(f"attempt.{name}").alias(name) for name in of_attempt))
        attempts = attempts.unionByName(each)
    facts = _timed(messages).persist()
    try:
        yield facts, attempts.withColumn("reason", F.substring("reason", 1, _REASON))
    finally:
        for each in facts, more, stored_attempts:
            each.unpersist()


def _timed(messages: DataFrame) -> DataFrame:
    claimed = F.least("first_claim", "claimed_at")
    # The moment when a message could first be claimed. A retry sets visible_at again, to after the first claim.
    ready = F.when(F.col("visible_at") <= claimed, F.col("visible_at")).otherwise(F.col("received_at"))
    settled = F.col("state").isin("done", "failed")
    return messages.select(
        "queue",
        "state",
        F.substring("reason", 1, _REASON).alias("reason"),
        F.col("headers")[ORIGIN_HEADER].alias("origin"),
        F.substring(F.col("headers")[REASON_HEADER], 1, _REASON).alias("died_of"),
        F.when(settled, F.col("attempts")).alias("attempts"),
        F.unix_millis("received_at").alias("put_at"),
        F.unix_millis(claimed).alias("first_claim"),
        F.when(settled, F.unix_millis("settled_at")).alias("settled_at"),
        (F.unix_millis(claimed) - F.unix_millis(ready)).alias("waiting"),
        F.when(settled, F.unix_millis("settled_at") - F.unix_millis("claimed_at")).alias("processing"),
    )


# Figures


@dataclass(frozen=True)
class Times:
    """The distribution of a time, in seconds."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass
class Slice:
    """The figures of one window."""

    start: int  # milliseconds
    put: int = 0
    done: int = 0
    failed: int = 0
    waiting: Times = field(default_factory=Times)
    processing: Times = field(default_factory=Times)
    depth: int = 0


@dataclass
class Figures:
    """The figures of a queue, or of all queues."""

    queue: str
    states: dict[str, int]
    put: int = 0
    done: int = 0
    failed: int = 0
    waiting: Times = field(default_factory=Times)
    processing: Times = field(default_factory=Times)
    attempts: dict[int, int] = field(default_factory=dict)

    def add(self, state: str, attempts: int | None, count: int) -> None:
        """Count messages of one state; settled ones by their attempts."""
        self.states[state] += count
        self.put += count
        self.done += count if state == "done" else 0
        self.failed += count if state == "failed" else 0
        if attempts is not None:
            self.attempts[attempts] = self.attempts.get(attempts, 0) + count


@dataclass
class Reason:
    """A reason of failed attempts; None if none was given."""

    reason: str | None
    attempts: int
    messages: int  # failed for good


@dataclass
class Consumer:
    """What a consumer has claimed, of messages that are still known."""

    consumer: str | None
    messages: int
    attempts: int
    failures: int
    last_seen: int  # milliseconds: its last claim, or the last end of one


@dataclass
class DeadLetters:
    """Messages that failed for good in one queue, and are in another now."""

    origin: str
    queue: str
    messages: int
    states: dict[str, int]
    reason: str | None  # the most frequent one


@dataclass
class Numbers:
    """All numbers of a report."""

    windows: Windows | None  # None: there are no messages
    first: int
    last: int
    total: Figures
    queues: list[Figures]  # by number of messages, the largest first
    slices: dict[str, list[Slice]]  # by queue; `_ALL` for all queues together
    reasons: dict[str, list[Reason]]
    consumers: list[Consumer] = field(default_factory=list)
    dead_letters: list[DeadLetters] = field(default_factory=list)

    @property
    def all_slices(self) -> list[Slice]:
        """The windows of all queues together."""
        return self.slices.get(_ALL, [])

    @property
    def all_reasons(self) -> list[Reason]:
        """The reasons of all queues together."""
        return self.reasons.get(_ALL, [])

    def as_json(self) -> dict[str, Any]:
        """The content of report.json."""
        named = [name for name in self.slices if name != _ALL]
        return {
            "from": self.first if self.windows else None,
            "to": self.last if self.windows else None,
            "window": self.windows.length / 1000 if self.windows else None,
            "total": {name: value for name, value in asdict(self.total).items() if name != "queue"},
            "queues": [asdict(each) for each in self.queues],
            "windows": [asdict(each) for each in self.all_slices],
            "queue_windows": {name: [asdict(each) for each in self.slices[name]] for name in named},
            "consumers": [asdict(each) for each in self.consumers],
            "dead_letters": [asdict(each) for each in self.dead_letters],
            "reasons": {
                "total": [asdict(each) for each in self.all_reasons],
                "queues": {name: [asdict(each) for each in self.reasons.get(name, [])] for name in named},
            },
        }


def remembered(history: Mapping[str, Any]) -> tuple[Windows, list[Slice]] | None:
    """The windows of a server's history, from when on it is known; None if it is not."""
    series, length = history["series"], history["seconds"] * 1000
    known = next((at for at, depth in enumerate(series["available"]) if depth is not None), None)
    if known is None:
        return None
    count = len(series["available"]) - known
    windows = Windows(length, history["end"] - count * length, count)
    slices, depth = [], 0
    for at, start in enumerate(windows.starts(), known):
        if series["available"][at] is not None:  # else the machine slept
            depth = sum(series[state][at] for state in ("delayed", "available", "in_flight"))
        flows = [series[flow][at] or 0 for flow in ("in", "out", "given_up")]
        put, done, failed = (round(rate * history["covered"][at]) for rate in flows)
        slices.append(Slice(start, put, done, failed, depth=depth))
    return windows, slices


def compute(facts: DataFrame, attempts: DataFrame, names: list[str], length: int | None) -> Numbers:
    """The numbers of all messages; `names` are all queues, also those without messages."""
    capped = (
        F.when(F.col("attempts") > MOST_ATTEMPTS, MOST_ATTEMPTS).otherwise(F.col("attempts")).alias("attempts")
    )
    moments = (
        F.min("put_at").alias("first"),
        F.max(F.greatest("put_at", "first_claim", "settled_at")).alias("last"),
    )
    rows = facts.groupBy("queue", "state", capped).agg(F.count("*").alias("count"), *moments).collect()
    rows.sort(key=lambda row: row["attempts"] or 0)
    known = {name: Figures(name, dict.fromkeys(STATES, 0)) for name in [*names, *(row["queue"] for row in rows)]}
    total = Figures(_ALL, dict.fromkeys(STATES, 0))
    for row in rows:
        for each in known[row["queue"]], total:
            each.add(row["state"], row["attempts"], row["count"])
    queues = sorted(known.values(), key=lambda each: (-each.put, each.queue))
    if not rows:
        return Numbers(None, 0, 0, total, queues, {}, {})
    first, last = min(row["first"] for row in rows), max(row["last"] for row in rows)
    windows = checked_windows(windows_of(first, last, length))
    top = [each.queue for each in queues[:_TOP] if each.put]
    slices = _slices(facts, windows, {_ALL: total, **{name: known[name] for name in top}})
    _time_others(facts, top, known)
    reasons = _reasons(facts, attempts, top)
    return Numbers(
        windows, first, last, total, queues, slices, reasons, _consumers(attempts), _dead_letters(facts)
    )


def _slices(facts: DataFrame, windows: Windows, figures: Mapping[str, Figures]) -> dict[str, list[Slice]]:
    """The windows of each series, from the events of each message: put, first claim, settled; times of `figures`.

    Spark counts the events with the same queue, window and time. The rest is few enough to be ranked here.
    """
    top = [name for name in figures if name != _ALL]
    queue = F.when(F.col("queue").isin(top), F.col("queue")).alias("queue")
    no_time = F.lit(None).cast("bigint")

    def counted(what: "Column", at: str, took: "Column") -> DataFrame:
        number = F.floor((F.col(at) - windows.first) / windows.length).cast("int").alias("window")
        groups = queue, what.alias("what"), number, _rounded(took).alias("took")
        events = facts.where(F.col(at).isNotNull()).groupBy(*groups)
        return events.agg(F.count("*").alias("count"), F.max(took).alias("most"))

    parts = [
        counted(F.lit("put"), "put_at", no_time),
        counted(F.lit("waiting"), "first_claim", F.col("waiting")),
        counted(F.col("state"), "settled_at", no_time),
        counted(F.lit("processing"), "settled_at", F.col("processing")),
    ]
    events = _Events(reduce(DataFrame.unionAll, parts).toArrow(), windows.count)
    found = {name: [Slice(start) for start in windows.starts()] for name in figures}
    for name, slices in found.items():
        own = events.of(None if name == _ALL else name)
        for what in ("put", "done", "failed"):
            for each, count in zip(slices, own.counts(what), strict=True):
                setattr(each, what, count)
        for what in ("waiting", "processing"):
            in_windows, in_all = own.times(what)
            setattr(figures[name], what, in_all)
            for each, times in zip(slices, in_windows, strict=True):
                setattr(each, what, times)
        depth = 0
        for each in slices:
            depth += each.put - each.done - each.failed
            each.depth = depth
    return found


def _rounded(took: "Column") -> "Column":
    """Milliseconds: exact below ten seconds, then their first four digits."""
    rounded = took
    for digits in range(_DIGITS, 18):
        rounded = F.when(took >= 10**digits, took - took % 10 ** (digits - _DIGITS + 1)).otherwise(rounded)
    return rounded


class _Events:
    """Counts of events by queue, kind, window and time, as columns."""

    def __init__(self, rows: pa.Table, windows: int) -> None:
        self._rows = rows
        self._windows = windows
        self._what = rows["what"].to_numpy()
        self._window, self._count = rows["window"].to_numpy(), rows["count"].to_numpy()
        self._took, self._most = (pc.fill_null(rows[name], 0).to_numpy() for name in ("took", "most"))

    def of(self, queue: str | None) -> "_Events":
        """Those of one queue, or of all."""
        return self if queue is None else _Events(self._rows.filter(pc.field("queue") == queue), self._windows)

    def counts(self, what: str) -> list[int]:
        """The number of events in each window."""
        chosen, counts = self._what == what, np.zeros(self._windows, np.int64)
        np.add.at(counts, self._window[chosen], self._count[chosen])
        return [int(each) for each in counts]

    def times(self, what: str) -> tuple[list[Times], Times]:
        """The distribution of a time in each window, and in all of them."""
        chosen = np.flatnonzero(self._what == what)
        chosen = chosen[np.lexsort((self._took[chosen], self._window[chosen]))]
        cuts = np.searchsorted(self._window[chosen], np.arange(self._windows + 1)).tolist()
        in_windows = [self._distribution(chosen[start:end]) for start, end in pairwise(cuts)]
        return in_windows, self._distribution(chosen[np.argsort(self._took[chosen], kind="stable")])

    def _distribution(self, rows: Any) -> Times:
        """The distribution of rows that are in the order of their times."""
        if not len(rows):
            return Times()
        reached = np.cumsum(self._count[rows])
        count = int(reached[-1])
        ranks = [ceil(round(share * count, 6)) for share in _PERCENTILES]
        shares = self._took[rows][np.searchsorted(reached, ranks)]
        return Times(count, *[float(each) / 1000 for each in (*shares, self._most[rows].max())])


def _time_others(facts: DataFrame, top: list[str], known: Mapping[str, Figures]) -> None:
    """Set the times of the queues that are not among the largest."""
    if all(name in top or not each.put for name, each in known.items()):
        return
    others = facts.where(~F.col("queue").isin(top)).groupBy("queue")
    for row in others.agg(*_times("waiting"), *_times("processing")).collect():
        each = known[row["queue"]]
        each.waiting, each.processing = _times_of(row, "waiting"), _times_of(row, "processing")


def _times(name: str) -> "list[Column]":
    shares = F.array(*map(F.lit, _PERCENTILES))
    return [
        F.count(name).alias(f"{name}_count"),
        F.percentile_approx(name, shares, _ACCURACY).alias(f"{name}_percentiles"),
        F.max(name).alias(f"{name}_max"),
    ]


def _times_of(row: "Row", name: str) -> Times:
    if not row[f"{name}_count"]:
        return Times()
    found = [each / 1000 for each in (*row[f"{name}_percentiles"], row[f"{name}_max"])]
    return Times(row[f"{name}_count"], *found)


def _series(top: list[str]) -> "Column":
    """The series that a message counts in: that of all queues, and its queue's own if that is one of `top`."""
    every = F.array(F.lit(_ALL))
    return F.when(F.col("queue").isin(top), F.array(F.lit(_ALL), F.col("queue"))).otherwise(every)


def _consumers(attempts: DataFrame) -> list[Consumer]:
    """The consumers with the most claims."""
    found = attempts.groupBy("consumer").agg(
        F.count_distinct("queue", "id").alias("messages"),
        F.count("*").alias("attempts"),
        F.count_if(F.col("outcome") == "failed").alias("failures"),
        F.max(F.unix_millis(F.greatest("claimed_at", "ended_at"))).alias("last_seen"),
    )
    most = found.orderBy(F.desc("attempts"), "consumer").limit(_CONSUMERS)
    return [Consumer(**row.asDict()) for row in most.collect()]


def _dead_letters(facts: DataFrame) -> list[DeadLetters]:
    """Messages with the headers of dead letters, by the queue where they failed and the one where they are."""
    found = facts.where("origin IS NOT NULL").groupBy("origin", "queue").agg(
        F.count("*").alias("messages"),
        *(F.count_if(F.col("state") == state).alias(state) for state in STATES),
        F.mode("died_of", deterministic=True).alias("reason"),
    )  # fmt: skip
    most = found.orderBy(F.desc("messages"), "origin", "queue").limit(_LETTERS)
    return [
        DeadLetters(row.origin, row.queue, row.messages, {state: row[state] for state in STATES}, row.reason)
        for row in most.collect()
    ]


def _reasons(facts: DataFrame, attempts: DataFrame, top: list[str]) -> dict[str, list[Reason]]:
    """The most frequent reasons of all queues, and of each of the largest."""
    failed = facts.where("state = 'failed'").select(
        "queue", "reason", F.lit(0).alias("one"), F.lit(1).alias("message")
    )
    failures = attempts.where("outcome = 'failed'")
    both = failures.select("queue", "reason", F.lit(1).alias("one"), F.lit(0).alias("message")).unionByName(failed)
    counted = (
        both.withColumn("series", F.explode(_series(top)))
        .groupBy("series", "reason")
        .agg(F.sum("one").alias("attempts"), F.sum("message").alias("messages"))
    )
    rank = F.row_number().over(
        Window.partitionBy("series").orderBy(F.desc("attempts"), F.desc("messages"), "reason")
    )
    found: dict[str, list[Reason]] = {}
    for row in counted.withColumn("rank", rank).where(F.col("rank") <= _REASONS).orderBy("rank").collect():
        found.setdefault(row["series"], []).append(Reason(row["reason"], row["attempts"], row["messages"]))
    return found
