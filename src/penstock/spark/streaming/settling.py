"""What a program says of the batches that it reads: settled, drained, failed."""

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import penstock
from penstock.contract.arguments import checked_reason
from penstock.contract.kinds import check_exists
from penstock.contract.settings import seconds
from penstock.contract.stream_operations import Streams
from penstock.errors import InvalidArgument
from penstock.spark.streaming.checkpoints import committed
from penstock.spark.streaming.offsets import BatchName, parse_receipt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

Sink = Callable[["DataFrame", int], None]


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
