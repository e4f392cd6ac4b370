"""Spark reading and writing a journal store, against Parquet without dictionaries.

Both on local[2], in one session, with a new plan for each query: Spark would answer a repeated one from memory.
"""

import functools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from benchmarks.brokers.connection import HOST
from benchmarks.brokers.penstock import Penstock
from benchmarks.harness import Cell, kept_folder
from benchmarks.journal import random_payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = int(os.environ.get("PENSTOCK_SPARK_MESSAGES", "1000000"))
BATCH = 1_000
QUEUES, IN_QUEUE = 1_000, 1_000  # of the store with many queues, 1 KiB each
FEW = min(MESSAGES, 100_000)  # of text and folder stores
WARM_UP = 2  # queries before the first that counts
TURNS = 5  # of quick queries; the fastest counts

UNCOMPRESSED = {"compression": "none", "parquet.enable.dictionary": "false"}

Measure = Callable[[Path], float]
_warmed: set[str] = set()  # names of queries that ran before


@functools.cache
def _session() -> "SparkSession":
    import penstock.spark

    return penstock.spark.session("local[2]")


@functools.cache
def _store(scratch: Path, messages: int, queues: int = 1) -> Path:
    """A store with `messages` in each of `queues`, made once and removed at exit."""
    folder = kept_folder("spark-", scratch)
    with penstock.open(folder / "store", sync="never") as store:
        for number in range(queues):
            queue = store.create(f"queue-{number}")
            for _ in range(messages // BATCH):
                queue.put_many(random_payloads(BATCH))
    return folder / "store"


@functools.cache
def _parquet(scratch: Path, messages: int) -> Path:
    """The same rows as Parquet."""
    store = _store(scratch, messages)
    path = store.parent / "parquet"
    _load(_session(), store).write.options(**UNCOMPRESSED).parquet(str(path))
    return path


def _load(spark: "SparkSession", store: Path, schema: str = "", **options: str) -> "DataFrame":
    reader = spark.read.format("penstock").option("store", str(store)).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def _bytes(messages: "DataFrame") -> int:
    (row,) = messages.selectExpr("sum(length(payload))").collect()
    return int(row[0])


def _count(messages: "DataFrame") -> int:
    return sum(row["count"] for row in messages.groupBy("state").count().collect())


def count_by_state(store: Path) -> int:
    """All messages of a store, counted by state."""
    return _count(_load(_session(), store, "state string"))


def _seconds(read: Callable[[], int], expected: int) -> float:
    started = time.perf_counter()
    found = read()
    elapsed = time.perf_counter() - started
    if found != expected:
        raise RuntimeError(f"{found:,} is not {expected:,}")
    return elapsed


def _warm_seconds(what: str, read: Callable[[], int], expected: int) -> float:
    """The seconds of a query; the first time, after some that do not count."""
    if what not in _warmed:
        for _ in range(WARM_UP):
            read()
        _warmed.add(what)
    return _seconds(read, expected)


def _rate(
    what: str, answer: Callable[["DataFrame"], int], frame: Callable[[Path], "DataFrame"], each: int
) -> Measure:
    """Messages per second of a query; `each` is what one message adds to its result."""

    def measure(folder: Path) -> float:
        return MESSAGES / _warm_seconds(what, lambda: answer(frame(folder.parents[1])), MESSAGES * each)

    return measure


def _ours(schema: str) -> Callable[[Path], "DataFrame"]:
    return lambda scratch: _load(_session(), _store(scratch, MESSAGES), schema)


def _theirs(scratch: Path) -> "DataFrame":
    return _session().read.parquet(str(_parquet(scratch, MESSAGES)))


def _growth(folder: Path) -> float:
    """The time of reading all messages, as a multiple of the time for a tenth of them."""
    scratch = folder.parents[1]
    stores = {count: _store(scratch, count) for count in (MESSAGES // 10, MESSAGES)}

    def seconds(count: int) -> float:
        return _seconds(lambda: _bytes(_load(_session(), stores[count], "payload binary")), count * 1024)

    for count in stores:
        seconds(count)
    return seconds(MESSAGES) / seconds(MESSAGES // 10)


def _crowd(folder: Path) -> float:
    """The time of reading a queue of a store with many queues, as a multiple of a store with this queue alone."""
    scratch = folder.parents[1]
    stores = [_store(scratch, IN_QUEUE), _store(scratch, IN_QUEUE, QUEUES)]

    def seconds(store: Path) -> float:
        return _seconds(lambda: _bytes(_load(_session(), store, queue="queue-0")), IN_QUEUE * 1024)

    alone, beside = (min(times) for times in zip(*[map(seconds, stores) for _ in range(TURNS)], strict=True))
    return float(beside / alone)


@functools.cache
def _shared_store(scratch: Path, kind: str) -> tuple[str, Path]:
    """The URL of a text or folder store with many small messages, and where its files are."""
    folder = kept_folder("spark-", scratch)
    with penstock.open(f"{kind}:{folder}", sync="never") as store:
        queue = store.create("jobs")
        for start in range(0, FEW, BATCH):
            queue.put_many([f"message {number} of the benchmark" for number in range(start, start + BATCH)])
    return f"{kind}:{folder}", folder


def _shared(kind: str) -> Measure:
    """Messages per second of reading a text or folder store."""

    def measure(folder: Path) -> float:
        url, _ = _shared_store(folder.parents[1], kind)

        def read() -> int:
            reader = _session().read.format("penstock").option("store", url).option("queue", "jobs")
            return reader.schema("payload binary").load().where("length(payload) > 0").count()

        return FEW / _warm_seconds(f"store {kind}", read, FEW)

    return measure


def _files(kind: str) -> Measure:
    """Messages per second of Spark's own source on the same files."""

    def measure(folder: Path) -> float:
        _, files = _shared_store(folder.parents[1], kind)

        def read() -> int:
            if kind == "text":
                lines = _session().read.text(str(files / "jobs.tq"))
                return lines.where("value LIKE '-%'").count()
            found = _session().read.format("binaryFile").load(str(files / "queues" / "jobs"))
            return found.where("length(content) > 0").count()

        return FEW / _warm_seconds(f"files {kind}", read, FEW)

    return measure


def _source(scratch: Path) -> "DataFrame":
    """The rows to write: payloads alone."""
    return _session().read.parquet(str(_parquet(scratch, MESSAGES))).select("payload")


def _writing(
    what: str, prepare: Callable[[Path], object], write: Callable[["DataFrame", Path], object]
) -> Measure:
    """Messages per second of a durable write."""

    def measure(folder: Path) -> float:
        rows = _source(folder.parents[1])

        def seconds(target: Path) -> float:
            target.mkdir()
            prepare(target)
            started = time.perf_counter()
            write(rows, target)
            elapsed = time.perf_counter() - started
            shutil.rmtree(target)
            return elapsed

        if what not in _warmed:
            seconds(folder / "first")
            _warmed.add(what)
        return MESSAGES / seconds(folder / "target")

    return measure


def _new_store(folder: Path) -> None:
    penstock.open(folder / "store").close()


def _write_journal(rows: "DataFrame", folder: Path) -> None:
    rows.write.format("penstock").mode("append").option("queue", "default").save(str(folder / "store"))


def _write_parquet(rows: "DataFrame", folder: Path) -> None:
    rows.write.options(**UNCOMPRESSED).parquet(str(folder / "parquet"))


@functools.cache
def _settled_store(scratch: Path) -> Path:
    """A store whose messages are done or, some after a second attempt, failed; made once and removed at exit."""
    folder = kept_folder("spark-", scratch)
    with penstock.open(folder / "store", sync="never") as store:
        queues = [store.create(f"queue-{number}", keep_done=None, max_attempts=2) for number in range(4)]
        for number in range(MESSAGES // BATCH):
            queue = queues[number % len(queues)]
            queue.put_many(random_payloads(BATCH))
            for failing in (BATCH // 50, BATCH // 100):
                claimed = queue.claim(BATCH, consumer=f"worker-{number % 8}")
                queue.ack(*claimed[failing:])
                queue.fail(*claimed[:failing], reason="no luck", delay=0)
    return folder / "store"


def _job(name: str) -> Measure:
    """Messages per second of a job; its first run does not count."""

    def measure(folder: Path) -> float:
        from penstock.spark import jobs

        store = _settled_store(folder.parents[1])

        def seconds(target: Path) -> float:
            started = time.perf_counter()
            getattr(jobs, name)(_session(), store, target)
            return time.perf_counter() - started

        if name not in _warmed:
            seconds(folder / "first")
            _warmed.add(name)
        return MESSAGES / seconds(folder / "target")

    return measure


def _put_many(folder: Path) -> float:
    """Messages per second of one process that puts batches over HTTP, one after the other."""
    payloads = random_payloads(BATCH)
    batches = MESSAGES // 10 // BATCH
    with Penstock(folder) as server, penstock.open(f"http://{HOST}:{server.port}") as store:
        queue = store.queue()
        queue.put_many(payloads)
        started = time.perf_counter()
        for _ in range(batches):
            queue.put_many(payloads)
        return batches * BATCH / (time.perf_counter() - started)


GROUP = f"spark, {MESSAGES:,} messages of 1 KiB"
SHARED = f"spark, {FEW:,} small messages in text and folder stores"
PAYLOADS, STATES = "sum(length(payload))", "count by state"

CELLS = [
    Cell(
        f"spark reads a journal, {PAYLOADS}",
        GROUP,
        "messages/s",
        _rate("payloads", _bytes, _ours("payload binary"), 1024),
        "higher",
        {f"spark reads Parquet, {PAYLOADS}": 1.0},
    ),
    Cell(
        f"spark reads a journal, {PAYLOADS}, all columns",
        GROUP,
        "messages/s",
        _rate("all columns", _bytes, _ours(""), 1024),
        "higher",
        {f"spark reads Parquet, {PAYLOADS}": None},
    ),
    Cell(
        f"spark reads Parquet, {PAYLOADS}",
        GROUP,
        "messages/s",
        _rate("parquet payloads", _bytes, _theirs, 1024),
        "higher",
        of="peer",
    ),
    Cell(
        f"spark reads a journal, {STATES}",
        GROUP,
        "messages/s",
        _rate("states", _count, _ours("state string"), 1),
        "higher",
        {f"spark reads Parquet, {STATES}": 0.7},
    ),
    Cell(
        f"spark reads Parquet, {STATES}",
        GROUP,
        "messages/s",
        _rate("parquet states", _count, _theirs, 1),
        "higher",
        of="peer",
    ),
    Cell(
        "spark writes a journal",
        GROUP,
        "messages/s",
        _writing("journal", _new_store, _write_journal),
        "higher",
        {"spark writes Parquet": 0.5, "put_many over HTTP, one process": 3},
    ),
    Cell(
        "spark writes Parquet",
        GROUP,
        "messages/s",
        _writing("parquet", lambda folder: None, _write_parquet),
        "higher",
        of="peer",
    ),
    Cell("put_many over HTTP, one process", GROUP, "messages/s", _put_many, "higher"),
    Cell(
        "spark reads a text store",
        SHARED,
        "messages/s",
        _shared("text"),
        "higher",
        {"spark reads the lines of its file": 0.5},
    ),
    Cell("spark reads the lines of its file", SHARED, "messages/s", _files("text"), "higher", of="peer"),
    Cell(
        "spark reads a folder store",
        SHARED,
        "messages/s",
        _shared("folder"),
        "higher",
        {"spark reads its files as binaryFile": 0.5},
    ),
    Cell("spark reads its files as binaryFile", SHARED, "messages/s", _files("folder"), "higher", of="peer"),
    Cell(
        "spark archives settled messages",
        GROUP,
        "messages/s",
        _job("archive"),
        "higher",
        {"spark writes Parquet": None},
    ),
    Cell("spark reports on settled messages", GROUP, "messages/s", _job("report"), "higher"),
    Cell("spark reads 10 times the messages", GROUP, "x the time", _growth, "lower", target=11),
    Cell("spark reads a queue beside 1,000", GROUP, "x that alone", _crowd, "lower", target=2),
]
