"""What Spark writes into checkpoints for us, and what rows say of the batch that they are of.

An offset of a stream that consumes names all there is to know to settle its batch:

    {"batch": 8, "stream": "nightly", "queue": "jobs", "store": "/data"}

A receipt names the same for one message, so that it can be failed wherever its row has gone.
"""

import re
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from penstock.errors import InvalidArgument
from penstock.spark.streaming.options import StreamOptions

_RECEIPT = re.compile(r"stream:([0-9]+):([0-9]+):([^:]*):([^:]*):([^:]*)", re.ASCII)


class BatchName(NamedTuple):
    """A batch, wherever it is."""

    batch: int
    stream: str
    queue: str
    store: str


def offset_of(options: StreamOptions, batch: int) -> dict[str, Any]:
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
