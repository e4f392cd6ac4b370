"""Queues as Spark streams, against Spark's batch reads and writes of the same messages, and its rate source.

All on local[2], in one session. The time of a stream is that of its triggers, from the request for a batch to its
commit, without the start of the query; of a consuming stream also the settling of the last batch.
"""

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.harness import Cell
from benchmarks.journal import random_payloads
from benchmarks.spark import MESSAGES, UNCOMPRESSED, _session, _store

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamReader

TRIGGERS = 15
_warmed: set[str] = set()


def _run(stream: "DataStreamReader", folder: Path, sink: str = "noop", **options: str) -> list[dict[str, Any]]:
    """Read all messages into a sink; Spark's progress report of each trigger."""
    writer = stream.load().writeStream.format(sink).options(**options)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    query.stop()
    return [dict(each) for each in query.recentProgress]


def _rate(triggers: list[dict[str, Any]], expected: int, more: float = 0.0) -> float:
    """Messages per second of triggers and `more` seconds."""
    found = sum(each["numInputRows"] for each in triggers)
    if found != expected:
        raise RuntimeError(f"{found:,} is not {expected:,}")
    seconds = sum(float(each["durationMs"]["triggerExecution"]) for each in triggers) / 1000
    return expected / (seconds + more)


def _warm(what: str, measure: Callable[[Path], float], folder: Path) -> None:
    if what not in _warmed:
        _warmed.add(what)
        (folder / "warm").mkdir()
        measure(folder / "warm")


def _stream(store: Path, **options: str) -> "DataStreamReader":
    reader = _session().readStream.format("penstock").option("store", str(store)).option("queue", "queue-0")
    return reader.options(**options)


def _scratch(folder: Path) -> Path:
    """The folder of stores that are made once for all cells."""
    return folder.parents[2] if folder.name == "warm" else folder.parents[1]


def read_batch(folder: Path) -> float:
    """Read all messages at once."""
    _warm("batch", read_batch, folder)
    store = _store(_scratch(folder), MESSAGES)
    started = time.perf_counter()
    frame = _session().read.format("penstock").option("store", str(store)).option("queue", "queue-0").load()
    frame.write.format("noop").mode("append").save()
    return MESSAGES / (time.perf_counter() - started)


def follow(folder: Path) -> float:
    """Follow a queue from its beginning."""
    _warm("follow", follow, folder)
    store = _store(_scratch(folder), MESSAGES)
    return _rate(_run(_stream(store), folder), MESSAGES)


def consume(folder: Path) -> float:
    """Consume a queue, and settle it."""
    _warm("consume", consume, folder)
    shutil.copytree(_store(_scratch(folder), MESSAGES), folder / "store")
    triggers = _run(_stream(folder / "store", mode="consume", stream="s"), folder)
    import penstock.spark

    started = time.perf_counter()
    penstock.spark.settle(folder / "checkpoint")
    rate = _rate(triggers, MESSAGES, time.perf_counter() - started)
    with penstock.open(folder / "store") as store:
        if any(store.queue("queue-0").counts().values()):
            raise RuntimeError("something is left")
    return rate


def trigger_of_rate(folder: Path) -> float:
    """A trigger of Spark's own source, with one row."""
    reader = _session().readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.start()
    while len(query.recentProgress) < TRIGGERS:
        time.sleep(0.05)
    query.stop()
    return _trigger([dict(each) for each in query.recentProgress])


def trigger_of_follow(folder: Path) -> float:
    """A trigger of a follower, with one message."""
    with penstock.open(folder / "store") as store:
        store.create("queue-0").put_many(random_payloads(TRIGGERS))
    return _trigger(_run(_stream(folder / "store", maxRowsPerBatch="1"), folder))


def _trigger(triggers: list[dict[str, Any]]) -> float:
    """Seconds, after the first few."""
    times = [float(each["durationMs"]["triggerExecution"]) for each in triggers if each["numInputRows"]]
    return statistics.median(times[3:]) / 1000


def _parquet(folder: Path) -> Path:
    """Payloads as Parquet, made once."""
    path = _store(_scratch(folder), MESSAGES).parent / "payloads"
    if not path.exists():
        store = str(_store(_scratch(folder), MESSAGES))
        rows = _session().read.format("penstock").option("store", store).schema("payload binary").load()
        rows.repartition(2).write.options(**UNCOMPRESSED).parquet(str(path))
    return path


def write_batch(folder: Path) -> float:
    """Put all rows at once."""
    _warm("write", write_batch, folder)
    rows = _session().read.parquet(str(_parquet(folder)))
    with penstock.open(folder / "store") as store:
        store.create("out")
    started = time.perf_counter()
    rows.write.format("penstock").mode("append").option("store", str(folder / "store")).option(
        "queue", "out"
    ).save()
    return MESSAGES / (time.perf_counter() - started)


def write_stream(folder: Path) -> float:
    """Put all rows as a batch of a stream."""
    _warm("sink", write_stream, folder)
    with penstock.open(folder / "store") as store:
        store.create("out")
    reader = _session().readStream.schema("payload binary").format("parquet").option("path", str(_parquet(folder)))
    return _rate(_run(reader, folder, "penstock", store=str(folder / "store"), queue="out"), MESSAGES)


_READ, _FOLLOW = f"batch read of {MESSAGES:,} to a no-op", f"follow {MESSAGES:,} to a no-op"
_WRITE = f"batch write of {MESSAGES:,}"
_TRIGGER = "trigger of the rate source, one row"
CELLS = [
    Cell(_READ, "streams", "ops/s", read_batch, "higher"),
    Cell(_FOLLOW, "streams", "ops/s", follow, "higher", {_READ: 0.5}),
    Cell(f"consume {MESSAGES:,}, settled", "streams", "ops/s", consume, "higher", {_FOLLOW: 0.4}),
    Cell(_TRIGGER, "streams", "s", trigger_of_rate, "lower", of="peer"),
    Cell("trigger of a follower, one message", "streams", "s", trigger_of_follow, "lower", {_TRIGGER: 3.0}),
    Cell(_WRITE, "streams", "ops/s", write_batch, "higher"),
    Cell(f"sink, {MESSAGES:,} in a batch", "streams", "ops/s", write_stream, "higher", {_WRITE: 0.5}),
]
