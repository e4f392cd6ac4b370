"""Settling the batches of consuming streams: settle(), drain() and fail(), from checkpoints and receipts.

A checkpoint of Spark, on a disk of this machine:

    metadata      {"id": id of the query} offsets/N     batch N: a version, a line of JSON about the batch, and a
    line for each source with its end offset commits/N     batch N is committed

The offset of a consuming stream names its batch completely:

    {"batch": 8, "stream": "nightly", "queue": "jobs", "store": "/data"}

A receipt names batch, message, stream, queue and store, so that fail() needs no other column of a row.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import penstock
from penstock.contract.arguments import checked_delay, checked_reason
from penstock.contract.kinds import check_exists
from penstock.contract.stream_operations import Streams
from penstock.errors import InvalidArgument, NotSupported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from penstock.spark.options import StreamOptions

Sink = Callable[["DataFrame", int], None]
_RECEIPT = re.compile(r"stream:([0-9]+):([0-9]+):([^:]*):([^:]*):([^:]*)", re.ASCII)


class BatchName(NamedTuple):
    """A batch with its stream, queue and store."""

    batch: int
    stream: str
    queue: str
    store: str


def offset_of(options: "StreamOptions", batch: int) -> dict[str, Any]:
    """The offset after a batch; batch 0 is the start."""
    return BatchName(batch, options.stream or "", options.queue, options.store)._asdict()


def batch_of(offset: dict[str, Any]) -> BatchName | None:
    """The batch that an offset names; None if the offset is of another kind of source."""
    if not isinstance(offset, dict) or set(offset) != set(BatchName._fields):
        return None
    return BatchName(int(offset["batch"]), str(offset["stream"]), str(offset["queue"]), str(offset["store"]))


def receipt_ends(batch: BatchName) -> tuple[str, str]:
    """The text before and after the message's id in the receipts of a batch."""
    where = ":".join(quote(text, safe="/ ") for text in (batch.stream, batch.queue, batch.store))
    return f"stream:{batch.batch}:", f":{where}"


def parse_receipt(text: str) -> tuple[BatchName, str]:
    """The batch and the message id of a receipt."""
    matched = _RECEIPT.fullmatch(text)
    if matched is None:
        raise InvalidArgument(
            f"{text!r} is no receipt of a message that a stream holds: give rows with the column receipt of a "
            'stream in mode "consume"'
        )
    stream, queue, store = map(unquote, matched.groups()[2:])
    return BatchName(int(matched[1]), stream, queue, store), matched[2]


# For programs


def settle(checkpoint: str | os.PathLike[str]) -> int:
    """Settle the batches that a query has committed, as its next start would; the number of batches settled.

    A query that ends may leave its last batch unsettled, because Spark does not report every commit to a source.
    Safe at any time, also while the query runs.
    """
    return sum(_settled(batch) for batch in committed(checkpoint) if batch.batch)


def _settled(batch: BatchName) -> bool:
    check_exists(batch.store)
    with closing(penstock.open(batch.store)) as store:
        return Streams(store.run).settle(batch.queue, batch.stream, batch.batch)


