"""Batches of streams by name: in checkpoints, in receipts, and settled, drained or failed by a program.

A checkpoint of Spark, on a disk that this process sees:

    metadata      {"id": the query's}
    offsets/N     of batch N: a version, a line of JSON about it, and for each source a line with its end
    commits/N     batch N is done

An offset of a stream that consumes names all there is to know to settle its batch:

    {"batch": 8, "stream": "nightly", "queue": "jobs", "store": "/data"}

A receipt names store, queue and stream of one message, so that it can be failed wherever its row has gone.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import penstock
from penstock.contract.arguments import checked_reason
from penstock.contract.kinds import check_exists
from penstock.contract.settings import seconds
from penstock.contract.stream_operations import Streams
from penstock.errors import InvalidArgument, NotSupported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from penstock.spark.options import StreamOptions

Sink = Callable[["DataFrame", int], None]
_RECEIPT = re.compile(r"stream:([0-9]+):([0-9]+):([^:]*):([^:]*):([^:]*)", re.ASCII)


class BatchName(NamedTuple):
    """A batch, wherever it is."""

    batch: int
    stream: str
    queue: str
    store: str


def offset_of(options: "StreamOptions", batch: int) -> dict[str, Any]:
    """The offset after a batch; 0 is before the first."""
    return BatchName(batch, options.stream or "", options.queue, options.store)._asdict()


def batch_of(offset: dict[str, Any]) -> BatchName | None:
    """The batch that an offset names; None if it is none of a stream that consumes."""
    if not isinstance(offset, dict) or set(offset) != set(BatchName._fields):
        return None
    return BatchName(int(offset["batch"]), str(offset["stream"]), str(offset["queue"]), str(offset["store"]))


def receipt_ends(batch: BatchName) -> tuple[str, str]:
    """What is before and after the id in the receipts of a batch."""
    where = ":".join(quote(text, safe="/ ") for text in (batch.stream, batch.queue, batch.store))
    return f"stream:{batch.batch}:", f":{where}"


def parse_receipt(text: str) -> tuple[BatchName, str]:
    """The batch and the id of the message that a receipt is of."""
    matched = _RECEIPT.fullmatch(text)
    if matched is None:
        raise InvalidArgument(
            f"{text!r} is no receipt of a message that a stream holds: give rows with the column receipt as the "
            'source of mode "consume" has it'
        )
    stream, queue, store = map(unquote, matched.groups()[2:])
    return BatchName(int(matched[1]), stream, queue, store), matched[2]


# What a program says of batches


def settle(checkpoint: str | os.PathLike[str]) -> int:
    """Settle the batches that a query has committed, as the next start of it would; how many that were.

    A query that ends settles all its batches but perhaps the last: Spark does not tell a source of every commit.
    This does no harm, whether the query runs or not.
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
    """Read all that is there into a sink, and settle it; how many batches there were.

        penstock.spark.drain(spark.readStream.format("penstock")..., write, "checkpoint")

    stream: what to read: a DataFrame of readStream, readStream itself, or a writeStream that only lacks its sink
    sink: a function that is called with each batch and its number, as foreachBatch has it; or the name of a format
    options: of that format
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


def fail(df: "DataFrame", reason: str | None = None, delay: float = 0) -> int:
    """Let messages of a batch fail, instead of being done, when the batch is settled; how many.

        def process(batch, number):
            penstock.spark.fail(batch.where("payload IS NULL"), "no payload")

    df: rows with the column `receipt`, as the source of mode "consume" has it
    reason: as in fail() of a queue
    delay: seconds, from when the batch is settled, until they are tried again

    They are tried again, or have failed for good after the last attempt. What is said here counts for this run of
    the batch: if Spark runs it again, only what is said then.
    """
    if "receipt" not in df.columns:
        raise InvalidArgument(
            "these rows have no column receipt, which says what they are of: keep it until here, as in "
            'select("receipt", ...)'
        )
    reason, delay = checked_reason(reason), seconds("delay", delay)
    failed: dict[BatchName, list[str]] = {}
    for (receipt,) in df.select("receipt").distinct().collect():
        batch, id_ = parse_receipt(str(receipt))
        failed.setdefault(batch, []).append(id_)
    for batch, ids in failed.items():
        _fail(batch, ids, reason, delay)
    return sum(map(len, failed.values()))


def _fail(batch: BatchName, ids: Iterable[str], reason: str | None, delay: float) -> None:
    with closing(penstock.open(batch.store)) as store:
        streams, ordered = Streams(store.run), sorted(ids, key=int)
        streams.fail(batch.queue, batch.stream, batch.batch, ordered, reason, delay)


# Checkpoints


def folder_of(checkpoint: str | os.PathLike[str]) -> str:
    """The folder of a checkpoint; NotSupported if it is elsewhere."""
    text = os.fspath(checkpoint)
    parts = urlsplit(text)
    if parts.scheme in ("", "file"):
        return unquote(parts.path) if parts.scheme else text
    raise NotSupported(
        f"checkpoint {text!r} is not on a disk of this machine: only such a one can be looked into. The next "
        "start of the query settles what it has committed"
    )


def query_id(checkpoint: str | os.PathLike[str]) -> str:
    """The id of the query whose checkpoint this is."""
    path = os.path.join(folder_of(checkpoint), "metadata")
    try:
        with open(path) as file:
            return str(json.load(file)["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidArgument(f"there is no query in checkpoint {os.fspath(checkpoint)!r}: {error}") from None


def committed(checkpoint: str | os.PathLike[str]) -> list[BatchName]:
    """The batches of streams up to which a query has committed, one of each source that consumes."""
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
        with suppress(ValueError):  # of another kind of source
            found += _batches(json.loads(line))
    return list(dict.fromkeys(found))


def _batches(value: Any) -> list[BatchName]:
    """The batches in a line, in which offsets may be texts or be named."""
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