def drain(
    stream: "DataFrame | DataStreamReader | DataStreamWriter",
    sink: Sink | str,
    checkpoint: str | os.PathLike[str],
    **options: Any,
) -> int:
    """Read all available messages into a sink, and settle them; the number of batches.

        penstock.spark.drain(spark.readStream.format("penstock")..., write, "checkpoint")

    Args:
        stream: a DataFrame of readStream, a readStream, or a writeStream without a sink
        sink: a function of a batch and its number, as in foreachBatch; or the name of a format
        checkpoint: the folder where Spark keeps how far the query has come
        options: options of that format
    """
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    read = stream.load() if isinstance(stream, DataStreamReader) else stream
    writer = read if isinstance(read, DataStreamWriter) else read.writeStream
    if callable(sink):
        if options:
            raise InvalidArgument(
                f"options ({', '.join(options)}) are for a sink that is a format, not a function"
            )
        writer = writer.foreachBatch(sink)
    else:
        writer = writer.format(sink).options(**options)
    query = writer.option("checkpointLocation", os.fspath(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    settle(checkpoint)
    return sum(1 for each in query.recentProgress if each["numInputRows"])


def fail(df: "DataFrame", reason: str | None = None, delay: float | None = None) -> int:
    """Mark messages of a batch to fail, instead of being done, when the batch is settled; the number of messages.

        def process(batch, number):
            penstock.spark.fail(batch.where("payload IS NULL"), "no payload")

    A message is available again after the delay, or failed for good after its last attempt. If Spark replays the
    batch, the marks of the replay replace these.

    Args:
        df: rows with the column `receipt` of a stream in mode "consume"
        reason: as in Queue.fail()
        delay: seconds from the settling of the batch to the next attempt; default: the queue's `backoff`
    """
    if "receipt" not in df.columns:
        raise InvalidArgument(
            'these rows have no column receipt, which names their messages: keep it, as in select("receipt", ...)'
        )
    reason, delay = checked_reason(reason), checked_delay(delay)
    failed: dict[BatchName, set[str]] = {}
    # Not distinct(): a task of an aggregate contains Spark's plan, with the plan's tags. Adaptive execution adds
    # tags in other threads, and a task cannot be serialized meanwhile ("Illegal size 5 of collection").
    for (receipt,) in df.select("receipt").collect():
        batch, id_ = parse_receipt(str(receipt))
        failed.setdefault(batch, set()).add(id_)
    for batch, ids in failed.items():
        _fail(batch, ids, reason, delay)
    return sum(map(len, failed.values()))


def _fail(batch: BatchName, ids: Iterable[str], reason: str | None, delay: float | None) -> None:
    with closing(penstock.open(batch.store)) as store:
        streams, ordered = Streams(store.run), sorted(ids, key=int)
        streams.fail(batch.queue, batch.stream, batch.batch, ordered, reason, delay)


# Checkpoints


def folder_of(checkpoint: str | os.PathLike[str]) -> str:
    """The folder of a checkpoint; NotSupported if it is not on a disk of this machine."""
    text = os.fspath(checkpoint)
    parts = urlsplit(text)
    if parts.scheme in ("", "file"):
        return unquote(parts.path) if parts.scheme else text
    raise NotSupported(
        f"checkpoint {text!r} is not on a disk of this machine, and cannot be read here: start the query once "
        "more, which settles the batches that it has committed"
    )


def query_id(checkpoint: str | os.PathLike[str]) -> str:
    """The query id in a checkpoint."""
    path = os.path.join(folder_of(checkpoint), "metadata")
    try:
        with open(path) as file:
            return str(json.load(file)["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidArgument(f"there is no query in checkpoint {os.fspath(checkpoint)!r}: {error}") from None


def committed(checkpoint: str | os.PathLike[str]) -> list[BatchName]:
    """The last committed batch of each consuming stream that the query reads."""
    folder = folder_of(checkpoint)
    if not os.path.isdir(os.path.join(folder, "offsets")):
        raise InvalidArgument(f"{os.fspath(checkpoint)!r} is no checkpoint of a query: it has no offsets")
    done = _numbers(os.path.join(folder, "commits"))
    if not done:
        return []
    path = os.path.join(folder, "offsets", str(max(done)))
    try:
        with open(path) as file:
            lines = file.read().splitlines()[1:]
    except FileNotFoundError:
        raise InvalidArgument(
            f"{path!r} is missing, of a batch that was committed: is that a checkpoint?"
        ) from None
    found: list[BatchName] = []
    for line in lines:
        with suppress(ValueError):  # no JSON: an offset of another kind of source
            found += _batches(json.loads(line))
    return list(dict.fromkeys(found))


def _batches(value: Any) -> list[BatchName]:
    """The batches in a line, whose offsets may be nested in objects or be JSON in a string."""
    if isinstance(value, str):
        try:
            return _batches(json.loads(value)) if value.startswith("{") else []
        except ValueError:
            return []
    if not isinstance(value, dict):
        return []
    if (batch := batch_of(value)) is not None:
        return [batch]
    return [batch for each in value.values() for batch in _batches(each)]


def _numbers(folder: str) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit()]
    return []
